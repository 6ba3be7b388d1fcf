//! Requests: how the broker reads them.

use bytes::Buf;

use super::{grammar, refusal::Refusal};
use crate::prelude::*;

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

    fn read(frame: Bytes) -> Result<i32, Refusal> {
        let header = decode_header(&frame)?;
        decode(frame, header).map(|_| header.correlation_id)
    }

    /// The file has a line for every kind and version on offer: its kind, its version, and a
    /// request in hexadecimal with an element in each of its arrays.
    #[test]
    fn every_version_on_offer_is_read_in_full_or_refused_and_bytes_behind_it_are_ignored() {
        let offered = grammar::OFFERED.into_iter().map(|(_, versions, _)| versions.count());
        let lines: Vec<_> = include_str!("../../tests/requests.txt").lines().collect();
        assert_eq!(lines.len(), offered.sum::<usize>(), "the file has each");
        for line in lines {
            let (_, digits) = line.rsplit_once(' ').unwrap();
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            let frame: Bytes = (0..digits.len()).step_by(2).map(byte).collect();
            assert_eq!(read(frame.clone()), Ok(7), "{line}");
            assert_eq!(read([&frame[..], &[1, 0, 0]].concat().into()), Ok(7), "{line}");
            for length in 0..frame.len() {
                assert!(read(frame.slice(..length)).is_err(), "{length} bytes of {line}");
            }
        }
    }
}
