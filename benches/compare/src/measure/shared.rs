//! Contestants with threads of their own. Each takes each turn in a process of its own.

use std::{hint, sync::mpsc};

use super::Turn;
use crate::prelude::*;
use crate::{os::other_threads, shared::schedule_all_noted};

const PAIR: &str = "timer/pair";
const RESET: &str = "timer/reset";
const IDLE: &str = "timer/idle";
const OVERSUBSCRIBED: &str = "timer/oversubscribed";
const WAITING: &str = "purgatory/oversubscribed";
/// A thread that only sleeps until each instant and wakes a second one.
pub(crate) const FLOOR: &str = "floor";

/// Takes a turn of a row of `timer/` or `purgatory/`.
pub(super) fn take(turn: &Turn) -> Vec<Figure> {
    match (&*turn.row, &*turn.contestant) {
        (WAITING, _) => turn.waiting(),
        (_, FLOOR) => turn.floor(),
        (_, name) => (shared::find(name).take)(turn),
    }
}

impl Turn {
    pub fn take<S: SharedTimer>(&self) -> Vec<Figure> {
        match &*self.row {
            PAIR => self.pairs(S::replace),
            RESET => self.pairs(S::reset),
            IDLE => self.idle::<S>(),
            _ => self.oversubscribed::<S>(),
        }
    }
}

/// Makes every contestant take a turn.
fn delegate(
    bench: &mut Bench,
    row: &str,
    [threads, number]: [u32; 2],
    millis: u32,
    round: usize,
) -> Done {
    let program = env::current_exe()?;
    let names: Vec<_> = bench.of(shared::ALL, |one| one.name).map(|one| one.name).collect();
    for name in names {
        bench.delegate(&program, row, name, [threads, number], millis, round)?;
    }
    Ok(())
}

/// Pairs of schedule and cancel, and resets, on one thread and on several.
pub(crate) fn pairs(bench: &mut Bench) -> Done {
    let millis = bench.full(20, 300);
    for round in 0..bench.rounds() {
        for &number in bench.full(&[1_000][..], &[1_000, 100_000, 1_000_000]) {
            bench.tell(&format!("pairs, {number} pending"));
            delegate(bench, PAIR, [1, number], millis, round)?;
        }
        for threads in [2, 4] {
            bench.tell(&format!("{threads} threads"));
            delegate(bench, PAIR, [threads, 100_000], millis, round)?;
        }
        bench.tell("resets");
        delegate(bench, RESET, [1, bench.full(1_000, 100_000)], millis, round)?;
    }
    Ok(())
}

/// Context switches with one timeout far ahead.
pub(crate) fn idle(bench: &mut Bench) -> Done {
    delegate(bench, IDLE, [1, 1], bench.full(200, 3_000), 0)
}

/// Lateness and pairs with more threads than processors, beside a thread that only sleeps; and the
/// same for requests that wait in a purgatory.
pub(crate) fn oversubscribed(bench: &mut Bench) -> Done {
    const THREADS: [u32; 4] = [2, 4, 8, 16];
    let program = env::current_exe()?;
    let [millis, waiting] = bench.full([200, 100], [2_000, 600]);
    let mut names: Vec<_> = bench.of(shared::LATE, |one| one.name).map(|one| one.name).collect();
    if !bench.options.ours {
        names.push(FLOOR);
    }
    for round in 0..bench.rounds() {
        for &threads in bench.full(&THREADS[1..2], &THREADS) {
            bench.tell(&format!("oversubscribed, {threads} threads"));
            if bench.is_asked(&format!("{OVERSUBSCRIBED}/{threads}")) {
                for name in &names {
                    let row = OVERSUBSCRIBED;
                    bench.delegate(&program, row, name, [threads, 1_000], millis, round)?;
                }
            }
            if bench.is_asked(&format!("{WAITING}/{threads}")) {
                let turn = [threads, 1_000];
                bench.delegate(&program, WAITING, Wheel::NAME, turn, waiting, round)?;
            }
        }
    }
    Ok(())
}

/// Pairs between two reads of the clock.
const CHUNK: usize = 256;

/// All threads begin together and end at the same instant.
struct Start {
    barrier: Barrier,
    begin: OnceLock<Instant>,
}

