//! One thread whose requests wait and are completed by an event, over and over.

use delaywheel_compare::{
    drive::timed,
    purgatory::{Announce, ClosedLoop, Demand, Requests, demands, settle},
    report::{
        rounds::{Contestant, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
};

/// Requests between two looks at the clock.
const BATCH: u32 = 20_000;

/// What is done, and what it may take.
struct Case {
    name: &'static str,
    in_flight: usize,
    announce: Announce,
    /// Number of different keys.
    space: u32,
    /// Nanoseconds per request.
    bound: Option<f64>,
    beside: Option<&'static str>,
}

const CASES: [Case; 5] = [
    Case {
        name: "completed through one key",
        in_flight: 1,
        announce: Announce::One,
        space: 100,
        bound: Some(260.0),
        beside: Some("K 310-330"),
    },
    Case {
        name: "all three keys checked",
        in_flight: 1,
        announce: Announce::Each,
        space: 100,
        bound: Some(330.0),
        beside: Some("K 410"),
    },
    Case {
        name: "all three keys checked in one call",
        in_flight: 1,
        announce: Announce::Together,
        space: 100,
        bound: None,
        beside: None,
    },
    Case {
        name: "one key, out of 10,000",
        in_flight: 1,
        announce: Announce::One,
        space: 10_000,
        bound: Some(450.0),
        beside: Some("K 760-840"),
    },
    Case {
        name: "one key, 1000 in flight",
        in_flight: 1_000,
        announce: Announce::One,
        space: 100,
        bound: None,
        beside: None,
    },
];

/// Nanoseconds per request.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let batches = if settings.is_quick { 3 } else { 25 };
    let contestant = |case| Box::new(Turn { case, batches }) as Box<dyn Contestant<2>>;
    let medians = Medians::of(settings.rounds, CASES.iter().map(contestant).collect());
    let mut rows = Vec::new();
    for Case { name, bound, beside, .. } in &CASES {
        let figure = |index| medians.figure_of(name, index).map(|(_, nanos)| ("ours", nanos));
        let mut row = Row::new(format!("closed loop: {name}"), "ns", figure(0));
        if let Some(bound) = *bound {
            row = row.at_most(bound);
        }
        rows.push(row.beside(*beside));
        rows.push(Row::new("  the same, median of batches", "ns", figure(1)));
    }
    rows
}

/// A case, in a purgatory made anew for each turn.
struct Turn {
    case: &'static Case,
    batches: u32,
}

impl Contestant<2> for Turn {
    fn name(&self) -> &'static str {
        self.case.name
    }

    /// Nanoseconds per request: in the batch that took least, which nothing else disturbed, and in
    /// the median one.
    fn measure(&mut self) -> [f64; 2] {
        let Case { in_flight, announce, space, .. } = *self.case;
        let demands: Vec<Demand<3>> = demands(1, 0..space, BATCH as usize);
        let purgatory = Requests::new();
        let mut requests = ClosedLoop::new(&purgatory, announce, &demands[..in_flight]);
        requests.run(&demands);
        let mut batch = |_| nanos_per(timed(|| requests.run(&demands)).0, BATCH);
        let mut nanos: Vec<_> = (0..self.batches).map(&mut batch).collect();
        let share = requests.finish();
        assert_eq!(share.completed, share.watched, "an announcement completed one request");
        settle(&purgatory, share.watched, 0);
        nanos.sort_by(f64::total_cmp);
        [nanos[0], nanos[(nanos.len() - 1) / 2]]
    }
}
