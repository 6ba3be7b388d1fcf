//! One timeout far ahead, and how often the threads that wait for it are woken.

use std::{fs, path::Path, process, thread, time::Duration};

use delaywheel_compare::{
    report::table::count,
    shared::SharedTimer,
    side_by_side::{
        label,
        names::{IDLE_SWITCHES, IDLE_THREADS},
        results::Measurement,
    },
    workload::DAY,
};

use super::{
    Measured,
    child::{self, Act, Turn},
    record::{Demand, Record},
};

/// How long threads may take to start and fall asleep.
const START: Duration = Duration::from_millis(300);

pub(crate) fn run(record: &mut Record) -> Measured {
    record.tell("idle");
    let demand = Demand { workload: IDLE_SWITCHES, pending: 1, max_delay: 0, must_cancel: false };
    let millis = record.scope.pick(3_000, 200);
    child::delegate_all(record, &demand, |name| Turn {
        workload: "idle".to_owned(),
        contestant: name.to_owned(),
        n: 1,
        millis,
        seed: 1,
    })
}

/// Voluntary context switches in a second, and the number of threads, besides the one that looks.
pub(crate) fn take_turn(turn: &Turn) -> Vec<Measurement> {
    child::act(&turn.contestant, Idle(Duration::from_millis(turn.millis)))
}

/// For how long it is looked at.
struct Idle(Duration);

impl Act for Idle {
    fn act<S: SharedTimer>(&self, make: impl Fn() -> S) -> Vec<Measurement> {
        let far = S::PROMISES.max_delay.map_or(30 * DAY, |longest| longest.min(30 * DAY));
        let timer = make();
        let _entered = timer.enter();
        let _timeout = timer.schedule(Duration::from_millis(far));
        thread::sleep(START);
        let Some((_, before)) = others() else { return Vec::new() };
        thread::sleep(self.0);
        let Some((threads, after)) = others() else { return Vec::new() };
        let switches = count(after.saturating_sub(before)) / self.0.as_secs_f64();
        let measured = |workload, unit, value| {
            Measurement::new(workload, &label(S::NAME), 1, unit, vec![value])
        };
        vec![
            measured(IDLE_SWITCHES, "per second", switches),
            measured(IDLE_THREADS, "threads", count(threads)),
        ]
    }
}

/// How many threads there are besides this one, and how often they gave up the processor so far.
/// `None` where the system does not tell.
fn others() -> Option<(u64, u64)> {
    let (mut threads, mut switches) = (0, 0);
    let own = process::id().to_string();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let path = task.ok()?.path();
        // The thread that looks is the first one, which has the number of the process.
        if !path.ends_with(&own) {
            threads += 1;
            switches += voluntary(&path)?;
        }
    }
    Some((threads, switches))
}

fn voluntary(task: &Path) -> Option<u64> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let value = |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
    status.lines().find_map(value)
}
