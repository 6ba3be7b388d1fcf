//! How much is measured, and how many times.

use std::time::Duration;

/// What the command line asks for.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// Whether to see only that everything works, in seconds.
    pub(crate) is_quick: bool,
    /// Names of workloads; all if empty.
    pub(crate) only: Vec<String>,
    /// Turns of each contestant, if it is asked for.
    pub(crate) rounds: Option<usize>,
    /// Seed of all that is drawn.
    pub(crate) seed: u64,
}

impl Default for Scope {
    fn default() -> Self {
        Self { is_quick: false, only: Vec::new(), rounds: None, seed: 1 }
    }
}

impl Scope {
    pub(crate) fn selects(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == workload)
    }

    /// Turns of each contestant.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.is_quick { 1 } else { 5 }).max(1)
    }

    /// The same where a turn takes seconds.
    pub(crate) fn rounds_at(&self, pending: u32) -> usize {
        let most = match pending {
            ..1_000_000 => usize::MAX,
            1_000_000..10_000_000 => 3,
            _ => 1,
        };
        self.rounds().min(most)
    }

    /// Numbers of pending timeouts, ascending.
    pub(crate) fn sizes(&self) -> &'static [u32] {
        let all = &[100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
        if self.is_quick { &all[..2] } else { all }
    }

    /// One or the other.
    pub(crate) fn pick<V>(&self, full: V, quick: V) -> V {
        if self.is_quick { quick } else { full }
    }

    /// The same in milliseconds.
    pub(crate) fn millis(&self, full: u64, quick: u64) -> Duration {
        Duration::from_millis(self.pick(full, quick))
    }
}
