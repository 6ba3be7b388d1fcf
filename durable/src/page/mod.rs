//! The page that shows a store to operators: bounded queries, a few at a time.
//!
//! Without a token it answers only to names of this machine, so that no other site can read it
//! through a name of its own (DNS rebinding).

mod guard;
mod view;

use std::{
    future::{Future, IntoFuture as _},
    io,
    net::{SocketAddr, TcpListener},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Form, Query as Parameters, State},
    http::{HeaderName, StatusCode, header},
    middleware,
    response::{AppendHeaders, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use delaywheel::Clock;
use maud::Markup;
use pollster::FutureExt as _;
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use self::view::Snapshot;
use crate::{
    error::StoreResult,
    inspect::{Overview, change},
    record::Name,
    store::{Answer, Command, Query, Store},
    time::WallTime,
};

const HOURS: usize = 24;

/// Most timeouts that are counted for one number.
const COUNTED: usize = 100_000;

const ROWS: usize = 50;

/// Requests that use the store at once. The page asks others to try again.
const READERS: usize = 4;

const TOKEN: usize = 16;

/// How long requests under way may delay the end.
const GRACE: Duration = Duration::from_secs(5);

/// A page for browsers that shows a store: counts, what is due by the hour, queues, dead timeouts,
/// workers.
///
/// It needs no script. It is read-only, unless [`allow_changes`](Self::allow_changes) says
/// otherwise. Without a [`token`](Self::token) it serves only the machine on which it runs. It
/// does not encrypt: put a proxy with TLS before it.
///
/// A program that uses a [`SqliteStore`](crate::SqliteStore) can serve the page itself, and
/// operators can then requeue its dead timeouts. With a
/// [`PostgresStore`](crate::PostgresStore), the program `delaywheel-durable page` does the same.
///
/// # Examples
///
/// ```
/// use std::{net::TcpListener, sync::Arc};
///
/// use delaywheel_durable::{SqliteStore, Page};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let page = Page::new(Arc::new(SqliteStore::in_memory())).allow_changes();
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let shutdown = async { /* such as `tokio::signal::ctrl_c()` */ };
/// page.serve(listener, shutdown).await
/// # }
/// ```
pub struct Page {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    title: String,
    allows_changes: bool,
    token: Option<String>,
    readers: Arc<Semaphore>,
}

impl Page {
    /// Creates a page that is read-only and needs no token.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let clock = store.clock();
        let readers = Arc::new(Semaphore::new(READERS));
        let title = "Durable timeouts".to_owned();
        Self { store, clock, title, allows_changes: false, token: None, readers }
    }

    /// Sets the heading, such as the name of the service.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the clock that says what is due. The default is that of the store.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Shows buttons that requeue a dead timeout, and pause and resume a queue.
    #[must_use]
    pub fn allow_changes(mut self) -> Self {
        self.allows_changes = true;
        self
    }

    /// Sets a secret without which nothing is shown: at least 16 visible characters of ASCII. A
    /// request has it as a `Bearer` token, or a browser asks for it as a password, with any name.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Serves the page until a future ends, on the `tokio` runtime of the caller, which needs its
    /// drivers. Then waits for requests under way, for 5 seconds at most. Others, such as of a
    /// client that has sent half of one, keep the store open until the client or the runtime ends.
    ///
    /// # Errors
    ///
    /// [`io::Error`]; with the kind `InvalidInput` if the token is not valid, or if there is none
    /// and the address is reached from other machines.
    pub async fn serve(
        self,
        listener: TcpListener,
        until: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        self.check(listener.local_addr()?)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (serving, ended) = oneshot::channel::<()>();
        let has_ended = async { drop(ended.await) };
        let server = axum::serve(listener, self.router()).with_graceful_shutdown(has_ended);
        let mut server = pin!(server.into_future());
        tokio::select! {
            ended = &mut server => return ended,
            () = until => drop(serving),
        }
        // A client with an open request would keep the server running.
        timeout(GRACE, server).await.unwrap_or(Ok(()))
    }

    fn check(&self, address: SocketAddr) -> io::Result<()> {
        let refuse = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        match &self.token {
            Some(token) if !guard::is_token(token) => {
                refuse("the token needs 16 visible characters of ASCII")
            }
            None if !address.ip().is_loopback() => {
                refuse("an address that other machines reach needs a token")
            }
            _ => Ok(()),
        }
    }

    fn router(self) -> Router {
        let page = Arc::new(self);
        Router::new()
            .route("/", get(show))
            .route("/requeue", post(requeue))
            .route("/pause", post(pause))
            .route("/style.css", get(style))
            .layer(DefaultBodyLimit::max(16 << 10))
            .layer(middleware::from_fn_with_state(Arc::clone(&page), guard::check))
            .layer(middleware::map_response(harden))
            .with_state(page)
    }

    /// Runs an operation of the store on a thread that may block.
    async fn with_store<R: Send + 'static>(
        self: Arc<Self>,
        run: impl FnOnce(&Self) -> StoreResult<R> + Send + 'static,
    ) -> Result<R, Response> {
        let Ok(permit) = Arc::clone(&self.readers).try_acquire_owned() else {
            let text = "The store is busy. Load the page again.";
            return Err(self.say(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let page = Arc::clone(&self);
        let result = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            run(&page)
        });
        match result.await {
            Ok(Ok(result)) => Ok(result),
            // The source may name hosts or files, which a browser must not see.
            Ok(Err(error)) => Err(self.say(StatusCode::BAD_GATEWAY, &error.to_string())),
            Err(_) => Err(self.say(StatusCode::BAD_GATEWAY, "store failed")),
        }
    }

    fn say(&self, status: StatusCode, text: &str) -> Response {
        respond(status, view::message(&self.title, text))
    }
}

