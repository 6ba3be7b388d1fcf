//! Requests: how the broker reads them.

use bytes::{Buf, Bytes};
use kafka_protocol::{
    messages::{ApiKey, RequestHeader, RequestKind},
    protocol::{Decodable, StrBytes},
};

use super::{grammar, refusal::Refusal};

/// A message that breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// The part of a request on which its answer depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) key: ApiKey,
    pub(super) version: i16,
    pub(super) correlation_id: i32,
}

/// Reads the fields at the beginning of each request.
pub(super) fn decode_header(frame: &Bytes) -> Result<Header, Refusal> {
    let mut fields = &frame[..];
    let key = fields.try_get_i16().map_err(|_| Refusal::Frame)?;
    let version = fields.try_get_i16().map_err(|_| Refusal::Frame)?;
    let correlation_id = fields.try_get_i32().map_err(|_| Refusal::Frame)?;
    let key = ApiKey::try_from(key).map_err(|()| Refusal::Unknown(key))?;
    Ok(Header { key, version, correlation_id })
}

/// Reads a request with this header. Returns the name of its client, and the request.
pub(super) fn decode(mut frame: Bytes, of: Header) -> Result<(StrBytes, RequestKind), Refusal> {
    let Header { key, version, .. } = of;
    grammar::check(&frame, key, version)?;
    let malformed = |_| Refusal::Malformed(key, version);
    let header_version = key.request_header_version(version);
    let header = RequestHeader::decode(&mut frame, header_version).map_err(malformed)?;
    let body = RequestKind::decode(key, &mut frame, version).map_err(malformed)?;
    Ok((header.client_id.unwrap_or_default(), body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    fn read(frame: Bytes) -> Result<(Header, RequestKind), Refusal> {
        let header = decode_header(&frame)?;
        decode(frame, header).map(|(_, request)| (header, request))
    }

    /// A frame without its length.
    fn frame<R: Request>(version: i16, request: &R) -> Bytes {
        crate::client::frame(7, version, request).unwrap().split_off(4).freeze()
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
    fn every_version_on_offer_is_read_in_full_or_refused_and_bytes_behind_it_are_ignored() {
        let frames = requests();
        for (key, versions, _) in grammar::OFFERED {
            let tried = frames.iter().filter(|frame| frame[..2] == (key as i16).to_be_bytes());
            assert_eq!(tried.count(), versions.count(), "{key:?} is in the file");
        }
        for frame in frames {
            let (header, _) = read(frame.clone()).unwrap_or_else(|_| panic!("{frame:?}"));
            assert_eq!(header.correlation_id, 7);
            assert!(read([&frame[..], &[1, 0, 0]].concat().into()).is_ok(), "{frame:?}");
            for length in 0..frame.len() {
                let cut = read(frame.slice(..length));
                assert!(cut.is_err(), "{length} of {frame:?} were read as {cut:?}");
            }
        }
    }

    #[test]
    fn too_many_elements_and_long_strings_are_malformed_even_if_they_are_all_there() {
        let fetch = |partitions| {
            let topic =
                FetchTopic::default().with_partitions(vec![FetchPartition::default(); partitions]);
            frame(4, &FetchRequest::default().with_topics(vec![topic]))
        };
        assert!(read(fetch(grammar::MAX_ELEMENTS - 1)).is_ok());
        let refused = read(fetch(grammar::MAX_ELEMENTS)).unwrap_err();
        assert_eq!(refused, Refusal::TooMany(ApiKey::Fetch));
        let metadata = |length: usize| {
            let name = TopicName(StrBytes::from_string("x".repeat(length)));
            let topic = MetadataRequestTopic::default().with_name(Some(name));
            frame(1, &MetadataRequest::default().with_topics(Some(vec![topic])))
        };
        assert!(read(metadata(1_000)).is_ok());
        assert!(read(metadata(1_001)).is_err());
    }
}
