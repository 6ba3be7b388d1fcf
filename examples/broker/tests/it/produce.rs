//! Produce requests, and their waits.

use crate::prelude::*;

#[tokio::test]
async fn a_request_for_all_acks_is_answered_when_the_follower_has_its_records() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::waiting(&server, &produce_all(&[0, 1, 2], -1, 5)).await;
    clock.advance(9 * MS);
    assert_eq!(waiting(&server), 1);
    clock.advance(MS);
    let response = client.receive::<ProduceRequest>().await;
    let written = response.responses[0].partition_responses.iter();
    let written: Vec<_> =
        written.map(|written| (written.error_code, written.base_offset)).collect();
    assert_eq!(written, [(0, 0); 3]);
    let (stats, timer) = server.broker().stats().produces;
    assert_eq!((stats.satisfied, stats.watched, timer.pending), (1, 0, 0));
}

#[tokio::test]
async fn a_request_for_all_acks_may_name_thousands_of_partitions() {
    let topics = vec![(TOPIC.to_owned(), 1_500)];
    let (server, clock) = start_virtual(Config { no_follower: false, topics, ..config() }).await;
    let partitions: Vec<i32> = (0..1_500).collect();
    let mut client = Raw::waiting(&server, &produce_all(&partitions, -1, 1)).await;
    clock.advance(10 * MS);
    let response = client.receive::<ProduceRequest>().await;
    let written = &response.responses[0].partition_responses;
    assert_eq!(written.iter().filter(|written| written.error_code == 0).count(), 1_500);
}

#[tokio::test]
async fn a_request_for_all_acks_times_out_if_the_follower_is_stopped() {
    let (server, clock) = stopped_broker().await;
    let mut client = Raw::waiting(&server, &produce(0, -1, 1)).await;
    clock.advance(999 * MS);
    assert_eq!(waiting(&server), 1);
    clock.advance(MS);
    let timed_out = ResponseError::RequestTimedOut.code();
    assert_eq!(outcome(&client.receive::<ProduceRequest>().await).error_code, timed_out);

    // The record is in the log, and readable once the follower has it.
    assert_eq!(lengths(&client.call(&fetch(&[0], 1, 0)).await), [0]);
    server.broker().resume_follower();
    clock.advance(10 * MS);
    assert_eq!(lengths(&client.call(&fetch(&[0], 1, 0)).await), [batch(1).len()]);
    assert_eq!(server.broker().stats().counts.records, 1);
}

#[tokio::test]
async fn a_request_for_one_ack_does_not_wait_but_its_readers_do() {
    let (server, clock) = virtual_broker().await;
    let mut consumer = Raw::waiting(&server, &fetch(&[0], 1, 60_000)).await;
    assert_eq!(Raw::connect(&server).await.produce(0, 1, 1).await, 0);
    assert_eq!(waiting(&server), 1, "the record is not replicated");
    clock.advance(10 * MS);
    assert_eq!(lengths(&consumer.receive::<FetchRequest>().await), [batch(1).len()]);
}

#[tokio::test]
async fn a_request_for_no_ack_gets_no_answer_and_one_that_fails_closes_the_connection() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.send(&produce(0, 0, 3)).await;
    // The next answer is that of the next request.
    assert_eq!(client.produce(0, 1, 1).await, 0);
    clock.advance(10 * MS);
    assert_eq!((offset(&mut client, -2).await, offset(&mut client, -1).await), (0, 4));
    client.send(&produce(9, 0, 1)).await;
    assert!(client.receive_rest().await.is_empty());
}

/// The offset of partition 0 for a time.
async fn offset(client: &mut Raw, timestamp: i64) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    client.call_in(5, &request).await.topics[0].partitions[0].offset
}

#[tokio::test]
async fn each_partition_of_a_request_fails_on_its_own() {
    let (server, clock) = virtual_broker().await;
    let mut request = produce_all(&[0, 1, 9], -1, 1);
    request.topic_data[0].partition_data[1].records = Some(Bytes::from_static(&[7; 100]));
    let mut client = Raw::waiting(&server, &request).await;
    clock.advance(10 * MS);
    let response = client.receive::<ProduceRequest>().await;
    let codes = response.responses[0].partition_responses.iter().map(|written| written.error_code);
    let (corrupt, unknown) =
        (ResponseError::CorruptMessage.code(), ResponseError::UnknownTopicOrPartition.code());
    assert_eq!(codes.collect::<Vec<_>>(), [0, corrupt, unknown]);

    assert_eq!(client.produce(0, 2, 1).await, ResponseError::InvalidRequiredAcks.code());
    assert_eq!(client.produce(9, -1, 1).await, unknown, "it appends nothing, so it does not wait");
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_requests() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::waiting(&server, &fetch(&[0], 1, 60_000)).await;
    client.send(&produce(0, 1, 1)).await;
    until("the append", || server.broker().stats().counts.records == 1).await;
    clock.advance(10 * MS);
    assert_eq!(lengths(&client.receive::<FetchRequest>().await), [batch(1).len()]);
    assert_eq!(outcome(&client.receive::<ProduceRequest>().await).error_code, 0);
}

/// Sends a batch of an idempotent producer. Returns its error code and its offset.
async fn send(client: &mut Raw, producer_id: i64, first: i32, count: i32) -> (i16, i64) {
    let records = record_batch(producer_id, first..first + count, b"value");
    let response = client.call(&produce_records(-1, records)).await;
    (outcome(&response).error_code, outcome(&response).base_offset)
}

#[tokio::test]
async fn a_batch_that_comes_again_is_answered_as_before_and_appended_once() {
    let server = system_broker().await;
    let client = &mut Raw::connect(&server).await;
    let request = InitProducerIdRequest::default().with_transactional_id(None);
    let id = client.call_in(4, &request).await.producer_id.0;
    assert_eq!(send(client, id, 0, 3).await, (0, 0));
    assert_eq!(send(client, id, 0, 3).await, (0, 0));
    assert_eq!(send(client, id, 3, 2).await, (0, 3));
    let gap = ResponseError::OutOfOrderSequenceNumber.code();
    assert_eq!(send(client, id, 6, 1).await, (gap, -1));
    assert_eq!(send(client, id, 5, 1).await, (0, 5));
    let counts = server.broker().stats().counts;
    assert_eq!((counts.records, counts.duplicates), (6, 1));

    let transaction = Some(TransactionalId(text("transaction")));
    let refused = client.call_in(4, &request.with_transactional_id(transaction)).await;
    assert_eq!(refused.error_code, ResponseError::TransactionalIdAuthorizationFailed.code());
}
