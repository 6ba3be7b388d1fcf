//! Which requests the broker knows, in which versions.

use std::ops::RangeInclusive;

use bytes::BytesMut;
use kafka_protocol::{
    ResponseError,
    messages::{ApiKey, ApiVersionsResponse, api_versions_response::ApiVersion},
};

use super::{
    frame,
    request::{Header, Malformed},
};

/// The requests on offer. Later versions have lengths of varying size, and topics by number.
const OFFERED: [(ApiKey, RangeInclusive<i16>); 5] = [
    (ApiKey::Produce, 3..=8),
    (ApiKey::Fetch, 4..=11),
    (ApiKey::ListOffsets, 1..=5),
    (ApiKey::Metadata, 0..=8),
    (ApiKey::ApiVersions, 0..=3),
];

/// The versions of a request that the broker reads; none if it does not know the request.
pub(super) fn range(key: ApiKey) -> RangeInclusive<i16> {
    let offered = OFFERED.into_iter().find(|(offered, _)| *offered == key);
    #[expect(clippy::reversed_empty_ranges, reason = "no version at all")]
    offered.map_or(1..=0, |(_, versions)| versions)
}

pub(super) fn is_supported(key: ApiKey, version: i16) -> bool {
    range(key).contains(&version)
}

/// Tells what is on offer.
pub(super) fn reply(header: Header) -> Result<BytesMut, Malformed> {
    frame::encode(ApiKey::ApiVersions, header, &response())
}

/// Tells a client that is too new what is on offer, in the words of the first version, which every
/// client understands.
pub(super) fn refuse(header: Header) -> Result<BytesMut, Malformed> {
    let response = response().with_error_code(ResponseError::UnsupportedVersion.code());
    frame::encode(ApiKey::ApiVersions, Header { version: 0, ..header }, &response)
}

fn response() -> ApiVersionsResponse {
    let keys = OFFERED.iter().map(|(key, versions)| {
        ApiVersion::default()
            .with_api_key(*key as i16)
            .with_min_version(*versions.start())
            .with_max_version(*versions.end())
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}
