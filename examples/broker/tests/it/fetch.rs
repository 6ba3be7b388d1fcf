//! Fetches that wait: how long, for how many bytes, and which events end them.

use crate::prelude::*;

#[tokio::test]
async fn an_append_ends_the_fetches_that_it_satisfies_and_no_others() {
    let server = system_broker().await;
    let one = batch(1).len();
    let mut small = waiting_client(&server, &fetch(&[0], 1, HOUR_MS)).await;
    let mut large = waiting_client(&server, &fetch(&[0, 1], 2 * one + 1, HOUR_MS)).await;
    let _other = waiting_client(&server, &fetch(&[2], 1, HOUR_MS)).await;
    let mut producer = Client::connect(server.address()).await;
    assert_eq!(producer.produce(0, 1, 1).await, 0);
    assert_eq!(lengths(&small.receive::<FetchRequest>().await), [one]);
    assert_eq!(producer.produce(1, 1, 1).await, 0);
    assert_eq!(server.broker().stats().fetches.satisfied, 1, "two batches are a byte too few");
    assert_eq!(producer.produce(0, 1, 1).await, 0);
    assert_eq!(lengths(&large.receive::<FetchRequest>().await), [2 * one, one]);
    assert_eq!(waiting(&server), 1, "nothing has happened to partition 2");
}

#[tokio::test]
async fn a_fetch_that_has_its_bytes_or_an_error_does_not_wait() {
    // The clock does not move, so a fetch that waits here hangs.
    let (server, _clock) = virtual_broker(10 * MS).await;
    let client = &mut Client::connect(server.address()).await;
    assert_eq!(lengths(&client.call(&fetch(&[0], 1, 0)).await), [0], "it wants no wait");
    assert_eq!(lengths(&client.call(&fetch(&[0], 0, HOUR_MS)).await), [0], "it wants no bytes");
    assert_eq!(lengths(&client.call(&fetch(&[0], 1, -1)).await), [0]);
    let mut in_session = fetch(&[0], 1, HOUR_MS);
    (in_session.session_id, in_session.session_epoch) = (7, 1);
    let no_session = ResponseError::FetchSessionIdNotFound.code();
    assert_eq!(client.call(&in_session).await.error_code, no_session);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(codes(&client.call(&fetch(&[0, 9], 1, HOUR_MS)).await), [0, unknown]);
    let mut beyond = fetch(&[0], 1, HOUR_MS);
    beyond.topics[0].partitions[0].fetch_offset = 1;
    assert_eq!(codes(&client.call(&beyond).await), [ResponseError::OffsetOutOfRange.code()]);
}

#[tokio::test]
async fn limits_hold_except_for_a_first_batch() {
    let server = system_broker().await;
    let client = &mut Client::connect(server.address()).await;
    for partition in [0, 0, 1] {
        assert_eq!(client.produce(partition, 1, 1).await, 0);
    }
    let one = batch(1).len();
    let limit = i32::try_from(one).unwrap();
    let mut request = fetch(&[0, 1], 1, HOUR_MS);
    assert_eq!(lengths(&client.call(&request).await), [2 * one, one]);
    request.max_bytes = limit * 2;
    assert_eq!(lengths(&client.call(&request).await), [2 * one, 0]);
    request.topics[0].partitions[0].partition_max_bytes = limit;
    assert_eq!(lengths(&client.call(&request).await), [one, one]);
    request.max_bytes = 1;
    assert_eq!(lengths(&client.call(&request).await), [one, 0]);
}

#[tokio::test]
async fn the_oldest_fetch_makes_room_and_its_client_is_asked_to_slow_down() {
    let server = start(Config { max_waiting: 2, ..config() }).await;
    let mut first = waiting_client(&server, &fetch(&[0], 1, HOUR_MS)).await;
    let _second = waiting_client(&server, &fetch(&[0], 1, HOUR_MS)).await;
    let mut third = Client::connect(server.address()).await;
    third.send(&fetch(&[0], 1, HOUR_MS)).await;
    let displaced = first.receive::<FetchRequest>().await;
    assert_eq!((displaced.throttle_time_ms, lengths(&displaced)), (100, vec![0]));
    assert_eq!(server.broker().stats().fetches.displaced, 1);
}
