//! One run: its options, its sections, and the figures of all rounds.
//!
//! Contestants take turns within a round, and a figure is the median over the rounds. So a busy
//! machine affects all contestants of a row alike.

use std::{
    io,
    process::{Command, Stdio},
};

use crate::prelude::*;
use crate::{
    measure::{self, Turn, futures},
    os::Load,
    report::is_ours,
};

pub type Done = Result<(), Box<dyn Error>>;

/// The part of the command line that decides what is measured.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct Options {
    /// Measure rows at and below this path; can be repeated
    #[arg(long, value_name = "PATH")]
    pub only: Vec<String>,
    /// Check in a minute that everything works; the figures mean nothing
    #[arg(long)]
    pub smoke: bool,
    /// Turns of each contestant
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Measure only delaywheel
    #[arg(long)]
    pub ours: bool,
}

impl Options {
    /// Whether they ask for rows at, below or above this path.
    pub fn is_asked(&self, row: &str) -> bool {
        let is_on_path = |only: &String| rows::is_under(row, only) || rows::is_under(only, row);
        self.only.is_empty() || self.only.iter().any(is_on_path)
    }

    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.smoke { 1 } else { 5 }).max(1)
    }
}

/// Everything that a run measured, and where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Processor, system, compiler, commit, and the versions of the other crates.
    pub machine: BTreeMap<String, String>,
    /// Whether the figures mean nothing.
    #[serde(default)]
    pub is_smoke: bool,
    /// Turns of each contestant; fewer where a turn takes seconds.
    pub rounds: usize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Length of the run in seconds.
    pub seconds: u64,
    /// The sections that ran.
    pub sections: Vec<Ran>,
    /// The figures, in the order in which they were measured.
    pub figures: Vec<Figure>,
}

/// A section that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    pub name: String,
    pub seconds: f64,
    /// The share of the processors that other processes used meanwhile.
    pub others: Option<f64>,
}

/// All contestants; the order decides on colours.
pub static CONTESTANTS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let shared = shared::ALL.iter().chain(shared::LATE).map(|one| one.name);
    let mut names = timers::ALL.iter().map(|one| one.name).collect::<Vec<_>>();
    let maps = measure::map::ALL.iter().map(|one| one.0);
    for name in shared.chain([futures::DRIVER, measure::shared::FLOOR]).chain(maps) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
});

/// All figures of one contestant in one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub row: String,
    pub contestant: String,
    pub rounds: Vec<f64>,
    /// A caveat, such as an estimate.
    pub note: Option<String>,
}

impl Figure {
    /// A figure of one round.
    pub fn new(row: impl Into<String>, contestant: impl Into<String>, value: f64) -> Self {
        Self { row: row.into(), contestant: contestant.into(), rounds: vec![value], note: None }
    }

    /// Adds a caveat.
    pub fn with_note(self, note: Option<String>) -> Self {
        Self { note, ..self }
    }

    /// Percentiles of durations in rows below `row`. Names of percentiles, such as `p99.9` or
    /// `max`, are separated by spaces; a figure is the number of units.
    pub fn percentiles(
        row: &str,
        contestant: &str,
        durations: &Histogram<u64>,
        percentiles: &str,
        unit: Duration,
    ) -> Vec<Self> {
        let figure = |name: &str| {
            let duration = Duration::from_nanos(percentile(durations, name));
            Self::new(format!("{row}/{name}"), contestant, duration.div_duration_f64(unit))
        };
        percentiles.split_whitespace().map(figure).collect()
    }

    pub fn value(&self) -> f64 {
        median(&self.rounds)
    }
}

/// The middle figure, or the mean of two.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    assert!(!sorted.is_empty(), "a median of nothing");
    let middle = [(sorted.len() - 1) / 2, sorted.len() / 2];
    f64::midpoint(sorted[middle[0]], sorted[middle[1]])
}