impl Turn {
    fn pairs<S: SharedTimer>(&self, pair: Pairing<S>) -> Vec<Figure> {
        let (timer, threads) = (S::start(), self.threads);
        let start = Start { barrier: Barrier::new(threads as usize), begin: OnceLock::new() };
        let shares: Vec<[u64; 3]> = thread::scope(|scope| {
            let work = |thread| {
                let (timer, start) = (timer.clone(), &start);
                scope.spawn(move || self.pairs_of_one(&timer, u64::from(thread), start, pair))
            };
            let workers: Vec<_> = (0..threads).map(work).collect();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
        });
        // Work that callers leave to the timer's threads is part of a pair.
        timer.catch_up();
        let begin = start.begin.get().expect("all workers have begun");
        let time = begin.elapsed();
        let sum = |index: usize| shares.iter().map(|share| share[index]).sum::<u64>();
        let pairs = sum(0);
        if self.row == PAIR {
            timer.settle(sum(1), sum(2));
        }
        let mut figures = Vec::new();
        if threads == 1 {
            let row = format!("{}/{}", self.row, size(self.number));
            figures.push(Figure::new(row, S::NAME, nanos_per(time, pairs)));
        }
        if self.number == 100_000 && self.row == PAIR {
            let rate = count(pairs) / time.as_secs_f64() / 1e6;
            figures.push(Figure::new(format!("timer/threads/{threads}"), S::NAME, rate));
        }
        figures
    }

    /// Returns the pairs that are measured, and how many timeouts were scheduled and cancelled in
    /// all.
    fn pairs_of_one<S: SharedTimer>(
        &self,
        timer: &S,
        thread: u64,
        start: &Start,
        pair: Pairing<S>,
    ) -> [u64; 3] {
        let _entered = timer.enter();
        let mut rng = Rng::with_seed(self.seed + thread);
        let pending = self.number / self.threads;
        let mut timeouts = schedule_all(timer, &delays(&mut rng, pending));
        let mut pairs = |victims: &[Victim]| {
            let pair =
                |victim: &Victim| pair(timer, &mut timeouts[victim.index as usize], victim.delay);
            victims.iter().map(pair).map(u64::from).sum::<u64>()
        };
        let warm_up: Vec<_> = (0..2 * pending).map(|_| Victim::draw(&mut rng, pending)).collect();
        let mut cancelled = pairs(&warm_up);
        let mut victims = Draws::new(|| Victim::draw(&mut rng, pending));
        timer.catch_up();
        start.barrier.wait();
        let end = *start.begin.get_or_init(Instant::now) + self.time();
        let mut done = 0;
        while Instant::now() < end {
            cancelled += pairs(victims.chunk(CHUNK));
            done += CHUNK as u64;
        }
        [done, u64::from(pending) + warm_up.len() as u64 + done, cancelled]
    }

    fn idle<S: SharedTimer>(&self) -> Vec<Figure> {
        let timer = S::start();
        let _entered = timer.enter();
        let _timeout = timer.schedule(Duration::from_millis(30 * DAY));
        // Threads start and fall asleep.
        thread::sleep(self.time().min(Duration::from_secs(1)));
        let Some(before) = other_threads() else { return Vec::new() };
        thread::sleep(self.time());
        let Some(after) = other_threads() else { return Vec::new() };
        let switches = count(after.switches.saturating_sub(before.switches));
        vec![
            Figure::new("timer/idle/switches", S::NAME, switches / self.time().as_secs_f64()),
            Figure::new("timer/idle/threads", S::NAME, f64::from(after.threads)),
        ]
    }

    /// Threads cancel and schedule until 2000 others have run.
    fn oversubscribed<S: SharedTimer>(&self) -> Vec<Figure> {
        let timer = S::start();
        let outcome = self.beside(
            |thread, is_over| self.insert_until(&timer, thread, is_over),
            || {
                let _entered = timer.enter();
                let (arrivals, due) = schedule_all_noted(&timer, &self.expiring());
                thread::sleep(self.time() + LEAST);
                arrivals.settle(due, Duration::from_secs(10))
            },
        );
        self.late(S::NAME, outcome)
    }

