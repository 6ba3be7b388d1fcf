//! What the tests share: a broker, a client that sends whatever it is told, and patience.

use std::{
    future::Future,
    net::SocketAddr,
    ops::{Range, RangeInclusive},
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use delaywheel::ManualClock;
use delaywheel_broker::broker::{Config, Server};
use kafka_protocol::{
    messages::{
        ApiKey, ApiVersionsRequest, FetchRequest, FetchResponse, MetadataRequest, ProduceRequest,
        ProduceResponse, RequestHeader, ResponseHeader, TopicName,
        fetch_request::{FetchPartition, FetchTopic},
        fetch_response::PartitionData,
        metadata_request::MetadataRequestTopic,
        produce_request::{PartitionProduceData, TopicProduceData},
        produce_response::PartitionProduceResponse,
    },
    protocol::{Decodable, Encodable, Request, StrBytes},
    records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// What is too long for anything that is to happen at once, on the busiest machine.
pub(crate) const FAR_TOO_LONG: Duration = Duration::from_secs(60);

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const HOUR_MS: i32 = 3_600_000;

/// The topic of the tests, which has four partitions.
pub(crate) const TOPIC: &str = "topic";

/// The version in which the tests speak of each kind of request.
pub(crate) const FETCH_VERSION: i16 = 11;
pub(crate) const PRODUCE_VERSION: i16 = 8;
pub(crate) const METADATA_VERSION: i16 = 8;

/// A broker on a clock that the test moves, with a follower that takes 10 ms.
pub(crate) async fn virtual_broker() -> (Server, ManualClock) {
    let clock = ManualClock::new();
    let follower = Some(Duration::from_millis(10));
    let config = Config { follower, clock: Some(clock.clone()), ..config() };
    (start(config).await, clock)
}

/// A broker on the clock of the system, without a follower.
pub(crate) async fn system_broker() -> Server {
    start(config()).await
}

/// Settings for tests: waits may be long.
pub(crate) fn config() -> Config {
    Config { max_wait: 2 * HOUR, ..Config::default() }
}

/// Starts a broker, and makes the topic.
pub(crate) async fn start(config: Config) -> Server {
    let server = Server::start("127.0.0.1:0", config).await.unwrap();
    let topic = MetadataRequestTopic::default().with_name(Some(name(TOPIC)));
    let request = MetadataRequest::default().with_topics(Some(vec![topic]));
    let response = Raw::connect(&server).await.call(METADATA_VERSION, &request).await;
    assert_eq!(response.topics[0].partitions.len(), 4);
    server
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < FAR_TOO_LONG, "{what} did not come about");
        tokio::task::yield_now().await;
    }
}

/// Waits until so many fetches wait.
pub(crate) async fn until_fetches_wait(server: &Server, count: u64) {
    until("fetches waiting", || server.broker().fetches().0.delayed == count).await;
}

/// Waits until so many produce requests wait.
pub(crate) async fn until_produces_wait(server: &Server, count: u64) {
    until("produce requests waiting", || server.broker().produces().0.delayed == count).await;
}

/// What comes of something that must not hang. Its limit is no part of what is tested.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    let timer = delaywheel::Timer::new();
    let (late, is_late) = tokio::sync::oneshot::channel();
    let timeout = timer.schedule(FAR_TOO_LONG, || late.send(()).unwrap_or_default()).unwrap();
    let _timeout = timeout.cancel_on_drop();
    tokio::select! {
        result = future => result,
        _ = is_late => panic!("nothing came of it"),
    }
}

/// A connection on which frames are sent as they are.
pub(crate) struct Raw {
    stream: TcpStream,
    sent: i32,
}

impl Raw {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self::connect_to(server.address()).await
    }

    pub(crate) async fn connect_to(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), sent: 0 }
    }

    /// Sends a request, and returns its correlation id.
    pub(crate) async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.sent += 1;
        let frame = frame(self.sent, version, request);
        self.stream.write_all(&frame).await.unwrap();
        self.sent
    }

    /// Sends bytes.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        // A connection that has been closed meanwhile is what some tests are about.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Receives a response, with its correlation id.
    pub(crate) async fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        let mut frame = soon(self.receive_frame()).await.expect("an answer was due");
        let header_version = ApiKey::try_from(R::KEY).unwrap().response_header_version(version);
        let header = ResponseHeader::decode(&mut frame, header_version).unwrap();
        let response = R::Response::decode(&mut frame, version).unwrap();
        assert!(frame.is_empty(), "{} bytes too many", frame.len());
        (header.correlation_id, response)
    }

    /// Sends a request and receives its response.
    pub(crate) async fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let sent = self.send(version, request).await;
        let (received, response) = self.receive::<R>(version).await;
        assert_eq!(received, sent);
        response
    }

    pub(crate) async fn fetch(&mut self, request: &FetchRequest) -> FetchResponse {
        self.call(FETCH_VERSION, request).await
    }

    pub(crate) async fn receive_fetch(&mut self) -> FetchResponse {
        self.receive::<FetchRequest>(FETCH_VERSION).await.1
    }

    /// Appends a batch of so many records to a partition.
    pub(crate) async fn produce(&mut self, partition: i32, acks: i16, count: i64) -> i16 {
        let response = self.call(PRODUCE_VERSION, &produce(partition, acks, count)).await;
        outcome(&response).error_code
    }

    /// Receives whatever comes until the broker closes the connection.
    pub(crate) async fn receive_rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // It may be closed the hard way, if there was something in it that was not read.
        let _ = soon(self.stream.read_to_end(&mut rest)).await;
        rest
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    async fn receive_frame(&mut self) -> Option<Bytes> {
        let length = self.stream.read_i32().await.ok()?;
        let mut frame = BytesMut::zeroed(usize::try_from(length).unwrap());
        self.stream.read_exact(&mut frame).await.ok()?;
        Some(frame.freeze())
    }
}

