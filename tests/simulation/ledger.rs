//! What is known of the operations of a purgatory: what they wait for, and how they may end.

use std::collections::BTreeSet;

use delaywheel::{Completion, OperationKey};

use crate::{
    books::Tick,
    script::{Action, Back, KEYS, Kind, Wait},
};

/// An operation, by its place in the ledger.
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
    pub(crate) key: Option<OperationKey>,
    pub(crate) is_ready: bool,
    pub(crate) checks: u32,
    /// Whether it was announced when it could complete.
    pub(crate) is_announced: bool,
    /// By what it is being ended: it may end so.
    pub(crate) claims: Vec<Completion<u32>>,
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

#[derive(Debug, Default)]
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
}

impl Ledger {
    pub(crate) fn missing(&self, number: Number) -> usize {
        let operation = &self.operations[number];
        operation.thresholds.iter().filter(|(key, at)| self.values[*key as usize] < *at).count()
    }

    pub(crate) fn watchers(&self, number: Number) -> u64 {
        u64::from(self.operations[number].wait.events.count_ones()) + self.missing(number) as u64
    }

    /// Whether an operation can complete, as far as that is known.
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

    /// Notes that what operations on a key wait for was announced.
    pub(crate) fn announce(&mut self, key: u32) {
        for number in self.waiting.clone() {
            let is_due = self.operations[number].watches(key)
                && self.is_satisfiable(number)
                && self.operations[number].is_ready
                // A check that panics has found nothing.
                && !matches!(self.operations[number].wait.on_check.1, Action::Panic | Action::ScheduleAndPanic(..));
            self.operations[number].is_announced |= is_due;
        }
    }
}
