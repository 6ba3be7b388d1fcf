//! The operations of a shard: their slots, their ends, and their watchers.
//!
//! # Ownership
//!
//! An operation waits in its slot, or is *out*: one thread owns it and checks it, with no lock
//! held. So the type system rules out that it completes twice. While it is out, other threads
//! record in its slot that an event was announced. An operation whose end is decided leaves its
//! slot and all lists at once. If it is out, its completion waits for the thread that returns it.
//!
//! # Verbs
//!
//! Each step of an end has one verb. To *claim* an operation is to decide how it ends; the first
//! claim wins. The operation then *leaves* its slot, its lists, the timer and the limits. If it
//! waits, it has *finished*, and the caller has it. Otherwise it finishes when the thread that has
//! it out *brings it back*. A thread *completes* a finished operation without a lock.
//!
//! # Layout
//!
//! An operation has the number of its timeout in the wheel, and its key is the key of the timeout.
//! So the wheel allocates slots, frees them, and shows whether a key is dead. This file has two
//! columns beside the slots of the wheel. An event reads the [`Waiter`] of each operation on its
//! key: 32 bytes in one cache line, if the operation is a reference or a box of a sized type. Only
//! its registration and its end need the [`Record`].

use std::{collections::BTreeMap, hint, mem, num::NonZeroU32};

use smallvec::SmallVec;

use super::{
    batch::{BATCH, Batch, Out},
    blocks::Blocks,
    conditions::{Effect, Rule, Threshold},
    hold::Hold,
    limits::{Counted, Excess, Limits, Oldest},
    lists::{Listed, Lists, ThresholdKey},
    operation::Completion,
    slab::Index,
    stats::{ShardStats, wait_weight},
    watchers::{Position, Positions},
};
use crate::{ticks::Nanos, wheel::Key};

/// The part of a slot that an event reads.
#[derive(Debug)]
#[repr(align(32))]
struct Waiter<O> {
    /// The last pass that saw it, or that had begun before its registration.
    seen: u64,
    /// `None` while a thread has it out.
    operation: Option<O>,
    /// The generation of its key; `None` if there is no operation.
    generation: Option<NonZeroU32>,
    rule: Rule,
    /// Whether the shard measures how long it waits.
    is_timed: bool,
    /// Whether an event was announced while it is out.
    is_announced: bool,
}

const _: () = assert!(size_of::<Waiter<&u8>>() == 32);

/// The part of a slot that only the registration and the end of the operation need. It keeps its
/// values after the end.
#[derive(Debug)]
struct Record {
    /// Its number in the order of registration.
    serial: u64,
    /// The time of its registration, in nanoseconds of the timer.
    since: Nanos,
    /// Where the lists of events name it.
    positions: Positions,
    /// The first of its nodes that wait for thresholds.
    thresholds: Option<Index>,
    counted: Counted,
}

impl<O> Waiter<O> {
    const VACANT: Self = Self {
        seen: 0,
        operation: None,
        generation: None,
        rule: Rule::CHECKED,
        is_timed: false,
        is_announced: false,
    };

    fn key(&self, index: Index) -> Option<Key> {
        Some(Key::new(index.position(), self.generation?))
    }

    #[inline]
    fn has_key(&self, key: Key) -> bool {
        self.generation == NonZeroU32::new(key.generation())
    }

    /// Takes the operation out, or makes the thread that has it out check it again.
    #[inline]
    fn take_out<R>(&mut self, index: Index, batch: &mut Batch<O, R>) {
        match (self.operation.take(), self.key(index)) {
            (Some(operation), Some(key)) => batch.push(Out::new(key, self.is_timed, operation)),
            _ => self.is_announced = true,
        }
    }
}

impl Record {
    const NONE: Self = Self {
        serial: u64::MAX,
        since: Nanos::ZERO,
        positions: Positions::EMPTY,
        thresholds: None,
        counted: Counted::NOWHERE,
    };
}

