// Copies a topic in transactions with kafkajs: bootstrap, source, sink, group, count.
// Every third transaction is aborted and written again.
const { Kafka, logLevel } = require('kafkajs');

async function main([bootstrap, source, sink, group, countText]) {
  const count = Number(countText);
  const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.ERROR });
  const writer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await writer.connect();
  await writer.send({ topic: source, messages: Array.from({ length: count }, (_, n) => ({ value: String(n) })) });
  await writer.disconnect();

  const producer = kafka.producer({ transactionalId: group, idempotent: true, maxInFlightRequests: 1 });
  const consumer = kafka.consumer({ groupId: group, readUncommitted: false });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topic: source, fromBeginning: true });
  let done = 0;
  let transactions = 0;
  await new Promise((resolve, reject) => {
    consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      eachBatch: async ({ batch, resolveOffset }) => {
        for (let at = 0; at < batch.messages.length; at += 25) {
          const part = batch.messages.slice(at, at + 25);
          const offset = String(BigInt(part[part.length - 1].offset) + 1n);
          for (let committed = false; !committed; transactions += 1) {
            committed = transactions % 3 !== 1;
            const transaction = await producer.transaction();
            await transaction.send({ topic: sink, messages: part.map(({ value }) => ({ value })) });
            const topics = [{ topic: source, partitions: [{ partition: batch.partition, offset }] }];
            await transaction.sendOffsets({ consumerGroupId: group, topics });
            await (committed ? transaction.commit() : transaction.abort());
          }
          resolveOffset(part[part.length - 1].offset);
          done += part.length;
        }
        if (done >= count) resolve();
      },
    }).catch(reject);
    setTimeout(() => reject(new Error(`${count - done} records were not copied`)), 60_000).unref();
  });
  await consumer.disconnect();
  await producer.disconnect();
  console.log('done');
}

main(process.argv.slice(2)).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
