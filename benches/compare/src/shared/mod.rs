//! Timers that threads share and that read the clock themselves, behind one trait.
//!
//! As with [`Timers`](crate::Timers), the loops that are timed are one source for all contestants.

mod closures;
mod load;
mod sleeps;
mod typed;

use std::time::Duration;

use crate::real::wait_until;

pub use self::{
    closures::Closures,
    load::{Load, Victim},
    sleeps::Sleeps,
    typed::Typed,
};

/// A timer of which threads may have clones.
pub trait SharedTimer: Clone + Send {
    /// By what a timeout is cancelled.
    type Timeout: Send;

    /// What the contestant is called in a report.
    const NAME: &'static str;

    /// Adds a timeout.
    fn schedule(&self, delay: Duration) -> Self::Timeout;

    /// Cancels a timeout and schedules another in its stead. Returns whether the one was pending.
    fn replace(&self, timeout: &mut Self::Timeout, delay: Duration) -> bool;
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
