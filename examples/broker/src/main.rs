//! A small Kafka broker. It serves a load of its own for some seconds, or any Kafka client until
//! Ctrl-C, and prints a report.
//!
//! ```text
//! cargo run --release -p delaywheel-broker [-- --listen localhost:9092]
//! ```
#![forbid(unsafe_code)]

mod load;
mod report;

use std::{error::Error, future::Future, io, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use delaywheel_broker::{
    broker::{Config, Server},
    client::TOPIC,
};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

/// Threads of the broker.
const THREADS: usize = 2;

/// A small Kafka broker whose requests wait in purgatories.
///
/// Without --listen, it serves clients of its own for some seconds, which check every record. With
/// it, Ctrl-C and SIGTERM end it. In the end it answers the waiting requests and prints a report.
#[derive(Debug, Parser)]
#[command(version)]
struct Settings {
    /// Serve other clients, at this address; port 0 stands for any free port
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// How long the load without --listen produces
    #[arg(long, value_name = "N", default_value = "3", conflicts_with = "listen")]
    seconds: u16,
    #[command(flatten)]
    config: Config,
}

fn main() -> ExitCode {
    if let Err(fault) = serve(Settings::parse()) {
        eprintln!("failed: {fault}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn serve(Settings { listen, seconds, mut config }: Settings) -> Result<(), Box<dyn Error>> {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_io().build()?;
    runtime.block_on(async {
        let end = end_signal()?;
        if listen.is_none() {
            config.topics.push((TOPIC.to_owned(), load::PARTITIONS.into()));
            config.group_delay = config.group_delay.min(Duration::from_millis(100));
        }
        let at = listen.as_deref().unwrap_or("localhost:0");
        let server = Server::start(at, config).await.map_err(|error| match error.kind() {
            // It names a topic.
            io::ErrorKind::InvalidInput => error.to_string(),
            _ => format!("--listen {at}: {error}"),
        })?;
        if listen.is_some() {
            println!("listening at {}; Ctrl-C ends it", server.address());
            end.await;
        } else {
            println!("serving clients of this process at {} for {seconds} s", server.address());
            let load = load::run(server.address(), Duration::from_secs(seconds.into()));
            let (records, times) = tokio::spawn(load).await.map_err(|_| "the load has failed")?;
            report::print_load(records, times);
        }
        let broker = Arc::clone(server.broker());
        let before = broker.stats();
        let answered = server.shutdown().await;
        report::print(&before, &broker.stats(), answered);
        Ok(())
    })
}

/// Listens for Ctrl-C and SIGTERM from now on. The future ends with the first of them.
fn end_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
