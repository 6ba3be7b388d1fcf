//! What is printed each second.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use delaywheel::{PurgatoryStats, TimerStats};

use crate::{books::Books, ledger, memory};

/// What is known at the end of a second.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) values: TimerStats,
    pub(crate) closures: TimerStats,
    pub(crate) purgatory: PurgatoryStats,
    /// Late timeouts of the timer of values, and operations.
    pub(crate) late: [[Duration; 3]; 2],
    /// Late timeouts of the timer of closures.
    pub(crate) late_closures: [Duration; 3],
    /// How often the clock went wrong.
    pub(crate) faults: u64,
}

impl Sample {
    /// What the timers and the purgatory have ended or been asked for, in all.
    fn done(&self, books: [&Books; 2]) -> [u64; 2] {
        let reset = books[0].counts.reset.load(Relaxed);
        let timers = [&self.values, &self.closures]
            .map(|stats| 2 * stats.scheduled - stats.pending + stats.rejected);
        let taken = ledger::sum(&self.purgatory);
        [timers[0] + timers[1] + reset, 2 * taken - self.purgatory.delayed + self.purgatory.refused]
    }

    /// Prints a line; `before` are the totals of the last one, which become those of this.
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

/// Explains the lines.
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
