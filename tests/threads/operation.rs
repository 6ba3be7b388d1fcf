//! An operation of the load: its conditions, its faults, and the checks of its end.

use std::{
    cell::Cell,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::Duration,
};

use delaywheel::{Completion, DelayedOperation};

use crate::{
    books::{Books, Entry},
    breaches::panic_injected,
    waits::Waits,
};

pub(crate) const KEYS: u32 = 400;

const DEEPEST: u32 = 3;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) books: Arc<Books>,
    /// The value of each key, which never decreases.
    pub(crate) values: Vec<AtomicU64>,
    /// Calls into the purgatory that may register operations or announce events.
    pub(crate) calls: AtomicU64,
    /// Counts of the ends that the books do not count.
    pub(crate) satisfied: AtomicU64,
    pub(crate) displaced: AtomicU64,
    pub(crate) shut_down: AtomicU64,
}

impl State {
    pub(crate) fn new(books: Arc<Books>) -> Arc<Self> {
        Arc::new(Self {
            books,
            values: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
            calls: AtomicU64::new(0),
            satisfied: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            shut_down: AtomicU64::new(0),
        })
    }

    /// Counts a call until the guard is dropped.
    pub(crate) fn call(&self) -> Call<'_> {
        self.calls.fetch_add(1, SeqCst);
        Call(&self.calls)
    }
}

pub(crate) struct Call<'a>(&'a AtomicU64);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Holds when the value of a key has reached a threshold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition {
    pub(crate) key: u32,
    pub(crate) at: u64,
    /// Whether the purgatory knows the threshold. Otherwise the check of the operation reads it.
    pub(crate) is_threshold: bool,
}

impl Condition {
    fn holds(&self, values: &[AtomicU64]) -> bool {
        values[self.key as usize].load(SeqCst) >= self.at
    }
}

pub(crate) struct Op {
    pub(crate) state: Arc<State>,
    pub(crate) waits: Weak<Waits>,
    pub(crate) entry: Entry,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) is_all: bool,
    pub(crate) random: fastrand::Rng,
    /// Whether a check panicked, so that the operation may miss its event.
    pub(crate) has_panicked: bool,
    pub(crate) is_answered: bool,
}

impl Op {
    fn holds(&self, values: &[AtomicU64], of_checks: bool) -> bool {
        let mut conditions =
            self.conditions.iter().filter(|condition| !of_checks || !condition.is_threshold);
        if self.is_all {
            conditions.all(|condition| condition.holds(values))
        } else {
            conditions.any(|condition| condition.holds(values))
        }
    }

    /// Marks an operation that the library returned.
    pub(crate) fn hand_back(mut self) -> Entry {
        self.is_answered = true;
        self.entry
    }

    /// Whether its conditions hold although it still waits.
    pub(crate) fn has_missed_event(&self) -> bool {
        !self.has_panicked && self.holds(&self.state.values, false)
    }

    fn answer(&self, completion: Completion) {
        let books = &self.state.books;
        match completion {
            Completion::Satisfied => {
                let is_right = self.holds(&self.state.values, false) || books.is_forced(self.entry);
                books.breaches().unless(is_right, || {
                    format!("{:?} was satisfied without its condition", self.entry)
                });
                books.end(self.entry, "satisfied");
                self.state.satisfied.fetch_add(1, Relaxed);
            }
            Completion::Expired => {
                books.run(self.entry);
            }
            Completion::Cancelled => {
                books.cancel(self.entry);
            }
            other => {
                books.end(self.entry, "displaced or shut down");
                let is_displaced = other == Completion::Displaced;
                let count =
                    if is_displaced { &self.state.displaced } else { &self.state.shut_down };
                count.fetch_add(1, Relaxed);
            }
        }
    }

    fn panic(&self) -> ! {
        self.state.books.counts.panicked.fetch_add(1, Relaxed);
        panic_injected()
    }

    /// Whether faults that make other timeouts late have begun.
    fn is_harmed(&self) -> bool {
        self.state.books.clock().faults() > 0
    }

    fn go_on(mut self) {
        let choice = self.random.u32(..128);
        match choice {
            0 => self.panic(),
            1 if self.is_harmed() && self.random.u8(..16) == 0 => {
                thread::sleep(Duration::from_millis(1));
            }
            2..20 => nested(|| {
                let Some(waits) = self.waits.upgrade() else { return };
                waits.react(choice, &mut self.random);
            }),
            _ => {}
        }
    }
}

impl DelayedOperation<u32> for Op {
    fn try_complete(&mut self) -> bool {
        match self.random.u32(..2048) {
            0 => {
                self.has_panicked = true;
                self.panic();
            }
            1 if self.is_harmed() && self.random.bool() => thread::sleep(Duration::from_millis(1)),
            2..8 => self
                .waits
                .upgrade()
                .into_iter()
                .for_each(|waits| waits.look(self.conditions[0].key)),
            _ => {}
        }
        self.holds(&self.state.values, true)
    }

    fn has_reached(&mut self, key: &u32, threshold: u64) -> bool {
        self.state.values[*key as usize].load(SeqCst) >= threshold
    }

    fn complete(mut self, completion: Completion) {
        self.is_answered = true;
        self.answer(completion);
        // A displaced operation that registers another one would displace operations without end.
        if matches!(completion, Completion::Satisfied | Completion::Expired | Completion::Cancelled)
        {
            self.go_on();
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let entry = self.entry;
        self.state
            .books
            .breaches()
            .unless(self.is_answered, || format!("{entry:?} was dropped without an answer"));
    }
}

/// Runs a call that may complete other operations, up to a depth.
fn nested(run: impl FnOnce()) {
    thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    if DEPTH.get() < DEEPEST {
        DEPTH.set(DEPTH.get() + 1);
        let _back = Back;
        run();
    }
}
