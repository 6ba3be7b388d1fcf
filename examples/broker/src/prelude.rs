//! The types of the protocol in one place. The codec has a module for each of its messages.

/// A result whose error is one of the protocol, unless it names another.
pub type Result<T, E = ResponseError> = std::result::Result<T, E>;

pub use bytes::{BufMut, Bytes, BytesMut};
pub use kafka_protocol::{
    ResponseError,
    messages::{
        api_versions_response::ApiVersion,
        create_partitions_request::*,
        create_partitions_response::*,
        create_topics_request::*,
        create_topics_response::CreatableTopicResult,
        delete_groups_response::DeletableGroupResult,
        delete_records_request::*,
        delete_records_response::*,
        delete_topics_response::DeletableTopicResult,
        describe_cluster_response::DescribeClusterBroker,
        describe_configs_request::*,
        describe_configs_response::*,
        describe_groups_response::*,
        fetch_request::*,
        fetch_response::{FetchableTopicResponse, PartitionData},
        find_coordinator_response::Coordinator as FoundCoordinator,
        join_group_request::*,
        join_group_response::*,
        leave_group_request::*,
        leave_group_response::MemberResponse,
        list_groups_response::ListedGroup,
        list_offsets_request::*,
        list_offsets_response::*,
        metadata_request::*,
        metadata_response::*,
        offset_commit_request::*,
        offset_commit_response::*,
        offset_fetch_request::*,
        offset_fetch_response::*,
        produce_request::*,
        produce_response::*,
        sync_group_request::*,
        *,
    },
    protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes},
};
