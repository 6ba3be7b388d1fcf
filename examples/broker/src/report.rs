//! The report of a load, for people to read.

use std::time::Duration;

use cpu_time::ProcessTime;
use delaywheel::{TimerStats, purgatory::PurgatoryStats};
use delaywheel_broker::broker::{Broker, Counts, GroupCounts, GroupStats};

use crate::{cpu::Cpu, load::Done};

/// What a broker holds and has done, at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    counts: Counts,
    fetches: PurgatoryStats,
    fetch_timer: TimerStats,
    produces: PurgatoryStats,
    produce_timer: TimerStats,
    follower_timer: TimerStats,
    groups: GroupStats,
}

impl Snapshot {
    pub(crate) fn of(broker: &Broker) -> Self {
        let (fetches, fetch_timer) = broker.fetches();
        let (produces, produce_timer) = broker.produces();
        let (counts, follower_timer) = (broker.counts(), broker.follower_timer());
        let groups = broker.groups();
        Self { counts, fetches, fetch_timer, produces, produce_timer, follower_timer, groups }
    }

    /// Everything that is left anywhere: operations, watchers, timeouts.
    pub(crate) fn waiting(&self) -> u64 {
        let purgatories = [&self.fetches, &self.produces];
        let watched: u64 = purgatories.iter().map(|stats| stats.delayed + stats.watched).sum();
        let groups = &self.groups;
        let requests = [&groups.rounds, &groups.joining, &groups.syncing];
        let waiting: u64 = requests.iter().map(|stats| stats.delayed + stats.watched).sum();
        watched + waiting + self.fetch_timer.pending + self.produce_timer.pending
    }
}

/// Prints what the columns of the progress are.
pub(crate) fn print_heading() {
    println!("\nseconds   requests    records   consumed    waiting    expired   wake-ups");
}

/// Prints a line of progress.
pub(crate) fn print_progress(elapsed: Duration, broker: &Broker, consumed: u64) {
    let now = Snapshot::of(broker);
    println!(
        "{:>7.1}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}",
        elapsed.as_secs_f64(),
        now.counts.requests,
        now.counts.records,
        consumed,
        now.fetches.delayed + now.produces.delayed,
        now.fetches.expired + now.produces.expired,
        now.fetch_timer.wakeups + now.produce_timer.wakeups,
    );
}

/// Prints what came of a load: at its end, and after the shutdown.
pub(crate) fn print(done: &Done, end: &Snapshot, after: &Snapshot, answered: u64) {
    let Counts { requests, fetches, produces, records, .. } = end.counts;
    let others = requests - fetches - produces;
    println!("\nrequests   {requests}, {:.0} a second", per_second(requests, done.serving));
    println!("           {produces} produce, {fetches} fetch, {others} others");
    println!("records    {records} produced, {} consumed, in order", done.consumed);
    print_fetches(done, end);
    print_produces(end);
    print_groups(&end.groups);
    print_wake_ups(end);
    println!(
        "shutdown   {answered} waiting requests answered; left: {} operations, watchers, timeouts",
        after.waiting()
    );
}

fn print_fetches(done: &Done, end: &Snapshot) {
    let stats = &end.fetches;
    println!(
        "\nfetches    {} at once, {} waited: {} until there was data, {} until their time was over",
        stats.at_once,
        stats.waits.count(),
        stats.satisfied,
        stats.expired
    );
    print_waits(stats);
    let late = &end.fetch_timer;
    println!(
        "  late     50 % by {}, 99 % by {}, at most by {}",
        show(late.lateness_percentile(50.0)),
        show(late.lateness_percentile(99.0)),
        show(late.lateness.max())
    );
    println!(
        "  clients  saw {} empty polls take {} to {}",
        done.polls.count,
        show(done.polls.shortest),
        show(done.polls.longest)
    );
}

fn print_produces(end: &Snapshot) {
    let stats = &end.produces;
    println!(
        "\nproduce    {} waited for the follower: {} until it had the records, {} in vain",
        stats.waits.count(),
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

fn print_wake_ups(end: &Snapshot) {
    println!("\ntimeouts   scheduled  cancelled    expired   cascades   wake-ups of the reaper");
    let timers = [
        ("fetches", &end.fetch_timer),
        ("produce", &end.produce_timer),
        ("follower", &end.follower_timer),
    ];
    for (name, stats) in timers {
        println!(
            "  {name:<9}{:>9}{:>11}{:>11}{:>11}{:>11}",
            stats.scheduled, stats.cancelled, stats.expired, stats.cascades, stats.wakeups
        );
    }
}

/// Prints what consumer groups have done.
pub(crate) fn print_groups(stats: &GroupStats) {
    let GroupCounts { joins, rebalances, heartbeats, sessions_ended, left } = stats.counts;
    let groups = stats.groups;
    println!(
        "\ngroups     {groups} with {joins} joins, {rebalances} rebalances, {heartbeats} heartbeats"
    );
    println!(
        "  joins    {} waited: 50 % {}, longest {}",
        stats.joining.waits.count(),
        show(stats.joining.wait_percentile(50.0)),
        show(stats.joining.waits.max())
    );
    println!(
        "  rounds   {} ended with all members, {} when their time was over, at most {} late",
        stats.rounds.satisfied,
        stats.rounds.expired,
        show(stats.timers[0].lateness.max())
    );
    println!(
        "  members  {left} left, {sessions_ended} sessions timed out, at most {} late; {} wake-ups",
        show(stats.sessions.lateness.max()),
        stats.sessions.wakeups
    );
}

/// Prints CPU time for each request, by whose threads it was.
pub(crate) fn print_cpu(end: &Snapshot, broker: &Cpu, clients: &Cpu) {
    let Ok(all) = ProcessTime::try_now() else { return };
    let (broker, clients) = (broker.total(), clients.total());
    let others = all.as_duration().saturating_sub(broker + clients);
    let each = |time: Duration| show(time.div_f64(to_f64(end.counts.requests.max(1))));
    println!(
        "\nCPU        for each request: {} in the broker, {} in the timers' threads, {} in clients",
        each(broker),
        each(others),
        each(clients)
    );
}

/// A duration with three digits.
fn show(duration: Duration) -> String {
    if duration.is_zero() {
        return "0".into();
    }
    let micros = duration.as_secs_f64() * 1e6;
    let digits = |number: f64| if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    let (number, unit) = match micros {
        micros if micros < 1e3 => (micros, "us"),
        micros if micros < 1e6 => (micros / 1e3, "ms"),
        micros => (micros / 1e6, "s"),
    };
    format!("{number:.*} {unit}", digits(number))
}

fn per_second(count: u64, time: Duration) -> f64 {
    to_f64(count) / time.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn to_f64(count: u64) -> f64 {
    count as f64
}
