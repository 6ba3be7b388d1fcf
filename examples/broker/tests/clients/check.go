// Checks the broker with sarama: check ADDRESS TEST
//
// Every record says its number, so that one that is lost, doubled or out of place is noticed.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/Shopify/sarama"
)

const (
	records    = 10000
	partitions = 3
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// reader checks what a member of a group gets.
type reader struct {
	mutex sync.Mutex
	next  [partitions]int
	count int
	done  context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		number, err := strconv.Atoi(string(message.Value))
		check(err)
		r.mutex.Lock()
		expected := r.next[message.Partition]*partitions + int(message.Partition)
		if number != expected {
			check(fmt.Errorf("%d in partition %d, not %d", number, message.Partition, expected))
		}
		r.next[message.Partition]++
		r.count++
		if r.count == records {
			r.done()
		}
		r.mutex.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

func produce(address, topic string, config *sarama.Config) {
	producer, err := sarama.NewSyncProducer([]string{address}, config)
	check(err)
	for first := 0; first < records; first += 1000 {
		var batch []*sarama.ProducerMessage
		for number := first; number < first+1000; number++ {
			value := sarama.StringEncoder(strconv.Itoa(number))
			batch = append(batch, &sarama.ProducerMessage{Topic: topic, Partition: int32(number % partitions), Value: value})
		}
		check(producer.SendMessages(batch))
	}
	check(producer.Close())
}

func consume(address, topic string, config *sarama.Config) {
	group, err := sarama.NewConsumerGroup([]string{address}, "group-"+topic, config)
	check(err)
	all, done := context.WithTimeout(context.Background(), time.Minute)
	r := &reader{done: done}
	for all.Err() == nil {
		check(group.Consume(all, []string{topic}, r))
	}
	if r.count != records {
		check(fmt.Errorf("%d of %d records came", r.count, records))
	}
	check(group.Close())
}

// printer prints each record that a member of a group gets.
type printer struct{}

func (printer) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (printer) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (printer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		fmt.Println(string(message.Value))
		session.MarkMessage(message, "")
	}
	return nil
}

// member prints the records of a topic as a member of a group, until it is killed.
func member(address, topic string, config *sarama.Config) {
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = time.Second / 2
	group, err := sarama.NewConsumerGroup([]string{address}, "group-"+topic, config)
	check(err)
	for {
		if err := group.Consume(context.Background(), []string{topic}, printer{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(time.Second / 2)
		}
	}
}

func admin(address string, config *sarama.Config) {
	client, err := sarama.NewClusterAdmin([]string{address}, config)
	check(err)
	check(client.CreateTopic("made-by-go", &sarama.TopicDetail{NumPartitions: 5, ReplicationFactor: 1}, false))
	check(client.DeleteTopic("made-by-go"))
	check(client.Close())
}

func main() {
	address, test := os.Args[1], os.Args[2]
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	// Without it this version commits offsets by a request that Kafka 4 and the broker do not know.
	config.Consumer.Offsets.Retention = 24 * time.Hour
	if test == "admin" {
		admin(address, config)
		return
	}
	if test == "member" {
		member(address, os.Args[3], config)
	}
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "idempotent": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	config.Producer.Compression = codecs[test]
	if test == "idempotent" {
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Net.MaxOpenRequests = 1
	}
	produce(address, "sarama-"+test, config)
	consume(address, "sarama-"+test, config)
}