/// Number of slots in a block of memory.
const BLOCK: usize = 128;

pub(super) const HAS_TIMEOUT: &str = "an operation has a timeout until its end is decided";

/// Number of operations at once after which a shard frees its memory when the last of them ends.
pub(super) const CROWD: u32 = 1024;

/// The operations of a shard that have not ended.
pub(super) struct Waiters<K, O, R> {
    /// Indexed by the slots of the wheel, as `records`.
    slots: Blocks<Waiter<O>, BLOCK>,
    records: Blocks<Record, BLOCK>,
    /// Number of operations whose end is not decided.
    len: u32,
    /// The greatest `len` since the shard freed its memory.
    most: u32,
    pub(super) lists: Lists<K>,
    /// Serial number of the next operation.
    serial: u64,
    /// Number of passes over lists that have begun.
    passes: u64,
    /// The highest generation in the keys of ended operations.
    newest: u32,
    /// Whether the reaper must free the memory of the wheel.
    is_emptied: bool,
    /// The completions of the operations that are out and whose end is decided.
    pub(super) decided: BTreeMap<Key, Completion<R>>,
    pub(super) stats: ShardStats,
}

impl<K, O, R> Waiters<K, O, R> {
    pub(super) fn new() -> Self {
        Self {
            slots: Blocks::new(),
            records: Blocks::new(),
            len: 0,
            most: 0,
            lists: Lists::new(),
            serial: 0,
            passes: 0,
            newest: 0,
            is_emptied: false,
            decided: BTreeMap::new(),
            stats: ShardStats::new(),
        }
    }
}

