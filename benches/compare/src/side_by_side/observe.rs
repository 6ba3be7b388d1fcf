//! Sees for itself what a contestant promises: how early and how late timeouts come, whether in
//! order, and whether all of them.

use std::collections::BTreeMap;

use fastrand::Rng;

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

/// A timeout that is inserted at one tick for another.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    at: u64,
    deadline: u64,
}

/// Plans timeouts of these deadlines: every second one from the beginning, the others some time
/// before they are due.
#[must_use]
pub fn plan(deadlines: &[u64], seed: u64) -> Vec<Planned> {
    let mut rng = Rng::with_seed(seed);
    let planned = |(nth, &deadline): (usize, &u64)| {
        let at = if nth % 2 == 0 { 0 } else { rng.u64(0..deadline) };
        Planned { at, deadline }
    };
    deadlines.iter().enumerate().map(planned).collect()
}

/// Inserts timeouts and lets time pass, with a stop just before each deadline, at it and just after
/// it, and wherever it asks to be woken; so one that comes at its deadline is neither early nor late, and whoever is has no excuse.
pub fn observe<T: Timers>(timers: &mut T, planned: &[Planned]) -> Seen {
    // What is inserted at each stop.
    let mut stops = BTreeMap::<u64, Vec<u64>>::new();
    for &Planned { at, deadline } in planned {
        stops.entry(at).or_default().push(deadline);
        for stop in [deadline.saturating_sub(1), deadline, deadline + 1] {
            stops.entry(stop).or_default();
        }
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
    for (stop, inserted) in stops {
        // Whoever asks to be woken before is woken then, so that it is not late for want of that.
        while let Some(now) =
            timers.next_expiration().filter(|next| (latest + 1..stop).contains(next))
        {
            advance(timers, now);
            latest = now;
        }
        advance(timers, stop);
        latest = stop;
        for deadline in inserted {
            timers.insert(deadline, deadline);
        }
    }
    // What is late is awaited as it asks for, a tick at a time where it asks for nothing later.
    for _ in 0..LATEST {
        let next = timers.next_expiration().filter(|_| !timers.is_empty());
        let Some(next) = next else { break };
        latest = next.max(latest + 1);
        advance(timers, latest);
    }
    seen.lost = (planned.len() - came.min(planned.len())) as u64;
    seen
}

/// Inserts a timeout for each deadline and cancels every second one. Returns how many of these were
/// pending as it says, and how many of them never came.
pub fn cancel_half<T: Timers>(timers: &mut T, deadlines: &[u64]) -> (u64, u64) {
    let insert = |(&deadline, payload)| timers.insert(deadline, payload);
    let keys: Vec<_> = deadlines.iter().zip(0..).map(insert).collect();
    let victims = keys.iter().step_by(2);
    let cancelled: u64 = victims.map(|&key| u64::from(timers.cancel(key))).sum();
    let mut away = deadlines.len().div_ceil(2) as u64;
    let mut now = 0;
    for _ in 0..LATEST {
        let next = timers.next_expiration().filter(|_| !timers.is_empty());
        let Some(next) = next else { break };
        now = next.max(now + 1);
        timers.advance(now, |payload| away -= u64::from(payload % 2 == 0));
    }
    (cancelled, away)
}

/// How often one is woken with nothing to do while it waits for a lone timeout.
pub fn vain_wakeups<T: Timers>(timers: &mut T, deadline: u64) -> u64 {
    timers.insert(deadline, deadline);
    wake(timers)
}

/// How often one is woken for a timeout that was cancelled.
pub fn wakeups_for_cancelled<T: Timers>(timers: &mut T, deadline: u64) -> u64 {
    let key = timers.insert(deadline, deadline);
    timers.cancel(key);
    wake(timers)
}

/// Wakes it as it asks to be until it hands something out or asks no more.
fn wake<T: Timers>(timers: &mut T) -> u64 {
    let mut now = 0;
    for wakeups in 0..LATEST {
        let Some(next) = timers.next_expiration() else { return wakeups.into() };
        now = next.max(now + 1);
        if timers.advance(now, |_| ()) > 0 {
            return wakeups.into();
        }
    }
    LATEST.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Promises,
        timers::{BTree, HashWheel, Kafka, Netty, NexusTimer, TickingWheel, Wheel},
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
        observe(&mut timers, &plan(&Workload::new(Spread::Month, 3).deadlines(1_000), 3))
    }

    #[test]
    fn a_contestant_that_keeps_all_promises_is_seen_to() {
        assert_eq!(seen(BTree::default()), Seen::default());
        assert_eq!(seen(Wheel::default()), Seen::default());
    }

    #[test]
    fn who_is_early_or_late_or_loses_timeouts_is_found_out() {
        let skewed = |skew, forgotten| {
            let planned = plan(&[10, 20, 30], 3);
            observe(&mut Skewed { timers: BTree::default(), skew, forgotten }, &planned)
        };
        assert_eq!(skewed(1, 0), Seen { early_max: 1, ..Seen::default() });
        assert_eq!(skewed(-1, 0), Seen { late_max: 1, ..Seen::default() });
        assert_eq!(skewed(0, 20), Seen { lost: 1, ..Seen::default() });
    }

    #[test]
    fn times_between_ticks_show_who_rounds_which_way() {
        fn seen<T: Timers + Default>() -> (u64, u64) {
            let deadlines: Vec<_> = (1..=10_000).step_by(7).collect();
            let seen = observe(&mut T::in_tenths(), &plan(&deadlines, 3));
            assert_eq!(seen.lost, 0, "{}", T::NAME);
            (seen.early_max, seen.late_max)
        }
        assert_eq!(seen::<BTree>(), (0, 0));
        assert_eq!([seen::<Wheel>(), seen::<TickingWheel>()], [(0, 9); 2]);
        assert_eq!(seen::<Kafka>(), (9, 0));
        assert_eq!(seen::<NexusTimer>(), (9, 0));
        assert_eq!(seen::<Netty>(), (0, 10));
        // It rounds the delay down, and the present besides.
        let (early, late) = seen::<HashWheel>();
        assert!((10..=18).contains(&early) && late == 0, "early by {early}, late by {late}");
    }

    #[test]
    fn cancelled_ones_stay_away() {
        let deadlines = Workload::new(Spread::Minute, 3).deadlines(101);
        assert_eq!(cancel_half(&mut Wheel::default(), &deadlines), (51, 51));
        let mut skewed = Skewed { timers: BTree::default(), skew: 0, forgotten: deadlines[0] };
        assert_eq!(cancel_half(&mut skewed, &deadlines), (50, 51));
    }

    #[test]
    fn wake_ups_in_vain_are_counted() {
        assert_eq!(vain_wakeups(&mut Wheel::default(), 50_000), 0);
        assert_eq!(vain_wakeups(&mut TickingWheel::default(), 50_000), 49_999);
        assert_eq!(wakeups_for_cancelled(&mut Wheel::default(), 50_000), 0);
        assert_eq!(wakeups_for_cancelled(&mut Kafka::default(), 50_000), 1);
    }
}
