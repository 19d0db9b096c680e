/* The load itself: stock librdkafka driven from C, so that the client costs as little as it can. Built and started by
 * driver.py, one job per process; both brokers of a comparison get the same binary with the same settings.
 *
 *     driver KIND TOPIC PARTITIONS RECORDS RECORD_BYTES IN_A_ROW PER_SECOND name=value ...
 *
 * produce: from the first record to the acknowledgement of the last; so many IN_A_ROW to each partition in turn.
 * consume: from the first record to the last, so that connecting is not in it.
 * latency: from when a record is due to its delivery report. PER_SECOND 0: one in flight, due when the one before is
 *          acknowledged. Otherwise records are due at a steady pace, whether or not the ones before were acknowledged,
 *          and one that had to wait for its turn counts from when it was due.
 *
 * Prints one JSON object. Ends with 1 and a sentence on standard error if anything at all went wrong.
 */
#define _GNU_SOURCE
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { BATCH = 1000, STALL_MS = 60000, FIRST_ARGUMENT_OF_SETTINGS = 8 };

static struct {
    const char *kind, *topic;
    int partitions;
    long records;
    size_t record_bytes;
    long in_a_row;
    double per_second;
} job;

static atomic_long delivered;
static atomic_bool finished;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* User and system time of all threads of this process. */
static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_until(double when_s) {
    time_t whole = (time_t)when_s;
    struct timespec t = {whole, (long)((when_s - (double)whole) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* In `latency` a record's opaque is its place among the times: when it was due, then how long it took. */
static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err)
        fail("%s: %s", job.topic, rd_kafka_err2str(message->err));
    double *time = message->_private;
    if (time)
        *time = now_s() - *time;
    atomic_fetch_add(&delivered, 1);
}

static rd_kafka_conf_t *settings(int count, char **given) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char error[512];
    for (int i = 0; i < count; i++) {
        char *value = strchr(given[i], '=');
        if (!value)
            fail("A setting is name=value, not %s.", given[i]);
        *value++ = 0;
        if (rd_kafka_conf_set(conf, given[i], value, error, sizeof error) != RD_KAFKA_CONF_OK)
            fail("%s", error);
    }
    return conf;
}

static rd_kafka_t *connect_to(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char error[512];
    rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
    if (!client)
        fail("%s", error);
    return client;
}

/* Have the connection and the topic's metadata before the clock runs. Kafka confirms a topic that not all of it knows yet,
 * so a missing one is asked for again. */
static rd_kafka_topic_t *find_topic(rd_kafka_t *client) {
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, job.topic, NULL);
    for (double deadline = now_s() + STALL_MS / 1000.0; now_s() < deadline; sleep_until(now_s() + 0.05)) {
        const struct rd_kafka_metadata *metadata;
        rd_kafka_resp_err_t error = rd_kafka_metadata(client, 0, topic, &metadata, STALL_MS / 2);
        if (error)
            fail("%s: %s", job.topic, rd_kafka_err2str(error));
        int found = metadata->topic_cnt == 1 ? metadata->topics[0].partition_cnt : 0;
        rd_kafka_metadata_destroy(metadata);
        if (found >= job.partitions)
            return topic;
    }
    fail("%s does not have %d partitions.", job.topic, job.partitions);
    return NULL;
}

static void send_record(rd_kafka_t *client, rd_kafka_topic_t *topic, int partition, char *value, double *time) {
    while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, value, job.record_bytes, NULL, 0, time)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            fail("%s: %s", job.topic, rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(client, 10);
    }
}

static void print_rate(double seconds, double cpu) {
    printf("{\"seconds\": %.9f, \"cpu_s\": %.9f}\n", seconds, cpu);
}

