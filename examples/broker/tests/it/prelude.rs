//! Brokers, clients and requests for the tests.

use std::{
    future::Future,
    net::SocketAddr,
    time::{Duration, Instant},
};

use delaywheel::ManualClock;
pub(crate) use delaywheel_broker::{
    broker::{Config, Server, Stats},
    client::{self, Client, record_batch},
    prelude::*,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Far too long for anything that should happen at once, on the busiest machine.
pub(crate) const FAR_TOO_LONG: Duration = Duration::from_secs(60);

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const HOUR_MS: i32 = 3_600_000;

/// The topic of the tests, which has four partitions.
pub(crate) const TOPIC: &str = "topic";

/// A broker on a clock that the test moves, with a follower that takes 10 ms.
pub(crate) async fn virtual_broker() -> (Server, ManualClock) {
    start_virtual(Config { no_follower: false, ..config() }).await
}

/// The same, but its follower is stopped.
pub(crate) async fn stopped_broker() -> (Server, ManualClock) {
    start_virtual(Config { no_follower: false, stop_follower: true, ..config() }).await
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
        no_follower: true,
        follower_delay: 10 * MS,
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
    fetches.0.delayed + produces.0.delayed + groups.requests.0.delayed
}

/// Returns the result of something that must not hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    delaywheel::Timer::new().timeout(FAR_TOO_LONG, future).await.expect("it hangs")
}

/// A connection whose failures fail the test.
pub(crate) struct Raw(Client);

impl Raw {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self::connect_to(server.address()).await
    }

    pub(crate) async fn connect_to(address: SocketAddr) -> Self {
        Self(Client::connect(address).await.unwrap())
    }

    /// Connects, and sends a request. Returns when one more request waits than before.
    pub(crate) async fn waiting<R: Request>(server: &Server, request: &R) -> Self {
        let others = waiting(server);
        let mut client = Self::connect(server).await;
        client.send(request).await;
        until("the wait", || waiting(server) == others + 1).await;
        client
    }

    pub(crate) async fn send<R: Request>(&mut self, request: &R) {
        self.0.send(version::<R>(), request).await.unwrap();
    }

    /// Sends bytes. The broker may have closed the connection.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.0.stream().write_all(bytes).await;
    }

    pub(crate) async fn receive<R: Request>(&mut self) -> R::Response {
        self.receive_in::<R>(version::<R>()).await.1
    }

    /// Receives a response of this version, with its correlation id.
    pub(crate) async fn receive_in<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        soon(self.0.receive::<R>(version)).await.unwrap()
    }

    pub(crate) async fn call<R: Request>(&mut self, request: &R) -> R::Response {
        self.call_in(version::<R>(), request).await
    }

    /// Sends a request in this version, and receives its response.
    pub(crate) async fn call_in<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        soon(self.0.call(version, request)).await.unwrap()
    }

    /// Appends a batch of so many records to a partition.
    pub(crate) async fn produce(&mut self, partition: i32, acks: i16, count: i64) -> i16 {
        let response = self.call(&produce(partition, acks, count)).await;
        outcome(&response).error_code
    }

    /// Receives bytes until the broker closes the connection.
    pub(crate) async fn receive_rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // The system resets a connection that was closed with unread bytes.
        let _ = soon(self.0.stream().read_to_end(&mut rest)).await;
        rest
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn finish(&mut self) {
        let _ = self.0.stream().shutdown().await;
    }
}

/// The version in which the tests send a kind of request, unless they name another.
fn version<R: Request>() -> i16 {
    match ApiKey::try_from(R::KEY) {
        Ok(ApiKey::Fetch) => 11,
        Ok(ApiKey::Produce | ApiKey::Metadata) => 8,
        _ => 3,
    }
}

/// Sends a request in every version on offer. All error codes of each response must be `code`.
pub(crate) async fn in_every_version<R: Request>(
    client: &mut Raw,
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

/// A text of the protocol.
pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(crate) fn name(name: &str) -> TopicName {
    TopicName(text(name))
}

pub(crate) fn frame<R: Request>(correlation_id: i32, version: i16, request: &R) -> BytesMut {
    client::frame(correlation_id, version, request).unwrap()
}

/// A request for the metadata of some topics.
pub(crate) fn metadata(topics: &[&str], creates: bool) -> MetadataRequest {
    let topic = |topic: &&str| MetadataRequestTopic::default().with_name(Some(name(topic)));
    MetadataRequest::default()
        .with_topics(Some(topics.iter().map(topic).collect()))
        .with_allow_auto_topic_creation(creates)
}

/// A fetch of some partitions of the topic, from their beginning.
pub(crate) fn fetch(partitions: &[i32], min_bytes: usize, max_wait_ms: i32) -> FetchRequest {
    let partitions = partitions.iter().map(|&partition| {
        FetchPartition::default().with_partition(partition).with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default().with_topic(name(TOPIC));
    FetchRequest::default()
        .with_min_bytes(i32::try_from(min_bytes).unwrap())
        .with_max_bytes(1 << 20)
        .with_max_wait_ms(max_wait_ms)
        .with_topics(vec![topic.with_partitions(partitions.collect())])
}

/// A request to append a batch of this many records to a partition, within a second.
pub(crate) fn produce(partition: i32, acks: i16, count: i64) -> ProduceRequest {
    produce_all(&[partition], acks, count)
}

pub(crate) fn produce_all(partitions: &[i32], acks: i16, count: i64) -> ProduceRequest {
    let partitions = partitions.iter().map(|&partition| {
        PartitionProduceData::default().with_index(partition).with_records(Some(batch(count)))
    });
    let topic = TopicProduceData::default().with_name(name(TOPIC));
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(1_000)
        .with_topic_data(vec![topic.with_partition_data(partitions.collect())])
}

/// A request to append these records to partition 0.
pub(crate) fn produce_records(acks: i16, records: Bytes) -> ProduceRequest {
    let mut request = produce(0, acks, 1);
    request.topic_data[0].partition_data[0].records = Some(records);
    request
}

pub(crate) fn batch(count: i64) -> Bytes {
    record_batch(-1, 0..i32::try_from(count).unwrap(), b"value")
}

/// The partitions of a response.
pub(crate) fn data(response: &FetchResponse) -> Vec<&PartitionData> {
    assert_eq!(response.error_code, 0);
    response.responses.iter().flat_map(|topic| &topic.partitions).collect()
}

/// Bytes of records in a response, by partition.
pub(crate) fn lengths(response: &FetchResponse) -> Vec<usize> {
    let length = |data: &PartitionData| data.records.as_ref().map_or(0, Bytes::len);
    data(response).into_iter().map(length).collect()
}

/// Error codes in a response, by partition.
pub(crate) fn codes(response: &FetchResponse) -> Vec<i16> {
    data(response).into_iter().map(|data| data.error_code).collect()
}

/// The one partition of a response.
pub(crate) fn outcome(response: &ProduceResponse) -> &PartitionProduceResponse {
    let [topic] = &response.responses[..] else { panic!("{response:?}") };
    let [partition] = &topic.partition_responses[..] else { panic!("{response:?}") };
    partition
}
