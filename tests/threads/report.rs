//! The lines that the soak prints each second.

use std::{mem, sync::atomic::Ordering::Relaxed, time::Duration};

use delaywheel::{PurgatoryStats, TimerStats};
use parking_lot::Mutex;

use crate::{books::Books, ledger, memory};

/// Durations since the last look, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<Vec<u64>>);

impl Samples {
    pub(crate) fn record(&self, nanos: u64) {
        self.0.lock().push(nanos);
    }

    /// Percentiles since the last call.
    pub(crate) fn take<const N: usize>(&self, percents: [usize; N]) -> [Duration; N] {
        let mut samples = mem::take(&mut *self.0.lock());
        samples.sort_unstable();
        let last = samples.len().saturating_sub(1);
        percents.map(|percent| {
            Duration::from_nanos(samples.get(last * percent / 100).copied().unwrap_or(0))
        })
    }
}

/// Statistics at the end of a second.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) values: TimerStats,
    pub(crate) closures: TimerStats,
    pub(crate) purgatory: PurgatoryStats,
    /// Lateness of the timer of values and of the purgatory.
    pub(crate) late: [[Duration; 3]; 2],
    /// Lateness of the timer of closures.
    pub(crate) late_closures: [Duration; 3],
    /// Number of clock faults.
    pub(crate) faults: u64,
}

impl Sample {
    /// Total operations of the timers, and of the purgatory.
    fn done(&self, books: [&Books; 2]) -> [u64; 2] {
        let reset = books[0].counts.reset.load(Relaxed);
        let timers = [&self.values, &self.closures]
            .map(|stats| 2 * stats.scheduled - stats.pending + stats.rejected);
        let taken = ledger::sum(&self.purgatory);
        [timers[0] + timers[1] + reset, 2 * taken - self.purgatory.delayed + self.purgatory.refused]
    }

    /// Prints the lines of one second. Updates `before`, the totals of the last second.
    pub(crate) fn print(&self, at: (u64, u64), books: [&Books; 2], before: &mut [u64; 2]) {
        let done = self.done(books);
        let rates = [0, 1].map(|part| done[part].saturating_sub(before[part]));
        *before = done;
        let [timer, waits] = self
            .late
            .map(|late| late.map(|figure| format!("{:.1}", figure.as_secs_f64() * 1e3)).join("/"));
        let resident = memory::resident().map_or(String::from("?"), megabytes);
        let live = megabytes(memory::live());
        let (round, second) = at;
        println!(
            "{round:>5} {second:>3} {:>9} {:>9} {timer:>16} {waits:>16} {live:>7} {resident:>7} {:>6}",
            rates[0], rates[1], self.faults
        );
        for (name, stats) in [("values", &self.values), ("closures", &self.closures)] {
            println!("          {name}: {}", timer_ledger(stats));
        }
        println!("          purgatory: {}", purgatory_ledger(&self.purgatory));
    }
}

/// Prints the head of the lines.
pub(crate) fn head() {
    println!(
        "operations a second; lateness in ms: median/99%/greatest; memory in MB, live and resident"
    );
    println!(
        "{:>5} {:>3} {:>9} {:>9} {:>16} {:>16} {:>7} {:>7} {:>6}",
        "round",
        "s",
        "timers",
        "purgatory",
        "late timeouts",
        "late operations",
        "live",
        "RSS",
        "clock"
    );
}

fn timer_ledger(stats: &TimerStats) -> String {
    format!(
        "{} scheduled = {} pending + {} expired + {} cancelled + {} returned; {} refused, {} panicked",
        stats.scheduled,
        stats.pending,
        stats.expired,
        stats.cancelled,
        stats.returned,
        stats.rejected,
        stats.panicked
    )
}

fn purgatory_ledger(stats: &PurgatoryStats) -> String {
    format!(
        "{} taken in = {} waiting + {} at once + {} satisfied + {} expired + {} cancelled + {} displaced \
         + {} shut down; {} refused, {} panicked",
        ledger::sum(stats),
        stats.delayed,
        stats.at_once,
        stats.satisfied,
        stats.expired,
        stats.cancelled,
        stats.displaced,
        stats.shut_down,
        stats.refused,
        stats.panicked
    )
}

fn megabytes(bytes: usize) -> String {
    format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10)
}
