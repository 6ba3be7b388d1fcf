//! The workload that was published with Kafka's purgatory, `TestPurgatoryPerformance`: the highest
//! sustained rate.
//!
//! Requests arrive as a Poisson process and wait on 3 keys out of 100, with a timeout of 200 ms.
//! Latencies are log-normal. A request whose latency is shorter than the timeout is completed that
//! long after it arrived, by another thread, through its handle. (The published program has all
//! requests watch the same three keys; here each draws its own.) Both threads process what is due
//! and then sleep for half a millisecond.
//!
//! A rate is sustained if requests are created at 0.99 of it, which is the published criterion. It
//! is punctual if also at most one of a hundred requests expires that should complete. The
//! contestants take turns at each rate.

use std::{
    f64::consts::TAU,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation};
use fastrand::Rng;

use crate::{
    bench::{Bench, Done},
    os::{process_cpu, sleep_until, wait_until},
    purgatory::{Answer, KafkaPurgatory, Request, Requests, SharedPurgatory},
    workload::{count, nanos},
};

/// Percentiles 75 and 50 of the latencies in milliseconds: the two workloads that were published.
const PUBLISHED: [[u32; 2]; 2] = [[60, 20], [400, 200]];

const KEYS_EACH: usize = 3;
const KEY_SPACE: u32 = 100;
const TIMEOUT: Duration = Duration::from_millis(200);

/// How requests are completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By their handle.
    Handle,
    /// By events on their keys, which check every request on these keys.
    Events,
    /// There is no purgatory, only the driver.
    Nothing,
}

impl By {
    /// The end of a path of the report.
    const fn suffix(self) -> &'static str {
        if matches!(self, Self::Events) { "/events" } else { "" }
    }
}

/// A contestant in one search.
struct Searched {
    name: &'static str,
    attempt: fn(u32, u32, [u32; 2], By) -> Outcome,
    /// The highest rate; 0 if the first one is not sustained.
    sustained: u32,
    punctual: u32,
    has_failed: bool,
}

impl Searched {
    fn of<P: SharedPurgatory>() -> Self {
        let attempt = attempt::<P>;
        Self { name: P::NAME, attempt, sustained: 0, punctual: 0, has_failed: false }
    }

    /// Tries a rate, unless a lower one has failed.
    fn try_rate(&mut self, rate: u32, seconds: u32, latency: [u32; 2], by: By) {
        // One disturbance does not end the search.
        for _ in 0..2 {
            if self.has_failed || self.punctual >= rate {
                break;
            }
            let outcome = (self.attempt)(rate, seconds, latency, by);
            if outcome.is_sustained {
                self.sustained = rate;
            }
            if outcome.is_punctual {
                self.punctual = rate;
            }
        }
        self.has_failed = self.sustained < rate;
    }
}

/// Searches the highest rates of both contestants, and measures beyond them and at fixed ones.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let seconds = bench.pick(1, 1, 2);
    let rounds = bench.options.rounds.unwrap_or(bench.pick(1, 1, 5));
    for _ in 0..rounds {
        for &latency in bench.full(&PUBLISHED[..1], &PUBLISHED[..]) {
            search(bench, latency, seconds, By::Handle);
            search(bench, latency, seconds, By::Events);
        }
        let rate = bench.full(20_000, 400_000);
        for one in [Searched::of::<Requests>(), Searched::of::<KafkaPurgatory>()] {
            for (row, rate, by) in [("handle", rate, By::Handle), ("events", 20_000, By::Events)] {
                if let Some(cpu) = (one.attempt)(rate, seconds, PUBLISHED[0], by).cpu {
                    bench.add(&format!("purgatory/load/cpu/{row}"), one.name, cpu);
                }
            }
        }
        if let Some(cpu) = attempt::<Requests>(rate, seconds, PUBLISHED[0], By::Nothing).cpu {
            bench.add("purgatory/load/cpu/driver", Requests::NAME, cpu);
        }
    }
    Ok(())
}

