//! A shutdown answers all waiting requests, and no client delays it.

use crate::prelude::*;

#[tokio::test]
async fn a_shutdown_answers_all_requests_and_closes() {
    let (server, _clock) = virtual_broker(HOUR).await;
    let mut consumers = Vec::new();
    for _ in 0..50 {
        consumers.push(waiting_client(&server, &fetch(&[0, 1], 1, HOUR_MS)).await);
    }
    let mut producer = waiting_client(&server, &produce(0, -1, 1)).await;
    let idle = Client::connect(server.address()).await;
    let mut member = waiting_client(&server, &join(&StrBytes::default())).await;

    let broker = std::sync::Arc::clone(server.broker());
    assert_eq!(soon(server.shutdown()).await, 52);
    let joined = member.receive::<JoinGroupRequest>().await;
    assert_eq!(joined.error_code, ResponseError::CoordinatorNotAvailable.code());
    for client in &mut consumers {
        assert_eq!(lengths(&client.receive::<FetchRequest>().await), [0, 0]);
    }
    let response = producer.receive::<ProduceRequest>().await;
    assert_eq!(outcome(&response).error_code, ResponseError::NotLeaderOrFollower.code());
    for mut client in consumers.into_iter().chain([producer, idle, member]) {
        assert!(client.receive_rest().await.is_empty());
    }
    for stats in [broker.stats().fetches, broker.stats().produces] {
        assert_eq!((stats.delayed, stats.watched, stats.timer.pending), (0, 0, 0));
    }
    assert_eq!(broker.stats().counts.connections, 0);
}

#[tokio::test]
async fn a_client_that_reads_no_answers_does_not_delay_a_shutdown() {
    let (server, clock) = virtual_broker(10 * MS).await;
    let mut client = Client::connect(server.address()).await;
    client.call(&produce_all(&[0, 0, 0, 0], 1, 10_000)).await;
    clock.advance(10 * MS);
    for _ in 0..60 {
        client.send(&fetch(&[0], 1, 0)).await;
    }
    until("the requests", || server.broker().stats().counts.fetches == 60).await;

    let broker = std::sync::Arc::clone(server.broker());
    let closing = tokio::spawn(server.shutdown());
    until("the wait for the client", || broker.stats().follower.pending == 1).await;
    assert!(!closing.is_finished());
    clock.advance(1_000 * MS);
    soon(closing).await.unwrap();
    drop(client);
}
