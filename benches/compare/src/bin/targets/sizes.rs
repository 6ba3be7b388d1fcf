//! Wheels of other sizes beside the default, to settle it.

use delaywheel_compare::{
    report::{settings::Settings, table::Row},
    timers::Wheel,
    workload::{Spread, Workload},
};

use crate::{
    entrant::Entrant,
    memory::bytes_pending,
    pending::{Churn, Fill, operation_rows},
    sparse::{Drain, sparse_rows},
};

/// All measurements that depend on the size; ours is the default.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let mut rows = Vec::new();
    for count in [1_000, 1_000_000] {
        for spread in [Spread::Minute, Spread::Month] {
            let fills = wheels().map(|wheel| Fill::boxed(wheel, spread, count)).collect();
            let churns = || wheels().map(|wheel| Churn::boxed(wheel, spread, count)).collect();
            rows.extend(operation_rows(settings.rounds, spread, count, fills, churns));
        }
    }
    rows.extend(sparse_rows(settings.rounds, wheels().map(Drain::boxed).collect()));
    let deadlines = Workload::new(Spread::Month, 1).deadlines(1_000);
    let bytes = wheels().map(|wheel| bytes_pending(wheel, &deadlines));
    rows.push(Row::new("memory per pending timeout at 1000 log-uniform", "bytes", bytes));
    rows
}

fn wheels() -> impl Iterator<Item = Entrant<Wheel>> {
    let wheel = |name, make| Entrant { name, make };
    [
        wheel("default", Wheel::default),
        wheel("16", || Wheel::with_size(16)),
        wheel("32", || Wheel::with_size(32)),
        wheel("64", || Wheel::with_size(64)),
        wheel("128", || Wheel::with_size(128)),
        wheel("256", || Wheel::with_size(256)),
        wheel("512", || Wheel::with_size(512)),
        wheel("1024", || Wheel::with_size(1_024)),
    ]
    .into_iter()
}
