//! The report of a load.

use std::time::Duration;

use delaywheel::{TimerStats, purgatory::PurgatoryStats};
use delaywheel_broker::broker::{Broker, Counts, GroupCounts, GroupStats};

use crate::load::Done;

/// The state and the counts of a broker at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    counts: Counts,
    fetches: (PurgatoryStats, TimerStats),
    produces: (PurgatoryStats, TimerStats),
    follower: TimerStats,
    groups: GroupStats,
}

impl Snapshot {
    pub(crate) fn of(broker: &Broker) -> Self {
        Self {
            counts: broker.counts(),
            fetches: broker.fetches(),
            produces: broker.produces(),
            follower: broker.follower_timer(),
            groups: broker.groups(),
        }
    }

    /// Returns the number of all operations, watchers and timeouts.
    pub(crate) fn waiting(&self) -> u64 {
        let GroupStats { rounds, joining, syncing, .. } = &self.groups;
        let purgatories = [&self.fetches.0, &self.produces.0, rounds, joining, syncing];
        let watched: u64 = purgatories.iter().map(|stats| stats.delayed + stats.watched).sum();
        watched + self.fetches.1.pending + self.produces.1.pending
    }
}

/// Prints the results of a load: at its end, and after the shutdown.
pub(crate) fn print(done: &Done, end: &Snapshot, after: &Snapshot, answered: u64) {
    let Counts { requests, fetches, produces, records, .. } = end.counts;
    let others = requests - fetches - produces;
    let seconds = done.serving.as_secs_f64();
    println!("\nrequests   {requests} in {seconds:.1} s");
    println!("           {produces} produce, {fetches} fetch, {others} others");
    println!("records    {records} produced, {} consumed, in order", done.consumed);
    print_fetches(done, end);
    print_produces(end);
    print_groups(&end.groups);
    print_timers(end);
    println!(
        "shutdown   {answered} waiting requests answered; left: {} operations, watchers, timeouts",
        after.waiting()
    );
}

fn print_fetches(done: &Done, end: &Snapshot) {
    let (stats, timer) = &end.fetches;
    println!(
        "\nfetches    {} at once, {} waited: {} until there was data, {} until their time was over",
        stats.at_once,
        stats.satisfied + stats.expired,
        stats.satisfied,
        stats.expired
    );
    print_waits(stats);
    println!(
        "  late     50 % by {}, 99 % by {}, at most by {}",
        show(timer.lateness_percentile(50.0)),
        show(timer.lateness_percentile(99.0)),
        show(timer.lateness.max())
    );
    println!(
        "  clients  saw {} empty polls take {} to {}",
        done.polls.len(),
        show(done.polls.iter().min().copied().unwrap_or_default()),
        show(done.polls.iter().max().copied().unwrap_or_default())
    );
}

fn print_produces(end: &Snapshot) {
    let stats = &end.produces.0;
    println!(
        "\nproduce    {} waited for the follower: {} until it had the records, {} timed out",
        stats.satisfied + stats.expired,
        stats.satisfied,
        stats.expired
    );
    print_waits(stats);
}

fn print_waits(stats: &PurgatoryStats) {
    println!(
        "  waits    50 % {}, 90 % {}, 99 % {}, longest {}",
        show(stats.wait_percentile(50.0)),
        show(stats.wait_percentile(90.0)),
        show(stats.wait_percentile(99.0)),
        show(stats.waits.max())
    );
}

fn print_timers(end: &Snapshot) {
    println!("\ntimeouts   scheduled  cancelled    expired   cascades   wake-ups of the reaper");
    let timers =
        [("fetches", &end.fetches.1), ("produce", &end.produces.1), ("follower", &end.follower)];
    for (name, stats) in timers {
        println!(
            "  {name:<9}{:>9}{:>11}{:>11}{:>11}{:>11}",
            stats.scheduled, stats.cancelled, stats.expired, stats.cascades, stats.wakeups
        );
    }
}

/// Prints the statistics of consumer groups.
pub(crate) fn print_groups(stats: &GroupStats) {
    let GroupCounts { joins, rebalances, heartbeats, sessions_ended, left } = stats.counts;
    let groups = stats.groups;
    println!(
        "\ngroups     {groups} with {joins} joins, {rebalances} rebalances, {heartbeats} heartbeats"
    );
    println!(
        "  joins    {} waited: 50 % {}, longest {}",
        stats.joining.satisfied + stats.joining.expired,
        show(stats.joining.wait_percentile(50.0)),
        show(stats.joining.waits.max())
    );
    println!(
        "  rounds   {} ended with all members, {} when their time was over, late by at most {}",
        stats.rounds.satisfied,
        stats.rounds.expired,
        show(stats.timers[0].lateness.max())
    );
    println!(
        "  members  {left} left, {sessions_ended} sessions timed out, late by at most {}",
        show(stats.sessions.lateness.max())
    );
    println!("           {} wake-ups of the reaper of the sessions", stats.sessions.wakeups);
}

/// A duration with three digits.
fn show(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    let (number, unit) = match micros {
        0.0 => return "0".into(),
        micros if micros < 1e3 => (micros, "us"),
        micros if micros < 1e6 => (micros / 1e3, "ms"),
        micros => (micros / 1e6, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}
