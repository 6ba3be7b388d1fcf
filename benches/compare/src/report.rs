//! The report: rows as text, tables in Markdown, and the part of the documentation that is made
//! from results.

use std::iter;

use crate::prelude::*;
use crate::{
    figures,
    rows::{Best, Definition, TARGETS, Target},
};

/// All rows, and the targets.
pub fn text(results: &Results) -> String {
    let (rows, targets) = (rows_table(results, &paths(results)), target_table(results, false));
    format!("{}\n\n{rows}\n{targets}\n{} targets missed\n", head(results), missed(results))
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

/// The targets of which the run has the figures, each with the figure and whether the bound holds.
fn verdicts(results: &Results) -> impl Iterator<Item = (&'static Target, f64, bool)> {
    TARGETS.iter().filter_map(|target| {
        let (value, is_met) = target.judge(results)?;
        Some((target, value, is_met))
    })
}

pub fn missed(results: &Results) -> usize {
    verdicts(results).filter(|(_, _, is_met)| !is_met).count()
}

/// Machine, date, load, and what else a figure depends on.
pub fn head(results: &Results) -> String {
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
        text += &format!(
            " Other processes used {mean:.0} % of the processors, at most {most:.0} % in {name}."
        );
    }
    if results.is_smoke {
        text += " A smoke run: the figures mean nothing.";
    }
    let versions = format!("Versions: {}.", fact("versions"));
    let separator = textwrap::WordSeparator::AsciiSpace;
    let options = textwrap::Options::new(120).word_separator(separator);
    [text, versions].map(|text| textwrap::fill(&text, &options)).join("\n\n")
}

/// The position of a contestant among all.
pub fn position(contestant: &str) -> Option<usize> {
    CONTESTANTS.iter().position(|one| *one == contestant)
}

/// Whether a contestant is of this repository.
pub fn is_ours(contestant: &str) -> bool {
    contestant.starts_with("delaywheel")
}

/// The tables of the page: their titles, and the paths of their rows. Those that users see are
/// first.
const PAGE: &[(&str, &str)] = &[
    ("A timer, one thread or several", "timer/pair timer/reset timer/threads"),
    ("Late beside 2 to 16 threads that cancel and schedule", "timer/oversubscribed/*/p99"),
    ("The slowest of their pairs", "timer/oversubscribed/pair"),
    ("Sleeps and timeouts of futures", "future"),
    (
        "A purgatory",
        "purgatory/closed purgatory/threads purgatory/load/sustained purgatory/load/cpu \
         purgatory/load/past/done purgatory/load/past/cpu_of_half purgatory/oversubscribed/*/p99 \
         purgatory/late/*/*/p99 purgatory/memory",
    ),
    ("A burst, a steady load, a crowd", "timer/burst timer/steady timer/crowd"),
    ("An idle timer", "timer/idle"),
    ("Maps", "map"),
    ("Heap bytes of one timeout", "timer/memory"),
    ("A bare wheel", "wheel/churn wheel/reset"),
    ("A bare wheel in a server", "wheel/server wheel/keep_alive wheel/sparse"),
    ("Heap bytes of one timeout of a bare wheel", "wheel/memory"),
];

/// The part of the page that is made from results.
pub fn page(results: &Results) -> String {
    let mut text = head(results) + "\n\n";
    for (title, prefixes) in PAGE {
        let below =
            |prefix| paths(results).into_iter().filter(move |row| rows::is_under(row, prefix));
        let rows: Vec<_> = prefixes.split(' ').flat_map(below).collect();
        if !rows.is_empty() {
            text += &format!("{title}:\n\n{}\n", best_table(results, &rows));
        }
    }
    let (targets, missed) = (verdicts(results).count(), missed(results));
    text += &format!("Of {targets} targets, {missed} are missed");
    if missed == 0 { text + ".\n" } else { text + ":\n\n" + &target_table(results, true) }
}

/// A line for each contestant, or for each row if there are few contestants.
fn best_table(results: &Results, rows: &[&str]) -> String {
    let figures = rows.iter().flat_map(|row| results.row(row));
    let mut names: Vec<&str> = figures.map(|figure| &*figure.contestant).collect();
    names.sort_by_key(|name| (!is_ours(name), position(name).unwrap_or(usize::MAX)));
    names.dedup();
    if names.len() > 3 { table(results, rows, &names) } else { rows_table(results, rows) }
}

/// A Markdown table.
pub fn markdown_table(head: &[&str], lines: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    // Markdown needs no space for an empty cell of a head.
    head.replace("|  |", "| |") + &lines.into_iter().map(|cells| line(&cells)).collect::<String>()
}

/// A line for each contestant, and a column for each row.
fn table(results: &Results, rows: &[&str], names: &[&str]) -> String {
    let head = |row: &&str| {
        let (_, path) = row.split_once('/').unwrap_or(("", row));
        format!("{path}, {}", rows::definition(row).unit)
    };
    let heads: Vec<_> = iter::once(String::new()).chain(rows.iter().map(head)).collect();
    let line = |name: &&str| {
        let cells = rows.iter().map(|row| marked_cell(results, row, name));
        iter::once(strong(name)).chain(cells).collect()
    };
    markdown_table(&heads.iter().map(String::as_str).collect::<Vec<_>>(), names.iter().map(line))
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

/// A line for each row, with all figures.
fn rows_table(results: &Results, rows: &[&str]) -> String {
    let cell = |figure: &Figure| match &*figure.contestant {
        "delaywheel" => cell(figure),
        name => format!("{} {}", name.trim_start_matches("delaywheel "), cell(figure)),
    };
    let line = |row: &&str| {
        let figures: Vec<_> = results.row(row).map(cell).collect();
        let Definition { state, unit, .. } = rows::definition(row);
        vec![format!("`{row}`"), (*state).to_owned(), format!("{} {unit}", figures.join(", "))]
    };
    markdown_table(&["Row", "", "Figures"], rows.iter().map(line))
}

fn target_table(results: &Results, only_missed: bool) -> String {
    let shown = verdicts(results).filter(|(_, _, is_met)| !(only_missed && *is_met));
    let line = |(target, value, is_met): (&Target, f64, bool)| {
        let word = if is_met { "met" } else { "**missed**" };
        let row = format!("`{}`", target.row);
        [&row, target.contestant, &number(value), target.bound, word].map(str::to_owned).into()
    };
    let head = ["Row", "Contestant", "Measured", "Target", ""];
    markdown_table(&head, shown.map(line))
}

fn strong(name: &str) -> String {
    if is_ours(name) { format!("**{name}**") } else { name.to_owned() }
}

/// A figure, marked if it has a caveat.
pub fn cell(figure: &Figure) -> String {
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

/// Replaces the generated parts of `docs/benchmarks.md`, and the pictures beside it.
pub fn update_docs(results: &Results, root: &Path) -> Result<(), Box<dyn Error>> {
    let path = root.join("docs/benchmarks.md");
    let text = fs::read_to_string(&path)?;
    let pictures = figures::draw_all(results, &root.join("docs/figures"))?;
    let pictures = pictures.iter().fold(String::new(), |text, (file, caption)| {
        format!("{text}![{caption}](figures/{file})\n\n")
    });
    let made = pictures + &page(results);
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
    }
}
