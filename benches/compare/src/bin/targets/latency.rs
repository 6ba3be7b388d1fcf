//! How long single calls take, with what the machine adds to them filtered out.
//!
//! The n-th call does the same work in every round, so the least of the rounds is taken for each
//! call. What remains at the far end of the distribution is work, not preemption.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Takes one turn: appends the nanoseconds of each call, always as many.
pub(crate) type Turn<'a> = Box<dyn FnMut(&mut Vec<u32>) + 'a>;

/// The distribution of each contestant's calls, in nanoseconds.
pub(crate) struct Latencies(Vec<(&'static str, Histogram<u64>)>);

impl Latencies {
    pub(crate) fn of(rounds: usize, mut contestants: Vec<(&'static str, Turn<'_>)>) -> Self {
        let mut least = vec![Vec::new(); contestants.len()];
        let mut calls = Vec::new();
        for _ in 0..rounds {
            for ((_, turn), least) in contestants.iter_mut().zip(&mut least) {
                calls.clear();
                turn(&mut calls);
                keep_least(least, &calls);
                eprint!(".");
            }
        }
        eprintln!();
        let names = contestants.iter().map(|&(name, _)| name);
        Self(names.zip(least.iter().map(|least| histogram(least))).collect())
    }

    /// A percentile in microseconds, for a row of the report; 100 is the greatest.
    pub(crate) fn micros(&self, percentile: f64) -> impl Iterator<Item = (&'static str, f64)> {
        self.0.iter().map(move |(name, histogram)| {
            let nanos = histogram.value_at_percentile(percentile);
            (*name, Duration::from_nanos(nanos).as_secs_f64() * 1e6)
        })
    }
}

/// Nanoseconds of one call, or four seconds if it took longer.
pub(crate) fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}

fn keep_least(least: &mut Vec<u32>, calls: &[u32]) {
    if least.is_empty() {
        least.extend(calls);
    }
    assert_eq!(least.len(), calls.len(), "the rounds differ");
    for (least, &call) in least.iter_mut().zip(calls) {
        *least = call.min(*least);
    }
}

fn histogram(calls: &[u32]) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are precise enough");
    for &call in calls {
        histogram.record(u64::from(call)).expect("a histogram resizes itself");
    }
    histogram
}
