//! Contestants with threads of their own. Each takes each turn in a process of its own.

use std::ptr;

use super::Turn;
use crate::prelude::*;
use crate::{
    os::other_threads,
    purgatory::{EXPIRED, IS_NOTING},
    shared::schedule_all_noted,
};

const PAIRS: &str = "timer/pair";
const IDLE: &str = "timer/idle";
const LATENESS: &str = "timer/lateness";
const OVERSUBSCRIBED: &str = "timer/oversubscribed";
const MANY: &str = "oversubscribed/timer";
pub(crate) const WAITING: &str = "oversubscribed/purgatory";

impl Turn {
    pub fn take<S: SharedTimer>(&self) -> Vec<Figure> {
        match &*self.row {
            PAIRS => self.pairs::<S>(),
            IDLE => self.idle::<S>(),
            LATENESS => self.lateness::<S>(),
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
    for one in shared::all() {
        bench.delegate(&program, row, one.name(), [threads, number], millis, round)?;
    }
    Ok(())
}

/// Pairs of schedule and cancel, on one thread and on several.
pub(crate) fn pairs(bench: &mut Bench) -> Done {
    let millis = bench.pick(20, 300, 500);
    let sizes: &[u32] = bench.full(&[1_000], &[1_000, 100_000, 1_000_000]);
    for round in 0..bench.rounds() {
        for &number in sizes {
            bench.tell(&format!("pairs, {number} pending"));
            delegate(bench, PAIRS, [1, number], millis, round)?;
        }
        for threads in [2, 4] {
            bench.tell(&format!("{threads} threads"));
            delegate(bench, PAIRS, [threads, 100_000], millis, round)?;
        }
    }
    if sizes.len() > 1 {
        bench.add_quotient("timer/scaling/2_of_1", "timer/threads/2", "timer/threads/1");
    }
    bench.add_quotient("timer/scaling/4_of_2", "timer/threads/4", "timer/threads/2");
    Ok(())
}

/// Context switches with one timeout far ahead.
pub(crate) fn idle(bench: &mut Bench) -> Done {
    delegate(bench, IDLE, [1, 1], bench.full(200, 3_000), 0)
}

pub(crate) fn lateness(bench: &mut Bench) -> Done {
    for round in 0..bench.rounds() {
        let (number, millis) = bench.full((200, 200), (2_000, 2_000));
        delegate(bench, LATENESS, [1, number], millis, round)?;
    }
    Ok(())
}

/// Lateness and pairs with more threads than processors.
pub(crate) fn oversubscribed(bench: &mut Bench) -> Done {
    let threads = bench.full(4, 16);
    delegate(bench, OVERSUBSCRIBED, [threads, 1_000], bench.pick(200, 2_000, 4_000), 0)
}

/// Numbers of threads of the rows that compare a few contestants.
const THREADS: [u32; 4] = [2, 4, 8, 16];

/// The same for several numbers of threads, beside Kafka's scheme and tokio; and for purgatories.
pub(crate) fn threads_on_cores(bench: &mut Bench) -> Done {
    let program = env::current_exe()?;
    let millis = bench.full(100, 600);
    for round in 0..bench.rounds() {
        for threads in bench.full(&THREADS[..1], &THREADS) {
            for name in [Typed::PROMISES.name, "tokio", "kafka_timer"] {
                bench.delegate(&program, MANY, name, [*threads, 1_000], millis, round)?;
            }
            for name in [Requests::NAME, KafkaPurgatory::NAME] {
                bench.delegate(&program, WAITING, name, [*threads, 1_000], millis, round)?;
            }
        }
    }
    Ok(())
}

/// Lateness of requests that expire, while threads make requests that complete.
pub(crate) fn take_waiting(turn: &Turn) -> Vec<Figure> {
    if turn.contestant == KafkaPurgatory::NAME {
        turn.waiting::<KafkaPurgatory>()
    } else {
        turn.waiting::<Requests>()
    }
}

/// Pairs between two reads of the clock.
const CHUNK: usize = 256;

/// Pairs that are drawn in advance; then they repeat.
const DRAWN: u32 = 1 << 16;

/// All threads begin together and end at the same instant.
struct Start {
    barrier: Barrier,
    begin: OnceLock<Instant>,
}

impl Turn {
    fn pairs<S: SharedTimer>(&self) -> Vec<Figure> {
        let (timer, threads) = (S::start(), self.threads);
        let start = Start { barrier: Barrier::new(threads as usize), begin: OnceLock::new() };
        let shares: Vec<[u64; 3]> = thread::scope(|scope| {
            let work = |thread| {
                let (timer, start) = (timer.clone(), &start);
                scope.spawn(move || self.pairs_of_one(&timer, u64::from(thread), start))
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
        timer.settle(sum(1), sum(2));
        let mut figures = Vec::new();
        if threads == 1 {
            let row = format!("timer/pair/{}", size(self.number));
            figures.push(Figure::new(row, S::NAME, nanos_per(time, pairs)));
        }
        if self.number == 100_000 {
            let rate = count(pairs) / time.as_secs_f64() / 1e6;
            figures.push(Figure::new(format!("timer/threads/{threads}"), S::NAME, rate));
        }
        figures
    }

    /// Returns the pairs that are measured, and how many timeouts were scheduled and cancelled in
    /// all.
    fn pairs_of_one<S: SharedTimer>(&self, timer: &S, thread: u64, start: &Start) -> [u64; 3] {
        let _entered = timer.enter();
        let mut rng = Rng::with_seed(self.seed + thread);
        let pending = self.number / self.threads;
        let mut timeouts = schedule_all(timer, &delays(&mut rng, pending));
        let warm_up = victims(&mut rng, pending, 2 * pending);
        let mut cancelled = replace_all(timer, &mut timeouts, &warm_up);
        let victims = victims(&mut rng, pending, DRAWN);
        timer.catch_up();
        start.barrier.wait();
        let end = *start.begin.get_or_init(Instant::now) + self.time();
        let mut pairs = 0;
        for victims in victims.chunks_exact(CHUNK).cycle() {
            if Instant::now() >= end {
                break;
            }
            cancelled += replace_all(timer, &mut timeouts, victims);
            pairs += CHUNK as u64;
        }
        [pairs, u64::from(pending) + warm_up.len() as u64 + pairs, cancelled]
    }

    fn idle<S: SharedTimer>(&self) -> Vec<Figure> {
        let far = S::PROMISES.max_delay.map_or(30 * DAY, |longest| longest.min(30 * DAY));
        let timer = S::start();
        let _entered = timer.enter();
        let _timeout = timer.schedule(Duration::from_millis(far));
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

    fn lateness<S: SharedTimer>(&self) -> Vec<Figure> {
        let timer = S::start();
        let _entered = timer.enter();
        let mut rng = Rng::with_seed(self.seed);
        // The least delay is long enough to schedule all.
        let delay = |_| Duration::from_millis(100) + self.time().mul_f64(rng.f64());
        let delays: Vec<_> = (0..self.number).map(delay).collect();
        let (arrivals, due) = schedule_all_noted(&timer, &delays);
        let outcome = arrivals.settle(due, Duration::from_secs(2));
        let mut late: Vec<_> =
            outcome.arrived.iter().map(|&(due, at)| (count(at) - count(due)) / 1e6).collect();
        late.sort_unstable_by(f64::total_cmp);
        let mut figures = vec![Figure::new("timer/faults", S::NAME, count(outcome.faults as u64))];
        if !late.is_empty() {
            figures.extend(PERCENTILES.map(|(name, per_mille)| {
                let rank = (per_mille * late.len()).div_ceil(1_000).max(1) - 1;
                Figure::new(format!("timer/lateness/{name}"), S::NAME, late[rank])
            }));
        }
        figures
    }

    /// Threads cancel and schedule until the time is up.
    fn oversubscribed<S: SharedTimer>(&self) -> Vec<Figure> {
        let (timer, is_over) = (S::start(), AtomicBool::new(false));
        let mut rng = Rng::with_seed(self.seed);
        let least = Duration::from_millis(50);
        let expiring: Vec<_> = (0..2_000).map(|_| least + self.time().mul_f64(rng.f64())).collect();
        let (outcome, pairs) = thread::scope(|scope| {
            let work = |thread| {
                let (timer, is_over) = (timer.clone(), &is_over);
                scope.spawn(move || self.insert_until(&timer, thread, is_over))
            };
            let workers: Vec<_> = (0..self.threads).map(|thread| work(u64::from(thread))).collect();
            let _entered = timer.enter();
            let (arrivals, due) = schedule_all_noted(&timer, &expiring);
            thread::sleep(self.time() + least);
            let outcome = arrivals.settle(due, Duration::from_secs(10));
            is_over.store(true, Ordering::Relaxed);
            let pairs =
                workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics"));
            (outcome, histogram(pairs.collect::<Vec<_>>()))
        });
        let lateness = outcome.lateness(0..u64::MAX);
        let note = (outcome.faults > 0)
            .then(|| format!("{} timeouts did not run within 10 s", outcome.faults));
        let late = if outcome.arrived.is_empty() { "" } else { "p50 p99 max" };
        let [row, pair] = if self.row == MANY {
            ["late", "pair"].map(|what| format!("oversubscribed/{what}/timer/{}", self.threads))
        } else {
            [OVERSUBSCRIBED.to_owned(), format!("{OVERSUBSCRIBED}/pair")]
        };
        let late = Figure::percentiles(&row, S::NAME, &lateness, late, MILLI);
        let pairs = Figure::percentiles(&pair, S::NAME, &pairs, "p99.9", MICRO);
        late.into_iter().map(|figure| figure.with_note(note.clone())).chain(pairs).collect()
    }

    /// Threads make requests and complete them, until 1,000 others have expired.
    fn waiting<P: SharedPurgatory>(&self) -> Vec<Figure> {
        let (purgatory, is_over) = (P::start(), AtomicBool::new(false));
        let mut rng = Rng::with_seed(self.seed);
        let expiring = Answer::leak(self.number as usize);
        IS_NOTING.store(true, Ordering::Relaxed);
        let (due, pairs) = thread::scope(|scope| {
            let work = |thread| {
                let (purgatory, is_over) = (&purgatory, &is_over);
                scope.spawn(move || request_until(purgatory, thread, is_over))
            };
            let workers: Vec<_> = (0..self.threads).map(|thread| work(u64::from(thread))).collect();
            let watch = |answer: &'static Answer| {
                let delay = Duration::from_millis(50) + self.time().mul_f64(rng.f64());
                let due = Instant::now() + delay;
                purgatory.watch(answer, [rng.u32(0..100)], delay);
                (ptr::from_ref(answer).addr(), due)
            };
            let due: BTreeMap<_, _> = expiring.iter().map(watch).collect();
            wait_until("all have expired", || expiring.iter().all(Answer::has_ended));
            is_over.store(true, Ordering::Relaxed);
            let pairs =
                workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics"));
            (due, pairs.collect::<Vec<_>>())
        });
        purgatory.settle(pairs.len() as u64, u64::from(self.number), 0);
        let expired = EXPIRED.lock();
        let late =
            expired.iter().map(|(answer, at)| nanos(at.saturating_duration_since(due[answer])));
        let [row, pair] = ["late", "pair"]
            .map(|what| format!("oversubscribed/{what}/purgatory/{}", self.threads));
        let late = Figure::percentiles(&row, P::NAME, &histogram(late), "p50 p99 max", MILLI);
        let pairs = Figure::percentiles(&pair, P::NAME, &histogram(pairs), "p99.9", MICRO);
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
        let victims = victims(&mut rng, self.number, DRAWN);
        let mut pairs = Vec::new();
        for victim in victims.iter().cycle() {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let (time, _) =
                timed(|| timer.replace(&mut timeouts[victim.index as usize], victim.delay));
            pairs.push(nanos(time));
        }
        pairs
    }
}

/// Makes requests on three keys, and completes each by its handle. Returns the nanoseconds of each.
fn request_until<P: SharedPurgatory>(purgatory: &P, thread: u64, is_over: &AtomicBool) -> Vec<u64> {
    let demands = demands::<3>(thread, 0..100, DRAWN as usize);
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

/// Percentiles of lateness, by name and in thousandths.
pub const PERCENTILES: [(&str, usize); 10] = [
    ("min", 0),
    ("p1", 10),
    ("p10", 100),
    ("p25", 250),
    ("p50", 500),
    ("p75", 750),
    ("p90", 900),
    ("p99", 990),
    ("p99.9", 999),
    ("max", 1_000),
];
