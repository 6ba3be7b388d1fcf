//! Two commits in one run: this program, and the program of another commit.
//!
//! The two take turns section by section and round by round, each in a process of its own, with the
//! same seeds. So both see the same load. A ratio is the median over the rounds of the quotients of
//! neighbours; above 1 this commit takes more, or does less.

use std::process::{Command, Stdio};

use crate::prelude::*;
use crate::{
    bench::Ran,
    os::Load,
    report::{head, is_ours, markdown_table, number},
    rows::Best,
};

/// Our contestants, whose figures both programs have.
#[derive(Default)]
struct Compared {
    /// Row, contestant, and the figures of each round: of the other commit, and of this one.
    rows: Vec<(String, String, [Vec<f64>; 2])>,
    /// Turns that failed, of which the report has nothing.
    failures: Vec<String>,
}

/// A program that measures.
struct Program {
    path: PathBuf,
    /// Where it writes its results.
    folder: PathBuf,
}

/// Runs both programs. Returns a report, which is also written to a folder.
pub fn run(options: &Options, other: &Path, made: &Path) -> Result<String, Box<dyn Error>> {
    let programs = [
        Program { path: other.to_owned(), folder: made.join("beside/other") },
        Program { path: env::current_exe()?, folder: made.join("beside/this") },
    ];
    let (mut compared, mut last) = (Compared::default(), [Results::default(), Results::default()]);
    let (start, mut sections) = (Instant::now(), Vec::new());
    for round in 0..options.rounds() {
        for (index, section) in rows::SECTIONS.iter().enumerate() {
            let paths = asked(options, section.rows);
            if paths.is_empty() {
                continue;
            }
            eprintln!("[{:>4} s] round {round}: {}", start.elapsed().as_secs(), section.rows[0]);
            let (began, before) = (Instant::now(), Load::now());
            let seed = options.seed + round as u64;
            // Each goes first in half of the turns.
            let order = if (round + index) % 2 == 0 { [0, 1] } else { [1, 0] };
            let mut both = [None, None];
            for side in order {
                match programs[side].measure(&paths, seed, options.smoke) {
                    Ok(results) => both[side] = Some(results),
                    Err(error) => compared.fail(format!("{}, round {round}: {error}", paths[0])),
                }
            }
            if let [Some(other), Some(this)] = both {
                compared.add(&other, &this);
                last = [other, this];
            }
            let others = before.zip(Load::now()).map(|(before, now)| now.others_since(&before));
            let seconds = began.elapsed().as_secs_f64();
            sections.push(Ran { name: section.rows[0].to_owned(), seconds, others });
        }
    }
    let [other, this] = last;
    let commit = |results: &Results| results.machine.get("commit").cloned().unwrap_or_default();
    let rounds = options.rounds();
    let (seed, seconds) = (options.seed, start.elapsed().as_secs());
    let other = commit(&other);
    let text = format!(
        "{}\n\nBeside {other}.\n\n{}",
        head(&Results { rounds, seed, seconds, sections, ..this }),
        compared.report()
    );
    fs::create_dir_all(made)?;
    fs::write(made.join("beside.md"), &text)?;
    Ok(text)
}

/// The paths of a section that the options ask for.
fn asked(options: &Options, section: &[&str]) -> Vec<String> {
    if options.only.is_empty() {
        return section.iter().map(ToString::to_string).collect();
    }
    let pairs = section.iter().flat_map(|row| options.only.iter().map(move |only| (*row, only)));
    let longer = pairs.filter_map(|(row, only)| {
        let is_whole = rows::is_under(row, only);
        if is_whole { Some(row) } else { rows::is_under(only, row).then_some(only) }
    });
    longer.map(str::to_owned).collect()
}

impl Program {
    fn measure(&self, paths: &[String], seed: u64, smoke: bool) -> Result<Results, Box<dyn Error>> {
        let mut child = Command::new(&self.path);
        child.args(["--rounds", "1", "--ours", "--seed", &seed.to_string()]);
        child.args(smoke.then_some("--smoke"));
        paths.iter().for_each(|path| _ = child.args(["--only", path]));
        // Both write their results to the target folder.
        child.env("CARGO_TARGET_DIR", &self.folder);
        let output = child.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} failed: {errors}", self.path.display()).into());
        }
        Ok(Results::read(&self.folder.join("compare/results.json"))?)
    }
}

