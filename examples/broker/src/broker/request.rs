//! Requests: what they may be, and how they are read.

use bytes::{Buf, Bytes};
use kafka_protocol::{
    messages::{
        ApiKey, ApiVersionsRequest, FetchRequest, ListOffsetsRequest, MetadataRequest,
        ProduceRequest, RequestHeader,
    },
    protocol::Decodable,
};

use super::{
    grammar::{self, Part},
    versions,
};

/// What came through a connection is not what the protocol allows, so that it has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// What an answer has to repeat of a request, or depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: i16,
    pub(super) correlation_id: i32,
}

/// A request that the broker knows.
#[derive(Debug)]
pub(super) enum Request {
    ApiVersions,
    /// The versions are asked for in a version of the question that is not known.
    UnknownVersions,
    Metadata(MetadataRequest),
    ListOffsets(ListOffsetsRequest),
    Produce(ProduceRequest),
    Fetch(FetchRequest),
}

/// The longest request for versions, in bytes: names and tags only.
const MAX_VERSIONS_BYTES: usize = 4_000;

/// Reads a request. The frame is at least as long as its fixed fields.
pub(super) fn decode(mut frame: Bytes) -> Result<(Header, Request), Malformed> {
    let mut fields = &frame[..];
    let key = fields.try_get_i16().map_err(|_| Malformed)?;
    let version = fields.try_get_i16().map_err(|_| Malformed)?;
    let correlation_id = fields.try_get_i32().map_err(|_| Malformed)?;
    let key = ApiKey::try_from(key).map_err(|()| Malformed)?;
    let header = Header { version, correlation_id };
    if key == ApiKey::ApiVersions {
        return decode_versions(&mut frame, header).map(|request| (header, request));
    }
    if !versions::is_supported(key, version) {
        return Err(Malformed);
    }
    let request = match key {
        ApiKey::Metadata => Request::Metadata(body(frame, grammar::METADATA, header)?),
        ApiKey::ListOffsets => Request::ListOffsets(body(frame, grammar::LIST_OFFSETS, header)?),
        ApiKey::Produce => Request::Produce(body(frame, grammar::PRODUCE, header)?),
        ApiKey::Fetch => Request::Fetch(body(frame, grammar::FETCH, header)?),
        _ => return Err(Malformed),
    };
    Ok((header, request))
}

/// Reads the request whose version a client cannot know to be supported.
fn decode_versions(frame: &mut Bytes, header: Header) -> Result<Request, Malformed> {
    if frame.len() > MAX_VERSIONS_BYTES {
        return Err(Malformed);
    }
    if !versions::is_supported(ApiKey::ApiVersions, header.version) {
        return Ok(Request::UnknownVersions);
    }
    let header_version = ApiKey::ApiVersions.request_header_version(header.version);
    RequestHeader::decode(frame, header_version).map_err(|_| Malformed)?;
    ApiVersionsRequest::decode(frame, header.version).map_err(|_| Malformed)?;
    Ok(Request::ApiVersions)
}

