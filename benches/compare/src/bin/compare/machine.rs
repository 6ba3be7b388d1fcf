//! Facts about the machine, as far as the system tells them.

use std::{collections::BTreeMap, env::consts, fs, process::Command, thread};

use delaywheel_compare::side_by_side::results::Machine;

use crate::docs;

/// Looks at where this runs.
pub(crate) fn look() -> Machine {
    Machine {
        cpu: cpu().unwrap_or_else(|| consts::ARCH.to_owned()),
        cores: thread::available_parallelism().map_or(1, usize::from),
        os: kernel().map_or_else(|| consts::OS.to_owned(), |kernel| format!("Linux {kernel}")),
        rustc: env!("COMPARE_RUSTC").to_owned(),
        target: env!("COMPARE_TARGET").to_owned(),
        commit: commit().unwrap_or_default(),
        versions: versions(),
    }
}

/// What the build script has found in the lock file.
fn versions() -> BTreeMap<String, String> {
    let lines = include_str!(concat!(env!("OUT_DIR"), "/versions")).lines();
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
}

fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// The version of the kernel, without what a distribution adds to it.
fn kernel() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let version: String =
        release.chars().take_while(|digit| digit.is_ascii_digit() || *digit == '.').collect();
    Some(version.trim_end_matches('.').to_owned())
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").arg("-C").arg(docs::root()).args(arguments).output().ok()?;
        let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
        Some(text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_changed =
        !git(&["status", "--porcelain", "--untracked-files=no", "benches", "src"])?.is_empty();
    Some(if is_changed { format!("{commit}, with changes") } else { commit })
}

#[cfg(test)]
mod tests {
    use delaywheel_compare::side_by_side::PEERS;

    use super::*;

    #[test]
    fn the_versions_of_all_peers_are_known() {
        let versions = versions();
        for peer in PEERS {
            let version = versions.get(peer).unwrap_or_else(|| panic!("no version of {peer}"));
            assert!(version.starts_with(|digit: char| digit.is_ascii_digit()), "{version}");
        }
    }
}
