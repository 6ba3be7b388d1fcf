//! What has been measured so far, and who takes part in what.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use delaywheel_compare::{
    Promises,
    side_by_side::{label, results::Measurement},
};

use super::Scope;

/// If a turn takes longer, the contestant takes no part at greater numbers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gathers the figures of all turns.
pub(crate) struct Record {
    pub(crate) scope: Scope,
    start: Instant,
    /// Their value is made at the end.
    measurements: Vec<Measurement>,
    /// Who was too slow at what.
    slow: HashSet<(&'static str, &'static str)>,
}

/// What is asked of a contestant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) workload: &'static str,
    pub(crate) pending: u32,
    pub(crate) max_delay: u64,
    pub(crate) must_cancel: bool,
}

impl Record {
    pub(crate) fn new(scope: Scope) -> Self {
        let (measurements, slow) = (Vec::new(), HashSet::new());
        Self { scope, start: Instant::now(), measurements, slow }
    }

    /// Tells on the screen what comes next.
    pub(crate) fn tell(&self, what: &str) {
        eprint!("\n[{:>4} s] {what} ", self.start.elapsed().as_secs());
    }

    /// Whether a contestant takes part: it promises what is asked of it, and was not too slow.
    pub(crate) fn admits(&self, name: &'static str, promises: &Promises, demand: &Demand) -> bool {
        demand.pending <= promises.largest
            && promises.max_delay.is_none_or(|longest| demand.max_delay <= longest)
            && (promises.can_cancel || !demand.must_cancel)
            && !self.slow.contains(&(demand.workload, name))
    }

    /// Takes down how long a turn took in all.
    pub(crate) fn took(&mut self, name: &'static str, workload: &'static str, time: Duration) {
        eprint!(".");
        if time > PATIENCE {
            self.slow.insert((workload, name));
        }
    }

    /// Takes down a figure of one turn.
    pub(crate) fn add(&mut self, name: &str, n: u64, (workload, unit): (&str, &str), value: f64) {
        self.add_all(vec![Measurement::new(workload, &label(name), n, unit, vec![value])]);
    }

    /// Takes down the figures of one turn that another process took.
    pub(crate) fn add_all(&mut self, turn: Vec<Measurement>) {
        for figure in turn {
            let is_same = |other: &&mut Measurement| {
                let one = (&other.workload, &other.contestant, other.n);
                one == (&figure.workload, &figure.contestant, figure.n)
            };
            match self.measurements.iter_mut().find(is_same) {
                Some(known) => known.rounds.extend(figure.rounds),
                None => self.measurements.push(figure),
            }
        }
    }

    /// Has the latest figure carry what a reader must know.
    pub(crate) fn note(&mut self, name: &str, workload: &str, note: String) {
        let name = label(name);
        let is_it =
            |figure: &&mut Measurement| figure.contestant == name && figure.workload == workload;
        if let Some(figure) = self.measurements.iter_mut().rev().find(is_it) {
            figure.note = Some(note);
        }
    }

    pub(crate) fn into_measurements(self) -> Vec<Measurement> {
        let value = |figure: Measurement| {
            let Measurement { workload, contestant, n, unit, rounds, note, .. } = figure;
            Measurement::new(&workload, &contestant, n, &unit, rounds).with_note(note)
        };
        self.measurements.into_iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_a_contestant_make_one_measurement() {
        let mut record = Record::new(Scope::default());
        for value in [3.0, 1.0, 2.0] {
            record.add("one", 10, ("insert", "ns"), value);
            record.add("other", 10, ("insert", "ns"), 7.0);
        }
        record.add("one", 100, ("insert", "ns"), 9.0);
        record.note("one", "insert", "estimated".to_owned());
        let all = record.into_measurements();
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].value, &all[0].rounds[..]), (2.0, &[3.0, 1.0, 2.0][..]));
        assert_eq!((all[1].value, all[2].value), (7.0, 9.0));
        assert_eq!((&all[0].note, all[2].note.as_deref()), (&None, Some("estimated")));
    }

    #[test]
    fn who_does_not_promise_what_is_asked_or_was_slow_takes_no_part() {
        let mut record = Record::new(Scope::default());
        let demand = Demand { workload: "insert", pending: 10, max_delay: 100, must_cancel: true };
        let admits = |record: &Record, promises| record.admits("one", &promises, &demand);
        let strict = Promises::STRICT;
        assert!(admits(&record, strict));
        assert!(!admits(&record, Promises { largest: 9, ..strict }));
        assert!(!admits(&record, Promises { max_delay: Some(99), ..strict }));
        assert!(!admits(&record, Promises { can_cancel: false, ..strict }));
        record.took("one", "insert", PATIENCE + Duration::from_secs(1));
        assert!(!admits(&record, strict));
    }
}
