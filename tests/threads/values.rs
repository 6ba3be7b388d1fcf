//! Load on a timer of values: schedules, batches, resets, cancellations, and handlers that
//! misbehave.

use std::{
    sync::{Arc, OnceLock, Weak, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use delaywheel::{TimeoutKey, TimerBuilder, TimerStats, ValueTimer};
use parking_lot::Mutex;

use crate::{
    books::{Books, Entry, Poke, after},
    breaches::panic_injected,
};

const HELD: usize = 10_000;

/// Timeouts that handlers of others cancel and reset.
const SHARED: usize = 256;

const BURST: usize = 5_000;

/// Above the number of held timeouts, and below the number that the load requests.
pub(crate) const MAX_PENDING: u64 = 24_000;

const TICK: Duration = Duration::from_millis(1);

/// Seats in the books, for pending timeouts and for expired ones that wait for a handler.
pub(crate) const SEATS: u32 = 60_000;

type Held = (TimeoutKey, Entry);

pub(crate) struct Values {
    timer: ValueTimer<Entry>,
    pub(crate) books: Arc<Books>,
    shared: Vec<Mutex<Option<Held>>>,
    /// Call of a handler into the purgatory.
    pub(crate) poke: OnceLock<Poke>,
    seed: u64,
}

impl Values {
    pub(crate) fn new(books: Arc<Books>, builder: TimerBuilder, seed: u64) -> Arc<Self> {
        let builder = builder.max_pending(MAX_PENDING).clock(books.clock().clone());
        Arc::new_cyclic(|values: &Weak<Self>| {
            let values = values.clone();
            let handle = move |entry| {
                if let Some(values) = values.upgrade() {
                    values.handle(entry);
                }
            };
            Self {
                timer: builder.build_with(handle).expect("the settings are in range"),
                books,
                shared: (0..SHARED).map(|_| Mutex::default()).collect(),
                poke: OnceLock::new(),
                seed,
            }
        })
    }

    pub(crate) fn stats(&self) -> TimerStats {
        self.timer.stats()
    }

    /// Schedules a timeout, if the books have a seat.
    pub(crate) fn schedule(&self, random: &mut fastrand::Rng) -> Option<Held> {
        let is_at_instant = random.u8(..4) == 0;
        self.schedule_in(delay(random), is_at_instant)
    }

    fn schedule_in(&self, delay: Duration, is_at_instant: bool) -> Option<Held> {
        let calm = self.books.clock().calm();
        let due = after(self.books.clock().look(), delay);
        let entry = self.books.open(due)?;
        let instant = self.books.clock().instant(due);
        let scheduled = match instant.filter(|_| delay < Duration::MAX && is_at_instant) {
            Some(instant) => self.timer.schedule_at(instant, entry),
            None => self.timer.schedule(delay, entry),
        };
        drop(calm);
        match scheduled {
            Ok(key) => {
                self.books.take();
                Some((key, entry))
            }
            Err(refused) => {
                self.expect(refused.into_value(), entry);
                self.books.refuse(entry);
                None
            }
        }
    }

    /// Schedules a burst, in half of the calls with one delay.
    pub(crate) fn burst(&self, random: &mut fastrand::Rng) -> Vec<Held> {
        let same = Duration::from_millis(random.u64(1..300));
        let is_crowd = random.bool();
        let mut delay = || if is_crowd { same } else { delay(random) };
        (0..BURST).filter_map(|_| self.schedule_in(delay(), false)).collect()
    }

    pub(crate) fn cancel_all(&self, held: Vec<Held>) {
        for held in held {
            self.cancel(held);
        }
    }

    fn cancel(&self, (key, entry): Held) {
        if let Some(value) = self.timer.cancel(key) {
            self.expect(value, entry);
            self.books.cancel(entry);
        }
    }

    /// Resets a timeout. If other threads may do so too, only its earliest deadline is known.
    fn reset(&self, (key, entry): Held, delay: Duration, is_alone: bool) {
        let calm = self.books.clock().calm();
        let due = after(self.books.clock().look(), delay);
        self.books.lower(entry, due);
        let is_reset = self.timer.reset(key, delay);
        drop(calm);
        if is_reset && is_alone {
            self.books.set(entry, due);
        }
        self.books.counts.reset.fetch_add(u64::from(is_reset), Relaxed);
    }

    fn expect(&self, value: Entry, entry: Entry) {
        self.books.breaches().unless(value == entry, || format!("{value:?} instead of {entry:?}"));
    }

    /// One call of a load thread.
    pub(crate) fn churn(&self, random: &mut fastrand::Rng, held: &mut Vec<Held>) {
        let is_full = held.len() >= HELD;
        let index = random.usize(..held.len().max(1));
        match random.u32(..16) {
            0..7 if !is_full => held.extend(self.schedule(random)),
            _ if held.is_empty() => {}
            7..9 => self.reset(held[index], delay(random), true),
            9 => self.share(held.swap_remove(index), random),
            10..12 => self.look(held, index),
            _ => self.cancel(held.swap_remove(index)),
        }
    }

    /// Compares the deadline of a timeout with the books, and forgets it if it has ended.
    fn look(&self, held: &mut Vec<Held>, index: usize) {
        let (key, entry) = held[index];
        let due = self.books.due(entry).and_then(|due| self.books.clock().instant(due));
        if let (Some(due), Some(deadline)) = (due, self.timer.deadline(key)) {
            // That of a passed instant is the start of its tick.
            self.books.breaches().unless(deadline + TICK > due, || {
                format!("{entry:?} has deadline {deadline:?}, before {due:?}")
            });
        }
        if !self.timer.is_pending(key) {
            held.swap_remove(index);
        }
    }

    /// Resets timeouts again and again, to earlier and to later deadlines.
    pub(crate) fn storm(&self, random: &mut fastrand::Rng, held: &[Held]) {
        for _ in 0..10 {
            for &one in held.iter().take(500) {
                self.reset(one, Duration::from_millis(random.u64(..2000)), true);
            }
        }
    }

    /// Shares a timeout with the handlers of others, in place of an earlier one.
    fn share(&self, one: Held, random: &mut fastrand::Rng) {
        let index = random.usize(..SHARED);
        let before = self.shared[index].lock().replace(one);
        if let Some(before) = before {
            self.cancel(before);
        }
    }

    /// Schedules a timeout, and shares it with the handlers of others.
    pub(crate) fn leave(&self, random: &mut fastrand::Rng) {
        if let Some(one) = self.schedule(random) {
            self.share(one, random);
        }
    }

    fn shared(&self, random: &mut fastrand::Rng) -> Option<Held> {
        *self.shared[random.usize(..SHARED)].lock()
    }

    fn handle(&self, entry: Entry) {
        let mut random = fastrand::Rng::with_seed(self.seed ^ fastrand::u64(..));
        self.books.run(entry);
        match random.u32(..64) {
            0 => {
                self.books.counts.panicked.fetch_add(1, Relaxed);
                panic_injected();
            }
            1 if self.books.clock().faults() > 0 && random.u8(..32) == 0 => {
                thread::sleep(Duration::from_millis(random.u64(1..5)));
            }
            2..6 => self.leave(&mut random),
            6..9 => self.shared(&mut random).into_iter().for_each(|one| self.cancel(one)),
            9..12 => {
                if let Some(one) = self.shared(&mut random) {
                    self.reset(one, Duration::from_millis(random.u64(..50)), false);
                }
            }
            12..16 => self.poke.get().into_iter().for_each(|poke| poke(&mut random)),
            _ => {}
        }
    }

    /// Ends the timer: at once, or after some time for pending timeouts.
    pub(crate) fn end(&self, is_drained: bool) {
        let left = if is_drained {
            self.timer.finish(Duration::from_millis(300))
        } else {
            self.timer.shutdown()
        };
        for entry in left {
            self.books.give_back(entry);
        }
        let again = self.timer.shutdown().len();
        self.books.breaches().unless(again == 0, || format!("{again} values came back twice"));
    }
}

/// Draws a delay: mostly long, sometimes so short that expiry races with other calls.
pub(crate) fn delay(random: &mut fastrand::Rng) -> Duration {
    match random.u32(..64) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        2..24 => Duration::from_micros(random.u64(..20_000)),
        24..32 => Duration::from_millis(random.u64(..400)),
        _ => Duration::from_millis(random.u64(1_000..60_000)),
    }
}