/// Searches the highest rates, with steps of a quarter and a last one of an eighth. Then offers
/// half of the highest sustained rate, and half as much again.
fn search(bench: &mut Bench, latency: [u32; 2], seconds: u32, by: By) {
    let (first, last) = bench.full((20_000, 20_000), (100_000, 8_000_000));
    let case = format!("{}-{}{}", latency[0], latency[1], by.suffix());
    bench.tell(&format!("purgatory/load, {case}"));
    let mut all = [Searched::of::<Requests>(), Searched::of::<KafkaPurgatory>()];
    let mut rate = first;
    while rate <= last && all.iter().any(|one| !one.has_failed) {
        all.iter_mut().for_each(|one| one.try_rate(rate, seconds, latency, by));
        rate += rate / 4;
    }
    for one in &mut all {
        one.has_failed = bench.full(true, false);
        one.try_rate(one.sustained + one.sustained / 8, seconds, latency, by);
        for (row, rate) in [("sustained", one.sustained), ("punctual", one.punctual)] {
            let row = format!("purgatory/load/{row}/{case}");
            bench.add(&row, one.name, f64::from(rate) / 1e3);
        }
    }
    for one in all.iter().filter(|one| one.sustained > 0) {
        let past = (one.attempt)(one.sustained + one.sustained / 2, seconds, latency, by);
        let half = (one.attempt)(one.sustained / 2, seconds, latency, by);
        let done = past.rate / f64::from(one.sustained);
        bench.add(&format!("purgatory/load/past/done/{case}"), one.name, done);
        if let Some((past, half)) = past.cpu.zip(half.cpu) {
            bench.add(&format!("purgatory/load/past/cpu/{case}"), one.name, past);
            bench.add(&format!("purgatory/load/past/cpu_of_half/{case}"), one.name, past / half);
        }
    }
}

struct Outcome {
    is_sustained: bool,
    is_punctual: bool,
    /// Requests that were created in a second.
    rate: f64,
    /// Nanoseconds of processor time of one request.
    cpu: Option<f64>,
}

/// Times are nanoseconds after the start.
struct Schedule {
    arrivals: Vec<u64>,
    /// When requests complete before their timeout, in order, and which.
    completions: Vec<(u64, u32)>,
    keys: Vec<[u32; KEYS_EACH]>,
}

impl Schedule {
    fn new(rate: u32, seconds: u32, latency: [u32; 2]) -> Self {
        let mut rng = Rng::with_seed(1);
        let number = rate * seconds;
        let (mut arrivals, mut completions, mut arrival) = (Vec::new(), Vec::new(), 0.0);
        for request in 0..number {
            // An interval of a Poisson process.
            arrival -= (1.0 - rng.f64()).ln() / f64::from(rate);
            let at = nanos(Duration::from_secs_f64(arrival));
            arrivals.push(at);
            let latency = draw_latency(&mut rng, latency);
            if latency < nanos(TIMEOUT) {
                completions.push((at + latency, request));
            }
        }
        completions.sort_unstable();
        let keys = (0..number).map(|_| [(); KEYS_EACH].map(|()| rng.u32(0..KEY_SPACE))).collect();
        Self { arrivals, completions, keys }
    }
}

/// Draws from a log-normal distribution, in nanoseconds.
fn draw_latency(rng: &mut Rng, [pct75, pct50]: [u32; 2]) -> u64 {
    /// Of the normal distribution.
    const PCT75: f64 = 0.674_490;
    let deviation = (f64::from(pct75) / f64::from(pct50)).ln() / PCT75;
    let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (TAU * rng.f64()).cos();
    nanos(Duration::from_secs_f64(f64::from(pct50) / 1e3 * (normal * deviation).exp()))
}

/// Runs at a rate, and checks that each request ended once and as it had to.
fn attempt<P: SharedPurgatory>(rate: u32, seconds: u32, latency: [u32; 2], by: By) -> Outcome {
    let (schedule, purgatory) = (Schedule::new(rate, seconds, latency), P::start());
    let number = schedule.arrivals.len();
    let origin = Instant::now() + Duration::from_millis(20);
    let run = Run {
        by,
        schedule: &schedule,
        purgatory: &purgatory,
        answers: Answer::leak(number),
        origin,
    };
    let before = process_cpu();
    let (created, creations) = mpsc::channel();
    let end = thread::scope(|scope| {
        let run = &run;
        let creator = scope.spawn(move || run.create(&created));
        let completer = scope.spawn(move || run.complete(&creations));
        completer.join().expect("no completion panics");
        creator.join().expect("no request is refused")
    });
    if by != By::Nothing {
        let mut ended = 0;
        wait_until("all have ended", || {
            ended += run.answers[ended..].iter().take_while(|answer| answer.has_ended()).count();
            ended == number
        });
    }
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let satisfied = run.settle();
    let last = Duration::from_nanos(schedule.arrivals[number - 1]);
    // 0.99 of the rate at which they arrive.
    let is_sustained = end.as_secs_f64() * 0.99 <= last.as_secs_f64();
    let missed = schedule.completions.len() - satisfied;
    Outcome {
        is_sustained,
        rate: count(number as u64) / end.as_secs_f64(),
        is_punctual: is_sustained && missed * 100 <= number,
        cpu: cpu.map(|cpu| cpu.as_secs_f64() * 1e9 / count(number as u64)),
    }
}

