//! Connections that go away, and connections over the limit.

use std::sync::Mutex;

use crate::prelude::*;

#[tokio::test]
async fn a_connection_that_closes_leaves_nothing_in_the_purgatories() {
    let (server, _clock) = virtual_broker(HOUR).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(server.address()).await;
        client.send(&produce(3, -1, 1)).await;
        for _ in 0..5 {
            client.send(&fetch(&[0, 1], 1, HOUR_MS)).await;
        }
        clients.push(client);
    }
    until("the waits", || waiting(&server) == 120).await;
    drop(clients);
    until("the end of the waits", || waiting(&server) == 0).await;
    for stats in [server.broker().stats().fetches, server.broker().stats().produces] {
        assert_eq!((stats.watched, stats.keys, stats.timer.pending), (0, 0, 0));
        assert_eq!(stats.cancelled, stats.timer.cancelled);
    }
    assert_eq!(server.broker().stats().fetches.cancelled, 100);
    until("the end of the connections", || server.broker().stats().counts.connections == 0).await;
}

#[tokio::test]
async fn connections_over_the_limit_wait_until_others_close() {
    static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let print: fn(&str) = |line| PRINTED.lock().unwrap().push(line.to_owned());
    let server = start(Config { max_connections: 1, print, ..config() }).await;
    let mut first = Client::connect(server.address()).await;
    assert_eq!(first.produce(0, 1, 1).await, 0);
    let mut second = Client::connect(server.address()).await;
    second.send(&produce(0, 1, 1)).await;
    assert_eq!(first.produce(0, 1, 1).await, 0);
    assert_eq!(server.broker().stats().counts.records, 2, "the broker does not read the second");
    drop(first);
    assert_eq!(outcome(&second.receive::<ProduceRequest>().await).error_code, 0);
    assert_eq!(PRINTED.lock().unwrap()[0], "accepting no more connections: 1 connections are open");
}
