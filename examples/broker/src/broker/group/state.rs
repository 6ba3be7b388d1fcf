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
//! answer to a join or a sync, or has a session, which ends unless heartbeats come.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use kafka_protocol::ResponseError;

use super::message::{
    Answer, Client, Effects, Identity, Join, JoinOutcome, Joined, JoinedMember, Name, NotJoined,
    Protocols, Round, Session, SyncOutcome, Synced, bytes,
};

/// Bytes of metadata that all members of a group have together, and as many of assignments. The
/// leader gets all metadata in one answer.
pub(crate) const MAX_GROUP_BYTES: usize = 4 << 20;

/// The step of a rebalance in which a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There are no members.
    Empty,
    /// The group waits for its members to join.
    Joining,
    /// The group waits for the assignments of its leader.
    Syncing,
    /// Each member has its assignment.
    Stable,
}

/// A member of a group.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) instance: Option<Name>,
    pub(crate) client: Client,
    pub(crate) session_timeout: Duration,
    rebalance_timeout: Duration,
    protocols: Protocols,
    pub(crate) assignment: Bytes,
    /// The join that waits.
    join: Option<Answer<JoinOutcome>>,
    /// The sync that waits.
    sync: Option<Answer<SyncOutcome>>,
    session: Option<Session>,
    /// Whether no join of this member has been answered, so that no client knows its id.
    is_new: bool,
}

impl Member {
    fn new(join: Join) -> Self {
        Self {
            instance: join.instance,
            client: join.client,
            session_timeout: join.session_timeout,
            rebalance_timeout: join.rebalance_timeout,
            protocols: join.protocols,
            assignment: Bytes::new(),
            join: None,
            sync: None,
            session: None,
            is_new: true,
        }
    }

    fn is_waiting(&self) -> bool {
        self.join.is_some() || self.sync.is_some()
    }

    fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| **name == *protocol);
        found.map_or_else(Bytes::new, |(_, metadata)| metadata.clone())
    }

    fn stop_session(&mut self, effects: &mut Effects) {
        effects.stopped.extend(self.session.take().map(|session| session.key));
    }
}

/// A consumer group.
#[derive(Debug)]
pub(crate) struct Group {
    phase: Phase,
    /// Whether the coordinator has dropped the group, so that it must take no more members.
    is_dropped: bool,
    generation: i32,
    /// The latest round of joins.
    round: u64,
    /// Whether a member was added to the round since this was last asked.
    has_grown: bool,
    protocol_type: Option<Name>,
    protocol: Option<Name>,
    leader: Option<Name>,
    members: HashMap<Name, Member>,
    /// The ids of static members, by instance.
    instances: HashMap<Name, Name>,
    /// Ids that were handed out and have not joined yet.
    pending: HashMap<Name, Pending>,
    max_members: usize,
}

/// An id that was handed out.
#[derive(Debug)]
struct Pending {
    session_timeout: Duration,
    session: Option<Session>,
}