impl<K: Send + 'static, O: Send + 'static, R: Send + 'static> Waiters<K, O, R> {
    /// Adds an operation that is out, with the key of its timeout, to the lists of events of keys.
    /// Returns whether the shard measures how long it waits.
    #[inline]
    pub(super) fn add(
        &mut self,
        key: Key,
        since: Nanos,
        rule: Rule,
        events: impl Iterator<Item = (u64, K)>,
        hold: &mut Hold<'_, K>,
    ) -> bool
    where
        K: Eq,
    {
        let serial = self.serial;
        self.serial += 1;
        self.len += 1;
        self.most = self.most.max(self.len);
        let is_timed = wait_weight(serial) > 0;
        let waiter = self.slots.at_or_grow(key.index(), || Waiter::VACANT);
        debug_assert!(waiter.generation.is_none(), "the slot of {key:?} has an operation");
        waiter.seen = self.passes;
        waiter.generation = NonZeroU32::new(key.generation());
        waiter.rule = rule;
        (waiter.is_timed, waiter.is_announced) = (is_timed, false);
        let record = self.records.at_or_grow(key.index(), || Record::NONE);
        (record.serial, record.since) = (serial, since);
        record.counted = hold.limits().counted_first();
        let (lists, index) = (&mut self.lists, Index::at(key.index()));
        let positions = events.map(|key| lists.watch_events(key, index, hold));
        record.positions.fill(positions);
        is_timed
    }

    /// Adds an operation to the thresholds of a key.
    pub(super) fn watch_threshold(
        &mut self,
        index: Index,
        threshold: &mut Threshold<K>,
        hold: &mut Hold<'_, K>,
    ) where
        K: Eq,
    {
        self.slots.at_mut(index.position()).rule.add_threshold();
        let record = self.records.at_mut(index.position());
        let node = self.lists.watch_threshold(threshold, index, record.thresholds, hold);
        record.thresholds = Some(node);
    }

    /// Appends an operation to the list of all operations.
    pub(super) fn append_to_all(&mut self, index: Index) {
        self.lists.append_to_all(index, &mut self.records.at_mut(index.position()).positions);
    }

    /// Returns the serial number of the next operation.
    pub(super) const fn next_serial(&self) -> u64 {
        self.serial
    }

    /// Returns whether an operation registered before the one with this serial number.
    pub(super) fn is_before(&self, index: Index, serial: u64) -> bool {
        self.record(index).serial < serial
    }

    /// Returns whether the shard measures how long a listed operation waits.
    pub(super) fn is_timed(&self, index: Index) -> bool {
        self.slots.at(index.position()).is_timed
    }

    /// Returns the number of operations whose end is not decided.
    pub(super) const fn waiting(&self) -> u32 {
        self.len
    }

    /// Returns an upper bound of the positions of operations.
    pub(super) fn end(&self) -> u32 {
        self.slots.end()
    }

    /// Returns the slot of an operation; `None` if its end is decided.
    #[inline]
    fn slot(&mut self, key: Key) -> Option<&mut Waiter<O>> {
        self.slots.get_mut(key.index()).filter(|waiter| waiter.has_key(key))
    }

    #[inline]
    fn record(&self, index: Index) -> &Record {
        self.records.at(index.position())
    }

    #[inline]
    fn counted(&self, index: Index) -> Counted {
        self.record(index).counted
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
    pub(super) fn on_event(&mut self, indices: &[Index], pass: u64, batch: &mut Batch<O, R>) {
        debug_assert!(
            indices.is_sorted_by_key(|&index| self.record(index).serial),
            "a list is not in the order of registration"
        );
        for &index in indices {
            let waiter = self.slots.at_mut(index.position());
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
    pub(super) fn take_out_again(&mut self, announced: &[Key], batch: &mut Batch<O, R>) {
        for &key in announced {
            if let Some(waiter @ Waiter { operation: Some(_), .. }) = self.slot(key) {
                waiter.take_out(Index::at(key.index()), batch);
            }
        }
    }

    /// Removes a reached threshold from its list. Takes the operation out if it needs a check.
    /// Returns whether the operation is satisfied: the caller claims it.
    pub(super) fn on_threshold(
        &mut self,
        threshold: ThresholdKey,
        index: Index,
        batch: &mut Batch<O, R>,
        hold: &mut Hold<'_, K>,
    ) -> bool {
        self.lists.mark_reached(threshold.node, self.counted(index).on_keys, hold);
        let waiter = self.slots.at_mut(index.position());
        let effect = waiter.rule.on_threshold();
        if effect == Effect::Check {
            waiter.take_out(index, batch);
        }
        effect == Effect::Satisfied
    }

    /// Handles the thresholds that the second check found reached. Returns the effect on the
    /// operation, which is out.
    pub(super) fn on_found(&mut self, key: Key, nodes: &[Index], hold: &mut Hold<'_, K>) -> Effect {
        let Self { slots, records, lists, .. } = self;
        let slot = slots.get_mut(key.index()).filter(|waiter| waiter.has_key(key));
        let Some(Waiter { rule, .. }) = slot else {
            return Effect::Nothing; // Its nodes have left.
        };
        let is_counted = records.at(key.index()).counted.on_keys;
        for &node in nodes {
            let was_listed = lists.mark_reached(node, is_counted, hold);
            if was_listed && rule.on_threshold() == Effect::Satisfied {
                return Effect::Satisfied;
            }
        }
        rule.on_event()
    }

    /// Reads the memory of operations that are about to end. No load depends on another one, so the
    /// processor waits for all at the same time. The ends would wait for them one by one.
    #[inline(never)]
    pub(super) fn read_ahead(&self, keys: impl Iterator<Item = Key>, hold: &mut Hold<'_, K>) {
        let mut positions = SmallVec::<[Position; 4 * BATCH]>::new();
        let mut read = 0;
        for key in keys {
            let has_timeout = hold.timeouts().has(key);
            let is_out = self.slots.get(key.index()).is_some_and(|slot| slot.operation.is_none());
            read += usize::from(has_timeout) + usize::from(is_out);
            if let Some(record) = self.records.get(key.index()) {
                positions.extend(record.positions.first());
            }
        }
        for position in positions {
            read += usize::from(self.lists.waiter_at(position).is_some());
        }
        hint::black_box(read);
    }

    /// Returns the key of the operation at a position, or `None` if there is none.
    pub(super) fn at(&self, position: u32) -> Option<Key> {
        self.slots.get(position)?.key(Index::at(position))
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
    pub(super) fn greatest_on_key(&self, hash: u64, except: Option<Index>) -> Option<(u64, Key)> {
        self.lists.greatest(hash, |index| {
            let is_victim = self.counted(index).on_keys && Some(index) != except;
            is_victim.then(|| self.at(index.position())).flatten()
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
            let Record { since, counted, .. } = *self.record(index);
            if is_victim(index, counted) {
                return Some(Oldest { since, waiter: self.at(index.position())? });
            }
            position = here.next();
        }
    }

    /// Marks an operation that is out for another check, unless its end is decided.
    pub(super) fn announce(&mut self, key: Key) {
        if let Some(waiter) = self.slot(key) {
            waiter.is_announced = true;
        }
    }

    /// Brings back a checked operation. It waits again, or has ended and stays in `out`. Returns
    /// whether it waits and an event was announced meanwhile.
    #[inline]
    pub(super) fn bring_back(
        &mut self,
        out: &mut Out<O, R>,
        now: Nanos,
        hold: &mut Hold<'_, K>,
    ) -> bool {
        let Some(waiter) = self.slot(out.key) else {
            self.bring_back_decided(out);
            return false;
        };
        debug_assert!(waiter.operation.is_none(), "{:?} is brought back twice", out.key);
        if !out.is_satisfied {
            waiter.operation = out.operation.take();
            return mem::take(&mut waiter.is_announced);
        }
        hold.timeouts().cancel(out.key).expect(HAS_TIMEOUT);
        let completion = Completion::Satisfied;
        let operation = self.leave(out.key, &completion, now, hold);
        debug_assert!(operation.is_none(), "{:?} is out and waits", out.key);
        out.completion = Some(completion);
        false
    }

    /// Gives an operation that is out the completion that another thread has decided.
    #[cold]
    fn bring_back_decided(&mut self, out: &mut Out<O, R>) {
        out.completion = self.decided.remove(&out.key);
        debug_assert!(out.completion.is_some(), "{:?} has neither waited nor ended", out.key);
        out.is_satisfied = false;
    }

    /// Counts an operation that begins to wait in the limits that displace others. Returns the
    /// limits that it exceeds.
    #[cold]
    pub(super) fn count_in(&mut self, key: Key, limits: &Limits) -> Excess {
        let mut excess = Excess::default();
        if self.slot(key).is_none() {
            return excess;
        }
        let record = self.records.at_mut(key.index());
        let before = mem::replace(&mut record.counted, Counted::EVERYWHERE);
        if !before.in_total {
            excess.is_total_exceeded = limits.exceed();
        }
        if !before.on_keys {
            excess.hashes = self.lists.hashes(&record.positions, record.thresholds);
            excess.hashes.retain(|hash| limits.exceed_key(*hash));
        }
        excess
    }

    /// Removes an operation whose end is decided from its slot and from all lists, releases its
    /// permits, and counts the end. Its timeout has left the timer. Returns the operation, unless
    /// it is out.
    #[inline(never)]
    pub(super) fn leave(
        &mut self,
        key: Key,
        completion: &Completion<R>,
        now: Nanos,
        hold: &mut Hold<'_, K>,
    ) -> Option<O> {
        let waiter = self.slots.at_mut(key.index());
        debug_assert!(waiter.has_key(key), "the slot of {key:?} has another operation");
        waiter.generation = None;
        let operation = waiter.operation.take();
        self.len -= 1;
        let record = self.records.at_mut(key.index());
        let wait = now.saturating_sub(record.since);
        self.stats.count(completion, wait, wait_weight(record.serial));
        let thresholds = record.thresholds.take();
        let counted = mem::replace(&mut record.counted, Counted::NOWHERE);
        let positions = &mut record.positions;
        let index = Index::at(key.index());
        self.lists.leave(index, positions, thresholds, counted.on_keys, hold);
        if counted.in_total {
            hold.limits().release();
        }
        self.newest = self.newest.max(key.generation());
        if self.len == 0 && self.most > CROWD {
            self.discard_memory(hold);
        }
        operation
    }

    /// Frees the memory of the shard and of its wheel, after the last operation has ended.
    ///
    /// The wheel keeps its slots once their generations are half used up. Further operations may
    /// then be at high positions, so the number of these does not tell whether there was a crowd.
    #[cold]
    fn discard_memory(&mut self, hold: &mut Hold<'_, K>) {
        self.most = 0;
        let slots = mem::replace(&mut self.slots, Blocks::new());
        let records = mem::replace(&mut self.records, Blocks::new());
        hold.discard_memory((slots, records, self.lists.clear()));
        self.is_emptied = !hold.discard_wheel(self.newest);
    }

    /// Returns the highest generation of a key if the last operation of a crowd has expired.
    pub(super) fn take_emptied(&mut self) -> Option<u32> {
        mem::take(&mut self.is_emptied).then_some(self.newest)
    }

    /// Frees the memory of operations that have ended. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        let is_vacant = |waiter: &Waiter<O>| waiter.generation.is_none();
        self.slots.release(|_, block| block.iter().all(is_vacant));
        self.records.release(|start, _| self.slots.get(start).is_none());
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
        let (mut waiting, mut in_total, mut listed) = (0, 0, Listed::default());
        for key in (0..self.slots.end()).filter_map(|position| self.at(position)) {
            let index = Index::at(key.index());
            let (waiter, record) = (self.slots.at(key.index()), self.record(index));
            let Record { serial, ref positions, thresholds, counted, .. } = *record;
            let of_waiter = self.lists.check_watchers(index, positions, thresholds);
            assert!(serial < self.serial, "serial {serial} is not below {}", self.serial);
            let Waiter { seen, ref operation, rule, is_timed, is_announced, .. } = *waiter;
            assert!(seen <= self.passes, "pass {seen} saw operation {serial} before it began");
            assert_eq!(
                of_waiter.missing,
                rule.missing(),
                "another number of thresholds is missing"
            );
            assert_eq!(is_timed, wait_weight(serial) > 0, "operation {serial} is timed wrongly");
            assert!(
                !(is_announced && operation.is_some()),
                "operation {serial} waits, but an event was announced for it"
            );
            assert!(hold.timeouts().has(key), "operation {serial} has no timeout");
            assert!(!self.decided.contains_key(&key), "the end of operation {serial} is decided");
            waiting += 1;
            in_total += u64::from(counted.in_total);
            listed.add(of_waiter);
            if counted.on_keys {
                for hash in self.lists.hashes(positions, thresholds) {
                    *on_keys.entry(hash).or_default() += 1;
                }
            }
        }
        assert_eq!(waiting, self.len, "the count of operations is wrong");
        assert!(self.len <= self.most, "{} operations, at most {}", self.len, self.most);
        let in_order = if hold.limits().needs_order() { waiting } else { 0 };
        assert_eq!(listed.in_order, u64::from(in_order), "an operation is not on the list of all");
        let ended = self.stats.ended();
        assert_eq!(ended + u64::from(waiting), self.serial, "an end is not counted once");
        let timeouts = hold.timeouts().check_invariants();
        assert_eq!(timeouts, u64::from(self.len), "timeouts and waiting operations differ");
        for position in (0..self.slots.end()).filter(|&position| self.at(position).is_none()) {
            let Some(Record { positions, thresholds, counted, .. }) = self.records.get(position)
            else {
                continue;
            };
            let is_listed = !positions.is_empty() || thresholds.is_some();
            assert!(!is_listed, "operation {position} is on a list after its end");
            assert!(!counted.in_total, "a limit counts operation {position} after its end");
        }
        self.lists.check_invariants(listed, hold.filter);
        in_total
    }
}
