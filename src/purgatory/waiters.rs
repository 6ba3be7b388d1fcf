//! The operations of a shard: their slots, their ends, and their watchers.
//!
//! # Ownership
//!
//! An operation waits in its slot, or is *out*: one thread owns it and checks it, with no lock
//! held. So the type system rules out that it completes twice. While it is out, other threads
//! record in its slot that an event was announced, or how the operation ends. An operation whose
//! end is decided leaves all lists at once. Only its slot remains until the thread returns it.
//!
//! # Verbs
//!
//! Each step of an end has one verb. To *claim* an operation is to decide how it ends; the first
//! claim wins. The operation then *leaves* its lists, the timer and the limits. If it waits, it
//! *finishes* in the same hold: its slot is free, and the caller has it. Otherwise it finishes when
//! the thread that has it out *brings it back*. A thread *completes* a finished operation without a
//! lock.
//!
//! # Layout
//!
//! A slot has two parts. An event reads the [`Waiter`] of each operation on its key: 32 bytes in
//! one cache line, for an operation of at most 8 bytes. Only its registration and its end need the
//! [`Registration`].

use std::{collections::BTreeMap, mem};

use super::{
    batch::{Announced, Batch, Out},
    blocks::Blocks,
    claim::{Claim, Finished},
    conditions::{Effect, Rule},
    hold::Hold,
    limits::{Counted, Excess, Limits, Oldest},
    lists::Lists,
    operation::{Completion, WaiterId},
    slab::{Index, Slab},
    stats::{ShardStats, wait_weight},
    watchers::{Position, Positions},
};
use crate::wheel::Key;

/// The state of an operation.
#[derive(Debug)]
enum State<O, R> {
    Waiting {
        operation: O,
        /// Whether the shard measures how long it waits.
        is_timed: bool,
    },
    /// A thread checks it. `is_announced` tells whether an event was announced meanwhile.
    Out { is_announced: bool },
    /// It is out, and its end is decided.
    Decided(Completion<R>),
}

impl<O, R> State<O, R> {
    const OUT: Self = Self::Out { is_announced: false };
}

/// The part of a slot that an event reads.
#[derive(Debug)]
#[repr(align(32))]
struct Waiter<O, R> {
    /// The last pass that saw it, or that had begun before its registration.
    seen: u64,
    rule: Rule,
    state: State<O, R>,
}

const _: () = assert!(size_of::<Waiter<&u8, ()>>() == 32);

/// The part of a slot that only the registration and the end of the operation need. It stays behind
/// when the operation has ended.
#[derive(Debug)]
struct Registration {
    /// Unique among all operations of the shard, past and future.
    serial: u64,
    /// The time of its registration, in nanoseconds of the timer.
    since: u64,
    /// Its timeout, which is pending until its end is decided; `None` if there has been none.
    timeout: Option<Key>,
    /// Where the lists of events name it.
    positions: Positions,
    /// The first of its nodes that wait for thresholds.
    thresholds: Option<Index>,
    counted: Counted,
}

impl<O, R> Waiter<O, R> {
    /// Takes the operation out, or makes the thread that has it out check it again.
    #[inline]
    fn take_out(&mut self, index: Index, batch: &mut Batch<O, R>) {
        match mem::replace(&mut self.state, State::OUT) {
            State::Waiting { operation, is_timed } => {
                batch.push(Out::new(index, is_timed, operation));
            }
            State::Out { .. } => self.state = State::Out { is_announced: true },
            decided @ State::Decided(_) => self.state = decided,
        }
    }
}

impl Registration {
    const NONE: Self = Self {
        serial: u64::MAX,
        since: 0,
        timeout: None,
        positions: Positions::EMPTY,
        thresholds: None,
        counted: Counted::NOWHERE,
    };
}

/// Number of registrations in a block of memory, as of slots.
const BLOCK: usize = 128;

/// The operations of a shard that have not ended.
pub(super) struct Waiters<K, O, R> {
    slots: Slab<Waiter<O, R>>,
    /// Indexed by the positions of slots.
    registrations: Blocks<Registration, BLOCK>,
    pub(super) lists: Lists<K>,
    /// Serial number of the next operation.
    serial: u64,
    /// Number of passes over lists that have begun.
    passes: u64,
    /// Number of operations that are out and whose end is decided.
    decided: u32,
    pub(super) stats: ShardStats,
}

