//! The contestants with threads of their own, which read the clock themselves.

mod awaited;
mod closures;
mod tokio;
mod typed;

use delaywheel::TimerStats;

use crate::measure::{Turn, memory};
use crate::prelude::*;

pub use self::{
    awaited::{AsyncIo, FuturesTimer, OwnSleeps},
    closures::Closures,
    tokio::{Tokio, runtime},
    typed::Typed,
};

/// A timer that threads share.
pub trait SharedTimer: Clone + Send + Sync {
    /// Names a timeout, to cancel it.
    type Timeout: Send;

    const NAME: &'static str;

    /// Makes and starts one, which ends when the last clone is dropped.
    fn start() -> Self;

    /// A guard that a thread holds while it uses the timer.
    fn enter(&self) -> impl Sized {}

    fn schedule(&self, delay: Duration) -> Self::Timeout;

    /// Cancels a timeout and schedules another. Returns whether the former was pending.
    fn replace(&self, timeout: &mut Self::Timeout, delay: Duration) -> bool;

    /// Moves a timeout. Returns whether it was pending.
    fn reset(&self, timeout: &mut Self::Timeout, delay: Duration) -> bool {
        self.replace(timeout, delay)
    }

    /// Adds a timeout that notes when it runs.
    fn schedule_noted(&self, delay: Duration, note: Note);

    /// Waits until the timer's threads have processed everything that callers left to them.
    fn catch_up(&self) {}

    /// Checks that every timeout is accounted for; contestants that do not count do not check.
    fn settle(&self, _scheduled: u64, _cancelled: u64) {}
}

/// A timeout that notes when it runs.
#[derive(Clone)]
pub struct Note {
    arrivals: Arc<Arrivals>,
    due: u64,
}

impl Note {
    /// Notes that the timeout runs now.
    pub fn run(&self) {
        self.arrivals.note(self.due);
    }
}

/// Counts timeouts that ran. It is never freed, so a callback captures eight bytes and counts no
/// references.
#[derive(Clone, Copy)]
pub struct Counter(&'static AtomicU64);

impl Counter {
    fn new() -> Self {
        Self(Box::leak(Box::default()))
    }

    fn add(self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Adds a timeout for each delay.
pub fn schedule_all<S: SharedTimer>(timer: &S, delays: &[Duration]) -> Vec<S::Timeout> {
    delays.iter().map(|&delay| timer.schedule(delay)).collect()
}

/// Adds a timeout for each delay that notes when it runs. Returns the notes, and the deadlines.
pub fn schedule_all_noted<S: SharedTimer>(
    timer: &S,
    delays: &[Duration],
) -> (Arc<Arrivals>, Vec<u64>) {
    let arrivals = Arrivals::new(delays.len());
    let schedule = |&delay| {
        let due = arrivals.due_in(delay);
        timer.schedule_noted(delay, Note { arrivals: Arc::clone(&arrivals), due });
        due
    };
    let due = delays.iter().map(schedule).collect();
    (arrivals, due)
}

/// Checks one of our own timers after its end: every timeout ran, was cancelled or was handed back.
fn settle_own(name: &str, returned: usize, stats: &TimerStats, ran: Counter, expected: [u64; 2]) {
    assert_eq!([stats.scheduled, stats.cancelled], expected, "{name}");
    assert_eq!((stats.pending, stats.refused, stats.panicked), (0, 0, 0), "{name}");
    let run = expected[0] - expected[1] - returned as u64;
    wait_until("the last callbacks have run", || ran.get() == run);
}

/// A contestant whose type is hidden: its name, and every measurement.
#[derive(Clone, Copy)]
pub struct Entrant {
    pub name: &'static str,
    pub take: fn(&Turn) -> Vec<Figure>,
    pub memory: fn(&Turn, &memory::Heap) -> Vec<Figure>,
}

impl Entrant {
    const fn of<S: SharedTimer>() -> Self {
        Self { name: S::NAME, take: Turn::take::<S>, memory: memory::of_shared::<S> }
    }
}

/// All contestants, ours first.
pub const ALL: &[Entrant] = &[
    Entrant::of::<Typed>(),
    Entrant::of::<Closures>(),
    Entrant::of::<Tokio>(),
    #[cfg(tokio_unstable)]
    Entrant::of::<Tokio<true>>(),
    Entrant::of::<AsyncIo>(),
    Entrant::of::<FuturesTimer>(),
];

/// Contestants of the rows with more threads than processors.
pub const LATE: &[Entrant] = &[
    Entrant::of::<Typed>(),
    Entrant::of::<Closures>(),
    Entrant::of::<Typed<true>>(),
    Entrant::of::<OwnSleeps>(),
    Entrant::of::<Tokio>(),
    #[cfg(tokio_unstable)]
    Entrant::of::<Tokio<true>>(),
    Entrant::of::<AsyncIo>(),
];

/// The contestant that a parent process named.
pub fn find(name: &str) -> Entrant {
    let found = ALL.iter().chain(LATE).find(|one| one.name == name);
    *found.unwrap_or_else(|| panic!("no contestant is named {name}"))
}
