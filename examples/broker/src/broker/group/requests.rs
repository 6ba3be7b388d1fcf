//! `JoinGroup`, `SyncGroup`, `Heartbeat` and `LeaveGroup`.

use std::{net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
        LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
        join_group_response::JoinGroupResponseMember, leave_group_request::MemberIdentity,
        leave_group_response::MemberResponse,
    },
    protocol::StrBytes,
};

use super::{
    coordinator::Coordinator,
    message::{Client, Identity, Join, JoinOutcome, Joined, Name, NotJoined, SyncOutcome, bytes},
    state::MAX_GROUP_BYTES,
};
use crate::broker::{
    Reply, frame,
    request::{Header, Malformed},
};

/// Bytes of metadata that a member may have.
const MAX_METADATA_BYTES: usize = 256 << 10;

/// The first version in which the rebalance timeout is told; before that it is the session's.
const TELLS_REBALANCE_TIMEOUT: i16 = 1;
/// The first version whose clients come back with the id that they are given.
const KNOWS_ITS_ID: i16 = 4;
/// The first version in which the protocol type is answered, and the protocol may be none.
const TELLS_PROTOCOL_TYPE: i16 = 7;
/// The first version in which a leader can be told to assign nothing.
const CAN_SKIP_ASSIGNMENT: i16 = 9;

/// The first version of a sync that tells protocols.
const SYNC_TELLS_PROTOCOL: i16 = 5;

/// The first version in which several members may leave.
const LEAVE_MANY: i16 = 3;

/// Takes a member into a group.
pub(crate) fn join(
    groups: &Coordinator,
    header: Header,
    client_id: &str,
    asked: &JoinGroupRequest,
    peer: SocketAddr,
) -> Result<Reply, Malformed> {
    let client = Client { id: client_id.into(), host: format!("/{}", peer.ip()).into() };
    let join = read_join(header, client, asked);
    let joining = if bytes(&join.protocols) > MAX_METADATA_BYTES {
        Err(NotJoined { error: ResponseError::InvalidRequest, member: join.member })
    } else {
        groups.join(&asked.group_id, join)
    };
    match joining {
        Err(refused) => encode_join(header, Err(refused)).map(Reply::Now),
        Ok(joining) => {
            Ok(Reply::Later(Box::pin(
                async move { encode_join(header, joining.ended().await?).ok() },
            )))
        }
    }
}

fn read_join(header: Header, client: Client, asked: &JoinGroupRequest) -> Join {
    let session_timeout = millis(asked.session_timeout_ms);
    let has_own = header.version >= TELLS_REBALANCE_TIMEOUT && asked.rebalance_timeout_ms >= 0;
    let protocols = asked.protocols.iter();
    Join {
        member: name(&asked.member_id),
        new_id: Name::default(),
        must_know_id: header.version >= KNOWS_ITS_ID,
        can_skip_assignment: header.version >= CAN_SKIP_ASSIGNMENT,
        instance: asked.group_instance_id.as_ref().map(name),
        client,
        session_timeout,
        rebalance_timeout: if has_own {
            millis(asked.rebalance_timeout_ms)
        } else {
            session_timeout
        },
        protocol_type: name(&asked.protocol_type),
        protocols: protocols.map(|known| (name(&known.name), own(&known.metadata))).collect(),
    }
}

fn encode_join(header: Header, outcome: JoinOutcome) -> Result<BytesMut, Malformed> {
    let response = match outcome {
        Ok(joined) => joined_response(header, joined),
        Err(NotJoined { error, member }) => {
            let no_protocol = (header.version < TELLS_PROTOCOL_TYPE).then(StrBytes::default);
            JoinGroupResponse::default()
                .with_error_code(error.code())
                .with_generation_id(-1)
                .with_protocol_name(no_protocol)
                .with_member_id(text(&member))
        }
    };
    frame::encode(ApiKey::JoinGroup, header, &response)
}

