//! Heap bytes. The program `memory` takes each turn, in a process of its own: its allocator counts,
//! which would slow everything that is timed. Bytes are those that were requested from the
//! allocator.

use std::{
    env,
    error::Error,
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use delaywheel::{ManualClock, PurgatoryBuilder, Timer};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::traffic::{Steady, Traffic};
use crate::{
    Timers,
    bench::{Bench, Done, Figure},
    os::sleep_until,
    purgatory::{
        Announce, ClosedLoop, Crowd, Demand, Requests, SharedPurgatory, demands, demands_apart,
    },
    shared::{self, Closures, SharedTimer, Typed, replace_all},
    timers::{self, Wheel},
    workload::{SECOND, Spread, Victim, count, delays, victims},
};

/// The counters of the allocator.
#[derive(Debug)]
pub struct Heap {
    /// Live bytes.
    pub live: fn() -> usize,
    /// Greatest number of live bytes since the last reset, above those at the reset.
    pub peak: fn() -> usize,
    /// Resets the peak.
    pub reset_peak: fn(),
}

/// A turn in a process of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Turn {
    contestant: String,
    what: What,
    number: u32,
    ticks: u32,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    Pending,
    One,
    Peak,
    PeakInOrder,
    Left,
    SharedPending,
    SharedPeak,
    Bare,
    Purgatory,
}

use What::{Bare, Left, One, Peak, PeakInOrder, Pending, Purgatory, SharedPeak, SharedPending};

/// No turn takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// Measures all contestants and the purgatory.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let program = build()?;
    let pending = bench.pick(10_000, 1_000_000, 1_000_000);
    let in_flight = bench.pick(1_000, 100_000, 100_000);
    let ticks = bench.pick(400, 4_000, 4_000);
    let seed = bench.options.seed;
    let turn = |contestant: &str, what, number| Turn {
        contestant: contestant.to_owned(),
        what,
        number,
        ticks,
        seed,
    };
    for one in timers::all() {
        let admits = |number, delay| one.promises().admits(number, delay);
        for (what, number, delay) in [
            (Pending, pending, Spread::Minute.max()),
            (One, 1, Spread::Minute.max()),
            (Peak, in_flight, 2 * SECOND),
            (PeakInOrder, in_flight, 2 * SECOND),
        ] {
            if admits(number, delay) {
                bench.delegate(&program, &turn(one.name(), what, number))?;
            }
        }
    }
    bench.delegate(&program, &turn(Wheel::NAME, Left, in_flight))?;
    for one in shared::all() {
        for (what, number) in [(SharedPending, pending), (SharedPeak, in_flight)] {
            bench.delegate(&program, &turn(one.name(), what, number))?;
        }
    }
    for name in [Typed::NAME, Closures::NAME] {
        bench.delegate(&program, &turn(name, Bare, pending))?;
    }
    bench.delegate(&program, &turn(Wheel::NAME, Purgatory, pending))
}

/// Builds the program beside this one and in the same way.
fn build() -> Result<PathBuf, Box<dyn Error>> {
    let own = env::current_exe()?;
    let folder = own.parent().ok_or("a program lies in a folder")?;
    let program = folder.join("memory").with_extension(env::consts::EXE_EXTENSION);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--bin", "memory"]);
    build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    build.arg("--target-dir").arg(folder.parent().ok_or("a profile lies in a folder")?);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let is_built = build.stdin(Stdio::null()).status()?.success();
    if is_built { Ok(program) } else { Err("the program `memory` was not built".into()) }
}

