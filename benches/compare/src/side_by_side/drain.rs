//! Expires everything that a contestant holds, sleeping in between as it asks to.
//!
//! Unlike [`drive::expire_all`](crate::drive::expire_all) this lets contestants keep weaker promises
//! than the wheel's, and bears one that is woken in every tick of a year.

use std::time::{Duration, Instant};

use crate::Timers;

/// Wake-ups between two looks at the clock.
const CHECKED: u64 = 1 << 6;

/// What came out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Timeouts that expired.
    pub expired: u64,
    /// Sum of their payloads.
    pub sum: u64,
    /// How often the contestant was woken.
    pub wakeups: u64,
    /// The tick that was reached.
    pub now: u64,
    /// Whether it took too long, so that some are left.
    pub is_cut_off: bool,
}

impl Outcome {
    /// By what to multiply what was seen, to have it for all the time until `end`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn factor(&self, end: u64) -> f64 {
        if self.is_cut_off { end as f64 / self.now.max(1) as f64 } else { 1.0 }
    }
}

/// Sleeps until the next expiration in virtual time and expires what is due, until nothing is
/// pending or so much real time has passed.
pub fn drain<T: Timers>(timers: &mut T, patience: Duration) -> Outcome {
    let start = Instant::now();
    let (mut outcome, mut pause) = (Outcome::default(), 0);
    // Some are woken even if nothing is pending.
    while !timers.is_empty() {
        let Some(next) = timers.next_expiration() else { break };
        // One that asks to be woken at the same tick again, with nothing to do, is woken later.
        outcome.now = next.max(outcome.now + pause);
        outcome.wakeups += 1;
        let count = timers.advance(outcome.now, |payload| {
            outcome.sum = outcome.sum.wrapping_add(payload);
        });
        outcome.expired += count as u64;
        pause = u64::from(count == 0);
        if outcome.wakeups % CHECKED == 0 && start.elapsed() > patience {
            outcome.is_cut_off = true;
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        drive::{Ledger, insert_all},
        timers::{BTree, Wheel},
        workload::{Spread, Workload},
    };

    fn drained<T: Timers + Default>() -> Outcome {
        let deadlines = Workload::new(Spread::Year, 3).deadlines(1_000);
        let mut timers = T::default();
        insert_all(&mut timers, &deadlines, &mut Vec::new());
        let outcome = drain(&mut timers, Duration::from_mins(10));
        assert_eq!((outcome.expired, outcome.sum), (1_000, Ledger::of(&deadlines).sum));
        assert_eq!(deadlines.into_iter().max(), Some(outcome.now));
        outcome
    }

    #[test]
    fn everything_expires_and_wake_ups_are_counted() {
        // Two that share a tick share a wake-up.
        let wakeups = drained::<BTree>().wakeups;
        assert!((990..=1_000).contains(&wakeups), "{wakeups}");
        assert!((wakeups..1_200).contains(&drained::<Wheel>().wakeups));
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the figures are exact")]
    fn what_was_cut_off_is_extrapolated() {
        let outcome = Outcome { now: 250, is_cut_off: true, ..Outcome::default() };
        assert_eq!(outcome.factor(1_000), 4.0);
        assert_eq!(Outcome { is_cut_off: false, ..outcome }.factor(1_000), 1.0);
    }
}
