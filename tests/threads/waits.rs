//! Load on a purgatory: requests of all kinds, events, thresholds, cancellations, and limits.

use std::{
    sync::{Arc, OnceLock, Weak, atomic::Ordering::SeqCst},
    time::Duration,
};

use delaywheel::{
    Completion,
    Condition::{Events, Threshold},
    DelayedOperation, OperationKey, Overload, Purgatory, PurgatoryStats, TimerBuilder, Watch,
    WatchError, Watched,
};

use crate::{
    books::{Books, Entry, Poke, after},
    ledger,
    operation::{Condition, KEYS, Op, State},
};

/// Below the number that the load requests.
pub(crate) const MAX_DELAYED: u64 = 1_600;
const MAX_PER_KEY: u64 = 16;

pub(crate) const SEATS: u32 = 30_000;

const HELD: usize = 4_000;

type Held = (OperationKey, Entry);

pub(crate) struct Waits {
    purgatory: Purgatory<u32, Op>,
    pub(crate) state: Arc<State>,
    own: Weak<Self>,
    /// Call of a completion into the timer.
    pub(crate) poke: OnceLock<Poke>,
}

impl Waits {
    pub(crate) fn new(books: Arc<Books>, timer: TimerBuilder, overload: Overload) -> Arc<Self> {
        let purgatory = Purgatory::builder()
            .timer(timer.clock(books.clock().clone()))
            .max_delayed(MAX_DELAYED, overload)
            .max_delayed_per_key(MAX_PER_KEY, overload)
            .build()
            .expect("the settings are in range");
        let state = State::new(books);
        Arc::new_cyclic(|own| Self { purgatory, state, own: own.clone(), poke: OnceLock::new() })
    }

    pub(crate) fn stats(&self) -> PurgatoryStats {
        self.purgatory.stats()
    }

    pub(crate) fn books(&self) -> &Books {
        &self.state.books
    }

    /// Starts an operation, if the books have a seat.
    fn watch(&self, random: &mut fastrand::Rng) -> Option<Held> {
        let _call = self.state.call();
        let delay = match random.u32(..16) {
            0 => Duration::MAX,
            1 => Duration::ZERO,
            2..5 => Duration::from_micros(random.u64(..50_000)),
            _ => Duration::from_millis(random.u64(500..6_000)),
        };
        let kind = random.u32(..3);
        let conditions: Vec<_> = (0..random.u32(1..4))
            .map(|_| self.condition(kind > 0 && random.bool(), random))
            .collect();
        let calm = self.books().clock().calm();
        let entry = self.books().open(after(self.books().clock().look(), delay))?;
        let op = Op {
            state: Arc::clone(&self.state),
            waits: self.own.clone(),
            entry,
            conditions: conditions.clone(),
            is_all: kind == 2,
            random: random.fork(),
            has_panicked: false,
            is_answered: false,
        };
        let demand = |one: &Condition| {
            if one.is_threshold { Threshold(one.key, one.at) } else { Events(one.key) }
        };
        let demands = conditions.iter().map(demand);
        let keys = conditions.iter().map(|condition| condition.key);
        let watched = match kind {
            0 => self.purgatory.watch(op, keys, delay),
            1 => self.purgatory.watch(op, Watch::any(demands), delay),
            _ => self.purgatory.watch(op, Watch::all(demands), delay),
        };
        drop(calm);
        self.note(watched, entry)
    }

    fn condition(&self, is_threshold: bool, random: &mut fastrand::Rng) -> Condition {
        let key = random.u32(..KEYS);
        let at = self.state.values[key as usize].load(SeqCst) + random.u64(..6);
        Condition { key, at, is_threshold }
    }

    fn note(&self, watched: Result<Watched, WatchError<Op>>, entry: Entry) -> Option<Held> {
        match watched {
            Ok(watched) => {
                self.books().take();
                watched.key().map(|key| (key, entry))
            }
            Err(refused) => {
                let back = refused.into_value().hand_back();
                self.books()
                    .breaches()
                    .unless(back == entry, || format!("{back:?} instead of {entry:?}"));
                self.books().refuse(entry);
                None
            }
        }
    }

    pub(crate) fn announce(&self, random: &mut fastrand::Rng) {
        let _call = self.state.call();
        if self.books().is_over() {
            return;
        }
        let key = random.u32(..KEYS);
        let value = self.state.values[key as usize].fetch_add(1, SeqCst) + 1;
        self.purgatory.check_and_complete(&key);
        if random.u32(..8) == 0 {
            self.purgatory.check_and_complete(&random.u32(..KEYS));
        }
        self.purgatory.advance(&key, value);
    }

    /// One call of a load thread.
    pub(crate) fn churn(&self, random: &mut fastrand::Rng, held: &mut Vec<Held>) {
        let is_full = held.len() >= HELD;
        let index = random.usize(..held.len().max(1));
        match random.u32(..32) {
            0..24 if !is_full => held.extend(self.watch(random)),
            24 if random.u8(..8) == 0 => {
                self.cancel(self.purgatory.cancel_for_key(&random.u32(..KEYS)));
            }
            _ if held.is_empty() => {}
            25..28 => self.end_by_handle(held.swap_remove(index), random),
            _ if self.purgatory.is_waiting(held[index].0) => {}
            _ => drop(held.swap_remove(index)),
        }
    }

    fn end_by_handle(&self, (key, entry): Held, random: &mut fastrand::Rng) {
        if random.bool() {
            self.cancel(self.purgatory.cancel(key));
        } else {
            self.state.books.force(entry);
            self.purgatory.complete(key);
        }
    }

    fn cancel(&self, operations: impl IntoIterator<Item = Op>) {
        for op in operations {
            self.books().cancel(op.hand_back());
        }
    }

    /// Calls the purgatory, or the timer, from a completion.
    pub(crate) fn react(&self, choice: u32, random: &mut fastrand::Rng) {
        match choice % 8 {
            0 => self.announce(random),
            1 => self.cancel(self.purgatory.cancel_for_key(&random.u32(..KEYS))),
            2..5 => drop(self.watch(random)),
            _ => self.poke.get().into_iter().for_each(|poke| poke(random)),
        }
    }

    /// Reads the counts of the purgatory from a check.
    pub(crate) fn look(&self, key: u32) {
        let (delayed, watched) = (self.purgatory.stats().delayed, self.purgatory.stats().watched);
        self.books().breaches().unless(delayed.max(watched) < u64::from(SEATS), || {
            format!("a check on key {key} sees {delayed} operations on {watched} lists")
        });
    }

    /// Ends the purgatory, and takes its operations back or answers them. No waiting operation may
    /// have missed an event.
    ///
    /// The load has stopped. After the last call from a completion, every event has been announced.
    pub(crate) fn end(&self, is_taken_back: bool) {
        let has_stopped = ledger::wait_until(|| self.state.calls.load(SeqCst) == 0);
        let waiting = self.purgatory.shutdown();
        let breaches = self.books().breaches();
        breaches.unless(has_stopped, || String::from("calls from completions do not return"));
        for op in waiting {
            breaches.unless(!op.has_missed_event(), || format!("{:?} missed its event", op.entry));
            if is_taken_back {
                self.books().give_back(op.hand_back());
            } else {
                op.complete(Completion::ShutDown);
            }
        }
    }
}
