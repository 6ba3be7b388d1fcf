//! `JoinGroup`, `SyncGroup`, `Heartbeat` and `LeaveGroup`.

use std::{net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use kafka_protocol::{
    ResponseError,
    messages::{
        HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
        LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
        join_group_response::JoinGroupResponseMember, leave_group_response::MemberResponse,
    },
    protocol::StrBytes,
};

use super::{
    coordinator::{Coordinator, Waits},
    message::{Client, Granted, Identity, Join, Joined, Name, Outcome, Synced},
    state::MAX_GROUP_BYTES,
};
use crate::broker::{
    Reply, frame,
    request::{Header, Malformed},
};

/// Bytes of metadata that a member may have.
const MAX_METADATA_BYTES: usize = 256 << 10;

/// The first version with a rebalance timeout; before that it is the session's.
const TELLS_REBALANCE_TIMEOUT: i16 = 1;
/// The first version whose clients come back with their new id.
const KNOWS_ITS_ID: i16 = 4;
/// The first version with static members.
const KNOWS_INSTANCES: i16 = 5;
/// The first version in which the answer has the protocol type, and the protocol may be none.
const TELLS_PROTOCOL_TYPE: i16 = 7;
/// The first version in which a leader can skip the assignment.
const CAN_SKIP_ASSIGNMENT: i16 = 9;

/// The first version of a sync that tells protocols.
const SYNC_TELLS_PROTOCOL: i16 = 5;

/// The first version in which several members may leave.
const LEAVE_MANY: i16 = 3;

/// Adds a member to a group, or lets it join again.
pub(crate) fn join(
    groups: &Coordinator,
    header: Header,
    client_id: &str,
    asked: &JoinGroupRequest,
    peer: SocketAddr,
) -> Result<Reply, Malformed> {
    let version = header.version;
    let client = Client { id: client_id.into(), host: format!("/{}", peer.ip()).into() };
    let join = read_join(version, client, asked);
    let member = text(&join.member);
    let joining = if join.bytes() > MAX_METADATA_BYTES {
        Err(ResponseError::InvalidRequest)
    } else {
        groups.join(&asked.group_id, join)
    };
    reply(joining, move |outcome| {
        let response = match outcome {
            Ok(Granted::Joined(joined)) => joined_response(version, joined),
            Ok(Granted::Id(id)) => refused(version, ResponseError::MemberIdRequired, text(&id)),
            Ok(Granted::Synced(_)) => return Err(Malformed),
            Err(error) => refused(version, error, member),
        };
        frame::encode(header, &response)
    })
}

fn read_join(version: i16, client: Client, asked: &JoinGroupRequest) -> Join {
    let has_own = version >= TELLS_REBALANCE_TIMEOUT && asked.rebalance_timeout_ms >= 0;
    let rebalance = if has_own { asked.rebalance_timeout_ms } else { asked.session_timeout_ms };
    let protocols = asked.protocols.iter();
    Join {
        member: name(&asked.member_id),
        new_id: Name::default(),
        must_know_id: version >= KNOWS_ITS_ID,
        can_skip_assignment: version >= CAN_SKIP_ASSIGNMENT,
        instance: asked.group_instance_id.as_ref().map(name),
        client,
        session_timeout: millis(asked.session_timeout_ms),
        rebalance_timeout: millis(rebalance),
        protocol_type: name(&asked.protocol_type),
        protocols: protocols.map(|known| (name(&known.name), own(&known.metadata))).collect(),
    }
}

fn joined_response(version: i16, joined: Joined) -> JoinGroupResponse {
    let members = joined.members.into_iter().map(|member| {
        let instance = member.instance.as_ref().map(text);
        JoinGroupResponseMember::default()
            .with_member_id(text(&member.id))
            .with_group_instance_id(instance.filter(|_| version >= KNOWS_INSTANCES))
            .with_metadata(member.metadata)
    });
    let protocol_type = Some(text(&joined.protocol_type));
    JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type(protocol_type.filter(|_| version >= TELLS_PROTOCOL_TYPE))
        .with_protocol_name(Some(text(&joined.protocol)))
        .with_leader(text(&joined.leader))
        .with_skip_assignment(joined.must_skip_assignment)
        .with_member_id(text(&joined.member))
        .with_members(members.collect())
}

fn refused(version: i16, error: ResponseError, member: StrBytes) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(error.code())
        .with_generation_id(-1)
        .with_protocol_name((version < TELLS_PROTOCOL_TYPE).then(StrBytes::default))
        .with_member_id(member)
}

