//! The members of a consumer group: they join, assign partitions and send heartbeats until the load
//! ends. The first of them dies once it has its assignment, so that its session times out.

use std::{net::SocketAddr, time::Duration};

use delaywheel::Timer;
use delaywheel_broker::{client::Client, prelude::*};
use tokio::sync::watch;

use crate::Fault;

/// The version of all requests.
const VERSION: i16 = 3;

const GROUP: GroupId = GroupId(StrBytes::from_static_str("load"));
const HEARTBEAT: Duration = Duration::from_millis(300);
const SESSION_MS: i32 = 1_000;
const REBALANCE_MS: i32 = 10_000;

struct Member {
    client: Client,
    id: StrBytes,
    generation: i32,
}

/// Runs a member until the load stops, or until the member dies.
pub(crate) async fn run(
    address: SocketAddr,
    dies: bool,
    timer: Timer,
    stopped: watch::Receiver<bool>,
) -> Result<(), Fault> {
    let client = Client::connect(address).await?;
    let mut member = Member { client, id: StrBytes::default(), generation: -1 };
    loop {
        while !member.join().await? {}
        if dies {
            return Ok(());
        }
        while member.heartbeat().await? {
            if *stopped.borrow() {
                return member.leave().await;
            }
            timer.sleep(HEARTBEAT).await?;
        }
    }
}

impl Member {
    /// Joins, and waits for an assignment. Returns whether it has got one.
    async fn join(&mut self) -> Result<bool, Fault> {
        let protocol = JoinGroupRequestProtocol::default();
        let request = JoinGroupRequest::default()
            .with_group_id(GROUP)
            .with_member_id(self.id.clone())
            .with_session_timeout_ms(SESSION_MS)
            .with_rebalance_timeout_ms(REBALANCE_MS)
            .with_protocol_type(StrBytes::from_static_str("consumer"))
            .with_protocols(vec![protocol.with_name(StrBytes::from_static_str("range"))]);
        let joined = self.client.call(VERSION, &request).await?;
        if !self.is_accepted(joined.error_code)? {
            return Ok(false);
        }
        (self.id, self.generation) = (joined.member_id, joined.generation_id);
        // Each member gets its own id as its assignment.
        let assign = |member: JoinGroupResponseMember| {
            SyncGroupRequestAssignment::default()
                .with_assignment(Bytes::copy_from_slice(member.member_id.as_bytes()))
                .with_member_id(member.member_id)
        };
        let request = SyncGroupRequest::default()
            .with_group_id(GROUP)
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone())
            .with_assignments(joined.members.into_iter().map(assign).collect());
        let synced = self.client.call(VERSION, &request).await?;
        let is_accepted = self.is_accepted(synced.error_code)?;
        if is_accepted && synced.assignment != self.id.as_bytes() {
            return Err("a member got the assignment of another".into());
        }
        Ok(is_accepted)
    }

    /// Sends a heartbeat. Returns `false` if the member has to join again.
    async fn heartbeat(&mut self) -> Result<bool, Fault> {
        let request = HeartbeatRequest::default()
            .with_group_id(GROUP)
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone());
        let error = self.client.call(VERSION, &request).await?.error_code;
        self.is_accepted(error)
    }

    async fn leave(&mut self) -> Result<(), Fault> {
        let member = MemberIdentity::default().with_member_id(self.id.clone());
        let request = LeaveGroupRequest::default().with_group_id(GROUP).with_members(vec![member]);
        self.client.call(VERSION, &request).await?;
        Ok(())
    }

    /// Returns whether a request has succeeded; `false` if the member has to join again.
    fn is_accepted(&mut self, code: i16) -> Result<bool, Fault> {
        match ResponseError::try_from_code(code) {
            None => Ok(true),
            Some(ResponseError::RebalanceInProgress) => Ok(false),
            Some(ResponseError::UnknownMemberId) => {
                self.id = StrBytes::default();
                Ok(false)
            }
            Some(error) => Err(format!("the broker refused a member of a group: {error}").into()),
        }
    }
}
