//! The state machine of one consumer group: members, rounds of joins, generations, assignments.
//!
//! It reads no clock and calls nothing. Each transition changes the state and records [`Effects`],
//! which the [coordinator](super::coordinator) carries out. A group goes through these phases:
//!
//! ```text
//!             first join             end of the round              assignments
//!     Empty -------------> Joining -------------------> Syncing -----------------> Stable
//!                             ^    all have joined, or     |    of the leader        |
//!                             |    the time is over        |                         |
//!                             +----------------------------+-------------------------+
//!                                 a member joins, leaves or dies: the next round
//! ```
//!
//! A group without members is `Empty`, whatever phase it was in. A member either waits for the
//! answer to a request, which is a join in `Joining` and a sync in `Syncing`, or has a session,
//! which ends unless heartbeats come.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::message::{
    Answer, Assignments, Effects, Granted, Identity, Join, Name, Outcome, Round, Session,
};
use crate::prelude::*;

/// Limit of the protocols of all members of a group in bytes, names included, and of all
/// assignments. The leader gets all metadata in one answer.
pub(crate) const MAX_GROUP_BYTES: usize = 4 << 20;

const MAX_MEMBERS: usize = 1_000;

/// The step of a rebalance in which a group is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There are no members.
    #[default]
    Empty,
    /// The group waits for its members to join.
    Joining,
    /// The group waits for the assignments of its leader.
    Syncing,
    /// Each member has its assignment.
    Stable,
}

#[derive(Debug)]
pub(crate) struct Member {
    /// Its latest join.
    pub(crate) join: Join,
    pub(crate) assignment: Bytes,
    /// The request that waits.
    waiting: Option<Answer>,
    session: Option<Session>,
}

