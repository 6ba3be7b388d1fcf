//! The report: rows as text, tables in Markdown, and the part of the documentation that is made
//! from results.

use std::{error::Error, fmt::Write, fs, path::Path};

use crate::{
    bench::{Contestant, Figure, Results, Scale},
    figures,
    rows::{self, Best, TARGETS},
};

/// A row for each figure: ours first, then the others, the best first, each with our multiple of
/// it.
pub fn text(results: &Results) -> String {
    let mut text = head(results) + "\n\n";
    for row in paths(results) {
        let definition = rows::definition(row);
        let (mut ours, mut others): (Vec<_>, Vec<_>) =
            results.row(row).partition(|figure| is_ours(&figure.contestant));
        let order = |one: &&Figure, other: &&Figure| {
            let ascending = one.value().total_cmp(&other.value());
            if definition.best == Best::Greatest { ascending.reverse() } else { ascending }
        };
        ours.sort_by(order);
        others.sort_by(order);
        let first = ours.first().map(|figure| figure.value());
        let state = if definition.state.is_empty() { "" } else { ", " };
        write_to(&mut text, format_args!("{row} [{}{state}{}]", definition.unit, definition.state));
        for figure in ours {
            write_to(&mut text, format_args!("  {} {}", figure.contestant, cell(figure)));
        }
        for figure in others {
            write_to(&mut text, format_args!(" | {} {}", figure.contestant, cell(figure)));
            if let Some(first) = first {
                write_to(&mut text, format_args!(" ({:.2}x)", first / figure.value()));
            }
        }
        text.push('\n');
    }
    let (verdicts, missed) = verdicts(results);
    write_to(&mut text, format_args!("\n{verdicts}{missed} targets missed\n"));
    text
}

/// The paths of all rows, in the order in which they were measured.
fn paths(results: &Results) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for figure in &results.figures {
        if !all.contains(&figure.row.as_str()) {
            all.push(&figure.row);
        }
    }
    all
}

/// A line for each target of which the run has the figures, and how many are missed.
pub fn verdicts(results: &Results) -> (String, usize) {
    let (mut text, mut missed) = (String::new(), 0);
    for target in TARGETS.iter() {
        let Some((value, is_met)) = target.judge(results) else { continue };
        let word = if is_met { "ok" } else { "MISSED" };
        let (row, name, value, bound) =
            (target.row, target.contestant, number(value), target.bound);
        write_to(&mut text, format_args!("target {row} {name}: {value} {bound} {word}\n"));
        missed += usize::from(!is_met);
    }
    (text, missed)
}

/// Machine, date, load, and what else a figure depends on.
fn head(results: &Results) -> String {
    let fact = |name: &str| results.machine.get(name).map_or("unknown", String::as_str);
    let mut text = format!(
        "{} with {} cores, {}, {}, commit {}, {}. Seed {}, {} rounds, {} s.",
        fact("cpu"),
        fact("cores"),
        fact("system"),
        fact("rustc"),
        fact("commit"),
        fact("date"),
        results.seed,
        results.rounds,
        results.seconds,
    );
    let loads = results.sections.iter().filter_map(|ran| Some((ran.others?, ran)));
    let (sum, seconds) = loads.clone().fold((0.0, 0.0), |(sum, seconds), (others, ran)| {
        (sum + others * ran.seconds, seconds + ran.seconds)
    });
    if let Some((most, ran)) = loads.max_by(|one, other| one.0.total_cmp(&other.0)) {
        let mean = 100.0 * sum / seconds;
        let (most, name) = (100.0 * most, &ran.name);
        write_to(
            &mut text,
            format_args!(
                " Other processes used {mean:.0} % of the processors, at most {most:.0} % in {name}."
            ),
        );
    }
    if results.scale == Scale::Smoke {
        text.push_str(" A smoke run: the figures mean nothing.");
    }
    write_to(&mut text, format_args!("\n\nVersions: {}.", fact("versions")));
    text
}