/// Takes assignments, and waits for the member's own.
pub(crate) fn sync(
    groups: &Coordinator,
    header: Header,
    asked: &SyncGroupRequest,
) -> Result<Reply, Malformed> {
    let who = identity(&asked.member_id, asked.group_instance_id.as_ref(), asked.generation_id);
    let assigned = asked.assignments.iter();
    let assignments: Vec<_> =
        assigned.map(|each| (name(&each.member_id), own(&each.assignment))).collect();
    let bytes: usize = assignments.iter().map(|(_, assignment)| assignment.len()).sum();
    let syncing = if bytes > MAX_GROUP_BYTES {
        Err(ResponseError::InvalidRequest)
    } else {
        groups.sync(&asked.group_id, who, assignments)
    };
    reply(syncing, move |outcome| {
        let response = match outcome {
            Ok(Granted::Synced(synced)) => synced_response(header.version, synced),
            Ok(_) => return Err(Malformed),
            Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
        };
        frame::encode(header, &response)
    })
}

fn synced_response(version: i16, synced: Synced) -> SyncGroupResponse {
    let response = SyncGroupResponse::default().with_assignment(synced.assignment);
    if version < SYNC_TELLS_PROTOCOL {
        return response;
    }
    response
        .with_protocol_type(Some(text(&synced.protocol_type)))
        .with_protocol_name(Some(text(&synced.protocol)))
}

/// Answers at once, or when the request has waited.
fn reply(
    waits: Result<Waits, ResponseError>,
    encode: impl FnOnce(Outcome) -> Result<BytesMut, Malformed> + Send + 'static,
) -> Result<Reply, Malformed> {
    match waits {
        Err(error) => encode(Err(error)).map(Reply::Now),
        Ok(waits) => Ok(Reply::Later(Box::pin(async move { encode(waits.ended().await?).ok() }))),
    }
}

/// Puts off the end of a member's session.
pub(crate) fn heartbeat(groups: &Coordinator, asked: &HeartbeatRequest) -> HeartbeatResponse {
    let who = identity(&asked.member_id, asked.group_instance_id.as_ref(), asked.generation_id);
    let outcome = groups.heartbeat(&asked.group_id, &who);
    HeartbeatResponse::default().with_error_code(code(outcome))
}

/// Removes members that leave their group.
pub(crate) fn leave(
    groups: &Coordinator,
    version: i16,
    asked: &LeaveGroupRequest,
) -> LeaveGroupResponse {
    let leave = |member: &StrBytes, instance: Option<&StrBytes>| {
        code(groups.leave(&asked.group_id, &name(member), instance.map(name).as_ref()))
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

pub(super) fn identity(
    member: &StrBytes,
    instance: Option<&StrBytes>,
    generation: i32,
) -> Identity {
    Identity { member: name(member), instance: instance.map(name), generation }
}

fn millis(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

pub(super) fn code(outcome: Result<(), ResponseError>) -> i16 {
    outcome.map_or_else(|error| error.code(), |()| 0)
}

/// A copy of a text that does not keep the request that it came in.
fn name(text: &StrBytes) -> Name {
    Name::from(&**text)
}

pub(super) fn text(name: &Name) -> StrBytes {
    StrBytes::from_string(name.to_string())
}

/// A copy that does not keep the request that it came in.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