impl Member {
    fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.join.protocols.iter().find(|(name, _)| **name == *protocol);
        found.map_or_else(Bytes::new, |(_, metadata)| metadata.clone())
    }

    /// Replaces the join. A static member stays one.
    fn update(&mut self, join: Join) {
        let instance = self.join.instance.take();
        self.join = join;
        self.join.instance = self.join.instance.take().or(instance);
    }

    /// Ends the wait with an error, or the session.
    fn interrupt(&mut self, error: ResponseError, effects: &mut Effects) {
        effects.stop(self.session.take());
        if let Some(waiting) = self.waiting.take() {
            set(&waiting, Err(error));
            effects.is_changed = true;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Group {
    phase: Phase,
    generation: i32,
    /// The latest round of joins.
    round: u64,
    /// Whether a member was added to the round since the last check.
    has_grown: bool,
    pub(crate) protocol_type: Name,
    protocol: Option<Name>,
    /// The member that makes the assignments. No member has an empty id.
    leader: Name,
    members: HashMap<Name, Member>,
    /// Work that the transitions have left for the coordinator.
    effects: Effects,
}

impl Group {
    /// Returns an empty group. Its generations and rounds follow after these.
    pub(crate) fn new(generation: i32, round: u64) -> Self {
        Self { generation, round, ..Self::default() }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn generation(&self) -> i32 {
        self.generation
    }

    /// Returns the effects of the transitions since the last call.
    pub(crate) fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Returns how long the slowest member may take for a step of a rebalance.
    pub(crate) fn rebalance_timeout(&self) -> Duration {
        let timeouts = self.members.values().map(|member| member.join.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    pub(crate) fn protocol(&self) -> Name {
        self.protocol.clone().unwrap_or_default()
    }

    /// Returns the members, each with its metadata for the protocol of the group.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&Name, &Member, Bytes)> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        self.members.iter().map(move |(id, member)| (id, member, member.metadata(protocol)))
    }

    /// Adds a member, or lets it join again. The answer comes at once, or at the end of the round.
    pub(crate) fn join(&mut self, join: Join, answer: &Answer) -> Result<()> {
        self.check_protocols(&join)?;
        let instance = join.instance.as_ref();
        if !join.is_new {
            self.identify(&join.member, instance)?;
            self.rejoin(join, answer);
            return Ok(());
        }
        let predecessor = instance.and_then(|instance| self.find_instance(instance)).cloned();
        match predecessor {
            Some(old) => self.replace(&old, join, answer),
            None if self.members.len() < MAX_MEMBERS => self.admit(join, answer),
            None => return Err(ResponseError::GroupMaxSizeReached),
        }
        Ok(())
    }

    /// Checks that a member has a protocol in common with all others, and that its metadata fits.
    fn check_protocols(&self, join: &Join) -> Result<()> {
        let others = || self.members.iter().filter(|(id, _)| **id != join.member);
        let is_same_type = self.protocol_type == join.protocol_type;
        let common = common_protocols(others().map(|(_, member)| member));
        let is_common = join.protocols.iter().any(|(name, _)| common.contains(name));
        let is_compatible = others().next().is_none() || is_same_type && is_common;
        if join.protocol_type.is_empty() || join.protocols.is_empty() || !is_compatible {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        let bytes: usize = others().map(|(_, member)| member.join.bytes()).sum();
        let fits = bytes + join.bytes() <= MAX_GROUP_BYTES;
        if fits { Ok(()) } else { Err(ResponseError::GroupMaxSizeReached) }
    }

    fn admit(&mut self, join: Join, answer: &Answer) {
        if self.members.is_empty() {
            self.protocol_type = join.protocol_type.clone();
        }
        let (id, assignment) = (join.member.clone(), Bytes::new());
        let member = Member { join, assignment, waiting: None, session: None };
        self.members.insert(id.clone(), member);
        // A round that begins now reverts this.
        self.has_grown = true;
        self.wait_for_round(&id, answer);
    }

    fn rejoin(&mut self, join: Join, answer: &Answer) {
        let id = join.member.clone();
        let is_leader = self.leader == id;
        let Some(member) = self.members.get_mut(&id) else { return };
        let is_same = member.join.protocols == join.protocols;
        member.update(join);
        let has_its_answer = match self.phase {
            Phase::Stable => is_same && !is_leader,
            // The member may have missed the answer to its join.
            Phase::Syncing => is_same,
            Phase::Joining | Phase::Empty => false,
        };
        if has_its_answer {
            member.interrupt(ResponseError::RebalanceInProgress, &mut self.effects);
            set(answer, Ok(Granted::Joined(self.joined(&id))));
            self.effects.started.push(id);
        } else {
            self.wait_for_round(&id, answer);
        }
    }

    /// Puts a static member that has restarted in the place of its predecessor.
    fn replace(&mut self, old: &Name, join: Join, answer: &Answer) {
        let id = join.member.clone();
        let Some(mut member) = self.members.remove(old) else { return };
        member.interrupt(ResponseError::FencedInstanceId, &mut self.effects);
        member.update(join);
        self.members.insert(id.clone(), member);
        let was_leader = self.leader == *old;
        if was_leader {
            self.leader = id.clone();
        }
        self.effects.is_changed = true;
        if self.phase != Phase::Stable || self.protocol != self.choose_protocol() {
            self.wait_for_round(&id, answer);
            return;
        }
        let mut joined = self.joined(&id);
        if was_leader {
            // The assignments stay as they are, so the leader must not make new ones.
            joined.leader = old.clone();
            joined.members.clear();
        }
        set(answer, Ok(Granted::Joined(joined)));
        self.effects.started.push(id);
    }

    /// Lets a member wait for the end of the round, which begins if there is none.
    fn wait_for_round(&mut self, id: &Name, answer: &Answer) {
        self.begin_round();
        self.wait(id, answer);
    }

    /// Lets a member wait. Ends its session, or its wait for the answer to another request.
    fn wait(&mut self, id: &Name, answer: &Answer) {
        if let Some(member) = self.members.get_mut(id) {
            member.interrupt(ResponseError::RebalanceInProgress, &mut self.effects);
            member.waiting = Some(Arc::clone(answer));
        }
    }

    /// Begins a round of joins, unless one is on its way. The group has members.
    fn begin_round(&mut self) {
        self.effects.is_changed = true;
        if self.phase == Phase::Joining {
            return;
        }
        for (id, member) in &mut self.members {
            member.assignment = Bytes::new();
            // Its sync.
            if let Some(waiting) = member.waiting.take() {
                set(&waiting, Err(ResponseError::RebalanceInProgress));
                self.effects.started.push(id.clone());
            }
        }
        let is_first = self.phase == Phase::Empty;
        self.phase = Phase::Joining;
        self.next_round(is_first);
    }

    fn next_round(&mut self, is_first: bool) {
        self.round += 1;
        self.has_grown = false;
        let timeout = self.rebalance_timeout();
        self.effects.round = Some(Round { number: self.round, timeout, is_first });
    }

    /// Returns whether a round need not wait any longer: all members have joined, or it is over.
    ///
    /// A first round waits for members that the group does not know yet.
    pub(crate) fn is_round_complete(&self, round: Round) -> bool {
        if self.phase != Phase::Joining || self.round != round.number {
            return true;
        }
        !round.is_first && self.members.values().all(|member| member.waiting.is_some())
    }

    /// Returns whether members were added to the present round since the last call.
    pub(crate) fn take_growth(&mut self, round: Round) -> bool {
        self.round == round.number && std::mem::take(&mut self.has_grown)
    }

    /// Ends a round of joins: the members that have joined form the next generation, and dynamic
    /// members that have not are removed. Static members may come back within their session.
    pub(crate) fn end_round(&mut self, round: Round) {
        if self.phase != Phase::Joining || self.round != round.number {
            return;
        }
        self.members.retain(|_, member| {
            let stays = member.waiting.is_some() || member.join.instance.is_some();
            if !stays {
                self.effects.stop(member.session.take());
            }
            stays
        });
        if self.members.is_empty() {
            self.become_empty();
            return;
        }
        let joined = self.members.iter().filter(|(_, member)| member.waiting.is_some());
        // The old leader stays, if it has joined.
        let leader = joined.map(|(id, _)| id).min_by_key(|&id| (self.leader != *id, id));
        let Some(leader) = leader.cloned() else {
            // All members are static, and each may still come back.
            self.next_round(false);
            return;
        };
        self.leader = leader;
        self.generation = self.generation.wrapping_add(1).max(1);
        self.protocol = self.choose_protocol();
        self.phase = Phase::Syncing;
        self.answer_all();
    }

    /// Answers the members that wait: the step of the rebalance has ended.
    fn answer_all(&mut self) {
        self.effects.is_changed = true;
        let ids: Vec<_> = self.members.keys().cloned().collect();
        for id in ids {
            let Some(member) = self.members.get_mut(&id) else { continue };
            let Some(waiting) = member.waiting.take() else { continue };
            member.join.is_new = false;
            let granted = match self.phase {
                Phase::Stable => Granted::Synced(self.synced(&id)),
                _ => Granted::Joined(self.joined(&id)),
            };
            set(&waiting, Ok(granted));
            self.effects.started.push(id);
        }
    }

    /// Returns the answer to a member of the present generation. The leader gets all members.
    fn joined(&self, id: &Name) -> JoinGroupResponse {
        let describe = |(id, member, metadata): (&Name, &Member, Bytes)| {
            JoinGroupResponseMember::default()
                .with_member_id(id.clone())
                .with_group_instance_id(member.join.instance.clone())
                .with_metadata(metadata)
        };
        let mut members = Vec::new();
        if self.leader == *id {
            members.extend(self.members().map(describe));
            members.sort_by(|a, b| a.member_id.cmp(&b.member_id));
        }
        JoinGroupResponse::default()
            .with_member_id(id.clone())
            .with_leader(self.leader.clone())
            .with_generation_id(self.generation)
            .with_protocol_type(Some(self.protocol_type.clone()))
            .with_protocol_name(Some(self.protocol()))
            .with_members(members)
    }

    /// Chooses the protocol with most votes. Each member votes for the first in its list of those
    /// that all know.
    fn choose_protocol(&self) -> Option<Name> {
        let common = common_protocols(self.members.values());
        let mut votes = BTreeMap::<&Name, usize>::new();
        for member in self.members.values() {
            let mut wanted = member.join.protocols.iter().map(|(name, _)| name);
            if let Some(favourite) = wanted.find(|name| common.contains(name)) {
                *votes.entry(favourite).or_default() += 1;
            }
        }
        votes.into_iter().max_by_key(|&(_, votes)| votes).map(|(name, _)| name.clone())
    }

    /// Takes the assignments, if they come from the leader. Answers with the member's own
    /// assignment once it exists.
    pub(crate) fn sync(&mut self, who: &Identity, all: Assignments, answer: &Answer) -> Result<()> {
        self.check_generation(who)?;
        match self.phase {
            Phase::Empty => return Err(ResponseError::UnknownMemberId),
            Phase::Joining => return Err(ResponseError::RebalanceInProgress),
            Phase::Stable => {
                self.effects.started.push(who.member.clone());
                set(answer, Ok(Granted::Synced(self.synced(&who.member))));
            }
            Phase::Syncing => {
                self.wait(&who.member, answer);
                if self.leader == who.member {
                    self.assign(all);
                }
            }
        }
        Ok(())
    }

    fn assign(&mut self, assignments: Assignments) {
        for (id, assignment) in assignments {
            if let Some(member) = self.members.get_mut(&id) {
                member.assignment = assignment;
            }
        }
        self.phase = Phase::Stable;
        self.answer_all();
    }

    fn synced(&self, id: &Name) -> SyncGroupResponse {
        let member = self.members.get(id);
        SyncGroupResponse::default()
            .with_protocol_type(Some(self.protocol_type.clone()))
            .with_protocol_name(Some(self.protocol()))
            .with_assignment(member.map(|member| member.assignment.clone()).unwrap_or_default())
    }

    /// Removes the members that have not synced although the time for it is over.
    pub(crate) fn end_sync(&mut self, generation: i32) {
        if self.phase != Phase::Syncing || self.generation != generation {
            return;
        }
        let late = self.members.iter().filter(|(_, member)| member.waiting.is_none());
        let late: Vec<_> = late.map(|(id, _)| id.clone()).collect();
        for id in late {
            self.remove(&id);
        }
    }

    /// Returns the session of a member and its timeout; `None` while a request of the member waits.
    pub(crate) fn session(&self, who: &Identity) -> Result<Option<(Session, Duration)>> {
        let member = self.check_generation(who)?;
        Ok(member.session.map(|session| (session, member.join.session_timeout)))
    }

    /// Removes a member that leaves, by its id or the name of its instance.
    pub(crate) fn leave(&mut self, member: &Name, instance: Option<&Name>) -> Result<()> {
        let named = instance.filter(|_| member.is_empty());
        let found = named.and_then(|instance| self.find_instance(instance)).cloned();
        let id = found.unwrap_or_else(|| member.clone());
        self.identify(&id, instance)?;
        self.remove(&id);
        Ok(())
    }

    /// Checks that a commit of offsets comes from a member, or from a client of a group without
    /// members.
    pub(crate) fn check_commit(&self, who: &Identity) -> Result<()> {
        if who.generation < 0 && who.member.is_empty() && self.members.is_empty() {
            return Ok(());
        }
        self.check_generation(who)?;
        if self.phase == Phase::Syncing { Err(ResponseError::RebalanceInProgress) } else { Ok(()) }
    }

    /// Ends a session, unless a heartbeat has come meanwhile. Returns whether it has ended.
    pub(crate) fn end_session(&mut self, id: &Name, number: u64) -> bool {
        let session = self.members.get(id).and_then(|member| member.session);
        let has_ended = session.is_some_and(|session| session.number == number);
        if has_ended {
            self.remove(id);
        }
        has_ended
    }

    /// Drops the request of a member whose connection has closed.
    pub(crate) fn abandon(&mut self, id: &Name, answer: &Answer) {
        let Some(member) = self.members.get_mut(id) else { return };
        if !member.waiting.as_ref().is_some_and(|waiting| Arc::ptr_eq(waiting, answer)) {
            return;
        }
        member.waiting = None;
        if member.join.is_new && member.join.instance.is_none() {
            self.remove(id);
        } else {
            self.effects.started.push(id.clone());
        }
    }

    /// Removes a member; the others have to share its partitions.
    fn remove(&mut self, id: &Name) {
        let Some(mut member) = self.members.remove(id) else { return };
        member.interrupt(ResponseError::RebalanceInProgress, &mut self.effects);
        self.effects.is_changed = true;
        if self.members.is_empty() {
            self.become_empty();
        } else {
            self.begin_round();
        }
    }

    fn become_empty(&mut self) {
        self.phase = Phase::Empty;
        self.generation = self.generation.wrapping_add(1).max(1);
        (self.protocol, self.leader) = (None, Name::default());
    }

    /// Returns the id of a static member.
    fn find_instance(&self, instance: &Name) -> Option<&Name> {
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.join.instance.as_ref() == Some(instance));
        found.map(|(id, _)| id)
    }

    /// Returns the member that sent a request, unless it is an instance that was replaced.
    fn identify(&self, id: &Name, instance: Option<&Name>) -> Result<&Member> {
        let member = self.members.get(id);
        let is_it =
            |member: &&Member| instance.is_none() || member.join.instance.as_ref() == instance;
        member.filter(is_it).ok_or_else(|| {
            let successor = instance.and_then(|instance| self.find_instance(instance));
            successor.map_or(ResponseError::UnknownMemberId, |_| ResponseError::FencedInstanceId)
        })
    }

    fn check_generation(&self, who: &Identity) -> Result<&Member> {
        let member = self.identify(&who.member, who.instance.as_ref())?;
        let is_present = who.generation == self.generation;
        if is_present { Ok(member) } else { Err(ResponseError::IllegalGeneration) }
    }

    /// Returns the session timeout of a member that should have a session: one that does not wait.
    pub(crate) fn session_timeout(&self, id: &Name) -> Option<Duration> {
        let member = self.members.get(id).filter(|member| member.waiting.is_none())?;
        Some(member.join.session_timeout)
    }

    /// Keeps a session with its member. Returns the one before it.
    pub(crate) fn keep_session(&mut self, id: &Name, session: Session) -> Option<Session> {
        self.members.get_mut(id)?.session.replace(session)
    }

    /// Checks the invariants, after the effects of a transition have been carried out.
    pub(crate) fn check_invariants(&self) {
        let is_empty = self.phase == Phase::Empty;
        debug_assert_eq!(self.members.is_empty(), is_empty, "phase {:?}", self.phase);
        let may_wait = matches!(self.phase, Phase::Joining | Phase::Syncing);
        for (id, member) in &self.members {
            let (waits, has_session) = (member.waiting.is_some(), member.session.is_some());
            debug_assert_ne!(waits, has_session, "{id} either waits or has a session");
            debug_assert!(!waits || may_wait, "{id} waits in phase {:?}", self.phase);
            let is_found = |instance| self.find_instance(instance) == Some(id);
            debug_assert!(member.join.instance.as_ref().is_none_or(is_found), "{id} is unique");
        }
        if matches!(self.phase, Phase::Syncing | Phase::Stable) {
            let has_leader = self.members.contains_key(&self.leader);
            debug_assert!(has_leader && self.protocol.is_some(), "the group has a leader");
        }
    }
}

/// Returns the protocols that all these members know.
fn common_protocols<'a>(members: impl Iterator<Item = &'a Member>) -> HashSet<&'a Name> {
    let known = |member: &'a Member| -> HashSet<&'a Name> {
        member.join.protocols.iter().map(|(name, _)| name).collect()
    };
    members.map(known).reduce(|common, known| &common & &known).unwrap_or_default()
}

/// Stores the answer to a request. Each has one answer.
fn set(answer: &Answer, outcome: Outcome) {
    let is_first = answer.set(outcome).is_ok();
    debug_assert!(is_first, "a request has two answers");
}
