//! Produce requests, and what they wait for.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::{
    ResponseError,
    messages::{
        ListOffsetsRequest,
        list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
    },
};

use crate::harness::{
    PRODUCE_VERSION, Raw, TOPIC, batch_bytes, fetch, lengths, name, outcome, produce, produce_all,
    until, until_fetches_wait, until_produces_wait, virtual_broker,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn a_request_for_all_acks_is_answered_when_the_follower_has_its_records() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.send(PRODUCE_VERSION, &produce_all(&[0, 1, 2], -1, 5)).await;
    until_produces_wait(&server, 1).await;
    clock.advance(9 * MS);
    assert_eq!(server.broker().produces().0.delayed, 1);
    clock.advance(MS);
    let (_, response) = client.receive::<kafka_protocol::messages::ProduceRequest>(8).await;
    let written = &response.responses[0].partition_responses;
    assert!(written.iter().all(|written| (written.error_code, written.base_offset) == (0, 0)));
    assert_eq!(written.len(), 3);
    let (stats, timer) = server.broker().produces();
    assert_eq!((stats.satisfied, stats.watched, timer.pending), (1, 0, 0));
}

#[tokio::test]
async fn a_request_for_all_acks_times_out_if_the_follower_is_stopped() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    server.broker().stop_follower();
    client.send(PRODUCE_VERSION, &produce(0, -1, 1)).await;
    until_produces_wait(&server, 1).await;
    clock.advance(999 * MS);
    assert_eq!(server.broker().produces().0.delayed, 1);
    clock.advance(MS);
    let (_, response) = client.receive::<kafka_protocol::messages::ProduceRequest>(8).await;
    assert_eq!(outcome(&response).error_code, ResponseError::RequestTimedOut.code());

    // The record is in the log nevertheless, and is read once the follower has it.
    assert_eq!(lengths(&client.fetch(&fetch(&[0], 1, 0)).await), [0]);
    server.broker().resume_follower();
    clock.advance(10 * MS);
    let one = usize::try_from(batch_bytes(1)).unwrap();
    assert_eq!(lengths(&client.fetch(&fetch(&[0], 1, 0)).await), [one]);
    assert_eq!(server.broker().counts().records, 1);
}

#[tokio::test]
async fn a_request_for_one_ack_waits_for_nothing_but_its_readers_do() {
    let (server, clock) = virtual_broker().await;
    let (mut producer, mut consumer) = (Raw::connect(&server).await, Raw::connect(&server).await);
    consumer.send(11, &fetch(&[0], 1, 60_000)).await;
    until_fetches_wait(&server, 1).await;
    assert_eq!(producer.produce(0, 1, 1).await, 0);
    assert_eq!(server.broker().fetches().0.delayed, 1, "what is not replicated is not read");
    clock.advance(10 * MS);
    let one = usize::try_from(batch_bytes(1)).unwrap();
    assert_eq!(lengths(&consumer.receive_fetch().await), [one]);
}

#[tokio::test]
async fn a_request_for_no_ack_gets_no_answer() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.send(PRODUCE_VERSION, &produce(0, 0, 3)).await;
    // The answer that comes next is that of the next request.
    assert_eq!(client.produce(0, 1, 1).await, 0);
    clock.advance(10 * MS);
    let (earliest, latest) = (offset(&mut client, -2).await, offset(&mut client, -1).await);
    assert_eq!((earliest, latest), (0, 4));
}

#[tokio::test]
async fn a_request_for_no_ack_that_fails_closes_the_connection() {
    let (server, _clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.send(PRODUCE_VERSION, &produce(9, 0, 1)).await;
    assert!(client.receive_rest().await.is_empty());
}

#[tokio::test]
async fn what_cannot_be_appended_is_refused_partition_by_partition() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    let mut request = produce_all(&[0, 1, 9], -1, 1);
    request.topic_data[0].partition_data[1].records = Some(Bytes::from_static(&[7; 100]));
    client.send(PRODUCE_VERSION, &request).await;
    until_produces_wait(&server, 1).await;
    clock.advance(10 * MS);
    let (_, response) = client.receive::<kafka_protocol::messages::ProduceRequest>(8).await;
    let codes = response.responses[0].partition_responses.iter().map(|written| written.error_code);
    let (corrupt, unknown) =
        (ResponseError::CorruptMessage.code(), ResponseError::UnknownTopicOrPartition.code());
    assert_eq!(codes.collect::<Vec<_>>(), [0, corrupt, unknown]);

    assert_eq!(client.produce(0, 2, 1).await, ResponseError::InvalidRequiredAcks.code());
    assert_eq!(client.produce(9, -1, 1).await, unknown, "there is nothing to wait for");
    assert_eq!(server.broker().produces().0.delayed, 0);
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_requests() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    let first = client.send(11, &fetch(&[0], 1, 60_000)).await;
    let second = client.send(PRODUCE_VERSION, &produce(0, 1, 1)).await;
    until("the append", || server.broker().counts().records == 1).await;
    until_fetches_wait(&server, 1).await;
    clock.advance(10 * MS);
    let (received, response) = client.receive::<kafka_protocol::messages::FetchRequest>(11).await;
    let one = usize::try_from(batch_bytes(1)).unwrap();
    assert_eq!((received, lengths(&response)), (first, vec![one]));
    let (received, _) = client.receive::<kafka_protocol::messages::ProduceRequest>(8).await;
    assert_eq!(received, second);
}

/// The offset of partition 0 that the broker tells for a time.
async fn offset(client: &mut Raw, timestamp: i64) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    client.call(5, &request).await.topics[0].partitions[0].offset
}
