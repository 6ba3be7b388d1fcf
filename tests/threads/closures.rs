//! Load on a timer of closures: threads that die with their handles, repeated callbacks, `Debounce`
//! and `Throttle`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use delaywheel::{Debounce, MissedTicks, Repeating, Throttle, TimeoutHandle, Timer, TimerBuilder};

use crate::{
    books::{Books, Entry, after},
    breaches::panic_injected,
};

/// Seats in the books.
pub(crate) const SEATS: u32 = 20_000;

/// Held by a closure: its entry ends when the closure runs or is dropped.
struct Ticket {
    books: Arc<Books>,
    entry: Entry,
    is_run: bool,
}

impl Ticket {
    fn new(books: &Arc<Books>, due: u64) -> Option<Self> {
        let entry = books.open(due)?;
        Some(Self { books: Arc::clone(books), entry, is_run: false })
    }

    fn run(mut self) {
        self.is_run = true;
        self.books.run(self.entry);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_run {
            self.books.end(self.entry, "dropped");
        }
    }
}

/// A timer and its books.
pub(crate) struct Closures {
    timer: Timer,
    pub(crate) books: Arc<Books>,
    debounce: Debounce,
    throttle: Throttle,
}

impl Closures {
    pub(crate) fn new(books: Arc<Books>, builder: TimerBuilder) -> Self {
        let timer = builder.clock(books.clock().clone()).max_pending(u64::from(SEATS)).build();
        let timer = timer.expect("the settings are in range");
        let debounce = Debounce::new(&timer, Duration::from_millis(2), || ());
        let throttle = Throttle::new(&timer, Duration::from_millis(2), || ());
        Self { timer, books, debounce, throttle }
    }

    pub(crate) fn timer(&self) -> &Timer {
        &self.timer
    }

    /// One burst of calls of a load thread.
    pub(crate) fn churn(&self, random: &mut fastrand::Rng) {
        for _ in 0..16 {
            let _ = spawn(&self.timer, &self.books, random)
                .map(|timeout| timeout.cancel_on_drop().disarm());
            drop(spawn(&self.timer, &self.books, random).map(TimeoutHandle::cancel_on_drop));
        }
        let _ = (self.debounce.call(), self.throttle.call());
        match random.u32(..64) {
            0..8 => self.die(random),
            8..12 => self.repeat(random),
            12 => drop((self.debounce.cancel(), self.throttle.cancel())),
            13 => self.timer.shrink(),
            _ => {}
        }
    }

    /// A thread schedules, and panics while it holds handles and guards.
    fn die(&self, random: &mut fastrand::Rng) {
        let (timer, books, mut random) =
            (self.timer.clone(), Arc::clone(&self.books), random.fork());
        let thread = thread::spawn(move || {
            let held: Vec<_> = (0..32).filter_map(|_| spawn(&timer, &books, &mut random)).collect();
            let (armed, _plain): (Vec<_>, Vec<_>) = held.into_iter().partition(|_| random.bool());
            let _guards: Vec<_> = armed.into_iter().map(TimeoutHandle::cancel_on_drop).collect();
            panic_injected();
        });
        assert!(thread.join().is_err(), "the thread panics");
    }

    /// Starts a repeated callback that stops itself, panics, or runs until the timer ends.
    fn repeat(&self, random: &mut fastrand::Rng) {
        let Some(ticket) = Ticket::new(&self.books, u64::MAX) else { return };
        let (is_running, books) = (AtomicBool::new(false), Arc::clone(&self.books));
        let (mut left, end) = (random.u32(1..30), random.u32(..8));
        let callback = move |own: &Repeating| {
            // Dropped with the callback, not earlier.
            let _held = &ticket;
            books.breaches().unless(!is_running.swap(true, SeqCst), || {
                String::from("a repeated callback overlaps with itself")
            });
            left = left.saturating_sub(1);
            is_running.store(false, SeqCst);
            match end {
                0 if left == 0 => panic_injected(),
                // It keeps running.
                1 => {}
                _ if left == 0 => drop(own.stop()),
                _ => {}
            }
        };
        let period = Duration::from_micros(random.u64(500..20_000));
        let missed = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];
        // A refusal drops the callback, which ends the ticket.
        let _ = match random.choice(missed) {
            Some(missed) if random.bool() => {
                self.timer.repeat(period).at_fixed_rate(missed, callback)
            }
            _ => self.timer.repeat(period).with_fixed_delay(callback),
        };
    }

    /// Ends the timer by `shutdown`, `finish`, or drop.
    pub(crate) fn end(self, round: u64) {
        match round % 3 {
            0 => drop(self.timer.shutdown()),
            1 => {
                drop(self.timer.finish(Duration::from_millis(200)));
            }
            _ => drop(self),
        }
    }
}

/// Schedules a closure, which may schedule others.
fn spawn(timer: &Timer, books: &Arc<Books>, random: &mut fastrand::Rng) -> Option<TimeoutHandle> {
    let delay = Duration::from_micros(random.u64(..200_000));
    let calm = books.clock().calm();
    let ticket = Ticket::new(books, after(books.clock().look(), delay))?;
    let (own, again, mut nested) = (timer.clone(), random.u32(..64), random.fork());
    let timeout = timer.schedule(delay, move || {
        let books = Arc::clone(&ticket.books);
        ticket.run();
        match again {
            0 => panic_injected(),
            1..8 => drop(spawn(&own, &books, &mut nested)),
            8..10 => drop(spawn(&own, &books, &mut nested).map(TimeoutHandle::cancel_on_drop)),
            _ => {}
        }
    });
    drop(calm);
    timeout.ok()
}
