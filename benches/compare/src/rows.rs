//! Every row of the report: the sections that measure rows; their definitions and targets.
//!
//! The tables of `rows.md` are the definitions and targets.

use crate::measure::{futures, load, map, memory, purgatory, shared, timer, wheel};
use crate::prelude::*;

/// The cells of a table of `rows.md`, line by line.
fn table<const CELLS: usize>(head: &str) -> impl Iterator<Item = [&'static str; CELLS]> {
    let lines = include_str!("../rows.md").lines().skip_while(move |line| *line != head).skip(2);
    lines.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let cells: [&str; CELLS] = cells.try_into().expect("a line has as many cells as the head");
        cells.map(|cell| cell.trim().trim_matches('`'))
    })
}

/// Which figure of a row is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Best {
    Least,
    Greatest,
    Neither,
}

/// Unit and state of the rows below a path.
pub struct Definition {
    /// The path, without the size and other parameters.
    pub row: &'static str,
    pub unit: &'static str,
    pub best: Best,
    /// `fresh` or `steady`; empty for rows that count, or cover the whole life of a contestant.
    pub state: &'static str,
}

/// All definitions. The longest path that a row starts with decides.
static DEFINITIONS: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    let definition = |[row, unit, better, state, _]: [&'static str; 5]| {
        let best = match better {
            "less" => Best::Least,
            "more" => Best::Greatest,
            _ => Best::Neither,
        };
        Definition { row, unit, best, state }
    };
    table("| Row | Unit | Better | State | Definition |").map(definition).collect()
});

/// Measurements that are made together.
pub struct Section {
    /// Paths; its rows are at and below them.
    pub rows: &'static [&'static str],
    /// Measures all rows.
    pub run: fn(&mut Bench) -> Done,
}

const fn section(rows: &'static [&'static str], run: fn(&mut Bench) -> Done) -> Section {
    Section { rows, run }
}

/// All sections, in the order in which they run.
pub const SECTIONS: &[Section] = &[
    section(&["timer/pair", "timer/threads", "timer/reset"], shared::pairs),
    section(&["timer/oversubscribed", "purgatory/oversubscribed"], shared::oversubscribed),
    section(&["timer/burst"], timer::burst),
    section(&["timer/steady"], timer::steady),
    section(&["timer/crowd"], timer::crowd),
    section(&["timer/idle"], shared::idle),
    section(&["future"], futures::run),
    section(&["purgatory/closed"], purgatory::closed),
    section(&["purgatory/threads"], purgatory::threads),
    section(&["purgatory/load"], load::run),
    section(&["purgatory/late"], purgatory::late),
    section(&["wheel/churn", "wheel/reset"], wheel::churn),
    section(&["wheel/server", "wheel/keep_alive"], wheel::server),
    section(&["wheel/sparse"], wheel::sparse),
    section(&["map/pair", "map/over", "map/expire"], map::run),
    section(&["timer/memory", "purgatory/memory", "wheel/memory", map::MEMORY], memory::run),
];

/// Whether a path is `prefix` or lies below it. A segment `*` stands for any.
pub fn is_under(path: &str, prefix: &str) -> bool {
    let mut segments = path.split('/');
    let mut names = prefix.trim_end_matches('/').split('/');
    names.all(|name| segments.next().is_some_and(|segment| name == "*" || name == segment))
}

/// The section that measures a row, by its position.
pub fn section_of(row: &str) -> Option<usize> {
    SECTIONS.iter().position(|section| section.rows.iter().any(|path| is_under(row, path)))
}

pub fn definition(row: &str) -> &'static Definition {
    let known = DEFINITIONS.iter().filter(|definition| is_under(row, definition.row));
    let longest = known.max_by_key(|definition| definition.row.len());
    longest.unwrap_or_else(|| panic!("{row} has no definition"))
}

