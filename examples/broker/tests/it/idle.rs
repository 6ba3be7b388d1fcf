//! What waits costs nothing while nothing happens to it.

use delaywheel_broker::broker::Server;

use crate::harness::{
    HOUR, HOUR_MS, Raw, fetch, lengths, system_broker, until_fetches_wait, virtual_broker,
};

const IDLE: usize = 200;

async fn idle(server: &Server) -> Vec<Raw> {
    let mut clients = Vec::new();
    for _ in 0..IDLE {
        let mut client = Raw::connect(server).await;
        client.send(11, &fetch(&[0, 1, 2], 1, HOUR_MS)).await;
        clients.push(client);
    }
    until_fetches_wait(server, IDLE as u64).await;
    clients
}

#[tokio::test]
async fn idle_connections_need_no_attention_until_their_time_is_over() {
    let (server, clock) = virtual_broker().await;
    let mut clients = idle(&server).await;
    let mut stops = 0;
    // Where this clock stops a reaper would be woken.
    while server.broker().fetches().0.expired == 0 {
        assert!(clock.advance_to_next().is_some());
        stops += 1;
    }
    assert_eq!(clock.elapsed(), HOUR);
    assert!(stops <= 3, "{stops} stops in an hour");
    assert_eq!(server.broker().fetches().0.expired, IDLE as u64);
    for client in &mut clients {
        assert_eq!(lengths(&client.receive_fetch().await), [0, 0, 0]);
    }
}

#[tokio::test]
async fn idle_connections_wake_no_reaper_while_others_are_served() {
    let server = system_broker().await;
    let clients = idle(&server).await;
    let mut busy = Raw::connect(&server).await;
    let before = server.broker().fetches().1.wakeups;
    for _ in 0..100 {
        assert_eq!(busy.produce(3, 1, 1).await, 0);
        assert_ne!(lengths(&busy.fetch(&fetch(&[3], 1, HOUR_MS)).await), [0]);
    }
    // A poll that expires is a wake-up of its own, or two, and none of those that idle.
    for rounds in 1..=5 {
        busy.fetch(&fetch(&[2], 1, 20)).await;
        let woken = server.broker().fetches().1.wakeups - before;
        assert!(woken <= 4 * rounds, "{woken} wake-ups in {rounds} rounds");
    }
    assert_eq!(server.broker().fetches().0.delayed, IDLE as u64);
    drop(clients);
}
