//! The coordinator: the table of groups, their waiting requests, and their sessions.
//!
//! It has two purgatories, whose key is the group, and a timer:
//!
//! - `rebalances` holds one operation for each round of joins. Its condition is that all members
//!   have joined, and its delay is the rebalance timeout. Its completion ends the round.
//! - `requests` holds the joins and syncs of members, until a transition stores their answers.
//! - `sessions` is a timer with a timeout for each member that does not wait. A heartbeat resets
//!   it.
//!
//! # Locks
//!
//! One lock protects all groups. [`Coordinator::transition`] changes a group under it, sessions
//! included, and calls the purgatories after it has released the lock.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

use delaywheel::{Completion, DelayedOperation, Purgatory, PurgatoryStats, TimerStats, ValueTimer};
use tokio::sync::oneshot;

use super::{
    message::{Answer, Assignments, Commits, Identity, Join, Name, Outcome, Round, Session, own},
    state::{Group, Phase},
};
use crate::broker::{
    Config,
    counts::Shared,
    purgatory, timer_builder,
    waiting::{Waiting, answer_all, end_refused},
};
use crate::prelude::*;

/// The session timeouts that a member may ask for.
const SESSION_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30 * 60);

/// Limit of groups. One more displaces the group that has been without members for the longest
/// time; if all have members it is refused.
const MAX_GROUPS: usize = 1_000;

/// Statistics of groups.
#[derive(Debug, Clone)]
pub struct GroupStats {
    /// Number of groups.
    pub groups: u64,
    /// Rounds of joins that wait for members.
    pub rounds: PurgatoryStats,
    /// Joins and syncs that wait.
    pub requests: PurgatoryStats,
    /// The timer of the sessions.
    pub sessions: TimerStats,
}

/// A group and its commits.
pub(crate) struct Entry {
    pub(crate) group: Group,
    pub(crate) commits: Commits,
    /// Says in which order groups have lost their last members.
    unused_since: u64,
}

pub(crate) type Groups = HashMap<Name, Entry>;

/// A session, as the timer holds it.
struct SessionEnd {
    group: Name,
    member: Name,
    number: u64,
}

pub(crate) struct Coordinator {
    this: Weak<Self>,
    /// How long the first members of an empty group wait for others.
    initial_delay: Duration,
    max_wait: Duration,
    groups: Mutex<Groups>,
    rebalances: Purgatory<Name, Rebalance>,
    requests: Purgatory<Name, Request>,
    sessions: ValueTimer<SessionEnd>,
    /// Different for each run, so that ids of an earlier run are unknown.
    run: u32,
    /// Numbers that are used once: of members, sessions and rounds.
    numbers: AtomicU64,
    /// The latest generation of any group. A new group continues from there, so that generations do
    /// not decrease if a group of the same name was removed.
    latest_generation: AtomicI32,
    pub(super) counts: Arc<Shared>,
}

pub(crate) type Waits = Waiting<Name, Request, Outcome>;

