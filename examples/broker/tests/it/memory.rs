//! Clients that send requests and never read: the memory that they cost is bounded.
//!
//! Everything but the timers runs on the thread of the test, whose allocations are counted.

use allocation_counter::measure;
use tokio::runtime::Builder;

use crate::prelude::*;

const MIB: u64 = 1 << 20;

/// Requests that a connection may have unanswered.
const PIPELINED: u64 = 64;

/// Bytes of records in each partition, and in the longest answer to a fetch.
const STORED: usize = 8 << 20;

async fn stored() -> Server {
    let server = start(Config { max_fetch_bytes: STORED, ..config() }).await;
    let mut producer = Client::connect(server.address()).await;
    let records = record_batch(-1, 0..1, &vec![b'x'; 1_000_000]);
    for _ in 0..8 {
        producer.call(&produce_records(1, records.clone())).await;
    }
    server
}

/// Returns the peak memory of the broker, in bytes, while a client reads none of its answers.
fn peak(request: &FetchRequest) -> u64 {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let server = runtime.block_on(stored());
    let mut client = runtime.block_on(Client::connect(server.address()));
    let before = server.broker().stats().counts.requests;
    let measured = measure(|| {
        runtime.block_on(async {
            for _ in 0..PIPELINED {
                client.send(request).await;
            }
            let requests = || server.broker().stats().counts.requests - before;
            until("the requests", || requests() == PIPELINED).await;
        });
    });
    runtime.block_on(server.shutdown());
    measured.bytes_max
}

#[test]
fn pipelined_fetches_cost_two_answers_whether_they_wait_or_not() {
    for max_wait_ms in [0, HOUR_MS] {
        let mut request = fetch(&[0], 1, max_wait_ms).with_max_bytes(i32::MAX);
        request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
        let peak = peak(&request);
        // The records of one answer, its frame, and what 64 requests take.
        assert!(peak > STORED as u64, "answers are made: {peak}");
        assert!(peak < 2 * STORED as u64 + MIB, "{peak} bytes for fetches that wait {max_wait_ms}");
    }
}

#[test]
fn requests_that_stop_cost_what_has_come_in_up_to_a_bound_and_are_closed_in_the_end() {
    const CLIENTS: usize = 40;
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let max_incoming_bytes = 8 << 20;
    let config = Config { max_incoming_bytes, ..config() };
    let (server, clock) = runtime.block_on(start_virtual(config));
    let stats = || server.broker().stats();
    let part = vec![0; 1 << 20];
    let measured = measure(|| {
        runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let mut client = Client::connect(server.address()).await;
                client.send_bytes(&(100_i32 << 20).to_be_bytes()).await;
                clients.push(client);
            }
            until("the claims", || stats().incoming.pending == CLIENTS as u64).await;
            // Claims block no others.
            let large = produce_records(-1, vec![0; (1 << 20) + 1].into());
            let response = Client::connect(server.address()).await.call(&large).await;
            assert_eq!(outcome(&response).error_code, ResponseError::MessageTooLarge.code());
            for client in &mut clients {
                // The system takes what the broker does not.
                client.send_bytes(&part).await;
            }
            until("the bound", || stats().incoming_bytes == max_incoming_bytes as u64).await;
            clock.advance(29_999 * MS);
            assert_eq!(stats().counts.rejected, 0);
            clock.advance(MS);
            until("the end of the connections", || stats().counts.connections == 0).await;
            assert_eq!(stats().counts.rejected, CLIENTS as u64);
        });
    });
    assert!(measured.bytes_max > 4 * MIB, "{} bytes", measured.bytes_max);
    assert!(measured.bytes_max < 12 * MIB, "{} bytes", measured.bytes_max);
}
