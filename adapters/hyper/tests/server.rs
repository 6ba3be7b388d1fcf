//! A real HTTP server of the crate `hyper`, whose timeouts are ours.

use std::{
    convert::Infallible,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delaywheel::{Clock, ManualClock, Timer};
use delaywheel_hyper::HyperTimer;
use hyper::{Request, Response, body::Incoming, rt, server::conn::http1, service::service_fn};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Limit of the time for the head of a request of the slow client.
const LIMIT: Duration = Duration::from_millis(50);

/// That of the quick client, which no load of the machine uses up.
const GENEROUS: Duration = Duration::from_secs(3600);

/// A stream of tokio, for hyper.
struct Io(tokio::net::TcpStream);

impl rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let room = bytes.len().min(cursor.remaining());
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        cursor.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl rt::Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn answer(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(String::from("hello")))
}

/// Serves a connection for each limit, one after the other, on a runtime without a timer of its
/// own. Returns whether each ended by the limit.
fn serve(timer: Timer, limits: [Duration; 2]) -> (SocketAddr, JoinHandle<Vec<bool>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let server = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("the runtime starts").block_on(async {
            let mut results = Vec::new();
            for limit in limits {
                let (stream, _) = listener.accept().expect("a client connects");
                stream.set_nonblocking(true).expect("the stream is open");
                let stream = tokio::net::TcpStream::from_std(stream).expect("the stream is open");
                let connection = http1::Builder::new()
                    .timer(HyperTimer::new(timer.clone()))
                    .header_read_timeout(limit)
                    .serve_connection(Io(stream), service_fn(answer));
                results.push(connection.await.is_err_and(|error| error.is_timeout()));
            }
            results
        })
    });
    (address, server)
}

#[test]
fn a_server_closes_the_connection_of_a_slow_client_and_not_before_the_limit() {
    let timer = Timer::new();
    let (address, server) = serve(timer.clone(), [GENEROUS, LIMIT]);

    let mut quick = TcpStream::connect(address).expect("the server listens");
    let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    quick.write_all(request).expect("the server reads");
    let mut answer = String::new();
    quick.read_to_string(&mut answer).expect("the server answers");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("hello"), "{answer}");

    let start = Instant::now();
    let mut slow = TcpStream::connect(address).expect("the server listens");
    slow.write_all(b"GET / HTTP/1.1\r\nHost: te").expect("the server reads");
    let mut left = Vec::new();
    let _ = slow.read_to_end(&mut left);
    assert!(start.elapsed() >= LIMIT, "closed after {:?}", start.elapsed());
    assert_eq!(server.join().expect("the server does not panic"), [false, true]);
    let stats = timer.stats();
    assert_eq!((stats.pending, stats.expired), (0, 1));
}

/// A connection whose client sends nothing.
struct Silent;

impl rt::Read for Silent {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl rt::Write for Silent {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn a_limit_ends_by_the_clock_of_the_timer() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    clock.advance(GENEROUS);
    let connection = http1::Builder::new()
        .timer(HyperTimer::new(timer))
        .header_read_timeout(LIMIT)
        .serve_connection(Silent, service_fn(answer));
    let mut connection = pin!(connection);
    let mut context = Context::from_waker(Waker::noop());
    assert!(connection.as_mut().poll(&mut context).is_pending());
    clock.advance(LIMIT.mul_f64(0.9));
    assert!(connection.as_mut().poll(&mut context).is_pending());
    clock.advance(LIMIT.mul_f64(0.1));
    let Poll::Ready(Err(error)) = connection.as_mut().poll(&mut context) else {
        panic!("the limit is over");
    };
    assert!(error.is_timeout());
}

/// A sleep of another timer, which never ends.
struct Never;

impl Future for Never {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl rt::Sleep for Never {}

#[test]
fn a_reset_moves_a_sleep_of_hyper_and_one_of_another_timer_is_replaced() {
    use hyper::rt::Timer as _;
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the settings are valid");
    let adapter = HyperTimer::new(timer.clone());
    let mut context = Context::from_waker(Waker::noop());
    let mut sleep = adapter.sleep(LIMIT);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    adapter.reset(&mut sleep, clock.now() + 2 * LIMIT);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    assert_eq!(timer.stats().scheduled, 1, "it was moved");
    clock.advance(LIMIT);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    clock.advance(LIMIT);
    assert!(sleep.as_mut().poll(&mut context).is_ready());
    let mut other: Pin<Box<dyn rt::Sleep>> = Box::pin(Never);
    adapter.reset(&mut other, clock.now() + LIMIT);
    assert!(other.as_mut().poll(&mut context).is_pending());
    clock.advance(LIMIT);
    assert!(other.as_mut().poll(&mut context).is_ready());
}

/// Otherwise, a task that only sleeps, such as that of a connection pool, blocks its runtime.
#[test]
fn another_task_runs_before_a_sleep_ends_that_the_timer_refuses() {
    use hyper::rt::Timer as _;
    let timer = Timer::new();
    timer.shutdown();
    let adapter = HyperTimer::new(timer);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("the runtime starts").block_on(async {
        let mut sleep = adapter.sleep(LIMIT);
        for _ in 0..3 {
            let other = tokio::spawn(async {});
            sleep.as_mut().await;
            assert!(other.is_finished());
            adapter.reset(&mut sleep, adapter.now() + LIMIT);
        }
    });
}