impl Turn {
    /// Takes the turn, as a child process.
    pub fn run(&self, heap: &Heap) -> Vec<Figure> {
        match self.what {
            Left => vec![self.left(heap)],
            Bare if self.contestant == Typed::NAME => {
                vec![self.bare(&Typed::new(Timer::builder().clock(ManualClock::new())), heap)]
            }
            Bare => {
                vec![self.bare(&Closures::new(Timer::builder().clock(ManualClock::new())), heap)]
            }
            Purgatory => self.purgatory(heap),
            SharedPending | SharedPeak => {
                let all = shared::all();
                let one = all.iter().find(|one| one.name() == self.contestant);
                one.expect("the parent names a contestant").memory(self, heap)
            }
            Pending | One | Peak | PeakInOrder => {
                let all = timers::all();
                let one = all.iter().find(|one| one.name() == self.contestant);
                one.expect("the parent names a contestant").memory(self, heap)
            }
        }
    }

    fn figure(&self, row: &str, bytes: usize, note: Option<String>) -> Figure {
        let each = count(bytes as u64) / f64::from(self.number);
        Figure::new(row, self.contestant.as_str(), each).with_note(note)
    }

    /// Bytes of a wheel after all requests were cancelled and the wheel was shrunk.
    fn left(&self, heap: &Heap) -> Figure {
        let traffic = Traffic::requests(self.number, self.seed);
        let before = (heap.live)();
        let mut steady = Steady::new(Wheel::default(), &traffic);
        steady.ramp_up();
        steady.pass(u64::from(self.ticks), LIMIT);
        let (mut wheel, keys) = steady.into_parts();
        assert!(keys.iter().all(|&key| wheel.cancel(key)), "a request was not pending");
        drop(keys);
        wheel.get_mut().shrink();
        let left = (heap.live)() - before;
        Figure::new("wheel/memory/left", self.contestant.as_str(), count(left as u64))
    }

    /// Bytes of a timeout of a timer, without its key or handle. Time stands still.
    fn bare<S: SharedTimer>(&self, timer: &S, heap: &Heap) -> Figure {
        let delays = delays(&mut Rng::with_seed(self.seed), self.number);
        let mut timeouts = Vec::with_capacity(delays.len());
        let before = (heap.live)();
        timeouts.extend(delays.iter().map(|&delay| timer.schedule(delay)));
        self.figure("timer/memory/bare", (heap.live)() - before, None)
    }

    fn purgatory(&self, heap: &Heap) -> Vec<Figure> {
        let waiting = self.number as usize;
        let shared = demands(1, 0..100, waiting);
        let each_key =
            |purgatory: &Requests| (0..100).map(|key| purgatory.check_and_complete(&key)).sum();
        let own: Vec<Demand<3>> = demands_apart(1, waiting);
        let own_keys = |purgatory: &Requests| {
            own.iter().map(|demand| purgatory.check_and_complete(&demand.keys[0])).sum()
        };
        let mut figures = purgatory_bytes("shared_keys", &shared, each_key, heap);
        figures.extend(purgatory_bytes("own_keys", &own, own_keys, heap));
        figures
    }
}

/// Bytes of each of a crowd of operations, and of all that the crowd leaves. Time stands still.
fn purgatory_bytes(
    name: &str,
    demands: &[Demand<3>],
    complete_all: impl FnOnce(&Requests) -> usize,
    heap: &Heap,
) -> Vec<Figure> {
    let timer = Timer::builder().clock(ManualClock::new());
    let purgatory: Requests =
        PurgatoryBuilder::new().timer(timer).build().expect("the settings are valid");
    // The first operations make the allocations that occur once.
    let mut first = ClosedLoop::new(&purgatory, Announce::One, &demands[..1]);
    first.run(&demands[..1_000]);
    let first = first.finish();
    let before = (heap.live)();
    let crowd = Crowd::new(&purgatory, demands);
    // An answer is one byte, and is the caller's.
    let bytes = || count((heap.live)().saturating_sub(before + demands.len()) as u64);
    let each = bytes() / count(crowd.count());
    crowd.make_ready();
    assert_eq!(complete_all(&purgatory) as u64, crowd.count());
    assert_eq!(crowd.satisfied(), crowd.count());
    let left = bytes();
    purgatory.shrink();
    let shrunk = bytes();
    purgatory.settle(first.watched + crowd.count(), 0, 0);
    let figure = |row, value| Figure::new(format!("purgatory/memory{row}"), Wheel::NAME, value);
    vec![
        figure(format!("/{name}"), each),
        figure(format!("/left/{name}"), left),
        figure(format!("/left/{name}/shrunk"), shrunk),
    ]
}

