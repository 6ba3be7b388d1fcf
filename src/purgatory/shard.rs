//! What is under the lock of a shard: the operations that wait, and who watches which key.
//!
//! # Ownership
//!
//! An operation waits in its shard, or is *out*: in the hands of the one thread that checks it.
//! Whoever takes it has it alone, with no lock held, and so completing it twice cannot be written
//! down. What happens to an operation while it is out is noted in its place, and heeded by whoever
//! brings it back: a verdict, which is final, or that it is to be checked again.

use std::mem;

use smallvec::SmallVec;

use super::{
    filter::Filter,
    lists::{Leavings, Lists},
    operation::Completion,
    rule::{Effect, Rule},
    slab::{Index, Slab},
    stats::ShardStats,
};
use crate::{Key, sync::Mutex};

/// A part of a purgatory: threads are spread over shards, and an operation is wholly in that of the
/// thread which brought it.
pub(super) struct Shard<K, O, R> {
    pub(super) filter: Filter,
    pub(super) contents: Mutex<Contents<K, O, R>>,
}

impl<K, O, R> Shard<K, O, R> {
    pub(super) fn new() -> Self {
        let contents = Contents {
            waiters: Slab::new(),
            lists: Lists::new(),
            serial: 0,
            passes: 0,
            is_closed: false,
            stats: ShardStats::new(),
        };
        Self { filter: Filter::new(), contents: Mutex::new(contents) }
    }
}

/// Where an operation is, or was.
#[derive(Debug)]
enum State<O, R> {
    Waiting(O),
    Out { verdict: Option<Completion<R>>, is_to_check_again: bool },
}

impl<O, R> State<O, R> {
    const OUT: Self = Self::Out { verdict: None, is_to_check_again: false };
}

/// An operation that has not ended, as its shard knows it.
#[derive(Debug)]
struct Waiter<O, R> {
    /// Tells it from all others of the shard, past and future.
    serial: u64,
    /// The last pass that saw it, or that had begun when it came.
    seen: u64,
    /// When it came, in nanoseconds of the timer.
    since: u64,
    timeout: Option<Key>,
    /// The first of its nodes that watch events.
    events: Option<Index>,
    /// The first of its nodes that wait for thresholds.
    thresholds: Option<Index>,
    rule: Rule,
    state: State<O, R>,
}

/// An operation that is out, until it has ended or is brought back.
pub(super) struct InHand<O, R> {
    pub(super) index: Index,
    /// `None` once it waits again.
    pub(super) operation: Option<O>,
    /// Whether the last check found that it can complete, and that is how it has ended if it has.
    pub(super) is_satisfied: bool,
    /// How it has ended, and what is to be cancelled in the timer.
    pub(super) end: Option<(Completion<R>, Option<Key>)>,
}

impl<O, R> InHand<O, R> {
    #[inline]
    pub(super) const fn new(index: Index, operation: O) -> Self {
        Self { index, operation: Some(operation), is_satisfied: false, end: None }
    }

    /// Whether it has neither ended nor been brought back.
    #[inline]
    pub(super) const fn is_out(&self) -> bool {
        self.operation.is_some() && self.end.is_none()
    }
}

/// Operations that are out at once for one event.
pub(super) const BATCH: usize = 32;

/// Operations that are checked between two holds of the lock.
pub(super) type Batch<O, R> = SmallVec<[InHand<O, R>; 2]>;

/// An operation that has ended, and is to be told so.
pub(super) struct Finished<O, R> {
    pub(super) operation: O,
    pub(super) completion: Completion<R>,
    /// What is to be cancelled in the timer.
    pub(super) timeout: Option<Key>,
}

/// Operations that have ended in one hold of the lock.
pub(super) type Finishes<O, R> = SmallVec<[Finished<O, R>; 2]>;

/// What comes of saying how an operation ends.
pub(super) enum Claim<O, R> {
    /// That is how it ended.
    Finished(Finished<O, R>),
    /// It is out, and will end so.
    Noted,
    /// It has ended, or will, in another way, or in this. What it might have been told is user code
    /// and dropped when the lock has been released.
    Lost(Completion<R>),
}

impl<O, R> Claim<O, R> {
    pub(super) const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// The operation that has waited longest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Eldest {
    pub(super) since: u64,
    pub(super) place: (Index, u64),
}

/// What is under the lock.
pub(super) struct Contents<K, O, R> {
    waiters: Slab<Waiter<O, R>>,
    pub(super) lists: Lists<K>,
    /// Serial number of the next operation.
    serial: u64,
    /// Number of passes over lists that have begun.
    passes: u64,
    pub(super) is_closed: bool,
    pub(super) stats: ShardStats,
}

