//! What contestants promise, as it is seen in virtual time.

use std::time::Instant;

use delaywheel_compare::{
    Timers,
    promises::Wakes,
    report::table::count,
    side_by_side::{
        names::{CANCELLED, EARLY, LATE, LOST, UNORDERED, VAIN_CANCELLED, VAIN_PENDING},
        observe::{Seen, cancel_half, observe, plan, vain_wakeups, wakeups_for_cancelled},
        traffic::Delays,
    },
    timers::{Visitor, visit_all},
    workload::{Spread, Workload},
};

use super::record::{Demand, Record};

/// Of what a contestant is told to see what it does between ticks, so many are a tick.
const TENTHS: f64 = 10.0;

/// A tick that is no round number in any base, within everybody's range.
const LONE: u64 = 54_321;

pub(crate) fn run(record: &mut Record) {
    record.tell("promises");
    visit_all(&mut Promises { record });
}

struct Promises<'a> {
    record: &'a mut Record,
}

impl Visitor for Promises<'_> {
    fn visit<T: Timers + Default>(&mut self) {
        let start = Instant::now();
        let (seen, observed) = self.at_whole_ticks::<T>();
        let between = self.between_ticks::<T>();
        let early = count(seen.early_max).max(count(between.early_max) / TENTHS);
        let late = count(seen.late_max).max(count(between.late_max) / TENTHS);
        for (workload, unit, value) in [
            (EARLY, "ms", early),
            (LATE, "ms", late),
            (UNORDERED, "timeouts", count(seen.unordered)),
            (LOST, "timeouts", count(seen.lost + between.lost)),
        ] {
            self.record.add(T::NAME, observed, (workload, unit), value);
        }
        self.cancels::<T>();
        let wakeups = [
            (VAIN_PENDING, vain_wakeups(&mut T::default(), LONE)),
            (VAIN_CANCELLED, wakeups_for_cancelled(&mut T::default(), LONE)),
        ];
        for (workload, wakeups) in wakeups {
            self.record.add(T::NAME, 1, (workload, "wake-ups"), count(wakeups));
        }
        self.record.took(T::NAME, EARLY, start.elapsed());
    }
}

impl Promises<'_> {
    fn pending(&self) -> u32 {
        self.record.scope.pick(2_000, 200)
    }

    /// Looks at delays of a minute and of a month at most, unless these are too long or a month of
    /// ticks would have to be gone through; then at delays as long as they may be. Returns also how
    /// many timeouts were looked at.
    fn at_whole_ticks<T: Timers + Default>(&self) -> (Seen, u64) {
        let (mut all, mut observed) = (Seen::default(), 0);
        let (pending, seed) = (self.pending(), self.record.scope.seed);
        for spread in [Spread::Minute, Spread::Month] {
            let max_delay = Delays::Drawn(spread).max();
            let demand = Demand { workload: EARLY, pending, max_delay, must_cancel: false };
            let is_far = spread == Spread::Month && matches!(T::PROMISES.wakes, Wakes::Every(_));
            let is_admitted = self.record.admits(T::NAME, &T::PROMISES, &demand);
            if is_far || spread == Spread::Month && !is_admitted {
                continue;
            }
            let mut deadlines = Workload::new(spread, seed).deadlines(pending);
            if let Some(longest) = T::PROMISES.max_delay.filter(|_| !is_admitted) {
                for deadline in &mut deadlines {
                    *deadline = 1 + *deadline % longest;
                }
            }
            all.add(observe(&mut T::default(), &plan(&deadlines, seed)));
            observed += u64::from(pending);
        }
        (all, observed)
    }

    /// Looks at deadlines in tenths of a tick, over six seconds.
    fn between_ticks<T: Timers + Default>(&self) -> Seen {
        let seed = self.record.scope.seed;
        let deadlines = Workload::new(Spread::Minute, seed).deadlines(self.pending());
        observe(&mut T::in_tenths(), &plan(&deadlines, seed))
    }

    fn cancels<T: Timers + Default>(&mut self) {
        let deadlines = Workload::new(Spread::Minute, self.record.scope.seed).deadlines(200);
        let (cancelled, away) = cancel_half(&mut T::default(), &deadlines);
        self.record.add(T::NAME, 100, (CANCELLED, "timeouts"), count(away));
        if cancelled != away {
            self.record.note(T::NAME, CANCELLED, format!("{cancelled} were said to be cancelled"));
        }
    }
}
