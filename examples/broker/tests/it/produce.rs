//! Produce requests, and their waits.

use crate::prelude::*;

#[tokio::test]
async fn a_request_for_all_acks_is_answered_when_the_follower_has_all_partitions_of_a_broker() {
    let topics = vec![(TOPIC.to_owned(), 4_000)];
    let (server, clock) =
        start_virtual(Config { follower_delay: Some(10 * MS), topics, ..config() }).await;
    let partitions: Vec<i32> = (0..4_000).collect();
    let mut client = waiting_client(&server, &produce_all(&partitions, -1, 1)).await;
    clock.advance(9 * MS);
    assert_eq!(waiting(&server), 1);
    clock.advance(MS);
    let response = client.receive::<ProduceRequest>().await;
    let written = &response.responses[0].partition_responses;
    assert_eq!(written.iter().filter(|written| written.error_code == 0).count(), 4_000);
    let stats = server.broker().stats().produces;
    assert_eq!((stats.satisfied, stats.watched, stats.timer.pending), (1, 0, 0));
}

#[tokio::test]
async fn a_request_for_all_acks_and_an_empty_fetch_end_at_their_time_to_the_millisecond() {
    let (server, clock) = virtual_broker(HOUR).await;
    let mut client = waiting_client(&server, &produce(0, -1, 1)).await;
    let mut consumer = waiting_client(&server, &fetch(&[0], 1, 1_000)).await;
    clock.advance(999 * MS);
    assert_eq!(waiting(&server), 2);
    clock.advance(MS);
    assert_eq!(lengths(&consumer.receive::<FetchRequest>().await), [0]);
    let timed_out = ResponseError::RequestTimedOut.code();
    assert_eq!(outcome(&client.receive::<ProduceRequest>().await).error_code, timed_out);

    // The record is in the log, and readable once the follower has it.
    assert_eq!(lengths(&client.call(&fetch(&[0], 1, 0)).await), [0]);
    clock.advance(HOUR);
    assert_eq!(lengths(&client.call(&fetch(&[0], 1, 0)).await), [batch(1).len()]);
    assert_eq!(server.broker().stats().counts.records, 1);
}

#[tokio::test]
async fn a_request_for_no_ack_gets_no_answer_and_one_that_fails_closes_the_connection() {
    let (server, clock) = virtual_broker(10 * MS).await;
    let mut client = Client::connect(server.address()).await;
    client.send(&produce(0, 0, 3)).await;
    // The next answer is that of the next request.
    assert_eq!(client.produce(0, 1, 1).await, 0);
    clock.advance(10 * MS);
    assert_eq!((offset(&mut client, -2).await, offset(&mut client, -1).await), (0, 4));
    client.send(&produce(9, 0, 1)).await;
    assert!(client.receive_rest().await.is_empty());
}

#[tokio::test]
async fn a_batch_that_arrives_again_gets_the_same_answer_and_is_not_appended() {
    // The clock does not move, and there is no follower: no request waits.
    let (server, _clock) = start_virtual(config()).await;
    let client = &mut Client::connect(server.address()).await;
    let init = InitProducerIdRequest::default().with_transactional_id(None);
    let id = client.call(&init).await.producer_id;
    let next = client.call(&init.with_producer_id(id).with_producer_epoch(0)).await;
    assert_eq!((next.producer_id, next.producer_epoch), (id, 1));
    let gap = ResponseError::OutOfOrderSequenceNumber.code();
    for (numbers, answer) in [(0..2, (0, 0)), (0..2, (0, 0)), (2..3, (0, 2)), (4..5, (gap, -1))] {
        let request = produce_records(-1, record_batch(id.0, numbers, b"value"));
        let response = client.call(&request).await;
        assert_eq!((outcome(&response).error_code, outcome(&response).base_offset), answer);
    }
    assert_eq!(server.broker().stats().counts.records, 3);
}

/// The offset of partition 0 for a time.
async fn offset(client: &mut Client, timestamp: i64) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(name(TOPIC)).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    client.call_in(5, &request).await.topics[0].partitions[0].offset
}

/// A time may be anywhere in a log. So a short request could make the broker read a log very often.
#[tokio::test]
async fn a_request_for_offsets_names_a_partition_once() {
    let server = system_broker().await;
    let partitions = [0, 1, 0].map(|at| ListOffsetsPartition::default().with_partition_index(at));
    let topic = ListOffsetsTopic::default().with_name(name(TOPIC));
    let topic = topic.with_partitions(partitions.into());
    let request = ListOffsetsRequest::default().with_topics(vec![topic.clone(), topic]);
    let response = Client::connect(server.address()).await.call_in(5, &request).await;
    let answers = response.topics.iter().flat_map(|topic| &topic.partitions);
    let twice = ResponseError::InvalidRequest.code();
    let codes: Vec<_> = answers.map(|answer| answer.error_code).collect();
    assert_eq!(codes, [0, 0, twice, twice, twice, twice]);
}

#[tokio::test]
async fn each_partition_of_a_request_fails_on_its_own() {
    let (server, clock) = virtual_broker(10 * MS).await;
    let mut request = produce_all(&[0, 1, 9], -1, 1);
    request.topic_data[0].partition_data[1].records = Some(Bytes::from_static(&[7; 100]));
    let mut client = waiting_client(&server, &request).await;
    clock.advance(10 * MS);
    let response = client.receive::<ProduceRequest>().await;
    let codes = response.responses[0].partition_responses.iter().map(|written| written.error_code);
    let (corrupt, unknown) =
        (ResponseError::CorruptMessage.code(), ResponseError::UnknownTopicOrPartition.code());
    assert_eq!(codes.collect::<Vec<_>>(), [0, corrupt, unknown]);

    assert_eq!(client.produce(0, 2, 1).await, ResponseError::InvalidRequiredAcks.code());
    assert_eq!(client.produce(9, -1, 1).await, unknown, "it appends nothing, so it does not wait");
}