impl Results {
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
    }

    /// Keeps the rows under any of these paths; all if there are none.
    pub fn select(mut self, only: &[String]) -> Self {
        let is_kept = |row: &str| only.iter().any(|only| rows::is_under(row, only));
        self.figures.retain(|figure| only.is_empty() || is_kept(&figure.row));
        self
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
    }

    pub fn find(&self, row: &str, contestant: &str) -> Option<&Figure> {
        find(&self.figures, row, contestant)
    }

    pub fn row<'a>(&'a self, row: &str) -> impl Iterator<Item = &'a Figure> + use<'a> {
        let row = row.to_owned();
        self.figures.iter().filter(move |figure| figure.row == row)
    }
}

/// A run that is under way.
pub struct Bench {
    pub options: Options,
    start: Instant,
    figures: Vec<Figure>,
}

impl Bench {
    fn new(options: Options) -> Self {
        Self { options, start: Instant::now(), figures: Vec::new() }
    }

    /// Runs all sections that the options select, each in a process of its own. So a section finds
    /// the allocator in the same state in every run.
    pub fn run(options: Options) -> Result<Results, Box<dyn Error>> {
        let mut bench = Self::new(options);
        let mut sections = Vec::new();
        for (index, section) in rows::SECTIONS.iter().enumerate() {
            if !section.rows.iter().any(|row| bench.is_asked(row)) {
                continue;
            }
            bench.tell(section.rows[0]);
            let (began, before) = (Instant::now(), Load::now());
            let mut child = Command::new(env::current_exe()?);
            child.args(env::args_os().skip(1)).args(["--section", &index.to_string()]);
            bench.add_from(&mut child)?;
            let others = before.zip(Load::now()).map(|(before, now)| now.others_since(&before));
            let seconds = began.elapsed().as_secs_f64();
            sections.push(Ran { name: section.rows[0].to_owned(), seconds, others });
        }
        eprintln!();
        Ok(Results {
            machine: machine(),
            is_smoke: bench.options.smoke,
            rounds: bench.rounds(),
            seed: bench.options.seed,
            seconds: bench.start.elapsed().as_secs(),
            sections,
            figures: bench.figures,
        })
    }

    /// Runs one section in this process.
    pub fn run_section(options: Options, index: usize) -> Result<Vec<Figure>, Box<dyn Error>> {
        let mut bench = Self::new(options);
        (rows::SECTIONS[index].run)(&mut bench)?;
        Ok(bench.figures)
    }

    pub fn is_asked(&self, row: &str) -> bool {
        self.options.is_asked(row)
    }

    pub fn rounds(&self) -> usize {
        self.options.rounds()
    }

    /// One of two values: the first in a smoke run.
    pub fn full<V>(&self, smoke: V, full: V) -> V {
        if self.options.smoke { smoke } else { full }
    }

    /// Milliseconds, which are fewer in a smoke run.
    pub fn millis(&self, smoke: u64, full: u64) -> Duration {
        Duration::from_millis(self.full(smoke, full))
    }

    pub fn tell(&self, what: &str) {
        eprint!("\n[{:>4} s] {what} ", self.start.elapsed().as_secs());
    }

    pub fn add(&mut self, row: &str, contestant: &str, value: f64) {
        self.add_all(vec![Figure::new(row, contestant, value)]);
    }

    /// Adds a figure of one round with a caveat.
    pub fn add_noted(&mut self, row: &str, contestant: &str, value: f64, note: Option<String>) {
        self.add_all(vec![Figure::new(row, contestant, value).with_note(note)]);
    }

    /// Adds figures of one round, such as those of a child process.
    pub fn add_all(&mut self, figures: Vec<Figure>) {
        eprint!(".");
        for figure in figures {
            let is_same = |other: &&mut Figure| {
                (&other.row, &other.contestant) == (&figure.row, &figure.contestant)
            };
            match self.figures.iter_mut().find(is_same) {
                Some(known) => {
                    known.rounds.extend(figure.rounds);
                    known.note = known.note.take().or(figure.note);
                }
                None => self.figures.push(figure),
            }
        }
    }