impl Compared {
    /// Adds the figures of a round, of our contestants in both.
    fn add(&mut self, other: &Results, this: &Results) {
        for Figure { row, contestant, rounds, .. } in &this.figures {
            let Some(figure) = other.find(row, contestant).filter(|_| is_ours(contestant)) else {
                continue;
            };
            let is_same =
                |(known, name, _): &(String, String, _)| known == row && name == contestant;
            let index = self.rows.iter().position(is_same).unwrap_or_else(|| {
                self.rows.push((row.clone(), contestant.clone(), Default::default()));
                self.rows.len() - 1
            });
            let [others, ours] = &mut self.rows[index].2;
            others.push(figure.value());
            ours.push(median(rounds));
        }
    }

    fn fail(&mut self, failure: String) {
        eprintln!("{failure}");
        self.failures.push(failure);
    }

    /// A line for each row that both programs have; then the median of the ratios, and the worst.
    fn report(&self) -> String {
        let (mut lines, mut ratios) = (Vec::new(), Vec::new());
        for (row, contestant, [other, this]) in &self.rows {
            let Some(ratio) = ratio(row, other, this) else { continue };
            let [other, this] = [other, this].map(|figures| number(median(figures)));
            let unit = rows::definition(row).unit.to_owned();
            let ratio_cell =
                if ratio > LIMIT { format!("**{ratio:.2}**") } else { format!("{ratio:.2}") };
            let row = format!("`{row}`");
            lines.push(vec![row.clone(), contestant.clone(), unit, other, this, ratio_cell]);
            ratios.push((ratio, row, contestant));
        }
        let mut failures = String::new();
        for failure in &self.failures {
            failures += &format!("Failed: {failure}\n");
        }
        if ratios.is_empty() {
            return failures + "No row is in both programs.\n";
        }
        ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
        let all: Vec<f64> = ratios.iter().map(|(ratio, ..)| *ratio).collect();
        let above = all.iter().filter(|ratio| **ratio > LIMIT).count();
        let (worst, row, contestant) = &ratios[ratios.len() - 1];
        format!(
            "{}\n{failures}Median of {} ratios {:.3}; {above} above {LIMIT}; worst {worst:.2}: {row} {contestant}.\n",
            markdown_table(&["Row", "Contestant", "Unit", "Other", "This", "Ratio"], lines),
            all.len(),
            median(&all),
        )
    }
}

/// A ratio above this stands out.
const LIMIT: f64 = 1.15;

/// How much more this commit takes. `None` if a program lacks the row, or nothing is better.
fn ratio(row: &str, other: &[f64], this: &[f64]) -> Option<f64> {
    let best = rows::definition(row).best;
    let quotients = other.iter().zip(this).map(|(&other, &this)| match best {
        Best::Greatest => quotient(other, this),
        _ => quotient(this, other),
    });
    (best != Best::Neither).then(|| median(&quotients.collect::<Vec<_>>()))
}

/// Counts may be zero, and a difference of processor times may be below.
fn quotient(dividend: f64, divisor: f64) -> f64 {
    match (dividend > 0.0, divisor > 0.0) {
        (true, true) => dividend / divisor,
        (true, false) => f64::INFINITY,
        (false, _) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_worse_whatever_is_better() {
        let less = ratio("timer/pair/1e3", &[100.0, 90.0, 110.0], &[200.0, 180.0, 110.0]);
        let more = ratio("timer/threads/2", &[10.0], &[5.0]);
        assert_eq!((less, more), (Some(2.0), Some(2.0)));
        assert_eq!(ratio("timer/idle/switches", &[0.0], &[0.0]), Some(1.0));
        assert_eq!(ratio("timer/idle/threads", &[2.0], &[3.0]), None);
    }

    #[test]
    fn options_select_whole_sections_or_rows_of_them() {
        let section = ["timer/pair", "timer/threads"];
        let asked = |only: &[&str]| {
            let only = only.iter().map(ToString::to_string).collect();
            asked(&Options { only, ..Options::default() }, &section)
        };
        assert_eq!(asked(&[]), section);
        assert_eq!(asked(&["timer"]), section);
        assert_eq!(asked(&["timer/pair/1e3", "wheel"]), ["timer/pair/1e3"]);
    }
}
