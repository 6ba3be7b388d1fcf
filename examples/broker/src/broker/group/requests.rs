//! `JoinGroup`, `SyncGroup`, `Heartbeat` and `LeaveGroup`.

use std::{net::SocketAddr, time::Duration};

use super::{
    coordinator::{Coordinator, Waits},
    message::{Assignments, Granted, Identity, Join, Name, own},
    state::MAX_GROUP_BYTES,
};
use crate::broker::{Handled, Reply, frame, request::Header};
use crate::prelude::*;

/// Bytes that the protocols of a member may have.
const MAX_MEMBER_BYTES: usize = 256 << 10;

/// Protocols that a member may have. Each join compares those of all members.
const MAX_PROTOCOLS: usize = 50;

/// The first version with a rebalance timeout; before that it is the session's.
const TELLS_REBALANCE_TIMEOUT: i16 = 1;
/// The first version in which the protocol of the answer may be none.
const PROTOCOL_MAY_BE_NONE: i16 = 7;

/// The first version in which several members may leave.
const LEAVE_MANY: i16 = 3;

pub(crate) fn join(
    groups: &Coordinator,
    header: Header,
    client_id: &str,
    asked: &JoinGroupRequest,
    peer: SocketAddr,
) -> Handled {
    let member = own(&asked.member_id);
    let has_own = header.version >= TELLS_REBALANCE_TIMEOUT && asked.rebalance_timeout_ms >= 0;
    let rebalance = if has_own { asked.rebalance_timeout_ms } else { asked.session_timeout_ms };
    // Copies do not keep the request that they came in.
    let protocols = asked.protocols.iter();
    let protocols = protocols.map(|one| (own(&one.name), Bytes::copy_from_slice(&one.metadata)));
    let join = Join {
        member: member.clone(),
        instance: asked.group_instance_id.as_ref().map(|name| own(name)),
        client_id: own(client_id),
        client_host: format!("/{}", peer.ip()).into(),
        session_timeout: millis(asked.session_timeout_ms),
        rebalance_timeout: millis(rebalance),
        protocol_type: own(&asked.protocol_type),
        protocols: protocols.collect(),
        ..Join::default()
    };
    let is_short = check_length(join.bytes(), MAX_MEMBER_BYTES)
        .and_then(|()| check_length(join.protocols.len(), MAX_PROTOCOLS));
    let joining = is_short.and_then(|()| groups.join(&asked.group_id, join));
    let protocol = (header.version < PROTOCOL_MAY_BE_NONE).then(StrBytes::default);
    let refused = JoinGroupResponse::default()
        .with_generation_id(-1)
        .with_protocol_name(protocol)
        .with_member_id(member);
    reply(header, joining, |error| Granted::Joined(refused.with_error_code(error.code())))
}

pub(crate) fn sync(groups: &Coordinator, header: Header, asked: &SyncGroupRequest) -> Handled {
    let who = identity(&asked.member_id, asked.group_instance_id.as_ref(), asked.generation_id);
    let assigned = asked.assignments.iter().map(|each| (own(&each.member_id), &each.assignment));
    let copied = assigned.map(|(id, bytes)| (id, Bytes::copy_from_slice(bytes)));
    let assignments = copied.collect::<Assignments>();
    let bytes: usize = assignments.iter().map(|(_, assignment)| assignment.len()).sum();
    let is_short = check_length(bytes, MAX_GROUP_BYTES);
    let syncing = is_short.and_then(|()| groups.sync(&asked.group_id, who, assignments));
    let refused = SyncGroupResponse::default();
    reply(header, syncing, |error| Granted::Synced(refused.with_error_code(error.code())))
}

fn check_length(length: usize, limit: usize) -> Result<()> {
    if length > limit { Err(ResponseError::InvalidRequest) } else { Ok(()) }
}

/// Answers at once, or when the request has waited.
fn reply(
    header: Header,
    waits: Result<Waits>,
    refused: impl FnOnce(ResponseError) -> Granted + Send + 'static,
) -> Handled {
    let encode = move |granted| match granted {
        Granted::Joined(joined) => frame::encode(header, &joined),
        Granted::Synced(synced) => frame::encode(header, &synced),
    };
    match waits {
        Err(error) => encode(refused(error)).map(Reply::Now),
        Ok(waits) => Ok(Reply::Later(Box::pin(async move {
            encode(waits.ended().await?.unwrap_or_else(refused)).ok()
        }))),
    }
}

pub(crate) fn heartbeat(groups: &Coordinator, asked: &HeartbeatRequest) -> HeartbeatResponse {
    let who = identity(&asked.member_id, asked.group_instance_id.as_ref(), asked.generation_id);
    let outcome = groups.heartbeat(&asked.group_id, &who);
    HeartbeatResponse::default().with_error_code(code(outcome))
}

pub(crate) fn leave(
    groups: &Coordinator,
    version: i16,
    asked: &LeaveGroupRequest,
) -> LeaveGroupResponse {
    let leave = |member: &Name, instance: Option<&Name>| {
        code(groups.leave(&asked.group_id, &own(member), instance.map(|name| own(name)).as_ref()))
    };
    if version < LEAVE_MANY {
        return LeaveGroupResponse::default().with_error_code(leave(&asked.member_id, None));
    }
    let members = asked.members.iter().map(|who| {
        MemberResponse::default()
            .with_error_code(leave(&who.member_id, who.group_instance_id.as_ref()))
            .with_member_id(who.member_id.clone())
            .with_group_instance_id(who.group_instance_id.clone())
    });
    LeaveGroupResponse::default().with_members(members.collect())
}

pub(super) fn identity(member: &Name, instance: Option<&Name>, generation: i32) -> Identity {
    Identity { member: own(member), instance: instance.map(|name| own(name)), generation }
}

fn millis(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

pub(super) fn code(outcome: Result<()>) -> i16 {
    outcome.map_or_else(|error| error.code(), |()| 0)
}
