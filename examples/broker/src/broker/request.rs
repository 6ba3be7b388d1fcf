//! Requests: what they may be, and how they are read.

use bytes::{Buf, Bytes};
use kafka_protocol::{
    messages::{
        ApiKey, ApiVersionsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
        DescribeClusterRequest, DescribeConfigsRequest, DescribeGroupsRequest, FetchRequest,
        FindCoordinatorRequest, HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest,
        LeaveGroupRequest, ListGroupsRequest, ListOffsetsRequest, MetadataRequest,
        OffsetCommitRequest, OffsetFetchRequest, ProduceRequest, RequestHeader, SyncGroupRequest,
    },
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
    ApiVersions,
    /// The versions are asked for in a version of the question that is not known.
    UnknownVersions,
    Metadata(MetadataRequest),
    ListOffsets(ListOffsetsRequest),
    Produce(ProduceRequest),
    Fetch(FetchRequest),
    FindCoordinator(FindCoordinatorRequest),
    /// With the name of the client.
    JoinGroup(StrBytes, JoinGroupRequest),
    SyncGroup(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    LeaveGroup(LeaveGroupRequest),
    OffsetCommit(OffsetCommitRequest),
    OffsetFetch(OffsetFetchRequest),
    DescribeGroups(DescribeGroupsRequest),
    ListGroups(ListGroupsRequest),
    DeleteGroups(DeleteGroupsRequest),
    InitProducerId(InitProducerIdRequest),
    CreateTopics(CreateTopicsRequest),
    DeleteTopics(DeleteTopicsRequest),
    DescribeConfigs(DescribeConfigsRequest),
    DescribeCluster,
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
    let malformed = |_| Refusal::Malformed(key, version);
    if key == ApiKey::ApiVersions {
        return decode_versions(&mut frame, header).map_err(malformed);
    }
    if !versions::is_known(key) {
        return Err(Refusal::Unknown(key as i16));
    }
    if !versions::is_supported(key, version) {
        return Err(Refusal::Version(key, version));
    }
    grammar::check(&frame, key, version)?;
    decode_checked(&mut frame, key, version).map_err(malformed)
}

fn decode_checked(frame: &mut Bytes, key: ApiKey, version: i16) -> Result<Request, Malformed> {
    let header_version = key.request_header_version(version);
    let name = RequestHeader::decode(frame, header_version).map_err(|_| Malformed)?.client_id;
    let request = match key {
        ApiKey::Metadata => Request::Metadata(body(frame, version)?),
        ApiKey::ListOffsets => Request::ListOffsets(body(frame, version)?),
        ApiKey::Produce => Request::Produce(body(frame, version)?),
        ApiKey::Fetch => Request::Fetch(body(frame, version)?),
        ApiKey::FindCoordinator => Request::FindCoordinator(body(frame, version)?),
        ApiKey::JoinGroup => Request::JoinGroup(name.unwrap_or_default(), body(frame, version)?),
        ApiKey::SyncGroup => Request::SyncGroup(body(frame, version)?),
        ApiKey::Heartbeat => Request::Heartbeat(body(frame, version)?),
        ApiKey::LeaveGroup => Request::LeaveGroup(body(frame, version)?),
        ApiKey::OffsetCommit => Request::OffsetCommit(body(frame, version)?),
        ApiKey::OffsetFetch => Request::OffsetFetch(body(frame, version)?),
        ApiKey::DescribeGroups => Request::DescribeGroups(body(frame, version)?),
        ApiKey::ListGroups => Request::ListGroups(body(frame, version)?),
        ApiKey::DeleteGroups => Request::DeleteGroups(body(frame, version)?),
        ApiKey::InitProducerId => Request::InitProducerId(body(frame, version)?),
        ApiKey::CreateTopics => Request::CreateTopics(body(frame, version)?),
        ApiKey::DeleteTopics => Request::DeleteTopics(body(frame, version)?),
        ApiKey::DescribeConfigs => Request::DescribeConfigs(body(frame, version)?),
        ApiKey::DescribeCluster => {
            body::<DescribeClusterRequest>(frame, version).map(|_| Request::DescribeCluster)?
        }
        _ => return Err(Malformed),
    };
    Ok(request)
}

fn body<T: Decodable>(frame: &mut Bytes, version: i16) -> Result<T, Malformed> {
    T::decode(frame, version).map_err(|_| Malformed)
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

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use kafka_protocol::{
        messages::{
            BrokerId, GroupId, TopicName,
            create_topics_request::{
                CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
            },
            describe_configs_request::DescribeConfigsResource,
            fetch_request::{FetchPartition, FetchTopic, ForgottenTopic},
            join_group_request::JoinGroupRequestProtocol,
            leave_group_request::MemberIdentity,
            list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
            metadata_request::MetadataRequestTopic,
            offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
            offset_fetch_request::{
                OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
            },
            produce_request::{PartitionProduceData, TopicProduceData},
            sync_group_request::SyncGroupRequestAssignment,
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
        frames.extend(group_requests());
        frames.extend(admin_requests());
        frames
    }

    /// Frames of a request in all versions on offer.
    fn versions<T: Encodable>(key: ApiKey, body: impl Fn(i16) -> T) -> Vec<Bytes> {
        versions::range(key).map(|version| frame(key, version, &body(version))).collect()
    }

    fn text() -> StrBytes {
        StrBytes::from_static_str("text")
    }

    fn since<T>(version: i16, first: i16, value: T) -> Option<T> {
        (version >= first).then_some(value)
    }

    fn group_requests() -> Vec<Bytes> {
        let group = || GroupId(text());
        let mut frames = versions(ApiKey::FindCoordinator, |version| match version {
            ..=3 => FindCoordinatorRequest::default().with_key(text()),
            _ => FindCoordinatorRequest::default().with_coordinator_keys(vec![text(), text()]),
        });
        frames.extend(versions(ApiKey::JoinGroup, |version| {
            let protocol = JoinGroupRequestProtocol::default()
                .with_name(text())
                .with_metadata(Bytes::from_static(b"metadata"));
            JoinGroupRequest::default()
                .with_group_id(group())
                .with_group_instance_id(since(version, 5, text()))
                .with_protocol_type(text())
                .with_protocols(vec![protocol])
        }));
        frames.extend(versions(ApiKey::SyncGroup, |_| {
            let assignment = SyncGroupRequestAssignment::default()
                .with_member_id(text())
                .with_assignment(Bytes::from_static(b"assignment"));
            SyncGroupRequest::default().with_group_id(group()).with_assignments(vec![assignment])
        }));
        frames.extend(versions(ApiKey::Heartbeat, |_| {
            HeartbeatRequest::default().with_group_id(group()).with_member_id(text())
        }));
        frames.extend(versions(ApiKey::LeaveGroup, |version| match version {
            ..=2 => LeaveGroupRequest::default().with_member_id(text()),
            _ => LeaveGroupRequest::default()
                .with_members(vec![MemberIdentity::default().with_member_id(text())]),
        }));
        frames.extend(versions(ApiKey::OffsetCommit, |_| {
            let partition = OffsetCommitRequestPartition::default();
            let topic = OffsetCommitRequestTopic::default()
                .with_name(topic())
                .with_partitions(vec![partition.clone(), partition]);
            OffsetCommitRequest::default().with_group_id(group()).with_topics(vec![topic])
        }));
        frames.extend(versions(ApiKey::OffsetFetch, |version| {
            if version <= 7 {
                let topic = OffsetFetchRequestTopic::default()
                    .with_name(topic())
                    .with_partition_indexes(vec![1, 2]);
                OffsetFetchRequest::default().with_topics(Some(vec![topic]))
            } else {
                let topic = OffsetFetchRequestTopics::default()
                    .with_name(topic())
                    .with_partition_indexes(vec![1, 2]);
                let group = OffsetFetchRequestGroup::default().with_topics(Some(vec![topic]));
                OffsetFetchRequest::default().with_groups(vec![group])
            }
        }));
        frames.extend(versions(ApiKey::DescribeGroups, |_| {
            DescribeGroupsRequest::default().with_groups(vec![group(), group()])
        }));
        frames.extend(versions(ApiKey::ListGroups, |version| {
            let states = since(version, 4, vec![text()]).unwrap_or_default();
            ListGroupsRequest::default().with_states_filter(states)
        }));
        frames.extend(versions(ApiKey::DeleteGroups, |_| {
            DeleteGroupsRequest::default().with_groups_names(vec![group()])
        }));
        frames
    }

    fn admin_requests() -> Vec<Bytes> {
        let mut frames = versions(ApiKey::InitProducerId, |_| InitProducerIdRequest::default());
        frames.extend(versions(ApiKey::CreateTopics, |_| {
            let assignment =
                CreatableReplicaAssignment::default().with_broker_ids(vec![BrokerId(1)]);
            let config = CreatableTopicConfig::default().with_name(text()).with_value(Some(text()));
            let topic = CreatableTopic::default()
                .with_name(topic())
                .with_assignments(vec![assignment])
                .with_configs(vec![config]);
            CreateTopicsRequest::default().with_topics(vec![topic])
        }));
        frames.extend(versions(ApiKey::DeleteTopics, |_| {
            DeleteTopicsRequest::default().with_topic_names(vec![topic()])
        }));
        frames.extend(versions(ApiKey::DescribeConfigs, |_| {
            let resource = DescribeConfigsResource::default()
                .with_resource_name(text())
                .with_configuration_keys(Some(vec![text(), text()]));
            DescribeConfigsRequest::default().with_resources(vec![resource])
        }));
        frames.extend(versions(ApiKey::DescribeCluster, |_| DescribeClusterRequest::default()));
        frames
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
