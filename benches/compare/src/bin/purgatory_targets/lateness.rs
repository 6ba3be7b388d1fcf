//! How late requests expire while very many others wait, and 20,000 of them complete in a second.

use delaywheel_compare::{
    delivered::{histogram, millis},
    real::process_cpu,
    report::{
        rounds::{Contestant, Medians},
        settings::Settings,
        table::Row,
    },
};

use crate::service::{By, Outcome, Service};

struct Case {
    name: &'static str,
    by: By,
    waiting: usize,
    /// What Kafka's takes: lateness and processor time.
    beside: Option<[&'static str; 2]>,
}

const CASES: [Case; 4] = [
    Case {
        name: "300,000 waiting, completed by handle",
        by: By::Handle,
        waiting: 300_000,
        beside: Some(["K 98", "K 950"]),
    },
    Case {
        name: "300,000 waiting on keys of their own, by event",
        by: By::Event,
        waiting: 300_000,
        beside: None,
    },
    Case {
        name: "1,000,000 waiting, completed by handle",
        by: By::Handle,
        waiting: 1_000_000,
        beside: Some(["K 385", "K 1000"]),
    },
    Case {
        name: "1,000,000 waiting on keys of their own, by event",
        by: By::Event,
        waiting: 1_000_000,
        beside: None,
    },
];

/// Lateness, and processor time.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let cases = if settings.is_quick { &CASES[..2] } else { &CASES };
    let millis = if settings.is_quick { 500 } else { 3_000 };
    let turn = |case| Box::new(Turn { case, millis }) as Box<dyn Contestant<5>>;
    let medians = Medians::of(settings.rounds.min(5), cases.iter().map(turn).collect());
    let mut rows = Vec::new();
    for Case { name, beside, .. } in cases {
        let row = |what, unit, index| {
            let figures = medians.figure_of(name, index).map(|(_, figure)| ("ours", figure));
            Row::new(format!("{name}: {what}"), unit, figures)
        };
        let [late, busy] = [0, 1].map(|index| beside.map(|beside| beside[index]));
        rows.push(row("p50", "ms", 0));
        rows.push(row("p99", "ms", 1).at_most(2.5).beside(late));
        rows.push(row("max", "ms", 2));
        if process_cpu().is_some() {
            rows.push(row("CPU", "ms/s", 3).at_most(100.0).beside(busy));
            rows.push(row("CPU, its threads", "ms/s", 4));
        }
    }
    rows
}

/// A case, in a purgatory made anew for each turn.
struct Turn {
    case: &'static Case,
    millis: usize,
}

impl Contestant<5> for Turn {
    fn name(&self) -> &'static str {
        self.case.name
    }

    /// Milliseconds of lateness: the median, the 99th percentile, the maximum. Milliseconds of
    /// processor time in each second: of the process, less what the same takes without a purgatory;
    /// and of the purgatory's threads alone.
    fn measure(&mut self) -> [f64; 5] {
        let service = Service::new(self.case.by, self.case.waiting, self.millis);
        let empty = service.run_empty();
        let Outcome { late, cpu } = service.run();
        let histogram = histogram(late);
        let [p50, p99, max] = [50.0, 99.0, 100.0].map(|percentile| millis(&histogram, percentile));
        [p50, p99, max, cpu.process - empty.process, cpu.own]
    }
}
