//! The report of a run.

use std::time::Duration;

use delaywheel::PurgatoryStats;
use delaywheel_broker::broker::{Counts, GroupStats, Stats};

/// Prints what the clients of a load have seen.
pub(crate) fn print_load(records: i64, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("\nclients    {records} records read by a group, each once and in order");
    if let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) {
        println!("           {} idle long polls ended by a record", times.len());
        println!("           after {median:.1?} in the median, {longest:.1?} at most\n");
    }
}

/// Prints the statistics at the end of a run, and what is left after the shutdown.
pub(crate) fn print(end: &Stats, after: &Stats, answered: u64) {
    let Counts { requests, fetches, produces, records, rejected, .. } = end.counts;
    let Counts { joins, rebalances, sessions_ended, .. } = end.counts;
    let others = requests - fetches - produces;
    println!("requests   {requests}: {produces} produce, {fetches} fetch, {others} others");
    println!("records    {records} produced");
    println!("groups     {} left; {joins} joins, {rebalances} rebalances", end.groups.groups);
    println!("           {sessions_ended} sessions timed out");
    println!("refused    {rejected} connections closed because of their requests");
    println!("\nwaits       at once   complete  timed out     median       99 %    longest");
    let purgatories = |stats: &Stats| {
        let Stats { fetches, produces, groups, .. } = stats.clone();
        let GroupStats { rounds, requests, .. } = groups;
        [("fetches", fetches), ("produce", produces), ("rounds", rounds), ("members", requests)]
    };
    for (name, stats) in purgatories(end) {
        println!(
            "  {name:<8}{:>9}{:>11}{:>11}{:>11.1?}{:>11.1?}{:>11.1?}",
            stats.at_once,
            stats.satisfied,
            stats.expired,
            stats.waits.percentile(50.0),
            stats.waits.percentile(99.0),
            stats.waits.max()
        );
    }
    println!("\ntimeouts  scheduled  cancelled    expired  late 99 %    latest   wake-ups");
    let timers = purgatories(end).map(|(name, stats)| (name, stats.timer));
    let Stats { follower, incoming, groups, .. } = end.clone();
    let others = [("follower", follower), ("sessions", groups.sessions), ("incoming", incoming)];
    for (name, stats) in timers.into_iter().chain(others) {
        println!(
            "  {name:<8}{:>9}{:>11}{:>11}{:>11.1?}{:>10.1?}{:>11}",
            stats.scheduled,
            stats.cancelled,
            stats.expired,
            stats.lateness.percentile(99.0),
            stats.lateness.max(),
            stats.wakeups
        );
    }
    let waiting = |stats: PurgatoryStats| stats.delayed + stats.watched + stats.timer.pending;
    let waiting: u64 = purgatories(after).map(|(_, stats)| waiting(stats)).iter().sum();
    println!("\nshutdown   {answered} waiting requests answered; left: {waiting}");
}
