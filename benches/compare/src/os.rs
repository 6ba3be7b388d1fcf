//! Waiting in real time, and the counters of the operating system.
//!
//! Counters of threads and of the machine are known on Linux only; elsewhere they are `None`.

use std::process;

use crate::prelude::*;

/// Sleeps until an instant; returns at once if it has passed.
pub fn sleep_until(instant: Instant) {
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// Waits for a condition, which it checks every millisecond.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < end, "waited for a minute until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Counters of some threads since they started.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub threads: u32,
    /// Processor time. That of a running thread may lag behind by a few milliseconds.
    pub cpu: Duration,
    pub switches: u64,
}

/// Usage of the threads of this process whose names start with `prefix`. Linux keeps 15 bytes of a
/// name.
fn threads(prefix: &str) -> Option<Usage> {
    usage(|_, name| name.starts_with(prefix))
}

/// Usage of all threads but the first, which is the one that measures.
pub fn other_threads() -> Option<Usage> {
    let own = process::id().to_string();
    usage(|task, _| !task.ends_with(&own))
}

fn usage(selects: impl Fn(&Path, &str) -> bool) -> Option<Usage> {
    let mut sum = Usage::default();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let path = task.ok()?.path();
        // A thread may end between two reads; then it does not count.
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        if let Some((cpu, switches)) = counters(&path).filter(|_| selects(&path, &name)) {
            sum.threads += 1;
            sum.cpu += cpu;
            sum.switches += switches;
        }
    }
    Some(sum)
}

fn counters(task: &Path) -> Option<(Duration, u64)> {
    let schedule = fs::read_to_string(task.join("schedstat")).ok()?;
    let status = fs::read_to_string(task.join("status")).ok()?;
    let nanos = schedule.split_whitespace().next()?.parse().ok()?;
    let line = |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
    Some((Duration::from_nanos(nanos), status.lines().find_map(line)?))
}

pub fn process_cpu() -> Option<Duration> {
    nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID.now().ok().map(Duration::from)
}

/// Processor time of the process, and of a timer's threads, whose names start with `prefix`. Waits
/// until the threads of an earlier timer of that name have ended, so that there are a reaper and an
/// executor, or neither.
pub fn cpu(prefix: &str) -> Option<[Duration; 2]> {
    let mut usage = Usage::default();
    wait_until("there are a reaper and an executor, or neither", || {
        usage = threads(prefix).unwrap_or_default();
        usage.threads == 2 || usage.threads == 0
    });
    Some([process_cpu()?, usage.cpu])
}

/// Milliseconds in each second of `span` between two results of [`cpu`].
pub fn spent(before: [Duration; 2], after: [Duration; 2], span: Duration) -> [f64; 2] {
    [0, 1]
        .map(|index: usize| after[index].saturating_sub(before[index]).div_duration_f64(span) * 1e3)
}

/// Times of the processors since the system started.
#[derive(Clone, Copy)]
pub struct Load {
    /// Busy jiffies of all processors, and of this process with its children.
    busy: u64,
    own: u64,
    /// Jiffies of all processors, busy or idle.
    all: u64,
}

impl Load {
    pub fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let fields: Vec<u64> = numbers(text.lines().next()?.strip_prefix("cpu")?).take(8).collect();
        let idle = fields.get(3)? + fields.get(4)?;
        let all = fields.iter().sum();
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let (_, after_name) = own.rsplit_once(") ")?;
        // The four times begin with the twelfth field after the name.
        let own =
            after_name.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok());
        Some(Self { busy: all - idle, own: own.sum(), all })
    }

    /// The share of the processors that other processes, or other guests of the host, used since
    /// `before`.
    pub fn others_since(&self, before: &Self) -> f64 {
        let busy = self.busy.saturating_sub(before.busy);
        let own = self.own.saturating_sub(before.own);
        let all = self.all.saturating_sub(before.all).max(1);
        crate::workload::count(busy.saturating_sub(own)) / crate::workload::count(all)
    }
}

fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split_whitespace().filter_map(|number| number.parse().ok())
}