impl Group {
    /// Makes an empty group of at most so many members, whose generations follow after one.
    pub(crate) fn new(max_members: usize, generation: i32) -> Self {
        Self {
            phase: Phase::Empty,
            is_dropped: false,
            generation,
            round: 0,
            has_grown: false,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: HashMap::new(),
            instances: HashMap::new(),
            pending: HashMap::new(),
            max_members,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn generation(&self) -> i32 {
        self.generation
    }

    /// Returns how long the slowest member may take for a step of a rebalance.
    pub(crate) fn rebalance_timeout(&self) -> Duration {
        let timeouts = self.members.values().map(|member| member.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    pub(crate) fn protocol_type(&self) -> Option<&Name> {
        self.protocol_type.as_ref()
    }

    pub(crate) fn protocol(&self) -> Option<&Name> {
        self.protocol.as_ref()
    }

    /// Returns the members, and the metadata that each has for the protocol of the group.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&Name, &Member, Bytes)> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        self.members.iter().map(move |(id, member)| (id, member, member.metadata(protocol)))
    }

    /// Returns whether the group holds neither members nor ids that may become members.
    pub(crate) fn is_unused(&self) -> bool {
        self.members.is_empty() && self.pending.is_empty()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Makes the group take no more members. It has none.
    pub(crate) fn drop_unused(&mut self) {
        debug_assert!(self.is_unused());
        self.is_dropped = true;
    }

    /// Takes a member in, or in again. The answer is left at once, or when the round has ended.
    pub(crate) fn join(&mut self, join: Join, answer: &Answer<JoinOutcome>, effects: &mut Effects) {
        if let Err(not_joined) = self.try_join(join, answer, effects) {
            set(answer, Err(not_joined));
        }
    }

    fn try_join(
        &mut self,
        join: Join,
        answer: &Answer<JoinOutcome>,
        effects: &mut Effects,
    ) -> Result<(), NotJoined> {
        let refused = |error| NotJoined { error, member: Arc::clone(&join.member) };
        if !self.is_compatible(&join) {
            return Err(refused(ResponseError::InconsistentGroupProtocol));
        }
        let others = self.members.iter().filter(|(id, _)| **id != join.member);
        let metadata: usize = others.map(|(_, member)| bytes(&member.protocols)).sum();
        if metadata + bytes(&join.protocols) > MAX_GROUP_BYTES {
            return Err(refused(ResponseError::GroupMaxSizeReached));
        }
        if !join.member.is_empty() {
            if self.pending.contains_key(&join.member) {
                let pending = self.pending.remove(&join.member).and_then(|id| id.session);
                effects.stopped.extend(pending.map(|session| session.key));
                let id = Arc::clone(&join.member);
                return self.admit(id, join, answer, effects);
            }
            self.identify(&join.member, join.instance.as_ref()).map_err(refused)?;
            self.rejoin(join, answer, effects);
            return Ok(());
        }
        let known = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        if let Some(old) = known.cloned() {
            self.replace(&old, join, answer, effects);
            return Ok(());
        }
        let id = Arc::clone(&join.new_id);
        if join.instance.is_none() && join.must_know_id {
            self.check_room(&join)?;
            let session_timeout = join.session_timeout;
            self.pending.insert(Arc::clone(&id), Pending { session_timeout, session: None });
            effects.started.push(Arc::clone(&id));
            return Err(NotJoined { error: ResponseError::MemberIdRequired, member: id });
        }
        self.admit(id, join, answer, effects)
    }

    fn check_room(&self, join: &Join) -> Result<(), NotJoined> {
        if self.members.len() + self.pending.len() < self.max_members {
            return Ok(());
        }
        let member = Arc::clone(&join.member);
        Err(NotJoined { error: ResponseError::GroupMaxSizeReached, member })
    }

    /// Adds a member.
    fn admit(
        &mut self,
        id: Name,
        join: Join,
        answer: &Answer<JoinOutcome>,
        effects: &mut Effects,
    ) -> Result<(), NotJoined> {
        self.check_room(&join)?;
        if self.members.is_empty() {
            self.protocol_type = Some(Arc::clone(&join.protocol_type));
        }
        if let Some(instance) = &join.instance {
            self.instances.insert(Arc::clone(instance), Arc::clone(&id));
        }
        let mut member = Member::new(join);
        member.join = Some(Arc::clone(answer));
        self.members.insert(id, member);
        self.has_grown = true;
        self.begin_round(effects);
        Ok(())
    }

    /// Takes in a member that the group knows.
    fn rejoin(&mut self, join: Join, answer: &Answer<JoinOutcome>, effects: &mut Effects) {
        let id = Arc::clone(&join.member);
        let is_leader = self.leader.as_ref() == Some(&id);
        let Some(member) = self.members.get_mut(&id) else { return };
        let is_same = member.protocols == join.protocols;
        member.client = join.client;
        member.session_timeout = join.session_timeout;
        member.rebalance_timeout = join.rebalance_timeout;
        member.protocols = join.protocols;
        let has_its_answer = match self.phase {
            Phase::Stable => is_same && !is_leader,
            // The member may have missed the answer to its join.
            Phase::Syncing => is_same,
            Phase::Joining | Phase::Empty => false,
        };
        if has_its_answer {
            self.interrupt(&id, effects);
            effects.started.push(Arc::clone(&id));
            set(answer, Ok(self.joined(&id)));
        } else {
            self.wait_for_round(&id, answer, effects);
        }
    }

    /// Puts a static member that has restarted in the place of its predecessor.
    fn replace(
        &mut self,
        old: &Name,
        join: Join,
        answer: &Answer<JoinOutcome>,
        effects: &mut Effects,
    ) {
        let (id, can_skip) = (Arc::clone(&join.new_id), join.can_skip_assignment);
        let Some(mut member) = self.members.remove(old) else { return };
        if let Some(waiting) = member.join.take() {
            let (error, member) = (ResponseError::FencedInstanceId, Arc::clone(old));
            set(&waiting, Err(NotJoined { error, member }));
        }
        if let Some(waiting) = member.sync.take() {
            set(&waiting, Err(ResponseError::FencedInstanceId));
        }
        member.stop_session(effects);
        member.client = join.client;
        member.session_timeout = join.session_timeout;
        member.rebalance_timeout = join.rebalance_timeout;
        member.protocols = join.protocols;
        if let Some(instance) = &member.instance {
            self.instances.insert(Arc::clone(instance), Arc::clone(&id));
        }
        self.members.insert(Arc::clone(&id), member);
        let was_leader = self.leader.as_ref() == Some(old);
        if was_leader {
            self.leader = Some(Arc::clone(&id));
        }
        effects.is_changed = true;
        if self.phase != Phase::Stable || self.protocol != self.choose_protocol() {
            self.wait_for_round(&id, answer, effects);
            return;
        }
        // The assignments stay as they are, so the leader must not make new ones.
        let mut joined = self.joined(&id);
        joined.must_skip_assignment = was_leader && can_skip;
        if was_leader && !can_skip {
            joined.leader = Arc::clone(old);
            joined.members.clear();
        }
        effects.started.push(id);
        set(answer, Ok(joined));
    }

    /// Has a member wait for the end of the round, which begins if there is none.
    fn wait_for_round(&mut self, id: &Name, answer: &Answer<JoinOutcome>, effects: &mut Effects) {
        self.interrupt(id, effects);
        if let Some(member) = self.members.get_mut(id) {
            member.join = Some(Arc::clone(answer));
        }
        self.begin_round(effects);
    }

    /// Ends the wait or the session of a member, because another request of it has come.
    fn interrupt(&mut self, id: &Name, effects: &mut Effects) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.stop_session(effects);
        if let Some(waiting) = member.join.take() {
            let (error, member) = (ResponseError::RebalanceInProgress, Arc::clone(id));
            set(&waiting, Err(NotJoined { error, member }));
            effects.is_changed = true;
        }
        if let Some(waiting) = member.sync.take() {
            set(&waiting, Err(ResponseError::RebalanceInProgress));
            effects.is_changed = true;
        }
    }

    /// Begins a round of joins, unless one is on its way. The group has members.
    fn begin_round(&mut self, effects: &mut Effects) {
        effects.is_changed = true;
        if self.phase == Phase::Joining {
            return;
        }
        for (id, member) in &mut self.members {
            member.assignment = Bytes::new();
            if let Some(waiting) = member.sync.take() {
                set(&waiting, Err(ResponseError::RebalanceInProgress));
                effects.started.push(Arc::clone(id));
            }
        }
        let is_first = self.phase == Phase::Empty;
        self.phase = Phase::Joining;
        self.next_round(is_first, effects);
    }

    fn next_round(&mut self, is_first: bool, effects: &mut Effects) {
        self.round += 1;
        self.has_grown = false;
        let timeout = self.rebalance_timeout();
        effects.round = Some(Round { number: self.round, timeout, is_first });
    }

    /// Returns whether a round need not wait any longer: all members have joined, or it is over.
    ///
    /// A first round waits for members that nobody knows of yet.
    pub(crate) fn is_round_complete(&self, round: Round) -> bool {
        if self.phase != Phase::Joining || self.round != round.number {
            return true;
        }
        let has_joined = |member: &Member| member.join.is_some();
        !round.is_first && self.pending.is_empty() && self.members.values().all(has_joined)
    }

    /// Returns whether members were added to the present round since this was last asked.
    pub(crate) fn take_growth(&mut self, round: Round) -> bool {
        self.round == round.number && std::mem::take(&mut self.has_grown)
    }

    /// Ends a round of joins: the members that have joined form the next generation, and dynamic
    /// members that have not are removed. Static members may come back within their session.
    pub(crate) fn end_round(&mut self, round: Round, effects: &mut Effects) {
        if self.phase != Phase::Joining || self.round != round.number {
            return;
        }
        self.remove_absent(effects);
        if self.members.is_empty() {
            self.become_empty();
            return;
        }
        let leader = match &self.leader {
            Some(leader) if self.has_joined(leader) => Some(Arc::clone(leader)),
            _ => self.members.keys().filter(|id| self.has_joined(id)).min().cloned(),
        };
        let Some(leader) = leader else {
            // All members are static, and each may still come back.
            self.next_round(false, effects);
            return;
        };
        self.leader = Some(leader);
        self.generation = self.generation.wrapping_add(1).max(1);
        self.protocol = self.choose_protocol();
        self.phase = Phase::Syncing;
        self.answer_joins(effects);
    }

    fn has_joined(&self, id: &Name) -> bool {
        self.members.get(id).is_some_and(|member| member.join.is_some())
    }

    fn remove_absent(&mut self, effects: &mut Effects) {
        self.members.retain(|_, member| {
            let stays = member.join.is_some() || member.instance.is_some();
            if !stays {
                member.stop_session(effects);
            }
            stays
        });
    }

    fn answer_joins(&mut self, effects: &mut Effects) {
        effects.is_changed = true;
        let ids: Vec<_> = self.members.keys().cloned().collect();
        for id in ids {
            let Some(waiting) = self.members.get_mut(&id).and_then(|member| member.join.take())
            else {
                continue;
            };
            set(&waiting, Ok(self.joined(&id)));
            if let Some(member) = self.members.get_mut(&id) {
                member.is_new = false;
            }
            effects.started.push(id);
        }
    }

    /// Makes the answer to a member of the present generation.
    fn joined(&self, id: &Name) -> Joined {
        let leader = self.leader.clone().unwrap_or_default();
        let mut members = Vec::new();
        if leader == *id {
            members.extend(self.members().map(|(id, member, metadata)| JoinedMember {
                id: Arc::clone(id),
                instance: member.instance.clone(),
                metadata,
            }));
            members.sort_by(|a, b| a.id.cmp(&b.id));
        }
        Joined {
            member: Arc::clone(id),
            leader,
            generation: self.generation,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol.clone().unwrap_or_default(),
            must_skip_assignment: false,
            members,
        }
    }

    /// Returns whether a member that joins has a protocol in common with all others.
    fn is_compatible(&self, join: &Join) -> bool {
        if join.protocol_type.is_empty() || join.protocols.is_empty() {
            return false;
        }
        let has_others = self.members.keys().any(|id| *id != join.member);
        let is_same_type = self.protocol_type.as_ref() == Some(&join.protocol_type);
        let common = self.common_protocols(Some(&join.member));
        !has_others || is_same_type && join.protocols.iter().any(|(name, _)| common.contains(name))
    }

    /// Returns the protocols that all members know, but for one that is left out.
    fn common_protocols(&self, except: Option<&Name>) -> HashSet<&Name> {
        let mut common: Option<HashSet<&Name>> = None;
        for (_, member) in self.members.iter().filter(|(id, _)| Some(*id) != except) {
            let known = member.protocols.iter().map(|(name, _)| name);
            common = Some(match common {
                None => known.collect(),
                Some(common) => known.filter(|name| common.contains(name)).collect(),
            });
        }
        common.unwrap_or_default()
    }

    /// Chooses the protocol that most members want most, of those that all know.
    fn choose_protocol(&self) -> Option<Name> {
        let common = self.common_protocols(None);
        let mut votes = BTreeMap::<&Name, usize>::new();
        for member in self.members.values() {
            let mut wanted = member.protocols.iter().map(|(name, _)| name);
            if let Some(favourite) = wanted.find(|name| common.contains(name)) {
                *votes.entry(favourite).or_default() += 1;
            }
        }
        let chosen = votes.into_iter().max_by_key(|&(_, votes)| votes);
        chosen.map(|(name, _)| Arc::clone(name))
    }

    /// Takes the assignments, if they come from the leader, and answers with the member's own as
    /// soon as it is there.
    pub(crate) fn sync(
        &mut self,
        who: &Identity,
        assignments: Vec<(Name, Bytes)>,
        answer: &Answer<SyncOutcome>,
        effects: &mut Effects,
    ) {
        if let Err(error) = self.try_sync(who, assignments, answer, effects) {
            set(answer, Err(error));
        }
    }

    fn try_sync(
        &mut self,
        who: &Identity,
        assignments: Vec<(Name, Bytes)>,
        answer: &Answer<SyncOutcome>,
        effects: &mut Effects,
    ) -> Result<(), ResponseError> {
        self.check_generation(who)?;
        match self.phase {
            Phase::Empty => return Err(ResponseError::UnknownMemberId),
            Phase::Joining => return Err(ResponseError::RebalanceInProgress),
            Phase::Syncing => {
                self.interrupt(&who.member, effects);
                if let Some(member) = self.members.get_mut(&who.member) {
                    member.sync = Some(Arc::clone(answer));
                }
                if self.leader.as_ref() == Some(&who.member) {
                    self.assign(assignments, effects);
                }
            }
            Phase::Stable => {
                effects.started.push(Arc::clone(&who.member));
                set(answer, Ok(self.synced(&who.member)));
            }
        }
        Ok(())
    }

    fn assign(&mut self, assignments: Vec<(Name, Bytes)>, effects: &mut Effects) {
        for (id, assignment) in assignments {
            if let Some(member) = self.members.get_mut(&id) {
                member.assignment = assignment;
            }
        }
        self.phase = Phase::Stable;
        effects.is_changed = true;
        let ids: Vec<_> = self.members.keys().cloned().collect();
        for id in ids {
            if let Some(waiting) = self.members.get_mut(&id).and_then(|member| member.sync.take()) {
                set(&waiting, Ok(self.synced(&id)));
                effects.started.push(id);
            }
        }
    }

    fn synced(&self, id: &Name) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol.clone().unwrap_or_default(),
            assignment: self
                .members
                .get(id)
                .map(|member| member.assignment.clone())
                .unwrap_or_default(),
        }
    }

    /// Removes the members that have not synced although the time for it is over.
    pub(crate) fn end_sync(&mut self, generation: i32, effects: &mut Effects) {
        if self.phase != Phase::Syncing || self.generation != generation {
            return;
        }
        let late = self.members.iter().filter(|(_, member)| member.sync.is_none());
        let late: Vec<_> = late.map(|(id, _)| Arc::clone(id)).collect();
        for id in late {
            self.remove(&id, effects);
        }
    }

    /// Answers a heartbeat. The session begins anew even if the member has to join again.
    pub(crate) fn heartbeat(
        &self,
        who: &Identity,
    ) -> (Option<Session>, Duration, Result<(), ResponseError>) {
        let checked = self.check_generation(who);
        let (Ok(()), Some(member)) = (&checked, self.members.get(&who.member)) else {
            let outcome = checked.and(Err(ResponseError::UnknownMemberId));
            return (None, Duration::ZERO, outcome);
        };
        let is_joining = self.phase == Phase::Joining;
        let outcome = if is_joining { Err(ResponseError::RebalanceInProgress) } else { Ok(()) };
        (member.session, member.session_timeout, outcome)
    }

    /// Removes a member that says good-bye, by its id or the name of its instance.
    pub(crate) fn leave(
        &mut self,
        member: &Name,
        instance: Option<&Name>,
        effects: &mut Effects,
    ) -> Result<(), ResponseError> {
        let known = instance.and_then(|instance| self.instances.get(instance)).cloned();
        let id = match known {
            Some(id) if member.is_empty() => id,
            _ => {
                if let Some(pending) = self.pending.remove(member) {
                    effects.stopped.extend(pending.session.map(|session| session.key));
                    effects.is_changed = true;
                    return Ok(());
                }
                self.identify(member, instance)?;
                Arc::clone(member)
            }
        };
        self.remove(&id, effects);
        Ok(())
    }

    /// Returns whether a commit of offsets comes from a member, or from a client that does without
    /// a group's members.
    pub(crate) fn check_commit(&self, who: &Identity) -> Result<(), ResponseError> {
        if who.generation < 0 && who.member.is_empty() && self.members.is_empty() {
            return Ok(());
        }
        self.check_generation(who)?;
        match self.phase {
            Phase::Syncing => Err(ResponseError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Ends a session, unless a heartbeat has come meanwhile. Returns whether it has ended.
    pub(crate) fn end_session(&mut self, id: &Name, number: u64, effects: &mut Effects) -> bool {
        let is_it =
            |session: &Option<Session>| session.is_some_and(|session| session.number == number);
        if self.pending.get(id).is_some_and(|pending| is_it(&pending.session)) {
            self.pending.remove(id);
            effects.is_changed = true;
            return true;
        }
        if !self.members.get(id).is_some_and(|member| is_it(&member.session)) {
            return false;
        }
        self.remove(id, effects);
        true
    }

    /// Gives up the join of a member whose connection has closed.
    pub(crate) fn abandon_join(
        &mut self,
        id: &Name,
        answer: &Answer<JoinOutcome>,
        effects: &mut Effects,
    ) {
        let Some(member) = self.members.get_mut(id) else { return };
        if !member.join.as_ref().is_some_and(|waiting| Arc::ptr_eq(waiting, answer)) {
            return;
        }
        member.join = None;
        if member.is_new && member.instance.is_none() {
            self.remove(id, effects);
        } else {
            effects.started.push(Arc::clone(id));
        }
    }

    /// Gives up the sync of a member whose connection has closed.
    pub(crate) fn abandon_sync(
        &mut self,
        id: &Name,
        answer: &Answer<SyncOutcome>,
        effects: &mut Effects,
    ) {
        let Some(member) = self.members.get_mut(id) else { return };
        if member.sync.as_ref().is_some_and(|waiting| Arc::ptr_eq(waiting, answer)) {
            member.sync = None;
            effects.started.push(Arc::clone(id));
        }
    }

    /// Removes a member; the others have to share its partitions.
    fn remove(&mut self, id: &Name, effects: &mut Effects) {
        self.interrupt(id, effects);
        let Some(member) = self.members.remove(id) else { return };
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        effects.is_changed = true;
        if self.members.is_empty() {
            self.become_empty();
        } else {
            self.begin_round(effects);
        }
    }

    fn become_empty(&mut self) {
        self.phase = Phase::Empty;
        self.generation = self.generation.wrapping_add(1).max(1);
        (self.protocol, self.leader) = (None, None);
    }

    /// Checks that a request comes from a member, and not from an instance that was replaced.
    fn identify(&self, member: &Name, instance: Option<&Name>) -> Result<(), ResponseError> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                Some(id) if id == member => {}
                Some(_) => return Err(ResponseError::FencedInstanceId),
                None => return Err(ResponseError::UnknownMemberId),
            }
        }
        let is_member = self.members.contains_key(member);
        if is_member { Ok(()) } else { Err(ResponseError::UnknownMemberId) }
    }

    fn check_generation(&self, who: &Identity) -> Result<(), ResponseError> {
        self.identify(&who.member, who.instance.as_ref())?;
        let is_present = who.generation == self.generation;
        if is_present { Ok(()) } else { Err(ResponseError::IllegalGeneration) }
    }

    /// Returns the session timeout of a member that is to have a session, which is one that does
    /// not wait.
    pub(crate) fn session_timeout(&self, id: &Name) -> Option<Duration> {
        if let Some(pending) = self.pending.get(id) {
            return Some(pending.session_timeout);
        }
        let member = self.members.get(id).filter(|member| !member.is_waiting())?;
        Some(member.session_timeout)
    }

    /// Keeps a session with its member. Returns the one before it.
    pub(crate) fn keep_session(&mut self, id: &Name, session: Session) -> Option<Session> {
        if let Some(pending) = self.pending.get_mut(id) {
            return pending.session.replace(session);
        }
        self.members.get_mut(id)?.session.replace(session)
    }

    /// Checks what holds after the effects of each transition have been carried out.
    pub(crate) fn check_invariants(&self) {
        let is_empty = self.phase == Phase::Empty;
        debug_assert_eq!(self.members.is_empty(), is_empty, "phase {:?}", self.phase);
        for (id, member) in &self.members {
            let has_session = member.session.is_some();
            debug_assert_ne!(
                member.is_waiting(),
                has_session,
                "{id} either waits or has a session"
            );
            debug_assert!(member.join.is_none() || self.phase == Phase::Joining, "{id} joins");
            debug_assert!(member.sync.is_none() || self.phase == Phase::Syncing, "{id} syncs");
        }
        for (instance, id) in &self.instances {
            let member = self.members.get(id).and_then(|member| member.instance.as_ref());
            debug_assert_eq!(member, Some(instance), "the id of an instance is a member's");
        }
        if matches!(self.phase, Phase::Syncing | Phase::Stable) {
            let leader = self.leader.as_ref().and_then(|leader| self.members.get(leader));
            debug_assert!(leader.is_some() && self.protocol.is_some(), "somebody leads");
        }
    }
}

/// Leaves the answer to a request that waits. Each has one answer.
fn set<T>(answer: &Answer<T>, outcome: T) {
    let is_first = answer.set(outcome).is_ok();
    debug_assert!(is_first, "a request has two answers");
}
