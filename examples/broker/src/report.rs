//! The report of a load.

use std::time::Duration;

use delaywheel_broker::broker::{Counts, GroupStats, Stats};

use crate::load::Done;

/// Returns the number of all operations, watchers and timeouts that wait.
pub(crate) fn waiting(stats: &Stats) -> u64 {
    let GroupStats { rounds, requests, .. } = &stats.groups;
    let all = [&stats.fetches, &stats.produces, rounds, requests];
    all.iter().map(|(stats, timer)| stats.delayed + stats.watched + timer.pending).sum()
}

/// Prints the results of a load at its end, and those after the shutdown.
pub(crate) fn print(done: &Done, end: &Stats, after: &Stats, answered: u64) {
    let Counts { requests, fetches, produces, records, .. } = end.counts;
    let others = requests - fetches - produces;
    println!("\nrequests   {requests} in {:.1} s", done.serving.as_secs_f64());
    println!("           {produces} produce, {fetches} fetch, {others} others");
    println!("records    {records} produced, {} consumed, in order", done.consumed);
    println!(
        "polls      {} empty ones took {} to {}, as their clients saw it",
        done.polls.len(),
        show(done.polls.iter().min().copied().unwrap_or_default()),
        show(done.polls.iter().max().copied().unwrap_or_default())
    );
    println!();
    print_counts(end);
    println!("\nwaits       at once   complete  timed out     median       99 %    longest");
    let GroupStats { rounds, requests, sessions, .. } = &end.groups;
    let purgatories = [
        ("fetches", &end.fetches),
        ("produce", &end.produces),
        ("rounds", rounds),
        ("members", requests),
    ];
    for (name, (stats, _)) in purgatories {
        println!(
            "  {name:<8}{:>9}{:>11}{:>11}{:>11}{:>11}{:>11}",
            stats.at_once,
            stats.satisfied,
            stats.expired,
            show(stats.wait_percentile(50.0)),
            show(stats.wait_percentile(99.0)),
            show(stats.waits.max())
        );
    }
    println!("\ntimeouts  scheduled  cancelled    expired  late 99 %    latest   wake-ups");
    let timers = purgatories.map(|(name, (_, timer))| (name, timer));
    for (name, stats) in
        timers.into_iter().chain([("follower", &end.follower), ("sessions", sessions)])
    {
        println!(
            "  {name:<8}{:>9}{:>11}{:>11}{:>11}{:>10}{:>11}",
            stats.scheduled,
            stats.cancelled,
            stats.expired,
            show(stats.lateness_percentile(99.0)),
            show(stats.lateness.max()),
            stats.wakeups
        );
    }
    println!(
        "\nshutdown   {answered} waiting requests answered; left: {} operations, watchers, timeouts",
        waiting(after)
    );
}

/// Prints the counts of consumer groups, how late the broker ended rounds and sessions, and how
/// many connections it closed.
pub(crate) fn print_counts(stats: &Stats) {
    let GroupStats { groups, rounds, sessions, .. } = &stats.groups;
    let Counts { joins, rebalances, heartbeats, sessions_ended, left, rejected, .. } = stats.counts;
    println!(
        "groups     {groups} left; {joins} joins, {rebalances} rebalances, {heartbeats} heartbeats
           {} rounds timed out, late by at most {}
           {left} members left, {sessions_ended} sessions timed out, late by at most {}
refused    {rejected} connections closed because of their requests",
        rounds.0.expired,
        show(rounds.1.lateness.max()),
        show(sessions.lateness.max())
    );
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
