// Copies a topic in transactions with sarama: bootstrap, source, sink, group, count.
// Every third transaction is aborted and written again.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func settings() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Return.Successes = true
	made.Producer.Idempotent = true
	made.Net.MaxOpenRequests = 1
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.IsolationLevel = sarama.ReadCommitted
	return made
}

type copier struct {
	producer     sarama.SyncProducer
	sink, group  string
	mutex        sync.Mutex // Claims are consumed at the same time, and there is one transaction.
	left         int
	transactions int
	all          context.CancelFunc
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message := <-claim.Messages():
			if message == nil {
				return nil
			}
			batch := []*sarama.ConsumerMessage{message}
			for len(batch) < 25 && len(claim.Messages()) > 0 {
				batch = append(batch, <-claim.Messages())
			}
			c.copy(batch)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (c *copier) copy(batch []*sarama.ConsumerMessage) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for committed := false; !committed; c.transactions++ {
		committed = c.transactions%3 != 1
		check(c.producer.BeginTxn())
		for _, message := range batch {
			value := sarama.ByteEncoder(message.Value)
			_, _, err := c.producer.SendMessage(&sarama.ProducerMessage{Topic: c.sink, Value: value})
			check(err)
			check(c.producer.AddMessageToTxn(message, c.group, nil))
		}
		if committed {
			check(c.producer.CommitTxn())
		} else {
			check(c.producer.AbortTxn())
		}
	}
	c.left -= len(batch)
	if c.left <= 0 {
		c.all()
	}
}

func main() {
	bootstrap, source, sink, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	count, err := strconv.Atoi(os.Args[5])
	check(err)

	writer, err := sarama.NewSyncProducer([]string{bootstrap}, settings())
	check(err)
	for n := range count {
		value := sarama.StringEncoder(strconv.Itoa(n))
		_, _, err := writer.SendMessage(&sarama.ProducerMessage{Topic: source, Value: value})
		check(err)
	}
	check(writer.Close())

	transactional := settings()
	transactional.Producer.Transaction.ID = group
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, transactional)
	check(err)
	consumer, err := sarama.NewConsumerGroup([]string{bootstrap}, group, settings())
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	work := &copier{producer: producer, sink: sink, group: group, left: count, all: cancel}
	for ctx.Err() == nil {
		check(consumer.Consume(ctx, []string{source}, work))
	}
	check(consumer.Close())
	check(producer.Close())
	if work.left > 0 {
		check(fmt.Errorf("%d records were not copied", work.left))
	}
	fmt.Println("done")
}
