"""Checks the broker with one Python client: check.py CLIENT ADDRESS TEST BROKER

Every record says its number, so that one that is lost, doubled or out of place is noticed.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time

RECORDS = 10_000
PARTITIONS = 3
SESSION_MS = 6_000
HEARTBEAT_MS = 500
PATIENCE = 60


class KafkaPython:
    codecs = ("gzip", "snappy", "lz4", "zstd")

    def producer(self, address, codec=None, **options):
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=address, compression_type=codec, **options)
        self.futures = []

        def send(topic, partition, value):
            self.futures.append(producer.send(topic, value, partition=partition))

        def flush():
            producer.flush(PATIENCE)
            sent = list(self.futures)
            self.futures.clear()
            for future in sent:
                future.get(PATIENCE)

        return send, flush

    idempotent = {"enable_idempotence": True}
    impatient = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000, "max_block_ms": 3_000}

    def consumer(self, address, group, topic):
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_records=100,
        )

        def poll():
            polled = consumer.poll(200)
            return [(r.partition, r.value) for records in polled.values() for r in records]

        return poll, consumer.commit, lambda: len(consumer.assignment()), consumer.close

    def admin(self, address):
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(bootstrap_servers=address)
        admin.create_topics([NewTopic(name="made", num_partitions=5, replication_factor=1)])
        assert "made" in admin.list_topics()
        assert admin.describe_cluster()["cluster_id"]
        admin.delete_topics(["made"])
        assert "made" not in admin.list_topics()


class Confluent:
    codecs = KafkaPython.codecs

    def producer(self, address, codec=None, **options):
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": address, "compression.type": codec or "none"}
        producer, errors = Producer({**settings, **options}), []

        def told(error, _):
            if error:
                errors.append(error)

        def send(topic, partition, value):
            producer.produce(topic, value, partition=partition, on_delivery=told)
            producer.poll(0)

        def flush():
            left = producer.flush(PATIENCE)
            failed = list(errors)
            errors.clear()
            if left or failed:
                raise RuntimeError(f"{left} left, {failed[:1]}")

        return send, flush

    idempotent = {"enable.idempotence": True}
    impatient = {"message.timeout.ms": 3_000}

    def consumer(self, address, group, topic):
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        consumer.subscribe([topic])

        def poll():
            polled = consumer.consume(100, 0.2)
            return [(m.partition(), m.value()) for m in polled if not m.error()]

        def commit():
            consumer.commit(asynchronous=False)

        return poll, commit, lambda: len(consumer.assignment()), consumer.close

    def admin(self, address):
        from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("made", 5, 1)])["made"].result()
        listed = admin.list_topics(timeout=10)
        assert listed.cluster_id and len(listed.topics["made"].partitions) == 5
        assert admin.describe_cluster().result().cluster_id == listed.cluster_id
        resource = ConfigResource(ConfigResource.Type.TOPIC, "made")
        assert admin.describe_configs([resource])[resource].result()["cleanup.policy"].value == "delete"
        admin.delete_topics(["made"])["made"].result()
        assert admin.list_consumer_groups().result().errors == []


class AioKafka:
    codecs = KafkaPython.codecs

    def __init__(self):
        self.loop = asyncio.new_event_loop()

    def run(self, awaited):
        return self.loop.run_until_complete(awaited)

    def producer(self, address, codec=None, **options):
        from aiokafka import AIOKafkaProducer

        async def start():
            producer = AIOKafkaProducer(bootstrap_servers=address, compression_type=codec, **options)
            await producer.start()
            return producer

        producer, futures = self.run(start()), []

        def send(topic, partition, value):
            futures.append(self.run(producer.send(topic, value, partition=partition)))

        def flush():
            self.run(producer.flush())
            sent = list(futures)
            futures.clear()
            for future in sent:
                self.run(asyncio.wait_for(future, PATIENCE))

        return send, flush

    idempotent = {"enable_idempotence": True}
    impatient = {"request_timeout_ms": 3_000}

    def consumer(self, address, group, topic):
        from aiokafka import AIOKafkaConsumer

        async def start():
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=address,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
            )
            await consumer.start()
            return consumer

        consumer = self.run(start())

        def poll():
            polled = self.run(consumer.getmany(timeout_ms=200, max_records=100))
            return [(r.partition, r.value) for records in polled.values() for r in records]

        def commit():
            self.run(consumer.commit())

        return poll, commit, lambda: len(consumer.assignment()), lambda: self.run(consumer.stop())

    def admin(self, address):
        pass


CLIENTS = {"kafka-python": KafkaPython, "confluent-kafka": Confluent, "aiokafka": AioKafka}


def until(what, holds, limit=PATIENCE):
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < limit, f"{what} took longer than {limit} s"
        time.sleep(0.02)
    return time.monotonic() - begin


def produce(send, flush, topic):
    for number in range(RECORDS):
        send(topic, number % PARTITIONS, b"%d" % number)
    flush()


def consume_once_and_in_order(address, topic):
    poll, commit, _, close = CLIENT.consumer(address, f"group-{topic}", topic)
    expected = {partition: partition for partition in range(PARTITIONS)}
    count, begin = 0, time.monotonic()
    while count < RECORDS:
        assert time.monotonic() - begin < PATIENCE, f"{count} of {RECORDS} records came"
        for partition, value in poll():
            assert int(value) == expected[partition], (partition, value, expected[partition])
            expected[partition] += PARTITIONS
            count += 1
    commit()
    assert poll() == [], "a record came twice"
    close()


def codec(address, name):
    """10000 records come once and in order to a member of a group."""
    topic = f"{NAME}-{name}"
    produce(*CLIENT.producer(address, None if name == "none" else name), topic)
    consume_once_and_in_order(address, topic)


def idempotent(address):
    topic = f"{NAME}-idempotent"
    produce(*CLIENT.producer(address, **CLIENT.idempotent), topic)
    consume_once_and_in_order(address, topic)


def too_large(address):
    """A record over the limit is refused by its name, and the connection goes on."""
    large = {
        "kafka-python": {"max_request_size": 1 << 24},
        "confluent-kafka": {"message.max.bytes": 1 << 24},
        "aiokafka": {"max_request_size": 1 << 24},
    }[NAME]
    send, flush = CLIENT.producer(address, **large)
    topic = f"{NAME}-large"
    send(topic, 0, b"x" * (5 << 20))
    try:
        flush()
        raise AssertionError("a record over the limit was taken")
    except AssertionError:
        raise
    except Exception as error:
        told = f"{type(error).__name__} {error}"
        assert "TOO_LARGE" in told.upper().replace("TOOLARGE", "TOO_LARGE") or "SIZE" in told.upper(), told
        print("told:", told[:100].replace("\n", " "))
    # Some producers take nothing more after an error.
    send, flush = CLIENT.producer(address)
    send(topic, 0, b"small")
    flush()


def killed(address):
    """Of two consumers one is killed; the other takes over when the session is over."""
    topic = f"{NAME}-killed"
    produce(*CLIENT.producer(address), topic)
    command = [sys.executable, __file__, NAME, address, "member", topic]
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines, shares = [[], []], [-1, -1]

    def read(index):
        for line in members[index].stdout:
            kind, value = line.split()
            if kind == "assigned":
                shares[index] = int(value)
            else:
                lines[index].append(int(value))

    for index in range(2):
        threading.Thread(target=read, args=[index], daemon=True).start()

    all_partitions = 8

    def is_shared():
        return min(shares) > 0 and sum(shares) == all_partitions

    def has_all():
        return shares[1] == all_partitions

    def is_complete():
        return len(set(lines[0]) | set(lines[1])) == RECORDS

    until("sharing", is_shared)
    members[0].send_signal(signal.SIGKILL)
    took = until("taking over", has_all)
    least = (SESSION_MS - HEARTBEAT_MS) / 1_000
    assert took > least - 0.5, f"the partitions were taken after {took} s, before the session was over"
    until("the rest", is_complete)
    members[1].kill()
    twice = len(lines[0]) + len(lines[1]) - RECORDS
    # What one had read, and not committed when it was killed.
    assert twice <= 200, f"{twice} records were read twice"
    print(f"told: {took:.1f} s after the kill, {twice} records twice")


def member(address, topic):
    """A process that consumes, commits, and tells all that it does."""
    poll, commit, share, _ = CLIENT.consumer(address, f"group-{topic}", topic)
    known = None
    while True:
        records = poll()
        for _, value in records:
            print("record", int(value))
        if records:
            commit()
        if share() != known:
            known = share()
            print("assigned", known)
        sys.stdout.flush()


def restart(broker):
    """While the broker is away its clients get an error, and when it is back they go on."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    process = start(broker, address)
    send, flush = CLIENT.producer(address, **CLIENT.impatient)

    def is_sent():
        try:
            send("restart", 0, b"one")
            flush()
        except Exception as error:
            # On a busy machine the producer may be too impatient.
            print(error)
            return False
        return True

    until("the first record", is_sent)
    process.terminate()
    process.wait()
    try:
        send("restart", 0, b"two")
        flush()
        raise AssertionError("nobody could have taken this")
    except AssertionError:
        raise
    except Exception as error:
        print("told:", f"{type(error).__name__} {error}"[:100].replace("\n", " "))
    process = start(broker, address)
    # Some producers take nothing more after an error.
    send, flush = CLIENT.producer(address)
    send("restart", 0, b"three")
    flush()
    process.terminate()
    process.wait()


def free_port():
    """A port that the system gives to no client, which could otherwise connect to itself."""
    import socket

    for port in range(21_000, 30_000):
        with socket.socket() as listener:
            if listener.connect_ex(("127.0.0.1", port)) != 0:
                return port


def start(broker, address):
    process = subprocess.Popen([broker, "--listen", address], stdout=subprocess.PIPE, text=True)
    assert "listening" in process.stdout.readline()
    return process


if __name__ == "__main__":
    NAME, ADDRESS, TEST = sys.argv[1:4]
    CLIENT = CLIENTS[NAME]()
    match TEST:
        case "member":
            member(ADDRESS, sys.argv[4])
        case "restart":
            restart(sys.argv[4])
        case "admin":
            CLIENT.admin(ADDRESS)
        case "idempotent" | "too_large" | "killed":
            globals()[TEST](ADDRESS)
        case name:
            codec(ADDRESS, name)
