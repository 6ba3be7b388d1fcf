//! `FindCoordinator`, `DescribeGroups`, `ListGroups` and `DeleteGroups`.

use std::{collections::BTreeMap, net::SocketAddr};

use bytes::BytesMut;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
        DescribeGroupsResponse, FindCoordinatorRequest, FindCoordinatorResponse, GroupId,
        ListGroupsRequest, ListGroupsResponse,
        delete_groups_response::DeletableGroupResult,
        describe_groups_response::{DescribedGroup, DescribedGroupMember},
        find_coordinator_response::Coordinator as Found,
        list_groups_response::ListedGroup,
    },
    protocol::StrBytes,
};

use super::{
    coordinator::{Coordinator, Slot},
    requests::{code, text},
    state::Phase,
};
use crate::broker::{
    frame::{self, Room},
    metadata::NODE,
    request::{Header, Malformed},
};

/// The kind of key that names a group; the other kind names a transaction.
const GROUP_KEY: i8 = 0;

/// The first version that asks for several coordinators.
const MANY_KEYS: i16 = 4;
/// The first version of `ListGroups` that tells states.
const TELLS_STATE: i16 = 4;

/// Tells that this broker coordinates all groups.
pub(crate) fn find_coordinator(
    header: Header,
    asked: &FindCoordinatorRequest,
    host: SocketAddr,
) -> Result<BytesMut, Malformed> {
    let address = StrBytes::from_string(host.ip().to_string());
    let refusal = (asked.key_type != GROUP_KEY).then_some((
        ResponseError::TransactionalIdAuthorizationFailed,
        StrBytes::from_static_str("transactions are not supported"),
    ));
    let (error, message) = refusal.map_or((0, None), |(error, text)| (error.code(), Some(text)));
    let response = if header.version < MANY_KEYS {
        FindCoordinatorResponse::default()
            .with_error_code(error)
            .with_error_message(message.filter(|_| header.version >= 1))
            .with_node_id(NODE)
            .with_host(address)
            .with_port(host.port().into())
    } else {
        let found = asked.coordinator_keys.iter().map(|key| {
            Found::default()
                .with_key(key.clone())
                .with_error_code(error)
                .with_error_message(message.clone())
                .with_node_id(NODE)
                .with_host(address.clone())
                .with_port(host.port().into())
        });
        FindCoordinatorResponse::default().with_coordinators(found.collect())
    };
    frame::encode(ApiKey::FindCoordinator, header, &response)
}

/// Tells about groups and their members.
pub(crate) fn describe(
    groups: &Coordinator,
    header: Header,
    asked: &DescribeGroupsRequest,
) -> Result<BytesMut, Malformed> {
    let mut room = Room::new();
    let described = asked.groups.iter().map(|name| {
        let empty = || DescribedGroup::default().with_group_id(name.clone());
        match groups.find(name) {
            Some(slot) => {
                let described = describe_group(header, &slot);
                let refused = || empty().with_error_code(ResponseError::PolicyViolation.code());
                if room.take(&described, header) { described } else { refused() }
            }
            // As Kafka before version 6 of this request.
            None => empty().with_group_state(StrBytes::from_static_str("Dead")),
        }
    });
    let response = DescribeGroupsResponse::default().with_groups(described.collect());
    frame::encode(ApiKey::DescribeGroups, header, &response)
}

fn describe_group(header: Header, slot: &Slot) -> DescribedGroup {
    let contents = slot.lock();
    let group = &contents.group;
    let members = group.members().map(|(id, member, metadata)| {
        let instance = member.instance.as_ref().map(text).filter(|_| header.version >= 4);
        DescribedGroupMember::default()
            .with_member_id(text(id))
            .with_group_instance_id(instance)
            .with_client_id(text(&member.client.id))
            .with_client_host(text(&member.client.host))
            .with_member_metadata(metadata)
            .with_member_assignment(member.assignment.clone())
    });
    DescribedGroup::default()
        .with_group_id(GroupId(text(&slot.name)))
        .with_group_state(state_name(group.phase()))
        .with_protocol_type(group.protocol_type().map(text).unwrap_or_default())
        .with_protocol_data(group.protocol().map(text).unwrap_or_default())
        .with_members(members.collect())
}

/// Lists groups, all or those in some states.
pub(crate) fn list(
    groups: &Coordinator,
    header: Header,
    asked: &ListGroupsRequest,
) -> Result<BytesMut, Malformed> {
    let mut listed = BTreeMap::new();
    for slot in groups.all() {
        let contents = slot.lock();
        let state = state_name(contents.group.phase());
        let wanted = &asked.states_filter;
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(&state)) {
            continue;
        }
        let protocol_type = contents.group.protocol_type().map(text).unwrap_or_default();
        let group = ListedGroup::default()
            .with_group_id(GroupId(text(&slot.name)))
            .with_protocol_type(protocol_type);
        let is_told = header.version >= TELLS_STATE;
        let group = if is_told { group.with_group_state(state) } else { group };
        listed.insert(slot.name.clone(), group);
    }
    let response = ListGroupsResponse::default().with_groups(listed.into_values().collect());
    frame::encode(ApiKey::ListGroups, header, &response)
}

/// Deletes groups without members, with their commits.
pub(crate) fn delete(
    groups: &Coordinator,
    header: Header,
    asked: &DeleteGroupsRequest,
) -> Result<BytesMut, Malformed> {
    let results = asked.groups_names.iter().map(|name| {
        DeletableGroupResult::default()
            .with_group_id(name.clone())
            .with_error_code(code(groups.delete(name)))
    });
    let response = DeleteGroupsResponse::default().with_results(results.collect());
    frame::encode(ApiKey::DeleteGroups, header, &response)
}

/// The name that Kafka has for a phase.
const fn state_name(phase: Phase) -> StrBytes {
    StrBytes::from_static_str(match phase {
        Phase::Empty => "Empty",
        Phase::Joining => "PreparingRebalance",
        Phase::Syncing => "CompletingRebalance",
        Phase::Stable => "Stable",
    })
}
