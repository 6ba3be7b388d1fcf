//! Requests that wait in a purgatory, what is announced to them, and their ledger.
//!
//! As with [`Timers`](crate::Timers), the loops that are timed are one source for all programs.
//! They run in real time. A request is eight bytes: where it is answered.

mod closed_loop;
mod crowd;
mod demand;
mod request;

use delaywheel::Purgatory;

pub use self::{
    closed_loop::{Announce, ClosedLoop, Share},
    crowd::Crowd,
    demand::{Demand, demands, demands_apart},
    request::{Answer, Request},
};

/// A purgatory of requests, whose keys are numbers.
pub type Requests = Purgatory<u32, Request>;

/// Shuts a purgatory down, and checks that every request is accounted for: so many were satisfied,
/// so many waited until now, and each ended once.
///
/// # Panics
///
/// If one was lost or doubled, or ended in another way.
#[track_caller]
pub fn settle(purgatory: &Requests, satisfied: u64, waiting: u64) {
    assert_eq!(purgatory.delayed(), waiting, "requests that wait");
    let requests = purgatory.shutdown();
    assert_eq!(requests.len() as u64, waiting, "requests that were handed back");
    requests.into_iter().for_each(|request| request.complete(Completion::ShutDown));
    assert_eq!(purgatory.stats().shut_down, waiting);
    settle_all(purgatory, [satisfied, 0]);
}

/// Checks that nothing lingers: so many requests were satisfied, so many expired, and each ended
/// once.
///
/// # Panics
///
/// If one was lost or doubled, or ended in another way.
#[track_caller]
pub fn settle_all(purgatory: &Requests, [satisfied, expired]: [u64; 2]) {
    assert_eq!((purgatory.delayed(), purgatory.watched()), (0, 0), "somebody lingers");
    let stats = purgatory.stats();
    assert_eq!((stats.satisfied, stats.expired), (satisfied, expired));
    assert_eq!((stats.at_once, stats.cancelled, stats.displaced), (0, 0, 0));
    assert_eq!((stats.refused, stats.panicked, stats.keys), (0, 0, 0));
    assert_eq!(purgatory.timer_stats().pending, 0, "a timeout lingers");
}