/// Whether a contestant is of this repository.
pub fn is_ours(contestant: &str) -> bool {
    contestant.starts_with("delaywheel")
}

/// A table of the documentation: its title, and prefixes of its rows, each with a heading.
type Table = (&'static str, &'static [(&'static str, &'static str)]);

/// The tables for each size: title and size.
const SIZES: [(&str, &str); 3] = [
    ("Nanoseconds with 1000 timeouts:", "1e3"),
    ("With 100,000:", "1e5"),
    ("With 1,000,000:", "1e6"),
];

/// The rows of these tables, without the size.
const SIZED: [(&str, &str); 7] = [
    ("wheel/insert", "insert, fresh"),
    ("wheel/expire", "expire all, fresh"),
    ("wheel/churn_fresh/uniform", "cancel+insert, fresh"),
    ("wheel/churn/uniform", "cancel+insert, steady"),
    ("wheel/churn_fresh/log-uniform", "up to a month, fresh"),
    ("wheel/churn/log-uniform", "up to a month, steady"),
    ("wheel/reset_fresh/uniform", "reset, fresh"),
];

/// The other tables with a line for each contestant.
const TABLES: &[Table] = &[
    (
        "Servers in the steady state, a sparse year, and memory:",
        &[
            ("wheel/server/random", "request server, random, ns"),
            ("wheel/server/oldest", "oldest first, ns"),
            ("wheel/keep_alive", "keep-alive, ns"),
            ("wheel/sparse/wakeups", "wake-ups per timeout in a year"),
            ("wheel/sparse/time", "time for that year, us"),
            ("wheel/memory/pending", "bytes pending"),
            ("wheel/memory/peak/random", "bytes at the peak"),
            ("wheel/memory/one", "bytes with one timeout"),
        ],
    ),
    (
        "Measured in virtual time:",
        &[
            ("seen/early", "early by, ms"),
            ("seen/late", "late by, ms"),
            ("seen/unordered", "out of order"),
            ("seen/lost", "lost"),
            ("seen/cancelled", "of 100 cancelled, gone"),
            ("seen/wakeups_one", "idle wake-ups, one pending"),
            ("seen/wakeups_none", "the same, cancelled"),
        ],
    ),
    (
        "Longest calls, in microseconds:",
        &[
            ("wheel/advance/p99.9", "advance by 10 ms, p99.9"),
            ("wheel/advance/max", "longest"),
            ("wheel/cancel/p99.99", "cancel, p99.99"),
            ("wheel/cancel/max", "longest"),
            ("wheel/grow/p99.99", "insert, p99.99"),
            ("wheel/grow/max", "longest"),
        ],
    ),
    (
        "With threads of their own, in real time:",
        &[
            ("timer/pair/1e3", "pair, 1000, ns"),
            ("timer/pair/1e5", "100,000, ns"),
            ("timer/pair/1e6", "1,000,000, ns"),
            ("timer/threads/1", "1 thread, M pairs/s"),
            ("timer/threads/2", "2 threads"),
            ("timer/threads/4", "4 threads"),
            ("timer/lateness/min", "earliest, ms"),
            ("timer/lateness/p50", "lateness p50, ms"),
            ("timer/lateness/p99", "p99, ms"),
            ("timer/faults", "lost or doubled"),
            ("timer/idle/switches", "idle switches a second"),
            ("timer/memory/pending", "bytes pending"),
            ("timer/memory/peak", "bytes at the peak"),
        ],
    ),
    (
        "With 16 threads on all processors:",
        &[
            ("timer/oversubscribed/p50", "lateness p50, ms"),
            ("timer/oversubscribed/p99", "p99, ms"),
            ("timer/oversubscribed/max", "latest, ms"),
            ("timer/oversubscribed/pair/p99.9", "a pair, p99.9, us"),
        ],
    ),
];