impl<K, O, R> Contents<K, O, R>
where
    K: Send + 'static,
    O: Send + 'static,
    R: Send + 'static,
{
    /// Takes in an operation that is out. It is on no list yet.
    #[inline]
    pub(super) fn enter(&mut self, since: u64, rule: Rule) -> (Index, u64) {
        let serial = self.serial;
        self.serial += 1;
        let index = self.waiters.insert(Waiter {
            serial,
            seen: self.passes,
            since,
            timeout: None,
            events: None,
            thresholds: None,
            rule,
            state: State::OUT,
        });
        (index, serial)
    }

    /// Has an operation watch a key's events.
    #[inline]
    pub(super) fn watch_events(
        &mut self,
        index: Index,
        key: (u64, K),
        leavings: &mut Leavings<'_, K>,
    ) where
        K: Eq,
    {
        let waiter = &mut self.waiters[index];
        if let Some(node) = self.lists.watch_events(key, index, waiter.events, leavings) {
            waiter.events = Some(node);
        }
    }

    /// Has an operation wait for a key's value, and returns its node.
    pub(super) fn watch_threshold(
        &mut self,
        index: Index,
        key: (u64, K, u64),
        leavings: &mut Leavings<'_, K>,
    ) -> Index
    where
        K: Eq,
    {
        let waiter = &mut self.waiters[index];
        waiter.rule.add_threshold();
        let node = self.lists.watch_threshold(key, index, waiter.thresholds, leavings);
        waiter.thresholds = Some(node);
        node
    }

    /// Remembers that an operation is younger than those that came before it.
    pub(super) fn join_eldest(&mut self, index: Index) {
        let waiter = &mut self.waiters[index];
        waiter.events = Some(self.lists.join_eldest(index, waiter.events));
    }

    /// What tells operations that have come so far from those that come from now on.
    pub(super) const fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether an operation came before a serial number was the next.
    pub(super) fn is_before(&self, index: Index, serial: u64) -> bool {
        self.waiters[index].serial < serial
    }

    /// Number of operations that have not ended.
    pub(super) const fn len(&self) -> u32 {
        self.waiters.len()
    }

    /// One more than the greatest position of an operation.
    pub(super) fn end(&self) -> u32 {
        self.waiters.end()
    }

    /// Whether an operation has neither ended nor been told how it ends.
    pub(super) fn is_waiting(&self, index: Index, serial: u64) -> bool {
        let waiter = self.waiters.get(index).filter(|waiter| waiter.serial == serial);
        waiter.is_some_and(|waiter| !matches!(waiter.state, State::Out { verdict: Some(_), .. }))
    }

    /// Begins a pass: it sees each operation that is here by now at most once.
    #[inline]
    pub(super) fn begin_pass(&mut self) -> u64 {
        self.passes += 1;
        self.passes
    }

    /// Has `visit` see an operation, unless that has been seen in a pass. If it returns false, it
    /// has not been seen after all.
    #[inline]
    pub(super) fn see(
        &mut self,
        pass: u64,
        index: Index,
        mut visit: impl FnMut(&mut Self, Index) -> bool,
    ) -> bool {
        let seen = self.waiters[index].seen;
        if seen >= pass {
            return true;
        }
        self.waiters[index].seen = pass;
        let is_seen = visit(self, index);
        if !is_seen {
            self.waiters[index].seen = seen;
        }
        is_seen
    }

    /// Something happened to a key that an operation watches: takes it out, to be checked, if that
    /// may help.
    #[inline]
    pub(super) fn call(&mut self, index: Index, batch: &mut Batch<O, R>) {
        if self.waiters[index].rule.on_event() == Effect::Check {
            self.take_out(index, batch);
        }
    }

    /// Takes an operation out, or has whoever holds it check it again.
    #[inline]
    fn take_out(&mut self, index: Index, batch: &mut Batch<O, R>) {
        let state = &mut self.waiters[index].state;
        match mem::replace(state, State::OUT) {
            State::Waiting(operation) => {
                if batch.len() == batch.inline_size() {
                    batch.reserve_exact(BATCH - batch.len());
                }
                batch.push(InHand::new(index, operation));
            }
            State::Out { verdict, .. } => *state = State::Out { verdict, is_to_check_again: true },
        }
    }

    /// A threshold of an operation has been reached, and is off its list. Returns whether the
    /// operation ends by that; `None` if it is taken out, to be checked, or nothing follows.
    pub(super) fn on_threshold(
        &mut self,
        index: Index,
        now: u64,
        batch: &mut Batch<O, R>,
        leavings: &mut Leavings<'_, K>,
    ) -> Option<Claim<O, R>> {
        match self.waiters[index].rule.on_threshold() {
            Effect::Nothing => None,
            Effect::Check => {
                self.take_out(index, batch);
                None
            }
            Effect::Satisfied => Some(self.claim(index, Completion::Satisfied, now, leavings)),
        }
    }

    /// The values of some nodes' keys had been reached when these came on their lists, or soon
    /// after. Returns what follows for the operation, which is out.
    pub(super) fn on_found(
        &mut self,
        index: Index,
        nodes: impl Iterator<Item = Index>,
        leavings: &mut Leavings<'_, K>,
    ) -> Effect {
        for node in nodes {
            let is_news = self.lists.mark_reached(node, leavings);
            if is_news && self.waiters[index].rule.on_threshold() == Effect::Satisfied {
                return Effect::Satisfied;
            }
        }
        self.waiters[index].rule.on_event()
    }

    /// Ends the operation of a ticket, unless it has ended.
    pub(super) fn claim_ticket(
        &mut self,
        (index, serial): (Index, u64),
        completion: Completion<R>,
        now: u64,
        leavings: &mut Leavings<'_, K>,
    ) -> Claim<O, R> {
        if self.waiters.get(index).is_some_and(|waiter| waiter.serial == serial) {
            self.claim(index, completion, now, leavings)
        } else {
            Claim::Lost(completion)
        }
    }

    /// Ends an operation.
    pub(super) fn claim(
        &mut self,
        index: Index,
        completion: Completion<R>,
        now: u64,
        leavings: &mut Leavings<'_, K>,
    ) -> Claim<O, R> {
        let state = &mut self.waiters[index].state;
        match mem::replace(state, State::OUT) {
            State::Waiting(operation) => {
                let timeout = self.finish(index, &completion, now, leavings);
                Claim::Finished(Finished { operation, completion, timeout })
            }
            State::Out { verdict: None, is_to_check_again } => {
                *state = State::Out { verdict: Some(completion), is_to_check_again };
                Claim::Noted
            }
            decided @ State::Out { .. } => {
                *state = decided;
                Claim::Lost(completion)
            }
        }
    }

    /// Whether an operation is out, with nothing decided.
    fn is_undecided_out(&self, index: Index) -> bool {
        matches!(self.waiters[index].state, State::Out { verdict: None, .. })
    }

    /// The operation at a position; `None` if there is none.
    pub(super) fn at(&self, position: u32) -> Option<Index> {
        let index = Index::at(position);
        self.waiters.get(index).map(|_| index)
    }

    /// The first of the operations from a node on that is not out, with the time at which it came.
    /// Looks at a few only.
    pub(super) fn oldest_from(&self, mut node: Option<Index>) -> Option<Eldest> {
        const LOOKS: u32 = 64;
        for _ in 0..LOOKS {
            let (index, next) = self.lists.visit(node?);
            if let Waiter { state: State::Waiting(_), since, serial, .. } = self.waiters[index] {
                return Some(Eldest { since, place: (index, serial) });
            }
            node = next;
        }
        None
    }

    /// The operation that waits for the greatest value of a key, and that; unless it is out.
    pub(super) fn greatest(&self, list: Index) -> Option<(u64, (Index, u64))> {
        let (at, index) = self.lists.greatest(list)?;
        let waiter = &self.waiters[index];
        matches!(waiter.state, State::Waiting(_)).then_some((at, (index, waiter.serial)))
    }

    /// Brings back an operation that was out and has been checked. If it is to be checked again, it
    /// stays in hand; if it has ended, it is told there how.
    #[inline]
    pub(super) fn bring_back(
        &mut self,
        in_hand: &mut InHand<O, R>,
        now: u64,
        leavings: &mut Leavings<'_, K>,
    ) {
        let waiter = &mut self.waiters[in_hand.index];
        let State::Out { verdict, is_to_check_again } = &mut waiter.state else {
            unreachable!("an operation that is out has not been brought back")
        };
        let completion = match verdict.take() {
            Some(verdict) => {
                in_hand.is_satisfied = false;
                verdict
            }
            None if in_hand.is_satisfied => Completion::Satisfied,
            None if mem::take(is_to_check_again) => return,
            None => {
                if let Some(operation) = in_hand.operation.take() {
                    waiter.state = State::Waiting(operation);
                }
                return;
            }
        };
        let timeout = self.finish(in_hand.index, &completion, now, leavings);
        in_hand.end = Some((completion, timeout));
    }

    /// Sets by what the timeout of an operation can be cancelled.
    pub(super) fn set_timeout(&mut self, index: Index, timeout: Option<Key>) {
        self.waiters[index].timeout = timeout;
    }

    /// Forgets an operation that is out, unless it has been decided how that ends. Returns whether
    /// it has been forgotten.
    pub(super) fn withdraw(&mut self, index: Index, leavings: &mut Leavings<'_, K>) -> bool {
        let is_undecided = self.is_undecided_out(index);
        if is_undecided {
            let waiter = self.waiters.remove(index);
            self.lists.leave((waiter.events, waiter.thresholds), leavings);
        }
        is_undecided
    }

    /// Takes an operation that has ended off all lists. Returns its timeout.
    #[inline]
    fn finish(
        &mut self,
        index: Index,
        completion: &Completion<R>,
        now: u64,
        leavings: &mut Leavings<'_, K>,
    ) -> Option<Key> {
        let Waiter { events, thresholds, since, timeout, .. } = self.waiters.remove(index);
        self.lists.leave((events, thresholds), leavings);
        self.stats.count(completion, now.saturating_sub(since));
        if self.waiters.is_spacious() {
            leavings.throw_away((mem::take(&mut self.waiters), self.lists.clear()));
        }
        // What has expired has left the timer.
        timeout.filter(|_| !matches!(completion, Completion::Expired))
    }

    /// Gives back the room of operations that have ended. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.waiters.shrink();
        self.lists.shrink();
    }
}
