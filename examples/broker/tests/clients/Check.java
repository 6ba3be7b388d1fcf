// Checks the broker with the Java client: Check ADDRESS TEST
//
// Every record says its number, so that one that is lost, doubled or out of place is noticed.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

class Check {
    static final int RECORDS = 10_000;
    static final int PARTITIONS = 3;
    static final long SESSION_MS = 6_000;
    static final long PATIENCE_MS = 60_000;

    static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        String test = arguments[1];
        String topic = "java-" + test;
        switch (test) {
            case "admin" -> admin();
            case "too_large" -> tooLarge(topic);
            case "killed" -> killed(topic);
            case "restart" -> restart(topic, arguments[2]);
            case "member" -> new Reader(arguments[2]).readForever();
            default -> {
                produce(topic, test);
                new Reader(topic).readAll();
            }
        }
    }

    /** Sends all records with a producer that has its defaults, which are idempotent with all acks. */
    static void produce(String topic, String codec) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "compression.type", codec);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < RECORDS; number++) {
                String value = Integer.toString(number);
                sent.add(producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value)));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
    }

    /** While the broker is away its producer gets an error, and when it is back the producer goes on. */
    static void restart(String topic, String program) throws Exception {
        try (var socket = new java.net.ServerSocket(0)) {
            address = "127.0.0.1:" + socket.getLocalPort();
        }
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", address,
                "request.timeout.ms", 1_000,
                "delivery.timeout.ms", 3_000,
                "max.block.ms", 3_000);
        var record = new ProducerRecord<String, String>(topic, 0, null, "value");
        Process broker = start(program);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(record).get();
            broker.destroyForcibly().waitFor();
            try {
                producer.send(record).get();
                check(false, "there is no broker that could take this");
            } catch (ExecutionException error) {
                System.out.println("told: " + error.getCause());
            }
            broker = start(program);
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (true) {
                try {
                    producer.send(record).get();
                    return;
                } catch (ExecutionException error) {
                    check(System.currentTimeMillis() < end, "still " + error.getCause());
                }
            }
        } finally {
            broker.destroyForcibly();
        }
    }

    /** Starts a broker, and waits until it listens. */
    static Process start(String program) throws Exception {
        Process broker = new ProcessBuilder(program, "--listen", address).start();
        check(broker.inputReader().readLine().startsWith("listening"), "the broker does not start");
        return broker;
    }

    /** A member of a group, which checks the number of each record. */
    static class Reader {
        final KafkaConsumer<String, String> consumer;
        final int[] next = new int[PARTITIONS];
        int count = 0;

        Reader(String topic) {
            Map<String, Object> settings = Map.of(
                    "bootstrap.servers", address,
                    "group.id", "group-" + topic,
                    "auto.offset.reset", "earliest",
                    "session.timeout.ms", (int) SESSION_MS,
                    "heartbeat.interval.ms", 500);
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic));
        }

        void poll() {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                int partition = record.partition();
                int expected = next[partition] * PARTITIONS + partition;
                check(Integer.parseInt(record.value()) == expected, record + ", not number " + expected);
                next[partition]++;
                count++;
            }
        }

        void readAll() {
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (count < RECORDS) {
                check(System.currentTimeMillis() < end, count + " of " + RECORDS + " records came");
                poll();
            }
            consumer.commitSync();
            consumer.close();
        }

        /** Says how many partitions it has, until it is killed. */
        void readForever() {
            while (true) {
                poll();
                System.out.println(consumer.assignment().size());
            }
        }
    }

    /** Kills one of two members: the other gets its partitions when the session is over. */
    static void killed(String topic) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
        }
        String java = ProcessHandle.current().info().command().orElse("java");
        String classes = System.getProperty("java.class.path");
        Process other = new ProcessBuilder(java, "-cp", classes, "Check", address, "member", topic).start();
        try {
            Reader reader = new Reader(topic);
            var said = other.inputReader();
            while (reader.consumer.assignment().size() % PARTITIONS == 0 || said.readLine().equals("0")) {
                reader.poll();
            }
            other.destroyForcibly().waitFor();
            long start = System.currentTimeMillis();
            while (reader.consumer.assignment().size() < PARTITIONS) {
                reader.poll();
            }
            long took = System.currentTimeMillis() - start;
            System.out.println("told: all partitions " + took + " ms after the other was killed");
            check(took > SESSION_MS - 1_000, "the session ended early");
            check(took < SESSION_MS + 5_000, "the session ended late");
        } finally {
            other.destroyForcibly();
        }
    }

    /** A record over the limit of the broker fails with its own error, and the producer goes on. */
    static void tooLarge(String topic) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "max.request.size", 8 << 20);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
            try {
                producer.send(new ProducerRecord<>(topic, new byte[2 << 20])).get();
                throw new AssertionError("a record over the limit was accepted");
            } catch (ExecutionException error) {
                check(error.getCause() instanceof RecordTooLargeException, error.toString());
            }
            producer.send(new ProducerRecord<>(topic, new byte[10])).get();
        }
    }

    static void admin() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic("made-by-java", 5, (short) 1))).all().get();
            check(admin.listTopics().names().get().contains("made-by-java"), "the topic is listed");
            var described = admin.describeTopics(List.of("made-by-java")).allTopicNames().get();
            check(described.get("made-by-java").partitions().size() == 5, "the topic is described");
            check(!admin.describeCluster().clusterId().get().isEmpty(), "the cluster has an id");
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, "made-by-java");
            var config = admin.describeConfigs(Set.of(resource)).all().get().get(resource);
            check(config.get("cleanup.policy").value().equals("delete"), "the topic has settings");
            Collection<?> groups = admin.listGroups().all().get();
            System.out.println("told: " + groups.size() + " groups");
            admin.deleteTopics(List.of("made-by-java")).all().get();
            check(!admin.listTopics().names().get().contains("made-by-java"), "the topic is gone");
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