opaque!(Page, store: store);

type Fields = Vec<(String, String)>;

fn field<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
}

fn respond(status: StatusCode, markup: Markup) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (status, kind, markup.into_string()).into_response()
}

/// `after` continues the list of dead timeouts.
async fn show(State(page): State<Arc<Page>>, Parameters(fields): Parameters<Fields>) -> Response {
    let after = field(&fields, "after").and_then(|cursor| {
        let (micros, id) = cursor.split_once(':')?;
        let time = WallTime::from_micros(micros.parse().ok()?).ok()?;
        Some((time, id.parse().ok()?))
    });
    let read = move |page: &Page| {
        let mut dead = page.store.list(&Query::Dead { after }, ROWS + 1).block_on()?;
        let has_more = dead.len() > ROWS;
        dead.truncate(ROWS);
        let (store, now) = (&*page.store, WallTime::now(&*page.clock));
        Ok(Snapshot {
            overview: Overview::of(store, now, HOURS, COUNTED).block_on()?,
            queues: store.overview(now, ROWS, COUNTED).block_on()?,
            dead,
            has_more,
            workers: page.store.workers(ROWS).block_on()?,
        })
    };
    let notice = field(&fields, "notice").map(str::to_owned);
    match Arc::clone(&page).with_store(read).await {
        Ok(seen) => {
            let (title, buttons) = (&page.title, page.allows_changes);
            respond(StatusCode::OK, view::page(title, &seen, buttons, notice.as_deref()))
        }
        Err(response) => response,
    }
}

async fn requeue(State(page): State<Arc<Page>>, Form(fields): Form<Fields>) -> Response {
    let Some(id) = field(&fields, "id").and_then(|id| id.parse().ok()) else {
        return page.say(StatusCode::BAD_REQUEST, "The id is not valid.");
    };
    let write = |page: &Page| {
        let now = WallTime::now(&*page.clock);
        let requeue = [Command::Requeue(id, now)];
        change(|| page.store.write(now, &requeue).block_on())
    };
    match page.with_store(write).await {
        Ok(answers) if answers == [Answer::Requeued(true)] => {
            Redirect::to("/?notice=requeued").into_response()
        }
        Ok(_) => Redirect::to("/?notice=not-dead").into_response(),
        Err(response) => response,
    }
}

async fn pause(State(page): State<Arc<Page>>, Form(fields): Form<Fields>) -> Response {
    let Some(Ok(queue)) = field(&fields, "queue").map(Name::new) else {
        return page.say(StatusCode::BAD_REQUEST, "The name is not valid.");
    };
    let notice = if field(&fields, "resume").is_some() { "resumed" } else { "paused" };
    let pause =
        move |page: &Page| change(|| page.store.pause(&queue, notice == "paused").block_on());
    match page.with_store(pause).await {
        Ok(()) => Redirect::to(&format!("/?notice={notice}")).into_response(),
        Err(response) => response,
    }
}

async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("style.css"))
}

/// Nothing is loaded from elsewhere, framed, or kept by a cache.
async fn harden(response: Response) -> impl IntoResponse {
    const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; \
        frame-ancestors 'none'; base-uri 'none'";
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Without a referrer, browsers hide the origin of a form.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (AppendHeaders(headers), response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteStore;

    fn page() -> Page {
        Page::new(Arc::new(SqliteStore::in_memory()))
    }

    #[test]
    fn other_machines_are_served_only_with_a_token() {
        let at = |address: &str| address.parse().expect("an address");
        for local in ["127.0.0.1:80", "[::1]:80"] {
            page().check(at(local)).expect("this machine");
        }
        for other in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
            let refused = page().check(at(other)).expect_err("other machines");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            page().token("0123456789abcdef").check(at(other)).expect("a token");
        }
        for token in ["", "0123456789abcde", "0123456789abcde\u{e9}", "0123456789 abcdef"] {
            page().token(token).check(at("127.0.0.1:80")).expect_err("not a token");
        }
    }

    #[test]
    fn a_number_that_has_reached_the_bound_has_a_plus() {
        assert_eq!([999, 1_000].map(|number| view::count(number, 1_000)), ["999", "1,000+"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_sent_half_a_request_delays_the_end_only_for_a_moment() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(page().serve(listener, async { drop(stopped.await) }));
        let send = |request: &'static str| async move {
            let stream = tokio::net::TcpStream::connect(address).await.expect("connect");
            stream.writable().await.expect("open");
            assert_eq!(stream.try_write(request.as_bytes()).expect("send"), request.len());
            stream
        };
        let _half = send("GET / HTTP/1.1\r\nHost: local").await;
        let whole = send("GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        whole.readable().await.expect("an answer, so the first one is open");
        drop(stop);
        let served = tokio::time::timeout(2 * GRACE, served).await.expect("it ends");
        served.expect("no panic").expect("serve");
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_do_not_wait() {
        let page = Arc::new(page());
        let all = Arc::clone(&page.readers).try_acquire_many_owned(4).expect("all are free");
        let response = show(State(Arc::clone(&page)), Parameters(Vec::new())).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(all);
        let response = show(State(page), Parameters(Vec::new())).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
}
