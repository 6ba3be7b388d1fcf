//! A small Kafka broker: serves a load of real clients and prints a report, or only listens.
//!
//! ```text
//! cargo run --release -p delaywheel-broker [-- --seconds 5] [-- --listen localhost:9092]
//! ```
#![forbid(unsafe_code)]

mod load;
mod members;
mod report;
mod settings;

use std::{error::Error, future::Future, io, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use delaywheel_broker::broker::{Config, Server};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

use self::settings::Settings;

/// An error for the user.
type Fault = Box<dyn Error + Send + Sync>;

/// Threads of the broker, and as many of its clients.
const THREADS: usize = 2;

/// How long the first members of a group wait for others under the load.
const GROUP_DELAY: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let settings = Settings::parse();
    let outcome = match &settings.listen {
        Some(address) => listen(&settings, address),
        None => load(&settings),
    };
    if let Err(fault) = outcome {
        eprintln!("failed: {fault}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Serves until Ctrl-C or SIGTERM.
fn listen(settings: &Settings, address: &str) -> Result<(), Fault> {
    runtime("broker")?.block_on(async {
        let end = end_signal()?;
        let server = start(settings.config.clone(), address).await?;
        println!("listening at {}; Ctrl-C ends it", server.address());
        end.await;
        let broker = Arc::clone(server.broker());
        let answered = server.shutdown().await;
        let stats = broker.stats();
        println!("{} requests served; {answered} waiting requests answered", stats.counts.requests);
        report::print_counts(&stats);
        Ok(())
    })
}

async fn start(config: Config, address: &str) -> Result<Server, Fault> {
    let server = Server::start(address, config).await;
    server.map_err(|error| match error.kind() {
        // It names a topic.
        io::ErrorKind::InvalidInput => error.into(),
        _ => format!("--listen {address}: {error}").into(),
    })
}

/// Serves a load of clients, which have threads of their own, and reports.
fn load(settings: &Settings) -> Result<(), Fault> {
    let (broker, clients) = (runtime("broker")?, runtime("client")?);
    let group_delay = settings.config.group_delay.min(GROUP_DELAY);
    let config = Config { group_delay, ..settings.config.clone() };
    let server = broker.block_on(start(config, "127.0.0.1:0"))?;
    println!(
        "{} serves {} producers, {} consumers, {} idle pollers and {} members of a group for {} s",
        server.address(),
        settings.producers,
        settings.config.partitions,
        settings.pollers,
        settings.members,
        settings.seconds
    );
    let done = clients.block_on(load::run(settings, server.address()))?;
    let before = server.broker().stats();
    let closed = Arc::clone(server.broker());
    let answered = broker.block_on(server.shutdown());
    let after = closed.stats();
    report::print(&done, &before, &after, answered);
    done.check(&after)
}

fn runtime(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(THREADS).thread_name(name).enable_io().build()
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
