//! A shutdown answers all waiting requests, and no client delays it.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::prelude::*;

#[tokio::test]
async fn a_shutdown_answers_all_requests_and_closes() {
    let (server, _clock) = stopped_broker().await;
    let mut consumers = Vec::new();
    for _ in 0..50 {
        consumers.push(Raw::waiting(&server, &fetch(&[0, 1], 1, HOUR_MS)).await);
    }
    let mut producer = Raw::waiting(&server, &produce(0, -1, 1)).await;
    let idle = Raw::connect(&server).await;

    let broker = std::sync::Arc::clone(server.broker());
    assert_eq!(soon(server.shutdown()).await, 51);
    for client in &mut consumers {
        assert_eq!(lengths(&client.receive::<FetchRequest>().await), [0, 0]);
    }
    let response = producer.receive::<ProduceRequest>().await;
    assert_eq!(outcome(&response).error_code, ResponseError::NotLeaderOrFollower.code());
    for mut client in consumers.into_iter().chain([producer, idle]) {
        assert!(client.receive_rest().await.is_empty());
    }
    for (stats, timer) in [broker.stats().fetches, broker.stats().produces] {
        assert_eq!((stats.delayed, stats.watched, timer.pending), (0, 0, 0));
    }
    assert_eq!(broker.stats().counts.connections, 0);
}

#[tokio::test]
async fn dropping_the_server_also_answers_all_requests() {
    let (server, _clock) = virtual_broker().await;
    let mut client = Raw::waiting(&server, &fetch(&[0], 1, HOUR_MS)).await;
    drop(server);
    assert_eq!(lengths(&client.receive::<FetchRequest>().await), [0]);
    assert!(client.receive_rest().await.is_empty());
}

#[tokio::test]
async fn a_client_that_reads_no_answers_does_not_delay_a_shutdown() {
    let (server, clock) = virtual_broker().await;
    let mut client = Raw::connect(&server).await;
    client.call(&produce_all(&[0, 0, 0, 0], 1, 10_000)).await;
    clock.advance(Duration::from_millis(10));
    for _ in 0..60 {
        client.send(&fetch(&[0], 1, 0)).await;
    }
    until("the requests", || server.broker().stats().counts.fetches == 60).await;

    let broker = std::sync::Arc::clone(server.broker());
    let closing = tokio::spawn(server.shutdown());
    until("the wait for the client", || broker.stats().follower.pending == 1).await;
    assert!(!closing.is_finished());
    clock.advance(Duration::from_secs(1));
    soon(closing).await.unwrap();
    drop(client);
}

/// A broker in a process of its own, which is killed if its test fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn sigterm_answers_waiting_requests_before_the_process_ends() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_delaywheel-broker"));
    command.args(["--listen", "localhost:0", "--topic", "topic:4", "--no-follower"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    let mut output = BufReader::new(process.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening at ").and_then(|rest| rest.split(';').next());
    let address = address.unwrap().parse().unwrap();

    let (mut client, mut other) = (Raw::connect_to(address).await, Raw::connect_to(address).await);
    client.send(&fetch(&[0], 1, HOUR_MS)).await;
    client.send(&produce(1, 1, 1)).await;
    // This answer shows that the append has come. So the fetch before it waits.
    other.call(&fetch(&[1], 1, HOUR_MS)).await;
    let mut refused = Raw::connect_to(address).await;
    refused.send_bytes(&[0xff; 4]).await;
    assert!(refused.receive_rest().await.is_empty());
    let kill = Command::new("kill").arg(process.0.id().to_string()).status().unwrap();
    assert!(kill.success());

    assert_eq!(lengths(&client.receive::<FetchRequest>().await), [0]);
    assert_eq!(outcome(&client.receive::<ProduceRequest>().await).error_code, 0);
    assert!(client.receive_rest().await.is_empty());
    let mut report = String::new();
    output.read_to_string(&mut report).unwrap();
    assert!(report.starts_with("3 requests served; 1 waiting requests"), "{report}");
    assert!(report.contains("\nrefused    1 connections"), "{report}");
    let mut log = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.starts_with("closed 127.0.0.1:") || log.starts_with("closed [::1]:"), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(process.0.wait().unwrap().success());
}
