// franz-go, as a program of reader_programs.py, which says what it is to do.
package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"readers/lines"
)

func main() {
	arguments := lines.Parse()
	isolation := kgo.ReadUncommitted()
	if arguments.IsCommitted {
		isolation = kgo.ReadCommitted()
	}
	options := []kgo.Opt{kgo.SeedBrokers(arguments.Bootstrap), kgo.FetchIsolationLevel(isolation)}
	if arguments.IsMember {
		join(arguments, options)
	} else {
		read(arguments, options)
	}
}

func read(arguments lines.Arguments, options []kgo.Opt) {
	from := kgo.NewOffset().AtStart()
	if arguments.FromMs >= 0 {
		from = kgo.NewOffset().AfterMilli(arguments.FromMs)
	}
	starts, ends := map[string]map[int32]kgo.Offset{}, map[lines.Place]int64{}
	for _, place := range arguments.Places {
		if starts[place.Topic] == nil {
			starts[place.Topic] = map[int32]kgo.Offset{}
		}
		starts[place.Topic][place.Partition] = from
		ends[lines.Place{Topic: place.Topic, Partition: place.Partition}] = place.End
	}
	client := lines.Must(kgo.NewClient(append(options, kgo.ConsumePartitions(starts))...))
	defer client.Close()
	for len(ends) > 0 {
		for _, record := range poll(client, -1) {
			place := lines.Place{Topic: record.Topic, Partition: record.Partition}
			if end, isRead := ends[place]; isRead && record.Offset+1 >= end {
				delete(ends, place)
			}
		}
	}
}

func join(arguments lines.Arguments, options []kgo.Opt) {
	var mutex sync.Mutex
	assigned := map[int32]bool{}
	change := func(is bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
			mutex.Lock()
			defer mutex.Unlock()
			for _, partition := range topics[arguments.Topic] {
				if is {
					assigned[partition] = true
				} else {
					delete(assigned, partition)
				}
			}
			lines.PrintPartitions(slices.Collect(maps.Keys(assigned)))
		}
	}
	options = append(options, kgo.ConsumerGroup(arguments.Group), kgo.ConsumeTopics(arguments.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond), kgo.SessionTimeout(20*time.Second),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)))
	if arguments.IsServerSide {
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	}
	if arguments.Instance != "" {
		options = append(options, kgo.InstanceID(arguments.Instance))
	}
	client := lines.Must(kgo.NewClient(options...))
	defer client.Close()
	for wanted := range lines.Requests() {
		for wanted > 0 {
			records := poll(client, wanted)
			lines.Check(client.CommitRecords(context.Background(), records...))
			wanted -= len(records)
		}
		lines.PrintCommitted()
	}
}

// poll for up to so many records, which are printed.
func poll(client *kgo.Client, limit int) []*kgo.Record {
	fetches := client.PollRecords(context.Background(), limit)
	lines.Check(fetches.Err())
	for _, record := range fetches.Records() {
		headers := [][2]any{}
		for _, header := range record.Headers {
			headers = append(headers, [2]any{header.Key, header.Value})
		}
		kind := []string{"CreateTime", "LogAppendTime"}[record.Attrs.TimestampType()]
		lines.Record{Topic: record.Topic, Partition: record.Partition, Offset: record.Offset, Timestamp: record.Timestamp.UnixMilli(),
			TimestampType: kind, LeaderEpoch: &record.LeaderEpoch, Key: record.Key, Value: record.Value, Headers: headers}.Print()
	}
	return fetches.Records()
}
