//! A deadline that travels over HTTP, through three servers on loopback.
//! `cargo run -p delaywheel-async-tests --example deadlines`.
//!
//! The client has five seconds for a request. Each server reads the header `grpc-timeout`, works,
//! and sends the remaining time to the next server. The second request has less time than the
//! servers need. Each server stops at the deadline, so none works for a client that has left.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use delaywheel::{
    Timer,
    future::TimeoutError,
    time::{Deadline, format_grpc_timeout, parse_grpc_timeout},
};
use http_body_util::BodyExt;
use hyper::{
    Request, Response, StatusCode, body::Incoming, client, header::HOST, server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type BoxError = Box<dyn Error + Send + Sync>;

const HEADER: &str = "grpc-timeout";
/// How long a server works before it asks the next one, or answers.
const WORK: Duration = Duration::from_millis(20);

/// A server, and the one that it asks.
#[derive(Clone)]
struct Hop {
    timer: Timer,
    /// The longest time limit that this server passes on.
    limit: Duration,
    next: Option<SocketAddr>,
    /// The remaining time of each request when it arrived at a server.
    left: Arc<Mutex<Vec<Duration>>>,
}

impl Hop {
    async fn serve(self, listener: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            let hop = self.clone();
            let answer = service_fn(move |request| hop.clone().answer(request));
            let builder = server::conn::http1::Builder::new();
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), answer));
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<String>, BoxError> {
        let deadline = match request.headers().get(HEADER) {
            Some(header) => Deadline::after(parse_grpc_timeout(header.to_str()?)?),
            None => Deadline::NEVER,
        };
        self.left.lock().expect("no thread panics").push(deadline.remaining());
        let answer = async {
            self.timer.sleep(WORK).await?;
            let Some(next) = self.next else { return Ok((StatusCode::OK, "42".into())) };
            ask(next, deadline.min(Deadline::after(self.limit))).await
        };
        let (status, text) = match deadline.timeout(&self.timer, answer).await {
            Ok(answer) => answer?,
            Err(TimeoutError::Elapsed) => (StatusCode::GATEWAY_TIMEOUT, "too late".into()),
            Err(error) => return Err(error.into()),
        };
        Ok(Response::builder().status(status).body(text)?)
    }
}

/// Asks a server, which gets the remaining time in a header.
async fn ask(server: SocketAddr, deadline: Deadline) -> Result<(StatusCode, String), BoxError> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/")
        .header(HOST, server.to_string())
        .header(HEADER, format_grpc_timeout(deadline.remaining()))
        .body(String::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8(body.into())?))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let (timer, left) = (Timer::new(), Arc::new(Mutex::new(Vec::new())));
    let mut next = None;
    // From the last server to the first. The second gives the last two seconds at most.
    for limit in [0, 2, 60].map(Duration::from_secs) {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let hop = Hop { timer: timer.clone(), limit, next, left: Arc::clone(&left) };
        next = Some(listener.local_addr()?);
        tokio::spawn(hop.serve(listener));
    }
    let front = next.ok_or("no server")?;

    let deadline = Deadline::after(Duration::from_secs(5));
    let answer = deadline.timeout(&timer, ask(front, deadline)).await??;
    let hops = std::mem::take(&mut *left.lock().expect("no thread panics"));
    println!("{answer:?}; the servers had {hops:?}");
    assert_eq!(answer, (StatusCode::OK, "42".into()));
    assert!(hops[0] <= Duration::from_secs(5) && hops[1] + WORK <= hops[0]);
    assert!(hops[2] <= Duration::from_secs(2), "the second server has a limit of its own");

    // Two servers need their whole time before they ask the third.
    let deadline = Deadline::after(WORK * 3 / 2);
    let answer = deadline.timeout(&timer, ask(front, deadline)).await;
    println!("{answer:?}; the servers had {:?}", left.lock().expect("no thread panics"));
    assert!(!matches!(answer, Ok(Ok((StatusCode::OK, _)))), "it came too late");
    assert!(left.lock().expect("no thread panics").len() < 3, "the third was not asked");
    Ok(())
}