fn joined_response(header: Header, joined: Joined) -> JoinGroupResponse {
    let members = joined.members.into_iter().map(|member| {
        let instance = member.instance.as_ref().map(text).filter(|_| header.version >= 5);
        JoinGroupResponseMember::default()
            .with_member_id(text(&member.id))
            .with_group_instance_id(instance)
            .with_metadata(member.metadata)
    });
    let protocol_type = Some(text(&joined.protocol_type));
    JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type(protocol_type.filter(|_| header.version >= TELLS_PROTOCOL_TYPE))
        .with_protocol_name(Some(text(&joined.protocol)))
        .with_leader(text(&joined.leader))
        .with_skip_assignment(joined.must_skip_assignment)
        .with_member_id(text(&joined.member))
        .with_members(members.collect())
}

/// Hands in assignments, and waits for the member's own.
pub(crate) fn sync(
    groups: &Coordinator,
    header: Header,
    asked: &SyncGroupRequest,
) -> Result<Reply, Malformed> {
    let identity = Identity {
        member: name(&asked.member_id),
        instance: asked.group_instance_id.as_ref().map(name),
        generation: asked.generation_id,
    };
    let assigned = asked.assignments.iter();
    let assignments: Vec<_> =
        assigned.map(|each| (name(&each.member_id), own(&each.assignment))).collect();
    let bytes: usize = assignments.iter().map(|(_, assignment)| assignment.len()).sum();
    let syncing = if bytes > MAX_GROUP_BYTES {
        Err(ResponseError::InvalidRequest)
    } else {
        groups.sync(&asked.group_id, identity, assignments)
    };
    match syncing {
        Err(error) => encode_sync(header, Err(error)).map(Reply::Now),
        Ok(syncing) => {
            Ok(Reply::Later(Box::pin(
                async move { encode_sync(header, syncing.ended().await?).ok() },
            )))
        }
    }
}

fn encode_sync(header: Header, outcome: SyncOutcome) -> Result<BytesMut, Malformed> {
    let response = match outcome {
        Ok(synced) => {
            let response = SyncGroupResponse::default().with_assignment(synced.assignment);
            if header.version >= SYNC_TELLS_PROTOCOL {
                response
                    .with_protocol_type(Some(text(&synced.protocol_type)))
                    .with_protocol_name(Some(text(&synced.protocol)))
            } else {
                response
            }
        }
        Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
    };
    frame::encode(ApiKey::SyncGroup, header, &response)
}

/// Puts off the end of a member's session.
pub(crate) fn heartbeat(
    groups: &Coordinator,
    header: Header,
    asked: &HeartbeatRequest,
) -> Result<BytesMut, Malformed> {
    let identity = Identity {
        member: name(&asked.member_id),
        instance: asked.group_instance_id.as_ref().map(name),
        generation: asked.generation_id,
    };
    let outcome = groups.heartbeat(&asked.group_id, &identity);
    let response = HeartbeatResponse::default().with_error_code(code(outcome));
    frame::encode(ApiKey::Heartbeat, header, &response)
}

/// Has members leave their group.
pub(crate) fn leave(
    groups: &Coordinator,
    header: Header,
    asked: &LeaveGroupRequest,
) -> Result<BytesMut, Malformed> {
    let slot = groups.find(&asked.group_id);
    let leave = |member: &Name, instance: Option<&Name>| match &slot {
        Some(slot) => groups.leave(slot, member, instance),
        None => Err(ResponseError::UnknownMemberId),
    };
    let response = if header.version < LEAVE_MANY {
        let outcome = leave(&name(&asked.member_id), None);
        LeaveGroupResponse::default().with_error_code(code(outcome))
    } else {
        let members = asked.members.iter().map(|who: &MemberIdentity| {
            let instance = who.group_instance_id.as_ref().map(name);
            let outcome = leave(&name(&who.member_id), instance.as_ref());
            MemberResponse::default()
                .with_member_id(text(&name(&who.member_id)))
                .with_group_instance_id(instance.as_ref().map(text))
                .with_error_code(code(outcome))
        });
        LeaveGroupResponse::default().with_members(members.collect())
    };
    frame::encode(ApiKey::LeaveGroup, header, &response)
}

fn millis(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

pub(super) fn code(outcome: Result<(), ResponseError>) -> i16 {
    outcome.map_or_else(|error| error.code(), |()| 0)
}

/// A copy of a text that does not keep the request that it came in.
pub(super) fn name(text: &StrBytes) -> Name {
    Name::from(&**text)
}

pub(super) fn text(name: &Name) -> StrBytes {
    StrBytes::from_string(name.to_string())
}

/// A copy that does not keep the request that it came in.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
