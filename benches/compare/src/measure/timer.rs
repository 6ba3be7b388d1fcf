//! Measurements of this crate's timer alone, in real time.
//!
//! Every timeout carries the instant that was asked for, and the handler notes when it runs; none
//! may be early. So lateness includes the way to the next tick: half a tick in the median.

use crate::prelude::*;

/// Timeouts that are due uniformly within a second, which begins after `lead`: their lateness, and
/// processor time of the process from the last `schedule` on.
fn burst_of<const INLINE: bool>(bench: &mut Bench, number: u32, lead: Duration) {
    const SPAN: Duration = Duration::from_secs(1);
    let due = instants(&mut Rng::with_seed(1), number, lead, SPAN);
    let (timer, arrivals) = (Typed::<INLINE>::start(), Arrivals::new(due.len()));
    timer.schedule_at(&arrivals, &due);
    let before = process_cpu();
    sleep_until(arrivals.instant(nanos(lead + SPAN)) + 20 * MILLI);
    let late = arrivals.settle_strictly(due).lateness(0..u64::MAX);
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.pending), (u64::from(number), 0));
    let name = Typed::<INLINE>::NAME;
    bench.add_all(Figure::percentiles("timer/burst", name, &late, "p50 p99", MILLI));
    if let Some(cpu) = cpu {
        bench.add("timer/burst/cpu", name, nanos_per(cpu, u64::from(number)));
    }
}

/// Very many timeouts within a second.
pub(crate) fn burst(bench: &mut Bench) -> Done {
    let number = bench.full(100_000, 1_000_000);
    let lead = bench.millis(500, 2_000);
    for _ in 0..bench.rounds() {
        burst_of::<false>(bench, number, lead);
        burst_of::<true>(bench, number, lead);
    }
    Ok(())
}
