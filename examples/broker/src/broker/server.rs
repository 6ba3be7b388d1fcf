//! The server: accepts connections, and closes them in order.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use delaywheel::Timer;
use tokio::{
    net::{TcpListener, TcpStream, ToSocketAddrs},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use super::{Broker, Config, connection, refusal::Refusal};

/// How long a shutdown waits for clients to take their answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pause after the system has refused a connection, such as for lack of descriptors.
const REST: Duration = Duration::from_millis(50);

/// A broker that listens.
///
/// Dropping it closes it as well, but waits for no client.
#[derive(Debug)]
pub struct Server {
    broker: Arc<Broker>,
    address: SocketAddr,
    closing: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens at an address, on the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Those of the system, if the address cannot be listened at; `InvalidInput` if one of the
    /// topics cannot be made.
    pub async fn start(address: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let broker = Arc::new(Broker::new(config)?);
        let (closing, is_closing) = watch::channel(false);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&broker), is_closing));
        Ok(Self { broker, address, closing, accepting })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the broker.
    #[must_use]
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// Accepts nothing more, answers every request that waits, and closes all connections. Returns
    /// how many requests waited.
    ///
    /// It waits at most a second for a client that does not read its answers.
    pub async fn shutdown(mut self) -> u64 {
        let answered = self.close();
        if self.broker.timer.timeout(PATIENCE, &mut self.accepting).await.is_err() {
            self.accepting.abort();
        }
        self.broker.timer.shutdown();
        answered
    }

    /// Closes all connections after they have answered the waiting requests. Returns how many
    /// requests that was.
    fn close(&self) -> u64 {
        // First, so that a request which finds the purgatories shut down is one of the last.
        self.closing.send_replace(true);
        self.broker.answer_all()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

/// Accepts connections and serves them, until the server closes; then waits for them to end.
async fn accept(listener: TcpListener, broker: Arc<Broker>, mut closing: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let is_closing = closing.clone();
    loop {
        tokio::select! {
            biased;
            _ = closing.wait_for(|&is_closing| is_closing) => break,
            Some(_) = connections.join_next() => {}
            stream = next(&listener, &broker.timer),
                if connections.len() < broker.config.max_connections =>
            {
                let serving = connection::serve(stream, Arc::clone(&broker), is_closing.clone());
                connections.spawn(serving);
                if connections.len() == broker.config.max_connections {
                    let full = Refusal::Full(connections.len());
                    broker.refusals.print(full, "accepting no more connections");
                }
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn next(listener: &TcpListener, timer: &Timer) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => drop(timer.sleep(REST).await),
        }
    }
}
