//! Timers that threads share and that read the clock themselves, behind one trait.
//!
//! As with [`Timers`](crate::Timers), the loops that are timed are one source for all contestants.

mod async_io;
mod closures;
mod executor;
mod expiries;
mod futures_timer;
mod hash_wheel;
mod kafka;
mod load;
mod netty;
mod pingora;
mod sleeps;
mod tokio;
mod typed;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use delaywheel::Timer;

use crate::{Promises, real::wait_until};

pub use self::{
    async_io::AsyncIo,
    closures::Closures,
    expiries::{Expectation, Expiries, Expiry},
    futures_timer::FuturesTimer,
    hash_wheel::HashWheelThread,
    kafka::KafkaTimer,
    load::{Load, Victim},
    netty::NettyTimer,
    pingora::Pingora,
    sleeps::Sleeps,
    tokio::Tokio,
    typed::Typed,
};

/// A timer of which threads may have clones.
pub trait SharedTimer: Clone + Send {
    /// By what a timeout is cancelled.
    type Timeout: Send;

    /// What the contestant is called in a report.
    const NAME: &'static str;

    /// What the contestant is and promises, in milliseconds. Lateness is what it adds by design to
    /// that of the threads which run timeouts.
    const PROMISES: Promises;

    /// What a thread holds while it uses the timer; most need nothing.
    fn enter(&self) -> impl Sized {}

    /// Adds a timeout.
    fn schedule(&self, delay: Duration) -> Self::Timeout;

    /// Cancels a timeout and schedules another in its stead. Returns whether the one was pending.
    fn replace(&self, timeout: &mut Self::Timeout, delay: Duration) -> bool;

    /// Adds a timeout that is taken down when it comes, and that nobody can cancel.
    ///
    /// # Panics
    ///
    /// If an earlier one of this timer is to be taken down elsewhere.
    fn schedule_expected(&self, delay: Duration, expectation: Expectation);

    /// Waits until what its callers have left to threads of its own is worked off; most leave
    /// nothing.
    fn catch_up(&self) {}
}

/// Something to do with each contestant.
pub trait SharedVisitor {
    /// Does it with one, of which as many can be made as are needed; each ends when it is dropped.
    fn visit<S: SharedTimer>(&mut self, make: impl Fn() -> S);
}

/// Has a visitor visit every contestant, ours first.
pub fn visit_all_shared(visitor: &mut impl SharedVisitor) {
    visitor.visit(|| Typed::new(Timer::builder()));
    visitor.visit(|| Closures::new(Timer::builder()));
    visitor.visit(Tokio::new);
    visitor.visit(AsyncIo::new);
    visitor.visit(FuturesTimer::new);
    visitor.visit(Pingora::new);
    visitor.visit(HashWheelThread::new);
    visitor.visit(NettyTimer::new);
    visitor.visit(KafkaTimer::new);
}

/// What a timeout does that nobody expects: it counts.
#[inline]
fn counting(ran: &'static AtomicU64) -> impl Fn() + Send + Sync {
    move || {
        ran.fetch_add(1, Ordering::Relaxed);
    }
}

/// One of our own timers, which can account for its timeouts.
pub trait Accountable: SharedTimer {
    /// Has a timeout expire when a delay is over from now. Returns whether it was pending.
    fn reset(&self, timeout: &Self::Timeout, delay: Duration) -> bool;

    /// How many timeouts have run.
    fn ran(&self) -> u64;

    /// What the timer has counted.
    fn stats(&self) -> delaywheel::TimerStats;

    /// Shuts the timer down. Returns how many timeouts never ran.
    fn shutdown(&self) -> usize;
}

/// Adds a timeout for each delay.
pub fn schedule_all<S: SharedTimer>(timer: &S, delays: &[Duration]) -> Vec<S::Timeout> {
    delays.iter().map(|&delay| timer.schedule(delay)).collect()
}

/// Adds a timeout for each delay, each to be taken down when it comes.
pub fn schedule_all_expected<S: SharedTimer>(timer: &S, delays: &[Duration]) -> Arc<Expiries> {
    let expiries = Expiries::with_capacity(delays.len());
    for (&delay, index) in delays.iter().zip(0..) {
        timer.schedule_expected(delay, expiries.expect(index, delay));
    }
    expiries
}

/// Cancels each victim and schedules another timeout in its stead. Returns how many were pending.
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

/// Shuts a timer down and checks that every timeout is accounted for: it ran, was cancelled or was
/// handed back.
///
/// # Panics
///
/// If one was lost or doubled.
pub fn settle<S: Accountable>(timer: &S, scheduled: u64, cancelled: u64) {
    let returned = timer.shutdown() as u64;
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.cancelled), (scheduled, cancelled), "{}", S::NAME);
    assert_eq!((stats.pending, stats.rejected, stats.panicked), (0, 0, 0), "{}", S::NAME);
    let run = scheduled - cancelled - returned;
    wait_until("the last callbacks have run", || timer.ran() == run);
}
