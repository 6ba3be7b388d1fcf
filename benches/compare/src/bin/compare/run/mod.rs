//! Has every contestant do every workload, and gathers what comes out.

pub(crate) mod child;
mod fill;
mod idle;
mod lateness;
mod memory;
mod promises;
mod record;
mod scope;
mod sparse;
mod steady;
mod threads;

use std::{error::Error, time::Instant};

use delaywheel_compare::{
    Timers,
    shared::{SharedTimer, SharedVisitor, visit_all_shared},
    side_by_side::{
        introduce,
        results::{Contestant, Results, Run},
    },
    timers::{Visitor, visit_all},
};

use self::record::Record;
pub(crate) use self::scope::Scope;
use crate::machine;

/// Whether measuring went well.
pub(crate) type Measured = Result<(), Box<dyn Error>>;

/// Something that is measured.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    run: How,
}

/// Where turns are taken.
enum How {
    /// In this process.
    Here(fn(&mut Record)),
    /// In a process of its own each.
    Apart(fn(&mut Record) -> Measured),
}

pub(crate) const WORKLOADS: &[Workload] = &[
    Workload { name: "promises", run: How::Here(promises::run) },
    Workload { name: "fill", run: How::Here(fill::run) },
    Workload { name: "churn", run: How::Here(steady::churn) },
    Workload { name: "server", run: How::Here(steady::server) },
    Workload { name: "sparse", run: How::Here(sparse::run) },
    Workload { name: "memory", run: How::Apart(memory::run) },
    Workload { name: "threads", run: How::Apart(threads::run) },
    Workload { name: "idle", run: How::Apart(idle::run) },
    Workload { name: "lateness", run: How::Apart(lateness::run) },
];

/// Runs what is asked for.
pub(crate) fn all(scope: &Scope) -> Result<Results, Box<dyn Error>> {
    let start = Instant::now();
    let mut record = Record::new(scope.clone());
    for workload in WORKLOADS.iter().filter(|workload| scope.selects(workload.name)) {
        match workload.run {
            How::Here(run) => run(&mut record),
            How::Apart(run) => run(&mut record)?,
        }
    }
    eprintln!();
    Ok(Results {
        machine: machine::look(),
        run: Run {
            seed: scope.seed,
            rounds: scope.rounds(),
            is_quick: scope.is_quick,
            seconds: start.elapsed().as_secs(),
        },
        contestants: contestants(),
        measurements: record.into_measurements(),
    })
}

/// Everybody, ours first.
pub(crate) fn contestants() -> Vec<Contestant> {
    let mut everybody = Introductions::default();
    visit_all(&mut everybody);
    visit_all_shared(&mut everybody);
    everybody.0
}

#[derive(Default)]
struct Introductions(Vec<Contestant>);

impl Visitor for Introductions {
    fn visit<T: Timers + Default>(&mut self) {
        self.0.push(introduce(T::NAME, &T::PROMISES, false));
    }
}

impl SharedVisitor for Introductions {
    fn visit<S: SharedTimer>(&mut self, _: impl Fn() -> S) {
        self.0.push(introduce(S::NAME, &S::PROMISES, true));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_contestants_have_the_same_name() {
        let everybody = contestants();
        let names: HashSet<_> = everybody.iter().map(|one| &one.name).collect();
        assert_eq!(names.len(), everybody.len());
    }
}
