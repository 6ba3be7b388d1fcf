//! Brokers, clients and requests for the tests.

use std::time::{Duration, Instant};

use delaywheel::ManualClock;
pub(crate) use delaywheel_broker::{
    broker::{Config, Server, Stats},
    client::*,
    prelude::*,
};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const HOUR_MS: i32 = 3_600_000;

/// A broker on a clock that the test moves, with a follower that takes this long.
pub(crate) async fn virtual_broker(follower_delay: Duration) -> (Server, ManualClock) {
    start_virtual(Config { follower_delay: Some(follower_delay), ..config() }).await
}

pub(crate) async fn start_virtual(config: Config) -> (Server, ManualClock) {
    let clock = ManualClock::new();
    (start(Config { clock: Some(clock.clone()), ..config }).await, clock)
}

/// A broker on the clock of the system, without a follower.
pub(crate) async fn system_broker() -> Server {
    start(config()).await
}

/// Settings for tests: waits may be long, and the topic exists.
pub(crate) fn config() -> Config {
    Config {
        topics: vec![(TOPIC.to_owned(), 4)],
        max_wait: 2 * HOUR,
        print: |_| (),
        ..Config::default()
    }
}

pub(crate) async fn start(config: Config) -> Server {
    Server::start("127.0.0.1:0", config).await.unwrap()
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < FAR_TOO_LONG, "{what} did not happen");
        tokio::task::yield_now().await;
    }
}

/// The number of requests that wait, of all kinds.
pub(crate) fn waiting(server: &Server) -> u64 {
    let Stats { fetches, produces, groups, .. } = server.broker().stats();
    fetches.delayed + produces.delayed + groups.requests.delayed
}

/// Connects, and sends a request. Returns when one more request waits than before.
pub(crate) async fn waiting_client<R: Request>(server: &Server, request: &R) -> Client {
    let others = waiting(server);
    let mut client = Client::connect(server.address()).await;
    client.send(request).await;
    until("the wait", || waiting(server) == others + 1).await;
    client
}

/// Sends a request in every version on offer. All error codes of each response must be `code`.
pub(crate) async fn in_every_version<R: Request>(
    client: &mut Client,
    request: impl Fn(i16) -> R,
    code: Option<ResponseError>,
) where
    R::Response: std::fmt::Debug,
{
    let code = code.map_or(0, |error| error.code());
    let offered = client.call(&ApiVersionsRequest::default()).await.api_keys;
    let offered = offered.into_iter().find(|offered| offered.api_key == R::KEY).unwrap();
    // Like Kafka, the broker offers versions of Produce that it does not read.
    let first = if R::KEY == ApiKey::Produce as i16 { 3 } else { offered.min_version };
    for version in first..=offered.max_version {
        let response = format!("{:?}", client.call_in(version, &request(version)).await);
        let codes = response.split("error_code: ").skip(1);
        let is_expected = |text: &str| text.starts_with(&format!("{code},"));
        assert!(codes.clone().all(is_expected), "version {version}: {response}");
    }
}
