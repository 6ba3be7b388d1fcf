//! Heap bytes. The program `memory` takes each turn, in a process of its own, since its counting
//! allocator would slow everything that is timed. Bytes are those that were requested from the
//! allocator.

use std::{
    ffi::OsString,
    process::{Command, Stdio},
};

use super::{
    Turn, map,
    traffic::{Steady, Traffic},
};
use crate::prelude::*;

/// The counters of the allocator.
pub struct Heap {
    pub live: fn() -> usize,
    /// Greatest number of live bytes since the last reset, above those at the reset.
    pub peak: fn() -> usize,
    pub reset_peak: fn(),
}

const PENDING: &str = "wheel/memory/pending";
const PEAK: &str = "wheel/memory/peak/random";
const SHARED_PENDING: &str = "timer/memory/pending";
const SHARED_PEAK: &str = "timer/memory/peak";
const PURGATORY: &str = "purgatory/memory";

/// No turn takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// Measures all contestants and the purgatory.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let program = build()?;
    let pending = bench.full(10_000, 1_000_000);
    let in_flight = bench.full(1_000, 100_000);
    let mut turns = Vec::new();
    for one in bench.of(&timers::ALL, |one| one.name) {
        for (row, number) in [(PENDING, pending), (PEAK, in_flight)] {
            turns.push((row, one.name, number));
        }
    }
    for one in bench.of(shared::ALL, |one| one.name) {
        turns.push((SHARED_PENDING, one.name, pending));
        turns.push((SHARED_PEAK, one.name, in_flight));
    }
    turns.extend(bench.of(&map::ALL, |one| one.0).map(|one| (map::MEMORY, one.0, pending)));
    turns.push((PURGATORY, Wheel::NAME, pending));
    for (row, contestant, number) in turns {
        let millis = bench.full(400, 4_000);
        bench.delegate(&program, row, contestant, [1, number], millis, 0)?;
    }
    Ok(())
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
    if cfg!(tokio_unstable) && env::var_os("RUSTFLAGS").is_none() {
        // As the alias `cargo compare` does.
        build.args(["--config", "build.rustflags = ['--cfg=tokio_unstable']"]);
    }
    let is_built = build.stdin(Stdio::null()).status()?.success();
    if is_built { Ok(program) } else { Err("the program `memory` was not built".into()) }
}

impl Turn {
    pub fn run_counted(&self, heap: &Heap) -> Vec<Figure> {
        match &*self.row {
            map::MEMORY => {
                let one = map::ALL.iter().find(|one| one.0 == self.contestant);
                self.each((one.expect("the parent names a contestant").2)(self, heap), None)
            }
            PURGATORY => self.purgatory(heap),
            SHARED_PENDING | SHARED_PEAK => (shared::find(&self.contestant).memory)(self, heap),
            _ => {
                let one = timers::ALL.iter().find(|one| one.name == self.contestant);
                (one.expect("the parent names a contestant").memory)(self, heap)
            }
        }
    }

    /// Bytes of each timeout.
    fn each(&self, bytes: usize, note: Option<String>) -> Vec<Figure> {
        let each = count(bytes as u64) / f64::from(self.number);
        vec![Figure::new(&*self.row, &*self.contestant, each).with_note(note)]
    }

    fn purgatory(&self, heap: &Heap) -> Vec<Figure> {
        let waiting = self.number as usize;
        let shared = demands(1, 0..100, waiting);
        let each_key = |purgatory: &Requests| (0..100).map(|key| purgatory.check(key)).sum();
        let own: Vec<Demand<3>> = demands_apart(1, waiting);
        let own_keys =
            |purgatory: &Requests| own.iter().map(|demand| purgatory.check(demand.keys[0])).sum();
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
    let purgatory = Requests::new(Timer::builder().clock(ManualClock::new()));
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
    [
        (name.to_owned(), each),
        (format!("left/{name}"), left),
        (format!("left/{name}/shrunk"), shrunk),
    ]
    .map(|(row, value)| Figure::new(format!("{PURGATORY}/{row}"), Wheel::NAME, value))
    .into()
}

/// A caveat, unless the whole time was measured.
fn unless(is_whole: bool) -> Option<String> {
    (!is_whole).then(|| format!("fewer requests, within {LIMIT:?}"))
}

/// Memory of a contestant that gets the time from its caller.
pub fn of_timers<T: Timers + Default>(turn: &Turn, heap: &Heap) -> Vec<Figure> {
    // The first one may start something that never ends, such as a runtime.
    drop(T::default());
    if turn.row == PEAK {
        let traffic = Traffic::requests(turn.number, turn.seed);
        let mut steady = Steady::new(T::default(), &traffic);
        (heap.reset_peak)();
        steady.ramp_up();
        let is_whole = steady.pass(turn.millis.into(), LIMIT);
        return turn.each((heap.peak)(), unless(is_whole));
    }
    let deadlines = Spread::Minute.delays(&mut Rng::with_seed(turn.seed), turn.number);
    let before = (heap.live)();
    let mut timers = T::default();
    for &deadline in &deadlines {
        timers.insert(deadline, deadline);
    }
    let bytes = (heap.live)() - before;
    assert_eq!(timers.len(), deadlines.len(), "{} lost timeouts", T::NAME);
    turn.each(bytes, None)
}

/// Memory of a contestant with threads of its own, with the key or handle of each timeout.
pub fn of_shared<S: SharedTimer>(turn: &Turn, heap: &Heap) -> Vec<Figure> {
    let mut rng = Rng::with_seed(turn.seed);
    let delays = delays(&mut rng, turn.number);
    let mut draw = || Victim { delay: REQUEST, ..Victim::draw(&mut rng, turn.number) };
    let requests: Vec<_> = (0..1 << 20).map(|_| draw()).collect();
    drop(S::start());
    let before = (heap.live)();
    (heap.reset_peak)();
    let timer = S::start();
    let _entered = timer.enter();
    if turn.row == SHARED_PEAK {
        let is_whole = answer(&timer, turn, &requests);
        return turn.each((heap.peak)(), unless(is_whole));
    }
    let start = Instant::now();
    let timeouts = shared::schedule_all(&timer, &delays);
    timer.catch_up();
    let bytes = (heap.live)() - before;
    drop(timeouts);
    let note = (start.elapsed() > Duration::from_secs(1)).then(|| "some had expired".to_owned());
    turn.each(bytes, note)
}

/// The delay of a request.
const REQUEST: Duration = Duration::from_secs(2);

/// Answers requests in each millisecond, unless the contestant cannot keep up. Returns whether all
/// were answered.
///
/// The contestant's threads process all messages each time, so the peak holds timeouts, and no
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
    for (tick, requests) in (0..turn.millis).zip(requests.chunks(per_tick).cycle()) {
        sleep_until(start + tick * Duration::from_millis(1));
        for request in requests {
            timer.replace(&mut timeouts[request.index as usize], request.delay);
        }
        timer.catch_up();
        if start.elapsed() > LIMIT {
            return false;
        }
    }
    true
}
