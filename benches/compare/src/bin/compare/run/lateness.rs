//! When timeouts come in real time: how early or late, and whether once.

use std::time::Duration;

use delaywheel_compare::{
    report::table::count,
    shared::{Expiry, SharedTimer, schedule_all_expected},
    side_by_side::{
        label,
        names::{self, MISSING},
        results::Measurement,
    },
};
use fastrand::Rng;

use super::{
    Measured,
    child::{self, Act, Turn},
    record::{Demand, Record},
};

/// The least delay, by which all have been scheduled.
const LEAST: Duration = Duration::from_millis(100);

/// After this they are lost.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(record: &mut Record) -> Measured {
    let count = record.scope.pick(2_000, 200);
    let millis = record.scope.pick(2_000, 200);
    let demand = Demand {
        workload: names::LATENESS,
        pending: count,
        max_delay: millis + 100,
        must_cancel: false,
    };
    for round in 1..=record.scope.rounds().min(3) {
        record.tell(&format!("lateness, round {round}"));
        let seed = record.scope.seed + round as u64;
        child::delegate_all(record, &demand, |name| Turn {
            workload: "lateness".to_owned(),
            contestant: name.to_owned(),
            n: count,
            millis,
            seed,
        })?;
    }
    Ok(())
}

/// Percentiles in milliseconds after the deadline, and how many never came, or came twice.
pub(crate) fn take_turn(turn: &Turn) -> Vec<Measurement> {
    child::act(&turn.contestant, Lateness(turn))
}

struct Lateness<'a>(&'a Turn);

impl Act for Lateness<'_> {
    fn act<S: SharedTimer>(&self, make: impl Fn() -> S) -> Vec<Measurement> {
        let Turn { n, millis, seed, .. } = *self.0;
        let timer = make();
        let _entered = timer.enter();
        let (mut rng, span) = (Rng::with_seed(seed), Duration::from_millis(millis));
        let delays: Vec<_> = (0..n).map(|_| LEAST + span.mul_f64(rng.f64())).collect();
        let all = schedule_all_expected(&timer, &delays).settle(PATIENCE);
        let mut came: Vec<_> = all.iter().copied().filter_map(millis_late).collect();
        came.sort_unstable_by(f64::total_cmp);
        let measured = |workload: &str, unit, value| {
            Measurement::new(workload, &label(S::NAME), n.into(), unit, vec![value])
        };
        let missing = count((all.len() - came.len()) as u64);
        let mut measurements = vec![measured(MISSING, "timeouts", missing)];
        if !came.is_empty() {
            measurements.extend(names::PERCENTILES.iter().map(|&(name, per_mille)| {
                measured(&names::lateness(name), "ms", at(&came, per_mille))
            }));
        }
        measurements
    }
}

/// Milliseconds after the deadline; `None` if a timeout did not come just once.
#[expect(clippy::cast_precision_loss, reason = "nothing here is late by days")]
fn millis_late(expiry: Expiry) -> Option<f64> {
    match expiry {
        Expiry::Early(nanos) => Some(nanos as f64 / -1e6),
        Expiry::Late(nanos) => Some(nanos as f64 / 1e6),
        Expiry::Lost | Expiry::Doubled => None,
    }
}

/// The least of these, which ascend, that is not below so many in a thousand of them.
fn at(ascending: &[f64], per_mille: usize) -> f64 {
    let rank = (per_mille * ascending.len()).div_ceil(1_000);
    ascending[rank.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "a percentile is one of the figures")]
    fn percentiles_are_figures_that_were_seen() {
        let ascending: Vec<_> = (1..=1_000).map(f64::from).collect();
        let seen = [0, 10, 500, 999, 1_000].map(|per_mille| at(&ascending, per_mille));
        assert_eq!(seen, [1.0, 10.0, 500.0, 999.0, 1_000.0]);
        assert_eq!(at(&[-3.0], 500), -3.0);
    }
}
