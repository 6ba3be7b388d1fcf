//! A small Kafka broker: serves a load of real clients for a while and reports, or just listens.
//!
//! ```text
//! cargo run --release -p delaywheel-broker [-- --seconds 5] [-- --listen localhost:9092]
//! ```
#![forbid(unsafe_code)]

mod cpu;
mod load;
mod members;
mod report;
mod settings;
mod signal;

use std::{error::Error, process::ExitCode, sync::Arc};

use delaywheel_broker::broker::Server;
use tokio::runtime::{Builder, Runtime};

use self::{
    cpu::Cpu,
    load::Load,
    settings::{Mode, Settings, USAGE},
};

/// Whatever went wrong, for the user to read.
type Fault = Box<dyn Error + Send + Sync>;

/// Threads of the broker, and as many of its clients.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let settings = match Settings::from_args() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = match &settings.mode {
        Mode::Help => {
            println!("{USAGE}");
            Ok(())
        }
        Mode::Listen(address) => listen(&settings, address),
        Mode::Load => load(&settings),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("failed: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until Ctrl-C or SIGTERM.
fn listen(settings: &Settings, address: &str) -> Result<(), Fault> {
    runtime("broker", &Cpu::default())?.block_on(async {
        let ended = signal::ended()?;
        let server = start(settings, address).await?;
        println!("listening at {}; Ctrl-C ends it", server.address());
        ended.await;
        let broker = Arc::clone(server.broker());
        let answered = server.shutdown().await;
        let counted = broker.counts();
        println!("{} requests served; {answered} that waited have been answered", counted.requests);
        report::print_groups(&broker.groups());
        println!("refused    {} connections closed because of what came", counted.rejected);
        Ok(())
    })
}

async fn start(settings: &Settings, address: &str) -> Result<Server, Fault> {
    let server = Server::start(address, settings.config.clone()).await;
    let server = server.map_err(|error| format!("--listen {address}: {error}"))?;
    if settings.stops_follower {
        server.broker().stop_follower();
    }
    Ok(server)
}

/// Serves a load of clients, which have threads of their own, and reports.
fn load(settings: &Settings) -> Result<(), Fault> {
    let (broker_cpu, client_cpu) = (Cpu::default(), Cpu::default());
    let (broker, clients) = (runtime("broker", &broker_cpu)?, runtime("client", &client_cpu)?);
    let server = broker.block_on(start(settings, "127.0.0.1:0"))?;
    println!(
        "{} serves {} producers, {} consumers, {} idle pollers and {} members of a group for {} s",
        server.address(),
        settings.producers,
        settings.config.partitions,
        settings.pollers,
        settings.members,
        settings.duration.as_secs_f64()
    );
    let load = Load::new(settings, server.address(), server.broker());
    let done = clients.block_on(load.run())?;
    // This thread was a client's as well, until now.
    client_cpu.record();
    let before = report::Snapshot::of(server.broker());
    let closed = Arc::clone(server.broker());
    let answered = broker.block_on(server.shutdown());
    let after = report::Snapshot::of(&closed);
    report::print(&done, &before, &after, answered);
    report::print_cpu(&before, &broker_cpu, &client_cpu);
    done.check(&after)
}

fn runtime(name: &str, cpu: &Cpu) -> Result<Runtime, Fault> {
    let cpu = cpu.clone();
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).thread_name(name).enable_io();
    Ok(builder.on_thread_park(move || cpu.record()).build()?)
}
