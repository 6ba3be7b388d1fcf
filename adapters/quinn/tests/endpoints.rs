//! Real endpoints of the crate `quinn` over loopback, whose timer is ours.

use std::{
    future::Future,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use delaywheel::{Clock, ManualClock, Timer};
use delaywheel_quinn::QuinnRuntime;
use quinn::{
    AsyncTimer, AsyncUdpSocket, ClientConfig, Connection, ConnectionError, Endpoint,
    EndpointConfig, Runtime, ServerConfig, TokioRuntime, TransportConfig,
    rustls::{
        RootCertStore,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

/// Time without a packet after which a connection ends.
const IDLE: Duration = Duration::from_secs(30);

/// Far less than `IDLE`.
const STEP: Duration = Duration::from_millis(100);

const MESSAGE: &[u8] = b"a message and its echo";

/// A server and a client on a timer, with a certificate of their own.
struct Pair {
    server: Endpoint,
    client: Endpoint,
    timer: Timer,
}

impl Pair {
    fn new(timer: Timer) -> Self {
        let name = vec![String::from("localhost")];
        let made = rcgen::generate_simple_self_signed(name).expect("the name is valid");
        let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("the certificate is valid");
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(IDLE.try_into().expect("it is short enough")));
        let transport = Arc::new(transport);
        let mut server = ServerConfig::with_single_cert(vec![certificate], key).expect("its key");
        server.transport_config(Arc::clone(&transport));
        let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("a root");
        client.transport_config(transport);

        let runtime = Arc::new(QuinnRuntime::new(Arc::new(TokioRuntime), timer.clone()));
        let endpoint = |config| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
            let runtime: Arc<dyn Runtime> = Arc::clone(&runtime) as _;
            Endpoint::new(EndpointConfig::default(), config, socket, runtime)
                .expect("the socket is open")
        };
        let (server, mut sender) = (endpoint(Some(server)), endpoint(None));
        sender.set_default_client_config(client);
        Self { server, client: sender, timer }
    }

    /// Connects, and sends a message and its echo. Returns the connections of client and server.
    async fn exchange(&self) -> [Connection; 2] {
        let address = self.server.local_addr().expect("it is bound");
        let answer = async {
            let incoming = self.server.accept().await.expect("the endpoint is open");
            let connection = incoming.await.expect("the client is trusted");
            let (mut send, mut receive) = connection.accept_bi().await.expect("a stream");
            let message = receive.read_to_end(MESSAGE.len()).await.expect("a message");
            send.write_all(&message).await.expect("the client reads");
            send.finish().expect("the stream is open");
            connection
        };
        let ask = async {
            let connecting = self.client.connect(address, "localhost").expect("it is valid");
            let connection = connecting.await.expect("the server is trusted");
            let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
            send.write_all(MESSAGE).await.expect("the server reads");
            send.finish().expect("the stream is open");
            let echo = receive.read_to_end(MESSAGE.len()).await.expect("the server answers");
            assert_eq!(echo, MESSAGE);
            connection
        };
        let (server, client) = tokio::join!(answer, ask);
        [client, server]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_connections_exchange_streams_on_the_timer() {
    let pair = Pair::new(Timer::new());
    let [client, server] = pair.exchange().await;
    assert!(pair.timer.stats().scheduled > 0, "the connections sleep on the timer");
    client.close(0_u8.into(), b"done");
    assert!(matches!(server.closed().await, ConnectionError::ApplicationClosed(_)));
}

/// The runtime of this test has no timer, and the clock stands still until the exchange is over.
#[test]
fn a_silent_quic_connection_ends_after_its_idle_timeout_and_not_before() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.expect("the runtime starts").block_on(async {
        let pair = Pair::new(timer.clone());
        let connections = pair.exchange().await;
        let start = clock.now();
        while connections.iter().any(|connection| connection.close_reason().is_none()) {
            clock.advance(STEP);
            tokio::task::yield_now().await;
            let is_over = clock.now() - start >= IDLE;
            assert!(is_over || connections.iter().all(|one| one.close_reason().is_none()));
        }
        for connection in connections {
            assert!(matches!(connection.close_reason(), Some(ConnectionError::TimedOut)));
        }
        pair.client.wait_idle().await;
        pair.server.wait_idle().await;
    });
    let stats = timer.stats();
    assert!(stats.expired > 0 && stats.pending == 0, "{stats:?}");
}

/// A runtime without tasks and sockets, whose timers are ready at once. Keeps their deadlines. Its
/// clock stands still.
#[derive(Debug)]
struct Spare(Mutex<Vec<Instant>>, Instant);

#[derive(Debug)]
struct Ready;

impl AsyncTimer for Ready {
    fn reset(self: Pin<&mut Self>, _: Instant) {
        unreachable!("a reset returns to the sleep");
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Runtime for Spare {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        self.0.lock().expect("no test panics").push(deadline);
        Box::pin(Ready)
    }

    fn spawn(&self, _: Pin<Box<dyn Future<Output = ()> + Send>>) {}

    fn now(&self) -> Instant {
        self.1
    }

    fn wrap_udp_socket(&self, _: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn a_timer_of_quinn_is_moved_and_the_other_runtime_replaces_one_that_is_refused() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let spare = Arc::new(Spare(Mutex::default(), Instant::now()));
    let runtime = QuinnRuntime::new(Arc::clone(&spare) as _, timer.clone());
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(runtime.now(), clock.now());

    let mut sleep = runtime.new_timer(clock.now() + IDLE);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    sleep.as_mut().reset(clock.now() + 2 * IDLE);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    assert_eq!(timer.stats().scheduled, 1, "it was moved");
    clock.advance(IDLE);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    clock.advance(IDLE);
    assert!(sleep.as_mut().poll(&mut context).is_ready());
    assert_eq!(runtime.now(), clock.now());

    let deadline = clock.now() + IDLE;
    let of_spare = [1, 2].map(|times| spare.1 + IDLE * times);
    sleep.as_mut().reset(deadline);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    assert!(spare.0.lock().expect("no test panics").is_empty());
    timer.shutdown();
    assert!(sleep.as_mut().poll(&mut context).is_ready(), "the other runtime has it");
    assert_eq!(*spare.0.lock().expect("no test panics"), of_spare[..1], "by its own clock");
    sleep.as_mut().reset(deadline + IDLE);
    assert!(sleep.as_mut().poll(&mut context).is_ready(), "the other runtime has it");
    assert_eq!(*spare.0.lock().expect("no test panics"), of_spare);
}
