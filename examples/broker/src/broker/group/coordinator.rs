//! The coordinator: the table of groups, their waiting requests, and their sessions.
//!
//! It has three purgatories, whose key is the group, and a timer:
//!
//! - `rebalances` holds one operation for each round of joins. Its condition is that all members
//!   have joined, and its delay is the rebalance timeout. Its completion ends the round.
//! - `joins` and `syncs` hold the requests of members, until a transition leaves their answers.
//! - `sessions` is a timer with a timeout for each member that does not wait. A heartbeat resets it.
//!
//! # Locks
//!
//! Each group has a lock. [`Coordinator::transition`] changes a group under its lock, sessions
//! included, and calls the purgatories after that. The lock of the table may be held when the lock
//! of a group is taken, never the other way round.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use delaywheel::{
    Completion, DelayedOperation, Purgatory, TimerStats, ValueTimer, purgatory::PurgatoryStats,
};
use kafka_protocol::ResponseError;
use tokio::sync::oneshot;

use super::{
    message::{Answer, Commits, Effects, Identity, Join, Name, Outcome, Round, Session},
    state::{Group, Phase},
};
use crate::broker::{
    Config,
    counts::Shared,
    purgatory_builder, timer_builder,
    waiting::{Waiting, answer_all},
};

/// Limits of groups.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// How long the first members of an empty group wait for others.
    pub initial_delay: Duration,
    /// The session timeouts that a member may ask for.
    pub session_timeouts: RangeInclusive<Duration>,
    /// How many groups there may be. One more displaces the group that has been without members for
    /// the longest time; if all have members it is refused.
    pub max_groups: usize,
    /// How many members a group may have.
    pub max_members: usize,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            initial_delay: Duration::from_secs(3),
            session_timeouts: Duration::from_secs(1)..=Duration::from_secs(30 * 60),
            max_groups: 1_000,
            max_members: 1_000,
        }
    }
}

/// Counts of groups.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupCounts {
    /// Requests to join.
    pub joins: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Rebalances: rounds of joins that ended with a new generation.
    pub rebalances: u64,
    /// Members that were removed because no heartbeat came in time.
    pub sessions_ended: u64,
    /// Members that left.
    pub left: u64,
}

/// Statistics of groups; from [`Broker::groups`](crate::broker::Broker::groups).
#[derive(Debug, Clone)]
pub struct GroupStats {
    /// Number of groups.
    pub groups: u64,
    /// Counts of all groups together.
    pub counts: GroupCounts,
    /// Rounds of joins that wait for members.
    pub rounds: PurgatoryStats,
    /// Joins that wait for the end of a round.
    pub joining: PurgatoryStats,
    /// Syncs that wait for assignments.
    pub syncing: PurgatoryStats,
    /// The timers of those three.
    pub timers: [TimerStats; 3],
    /// The timer of the sessions.
    pub sessions: TimerStats,
}

/// A group and its lock. It is what joins wait on, so two are equal if they are the same.
pub(crate) struct Slot {
    number: u64,
    pub(crate) name: Name,
    contents: Mutex<Contents>,
}

/// What the lock of a group protects.
pub(crate) struct Contents {
    pub(crate) group: Group,
    pub(crate) commits: Commits,
    /// Says in which order groups have lost their last members.
    unused_since: u64,
}

impl Slot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("nothing panics under this lock")
    }
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Slot {}

impl Hash for Slot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

/// A session, as the timer holds it.
struct SessionEnd {
    slot: Weak<Slot>,
    member: Name,
    number: u64,
}

