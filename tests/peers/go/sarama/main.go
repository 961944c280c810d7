// sarama, as a program of reader_programs.py, which says what it is to do.
package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"readers/lines"
)

func main() {
	arguments := lines.Parse()
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	if arguments.IsCommitted {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	if arguments.IsMember {
		join(arguments, config)
	} else {
		read(arguments, config)
	}
}

func read(arguments lines.Arguments, config *sarama.Config) {
	client := lines.Must(sarama.NewClient([]string{arguments.Bootstrap}, config))
	defer client.Close()
	consumer := lines.Must(sarama.NewConsumerFromClient(client))
	var reading sync.WaitGroup
	for _, place := range arguments.Places {
		from := sarama.OffsetOldest
		if arguments.FromMs >= 0 {
			from = lines.Must(client.GetOffset(place.Topic, place.Partition, arguments.FromMs))
		}
		partition := lines.Must(consumer.ConsumePartition(place.Topic, place.Partition, from))
		reading.Go(func() {
			for offset := int64(-1); offset+1 < place.End; {
				select {
				case message := <-partition.Messages():
					show(message)
					offset = message.Offset
				case err := <-partition.Errors():
					lines.Check(err)
				}
			}
		})
	}
	reading.Wait()
}

func join(arguments lines.Arguments, config *sarama.Config) {
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 20 * time.Second
	config.Consumer.Group.InstanceId = arguments.Instance
	group := lines.Must(sarama.NewConsumerGroup([]string{arguments.Bootstrap}, arguments.Group, config))
	go func() {
		for err := range group.Errors() {
			lines.Check(err)
		}
	}()
	member := &member{topic: arguments.Topic, allowed: make(chan bool), taken: make(chan bool)}
	running, end := context.WithCancel(context.Background())
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for running.Err() == nil {
			if err := group.Consume(running, []string{arguments.Topic}, member); !errors.Is(err, sarama.ErrClosedConsumerGroup) {
				lines.Check(err)
			}
		}
	}()
	for wanted := range lines.Requests() {
		for left := wanted - 1; left >= 0; left-- {
			member.allowed <- left == 0
			<-member.taken
		}
		lines.PrintCommitted()
	}
	end()
	<-ended
	lines.Check(group.Close())
}

// member takes a message of any partition whenever it is allowed to, and commits all with the last one that is wanted: a commit waits behind
// a Fetch, on the same connection.
type member struct {
	topic   string
	allowed chan bool // it is the last one
	taken   chan bool
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	lines.PrintPartitions(session.Claims()[m.topic])
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	lines.PrintPartitions(nil)
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		select {
		case isLast := <-m.allowed:
			show(message)
			session.MarkMessage(message, "")
			if isLast {
				session.Commit()
			}
			m.taken <- true
		case <-session.Context().Done():
			return nil
		}
	}
	return nil
}

func show(message *sarama.ConsumerMessage) {
	headers := [][2]any{}
	for _, header := range message.Headers {
		headers = append(headers, [2]any{string(header.Key), header.Value})
	}
	lines.Record{Topic: message.Topic, Partition: message.Partition, Offset: message.Offset, Timestamp: message.Timestamp.UnixMilli(),
		Key: message.Key, Value: message.Value, Headers: headers}.Print()
}
