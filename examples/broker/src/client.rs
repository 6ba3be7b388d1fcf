//! Clients and requests, for the tests and the load.
#![expect(clippy::must_use_candidate, reason = "those of tests are used")]

use std::{net::SocketAddr, ops::Range, sync::LazyLock, time::Duration};

use delaywheel::Timer;
use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::prelude::*;

/// Far too long for anything that should happen at once, on the busiest machine.
pub const FAR_TOO_LONG: Duration = Duration::from_secs(60);

/// The topic of the tests and of the load.
pub const TOPIC: &str = "topic";

/// Returns the result of something that must not hang.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    static TIMER: LazyLock<Timer> = LazyLock::new(Timer::new);
    TIMER.timeout(FAR_TOO_LONG, future).await.expect("it hangs")
}

/// A connection whose failures fail the test or the load.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    sent: i32,
}

impl Client {
    pub async fn connect(to: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(to).await.unwrap(), sent: 0 }
    }

    pub async fn send<R: Request>(&mut self, request: &R) {
        self.send_in(version::<R>(), request).await;
    }

    async fn send_in<R: Request>(&mut self, version: i16, request: &R) {
        self.sent += 1;
        self.stream.write_all(&frame(self.sent, version, request)).await.unwrap();
    }

    /// Sends bytes. The broker may have closed the connection.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    pub async fn receive<R: Request>(&mut self) -> R::Response {
        self.receive_in::<R>(version::<R>()).await.1
    }

    /// Receives a response of this version, with its correlation id.
    pub async fn receive_in<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        let frame = soon(async {
            let length = self.stream.read_i32().await.unwrap();
            let mut frame = BytesMut::zeroed(usize::try_from(length).unwrap());
            self.stream.read_exact(&mut frame).await.unwrap();
            frame
        });
        let mut frame = frame.await.freeze();
        let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version));
        let response = R::Response::decode(&mut frame, version).unwrap();
        assert!(frame.is_empty(), "{} bytes too many", frame.len());
        (header.unwrap().correlation_id, response)
    }

    pub async fn call<R: Request>(&mut self, request: &R) -> R::Response {
        self.call_in(version::<R>(), request).await
    }

    /// Sends a request in this version, and receives its response.
    pub async fn call_in<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.send_in(version, request).await;
        let (received, response) = self.receive_in::<R>(version).await;
        assert_eq!(received, self.sent, "the response to another request");
        response
    }

    /// Appends a batch of so many records to a partition.
    pub async fn produce(&mut self, partition: i32, acks: i16, count: i64) -> i16 {
        let response = self.call(&produce(partition, acks, count)).await;
        outcome(&response).error_code
    }

    /// Receives bytes until the broker closes the connection.
    pub async fn receive_rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // The system resets a connection that was closed with unread bytes.
        let _ = soon(self.stream.read_to_end(&mut rest)).await;
        rest
    }

    /// Says that nothing more will be sent.
    pub async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }
}

/// The version in which clients send a kind of request, unless they name another.
fn version<R: Request>() -> i16 {
    match ApiKey::try_from(R::KEY) {
        Ok(ApiKey::Fetch) => 11,
        Ok(ApiKey::Produce | ApiKey::Metadata) => 8,
        _ => 3,
    }
}

/// A text of the protocol.
pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn name(name: &str) -> TopicName {
    TopicName(text(name))
}

pub fn frame<R: Request>(correlation_id: i32, version: i16, request: &R) -> BytesMut {
    let mut frame = BytesMut::zeroed(4);
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .encode(&mut frame, R::header_version(version))
        .unwrap();
    request.encode(&mut frame, version).unwrap();
    let length = u32::try_from(frame.len() - 4).unwrap();
    (&mut frame[..4]).put_u32(length);
    frame
}

/// A request for the metadata of some topics.
pub fn metadata(topics: &[&str], creates: bool) -> MetadataRequest {
    let topic = |topic: &&str| MetadataRequestTopic::default().with_name(Some(name(topic)));
    MetadataRequest::default()
        .with_topics(Some(topics.iter().map(topic).collect()))
        .with_allow_auto_topic_creation(creates)
}

/// A fetch of some partitions of the topic, from their beginning.
pub fn fetch(partitions: &[i32], min_bytes: usize, max_wait_ms: i32) -> FetchRequest {
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
pub fn produce(partition: i32, acks: i16, count: i64) -> ProduceRequest {
    produce_all(&[partition], acks, count)
}

pub fn produce_all(partitions: &[i32], acks: i16, count: i64) -> ProduceRequest {
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
pub fn produce_records(acks: i16, records: Bytes) -> ProduceRequest {
    let mut request = produce(0, acks, 1);
    request.topic_data[0].partition_data[0].records = Some(records);
    request
}

/// A batch of this many records. The record at index i has timestamp i.
pub fn batch(count: i64) -> Bytes {
    record_batch(-1, 0..i32::try_from(count).unwrap(), b"value")
}

/// The partitions of a response.
pub fn data(response: &FetchResponse) -> Vec<&PartitionData> {
    assert_eq!(response.error_code, 0);
    response.responses.iter().flat_map(|topic| &topic.partitions).collect()
}

/// Bytes of records in a response, by partition.
pub fn lengths(response: &FetchResponse) -> Vec<usize> {
    let length = |data: &PartitionData| data.records.as_ref().map_or(0, Bytes::len);
    data(response).into_iter().map(length).collect()
}

/// Error codes in a response, by partition.
pub fn codes(response: &FetchResponse) -> Vec<i16> {
    data(response).into_iter().map(|data| data.error_code).collect()
}

/// The one partition of a response.
pub fn outcome(response: &ProduceResponse) -> &PartitionProduceResponse {
    let [topic] = &response.responses[..] else { panic!("{response:?}") };
    let [partition] = &topic.partition_responses[..] else { panic!("{response:?}") };
    partition
}

pub fn group() -> GroupId {
    GroupId(text("group"))
}

pub fn join(member: &StrBytes) -> JoinGroupRequest {
    let protocol =
        JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(Bytes::new());
    JoinGroupRequest::default()
        .with_group_id(group())
        .with_member_id(member.clone())
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(60_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

pub fn sync(member: &StrBytes, generation: i32) -> SyncGroupRequest {
    let request = SyncGroupRequest::default().with_group_id(group());
    request.with_member_id(member.clone()).with_generation_id(generation)
}

/// Returns a batch of the records with these sequence numbers, which are their timestamps as well.
/// The producer is idempotent, in its epoch 0, unless it is -1.
pub fn record_batch(producer: i64, numbers: Range<i32>, value: &[u8]) -> Bytes {
    let value = Bytes::copy_from_slice(value);
    let record = |number: i32| Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: producer,
        producer_epoch: if producer < 0 { -1 } else { 0 },
        timestamp_type: TimestampType::Creation,
        offset: number.into(),
        sequence: number,
        timestamp: number.into(),
        key: None,
        value: Some(value.clone()),
        headers: [].into_iter().collect(),
    };
    let records: Vec<_> = numbers.map(record).collect();
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut bytes, &records, &options).expect("the records are valid");
    bytes.freeze()
}
