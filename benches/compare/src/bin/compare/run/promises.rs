//! What contestants promise, as it is seen in virtual time.

use std::time::Instant;

use delaywheel_compare::{
    Timers,
    promises::Wakes,
    report::table::count,
    side_by_side::{
        names::{EARLY, LATE, LOST, UNORDERED},
        observe::{Seen, observe},
        traffic::Delays,
    },
    timers::{Visitor, visit_all},
    workload::{Spread, Workload},
};

use super::record::{Demand, Record};

pub(crate) fn run(record: &mut Record) {
    record.tell("promises");
    visit_all(&mut Promises { record });
}

struct Promises<'a> {
    record: &'a mut Record,
}

impl Visitor for Promises<'_> {
    /// Looks at delays of a minute and of a month at most, unless these are too long or a month of
    /// ticks would have to be gone through; then at delays as long as they may be.
    fn visit<T: Timers + Default>(&mut self) {
        let (start, mut seen, mut observed) = (Instant::now(), Seen::default(), 0);
        let pending = self.record.scope.pick(2_000, 200);
        for spread in [Spread::Minute, Spread::Month] {
            let max_delay = Delays::Drawn(spread).max();
            let demand = Demand { workload: EARLY, pending, max_delay, must_cancel: false };
            let is_far = spread == Spread::Month && matches!(T::PROMISES.wakes, Wakes::Every(_));
            let is_admitted = self.record.admits(T::NAME, &T::PROMISES, &demand);
            if is_far || spread == Spread::Month && !is_admitted {
                continue;
            }
            let mut deadlines = Workload::new(spread, self.record.scope.seed).deadlines(pending);
            if let Some(longest) = T::PROMISES.max_delay.filter(|_| !is_admitted) {
                for deadline in &mut deadlines {
                    *deadline = 1 + *deadline % longest;
                }
            }
            seen.add(observe(&mut T::default(), &deadlines));
            observed += u64::from(pending);
        }
        for (workload, unit, value) in [
            (EARLY, "ms", seen.early_max),
            (LATE, "ms", seen.late_max),
            (UNORDERED, "timeouts", seen.unordered),
            (LOST, "timeouts", seen.lost),
        ] {
            self.record.add(T::NAME, observed, (workload, unit), count(value));
        }
        self.record.took(T::NAME, EARLY, start.elapsed());
    }
}
