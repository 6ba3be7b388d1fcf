//! The contestants with threads of their own, which read the clock themselves.

mod awaited;
mod closures;
mod hash_wheel;
pub(crate) mod kafka;
mod netty;
mod tokio;
mod typed;

use delaywheel::TimerStats;

use crate::measure::{Turn, memory};
use crate::prelude::*;

pub use self::{
    awaited::{AsyncIo, FuturesTimer, Pingora},
    closures::Closures,
    hash_wheel::HashWheelThread,
    kafka::KafkaTimer,
    netty::NettyTimer,
    tokio::Tokio,
    typed::Typed,
};

/// A timer that threads share.
pub trait SharedTimer: Clone + Send {
    /// Names a timeout, to cancel it.
    type Timeout: Send;

    /// Name, structure and limits. Lateness is what it adds by design to that of the threads that
    /// run timeouts.
    const PROMISES: Promises;

    const NAME: &'static str = Self::PROMISES.name;

    /// Makes and starts one, which ends when the last clone is dropped.
    fn start() -> Self;

    /// A guard that a thread holds while it uses the timer.
    fn enter(&self) -> impl Sized {}

    fn schedule(&self, delay: Duration) -> Self::Timeout;

    /// Cancels a timeout and schedules another. Returns whether the former was pending.
    fn replace(&self, timeout: &mut Self::Timeout, delay: Duration) -> bool;

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

/// The work of a timeout of Netty's and Kafka's timers. A counter costs no allocation.
pub enum Task {
    Count(Counter),
    Note(Note),
}

impl Task {
    fn run(&self) {
        match self {
            Self::Count(counter) => counter.add(),
            Self::Note(note) => note.run(),
        }
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

/// Cancels each victim and schedules another timeout. Returns how many were pending.
pub fn replace_all<S: SharedTimer>(
    timer: &S,
    timeouts: &mut [S::Timeout],
    victims: &[Victim],
) -> u64 {
    let replace =
        |victim: &Victim| timer.replace(&mut timeouts[victim.index as usize], victim.delay);
    victims.iter().map(replace).map(u64::from).sum()
}

/// Checks one of our own timers after its end: every timeout ran, was cancelled or was handed back.
fn settle_own(name: &str, returned: usize, stats: &TimerStats, ran: Counter, expected: [u64; 2]) {
    assert_eq!([stats.scheduled, stats.cancelled], expected, "{name}");
    assert_eq!((stats.pending, stats.rejected, stats.panicked), (0, 0, 0), "{name}");
    let run = expected[0] - expected[1] - returned as u64;
    wait_until("the last callbacks have run", || ran.get() == run);
}

/// A contestant whose type is hidden: its promises, and every measurement.
#[derive(Clone, Copy)]
pub struct Entrant {
    pub promises: Promises,
    pub take: fn(&Turn) -> Vec<Figure>,
    pub memory: fn(&Turn, &memory::Heap) -> Vec<Figure>,
}

impl Entrant {
    const fn of<S: SharedTimer>() -> Self {
        let (take, memory) = (Turn::take::<S>, memory::of_shared::<S>);
        Self { promises: S::PROMISES, take, memory }
    }

    pub fn name(&self) -> &'static str {
        self.promises.name
    }
}

/// All contestants, ours first.
pub const fn all() -> [Entrant; 9] {
    [
        Entrant::of::<Typed>(),
        Entrant::of::<Closures>(),
        Entrant::of::<Tokio>(),
        Entrant::of::<AsyncIo>(),
        Entrant::of::<FuturesTimer>(),
        Entrant::of::<Pingora>(),
        Entrant::of::<HashWheelThread>(),
        Entrant::of::<NettyTimer>(),
        Entrant::of::<KafkaTimer>(),
    ]
}

/// The contestant that a parent process named.
pub fn find(name: &str) -> Entrant {
    let found = all().into_iter().find(|one| one.name() == name);
    found.unwrap_or_else(|| panic!("no contestant is named {name}"))
}
