//! Several scenarios at once, each on a processor of its own.
//!
//! A step is two switches between child and parent. On one processor they take half the time that
//! they take between two.

use std::{
    iter,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    scenarios::SCENARIOS,
    tracer::{Fault, count},
};

/// Instructions per operation of each scenario.
pub(crate) fn measure() -> Result<Vec<(&'static str, f64)>, Fault> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let take = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        SCENARIOS.get(index).map(|scenario| (index, scenario.name, count(scenario.name)))
    };
    let work = |worker| {
        pin(worker);
        iter::from_fn(take).collect::<Vec<_>>()
    };
    let mut counts: Vec<_> = thread::scope(|scope| {
        let spawn = |worker| scope.spawn(move || work(worker));
        let workers: Vec<_> = (0..processors.min(SCENARIOS.len())).map(spawn).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics")).collect()
    });
    counts.sort_by_key(|&(index, ..)| index);
    counts.into_iter().map(|(_, name, count)| Ok((name, count?))).collect()
}

/// Has this thread, and the children that it starts, stay on one processor. Where that is not
/// allowed, it takes longer.
fn pin(worker: usize) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let is_allowed = |&index: &usize| allowed.is_set(index).unwrap_or(false);
    let mut processors = (0..CpuSet::count()).filter(is_allowed);
    let mut set = CpuSet::new();
    let pinned = processors.nth(worker).map(|index| set.set(index));
    if let Some(Ok(())) = pinned {
        let _ = sched_setaffinity(this, &set);
    }
}