impl Coordinator {
    pub(crate) fn new(config: &Config, counts: Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let coordinator = Weak::clone(this);
            let sessions = timer_builder(config, "sessions").inline().build_with(move |session| {
                if let Some(coordinator) = coordinator.upgrade() {
                    coordinator.end_session(&session);
                }
            });
            // A round, and not the longest wait, ends a join.
            let unlimited = Config { max_wait: Duration::MAX, ..config.clone() };
            Self {
                this: Weak::clone(this),
                initial_delay: config.group_delay,
                max_wait: config.max_wait,
                groups: Mutex::default(),
                rebalances: purgatory(config, "rebalances"),
                requests: purgatory(&unlimited, "requests"),
                sessions: sessions.expect("the settings are valid"),
                run: fastrand::u32(..),
                numbers: AtomicU64::new(1),
                latest_generation: AtomicI32::new(0),
                counts,
            }
        })
    }

    pub(crate) fn stats(&self) -> GroupStats {
        GroupStats {
            groups: self.groups().len() as u64,
            rounds: self.rebalances.stats(),
            requests: self.requests.stats(),
            sessions: self.sessions.stats(),
        }
    }

    /// Answers all joins and syncs that wait, and refuses later ones. Returns how many waited.
    pub(crate) fn close(&self) -> u64 {
        answer_all(&self.rebalances);
        answer_all(&self.requests)
    }

    pub(crate) fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().expect("nothing panics under this lock")
    }

    /// Adds a member to a group, or lets it join again.
    pub(crate) fn join(&self, group: &Name, mut join: Join) -> Result<Waits> {
        self.counts.update(|counts| counts.joins += 1);
        if !SESSION_TIMEOUTS.contains(&join.session_timeout) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        // Shorter rounds that await static members would follow each other without a pause.
        let least = *SESSION_TIMEOUTS.start();
        join.rebalance_timeout = join.rebalance_timeout.max(least).min(self.max_wait);
        join.is_new = join.member.is_empty();
        if join.is_new {
            join.member = self.member_id(&join.client_id);
        }
        let who = Identity { member: join.member.clone(), instance: None, generation: -1 };
        let answer = Answer::default();
        self.transition(group, join.is_new, |entry| entry.group.join(join, &answer))??;
        // The end of the round comes first.
        Ok(self.wait(group, who, answer, Duration::MAX))
    }

    /// Takes the assignments of a member, if it leads, and waits for its own.
    pub(crate) fn sync(&self, group: &Name, who: Identity, all: Assignments) -> Result<Waits> {
        let answer = Answer::default();
        let delay = self.transition(group, false, |entry| {
            entry.group.sync(&who, all, &answer).map(|()| entry.group.rebalance_timeout())
        })??;
        Ok(self.wait(group, who, answer, delay))
    }

    /// Lets a request wait until its answer is there.
    fn wait(&self, group: &Name, who: Identity, answer: Answer, delay: Duration) -> Waits {
        let (sender, ended) = oneshot::channel();
        let (coordinator, group) = (Weak::clone(&self.this), own(group));
        let key = group.clone();
        let request = Request { coordinator, group, who, answer, ended: sender };
        let watched = self.requests.watch(request, [key], delay);
        Waiting::new(&self.requests, watched, ended)
    }

    /// Extends a member's session.
    pub(crate) fn heartbeat(&self, group: &Name, who: &Identity) -> Result<()> {
        let mut groups = self.groups();
        let entry = groups.get_mut(group).ok_or(ResponseError::UnknownMemberId)?;
        self.touch(group, &mut entry.group, who)
    }

    fn touch(&self, name: &Name, group: &mut Group, who: &Identity) -> Result<()> {
        if let Some((session, timeout)) = group.session(who)? {
            // The session may be about to end. Then a new session replaces it, and its end has no
            // effect.
            if !self.sessions.reset(session.key, timeout) {
                self.start_session(name, group, &who.member);
            }
        }
        let is_joining = group.phase() == Phase::Joining;
        if is_joining { Err(ResponseError::RebalanceInProgress) } else { Ok(()) }
    }

    pub(crate) fn leave(&self, group: &Name, member: &Name, instance: Option<&Name>) -> Result<()> {
        self.transition(group, false, |entry| entry.group.leave(member, instance))?
    }

    /// Commits offsets for a member, or for a client that uses a group without members.
    pub(crate) fn commit(
        &self,
        group: &Name,
        who: &Identity,
        commit: impl FnOnce(&mut Commits),
    ) -> Result<()> {
        let is_member = who.generation >= 0;
        self.transition(group, !is_member, |entry| {
            entry.group.check_commit(who)?;
            commit(&mut entry.commits);
            if is_member {
                // A commit counts as a heartbeat. Only heartbeats tell of a rebalance.
                let _ = self.touch(group, &mut entry.group, who);
            }
            Ok(())
        })?
    }

    /// Deletes a group that has no members.
    pub(crate) fn delete(&self, name: &Name) -> Result<()> {
        let mut groups = self.groups();
        let entry = groups.get(name).ok_or(ResponseError::GroupIdNotFound)?;
        if entry.group.phase() != Phase::Empty {
            return Err(ResponseError::NonEmptyGroup);
        }
        groups.remove(name);
        Ok(())
    }

    /// Forgets the commits for a topic, in the hold of the lock in which `delete` removes it, and
    /// the groups that then have neither members nor commits.
    pub(crate) fn forget_topic<R>(&self, topic: &TopicName, delete: impl FnOnce() -> R) -> R {
        let mut groups = self.groups();
        groups.retain(|_, entry| {
            entry.commits.remove(topic);
            entry.group.phase() != Phase::Empty || !entry.commits.is_empty()
        });
        delete()
    }

    fn create(&self, groups: &mut Groups, name: &Name) -> Result<()> {
        if name.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let is_unused = |entry: &Entry| entry.group.phase() == Phase::Empty;
        if groups.len() >= MAX_GROUPS && !groups.values().any(is_unused) {
            return Err(ResponseError::PolicyViolation);
        }
        let number = self.next_number();
        let generation = self.latest_generation.load(Ordering::Relaxed);
        let group = Group::new(generation, number << 32);
        let entry = Entry { group, commits: Commits::default(), unused_since: number };
        groups.insert(own(name), entry);
        Ok(())
    }

    /// Changes a group, which is created if `creates`, and carries out the effects. Removes the
    /// group if it has neither members nor commits.
    fn transition<T>(
        &self,
        name: &Name,
        creates: bool,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Result<T> {
        let mut groups = self.groups();
        if creates && !groups.contains_key(name) {
            self.create(&mut groups, name)?;
        }
        let entry = groups.get_mut(name).ok_or(ResponseError::UnknownMemberId)?;
        let generation = entry.group.generation();
        let result = change(entry);
        let effects = entry.group.take_effects();
        for key in effects.stopped {
            self.sessions.cancel(key);
        }
        for member in &effects.started {
            self.start_session(name, &mut entry.group, member);
        }
        entry.group.check_invariants();
        self.latest_generation.fetch_max(entry.group.generation(), Ordering::Relaxed);
        if entry.group.phase() == Phase::Syncing && entry.group.generation() != generation {
            self.counts.update(|counts| counts.rebalances += 1);
        }
        if entry.group.phase() == Phase::Empty {
            entry.unused_since = self.next_number();
            if entry.commits.is_empty() {
                groups.remove(name);
            }
        }
        // Not before: a refused request displaces no group.
        if groups.len() > MAX_GROUPS {
            let unused = groups.iter().filter(|(_, entry)| entry.group.phase() == Phase::Empty);
            let oldest = unused.min_by_key(|(_, entry)| entry.unused_since);
            oldest.map(|(name, _)| name.clone()).and_then(|name| groups.remove(&name));
        }
        drop(groups);
        if let Some(round) = effects.round {
            self.watch_round(own(name), round, round.timeout);
        }
        if effects.is_changed {
            self.rebalances.check_and_complete(name);
            self.requests.check_and_complete(name);
        }
        Ok(result)
    }

    fn start_session(&self, name: &Name, group: &mut Group, member: &Name) {
        let Some(timeout) = group.session_timeout(member) else { return };
        let number = self.next_number();
        let end = SessionEnd { group: own(name), member: member.clone(), number };
        // Without a thread, no session ends.
        let Ok(key) = self.sessions.schedule(timeout, end) else { return };
        if let Some(before) = group.keep_session(member, Session { key, number }) {
            self.sessions.cancel(before.key);
        }
    }

    fn end_session(&self, end: &SessionEnd) {
        let has_ended = self.transition(&end.group, false, |entry| {
            entry.group.end_session(&end.member, end.number)
        });
        if has_ended == Ok(true) {
            self.counts.update(|counts| counts.sessions_ended += 1);
        }
    }

    /// Lets a round of joins wait for its members, for at most `left`. A first round waits in parts
    /// of the initial delay.
    fn watch_round(&self, group: Name, round: Round, left: Duration) {
        let delay = if round.is_first { left.min(self.initial_delay) } else { left };
        let (coordinator, key) = (Weak::clone(&self.this), group.clone());
        let rebalance = Rebalance { coordinator, group, round, left: left.saturating_sub(delay) };
        if let Err(refused) = self.rebalances.watch(rebalance, [key], delay) {
            end_refused(refused);
        }
    }

    /// Ends a round of joins. A first round continues as long as new members join.
    fn end_round(&self, group: Name, round: Round, left: Duration) {
        let has_grown = |entry: &mut Entry| entry.group.take_growth(round);
        if !left.is_zero() && self.groups().get_mut(&group).is_some_and(has_grown) {
            self.watch_round(group, round, left);
            return;
        }
        // The group may have been removed.
        let _ = self.transition(&group, false, |entry| entry.group.end_round(round));
    }

    /// Returns an id that no member has or had, and that a request may name.
    fn member_id(&self, client: &str) -> Name {
        let client: String = client.chars().take(200).collect();
        format!("{client}-{:08x}-{:08}", self.run, self.next_number()).into()
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// A round of joins that waits for the members of its group.
struct Rebalance {
    coordinator: Weak<Coordinator>,
    group: Name,
    round: Round,
    /// How much longer a first round may last after the delay.
    left: Duration,
}

impl DelayedOperation<Name> for Rebalance {
    fn try_complete(&mut self) -> bool {
        let is_complete = |entry: &Entry| entry.group.is_round_complete(self.round);
        let coordinator = self.coordinator.upgrade();
        coordinator.is_none_or(|all| all.groups().get(&self.group).is_none_or(is_complete))
    }

    fn complete(self, completion: Completion) {
        if completion == Completion::ShutDown {
            return;
        }
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.end_round(self.group, self.round, self.left);
        }
    }
}

/// A request of a member that waits for a transition of its group.
pub(crate) struct Request {
    coordinator: Weak<Coordinator>,
    group: Name,
    who: Identity,
    answer: Answer,
    ended: oneshot::Sender<Outcome>,
}

impl DelayedOperation<Name> for Request {
    fn try_complete(&mut self) -> bool {
        self.answer.get().is_some()
    }

    fn complete(self, completion: Completion) {
        let Self { coordinator, group, who, answer, ended } = self;
        let mut error = ResponseError::CoordinatorNotAvailable;
        if answer.get().is_none() && completion != Completion::ShutDown {
            error = ResponseError::RebalanceInProgress;
            if let Some(coordinator) = coordinator.upgrade() {
                // The group may have been removed.
                let _ = coordinator.transition(&group, false, |entry| {
                    // If the leader or others take too long, the group continues without them.
                    if completion == Completion::Expired {
                        entry.group.end_sync(who.generation);
                    }
                    entry.group.abandon(&who.member, &answer);
                });
            }
        }
        // If the receiver is gone, no answer is needed.
        let _ = ended.send(answer.get().cloned().unwrap_or(Err(error)));
    }
}
