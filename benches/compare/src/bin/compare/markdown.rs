//! The tables, in Markdown: a row for each contestant, and in each column the best is bold.

use std::fmt::Write;

use delaywheel_compare::{
    side_by_side::{
        PEERS, names,
        results::{Contestant, Machine, Measurement, Results},
    },
    workload::{DAY, SECOND},
};

use crate::figures;

/// A column of figures.
struct Column<'a> {
    head: &'a str,
    workload: &'a str,
    /// Number of timeouts, or whatever the workload counts; the only one if `None`.
    n: Option<u64>,
    best: Best,
}

/// Which figure of a column is the best.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Best {
    Least,
    Greatest,
    /// None is better than others.
    Neither,
}

/// Figures that there are, to be shown in a document beside their folder.
pub(crate) fn figures(results: &Results) -> String {
    figures::captions(results).fold(String::new(), |mut text, (file, caption)| {
        write_to(&mut text, format_args!("![{caption}](figures/{file})\n\n"));
        text
    })
}

/// All tables.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = head(results);
    for n in sizes(results) {
        write_to(
            &mut text,
            format_args!(
                "Nanoseconds per operation with {n} pending:\n\n{}\n",
                operations(results, n)
            ),
        );
    }
    for (title, table) in [
        ("Servers, a sparse year, and memory:", steady(results)),
        (
            "What was seen in virtual time, and what contestants say of themselves:",
            promises(results),
        ),
        ("With threads of their own, in real time:", shared(results)),
    ] {
        write_to(&mut text, format_args!("{title}\n\n{table}\n"));
    }
    text.trim_end().to_owned() + "\n"
}

fn head(results: &Results) -> String {
    let Results { machine, run, .. } = results;
    let quick = if run.is_quick { " A quick run, whose figures mean nothing." } else { "" };
    format!(
        "{} with {} cores, {}, {}, commit {}. Seed {}, {} rounds, {} s.{quick}\n\nVersions: {}.\n\n",
        machine.cpu,
        machine.cores,
        machine.os,
        machine.rustc,
        if machine.commit.is_empty() { "unknown" } else { &machine.commit },
        run.seed,
        run.rounds,
        run.seconds,
        versions(machine).join(", "),
    )
}

/// Each peer with its version.
fn versions(machine: &Machine) -> Vec<String> {
    let versions = &machine.versions;
    let known = PEERS.iter().filter_map(|&peer| versions.get(peer).map(|version| (peer, version)));
    known.map(|(peer, version)| format!("{peer} {version}")).collect()
}

/// A thousand and a million, or the greatest number that there is.
fn sizes(results: &Results) -> Vec<u64> {
    let of_insert = results.of(names::INSERT);
    let has = |n: &u64| of_insert.iter().any(|found| found.n == *n);
    let sizes: Vec<_> = [1_000, 1_000_000].into_iter().filter(has).collect();
    if sizes.is_empty() {
        of_insert.iter().map(|found| found.n).max().into_iter().collect()
    } else {
        sizes
    }
}

fn operations(results: &Results, n: u64) -> String {
    let column = |head, workload| Column { head, workload, n: Some(n), best: Best::Least };
    let columns = [
        column("insert", names::INSERT),
        column("cancel+insert, uniform", names::CHURN_UNIFORM),
        column("cancel+insert, log-uniform", names::CHURN_LOG_UNIFORM),
        column("expire all", names::EXPIRE),
    ];
    table(results, &told(results), &columns)
}

fn steady(results: &Results) -> String {
    let column = |head, workload| Column { head, workload, n: None, best: Best::Least };
    let columns = [
        column("request server, ns", names::REQUESTS),
        column("keep-alive, ns", names::KEEP_ALIVE),
        column("wake-ups per timeout in a year", names::SPARSE_WAKEUPS),
        column("time for that year, us", names::SPARSE_TIME),
        column("bytes pending", names::MEMORY_PENDING),
        column("bytes at the peak", names::MEMORY_PEAK),
    ];
    table(results, &told(results), &columns)
}

fn shared(results: &Results) -> String {
    let column = |head, workload, n, best| Column { head, workload, n, best };
    let least = names::lateness("min");
    let (late, most) = (names::lateness("p99"), names::lateness("max"));
    let columns = [
        column("1 thread, M pairs/s", names::THREADS, Some(1), Best::Greatest),
        column("2 threads, M pairs/s", names::THREADS, Some(2), Best::Greatest),
        column("earliest, ms", &least, None, Best::Neither),
        column("lateness p50, ms", names::LATENESS, None, Best::Least),
        column("p99, ms", &late, None, Best::Least),
        column("latest, ms", &most, None, Best::Least),
        column("lost or doubled", names::MISSING, None, Best::Neither),
        column("threads", names::IDLE_THREADS, None, Best::Neither),
        column("idle switches a second", names::IDLE_SWITCHES, None, Best::Least),
        column("bytes pending", names::MEMORY_PENDING, None, Best::Least),
        column("bytes at the peak", names::MEMORY_PEAK, None, Best::Least),
    ];
    let shared: Vec<_> = results.contestants.iter().filter(|other| other.is_shared).collect();
    table(results, &shared, &columns)
}

