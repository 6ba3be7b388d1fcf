//! What a client from the registry sees, on the clock of the system.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use delaywheel_broker::broker::{Config, Server};
use rskafka::{
    chrono::DateTime,
    client::{
        ClientBuilder,
        partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling},
    },
    record::Record,
};

use crate::harness::{FAR_TOO_LONG, config, soon, start, system_broker, until_fetches_wait};

async fn client(server: &Server, topic: &str, partition: i32) -> Arc<PartitionClient> {
    let client = ClientBuilder::new(vec![server.address().to_string()]).build().await.unwrap();
    let handling = UnknownTopicHandling::Retry;
    Arc::new(client.partition_client(topic, partition, handling).await.unwrap())
}

fn record(value: &str) -> Record {
    let (key, headers) = (None, [].into_iter().collect());
    Record { key, value: Some(value.into()), headers, timestamp: DateTime::default() }
}

async fn produce(client: &PartitionClient, values: &[&str]) -> Vec<i64> {
    let records = values.iter().copied().map(record).collect();
    soon(client.produce(records, Compression::NoCompression)).await.unwrap()
}

/// The values at an offset and after, once there are `min_bytes`, and how long that took.
async fn poll(
    client: &PartitionClient,
    offset: i64,
    min_bytes: i32,
    max_wait: Duration,
) -> (Vec<String>, Duration) {
    let begin = Instant::now();
    let max_wait_ms = i32::try_from(max_wait.as_millis()).unwrap();
    let fetched = soon(client.fetch_records(offset, min_bytes..1 << 20, max_wait_ms)).await;
    let values = fetched.unwrap().0.into_iter().map(|record| record.record.value.unwrap());
    (values.map(|value| String::from_utf8(value).unwrap()).collect(), begin.elapsed())
}

#[tokio::test]
async fn what_is_produced_is_consumed() {
    let follower = Some(Duration::from_millis(1));
    let server = start(Config { follower, ..config() }).await;
    let client = client(&server, "words", 2).await;
    assert_eq!(produce(&client, &["one", "two"]).await, [0, 1]);
    assert_eq!(produce(&client, &["three"]).await, [2]);
    assert_eq!(poll(&client, 0, 1, FAR_TOO_LONG).await.0, ["one", "two", "three"]);
    assert_eq!(poll(&client, 1, 1, FAR_TOO_LONG).await.0, ["two", "three"]);
    assert_eq!(client.get_offset(OffsetAt::Earliest).await.unwrap(), 0);
    assert_eq!(client.get_offset(OffsetAt::Latest).await.unwrap(), 3);
}

/// The bound: long before the poll would have ended by itself.
#[tokio::test]
async fn a_long_poll_ends_with_an_append_and_not_before() {
    let server = system_broker().await;
    let (producer, consumer) =
        (client(&server, "words", 0).await, client(&server, "words", 0).await);
    let polling = tokio::spawn(async move { poll(&consumer, 0, 1, FAR_TOO_LONG / 2).await });
    until_fetches_wait(&server, 1).await;
    assert!(!polling.is_finished());
    let appended = Instant::now();
    produce(&producer, &["word"]).await;
    let (values, _) = polling.await.unwrap();
    assert_eq!(values, ["word"]);
    assert!(appended.elapsed() < FAR_TOO_LONG / 6, "{:?}", appended.elapsed());
    let (stats, timer) = server.broker().fetches();
    assert_eq!((stats.satisfied, stats.expired, timer.expired), (1, 0, 0));
}
