//! The contestants with threads of their own, which read the clock themselves.

mod awaited;
mod closures;
mod hash_wheel;
pub(crate) mod kafka;
mod netty;
mod tokio;
mod typed;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use delaywheel::{Timer, TimerBuilder, TimerStats};

pub use self::{
    awaited::{AsyncIo, FuturesTimer, Pingora},
    closures::Closures,
    hash_wheel::HashWheelThread,
    kafka::KafkaTimer,
    netty::NettyTimer,
    tokio::Tokio,
    typed::Typed,
};
use crate::{
    Promises,
    arrivals::Arrivals,
    bench::Figure,
    measure::{memory, shared as measure},
    os::wait_until,
    workload::Victim,
};

/// A timer that threads share.
pub trait SharedTimer: Clone + Send {
    /// Names a timeout, to cancel it.
    type Timeout: Send;

    /// Name in the report.
    const NAME: &'static str;

    /// Structure and limits. Lateness is the part that its design adds to the time in which its
    /// threads wake.
    const PROMISES: Promises;

    /// Makes and starts one, which ends when the last clone is dropped.
    fn start() -> Self;

    /// A guard that a thread holds while it uses the timer.
    fn enter(&self) -> impl Sized {}

    /// Adds a timeout.
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
#[derive(Debug, Clone)]
pub struct Note {
    arrivals: Arc<Arrivals>,
    due: u64,
}

impl Note {
    /// Notes that the timeout runs now.
    #[inline]
    pub fn run(&self) {
        self.arrivals.note(self.due);
    }
}

/// The work of a timeout of Netty's and Kafka's timers. A counter costs no allocation, like a
/// shared task.
#[derive(Debug)]
pub enum Task {
    /// Counts that it ran.
    Count(&'static AtomicU64),
    /// Notes when it ran.
    Note(Note),
}

impl Task {
    #[inline]
    fn run(&self) {
        match self {
            Self::Count(ran) => {
                ran.fetch_add(1, Ordering::Relaxed);
            }
            Self::Note(note) => note.run(),
        }
    }
}

/// Makes a counter that is never freed, so a callback captures eight bytes and counts no
/// references.
fn counter() -> &'static AtomicU64 {
    Box::leak(Box::default())
}

/// A callback that counts.
#[inline]
fn counting(ran: &'static AtomicU64) -> impl Fn() + Send + Sync {
    move || {
        ran.fetch_add(1, Ordering::Relaxed);
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
    let mut pending = 0;
    for victim in victims {
        let timeout = &mut timeouts[victim.index as usize];
        pending += u64::from(timer.replace(timeout, victim.delay));
    }
    pending
}

/// Checks one of our own timers after its end: every timeout ran, was cancelled or was handed back.
fn settle_own(
    name: &str,
    returned: usize,
    stats: &TimerStats,
    ran: &AtomicU64,
    expected: [u64; 2],
) {
    assert_eq!([stats.scheduled, stats.cancelled], expected, "{name}");
    assert_eq!((stats.pending, stats.rejected, stats.panicked), (0, 0, 0), "{name}");
    let run = expected[0] - expected[1] - returned as u64;
    wait_until("the last callbacks have run", || ran.load(Ordering::Relaxed) == run);
}

/// The settings of our own timers.
fn settings() -> TimerBuilder {
    Timer::builder()
}

/// A contestant whose type is hidden: its name, and every measurement.
pub trait Entrant {
    /// Name in the report.
    fn name(&self) -> &'static str;

    /// Structure and limits.
    fn promises(&self) -> Promises;

    /// Takes a turn in this process.
    fn take(&self, turn: &measure::Turn) -> Vec<Figure>;

    /// See [`memory::shared`].
    fn memory(&self, turn: &memory::Turn, heap: &memory::Heap) -> Vec<Figure>;
}

struct Of<S>(std::marker::PhantomData<S>);

impl<S: SharedTimer + 'static> Entrant for Of<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn promises(&self) -> Promises {
        S::PROMISES
    }

    fn take(&self, turn: &measure::Turn) -> Vec<Figure> {
        turn.take::<S>()
    }

    fn memory(&self, turn: &memory::Turn, heap: &memory::Heap) -> Vec<Figure> {
        memory::shared::<S>(turn, heap)
    }
}

/// All contestants, ours first.
pub fn all() -> Vec<Box<dyn Entrant>> {
    fn of<S: SharedTimer + 'static>() -> Box<dyn Entrant> {
        Box::new(Of::<S>(std::marker::PhantomData))
    }
    vec![
        of::<Typed>(),
        of::<Closures>(),
        of::<Tokio>(),
        of::<AsyncIo>(),
        of::<FuturesTimer>(),
        of::<Pingora>(),
        of::<HashWheelThread>(),
        of::<NettyTimer>(),
        of::<KafkaTimer>(),
    ]
}