/// A bound on one of our figures, or on its quotient by another.
pub struct Target {
    pub row: &'static str,
    pub contestant: &'static str,
    /// The bound in words: `<= 0.9 of lazy_heap`.
    pub bound: &'static str,
}

pub static TARGETS: LazyLock<Vec<Target>> = LazyLock::new(|| {
    let target = |[row, contestant, bound]: [&'static str; 3]| Target { row, contestant, bound };
    table("| Row | Contestant | Bound |").map(target).collect()
});

impl Target {
    /// Judges a run: the figure or quotient, and whether the bound holds. `None` if the run lacks
    /// the figures.
    pub fn judge(&self, results: &Results) -> Option<(f64, bool)> {
        let ours = results.find(self.row, self.contestant)?.value();
        let (bound, peer) = self.bound.split_once(" of ").unwrap_or((self.bound, ""));
        let divisor = if peer.is_empty() { 1.0 } else { results.find(self.row, peer)?.value() };
        let value = ours / divisor;
        let number = |text: &str| text.parse::<f64>().expect("a bound is a number");
        let is_met = match bound.split_once(' ') {
            Some(("<=", most)) => value <= number(most),
            Some((">=", least)) => value >= number(least),
            _ => panic!("{} has a bound that is none: {bound}", self.row),
        };
        Some((value, is_met))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_definition_and_a_section() {
        assert!(DEFINITIONS.len() > 25 && TARGETS.len() > 10);
        let paths = || SECTIONS.iter().flat_map(|section| section.rows);
        for path in paths() {
            let is_defined = DEFINITIONS.iter().any(|definition| is_under(definition.row, path));
            assert!(is_defined, "{path}");
        }
        for definition in &*DEFINITIONS {
            let is_measured = paths().any(|path| is_under(definition.row, path));
            assert!(is_measured, "no section measures {}", definition.row);
            assert!(["", "fresh", "steady"].contains(&definition.state), "{}", definition.row);
        }
    }

    #[test]
    fn the_tables_describe_every_contestant() {
        let described = table::<3>("| Contestant | Structure | Besides |");
        let described = described.map(|[name, ..]| name.trim_matches('*'));
        let described =
            described.filter(|name| cfg!(tokio_unstable) || *name != "tokio alternative");
        assert!(described.eq(CONTESTANTS.iter().copied()));
    }

    #[test]
    fn the_longest_path_defines_a_row() {
        assert_eq!(definition("timer/burst/p99").unit, "ms");
        assert_eq!(definition("timer/burst/cpu").unit, "ns");
        assert!(is_under("wheel/churn/uniform/1e3", "wheel/churn"));
        assert!(!is_under("future/elapse_cpu/1e6", "future/elapse"));
        assert!(is_under("purgatory/late/1e6/event/p99", "purgatory/late/*/event"));
        assert!(!is_under("purgatory/late/cpu", "purgatory/late/*/event"));
    }

    #[test]
    fn a_target_is_a_bound_on_a_figure_or_on_a_quotient() {
        let figures = [("delaywheel", 3.0), ("lazy_heap", 4.0)];
        let figures = figures.map(|(name, value)| Figure::new("timer/pair/1e3", name, value));
        let results_of = |figures| Results { figures, ..Results::default() };
        let results = results_of(Vec::from(figures));
        let judge = |bound| {
            Target { row: "timer/pair/1e3", contestant: "delaywheel", bound }
                .judge(&results)
                .unwrap()
        };
        assert_eq!(judge("<= 3"), (3.0, true));
        assert_eq!(judge("<= 0.7 of lazy_heap"), (0.75, false));
        assert_eq!(judge(">= 3.1"), (3.0, false));
        for target in &*TARGETS {
            definition(target.row);
            let names = CONTESTANTS.iter().chain([&"tokio alternative"]);
            let figures = names.map(|name| Figure::new(target.row, *name, 1.0)).collect();
            assert!(target.judge(&results_of(figures)).is_some(), "{}", target.row);
        }
    }
}
