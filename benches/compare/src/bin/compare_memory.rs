//! Measures the memory of one contestant for the program `compare`, which runs it once for each.
//!
//! ```text
//! compare_memory --turn told-pending|told-peak|shared-pending|shared-peak CONTESTANT N TICKS SEED
//! ```
//!
//! A program of its own, since its allocator counts, which would weigh on what is timed. What is
//! counted is what was asked for; what the system's allocator adds to that is not known to it.

#![forbid(unsafe_code)]

use std::{
    alloc::System,
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

use cap::Cap;
use delaywheel_compare::{
    Timers,
    real::sleep_until,
    report::table::count,
    shared::{
        Load, SharedTimer, SharedVisitor, Victim, replace_all, schedule_all, visit_all_shared,
    },
    side_by_side::{
        label,
        names::{MEMORY_PEAK, MEMORY_PENDING},
        results::Measurement,
        traffic::{Steady, Traffic},
    },
    timers::{Visitor, visit_all},
    workload::{Spread, Workload},
};
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait};

/// Counts the peak of live bytes.
static PEAK: PeakMemAlloc<System> = PeakMemAlloc::new(System);

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<&PeakMemAlloc<System>> = Cap::new(&PEAK, usize::MAX);

/// A tick in real time.
const TICK: Duration = Duration::from_millis(1);

/// No longer than this.
const LIMIT: Duration = Duration::from_secs(20);

/// The least delay in real time. If scheduling takes longer, some are gone before they are counted.
const LEAST: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let Some(turn) = Turn::parse(&arguments) else {
        eprintln!("this program is run by `compare`");
        return ExitCode::FAILURE;
    };
    let measured = turn.take();
    println!("{}", serde_json::to_string(&measured).expect("figures can be written"));
    ExitCode::SUCCESS
}

/// What is measured.
struct Turn {
    is_shared: bool,
    is_peak: bool,
    contestant: String,
    n: u32,
    /// For how long requests are answered to see the peak.
    ticks: u32,
    seed: u64,
    measured: Vec<Measurement>,
}

impl Turn {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [option, what, contestant, n, ticks, seed] = arguments else { return None };
        let (kind, figure) = what.split_once('-').filter(|_| option == "--turn")?;
        let (n, ticks, seed) = (n.parse().ok()?, ticks.parse().ok()?, seed.parse().ok()?);
        let (is_shared, is_peak) = (kind == "shared", figure == "peak");
        Some(Self {
            is_shared,
            is_peak,
            contestant: contestant.clone(),
            n,
            ticks,
            seed,
            measured: Vec::new(),
        })
    }

    fn take(mut self) -> Vec<Measurement> {
        if self.is_shared {
            visit_all_shared(&mut self);
        } else {
            visit_all(&mut self);
        }
        self.measured
    }

    fn report(&mut self, name: &str, bytes: usize, note: Option<String>) {
        let workload = if self.is_peak { MEMORY_PEAK } else { MEMORY_PENDING };
        let each = count(bytes as u64) / f64::from(self.n);
        let measured = Measurement::new(workload, &label(name), self.n.into(), "bytes", vec![each]);
        self.measured.push(measured.with_note(note));
    }

    /// Answers as many requests in each millisecond as there are in each tick of virtual time, unless it
    /// cannot keep up. Returns whether all were answered in time.
    ///
    /// What a contestant leaves to a thread of its own is worked off each time, so that what is seen are
    /// its timeouts, and not messages of somebody who sends faster than they are read.
    fn answer<S: SharedTimer>(&self, timer: &S, requests: &[Victim]) -> bool {
        let per_tick = Traffic::requests_per_tick(self.n);
        let mut timeouts = Vec::with_capacity(self.n as usize);
        for index in 0..self.n as usize {
            timeouts.push(timer.schedule(REQUEST));
            if index.is_multiple_of(per_tick) {
                timer.catch_up();
            }
        }
        let start = Instant::now();
        for (tick, requests) in (0..self.ticks).zip(requests.chunks(per_tick).cycle()) {
            sleep_until(start + tick * TICK);
            replace_all(timer, &mut timeouts, requests);
            timer.catch_up();
            if start.elapsed() > LIMIT {
                return false;
            }
        }
        true
    }
}

impl Visitor for Turn {
    fn visit<T: Timers + Default>(&mut self) {
        if T::NAME != self.contestant {
            return;
        }
        let mut note = None;
        let bytes = if self.is_peak {
            let traffic = Traffic::requests(self.n, 1_000_000, self.seed);
            // The first of all may start what is never ended, as a runtime.
            drop(T::default());
            let mut steady = Steady::new(T::default(), &traffic);
            PEAK.reset_peak_memory();
            steady.ramp_up();
            let is_whole = steady.pass(self.ticks.into(), LIMIT);
            note = (!is_whole).then(|| format!("not all of the requests within {LIMIT:?}"));
            PEAK.get_peak_memory()
        } else {
            let deadlines = Workload::new(Spread::Minute, self.seed).deadlines(self.n);
            drop(T::default());
            let before = LIVE.allocated();
            let mut timers = T::default();
            for &deadline in &deadlines {
                timers.insert(deadline, deadline);
            }
            let bytes = LIVE.allocated() - before;
            assert_eq!(timers.len(), deadlines.len(), "{} has lost some", T::NAME);
            bytes
        };
        self.report(T::NAME, bytes, note);
    }
}

impl SharedVisitor for Turn {
    /// A handle or a key counts as part of the timeout, as it is kept to cancel it.
    fn visit<S: SharedTimer>(&mut self, make: impl Fn() -> S) {
        if S::NAME != self.contestant {
            return;
        }
        let mut load = Load::new(self.seed);
        let delays = load.delays(if self.is_peak { 0 } else { self.n });
        let requests = if self.is_peak { requests(&mut load, self.n) } else { Vec::new() };
        drop(make());
        let before = LIVE.allocated();
        PEAK.reset_peak_memory();
        let timer = make();
        let _entered = timer.enter();
        if self.is_peak {
            let is_whole = self.answer(&timer, &requests);
            let note = (!is_whole).then(|| format!("not all of the requests within {LIMIT:?}"));
            self.report(S::NAME, PEAK.get_peak_memory(), note);
        } else {
            let start = Instant::now();
            let timeouts = schedule_all(&timer, &delays);
            timer.catch_up();
            let bytes = LIVE.allocated() - before;
            let note = (start.elapsed() > LEAST).then(|| "some had expired".to_owned());
            drop(timeouts);
            self.report(S::NAME, bytes, note);
        }
    }
}

const REQUEST: Duration = Duration::from_millis(Traffic::REQUEST);

/// Requests that are answered in random order, each followed by another.
fn requests(load: &mut Load, in_flight: u32) -> Vec<Victim> {
    let mut requests = load.victims(in_flight, 1_000_000);
    for request in &mut requests {
        request.delay = REQUEST;
    }
    requests
}