/// The coordinator of all groups.
pub(crate) struct Coordinator {
    this: Weak<Self>,
    config: GroupConfig,
    /// The longest wait.
    max_wait: Duration,
    groups: RwLock<HashMap<Name, Arc<Slot>>>,
    rebalances: Purgatory<Arc<Slot>, Rebalance>,
    joins: Purgatory<Arc<Slot>, Request>,
    syncs: Purgatory<Arc<Slot>, Request>,
    sessions: ValueTimer<SessionEnd>,
    /// Different for each run, so that ids of an earlier run are unknown.
    run: u32,
    /// Numbers that are used once: of groups, members and sessions.
    numbers: AtomicU64,
    /// The latest generation of any group that was dropped. A group of the same name goes on from
    /// there, so that its generations do not go back.
    dropped_generation: AtomicI32,
    is_closed: AtomicBool,
    counts: Shared<GroupCounts>,
}

/// A join or a sync that waits.
pub(crate) type Waits = Waiting<Arc<Slot>, Request, Outcome>;

impl Coordinator {
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let coordinator = Weak::clone(this);
            let sessions = timer_builder(config, "sessions").inline().build_with(move |session| {
                if let Some(coordinator) = coordinator.upgrade() {
                    coordinator.end_session(&session);
                }
            });
            let builder = |name| purgatory_builder(config, name);
            Self {
                this: Weak::clone(this),
                config: config.groups.clone(),
                max_wait: config.max_wait,
                groups: RwLock::default(),
                rebalances: builder("rebalances").build().expect("the settings are valid"),
                joins: builder("joins").build().expect("the settings are valid"),
                syncs: builder("syncs").build().expect("the settings are valid"),
                sessions: sessions.expect("the settings are valid"),
                run: fastrand::u32(..),
                numbers: AtomicU64::new(1),
                dropped_generation: AtomicI32::new(0),
                is_closed: AtomicBool::new(false),
                counts: Shared::default(),
            }
        })
    }

    pub(crate) fn stats(&self) -> GroupStats {
        GroupStats {
            groups: self.all().len() as u64,
            counts: self.counts.read(),
            rounds: self.rebalances.stats(),
            joining: self.joins.stats(),
            syncing: self.syncs.stats(),
            timers: [
                self.rebalances.timer_stats(),
                self.joins.timer_stats(),
                self.syncs.timer_stats(),
            ],
            sessions: self.sessions.stats(),
        }
    }

    /// Answers all joins and syncs that wait, and refuses what comes later. Returns how many waited.
    pub(crate) fn close(&self) -> u64 {
        self.is_closed.store(true, Ordering::Release);
        self.sessions.shutdown();
        answer_all(&self.rebalances);
        answer_all(&self.joins) + answer_all(&self.syncs)
    }

    /// Returns the group of a name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Slot>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns all groups.
    pub(crate) fn all(&self) -> Vec<Arc<Slot>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.values().cloned().collect()
    }

    /// Adds a member to a group, or lets it join again.
    pub(crate) fn join(&self, group: &str, mut join: Join) -> Result<Waits, ResponseError> {
        self.counts.update(|counts| counts.joins += 1);
        if !self.config.session_timeouts.contains(&join.session_timeout) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        join.rebalance_timeout = join.rebalance_timeout.min(self.max_wait);
        join.new_id = self.member_id(&join.client.id);
        let is_unknown = join.member.is_empty();
        let member = Arc::clone(if is_unknown { &join.new_id } else { &join.member });
        let answer = Answer::default();
        let mut join = Some(join);
        let slot = self.enter(group, is_unknown, |slot| {
            self.transition(slot, |group, effects| {
                if group.is_dropped() {
                    return false;
                }
                if let Some(join) = join.take() {
                    group.join(join, &answer, effects);
                }
                true
            })
        })?;
        let identity = Identity { member, instance: None, generation: -1 };
        // The end of the round comes first.
        Ok(self.wait(&self.joins, slot, identity, answer, Duration::MAX))
    }

    /// Takes the assignments of a member, if it leads, and waits for its own.
    pub(crate) fn sync(
        &self,
        group: &str,
        identity: Identity,
        assignments: Vec<(Name, Bytes)>,
    ) -> Result<Waits, ResponseError> {
        let slot = self.find(group).ok_or(ResponseError::UnknownMemberId)?;
        let answer = Answer::default();
        let delay = self.transition(&slot, |group, effects| {
            group.sync(&identity, assignments, &answer, effects);
            group.rebalance_timeout()
        });
        Ok(self.wait(&self.syncs, slot, identity, answer, delay))
    }

    /// Lets a request wait until its answer is there.
    fn wait(
        &self,
        purgatory: &Purgatory<Arc<Slot>, Request>,
        slot: Arc<Slot>,
        identity: Identity,
        answer: Answer,
        delay: Duration,
    ) -> Waits {
        let (sender, ended) = oneshot::channel();
        let (coordinator, key) = (Weak::clone(&self.this), Arc::clone(&slot));
        let request = Request { coordinator, slot, identity, answer, ended: sender };
        let watched = purgatory.try_complete_else_watch(request, [key], delay);
        Waiting::new(purgatory, watched, ended)
    }

    /// Puts off the end of a member's session.
    pub(crate) fn heartbeat(&self, group: &str, identity: &Identity) -> Result<(), ResponseError> {
        self.counts.update(|counts| counts.heartbeats += 1);
        let slot = self.find(group).ok_or(ResponseError::UnknownMemberId)?;
        let mut contents = slot.lock();
        self.touch(&slot, &mut contents.group, identity)
    }

    fn touch(
        &self,
        slot: &Arc<Slot>,
        group: &mut Group,
        identity: &Identity,
    ) -> Result<(), ResponseError> {
        let (session, timeout, outcome) = group.heartbeat(identity);
        if let Some(session) = session {
            // It may be about to end; then another takes its place, and it ends nothing.
            if !self.sessions.reset(session.key, timeout) {
                self.start_session(slot, group, &identity.member);
            }
        }
        outcome
    }

    /// Removes a member.
    pub(crate) fn leave(
        &self,
        slot: &Arc<Slot>,
        member: &Name,
        instance: Option<&Name>,
    ) -> Result<(), ResponseError> {
        self.transition(slot, |group, effects| group.leave(member, instance, effects))?;
        self.counts.update(|counts| counts.left += 1);
        Ok(())
    }

    /// Commits offsets for a member, or for a client that uses a group without members.
    pub(crate) fn commit(
        &self,
        group: &str,
        identity: &Identity,
        commit: impl FnOnce(&mut Commits),
    ) -> Result<(), ResponseError> {
        let is_member = identity.generation >= 0;
        let (mut commit, mut outcome) = (Some(commit), Ok(()));
        self.enter(group, !is_member, |slot| {
            let mut contents = slot.lock();
            if contents.group.is_dropped() {
                return false;
            }
            outcome = contents.group.check_commit(identity);
            if outcome.is_ok() {
                if let Some(commit) = commit.take() {
                    commit(&mut contents.commits);
                }
                if is_member {
                    // A commit counts as a heartbeat. Only heartbeats tell of a rebalance.
                    let _ = self.touch(slot, &mut contents.group, identity);
                }
            }
            true
        })?;
        outcome
    }

    /// Deletes a group that has no members.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ResponseError> {
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        let slot = groups.get(name).ok_or(ResponseError::GroupIdNotFound)?;
        let mut contents = slot.lock();
        if !contents.group.is_unused() {
            return Err(ResponseError::NonEmptyGroup);
        }
        self.drop_unused(&mut contents);
        drop(contents);
        groups.remove(name);
        Ok(())
    }

    /// Forgets the commits for a topic that was deleted.
    pub(crate) fn forget_topic(&self, topic: &str) {
        for slot in self.all() {
            slot.lock().commits.remove(topic);
        }
    }

    /// Calls `act` with a group, which it creates if `creates`. `act` returns `false` if another
    /// thread has just dropped the group.
    fn enter(
        &self,
        name: &str,
        creates: bool,
        mut act: impl FnMut(&Arc<Slot>) -> bool,
    ) -> Result<Arc<Slot>, ResponseError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        loop {
            let slot = match self.find(name) {
                Some(slot) => slot,
                None if creates => self.create(name)?,
                None => return Err(ResponseError::UnknownMemberId),
            };
            if act(&slot) {
                return Ok(slot);
            }
        }
    }

    fn create(&self, name: &str) -> Result<Arc<Slot>, ResponseError> {
        if name.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = groups.get(name) {
            return Ok(Arc::clone(slot));
        }
        if groups.len() >= self.config.max_groups {
            self.drop_oldest(&mut groups)?;
        }
        let number = self.next_number();
        let generation = self.dropped_generation.load(Ordering::Relaxed);
        let group = Group::new(self.config.max_members, generation);
        let contents = Contents { group, commits: Commits::default(), unused_since: number };
        let name = Name::from(name);
        let slot = Arc::new(Slot { number, name: Arc::clone(&name), contents: contents.into() });
        groups.insert(name, Arc::clone(&slot));
        Ok(slot)
    }

    /// Drops a group without members and commits.
    fn forget(&self, slot: &Arc<Slot>) {
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        let mut contents = slot.lock();
        let is_unused = contents.group.is_unused() && contents.commits.is_empty();
        if is_unused && !contents.group.is_dropped() {
            self.drop_unused(&mut contents);
            groups.remove(&slot.name);
        }
    }

    /// Makes room for a group.
    fn drop_oldest(&self, groups: &mut HashMap<Name, Arc<Slot>>) -> Result<(), ResponseError> {
        let unused = groups.values().filter_map(|slot| {
            let contents = slot.lock();
            contents.group.is_unused().then_some((contents.unused_since, slot))
        });
        let oldest = unused.min_by_key(|(since, _)| *since).map(|(_, slot)| Arc::clone(slot));
        let oldest = oldest.ok_or(ResponseError::PolicyViolation)?;
        let mut contents = oldest.lock();
        if !contents.group.is_unused() {
            return Err(ResponseError::PolicyViolation);
        }
        self.drop_unused(&mut contents);
        groups.remove(&oldest.name);
        Ok(())
    }

    /// Makes a group take no more members. The caller removes it from the table.
    fn drop_unused(&self, contents: &mut Contents) {
        contents.group.drop_unused();
        self.dropped_generation.fetch_max(contents.group.generation(), Ordering::Relaxed);
    }

    /// Changes a group, and carries out the effects.
    fn transition<T>(
        &self,
        slot: &Arc<Slot>,
        change: impl FnOnce(&mut Group, &mut Effects) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let mut contents = slot.lock();
        let generation = contents.group.generation();
        let result = change(&mut contents.group, &mut effects);
        for key in effects.stopped {
            self.sessions.cancel(key);
        }
        for member in &effects.started {
            self.start_session(slot, &mut contents.group, member);
        }
        if !self.is_closed.load(Ordering::Acquire) {
            contents.group.check_invariants();
        }
        if contents.group.phase() == Phase::Syncing && contents.group.generation() != generation {
            self.counts.update(|counts| counts.rebalances += 1);
        }
        let is_unused = contents.group.is_unused();
        if is_unused {
            contents.unused_since = self.next_number();
        }
        let is_forgotten = is_unused && contents.commits.is_empty();
        drop(contents);
        if let Some(round) = effects.round {
            self.begin_round(slot, round);
        }
        if effects.is_changed {
            self.rebalances.check_and_complete(&**slot);
            self.joins.check_and_complete(&**slot);
            self.syncs.check_and_complete(&**slot);
        }
        if is_forgotten {
            self.forget(slot);
        }
        result
    }

    fn start_session(&self, slot: &Arc<Slot>, group: &mut Group, member: &Name) {
        let Some(timeout) = group.session_timeout(member) else { return };
        let number = self.next_number();
        let end = SessionEnd { slot: Arc::downgrade(slot), member: Arc::clone(member), number };
        // A timer that has been shut down ends no sessions any more.
        let Ok(key) = self.sessions.schedule(timeout, end) else { return };
        if let Some(before) = group.keep_session(member, Session { key, number }) {
            self.sessions.cancel(before.key);
        }
    }

    fn end_session(&self, end: &SessionEnd) {
        let Some(slot) = end.slot.upgrade() else { return };
        let has_ended = self.transition(&slot, |group, effects| {
            group.end_session(&end.member, end.number, effects)
        });
        if has_ended {
            self.counts.update(|counts| counts.sessions_ended += 1);
        }
    }

    /// Lets a round of joins wait for its members.
    fn begin_round(&self, slot: &Arc<Slot>, round: Round) {
        let delay = if round.is_first {
            self.config.initial_delay.min(round.timeout)
        } else {
            round.timeout
        };
        self.watch_round(slot, round, delay, round.timeout.saturating_sub(delay));
    }

    fn watch_round(&self, slot: &Arc<Slot>, round: Round, delay: Duration, left: Duration) {
        let (coordinator, slot) = (Weak::clone(&self.this), Arc::clone(slot));
        let key = Arc::clone(&slot);
        let rebalance = Rebalance { coordinator, slot, round, left };
        if let Err(refused) = self.rebalances.try_complete_else_watch(rebalance, [key], delay) {
            refused.into_value().complete(Completion::Displaced);
        }
    }

    /// Ends a round of joins. A first round goes on as long as members join in.
    fn end_round(&self, slot: &Arc<Slot>, round: Round, left: Duration) {
        let goes_on = !left.is_zero() && slot.lock().group.take_growth(round);
        if goes_on {
            let delay = self.config.initial_delay.min(left);
            self.watch_round(slot, round, delay, left.saturating_sub(delay));
        } else {
            self.transition(slot, |group, effects| group.end_round(round, effects));
        }
    }

    /// Returns an id that no member has or had.
    fn member_id(&self, client: &str) -> Name {
        format!("{client}-{:08x}-{:08}", self.run, self.next_number()).into()
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// A round of joins that waits for the members of its group.
struct Rebalance {
    coordinator: Weak<Coordinator>,
    slot: Arc<Slot>,
    round: Round,
    /// How much longer a first round may go on after the delay.
    left: Duration,
}

impl DelayedOperation<Arc<Slot>> for Rebalance {
    fn try_complete(&mut self) -> bool {
        self.slot.lock().group.is_round_complete(self.round)
    }

    fn complete(self, completion: Completion) {
        if completion == Completion::ShutDown {
            return;
        }
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.end_round(&self.slot, self.round, self.left);
        }
    }
}

/// A request of a member that waits for a transition of its group.
pub(crate) struct Request {
    coordinator: Weak<Coordinator>,
    slot: Arc<Slot>,
    identity: Identity,
    answer: Answer,
    ended: oneshot::Sender<Outcome>,
}

impl DelayedOperation<Arc<Slot>> for Request {
    fn try_complete(&mut self) -> bool {
        self.answer.get().is_some()
    }

    fn complete(self, completion: Completion) {
        let Self { coordinator, slot, identity, answer, ended } = self;
        let mut error = ResponseError::CoordinatorNotAvailable;
        if answer.get().is_none() && completion != Completion::ShutDown {
            error = ResponseError::RebalanceInProgress;
            if let Some(coordinator) = coordinator.upgrade() {
                coordinator.transition(&slot, |group, effects| {
                    // If the leader or others take too long, the group goes on without them.
                    if completion == Completion::Expired {
                        group.end_sync(identity.generation, effects);
                    }
                    group.abandon(&identity.member, &answer, effects);
                });
            }
        }
        // If the receiver is gone, no answer is needed.
        let _ = ended.send(answer.get().cloned().unwrap_or(Err(error)));
    }
}