/// Memory of a contestant in virtual time.
pub fn told<T: Timers>(make: fn() -> T, turn: &Turn, heap: &Heap) -> Vec<Figure> {
    // The first one may start something that never ends, such as a runtime.
    drop(make());
    if matches!(turn.what, Peak | PeakInOrder) {
        let (row, traffic) = if turn.what == Peak {
            ("random", Traffic::requests(turn.number, turn.seed))
        } else {
            ("oldest", Traffic::requests_in_order(turn.number, turn.seed))
        };
        let mut steady = Steady::new(make(), &traffic);
        (heap.reset_peak)();
        steady.ramp_up();
        let is_whole = steady.pass(turn.ticks.into(), LIMIT);
        let note = (!is_whole).then(|| format!("fewer requests, within {LIMIT:?}"));
        return vec![turn.figure(&format!("wheel/memory/peak/{row}"), (heap.peak)(), note)];
    }
    let deadlines = Spread::Minute.delays(&mut Rng::with_seed(turn.seed), turn.number);
    let before = (heap.live)();
    let mut timers = make();
    for &deadline in &deadlines {
        timers.insert(deadline, deadline);
    }
    let bytes = (heap.live)() - before;
    assert_eq!(timers.len(), deadlines.len(), "{} lost timeouts", T::NAME);
    let row = if turn.what == One { "wheel/memory/one" } else { "wheel/memory/pending" };
    vec![turn.figure(row, bytes, None)]
}

/// Memory of a contestant with threads of its own, with the key or handle of each timeout.
pub fn shared<S: SharedTimer>(turn: &Turn, heap: &Heap) -> Vec<Figure> {
    let mut rng = Rng::with_seed(turn.seed);
    let delays = delays(&mut rng, turn.number);
    let mut requests = victims(&mut rng, turn.number, 1 << 20);
    requests.iter_mut().for_each(|request| request.delay = REQUEST);
    drop(S::start());
    let before = (heap.live)();
    (heap.reset_peak)();
    let timer = S::start();
    let _entered = timer.enter();
    if turn.what == SharedPeak {
        let is_whole = answer(&timer, turn, &requests);
        let note = (!is_whole).then(|| format!("fewer requests, within {LIMIT:?}"));
        return vec![turn.figure("timer/memory/peak", (heap.peak)(), note)];
    }
    let start = Instant::now();
    let timeouts = shared::schedule_all(&timer, &delays);
    timer.catch_up();
    let bytes = (heap.live)() - before;
    drop(timeouts);
    let note = (start.elapsed() > Duration::from_secs(1)).then(|| "some had expired".to_owned());
    vec![turn.figure("timer/memory/pending", bytes, note)]
}

/// The delay of a request.
const REQUEST: Duration = Duration::from_secs(2);

/// Answers requests in each millisecond, unless the contestant cannot keep up. Returns whether all
/// were answered.
///
/// The contestant's threads process all messages each time, so timeouts are counted, and no
/// backlog.
fn answer<S: SharedTimer>(timer: &S, turn: &Turn, requests: &[Victim]) -> bool {
    let per_tick = (turn.number / 100).max(1) as usize;
    let mut timeouts = Vec::with_capacity(turn.number as usize);
    for index in 0..turn.number as usize {
        timeouts.push(timer.schedule(REQUEST));
        if index.is_multiple_of(per_tick) {
            timer.catch_up();
        }
    }
    let start = Instant::now();
    for (tick, requests) in (0..turn.ticks).zip(requests.chunks(per_tick).cycle()) {
        sleep_until(start + tick * Duration::from_millis(1));
        replace_all(timer, &mut timeouts, requests);
        timer.catch_up();
        if start.elapsed() > LIMIT {
            return false;
        }
    }
    true
}