static void produce(rd_kafka_conf_t *conf, char *value) {
    rd_kafka_t *client = connect_to(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = find_topic(client);
    double began = now_s(), cpu_began = cpu_s();
    for (long i = 0; i < job.records; i++)
        send_record(client, topic, (int)(i / job.in_a_row % job.partitions), value, NULL);
    for (int left = rd_kafka_outq_len(client), before; left; left = rd_kafka_outq_len(client)) {
        before = left;
        rd_kafka_flush(client, STALL_MS);
        if (rd_kafka_outq_len(client) >= before)
            fail("%s: %d records were not acknowledged in %d s.", job.topic, left, STALL_MS / 1000);
    }
    print_rate(now_s() - began, cpu_s() - cpu_began);
}

static void consume(rd_kafka_conf_t *conf) {
    rd_kafka_t *client = connect_to(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(client);
    rd_kafka_topic_partition_list_t *assigned = rd_kafka_topic_partition_list_new(job.partitions);
    for (int i = 0; i < job.partitions; i++)
        rd_kafka_topic_partition_list_add(assigned, job.topic, i)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(client, assigned);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(client);
    rd_kafka_message_t *messages[BATCH];
    double began = 0, cpu_began = 0;
    for (long got = 0; got < job.records;) {
        /* librdkafka waits until it has as many as it was asked for: never ask for more than there are. */
        long wanted = got == 0 ? 1 : job.records - got < BATCH ? job.records - got : BATCH;
        ssize_t count = rd_kafka_consume_batch_queue(queue, STALL_MS, messages, (size_t)wanted);
        if (count <= 0)
            fail("%s: nothing came for %d s, after %ld records.", job.topic, STALL_MS / 1000, got);
        for (ssize_t i = 0; i < count; i++) {
            if (messages[i]->err)
                fail("%s: %s", job.topic, rd_kafka_message_errstr(messages[i]));
            rd_kafka_message_destroy(messages[i]);
        }
        if (got == 0)
            began = now_s(), cpu_began = cpu_s();
        got += count;
    }
    print_rate(now_s() - began, cpu_s() - cpu_began);
}

static void *poll_until_finished(void *client) {
    while (!atomic_load(&finished))
        rd_kafka_poll(client, 100);
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile_ms(const double *ordered, long count, double q) {
    long at = (long)(q * (double)count);
    return ordered[at < count ? at : count - 1] * 1000;
}

static void latency(rd_kafka_conf_t *conf, char *value) {
    rd_kafka_t *client = connect_to(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = find_topic(client);
    double *times = calloc((size_t)job.records, sizeof *times);
    pthread_t poller;
    /* The first send of a client asks for more than an append: an address, a connection. It is not counted. */
    double began = 0;
    for (long i = 0; i < job.records; i++) {
        if (i <= 1 || job.per_second == 0) {
            times[i] = now_s();
            send_record(client, topic, 0, value, &times[i]);
            while (atomic_load(&delivered) <= i)
                if (!rd_kafka_poll(client, STALL_MS))
                    fail("%s: no acknowledgement in %d s.", job.topic, STALL_MS / 1000);
            continue;
        }
        if (i == 2) {
            began = now_s() + 0.001;
            pthread_create(&poller, NULL, poll_until_finished, client);
        }
        sleep_until(times[i] = began + (double)(i - 2) / job.per_second);
        send_record(client, topic, 0, value, &times[i]);
    }
    double deadline = now_s() + STALL_MS / 1000.0;
    while (atomic_load(&delivered) < job.records) {
        if (now_s() > deadline)
            fail("%s: not all was acknowledged in %d s.", job.topic, STALL_MS / 1000);
        sleep_until(now_s() + 0.001);
    }
    atomic_store(&finished, 1);
    long counted = job.records - 1;
    qsort(times + 1, (size_t)counted, sizeof *times, ascending);
    printf("{\"p50_ms\": %.6f, \"p99_ms\": %.6f, \"p999_ms\": %.6f}\n", quantile_ms(times + 1, counted, 0.5),
           quantile_ms(times + 1, counted, 0.99), quantile_ms(times + 1, counted, 0.999));
}

int main(int count, char **arguments) {
    if (count < FIRST_ARGUMENT_OF_SETTINGS)
        fail("usage: driver KIND TOPIC PARTITIONS RECORDS RECORD_BYTES IN_A_ROW PER_SECOND name=value ...");
    job.kind = arguments[1];
    job.topic = arguments[2];
    job.partitions = atoi(arguments[3]);
    job.records = atol(arguments[4]);
    job.record_bytes = (size_t)atol(arguments[5]);
    job.in_a_row = atol(arguments[6]);
    job.per_second = atof(arguments[7]);
    rd_kafka_conf_t *conf = settings(count - FIRST_ARGUMENT_OF_SETTINGS, arguments + FIRST_ARGUMENT_OF_SETTINGS);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    char *value = calloc(1, job.record_bytes + 1);
    if (!strcmp(job.kind, "produce"))
        produce(conf, value);
    else if (!strcmp(job.kind, "consume"))
        consume(conf);
    else if (!strcmp(job.kind, "latency"))
        latency(conf, value);
    else
        fail("There is no job %s.", job.kind);
    /* Nothing is left to be done by librdkafka's threads: everything was acknowledged or read. */
    fflush(stdout);
    _Exit(0);
}
