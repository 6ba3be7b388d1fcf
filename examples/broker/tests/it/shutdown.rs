//! A shutdown answers whatever waits, and is kept waiting by nobody.

use std::time::Duration;

use kafka_protocol::{ResponseError, messages::ProduceRequest};

use crate::harness::{
    HOUR_MS, PRODUCE_VERSION, Raw, fetch, lengths, outcome, produce, produce_all, soon, until,
    until_fetches_wait, until_produces_wait, virtual_broker,
};

#[tokio::test]
async fn a_shutdown_answers_everyone_and_closes() {
    let (server, _clock) = virtual_broker().await;
    server.broker().stop_follower();
    let mut consumers = Vec::new();
    for _ in 0..50 {
        let mut client = Raw::connect(&server).await;
        client.send(11, &fetch(&[0, 1], 1, HOUR_MS)).await;
        consumers.push(client);
    }
    let mut producer = Raw::connect(&server).await;
    producer.send(PRODUCE_VERSION, &produce(0, -1, 1)).await;
    let idle = Raw::connect(&server).await;
    until_fetches_wait(&server, 50).await;
    until_produces_wait(&server, 1).await;

    let broker = std::sync::Arc::clone(server.broker());
    assert_eq!(soon(server.shutdown()).await, 51);
    for client in &mut consumers {
        assert_eq!(lengths(&client.receive_fetch().await), [0, 0]);
    }
    let (_, response) = producer.receive::<ProduceRequest>(PRODUCE_VERSION).await;
    assert_eq!(outcome(&response).error_code, ResponseError::NotLeaderOrFollower.code());
    for mut client in consumers.into_iter().chain([producer, idle]) {
        assert!(client.receive_rest().await.is_empty());
    }
    for (stats, timer) in [broker.fetches(), broker.produces()] {
        assert_eq!((stats.delayed, stats.watched, timer.pending), (0, 0, 0));
    }
    assert_eq!(broker.counts().connections, 0);
}

#[tokio::test]
async fn dropping_the_server_answers_everyone_too() {
    let (server, _clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.send(11, &fetch(&[0], 1, HOUR_MS)).await;
    until_fetches_wait(&server, 1).await;
    drop(server);
    assert_eq!(lengths(&client.receive_fetch().await), [0]);
    assert!(client.receive_rest().await.is_empty());
}

#[tokio::test]
async fn a_client_that_takes_nothing_does_not_hold_up_a_shutdown() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.call(PRODUCE_VERSION, &produce_all(&[0, 0, 0, 0], 1, 10_000)).await;
    clock.advance(Duration::from_millis(10));
    for _ in 0..60 {
        client.send(11, &fetch(&[0], 1, 0)).await;
    }
    until("the requests", || server.broker().counts().fetches == 60).await;

    let broker = std::sync::Arc::clone(server.broker());
    let closing = tokio::spawn(server.shutdown());
    until("the wait for the client", || broker.follower_timer().pending == 1).await;
    assert!(!closing.is_finished());
    clock.advance(Duration::from_secs(1));
    soon(closing).await.unwrap();
    drop(client);
}