/// Prefixes of rows that are about this crate alone; they share a table with a line for each row.
const OWN: &[&str] = &[
    "wheel/century",
    "wheel/memory/left",
    "timer/clock",
    "timer/scaling",
    "timer/idle/wakeups",
    "timer/idle/cancelled",
    "timer/burst",
    "timer/steady",
    "timer/fine",
    "timer/crowd",
    "timer/slow",
    "timer/memory/bare",
    "purgatory",
];

/// The tables in Markdown.
pub fn markdown(results: &Results) -> String {
    let mut text = head(results) + "\n\n";
    let sized = SIZES.map(|(title, size)| {
        (title, SIZED.map(|(row, head)| (format!("{row}/{size}"), head)).to_vec())
    });
    let others = TABLES.iter().map(|(title, columns)| {
        (*title, columns.iter().map(|(row, head)| ((*row).to_owned(), *head)).collect::<Vec<_>>())
    });
    for (title, columns) in sized.into_iter().chain(others) {
        let table = table(results, &columns);
        if !table.is_empty() {
            write_to(&mut text, format_args!("{title}\n\n{table}\n"));
        }
    }
    write_to(&mut text, format_args!("This crate alone:\n\n{}\n", own_table(results)));
    write_to(&mut text, format_args!("Contestants:\n\n{}\n", contestants(results)));
    let (_, missed) = verdicts(results);
    write_to(
        &mut text,
        format_args!("Targets, of which {missed} are missed:\n\n{}", target_table(results)),
    );
    text
}