    /// Threads compute, while one sleeps until each instant and wakes another, which notes it.
    fn floor(&self) -> Vec<Figure> {
        let compute = |_, is_over: &AtomicBool| {
            while !is_over.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
            Vec::new()
        };
        let outcome = self.beside(compute, || {
            let mut delays = self.expiring();
            delays.sort_unstable();
            let arrivals = Arrivals::new(delays.len());
            let due: Vec<_> = delays.iter().map(|&delay| nanos(delay)).collect();
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                scope.spawn(|| receiver.into_iter().for_each(|due| arrivals.note(due)));
                for &due in &due {
                    sleep_until(arrivals.instant(due));
                    sender.send(due).expect("the other thread runs");
                }
                drop(sender);
            });
            arrivals.settle(due, Duration::from_secs(10))
        });
        let late = self.late(FLOOR, outcome);
        // Requests that wait in a purgatory are compared with the same.
        let copy = |figure: &Figure| {
            let row = figure.row.replacen(OVERSUBSCRIBED, WAITING, 1);
            Figure { row, ..figure.clone() }
        };
        late.iter().map(copy).chain(late.iter().cloned()).collect()
    }

    /// Does something while threads work. Returns its result and what the threads return.
    fn beside<R>(
        &self,
        work: impl Fn(u64, &AtomicBool) -> Vec<u64> + Sync,
        main: impl FnOnce() -> R,
    ) -> (R, Vec<u64>) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (work, is_over) = (&work, &is_over);
            let spawn = |thread| scope.spawn(move || work(u64::from(thread), is_over));
            let workers: Vec<_> = (0..self.threads).map(spawn).collect();
            let result = main();
            is_over.store(true, Ordering::Relaxed);
            let results =
                workers.into_iter().map(|worker| worker.join().expect("no worker panics"));
            (result, results.flatten().collect())
        })
    }

    /// Delays of the timeouts that run.
    fn expiring(&self) -> Vec<Duration> {
        let mut rng = Rng::with_seed(self.seed);
        (0..2_000).map(|_| LEAST + self.time().mul_f64(rng.f64())).collect()
    }

    fn late(&self, name: &str, (outcome, pairs): (Outcome, Vec<u64>)) -> Vec<Figure> {
        let note = (outcome.faults > 0)
            .then(|| format!("{} timeouts did not run within 10 s", outcome.faults));
        let row = format!("{OVERSUBSCRIBED}/{}", self.threads);
        let mut figures = Vec::new();
        if !outcome.arrived.is_empty() {
            let late = outcome.lateness(0..u64::MAX);
            figures = Figure::percentiles(&row, name, &late, "p50 p99", MILLI);
        }
        if !pairs.is_empty() {
            let row = format!("{OVERSUBSCRIBED}/pair/{}", self.threads);
            figures.extend(Figure::percentiles(&row, name, &histogram(pairs), "p99.9", MICRO));
        }
        figures.into_iter().map(|figure| figure.with_note(note.clone())).collect()
    }

    /// Threads make requests and complete them, until 1,000 others have expired.
    fn waiting(&self) -> Vec<Figure> {
        let (purgatory, start) = (Requests::start(), Instant::now());
        let mut rng = Rng::with_seed(self.seed);
        let (due, pairs) = self.beside(
            |thread, is_over| request_until(&purgatory, thread, is_over),
            || {
                let mut expiring = Expiring::new(self.number as usize);
                for answer in Answer::leak(self.number as usize) {
                    let delay = LEAST + self.time().mul_f64(rng.f64());
                    expiring.watch(&purgatory, answer, [rng.u32(0..100)], delay);
                }
                expiring.settle();
                expiring
            },
        );
        purgatory.settle(pairs.len() as u64, u64::from(self.number), 0);
        let late = due.lateness(start);
        let row = format!("{WAITING}/{}", self.threads);
        let late = Figure::percentiles(&row, Wheel::NAME, &late, "p50 p99", MILLI);
        let row = format!("{WAITING}/pair/{}", self.threads);
        let pairs = Figure::percentiles(&row, Wheel::NAME, &histogram(pairs), "p99.9", MICRO);
        late.into_iter().chain(pairs).collect()
    }

    /// Returns the nanoseconds of each pair.
    fn insert_until<S: SharedTimer>(
        &self,
        timer: &S,
        thread: u64,
        is_over: &AtomicBool,
    ) -> Vec<u64> {
        let _entered = timer.enter();
        let mut rng = Rng::with_seed(self.seed + thread);
        let mut timeouts = schedule_all(timer, &delays(&mut rng, self.number));
        let mut victims = Draws::new(|| Victim::draw(&mut rng, self.number));
        let mut pairs = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            for victim in victims.chunk(16) {
                let timeout = &mut timeouts[victim.index as usize];
                pairs.push(nanos(timed(|| timer.replace(timeout, victim.delay)).0));
            }
        }
        pairs
    }
}

/// Cancels a timeout and schedules another, or moves it. Returns whether it was pending.
type Pairing<S> = fn(&S, &mut <S as SharedTimer>::Timeout, Duration) -> bool;

/// The least delay of timeouts that run.
const LEAST: Duration = Duration::from_millis(50);

/// Makes requests on three keys, and completes each by its handle. Returns the nanoseconds of each.
fn request_until(purgatory: &Requests, thread: u64, is_over: &AtomicBool) -> Vec<u64> {
    let demands = demands::<3>(thread, 0..100, 1 << 16);
    let [answer] = Answer::leak(1) else { unreachable!("one was made") };
    let mut requests = Vec::new();
    for demand in demands.iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let request = || {
            let request = purgatory.watch(answer, demand.keys, demand.delay());
            assert!(purgatory.complete(request), "a request did not wait");
        };
        requests.push(nanos(timed(request).0));
        answer.reuse();
    }
    requests
}
