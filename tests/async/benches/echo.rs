//! An echo server with a time limit for each message, with our timeout and with tokio's, in turns:
//! `cargo bench -p delaywheel-async-tests --bench echo`.
//!
//! 1,000 connections over loopback, each with one message on its way. Server and clients share one
//! runtime, so a figure is that of both. Prints messages a second and processor time a message, the
//! medians of the rounds.

use std::{
    future::Future,
    io,
    time::{Duration, Instant},
};

use delaywheel::Timer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

const CONNECTIONS: usize = 1_000;
const MESSAGES: usize = 100;
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(30);
const SIZE: usize = 64;

/// Limits the time of a read.
trait Limit: Clone + Send + Sync + 'static {
    fn limit<F: Future<Output = io::Result<usize>> + Send>(
        &self,
        read: F,
    ) -> impl Future<Output = io::Result<usize>> + Send;
}

impl Limit for Timer {
    async fn limit<F: Future<Output = io::Result<usize>> + Send>(
        &self,
        read: F,
    ) -> io::Result<usize> {
        self.timeout(LIMIT, read).await?
    }
}

#[derive(Clone)]
struct Tokio;

impl Limit for Tokio {
    async fn limit<F: Future<Output = io::Result<usize>> + Send>(
        &self,
        read: F,
    ) -> io::Result<usize> {
        tokio::time::timeout(LIMIT, read).await?
    }
}

async fn serve(limit: impl Limit, mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; SIZE];
    while limit.limit(stream.read_exact(&mut buffer)).await.is_ok() {
        stream.write_all(&buffer).await?;
    }
    Ok(())
}

async fn ask(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [7; SIZE];
    for _ in 0..MESSAGES {
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
    }
    Ok(())
}

/// Returns messages a second, and microseconds of processor time a message.
async fn round(limit: impl Limit) -> io::Result<(f64, f64)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (mut servers, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (client, (server, _)) = (client?, server?);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        servers.spawn(serve(limit.clone(), server));
        clients.push(client);
    }
    let (start, before) = (Instant::now(), processor_time());
    let mut asking: JoinSet<_> = clients.into_iter().map(ask).collect();
    while let Some(asked) = asking.join_next().await {
        asked.map_err(io::Error::other)??;
    }
    let count = (CONNECTIONS * MESSAGES) as f64;
    let (took, spent) = (start.elapsed().as_secs_f64(), processor_time() - before);
    servers.shutdown().await;
    Ok((count / took, spent * 1e6 / count))
}

/// Processor time of the process in seconds, from `/proc`, in steps of 10 ms.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

fn median(mut figures: Vec<(f64, f64)>) -> (f64, f64) {
    let middle = figures.len() / 2;
    figures.sort_by(|one, other| one.0.total_cmp(&other.0));
    let rate = figures[middle].0;
    figures.sort_by(|one, other| one.1.total_cmp(&other.1));
    (rate, figures[middle].1)
}

fn main() -> io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    let timer = Timer::new();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(runtime.block_on(round(timer.clone()))?);
        theirs.push(runtime.block_on(round(Tokio))?);
    }
    for (name, figures) in [("ours", ours), ("tokio", theirs)] {
        let (rate, time) = median(figures);
        println!("{name:6} {rate:9.0} messages/s   {time:6.2} us of processor time each");
    }
    Ok(())
}
