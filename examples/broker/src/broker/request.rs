//! Requests: which of them the broker reads, and in which order it checks them.

use bytes::{Buf, Bytes};
use kafka_protocol::{
    messages::{ApiKey, RequestHeader, RequestKind},
    protocol::{Decodable, StrBytes},
};

use super::{grammar, refusal::Refusal, versions};

/// A message is not what the protocol allows.
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
    /// With the name of the client.
    Known(StrBytes, Box<RequestKind>),
    /// A request for the versions on offer, in a version that is not on offer.
    UnknownVersions,
}

/// The longest request for versions, in bytes: names and tags only.
const MAX_VERSIONS_BYTES: usize = 4_000;

/// Reads the fields that any request begins with.
pub(super) fn decode_header(frame: &Bytes) -> Result<(ApiKey, Header), Refusal> {
    let mut fields = &frame[..];
    let key = fields.try_get_i16().map_err(|_| Refusal::Frame)?;
    let version = fields.try_get_i16().map_err(|_| Refusal::Frame)?;
    let correlation_id = fields.try_get_i32().map_err(|_| Refusal::Frame)?;
    let known = ApiKey::try_from(key).map_err(|()| Refusal::Unknown(key))?;
    Ok((known, Header { version, correlation_id }))
}

/// Reads a request that begins with these fields.
pub(super) fn decode(mut frame: Bytes, key: ApiKey, header: Header) -> Result<Request, Refusal> {
    let version = header.version;
    let is_supported = versions::is_supported(key, version);
    if key == ApiKey::ApiVersions {
        // A client cannot know whether its version of this request is supported.
        if frame.len() > MAX_VERSIONS_BYTES {
            return Err(Refusal::Malformed(key, version));
        }
        if !is_supported {
            return Ok(Request::UnknownVersions);
        }
    } else if !versions::is_known(key) {
        return Err(Refusal::Unknown(key as i16));
    } else if !is_supported {
        return Err(Refusal::Version(key, version));
    } else {
        grammar::check(&frame, key, version)?;
    }
    let malformed = |_| Refusal::Malformed(key, version);
    let header_version = key.request_header_version(version);
    let head = RequestHeader::decode(&mut frame, header_version).map_err(malformed)?;
    let body = RequestKind::decode(key, &mut frame, version).map_err(malformed)?;
    Ok(Request::Known(head.client_id.unwrap_or_default(), Box::new(body)))
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use kafka_protocol::{
        messages::{
            FetchRequest, MetadataRequest, TopicName,
            fetch_request::{FetchPartition, FetchTopic},
            metadata_request::MetadataRequestTopic,
        },
        protocol::Encodable,
    };

    use super::*;

    fn decode(frame: Bytes) -> Result<(Header, Request), Refusal> {
        let (key, header) = decode_header(&frame)?;
        super::decode(frame, key, header).map(|request| (header, request))
    }

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

    /// A request of every kind and version on offer, each with an element in its arrays. The file
    /// has a line for each: its kind, its version, and the frame in hexadecimal.
    fn requests() -> Vec<Bytes> {
        let lines = include_str!("../../tests/requests.txt").lines();
        let frame = |line: &str| -> Bytes {
            let (_, digits) = line.rsplit_once(' ').unwrap();
            let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
        };
        lines.map(frame).collect()
    }

    #[test]
    fn every_request_on_offer_is_among_those_that_are_tried() {
        let frames = requests();
        for key in versions::keys() {
            let tried = frames.iter().filter(|frame| frame[..2] == (key as i16).to_be_bytes());
            let range = versions::range(key);
            assert_eq!(tried.count(), range.count(), "{key:?}");
        }
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
    fn bytes_behind_a_request_are_ignored() {
        for frame in requests() {
            let longer: Vec<u8> = frame.iter().copied().chain([1, 0, 0]).collect();
            assert!(decode(Bytes::from(longer)).is_ok(), "{frame:?}");
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
