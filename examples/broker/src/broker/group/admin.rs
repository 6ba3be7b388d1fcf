//! `FindCoordinator`, `DescribeGroups`, `ListGroups` and `DeleteGroups`.

use std::net::SocketAddr;

use super::{
    coordinator::Coordinator,
    message::own,
    requests::code,
    state::{Group, Phase},
};
use crate::broker::{frame::Room, metadata::NODE};
use crate::prelude::*;

/// The kind of key that names a group; the other kind names a transaction.
const GROUP_KEY: i8 = 0;

/// The first version that asks for several coordinators.
const FIND_MANY: i16 = 4;

/// Names this broker as the coordinator of all groups.
pub(crate) fn find_coordinator(
    version: i16,
    asked: &FindCoordinatorRequest,
    host: SocketAddr,
) -> FindCoordinatorResponse {
    let is_group = asked.key_type == GROUP_KEY;
    let error = ResponseError::TransactionalIdAuthorizationFailed.code();
    let error = if is_group { 0 } else { error };
    let message = (!is_group).then(|| "transactions are not supported".into());
    let name = StrBytes::from(host.ip().to_string());
    let response = FindCoordinatorResponse::default().with_error_message(None);
    if version >= FIND_MANY {
        let found = asked.coordinator_keys.iter().map(|key| {
            FoundCoordinator::default()
                .with_key(own(key))
                .with_node_id(NODE)
                .with_host(name.clone())
                .with_port(host.port().into())
                .with_error_code(error)
                .with_error_message(message.clone())
        });
        return response.with_coordinators(found.collect());
    }
    response
        .with_node_id(NODE)
        .with_host(name)
        .with_port(host.port().into())
        .with_error_code(error)
        .with_error_message(message)
}

pub(crate) fn describe(
    groups: &Coordinator,
    version: i16,
    asked: &DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let mut room = Room::new();
    let groups = groups.groups();
    let described = asked.groups.iter().map(|name| {
        let empty = || DescribedGroup::default().with_group_id(name.clone());
        let Some(entry) = groups.get(&**name) else {
            // As Kafka before version 6 of this request.
            return empty().with_group_state(StrBytes::from_static_str("Dead"));
        };
        let refused = || empty().with_error_code(ResponseError::PolicyViolation.code());
        room.fit(version, || describe_group(name, &entry.group), refused)
    });
    DescribeGroupsResponse::default().with_groups(described.collect())
}

fn describe_group(name: &GroupId, group: &Group) -> DescribedGroup {
    let members = group.members().map(|(id, member, metadata)| {
        let instance = member.join.instance.clone();
        DescribedGroupMember::default()
            .with_member_id(id.clone())
            .with_group_instance_id(instance)
            .with_client_id(member.join.client_id.clone())
            .with_client_host(member.join.client_host.clone())
            .with_member_metadata(metadata)
            .with_member_assignment(member.assignment.clone())
    });
    DescribedGroup::default()
        .with_group_id(name.clone())
        .with_group_state(state_name(group.phase()))
        .with_protocol_type(group.protocol_type.clone())
        .with_protocol_data(group.protocol())
        .with_members(members.collect())
}

/// Lists groups, all or those in some states.
pub(crate) fn list(groups: &Coordinator, asked: &ListGroupsRequest) -> ListGroupsResponse {
    let wanted = &asked.states_filter;
    let is_wanted = |state: &str| {
        wanted.is_empty() || wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(state))
    };
    let groups = groups.groups();
    let listed = groups.iter().filter_map(|(name, entry)| {
        let state = state_name(entry.group.phase());
        let listed = ListedGroup::default()
            .with_group_id(GroupId(name.clone()))
            .with_protocol_type(entry.group.protocol_type.clone());
        is_wanted(&state).then(|| listed.with_group_state(state))
    });
    ListGroupsResponse::default().with_groups(listed.collect())
}

/// Deletes groups without members, with their commits.
pub(crate) fn delete(groups: &Coordinator, asked: &DeleteGroupsRequest) -> DeleteGroupsResponse {
    let results = asked.groups_names.iter().map(|name| {
        DeletableGroupResult::default()
            .with_group_id(name.clone())
            .with_error_code(code(groups.delete(name)))
    });
    DeleteGroupsResponse::default().with_results(results.collect())
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
