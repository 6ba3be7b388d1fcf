//! The members of a consumer group: they join, share out partitions and send heartbeats until the
//! load ends. The first of them dies once it has its assignment, so that its session times out.

use std::{net::SocketAddr, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use delaywheel::Timer;
use kafka_protocol::{
    ResponseError,
    messages::{
        ApiKey, GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, RequestHeader,
        ResponseHeader, SyncGroupRequest, join_group_request::JoinGroupRequestProtocol,
        join_group_response::JoinGroupResponseMember, leave_group_request::MemberIdentity,
        sync_group_request::SyncGroupRequestAssignment,
    },
    protocol::{Decodable, Encodable, Request, StrBytes},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use crate::{Fault, load::pause};

/// The versions of the requests, which all have the same encoding of lengths.
const VERSION: i16 = 3;

const HEARTBEAT: Duration = Duration::from_millis(300);
const SESSION_MS: i32 = 1_000;
const REBALANCE_MS: i32 = 10_000;

/// A member, with a connection of its own.
struct Member {
    stream: TcpStream,
    id: StrBytes,
    generation: i32,
}

/// Runs a member until the load is stopped, or until it dies.
pub(crate) async fn run(
    address: SocketAddr,
    dies: bool,
    timer: Timer,
    stopped: watch::Receiver<bool>,
) -> Result<(), Fault> {
    let stream = TcpStream::connect(address).await?;
    let mut member = Member { stream, id: StrBytes::default(), generation: -1 };
    while member.joins().await? {
        while !dies && member.beats().await? {
            if *stopped.borrow() {
                return member.leave().await;
            }
            pause(&timer, HEARTBEAT).await;
        }
        if dies {
            break;
        }
    }
    Ok(())
}

impl Member {
    /// Joins, and waits for an assignment. Returns `true` once there is one.
    async fn joins(&mut self) -> Result<bool, Fault> {
        loop {
            let protocol =
                JoinGroupRequestProtocol::default().with_name(StrBytes::from_static_str("range"));
            let request = JoinGroupRequest::default()
                .with_group_id(group())
                .with_member_id(self.id.clone())
                .with_session_timeout_ms(SESSION_MS)
                .with_rebalance_timeout_ms(REBALANCE_MS)
                .with_protocol_type(StrBytes::from_static_str("consumer"))
                .with_protocols(vec![protocol]);
            let joined = self.call(&request).await?;
            if !self.is_accepted(joined.error_code)? {
                continue;
            }
            (self.id, self.generation) = (joined.member_id, joined.generation_id);
            // Each member gets its own id as its assignment.
            let assign = |member: JoinGroupResponseMember| {
                SyncGroupRequestAssignment::default()
                    .with_assignment(Bytes::copy_from_slice(member.member_id.as_bytes()))
                    .with_member_id(member.member_id)
            };
            let request = SyncGroupRequest::default()
                .with_group_id(group())
                .with_generation_id(self.generation)
                .with_member_id(self.id.clone())
                .with_assignments(joined.members.into_iter().map(assign).collect());
            let synced = self.call(&request).await?;
            if self.is_accepted(synced.error_code)? {
                let is_own = synced.assignment == self.id.as_bytes();
                return if is_own { Ok(true) } else { Err("an assignment went astray".into()) };
            }
        }
    }

    /// Sends a heartbeat. Returns whether the member need not join again.
    async fn beats(&mut self) -> Result<bool, Fault> {
        let request = HeartbeatRequest::default()
            .with_group_id(group())
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone());
        let error = self.call(&request).await?.error_code;
        self.is_accepted(error)
    }

    async fn leave(&mut self) -> Result<(), Fault> {
        let member = MemberIdentity::default().with_member_id(self.id.clone());
        let request =
            LeaveGroupRequest::default().with_group_id(group()).with_members(vec![member]);
        self.call(&request).await.map(drop)
    }

    /// Returns whether a request has succeeded: `false` if the broker asks the member to join again,
    /// as after a timeout of its session.
    fn is_accepted(&mut self, code: i16) -> Result<bool, Fault> {
        match ResponseError::try_from_code(code) {
            None => Ok(true),
            Some(ResponseError::RebalanceInProgress) => Ok(false),
            Some(ResponseError::UnknownMemberId) => {
                self.id = StrBytes::default();
                Ok(false)
            }
            Some(error) => Err(format!("a member of a group was refused: {error}").into()),
        }
    }

    async fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, Fault> {
        let key = ApiKey::try_from(R::KEY).map_err(|()| "a request is unknown")?;
        let mut frame = BytesMut::new();
        RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(VERSION)
            .encode(&mut frame, key.request_header_version(VERSION))?;
        request.encode(&mut frame, VERSION)?;
        let mut length = BytesMut::new();
        length.put_i32(i32::try_from(frame.len())?);
        self.stream.write_all_buf(&mut length.chain(frame)).await?;
        let length = usize::try_from(self.stream.read_i32().await?)?;
        let mut answer = BytesMut::zeroed(length);
        self.stream.read_exact(&mut answer).await?;
        let mut answer = answer.freeze();
        ResponseHeader::decode(&mut answer, key.response_header_version(VERSION))?;
        Ok(R::Response::decode(&mut answer, VERSION)?)
    }
}

fn group() -> GroupId {
    GroupId(StrBytes::from_static_str("load"))
}