/// Those who are told the time.
fn told(results: &Results) -> Vec<&Contestant> {
    results.contestants.iter().filter(|other| !other.is_shared).collect()
}

fn promises(results: &Results) -> String {
    let heads = [
        "what it is",
        "early by",
        "late by",
        "out of order",
        "lost",
        "of 100 cancelled, gone",
        "wake-ups in vain, one a minute ahead",
        "for a cancelled one",
        "furthest, as it says",
        "besides, as it says",
    ];
    let rule = "---|".repeat(heads.len());
    let mut text = format!("| | {} |\n|---|{rule}\n", heads.join(" | "));
    for contestant in told(results) {
        let seen = |workload, unit| {
            let found = find(results, contestant, workload, None);
            found.map_or_else(String::new, |found| format!("{}{unit}", figure(found)))
        };
        let cells = [
            contestant.scheme.clone(),
            seen(names::EARLY, " ms"),
            seen(names::LATE, " ms"),
            seen(names::UNORDERED, ""),
            seen(names::LOST, ""),
            seen(names::CANCELLED, ""),
            seen(names::VAIN_PENDING, ""),
            seen(names::VAIN_CANCELLED, ""),
            contestant.max_delay_ms.map_or_else(|| "any".to_owned(), span),
            contestant.describes.clone(),
        ];
        write_to(&mut text, format_args!("| {} | {} |\n", name(contestant), cells.join(" | ")));
    }
    text
}

/// A table of those contestants that have any of the figures.
fn table(results: &Results, contestants: &[&Contestant], columns: &[Column<'_>]) -> String {
    let heads: Vec<_> = columns.iter().map(|column| column.head).collect();
    let mut text = format!("| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(columns.len()));
    for contestant in contestants {
        let cells: Vec<_> =
            columns.iter().map(|column| cell(results, contestants, contestant, column)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            write_to(&mut text, format_args!("| {} | {} |\n", name(contestant), cells.join(" | ")));
        }
    }
    text
}

fn cell(
    results: &Results,
    contestants: &[&Contestant],
    contestant: &Contestant,
    column: &Column<'_>,
) -> String {
    let find = |contestant: &Contestant| find(results, contestant, column.workload, column.n);
    let Some(found) = find(contestant) else { return String::new() };
    let others = || contestants.iter().filter_map(|other| find(other)).map(|found| found.value);
    let best = match column.best {
        // A lateness below zero is early, and nothing to be proud of.
        Best::Least => others().filter(|value| *value >= 0.0).min_by(f64::total_cmp),
        Best::Greatest => others().max_by(f64::total_cmp),
        Best::Neither => None,
    };
    let is_best = best.is_some_and(|best| figure(found) == figures::number(best));
    if is_best { format!("**{}**", figure(found)) } else { figure(found) }
}

fn find<'a>(
    results: &'a Results,
    contestant: &Contestant,
    workload: &str,
    n: Option<u64>,
) -> Option<&'a Measurement> {
    results.measurements.iter().find(|found| {
        found.workload == workload
            && found.contestant == contestant.name
            && n.is_none_or(|n| n == found.n)
    })
}

/// A figure, with a mark if there is more to know of it.
fn figure(found: &Measurement) -> String {
    let about = if found.note.is_some() { "≈ " } else { "" };
    format!("{about}{}", figures::number(found.value))
}

fn name(contestant: &Contestant) -> String {
    if contestant.is_ours { format!("**{}**", contestant.name) } else { contestant.name.clone() }
}

/// A span of time in the unit that suits it.
fn span(millis: u64) -> String {
    let units = [(1, "ms"), (SECOND, "s"), (60 * SECOND, "min"), (60 * 60 * SECOND, "h")];
    let units = units.into_iter().chain([(DAY, "days"), (365 * DAY, "years")]);
    // The greatest unit of which there are two or more.
    let suits = units.rev().find(|(unit, _)| millis >= 2 * unit);
    let (unit, name) = suits.unwrap_or((1, "ms"));
    format!("{} {name}", (millis + unit / 2) / unit)
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_in_the_unit_that_suits_them() {
        let spans = [1, 100, 4_096, 300_000, 2 * DAY, (1 << 36) - 1].map(span);
        assert_eq!(spans, ["1 ms", "100 ms", "4 s", "5 min", "2 days", "2 years"]);
    }
}
