//! Sees for itself what a contestant promises: how early and how late timeouts come, whether in
//! order, and whether all of them.

use crate::Timers;

/// Wake-ups after the last deadline until what has not come is lost.
const LATEST: u32 = 100_000;

/// What was seen. Times are in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The most by which one came before its deadline.
    pub early_max: u64,
    /// The most by which one came after its deadline.
    pub late_max: u64,
    /// How many came after one of a later deadline, of those that one call handed out.
    pub unordered: u64,
    /// How many never came.
    pub lost: u64,
}

impl Seen {
    /// Takes in what was seen besides.
    pub fn add(&mut self, other: Self) {
        self.early_max = self.early_max.max(other.early_max);
        self.late_max = self.late_max.max(other.late_max);
        self.unordered += other.unordered;
        self.lost += other.lost;
    }
}

/// Inserts timeouts and lets time pass, with a stop just before each deadline, at it and just after
/// it, and wherever it asks to be woken; so one that comes at its deadline is neither early nor late, and whoever is has no excuse.
pub fn observe<T: Timers>(timers: &mut T, deadlines: &[u64]) -> Seen {
    let mut stops: Vec<_> =
        deadlines.iter().flat_map(|&at| [at.saturating_sub(1), at, at + 1]).collect();
    stops.sort_unstable();
    stops.dedup();
    for &deadline in deadlines {
        timers.insert(deadline, deadline);
    }
    let (mut seen, mut came) = (Seen::default(), 0);
    let mut advance = |timers: &mut T, now: u64| {
        let mut last = 0;
        came += timers.advance(now, |deadline| {
            seen.early_max = seen.early_max.max(deadline.saturating_sub(now));
            seen.late_max = seen.late_max.max(now.saturating_sub(deadline));
            seen.unordered += u64::from(deadline < last);
            last = deadline;
        });
    };
    let mut latest = 0;
    for stop in stops {
        // Whoever asks to be woken before is woken then, so that it is not late for want of that.
        while let Some(now) =
            timers.next_expiration().filter(|next| (latest + 1..stop).contains(next))
        {
            advance(timers, now);
            latest = now;
        }
        advance(timers, stop);
        latest = stop;
    }
    // What is late is awaited as it asks for, a tick at a time where it asks for nothing later.
    for _ in 0..LATEST {
        let next = timers.next_expiration().filter(|_| !timers.is_empty());
        let Some(next) = next else { break };
        latest = next.max(latest + 1);
        advance(timers, latest);
    }
    seen.lost = (deadlines.len() - came.min(deadlines.len())) as u64;
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Promises,
        timers::{BTree, Wheel},
        workload::{Spread, Workload},
    };

    /// A map whose time is wrong by some ticks, and which forgets a timeout.
    #[derive(Debug)]
    struct Skewed {
        timers: BTree,
        skew: i64,
        forgotten: u64,
    }

    impl Timers for Skewed {
        type Key = <BTree as Timers>::Key;

        const NAME: &'static str = "skewed";

        const PROMISES: Promises = BTree::PROMISES;

        fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key {
            let key = self.timers.insert(deadline, payload);
            if deadline == self.forgotten {
                self.timers.cancel(key);
            }
            key
        }

        fn cancel(&mut self, key: Self::Key) -> bool {
            self.timers.cancel(key)
        }

        fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key> {
            self.timers.reset(key, deadline)
        }

        fn next_expiration(&mut self) -> Option<u64> {
            self.timers.next_expiration()
        }

        fn advance(&mut self, now: u64, expired: impl FnMut(u64)) -> usize {
            self.timers.advance(now.saturating_add_signed(self.skew), expired)
        }

        fn len(&self) -> usize {
            self.timers.len()
        }
    }

    fn seen(mut timers: impl Timers) -> Seen {
        observe(&mut timers, &Workload::new(Spread::Month, 3).deadlines(1_000))
    }

    #[test]
    fn a_contestant_that_keeps_all_promises_is_seen_to() {
        assert_eq!(seen(BTree::default()), Seen::default());
        assert_eq!(seen(Wheel::default()), Seen::default());
    }

    #[test]
    fn who_is_early_or_late_or_loses_timeouts_is_found_out() {
        let skewed = |skew, forgotten| {
            observe(&mut Skewed { timers: BTree::default(), skew, forgotten }, &[10, 20, 30])
        };
        assert_eq!(skewed(1, 0), Seen { early_max: 1, ..Seen::default() });
        assert_eq!(skewed(-1, 0), Seen { late_max: 1, ..Seen::default() });
        assert_eq!(skewed(0, 20), Seen { lost: 1, ..Seen::default() });
    }
}