/// Checks a frame against its grammar, and has the codec read it.
fn body<T: Decodable>(mut frame: Bytes, grammar: &[Part], header: Header) -> Result<T, Malformed> {
    grammar::check(&frame, grammar, header.version)?;
    RequestHeader::decode(&mut frame, 1).map_err(|_| Malformed)?;
    T::decode(&mut frame, header.version).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use kafka_protocol::{
        messages::{
            TopicName,
            fetch_request::{FetchPartition, FetchTopic, ForgottenTopic},
            list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
            metadata_request::MetadataRequestTopic,
            produce_request::{PartitionProduceData, TopicProduceData},
        },
        protocol::{Encodable, StrBytes},
    };

    use super::*;

    fn frame(key: ApiKey, version: i16, body: &impl Encodable) -> Bytes {
        let mut frame = BytesMut::new();
        RequestHeader::default()
            .with_request_api_key(key as i16)
            .with_request_api_version(version)
            .with_correlation_id(7)
            .with_client_id(Some(StrBytes::from_static_str("test")))
            .encode(&mut frame, key.request_header_version(version))
            .unwrap();
        body.encode(&mut frame, version).unwrap();
        frame.freeze()
    }

    fn topic() -> TopicName {
        TopicName(StrBytes::from_static_str("topic"))
    }

    fn fetch() -> FetchRequest {
        let partitions = vec![FetchPartition::default(), FetchPartition::default()];
        let topic = FetchTopic::default().with_topic(topic()).with_partitions(partitions);
        FetchRequest::default().with_topics(vec![topic])
    }

    /// A request of every kind and version that is supported.
    fn requests() -> Vec<Bytes> {
        let mut frames = Vec::new();
        for version in versions::range(ApiKey::ApiVersions) {
            frames.push(frame(ApiKey::ApiVersions, version, &ApiVersionsRequest::default()));
        }
        for version in versions::range(ApiKey::Metadata) {
            let topic = MetadataRequestTopic::default().with_name(Some(topic()));
            let body = MetadataRequest::default().with_topics(Some(vec![topic]));
            frames.push(frame(ApiKey::Metadata, version, &body));
        }
        for version in versions::range(ApiKey::ListOffsets) {
            let partitions = vec![ListOffsetsPartition::default()];
            let topic = ListOffsetsTopic::default().with_name(topic()).with_partitions(partitions);
            let body = ListOffsetsRequest::default().with_topics(vec![topic]);
            frames.push(frame(ApiKey::ListOffsets, version, &body));
        }
        for version in versions::range(ApiKey::Produce).filter(|&version| version >= 3) {
            let partition = PartitionProduceData::default()
                .with_records(Some(Bytes::from_static(b"not quite records")));
            let topic =
                TopicProduceData::default().with_name(topic()).with_partition_data(vec![partition]);
            let body = ProduceRequest::default().with_topic_data(vec![topic]);
            frames.push(frame(ApiKey::Produce, version, &body));
        }
        for version in versions::range(ApiKey::Fetch) {
            let mut body = fetch();
            if version >= 7 {
                let forgotten =
                    ForgottenTopic::default().with_topic(topic()).with_partitions(vec![1, 2]);
                body = body.with_forgotten_topics_data(vec![forgotten]);
            }
            frames.push(frame(ApiKey::Fetch, version, &body));
        }
        frames
    }

    #[test]
    fn every_kind_and_version_on_offer_is_read() {
        for frame in requests() {
            let (header, _) = decode(frame.clone()).unwrap_or_else(|_| panic!("{frame:?}"));
            assert_eq!(header.correlation_id, 7);
        }
    }

    #[test]
    fn a_request_that_is_cut_off_anywhere_is_malformed() {
        for frame in requests() {
            for length in 0..frame.len() {
                // A request for versions has no body before version 3, and is the same without a
                // name in its header.
                let cut = decode(frame.slice(..length));
                assert!(cut.is_err(), "{length} of {frame:?} were read as {cut:?}");
            }
        }
    }

    #[test]
    fn a_request_with_something_behind_it_is_malformed() {
        for frame in requests().into_iter().filter(|frame| frame[1] != ApiKey::ApiVersions as u8) {
            let longer: Vec<u8> = frame.iter().copied().chain([0]).collect();
            assert!(decode(Bytes::from(longer)).is_err(), "{frame:?}");
        }
    }

    #[test]
    fn lengths_beyond_the_frame_or_the_limits_are_malformed_and_reserve_nothing() {
        for elements in [i32::MAX, i32::MAX / 2, 4_001, -2, i32::MIN] {
            let mut frame = BytesMut::new();
            frame.put_i16(ApiKey::Metadata as i16);
            frame.put_i16(1);
            frame.put_i32(7);
            frame.put_i16(-1);
            frame.put_i32(elements);
            frame.put_bytes(0, 100_000);
            assert!(decode(frame.freeze()).is_err(), "{elements}");
        }
    }

    #[test]
    fn too_many_elements_are_malformed_even_if_they_are_all_there() {
        let topic = |partitions| {
            FetchTopic::default()
                .with_topic(topic())
                .with_partitions(vec![FetchPartition::default(); partitions])
        };
        let frame = |count| {
            frame(ApiKey::Fetch, 4, &FetchRequest::default().with_topics(vec![topic(count)]))
        };
        assert!(decode(frame(grammar::MAX_ELEMENTS - 1)).is_ok());
        assert!(decode(frame(grammar::MAX_ELEMENTS)).is_err());
    }

    #[test]
    fn a_long_string_is_malformed() {
        let name = |length: usize| {
            let name = TopicName(StrBytes::from_string("x".repeat(length)));
            let topic = MetadataRequestTopic::default().with_name(Some(name));
            frame(ApiKey::Metadata, 1, &MetadataRequest::default().with_topics(Some(vec![topic])))
        };
        assert!(decode(name(1_000)).is_ok());
        assert!(decode(name(1_001)).is_err());
    }

    #[test]
    fn garbage_never_panics() {
        let mut random = fastrand::Rng::with_seed(1);
        let requests = requests();
        for _ in 0..20_000 {
            let mut frame = requests[random.usize(..requests.len())].to_vec();
            for _ in 0..random.usize(1..8) {
                let index = random.usize(..frame.len());
                frame[index] = random.u8(..);
            }
            // Whatever comes of it, it comes back.
            drop(decode(Bytes::from(frame)));
        }
        for length in 8..200 {
            let mut frame = vec![0; length];
            random.fill(&mut frame);
            drop(decode(Bytes::from(frame)));
        }
    }
}
