//! Measures the memory of one contestant for the program `compare`, which runs it once for each.
//!
//! ```text
//! compare_memory --turn told-pending|told-peak|shared-pending|shared-peak CONTESTANT N - SEED
//! ```
//!
//! A program of its own, since its allocator counts, which would weigh on what is timed. What is
//! counted is what was asked for; what the system's allocator adds to that is not known to it.

#![forbid(unsafe_code)]

use std::{alloc::System, env, process::ExitCode, time::Duration};

use cap::Cap;
use delaywheel_compare::{
    Timers,
    report::table::count,
    shared::{Load, SharedTimer, SharedVisitor, replace_all, schedule_all, visit_all_shared},
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

/// For each timeout, so many are cancelled and inserted to see the peak.
const TURNS: u64 = 100;

/// No longer than this.
const LIMIT: Duration = Duration::from_secs(5);

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
    seed: u64,
    measured: Vec<Measurement>,
}

impl Turn {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [option, what, contestant, n, _, seed] = arguments else { return None };
        let (kind, figure) = what.split_once('-').filter(|_| option == "--turn")?;
        let (n, seed) = (n.parse().ok()?, seed.parse().ok()?);
        let (is_shared, is_peak) = (kind == "shared", figure == "peak");
        Some(Self {
            is_shared,
            is_peak,
            contestant: contestant.clone(),
            n,
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

    fn report(&mut self, name: &str, bytes: usize) {
        let workload = if self.is_peak { MEMORY_PEAK } else { MEMORY_PENDING };
        let each = count(bytes as u64) / f64::from(self.n);
        let measured = Measurement::new(workload, &label(name), self.n.into(), "bytes", vec![each]);
        self.measured.push(measured);
    }
}

impl Visitor for Turn {
    fn visit<T: Timers + Default>(&mut self) {
        if T::NAME != self.contestant {
            return;
        }
        let bytes = if self.is_peak {
            let traffic = Traffic::requests(self.n, 1_000_000, self.seed);
            // The first of all may start what is never ended, as a runtime.
            drop(T::default());
            let mut steady = Steady::new(T::default(), &traffic);
            PEAK.reset_peak_memory();
            steady.ramp_up();
            steady.run(TURNS * u64::from(self.n), LIMIT);
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
        self.report(T::NAME, bytes);
    }
}

impl SharedVisitor for Turn {
    /// A handle or a key counts as part of the timeout, as it is kept to cancel it.
    fn visit<S: SharedTimer>(&mut self, make: impl Fn() -> S) {
        if S::NAME != self.contestant {
            return;
        }
        let mut load = Load::new(self.seed);
        let delays = load.delays(self.n);
        let victims = load.victims(self.n, if self.is_peak { 1_000_000 } else { 0 });
        drop(make());
        let before = LIVE.allocated();
        PEAK.reset_peak_memory();
        let timer = make();
        let _entered = timer.enter();
        let mut timeouts = schedule_all(&timer, &delays);
        let bytes = if self.is_peak {
            for victims in victims.chunks(self.n as usize) {
                replace_all(&timer, &mut timeouts, victims);
            }
            PEAK.get_peak_memory()
        } else {
            LIVE.allocated() - before
        };
        drop(timeouts);
        self.report(S::NAME, bytes);
    }
}