struct Run<'a, P> {
    by: By,
    schedule: &'a Schedule,
    purgatory: &'a P,
    answers: &'static [Answer],
    origin: Instant,
}

/// Handles of requests in the order of creation; `None` without a purgatory.
type Created<P> = Vec<Option<<P as SharedPurgatory>::Handle>>;

impl<P: SharedPurgatory> Run<'_, P> {
    /// Creates requests as they arrive. Returns when the last one was created.
    fn create(&self, created: &Sender<Created<P>>) -> Duration {
        const BATCH: usize = 1_024;
        let arrivals = &self.schedule.arrivals;
        let mut next = 0;
        while next < arrivals.len() {
            let now = self.now();
            let mut batch = Created::<P>::with_capacity(BATCH);
            while next < arrivals.len() && arrivals[next] <= now && batch.len() < BATCH {
                batch.push((self.by != By::Nothing).then(|| self.watch(next)));
                next += 1;
            }
            let is_full = batch.len() == BATCH;
            // The receiver is gone after the last completion; later requests only expire.
            let _ = created.send(batch);
            if !is_full && next < arrivals.len() {
                self.sleep(now, arrivals[next]);
            }
        }
        self.origin.elapsed()
    }

    fn watch(&self, request: usize) -> P::Handle {
        self.purgatory.watch(&self.answers[request], self.schedule.keys[request], TIMEOUT)
    }

    /// Completes requests when they are due.
    fn complete(&self, created: &Receiver<Created<P>>) {
        let completions = &self.schedule.completions;
        let mut handles = Vec::with_capacity(self.answers.len());
        let mut next = 0;
        while next < completions.len() {
            handles.extend(created.try_iter().flatten());
            let now = self.now();
            let is_due =
                |&&(at, request): &&(u64, u32)| at <= now && (request as usize) < handles.len();
            let due =
                &completions[next..next + completions[next..].iter().take_while(is_due).count()];
            next += due.len();
            if self.by == By::Events {
                self.announce(due);
            } else {
                due.iter().for_each(|&(_, request)| {
                    self.complete_one(handles[request as usize].take(), request);
                });
            }
            if next < completions.len() {
                self.sleep(now, completions[next].0);
            }
        }
    }

    fn complete_one(&self, handle: Option<P::Handle>, request: u32) {
        let answer = &self.answers[request as usize];
        match handle {
            None => Request(answer).complete(Completion::Satisfied),
            Some(handle) => {
                let is_completed = self.purgatory.complete(handle);
                assert_eq!(is_completed, answer.is_satisfied(), "a request completed and expired");
            }
        }
    }

    /// Lets requests complete, and announces events on all of their keys.
    fn announce(&self, due: &[(u64, u32)]) {
        let mut keys = [false; KEY_SPACE as usize];
        for &(_, request) in due {
            self.answers[request as usize].make_ready_if_waiting();
            self.schedule.keys[request as usize].iter().for_each(|&key| keys[key as usize] = true);
        }
        let keys: Vec<_> =
            (0..).zip(keys).filter_map(|(key, is_due)| is_due.then_some(key)).collect();
        self.purgatory.check_all(&keys);
    }

    /// Checks that each request ended once: it expired, unless it was to complete before. Returns
    /// how many were satisfied.
    fn settle(&self) -> usize {
        let satisfied = self.answers.iter().filter(|answer| answer.is_satisfied()).count();
        let expired = self.answers.iter().filter(|answer| answer.is_expired()).count();
        let completions = self.schedule.completions.iter();
        let due =
            completions.filter(|&&(_, request)| self.answers[request as usize].is_satisfied());
        assert_eq!(due.count(), satisfied, "a request completed that should expire");
        if self.by != By::Nothing {
            assert_eq!(satisfied + expired, self.answers.len(), "each request ended");
            self.purgatory.settle(satisfied as u64, expired as u64, 0);
        }
        satisfied
    }

    /// Nanoseconds after the start; 0 before.
    fn now(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.origin))
    }

    fn sleep(&self, now: u64, due: u64) {
        sleep_until(self.origin + Duration::from_nanos(due.max(now + 500_000)));
    }
}
