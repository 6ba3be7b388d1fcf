//! An operation of the load: what it waits for, how it misbehaves, and what its end must agree with.

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

/// Why operations are cancelled.
pub(crate) type Reason = &'static str;

/// Keys that events happen to.
pub(crate) const KEYS: u32 = 400;

/// How deep completions may complete others.
const DEEPEST: u32 = 3;

/// What operations look at.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) books: Arc<Books>,
    /// The value of each key, which never decreases.
    pub(crate) values: Vec<AtomicU64>,
    /// What the announcement of has come to its end.
    pub(crate) announced: Vec<AtomicU64>,
    /// The same a second ago, or longer.
    pub(crate) long_announced: Vec<AtomicU64>,
    /// How operations ended that are counted by nobody else.
    pub(crate) satisfied: AtomicU64,
    pub(crate) displaced: AtomicU64,
    pub(crate) shut_down: AtomicU64,
}

impl State {
    pub(crate) fn new(books: Arc<Books>) -> Arc<Self> {
        let zeros = || (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            books,
            values: zeros(),
            announced: zeros(),
            long_announced: zeros(),
            satisfied: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            shut_down: AtomicU64::new(0),
        })
    }

    /// What was announced until now has been for long, the next time this is called.
    pub(crate) fn grow_old(&self, recent: &mut [u64]) {
        for ((announced, long), recent) in
            self.announced.iter().zip(&self.long_announced).zip(recent)
        {
            long.store(*recent, SeqCst);
            *recent = announced.load(SeqCst);
        }
    }
}

/// That a key has reached a value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition {
    pub(crate) key: u32,
    pub(crate) at: u64,
    /// Whether it is a threshold of the purgatory, and not what a check looks at.
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
    /// Whether all conditions are to hold, and not one of them.
    pub(crate) is_all: bool,
    pub(crate) random: fastrand::Rng,
    /// A check has panicked, so that an event may have been missed.
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

    /// Takes note that the library has handed the operation back.
    pub(crate) fn hand_back(mut self) -> Entry {
        self.is_answered = true;
        self.entry
    }

    fn answer(&self, completion: Completion<Reason>) {
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
                let is_missed = !self.has_panicked && self.holds(&self.state.long_announced, false);
                books.breaches().unless(!is_missed, || {
                    format!("{:?} expired a second after its event", self.entry)
                });
                books.run(self.entry);
            }
            Completion::Cancelled(reason) => {
                books.breaches().unless(!reason.is_empty(), || String::from("a reason was lost"));
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

    /// Whether faults have begun that make others late.
    fn is_harmed(&self) -> bool {
        self.state.books.clock().faults() > 0
    }

    /// What the user does when the request has been answered.
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

impl DelayedOperation<u32, Reason> for Op {
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

    fn complete(mut self, completion: Completion<Reason>) {
        self.is_answered = true;
        self.answer(completion);
        // One that is displaced and waits again would displace others for ever.
        if matches!(
            completion,
            Completion::Satisfied | Completion::Expired | Completion::Cancelled(_)
        ) {
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

/// Runs what may complete other operations, unless enough of that goes on already.
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