fn table(results: &Results, columns: &[(String, &str)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    let columns: Vec<_> =
        columns.iter().filter(|(row, _)| results.row(row).next().is_some()).collect();
    for (row, _) in &columns {
        for figure in results.row(row) {
            if !names.contains(&figure.contestant.as_str()) {
                names.push(&figure.contestant);
            }
        }
    }
    if columns.is_empty() {
        return String::new();
    }
    let position = |name: &&str| {
        let known = results.contestants.iter().position(|one| one.name == *name);
        (!is_ours(name), known.unwrap_or(usize::MAX))
    };
    names.sort_by_key(position);
    let heads: Vec<_> = columns.iter().map(|(_, head)| *head).collect();
    let mut text = format!("| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for name in names {
        let cells: Vec<_> =
            columns.iter().map(|(row, _)| marked_cell(results, row, name)).collect();
        write_to(&mut text, format_args!("| {} | {} |\n", strong(name), cells.join(" | ")));
    }
    text
}

/// A figure, bold if it is the best of its row.
fn marked_cell(results: &Results, row: &str, name: &str) -> String {
    let Some(figure) = results.find(row, name) else { return String::new() };
    // A lateness below zero is early, which is not better.
    let values = results.row(row).map(Figure::value).filter(|value| *value >= 0.0);
    let best = match rows::definition(row).best {
        Best::Least => values.reduce(f64::min),
        Best::Greatest => values.reduce(f64::max),
        Best::Neither => None,
    };
    let is_best = best.is_some_and(|best| number(best) == number(figure.value()));
    if is_best { format!("**{}**", cell(figure)) } else { cell(figure) }
}

fn own_table(results: &Results) -> String {
    let mut text = "| Row | | Figures |\n|---|---|---|\n".to_owned();
    let is_own = |row: &&str| OWN.iter().any(|prefix| rows::is_under(row, prefix));
    for row in paths(results).into_iter().filter(is_own) {
        let one = |figure: &Figure| match figure.contestant.as_str() {
            "delaywheel" => cell(figure),
            name => format!("{} {}", name.trim_start_matches("delaywheel "), cell(figure)),
        };
        let figures: Vec<_> = results.row(row).map(one).collect();
        let definition = rows::definition(row);
        let (state, unit) = (definition.state, definition.unit);
        write_to(
            &mut text,
            format_args!("| `{row}` | {state} | {} {unit} |\n", figures.join(", ")),
        );
    }
    text
}

fn contestants(results: &Results) -> String {
    let mut text = "| | Structure | Longest delay | Besides |\n|---|---|---|---|\n".to_owned();
    for Contestant { name, scheme, describes, max_delay, .. } in &results.contestants {
        let longest = max_delay.map_or_else(|| "any".to_owned(), span);
        write_to(
            &mut text,
            format_args!("| {} | {scheme} | {longest} | {describes} |\n", strong(name)),
        );
    }
    text
}

fn target_table(results: &Results) -> String {
    let mut text = "| Row | Contestant | Measured | Target | |\n|---|---|---|---|---|\n".to_owned();
    for target in TARGETS.iter() {
        if let Some((value, is_met)) = target.judge(results) {
            let word = if is_met { "met" } else { "**missed**" };
            let (row, name, value, bound) =
                (target.row, target.contestant, number(value), target.bound);
            write_to(
                &mut text,
                format_args!("| `{row}` | {name} | {value} | {bound} | {word} |\n"),
            );
        }
    }
    text
}

fn strong(name: &str) -> String {
    if is_ours(name) { format!("**{name}**") } else { name.to_owned() }
}

fn cell(figure: &Figure) -> String {
    let about = if figure.note.is_some() { "≈ " } else { "" };
    format!("{about}{}", number(figure.value()))
}

/// A number with three or four digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size < 1e4 && size.fract() == 0.0 => format!("{value}"),
        size if size >= 1e9 => format!("{:.1}G", value / 1e9),
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e4 => format!("{:.1}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Milliseconds in the greatest unit of which there are two or more.
fn span(millis: u64) -> String {
    let units = [(1, "ms"), (1_000, "s"), (60_000, "min"), (3_600_000, "h"), (86_400_000, "days")];
    let units = units.into_iter().chain([(365 * 86_400_000, "years")]);
    let (unit, name) = units.rev().find(|(unit, _)| millis >= 2 * unit).unwrap_or((1, "ms"));
    format!("{} {name}", (millis + unit / 2) / unit)
}

/// Replaces the generated parts of `docs/benchmarks.md`, and the pictures beside it.
pub fn update_docs(results: &Results, root: &Path) -> Result<(), Box<dyn Error>> {
    let path = root.join("docs/benchmarks.md");
    let text = fs::read_to_string(&path)?;
    let pictures = figures::draw_all(results, &root.join("docs/figures"))?;
    let pictures = pictures.iter().fold(String::new(), |text, (file, caption)| {
        format!("{text}![{caption}](figures/{file})\n\n")
    });
    let made = pictures + &markdown(results);
    let text = replaced(&text, &made)
        .ok_or_else(|| format!("{} has no place for results", path.display()))?;
    fs::write(path, text)?;
    Ok(())
}

const BEGIN: &str = "<!-- begin results, made by compare -->";
const END: &str = "<!-- end results, made by compare -->";

/// Replaces the text between the marks.
fn replaced(text: &str, made: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", made.trim_end()))
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_the_documentation_are_replaced_and_nothing_else() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks.md");
        let text = &*fs::read_to_string(path).unwrap();
        let updated = replaced(text, "new\n").unwrap();
        assert!(updated.contains(&format!("{BEGIN}\n\nnew\n\n{END}")));
        assert_eq!(updated.split(BEGIN).next(), text.split(BEGIN).next());
        assert_eq!(updated.split(END).last(), text.split(END).last());
        assert_eq!(replaced("no place", "new\n"), None);
    }

    #[test]
    fn numbers_have_three_or_four_digits() {
        let numbers =
            [0.0, 2.0, 0.004_2, 1.234, 12.34, 5_399.3, 19_730.0, 117_000.0, 3.154e7, -0.79];
        let expected =
            ["0", "2", "0.0042", "1.23", "12.3", "5399", "19.7k", "117.0k", "31.5M", "-0.79"];
        assert_eq!(numbers.map(number), expected);
        let spans = [1, 100, 4_096, 300_000, 2 * 86_400_000, (1 << 36) - 1].map(span);
        assert_eq!(spans, ["1 ms", "100 ms", "4 s", "5 min", "2 days", "2 years"]);
    }
}