/// The versions of a request that the broker reads, of those that it advertises.
async fn versions<R: Request>(client: &mut Raw) -> RangeInclusive<i16> {
    let offered = client.call(3, &ApiVersionsRequest::default()).await.api_keys;
    let offered = offered.into_iter().find(|offered| offered.api_key == R::KEY).unwrap();
    // Like Kafka, the broker advertises versions of Produce that it does not read.
    let first = if R::KEY == ApiKey::Produce as i16 { 3 } else { offered.min_version };
    first..=offered.max_version
}

/// Sends a request in every version, and checks each answer.
pub(crate) async fn in_every_version<R: Request>(
    client: &mut Raw,
    request: impl Fn(i16) -> R,
    check: impl Fn(i16, R::Response),
) {
    for version in versions::<R>(client).await {
        let response = client.call(version, &request(version)).await;
        check(version, response);
    }
}

/// A text of the protocol.
pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A request with its header and length.
pub(crate) fn frame<R: Request>(correlation_id: i32, version: i16, request: &R) -> BytesMut {
    let key = ApiKey::try_from(R::KEY).unwrap();
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .encode(&mut frame, key.request_header_version(version))
        .unwrap();
    request.encode(&mut frame, version).unwrap();
    let length = i32::try_from(frame.len() - 4).unwrap();
    (&mut frame[..4]).put_i32(length);
    frame
}

pub(crate) fn name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// A fetch of some partitions of the topic, from their beginning.
pub(crate) fn fetch(partitions: &[i32], min_bytes: i32, max_wait_ms: i32) -> FetchRequest {
    let partitions = partitions.iter().map(|&partition| {
        FetchPartition::default().with_partition(partition).with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default().with_topic(name(TOPIC));
    FetchRequest::default()
        .with_min_bytes(min_bytes)
        .with_max_bytes(1 << 20)
        .with_max_wait_ms(max_wait_ms)
        .with_topics(vec![topic.with_partitions(partitions.collect())])
}

/// A request to append a batch of so many records to a partition, within a second.
pub(crate) fn produce(partition: i32, acks: i16, count: i64) -> ProduceRequest {
    produce_all(&[partition], acks, count)
}

/// The same for several partitions.
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

/// A batch of so many records.
pub(crate) fn batch(count: i64) -> Bytes {
    record_batch(-1, 0..i32::try_from(count).unwrap(), &Bytes::from_static(b"value"))
}

/// A batch of the records with these sequence numbers; the id of a producer that is not idempotent
/// is -1.
pub(crate) fn record_batch(producer_id: i64, numbers: Range<i32>, value: &Bytes) -> Bytes {
    let record = |number: i32| Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id,
        producer_epoch: if producer_id < 0 { -1 } else { 0 },
        timestamp_type: TimestampType::Creation,
        offset: number.into(),
        sequence: number,
        timestamp: 0,
        key: None,
        value: Some(value.clone()),
        headers: [].into_iter().collect(),
    };
    let records: Vec<_> = numbers.map(record).collect();
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
    bytes.freeze()
}

/// Bytes of a batch of so many records.
pub(crate) fn batch_bytes(count: i64) -> i32 {
    i32::try_from(batch(count).len()).unwrap()
}

/// The partitions of a response.
pub(crate) fn data(response: &FetchResponse) -> Vec<&PartitionData> {
    assert_eq!(response.error_code, 0);
    response.responses.iter().flat_map(|topic| &topic.partitions).collect()
}

/// Bytes of records in a response, by partition.
pub(crate) fn lengths(response: &FetchResponse) -> Vec<usize> {
    let length = |data: &PartitionData| data.records.as_ref().map_or(0, Buf::remaining);
    data(response).into_iter().map(length).collect()
}

/// The one partition of a response.
pub(crate) fn outcome(response: &ProduceResponse) -> &PartitionProduceResponse {
    assert_eq!((response.responses.len(), response.responses[0].partition_responses.len()), (1, 1));
    &response.responses[0].partition_responses[0]
}
