//! The model of a purgatory: its operations, their conditions, and their possible ends.

use std::collections::{BTreeMap, BTreeSet};

use delaywheel::{Completion, OperationKey, Overload};

use crate::{
    books::Tick,
    script::{Action, Back, KEYS, Kind, Setup, Wait},
};

/// An operation, by its index in the ledger.
pub(crate) type Number = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Coming,
    Waiting,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) wait: Wait,
    pub(crate) state: State,
    pub(crate) thresholds: Vec<(u32, u64)>,
    pub(crate) deadline: Tick,
    /// The time at which it began to wait, in nanoseconds.
    pub(crate) since: u64,
    /// The number of its wait, in the order in which waits began.
    pub(crate) order: u64,
    pub(crate) shard: usize,
    pub(crate) key: Option<OperationKey>,
    pub(crate) is_ready: bool,
    pub(crate) checks: u32,
    pub(crate) is_announced: bool,
    /// Completions by calls in progress: it may end in one of these ways.
    pub(crate) claims: Vec<Completion>,
    pub(crate) is_dropped: bool,
}

impl Operation {
    pub(crate) fn watches(&self, key: u32) -> bool {
        self.wait.events & (1 << key) > 0
    }

    pub(crate) fn is_on_key(&self, key: u32) -> bool {
        self.watches(key) || self.thresholds.iter().any(|(other, _)| *other == key)
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.wait.events > 0 || (self.thresholds.is_empty() && self.wait.values == 0)
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) at_once: u64,
    pub(crate) satisfied: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) displaced: u64,
    pub(crate) shut_down: u64,
    pub(crate) refused: u64,
    pub(crate) panicked: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) operations: Vec<Operation>,
    pub(crate) waiting: BTreeSet<Number>,
    pub(crate) values: [u64; KEYS as usize],
    pub(crate) counts: Counts,
    pub(crate) is_shut_down: bool,
    begun: u64,
}

impl Ledger {
    pub(crate) fn missing(&self, number: Number) -> usize {
        let operation = &self.operations[number];
        operation.thresholds.iter().filter(|(key, at)| self.values[*key as usize] < *at).count()
    }

    pub(crate) fn watchers(&self, number: Number) -> u64 {
        u64::from(self.operations[number].wait.events.count_ones()) + self.missing(number) as u64
    }

    /// Returns the number of permits of a key that an operation takes.
    fn places(&self, number: Number, key: u32) -> u64 {
        let operation = &self.operations[number];
        let value = self.values[key as usize];
        let is_missing = |&&(other, at): &&(u32, u64)| other == key && value < at;
        let missing = operation.thresholds.iter().filter(is_missing).count() as u64;
        u64::from(operation.watches(key)) + missing
    }

    pub(crate) fn taken(&self, key: u32) -> u64 {
        self.waiting.iter().map(|&number| self.places(number, key)).sum()
    }

    /// Returns the number of watched keys. A key counts in each shard.
    pub(crate) fn keys(&self) -> u64 {
        let on_key = |key| move |&number: &Number| self.places(number, key) > 0;
        let shards = (0..KEYS).map(|key| {
            let watching = self.waiting.iter().copied().filter(on_key(key));
            watching.map(|number| self.operations[number].shard).collect::<BTreeSet<_>>().len()
        });
        shards.sum::<usize>() as u64
    }

    /// Returns whether a key has too few permits for an operation. If the limit displaces, the
    /// permits of all other operations count as free.
    pub(crate) fn is_key_full(&self, number: Number, (max, overload): (u64, Overload)) -> bool {
        let displaces = overload == Overload::DisplaceOldest;
        (0..KEYS).any(|key| {
            let needed = self.places(number, key);
            let taken = if displaces { 0 } else { self.taken(key) };
            needed > 0 && needed + taken > max
        })
    }

    /// Returns whether the new operation exceeds a limit that displaces, and this operation is the
    /// one to displace.
    pub(crate) fn is_to_go(&self, number: Number, setup: &Setup) -> bool {
        let displacing = |limit: Option<(u64, Overload)>| {
            limit.filter(|(_, overload)| *overload == Overload::DisplaceOldest).map(|(max, _)| max)
        };
        let coming = |operation: &Operation| operation.state == State::Coming;
        let Some(coming) = self.operations.iter().rposition(coming) else { return false };
        let of_all = displacing(setup.max_delayed).is_some_and(|max| {
            self.waiting.len() as u64 >= max && self.eldest(|_| true) == Some(number)
        });
        let of_key = displacing(setup.max_per_key).is_some_and(|max| {
            (0..KEYS).any(|key| {
                let needed = self.places(coming, key);
                needed > 0 && needed + self.taken(key) > max && self.is_first_on_key(number, key)
            })
        });
        of_all || of_key
    }

    /// Returns whether an operation is the one to displace on a key. It has watched the key's
    /// events longest, or, if no operation watches events, it has the greatest threshold.
    fn is_first_on_key(&self, number: Number, key: u32) -> bool {
        let of_events = self.eldest(|operation| operation.watches(key));
        of_events.map_or_else(
            || {
                let goal = |number: &Number| {
                    let thresholds = self.operations[*number].thresholds.iter();
                    thresholds.filter(|(other, _)| *other == key).map(|&(_, at)| at).max()
                };
                goal(&number) >= self.waiting.iter().filter_map(goal).max()
            },
            |eldest| eldest == number,
        )
    }

    /// Returns the operation that has waited longest, of those that `is_one` selects. With equal
    /// times, it is the first of the first shard.
    fn eldest(&self, is_one: impl Fn(&Operation) -> bool) -> Option<Number> {
        let mut firsts = BTreeMap::new();
        for &number in self.waiting.iter().filter(|&&number| is_one(&self.operations[number])) {
            let operation = &self.operations[number];
            let first = firsts.entry(operation.shard).or_insert((operation.order, number));
            *first = (operation.order, number).min(*first);
        }
        let firsts = firsts.into_values().map(|(_, number)| number);
        firsts.min_by_key(|&number| self.operations[number].since)
    }

    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    pub(crate) fn is_satisfiable(&self, number: Number) -> bool {
        let operation = &self.operations[number];
        let missing = self.missing(number);
        let is_ready = operation.is_checked() && operation.is_ready;
        match operation.wait.kind {
            Kind::All => missing == 0 && (is_ready || !operation.is_checked()),
            Kind::Plain | Kind::Any => missing < operation.thresholds.len() || is_ready,
        }
    }

    pub(crate) fn pick(&self, back: Back) -> Option<Number> {
        if back % 2 == 0 {
            return self.waiting.iter().rev().nth(back / 2).copied();
        }
        self.operations.len().checked_sub(back / 2 + 1)
    }

    /// Records an announced event for the operations on a key that can complete.
    pub(crate) fn announce(&mut self, key: u32) {
        for number in self.waiting.clone() {
            let is_due = self.operations[number].watches(key)
                && self.is_satisfiable(number)
                && self.operations[number].is_ready
                // A check that panics does not complete the operation.
                && !matches!(self.operations[number].wait.on_check.1, Action::Panic | Action::ScheduleAndPanic(..));
            self.operations[number].is_announced |= is_due;
        }
    }
}
