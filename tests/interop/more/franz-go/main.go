// Copies a topic in transactions with franz-go: bootstrap, source, sink, group, count, classic|consumer.
// Every third transaction is aborted, and its records are read again.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	bootstrap, source, sink, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	count, err := strconv.Atoi(os.Args[5])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	writer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DefaultProduceTopic(source))
	check(err)
	for n := range count {
		writer.Produce(ctx, kgo.StringRecord(strconv.Itoa(n)), func(_ *kgo.Record, err error) { check(err) })
	}
	check(writer.Flush(ctx))
	writer.Close()

	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(group),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DefaultProduceTopic(sink),
	}
	if os.Args[6] == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	session, err := kgo.NewGroupTransactSession(options...)
	check(err)
	for done, transaction := 0, 0; done < count; transaction++ {
		fetches := session.PollRecords(ctx, 25)
		check(fetches.Err())
		check(session.Begin())
		copies := []*kgo.Record{}
		fetches.EachRecord(func(read *kgo.Record) { copies = append(copies, kgo.StringRecord(string(read.Value))) })
		check(session.ProduceSync(ctx, copies...).FirstErr())
		committed, err := session.End(ctx, kgo.TransactionEndTry(transaction%3 != 1))
		check(err)
		if committed {
			done += fetches.NumRecords()
		}
	}
	session.Close()
	fmt.Println("done")
}