impl<K, O, R> Waiters<K, O, R> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            registrations: Blocks::new(),
            lists: Lists::new(),
            serial: 0,
            passes: 0,
            decided: 0,
            stats: ShardStats::new(),
        }
    }
}

impl<K, O, R> Waiters<K, O, R>
where
    K: Send + 'static,
    O: Send + 'static,
    R: Send + 'static,
{
    /// Returns the index of the next operation to be added.
    #[inline]
    pub(super) fn next_index(&mut self) -> Index {
        self.slots.next_index()
    }

    /// Adds a slot for an operation that is out, and has a timeout. It is on no list yet.
    #[inline]
    pub(super) fn add(
        &mut self,
        since: u64,
        timeout: Key,
        rule: Rule,
        counted: Counted,
    ) -> WaiterId {
        let serial = self.serial;
        self.serial += 1;
        let (index, _) = self.slots.insert(Waiter { seen: self.passes, rule, state: State::OUT });
        let registration = self.registrations.at_or_grow(index.position(), || Registration::NONE);
        debug_assert!(registration.positions.is_empty(), "the slot belongs to a listed operation");
        registration.serial = serial;
        registration.since = since;
        registration.timeout = Some(timeout);
        registration.counted = counted;
        WaiterId { index, serial }
    }

    /// Adds an operation to the lists of events of keys.
    #[inline]
    pub(super) fn watch_events(
        &mut self,
        index: Index,
        keys: impl Iterator<Item = (u64, K)>,
        hold: &mut Hold<'_, K>,
    ) where
        K: Eq,
    {
        let positions = &mut self.registrations.at_mut(index.position()).positions;
        positions.fill(keys.map(|key| self.lists.watch_events(key, index, hold)));
    }

    /// Adds an operation to the thresholds of a key, and returns the node.
    pub(super) fn watch_threshold(
        &mut self,
        index: Index,
        key: (u64, K, u64),
        hold: &mut Hold<'_, K>,
    ) -> Index
    where
        K: Eq,
    {
        self.slots[index].rule.add_threshold();
        let registration = self.registrations.at_mut(index.position());
        let node = self.lists.watch_threshold(key, index, registration.thresholds, hold);
        registration.thresholds = Some(node);
        node
    }

    /// Appends an operation to the list of all operations.
    pub(super) fn append_to_all(&mut self, index: Index) {
        self.lists.append_to_all(index, &mut self.registrations.at_mut(index.position()).positions);
    }

    /// Returns the serial number of the next operation.
    pub(super) const fn next_serial(&self) -> u64 {
        self.serial
    }

    /// Returns whether an operation registered before the one with this serial number.
    pub(super) fn is_before(&self, index: Index, serial: u64) -> bool {
        self.registration(index).serial < serial
    }

    /// Returns the number of operations that have not ended and whose end is not decided.
    pub(super) const fn waiting(&self) -> u32 {
        self.slots.len() - self.decided
    }

    /// Returns an upper bound of the positions of operations.
    pub(super) fn end(&self) -> u32 {
        self.slots.end()
    }

    /// Returns whether an operation has not ended and its end is not decided.
    pub(super) fn is_waiting(&self, WaiterId { index, serial }: WaiterId) -> bool {
        let waiter = self.slots.get(index).filter(|_| self.registration(index).serial == serial);
        waiter.is_some_and(|waiter| !matches!(waiter.state, State::Decided(_)))
    }

    #[inline]
    fn registration(&self, index: Index) -> &Registration {
        self.registrations.at(index.position())
    }

    #[inline]
    fn counted(&self, index: Index) -> Counted {
        self.registration(index).counted
    }

    /// Begins a pass, which sees each present operation at most once.
    #[inline]
    pub(super) fn begin_pass(&mut self) -> u64 {
        self.passes += 1;
        self.passes
    }

    /// Handles an event on a key that operations watch. Takes out those that the pass has not seen
    /// and that a check can complete.
    #[inline]
    pub(super) fn call(&mut self, indices: &[Index], pass: u64, batch: &mut Batch<O, R>) {
        for &index in indices {
            let waiter = &mut self.slots[index];
            if waiter.seen < pass {
                waiter.seen = pass;
                if waiter.rule.on_event() == Effect::Check {
                    waiter.take_out(index, batch);
                }
            }
        }
    }

    /// Takes the announced operations out that still wait. If another thread has taken one out
    /// since, that thread checks it.
    pub(super) fn take_out_again(&mut self, announced: &Announced, batch: &mut Batch<O, R>) {
        for &WaiterId { index, serial } in announced {
            let Some(waiter @ Waiter { state: State::Waiting { .. }, .. }) =
                self.slots.get_mut(index)
            else {
                continue;
            };
            if self.registrations.at(index.position()).serial == serial {
                waiter.take_out(index, batch);
            }
        }
    }

    /// Removes the least threshold of a key from its list if `value` reaches it. Returns the
    /// threshold and its operation.
    #[inline]
    pub(super) fn reach(
        &mut self,
        list: Index,
        value: u64,
        hold: &mut Hold<'_, K>,
    ) -> Option<(u64, Index)> {
        let (at, node, waiter) = self.lists.least(list)?;
        if at > value {
            return None;
        }
        self.lists.mark_reached(node, self.counted(waiter).on_keys, hold);
        Some((at, waiter))
    }

    /// Handles a reached threshold, which is off its list. Returns the claim if this ends the
    /// operation. Returns `None` if the operation was taken out for a check, or if there is no
    /// effect.
    pub(super) fn on_threshold(
        &mut self,
        index: Index,
        now: u64,
        batch: &mut Batch<O, R>,
        hold: &mut Hold<'_, K>,
    ) -> Option<Claim<O, R>> {
        match self.slots[index].rule.on_threshold() {
            Effect::Nothing => None,
            Effect::Check => {
                self.slots[index].take_out(index, batch);
                None
            }
            Effect::Satisfied => Some(self.claim(index, Completion::Satisfied, now, hold)),
        }
    }

    /// Handles the thresholds that the second check found reached. Returns the effect on the
    /// operation, which is out.
    pub(super) fn on_found(
        &mut self,
        index: Index,
        nodes: &[Index],
        hold: &mut Hold<'_, K>,
    ) -> Effect {
        if matches!(self.slots[index].state, State::Decided(_)) {
            return Effect::Nothing; // Its nodes have left.
        }
        let is_counted = self.counted(index).on_keys;
        for &node in nodes {
            let was_listed = self.lists.mark_reached(node, is_counted, hold);
            if was_listed && self.slots[index].rule.on_threshold() == Effect::Satisfied {
                return Effect::Satisfied;
            }
        }
        self.slots[index].rule.on_event()
    }

    /// Ends the operation with an id, unless it has ended.
    pub(super) fn claim_by_id(
        &mut self,
        WaiterId { index, serial }: WaiterId,
        completion: Completion<R>,
        now: u64,
        hold: &mut Hold<'_, K>,
    ) -> Claim<O, R> {
        if self.slots.get(index).is_some() && self.registration(index).serial == serial {
            self.claim(index, completion, now, hold)
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
        hold: &mut Hold<'_, K>,
    ) -> Claim<O, R> {
        let state = &mut self.slots[index].state;
        match mem::replace(state, State::OUT) {
            State::Waiting { operation, .. } => {
                self.finish(index, &completion, now, hold);
                Claim::Finished(Finished { operation, completion })
            }
            State::Out { .. } => {
                self.leave(index, &completion, now, hold);
                self.slots[index].state = State::Decided(completion);
                self.decided += 1;
                Claim::Decided
            }
            decided @ State::Decided(_) => {
                *state = decided;
                Claim::Lost(completion)
            }
        }
    }

    /// Returns the operation at a position, or `None` if there is none.
    pub(super) fn at(&self, position: u32) -> Option<Index> {
        let index = Index::at(position);
        self.slots.get(index).map(|_| index)
    }

    /// Returns the operation that has waited longest, except `except`, of those that the total
    /// limit counts.
    pub(super) fn oldest(&self, except: Option<Index>) -> Option<Oldest> {
        self.oldest_from(self.lists.start_of_all()?, |index, counted| {
            counted.in_total && Some(index) != except
        })
    }

    /// Returns the operation that has watched the events of a key with this hash longest, except
    /// `except`, of those that the key's limit counts.
    pub(super) fn oldest_on_key(&self, hash: u64, except: Option<Index>) -> Option<Oldest> {
        self.lists.lists_of_hash(hash, |first| {
            self.oldest_from(first, |index, counted| counted.on_keys && Some(index) != except)
        })
    }

    /// Returns the operation with the greatest threshold on a key with this hash, except `except`,
    /// of those that the key's limit counts. Also returns the threshold.
    pub(super) fn greatest_on_key(
        &self,
        hash: u64,
        except: Option<Index>,
    ) -> Option<(u64, WaiterId)> {
        self.lists.greatest(hash, |index| {
            let registration = self.registration(index);
            let is_victim = registration.counted.on_keys && Some(index) != except;
            is_victim.then_some(WaiterId { index, serial: registration.serial })
        })
    }

    /// Returns the first operation from a position on for which `is_victim` returns `true`. It
    /// skips only operations whose registration is in progress.
    fn oldest_from(
        &self,
        mut position: Position,
        is_victim: impl Fn(Index, Counted) -> bool,
    ) -> Option<Oldest> {
        loop {
            let (here, index) = self.lists.seek(position)?;
            let Registration { since, serial, counted, .. } = *self.registration(index);
            if is_victim(index, counted) {
                return Some(Oldest { since, waiter: WaiterId { index, serial } });
            }
            position = here.next();
        }
    }

    /// Marks an operation that is out for another check, unless its end is decided.
    pub(super) fn announce(&mut self, index: Index) {
        if let State::Out { is_announced } = &mut self.slots[index].state {
            *is_announced = true;
        }
    }

    /// Brings back a checked operation. It waits again, or has ended and stays in `out`. If it
    /// waits and an event was announced meanwhile, adds it to `announced`.
    #[inline]
    pub(super) fn bring_back(
        &mut self,
        out: &mut Out<O, R>,
        now: u64,
        announced: &mut Announced,
        hold: &mut Hold<'_, K>,
    ) {
        let index = out.index;
        let waiter = &mut self.slots[index];
        match mem::replace(&mut waiter.state, State::OUT) {
            State::Decided(completion) => {
                debug_assert_ne!(self.decided, 0, "the count misses a decided end");
                out.is_satisfied = false;
                self.decided -= 1;
                out.completion = Some(completion);
                self.free_slot(index, hold);
            }
            State::Out { .. } if out.is_satisfied => {
                let completion = Completion::Satisfied;
                self.finish(index, &completion, now, hold);
                out.completion = Some(completion);
            }
            State::Out { is_announced } => {
                if is_announced {
                    let serial = self.registrations.at(index.position()).serial;
                    announced.push(WaiterId { index, serial });
                }
                let operation = out.operation.take().expect("an operation is brought back once");
                waiter.state = State::Waiting { operation, is_timed: out.is_timed };
            }
            State::Waiting { .. } => {
                unreachable!("an operation that is out has not been brought back")
            }
        }
    }

    /// Counts an operation that begins to wait in the limits that displace others. Returns the
    /// limits that it exceeds.
    #[inline]
    pub(super) fn count_in(&mut self, index: Index, limits: &Limits) -> Excess {
        let counted = self.counted(index);
        if counted.in_total && counted.on_keys {
            return Excess::default();
        }
        self.count_displacing(index, limits)
    }

    #[cold]
    fn count_displacing(&mut self, index: Index, limits: &Limits) -> Excess {
        let mut excess = Excess::default();
        if matches!(self.slots[index].state, State::Decided(_)) {
            return excess;
        }
        let registration = self.registrations.at_mut(index.position());
        let before = mem::replace(&mut registration.counted, Counted::EVERYWHERE);
        if !before.in_total {
            excess.is_total_exceeded = limits.exceed();
        }
        if !before.on_keys {
            excess.hashes = self.lists.hashes(&registration.positions, registration.thresholds);
            excess.hashes.retain(|hash| limits.exceed_key(*hash));
        }
        excess
    }

    /// Removes an operation that ends from the shard.
    #[inline]
    fn finish(
        &mut self,
        index: Index,
        completion: &Completion<R>,
        now: u64,
        hold: &mut Hold<'_, K>,
    ) {
        self.leave(index, completion, now, hold);
        self.free_slot(index, hold);
    }

    /// Removes an operation whose end is decided from all lists, cancels its timeout, releases its
    /// permits, and counts the end.
    #[inline]
    fn leave(
        &mut self,
        index: Index,
        completion: &Completion<R>,
        now: u64,
        hold: &mut Hold<'_, K>,
    ) {
        let registration = self.registrations.at_mut(index.position());
        let wait = now.saturating_sub(registration.since);
        self.stats.count(completion, wait, wait_weight(registration.serial));
        let timeout = registration.timeout.take();
        // An expired timeout has left the timer.
        if let (Some(timeout), false) = (timeout, matches!(completion, Completion::Expired)) {
            hold.cancel(timeout, index);
        }
        let thresholds = registration.thresholds.take();
        let counted = mem::replace(&mut registration.counted, Counted::NOWHERE);
        let positions = &mut registration.positions;
        self.lists.leave(index, positions, thresholds, counted.on_keys, hold);
        if counted.in_total {
            hold.limits().release();
        }
    }

    /// Frees the slot of an operation that is on no list.
    #[inline]
    fn free_slot(&mut self, index: Index, hold: &mut Hold<'_, K>) {
        self.slots.discard(index);
        debug_assert!(
            self.decided <= self.slots.len(),
            "{} ends are decided, of {} operations",
            self.decided,
            self.slots.len()
        );
        if self.slots.is_spacious() {
            let registrations = mem::replace(&mut self.registrations, Blocks::new());
            hold.discard_memory((mem::take(&mut self.slots), registrations, self.lists.clear()));
        }
    }

    /// Frees the memory of operations that have ended. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.slots.shrink();
        self.registrations.release(|start, _| !self.slots.has_room_at(start));
        self.lists.shrink();
    }

    /// Checks the invariants that hold whenever the lock is free. Returns the number of operations
    /// that the total limit counts. Adds the count of each key's limit, by hash.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(
        &self,
        on_keys: &mut BTreeMap<u64, u64>,
        hold: &mut Hold<'_, K>,
    ) -> u64 {
        let (mut decided, mut in_total, mut watching) = (0, 0, 0);
        for index in (0..self.slots.end()).filter_map(|position| self.at(position)) {
            let (waiter, registration) = (&self.slots[index], self.registration(index));
            let Registration { serial, ref positions, thresholds, counted, .. } = *registration;
            let (listed, missing) = self.lists.check_watchers(index, positions, thresholds);
            assert!(serial < self.serial, "serial {serial} is not below {}", self.serial);
            let (seen, rule_misses) = (waiter.seen, waiter.rule.missing());
            assert!(seen <= self.passes, "pass {seen} saw operation {serial} before it began");
            let is_decided = matches!(waiter.state, State::Decided(_));
            assert!(
                is_decided || missing == rule_misses,
                "{missing} listed, {rule_misses} missing"
            );
            if is_decided {
                let is_listed = !positions.is_empty() || thresholds.is_some();
                assert!(!is_listed, "operation {serial} is on a list after its claim");
                assert!(!counted.in_total, "a limit counts operation {serial} after its claim");
                decided += 1;
            }
            if let State::Waiting { is_timed, .. } = waiter.state {
                assert_eq!(
                    is_timed,
                    wait_weight(serial) > 0,
                    "the wait of operation {serial} is timed wrongly"
                );
            }
            let timeout = registration.timeout.and_then(|key| hold.timeouts().get(key).copied());
            let expected = (!is_decided).then_some(index);
            assert_eq!(timeout, expected, "the timeout of operation {serial} is wrong");
            in_total += u64::from(counted.in_total);
            watching += listed;
            if counted.on_keys {
                for hash in self.lists.hashes(positions, thresholds) {
                    *on_keys.entry(hash).or_default() += 1;
                }
            }
        }
        assert_eq!(decided, self.decided, "the count of decided ends is wrong");
        let timeouts = hold.timeouts().check_invariants();
        assert_eq!(timeouts, u64::from(self.waiting()), "timeouts and waiting operations differ");
        assert_eq!(watching, self.lists.watching(), "operations and lists count other watchers");
        self.lists.check_invariants(hold.filter);
        in_total
    }
}
