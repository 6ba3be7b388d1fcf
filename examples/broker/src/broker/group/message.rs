//! The requests of members, their answers, the effects of a transition, and commits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use delaywheel::TimeoutKey;

use crate::prelude::*;

/// A name of a group, a member, a group instance or a protocol.
pub(crate) type Name = StrBytes;

/// Returns a copy of a name that does not keep the request that it came in.
pub(crate) fn own(name: &str) -> Name {
    name.to_owned().into()
}

/// The cell in which a transition stores the answer to a join or a sync.
pub(crate) type Answer = Arc<OnceLock<Outcome>>;

pub(crate) type Outcome = Result<Granted>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Granted {
    Joined(JoinGroupResponse),
    Synced(SyncGroupResponse),
}

#[derive(Debug, Default)]
pub(crate) struct Join {
    /// The member's id; empty until the coordinator gives it one.
    pub(crate) member: Name,
    /// Whether the member has just got its id. Until the answer, no client knows it.
    pub(crate) is_new: bool,
    /// The name of a static member, which stays the same when its process restarts.
    pub(crate) instance: Option<Name>,
    /// The program that the member is part of.
    pub(crate) client_id: Name,
    pub(crate) client_host: Name,
    pub(crate) session_timeout: Duration,
    pub(crate) rebalance_timeout: Duration,
    pub(crate) protocol_type: Name,
    /// Protocols for assigning partitions, most wanted first, each with metadata for the leader.
    pub(crate) protocols: Vec<(Name, Bytes)>,
}

impl Join {
    /// Returns the bytes of its protocols.
    pub(crate) fn bytes(&self) -> usize {
        self.protocols.iter().map(|(name, metadata)| name.len() + metadata.len()).sum()
    }
}

/// The partitions of each member, in a form that the members understand.
pub(crate) type Assignments = Vec<(Name, Bytes)>;

/// The sender of each request after a join.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    pub(crate) member: Name,
    pub(crate) instance: Option<Name>,
    pub(crate) generation: i32,
}

/// Work for the coordinator that follows from a transition.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Members whose session starts again.
    pub(crate) started: Vec<Name>,
    /// Sessions that are over.
    pub(crate) stopped: Vec<TimeoutKey>,
    /// A round of joins has begun.
    pub(crate) round: Option<Round>,
    /// Waiting requests may have their answer, or the round of joins may be complete.
    pub(crate) is_changed: bool,
}

impl Effects {
    pub(crate) fn stop(&mut self, session: Option<Session>) {
        self.stopped.extend(session.map(|session| session.key));
    }
}

/// A round of joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) number: u64,
    /// How long members have to join.
    pub(crate) timeout: Duration,
    /// Whether the group was empty, so that more members may be about to come.
    pub(crate) is_first: bool,
}

/// A session in the hands of the timer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) key: TimeoutKey,
    /// Tells a session from those before it of the same member.
    pub(crate) number: u64,
}

/// The committed offsets of a group, by topic and partition.
pub(crate) type Commits = HashMap<TopicName, BTreeMap<i32, OffsetFetchResponsePartitions>>;
