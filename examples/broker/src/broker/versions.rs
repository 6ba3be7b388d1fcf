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

/// The requests on offer. Later versions name topics by number.
const OFFERED: [(ApiKey, RangeInclusive<i16>); 20] = [
    (ApiKey::Produce, 3..=11),
    (ApiKey::Fetch, 4..=12),
    (ApiKey::ListOffsets, 1..=6),
    (ApiKey::Metadata, 0..=12),
    (ApiKey::OffsetCommit, 2..=9),
    (ApiKey::OffsetFetch, 1..=9),
    (ApiKey::FindCoordinator, 0..=4),
    (ApiKey::JoinGroup, 0..=9),
    (ApiKey::Heartbeat, 0..=4),
    (ApiKey::LeaveGroup, 0..=5),
    (ApiKey::SyncGroup, 0..=5),
    (ApiKey::DescribeGroups, 0..=5),
    (ApiKey::ListGroups, 0..=4),
    (ApiKey::DeleteGroups, 0..=2),
    (ApiKey::ApiVersions, 0..=3),
    (ApiKey::InitProducerId, 0..=4),
    (ApiKey::CreateTopics, 2..=7),
    (ApiKey::DeleteTopics, 1..=5),
    (ApiKey::DescribeConfigs, 1..=4),
    (ApiKey::DescribeCluster, 0..=1),
];

/// The oldest version of Produce that is told. librdkafka compresses only for brokers that name it.
/// Like Kafka, the broker does not read the versions before those on offer.
const OLDEST_PRODUCE: i16 = 0;

/// The versions of a request that the broker reads; none if it does not know the request.
pub(super) fn range(key: ApiKey) -> RangeInclusive<i16> {
    let offered = OFFERED.into_iter().find(|(offered, _)| *offered == key);
    #[expect(clippy::reversed_empty_ranges, reason = "no version at all")]
    offered.map_or(1..=0, |(_, versions)| versions)
}

/// The requests on offer.
#[cfg(test)]
pub(super) fn keys() -> impl Iterator<Item = ApiKey> {
    OFFERED.into_iter().map(|(key, _)| key)
}

pub(super) fn is_known(key: ApiKey) -> bool {
    OFFERED.iter().any(|(offered, _)| *offered == key)
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
        let oldest = if *key == ApiKey::Produce { OLDEST_PRODUCE } else { *versions.start() };
        ApiVersion::default()
            .with_api_key(*key as i16)
            .with_min_version(oldest)
            .with_max_version(*versions.end())
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}
