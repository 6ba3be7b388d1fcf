//! Fetches that wait: for how long, for how much, and who is woken.

use std::time::Duration;

use delaywheel_broker::broker::Config;
use kafka_protocol::ResponseError;

use crate::harness::{
    HOUR_MS, Raw, batch_bytes, config, data, fetch, lengths, start, system_broker,
    until_fetches_wait, virtual_broker,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn an_empty_fetch_ends_at_its_time_to_the_millisecond() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.send(11, &fetch(&[0], 1, 500)).await;
    until_fetches_wait(&server, 1).await;
    clock.advance(499 * MS);
    assert_eq!(server.broker().fetches().0.delayed, 1);
    clock.advance(MS);
    assert_eq!(server.broker().fetches().0.delayed, 0);
    assert_eq!(lengths(&client.receive_fetch().await), [0]);
}

#[tokio::test]
async fn an_append_ends_the_fetches_that_it_satisfies_and_no_others() {
    let server = system_broker().await;
    let (mut small, mut large, mut other) =
        (Raw::connect(&server).await, Raw::connect(&server).await, Raw::connect(&server).await);
    small.send(11, &fetch(&[0], 1, HOUR_MS)).await;
    large.send(11, &fetch(&[0, 1], batch_bytes(1) * 2 + 1, HOUR_MS)).await;
    other.send(11, &fetch(&[2], 1, HOUR_MS)).await;
    until_fetches_wait(&server, 3).await;

    let mut producer = Raw::connect(&server).await;
    let one = usize::try_from(batch_bytes(1)).unwrap();
    assert_eq!(producer.produce(0, 1, 1).await, 0);
    assert_eq!(server.broker().fetches().0.satisfied, 1);
    assert_eq!(lengths(&small.receive_fetch().await), [one]);
    assert_eq!(producer.produce(1, 1, 1).await, 0);
    assert_eq!(server.broker().fetches().0.satisfied, 1, "two batches are a byte too few");
    assert_eq!(producer.produce(0, 1, 1).await, 0);
    assert_eq!(lengths(&large.receive_fetch().await), [2 * one, one]);
    assert_eq!(server.broker().fetches().0.delayed, 1, "nothing has happened to partition 2");
}

#[tokio::test]
async fn a_request_that_writes_to_several_partitions_ends_a_fetch_of_them_once() {
    let server = system_broker().await;
    let mut consumer = Raw::connect(&server).await;
    consumer.send(11, &fetch(&[0, 1, 2], batch_bytes(1) * 3, HOUR_MS)).await;
    until_fetches_wait(&server, 1).await;
    let mut producer = Raw::connect(&server).await;
    producer.call(8, &crate::harness::produce_all(&[0, 1, 2], 1, 1)).await;
    let one = usize::try_from(batch_bytes(1)).unwrap();
    assert_eq!(lengths(&consumer.receive_fetch().await), [one; 3]);
    assert_eq!(server.broker().fetches().0.satisfied, 1);
}

#[tokio::test]
async fn what_is_there_already_is_not_waited_for() {
    let (server, _clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    // The clock stands still, so whatever waits here waits for ever.
    assert_eq!(lengths(&client.fetch(&fetch(&[0], 1, 0)).await), [0], "no wait was asked for");
    assert_eq!(lengths(&client.fetch(&fetch(&[0], 0, HOUR_MS)).await), [0], "no bytes");
    assert_eq!(lengths(&client.fetch(&fetch(&[0], 1, -1)).await), [0]);
    let nowhere = client.fetch(&fetch(&[0, 9], 1, HOUR_MS)).await;
    let codes: Vec<_> = data(&nowhere).iter().map(|data| data.error_code).collect();
    assert_eq!(codes, [0, ResponseError::UnknownTopicOrPartition.code()]);
    let mut beyond = fetch(&[0], 1, HOUR_MS);
    beyond.topics[0].partitions[0].fetch_offset = 1;
    let beyond = client.fetch(&beyond).await;
    assert_eq!(data(&beyond)[0].error_code, ResponseError::OffsetOutOfRange.code());
}

#[tokio::test]
async fn limits_hold_but_for_a_first_batch() {
    let server = system_broker().await;
    let mut client = Raw::connect(&server).await;
    for partition in [0, 0, 1] {
        assert_eq!(client.produce(partition, 1, 1).await, 0);
    }
    let one = usize::try_from(batch_bytes(1)).unwrap();
    let mut request = fetch(&[0, 1], 1, HOUR_MS);
    assert_eq!(lengths(&client.fetch(&request).await), [2 * one, one]);
    request.max_bytes = batch_bytes(1) * 2;
    assert_eq!(lengths(&client.fetch(&request).await), [2 * one, 0]);
    request.topics[0].partitions[0].partition_max_bytes = batch_bytes(1);
    assert_eq!(lengths(&client.fetch(&request).await), [one, one]);
    request.max_bytes = 1;
    assert_eq!(lengths(&client.fetch(&request).await), [one, 0]);
}

#[tokio::test]
async fn the_fetch_that_has_waited_longest_makes_room_and_its_client_is_asked_to_slow_down() {
    let server = start(Config { max_waiting: 2, ..config() }).await;
    let mut clients = Vec::new();
    for count in [1, 2, 2] {
        let mut client = Raw::connect(&server).await;
        client.send(11, &fetch(&[0], 1, HOUR_MS)).await;
        until_fetches_wait(&server, count).await;
        clients.push(client);
    }
    let displaced = clients[0].receive_fetch().await;
    assert_eq!((displaced.throttle_time_ms, lengths(&displaced)), (100, vec![0]));
    assert_eq!(server.broker().fetches().0.displaced, 1);
}

#[tokio::test]
async fn a_wait_is_cut_to_the_longest_that_is_allowed() {
    let clock = delaywheel::ManualClock::new();
    let max_wait = Duration::from_secs(1);
    let server = start(Config { max_wait, clock: Some(clock.clone()), ..config() }).await;
    let mut client = Raw::connect(&server).await;
    client.send(11, &fetch(&[0], 1, i32::MAX)).await;
    until_fetches_wait(&server, 1).await;
    clock.advance(max_wait);
    assert_eq!(lengths(&client.receive_fetch().await), [0]);
}
