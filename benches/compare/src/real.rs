//! Real time: waiting for it, and what the process and its threads take of the processor.
//!
//! What the operating system counts is known on Linux only; elsewhere it is `None`.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long something may take that is to happen soon.
const PATIENCE: Duration = Duration::from_mins(1);

/// Sleeps until an instant; not at all if it has passed.
pub fn sleep_until(instant: Instant) {
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// Waits until something holds that holds soon. Looks every millisecond.
///
/// # Panics
///
/// If it does not hold within a minute.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Processor time of the whole process.
#[must_use]
pub fn process_cpu() -> Option<Duration> {
    os::process_cpu()
}

/// What the threads of this process have used whose names begin with `prefix`; only the first 15
/// characters of a thread's name count.
#[must_use]
pub fn threads(prefix: &str) -> Option<Usage> {
    os::threads(prefix)
}

/// What threads have used since they were started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of threads.
    pub threads: u32,
    /// Processor time. That of a thread that is running may lag behind by a few milliseconds.
    pub cpu: Duration,
    /// How often they gave up the processor, to wait for something.
    pub waits: u64,
}

#[cfg(target_os = "linux")]
mod os {
    use std::{fs, path::Path, time::Duration};

    use nix::time::ClockId;

    use super::Usage;

    pub(super) fn process_cpu() -> Option<Duration> {
        ClockId::CLOCK_PROCESS_CPUTIME_ID.now().ok().map(Duration::from)
    }

    pub(super) fn threads(prefix: &str) -> Option<Usage> {
        let mut sum = Usage::default();
        for task in fs::read_dir("/proc/self/task").ok()? {
            let path = task.ok()?.path();
            // A thread may end while it is looked at; then it counts no more.
            let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
            if let Some((cpu, waits)) = usage(&path).filter(|_| name.starts_with(prefix)) {
                sum.threads += 1;
                sum.cpu += cpu;
                sum.waits += waits;
            }
        }
        Some(sum)
    }

    fn usage(task: &Path) -> Option<(Duration, u64)> {
        let schedule = fs::read_to_string(task.join("schedstat")).ok()?;
        let status = fs::read_to_string(task.join("status")).ok()?;
        let nanos = schedule.split_whitespace().next()?.parse().ok()?;
        let line = |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
        Some((Duration::from_nanos(nanos), status.lines().find_map(line)?))
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    use std::time::Duration;

    use super::Usage;

    pub(super) fn process_cpu() -> Option<Duration> {
        None
    }

    pub(super) fn threads(_: &str) -> Option<Usage> {
        None
    }
}