    /// The contestants that take part.
    pub fn of<'a, E>(
        &self,
        all: &'a [E],
        name: fn(&E) -> &str,
    ) -> impl Iterator<Item = &'a E> + use<'a, E> {
        let ours = self.options.ours;
        all.iter().filter(move |one| !ours || is_ours(name(one)))
    }

    /// Makes a child process take a turn. So the threads of one contestant have ended when the next
    /// one starts.
    pub fn delegate(
        &mut self,
        program: &Path,
        row: &str,
        contestant: &str,
        [threads, number]: [u32; 2],
        millis: u32,
        round: usize,
    ) -> Done {
        let (row, contestant) = (row.to_owned(), contestant.to_owned());
        let seed = self.options.seed + round as u64;
        let turn = Turn { row, contestant, threads, number, millis, seed };
        let turn = serde_json::to_string(&turn)?;
        self.add_from(Command::new(program).args(["--turn", &turn]))
    }

    /// Adds the figures that a child process prints.
    fn add_from(&mut self, child: &mut Command) -> Done {
        let output = child.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("a child failed with {}: {child:?}", output.status).into());
        }
        self.add_all(serde_json::from_slice(&output.stdout)?);
        Ok(())
    }
}

fn find<'a>(figures: &'a [Figure], row: &str, contestant: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| figure.row == row && figure.contestant == contestant)
}

/// Facts about the machine and the build. A fact that the system does not tell is left out.
fn machine() -> BTreeMap<String, String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let model = text.lines().find_map(|line| line.strip_prefix("model name"))?;
        Some(model.trim_start_matches([' ', '\t', ':']).to_owned())
    });
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|release| {
        let is_version = |letter: &char| letter.is_ascii_digit() || *letter == '.';
        format!("Linux {}", release.chars().take_while(is_version).collect::<String>())
    });
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let commit = output("git", &["-C", root, "describe", "--always", "--dirty", "--abbrev=12"]);
    let date = output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]);
    let rustc = output("rustc", &["--version"]);
    let facts = [
        ("cpu", cpu.or_else(|| Some(env::consts::ARCH.to_owned()))),
        ("cores", Some(cores.to_string())),
        ("system", system.or_else(|| Some(env::consts::OS.to_owned()))),
        ("rustc", rustc),
        ("commit", commit),
        ("date", date),
        ("versions", versions()),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect()
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_owned())
}

/// The direct dependencies with their versions.
fn versions() -> Option<String> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let tree = ["tree", "--manifest-path", manifest, "--depth", "1", "--prefix", "none"];
    let tree = output("cargo", &[&tree[..], &["--edges", "normal"]].concat())?;
    let crates = tree.lines().skip(1).filter(|line| !line.contains('/'));
    Some(crates.map(|line| line.replacen(" v", " ", 1)).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_of_a_row_is_the_median_over_the_rounds() {
        let mut bench = Bench::new(Options::default());
        for value in [3.0, 1.0, 2.0] {
            bench.add("timer/pair/1e3", "one", value);
            bench.add("timer/pair/1e3", "other", 10.0 * value);
        }
        let values: Vec<_> = bench.figures.iter().map(Figure::value).collect();
        assert_eq!(values, [2.0, 20.0]);
        assert_eq!(bench.figures[0].rounds, [3.0, 1.0, 2.0]);
    }

    #[test]
    fn a_prefix_selects_the_sections_of_its_rows() {
        let selected = |only: &[&str]| {
            let only = only.iter().map(ToString::to_string).collect();
            let options = Options { only, ..Options::default() };
            let is_asked =
                |section: &&rows::Section| section.rows.iter().any(|row| options.is_asked(row));
            let sections = rows::SECTIONS.iter().filter(is_asked);
            sections.map(|section| section.rows[0]).collect::<Vec<_>>()
        };
        assert!(selected(&[]).len() > 10);
        assert_eq!(selected(&["timer/pair/1e6"]), ["timer/pair"]);
    }
}
