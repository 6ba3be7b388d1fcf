//! Single inserts while a contestant grows from nothing: does any of them pay for all?

use delaywheel_compare::{
    Timers,
    drive::timed,
    report::{settings::Settings, table::Row},
    timers::{LazyHeap, Wheel},
    workload::{Spread, Workload},
};

use crate::latency::{Latencies, nanos};

/// Microseconds of one insert.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let count = if settings.is_quick { 1_000_000 } else { 10_000_000 };
    let deadlines = Workload::new(Spread::Minute, 6).deadlines(count);
    let latencies = Latencies::of(
        settings.rounds.min(3),
        vec![
            ("wheel", Box::new(|calls: &mut _| insert_each::<Wheel>(&deadlines, calls))),
            ("lazy_heap", Box::new(|calls: &mut _| insert_each::<LazyHeap>(&deadlines, calls))),
        ],
    );
    [("p50", 50.0), ("p99.99", 99.99), ("max", 100.0)]
        .map(|(which, percentile)| {
            let name = format!("one insert from 0 to {count}: {which}");
            Row::new(name, "us", latencies.micros(percentile))
        })
        .into()
}

fn insert_each<T: Timers + Default>(deadlines: &[u64], calls: &mut Vec<u32>) {
    let mut timers = T::default();
    for &deadline in deadlines {
        let (duration, _) = timed(|| timers.insert(deadline, deadline));
        calls.push(nanos(duration));
    }
    assert_eq!(timers.len(), deadlines.len());
}
