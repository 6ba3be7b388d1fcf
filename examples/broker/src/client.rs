//! A client of one connection, which sends any request. The load and the tests use it.
#![expect(clippy::missing_errors_doc, reason = "errors come from the system or the codec")]

use std::{io, net::SocketAddr, ops::Range};

use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::prelude::*;

/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 4;

/// A connection to a broker.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    sent: i32,
}

impl Client {
    /// Connects to a broker.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: TcpStream::connect(address).await?, sent: 0 })
    }

    /// Returns the connection itself.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends a request, and returns its correlation id.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> io::Result<i32> {
        self.sent += 1;
        let frame = frame(self.sent, version, request)?;
        self.stream.write_all(&frame).await?;
        Ok(self.sent)
    }

    /// Receives the response to the oldest request, with its correlation id.
    pub async fn receive<R: Request>(&mut self, version: i16) -> io::Result<(i32, R::Response)> {
        let length = usize::try_from(self.stream.read_i32().await?).map_err(io::Error::other)?;
        let mut frame = BytesMut::zeroed(length);
        self.stream.read_exact(&mut frame).await?;
        let mut frame = frame.freeze();
        let header_version = R::Response::header_version(version);
        let header =
            ResponseHeader::decode(&mut frame, header_version).map_err(io::Error::other)?;
        let response = R::Response::decode(&mut frame, version).map_err(io::Error::other)?;
        if !frame.is_empty() {
            return Err(io::Error::other(format!("{} bytes too many", frame.len())));
        }
        Ok((header.correlation_id, response))
    }

    /// Sends a request and receives its response.
    pub async fn call<R: Request>(&mut self, version: i16, request: &R) -> io::Result<R::Response> {
        let sent = self.send(version, request).await?;
        let (received, response) = self.receive::<R>(version).await?;
        if received == sent { Ok(response) } else { Err(io::Error::other("another's response")) }
    }
}

/// Returns the frame of a request.
pub fn frame<R: Request>(correlation_id: i32, version: i16, request: &R) -> io::Result<BytesMut> {
    let key = ApiKey::try_from(R::KEY).map_err(|()| io::Error::other("unknown request"))?;
    let mut frame = BytesMut::zeroed(LENGTH_BYTES);
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .encode(&mut frame, key.request_header_version(version))
        .map_err(io::Error::other)?;
    request.encode(&mut frame, version).map_err(io::Error::other)?;
    let length = i32::try_from(frame.len() - LENGTH_BYTES).map_err(io::Error::other)?;
    (&mut frame[..LENGTH_BYTES]).put_i32(length);
    Ok(frame)
}

/// Returns a batch of the records with these sequence numbers, which are their timestamps as well.
/// The id of a producer that is not idempotent is -1.
///
/// # Panics
///
/// If the range is empty.
#[must_use]
pub fn record_batch(producer_id: i64, numbers: Range<i32>, value: &[u8]) -> Bytes {
    let value = Bytes::copy_from_slice(value);
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
