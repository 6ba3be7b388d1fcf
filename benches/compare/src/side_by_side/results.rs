//! What a run of the comparison leaves behind: facts about the machine, the contestants, and a
//! list of measurements. Tables and figures are made from it alone.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

/// Everything that a run has found out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Where and with what it was measured.
    pub machine: Machine,
    /// How much was measured.
    pub run: Run,
    /// Who took part, in the order of the registries; a contestant's colour goes by its place here.
    pub contestants: Vec<Contestant>,
    /// What was measured.
    pub measurements: Vec<Measurement>,
}

/// Where and with what it was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The model of the processor, as the system calls it.
    pub cpu: String,
    /// Threads that run at once.
    pub cores: usize,
    /// The operating system.
    pub os: String,
    /// The compiler, with its version.
    pub rustc: String,
    /// The target that it compiled for.
    pub target: String,
    /// The commit, with a mark if there were changes besides; empty if there is no repository.
    pub commit: String,
    /// The version of each package that this repository's use, by name.
    pub versions: BTreeMap<String, String>,
}

/// How much was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Seed of all that is drawn.
    pub seed: u64,
    /// Number of turns that each contestant takes; fewer where a turn takes long.
    pub rounds: usize,
    /// Whether it was only to see that everything works.
    pub is_quick: bool,
    /// How long all of it took.
    pub seconds: u64,
}

/// Somebody who took part, and what it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contestant {
    /// What it is called in all measurements.
    pub name: String,
    /// What it is, in a few words.
    pub scheme: String,
    /// Whether it is of this repository.
    pub is_ours: bool,
    /// Whether it has threads and a clock of its own, rather than being told the time.
    pub is_shared: bool,
    /// What may surprise.
    pub describes: String,
    /// Whether a timeout can be taken out before its time.
    pub can_cancel: bool,
    /// The longest delay in milliseconds; `None` if it takes centuries.
    pub max_delay_ms: Option<u64>,
    /// By how many milliseconds it says that a timeout may be early.
    pub earliness_ms: u64,
    /// By how many milliseconds it says that a timeout may be late.
    pub lateness_ms: u64,
    /// When it is woken.
    pub wakes: Wakes,
}

/// When a contestant is woken while anything is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wakes {
    /// When it has something to do.
    WhenBusy,
    /// Besides, for timeouts that were cancelled.
    ForCancelled,
    /// At least once in so many milliseconds.
    EveryMs(u64),
}

/// One figure of one contestant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was done, as a path: `growth/insert`.
    pub workload: String,
    /// Who did it.
    pub contestant: String,
    /// Number of timeouts, or of what the workload counts.
    pub n: u64,
    /// Unit of the figures.
    pub unit: String,
    /// The median over the rounds.
    pub value: f64,
    /// The figure of each round.
    pub rounds: Vec<f64>,
    /// What a reader must know besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Measurement {
    /// Makes one of the figures of all rounds.
    ///
    /// # Panics
    ///
    /// If there is no figure.
    #[must_use]
    pub fn new(workload: &str, contestant: &str, n: u64, unit: &str, rounds: Vec<f64>) -> Self {
        Self {
            workload: workload.to_owned(),
            contestant: contestant.to_owned(),
            n,
            unit: unit.to_owned(),
            value: median(&rounds),
            rounds,
            note: None,
        }
    }

    /// Adds what a reader must know besides.
    #[must_use]
    pub fn with_note(mut self, note: Option<String>) -> Self {
        self.note = note;
        self
    }
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is not one of these.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
    }

    /// Writes a file, and the folder that it is in.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
    }

    /// The measurements of a workload, in the order of the contestants and by `n`.
    #[must_use]
    pub fn of(&self, workload: &str) -> Vec<&Measurement> {
        let mut found: Vec<_> =
            self.measurements.iter().filter(|found| found.workload == workload).collect();
        found.sort_by_key(|found| (self.place(&found.contestant), found.n));
        found
    }

    /// Whether there is anything of a workload.
    #[must_use]
    pub fn has(&self, workload: &str) -> bool {
        self.measurements.iter().any(|found| found.workload == workload)
    }

    /// One figure.
    #[must_use]
    pub fn find(&self, workload: &str, contestant: &str, n: u64) -> Option<&Measurement> {
        self.measurements.iter().find(|found| {
            found.workload == workload && found.contestant == contestant && found.n == n
        })
    }

    /// The place of a contestant among all, by which it has its colour.
    #[must_use]
    pub fn place(&self, contestant: &str) -> usize {
        let place = self.contestants.iter().position(|other| other.name == contestant);
        place.unwrap_or(self.contestants.len())
    }

    /// Whether a contestant is of this repository.
    #[must_use]
    pub fn is_ours(&self, contestant: &str) -> bool {
        self.contestants.iter().any(|other| other.is_ours && other.name == contestant)
    }
}

/// The middle figure, or the lower of two.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    assert!(!sorted.is_empty(), "a median of nothing");
    sorted[(sorted.len() - 1) / 2]
}
