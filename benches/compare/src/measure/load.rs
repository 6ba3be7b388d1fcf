//! The workload that was published with Kafka's purgatory, `TestPurgatoryPerformance`: the highest sustained rate.
//!
//! Requests arrive as a Poisson process and wait on 3 keys out of 100, with a timeout of 200 ms. Latencies are
//! log-normal. A request whose latency is shorter than the timeout is completed that long after it arrived, by
//! another thread, through its handle. (The published program has all requests watch the same three keys; here each
//! draws its own.) Both threads process what is due and then sleep for half a millisecond.
//!
//! A rate is sustained if requests are created at 0.99 of it, which is the published criterion. It is punctual if also
//! at most one of a hundred requests expires that should complete.

use std::{
    f64::consts::TAU,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation, purgatory::OperationKey};
use fastrand::Rng;

use crate::{
    Timers,
    bench::{Bench, Done},
    os::{process_cpu, sleep_until, wait_until},
    purgatory::{Answer, Request, Requests, settle_all},
    timers::Wheel,
    workload::{count, nanos},
};

/// Percentiles 75 and 50 of the latencies in milliseconds: the two workloads that were published.
const PUBLISHED: [[u32; 2]; 2] = [[60, 20], [400, 200]];

const KEYS_EACH: usize = 3;
const KEY_SPACE: u32 = 100;
const TIMEOUT: Duration = Duration::from_millis(200);

/// How requests are completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// By their handle.
    Handle,
    /// By events on their keys, which check every request on these keys.
    Events,
    /// There is no purgatory, only the driver.
    Nothing,
}

/// Searches the highest rates, and measures processor time at fixed ones.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let seconds = bench.pick(1, 2, 3);
    for latency in PUBLISHED {
        let name = format!("{}-{}", latency[0], latency[1]);
        let [sustained, punctual] = search(bench, latency, seconds);
        bench.add(
            &format!("purgatory/load/sustained/{name}"),
            Wheel::NAME,
            f64::from(sustained) / 1e3,
        );
        bench.add(
            &format!("purgatory/load/punctual/{name}"),
            Wheel::NAME,
            f64::from(punctual) / 1e3,
        );
    }
    let rate = bench.pick(20_000, 400_000, 400_000);
    for (row, rate, by) in [
        ("handle", rate, By::Handle),
        ("driver", rate, By::Nothing),
        ("events", 20_000, By::Events),
    ] {
        if let Some(cpu) = attempt(rate, seconds, PUBLISHED[0], by).cpu {
            bench.add(&format!("purgatory/load/cpu/{row}"), Wheel::NAME, cpu);
        }
    }
    Ok(())
}

/// The highest sustained and the highest punctual rate; 0 if the first is not.
fn search(bench: &Bench, latency: [u32; 2], seconds: u32) -> [u32; 2] {
    let (first, step, last) = bench.pick(
        (20_000, 1, 20_000),
        (400_000, 100_000, 4_000_000),
        (400_000, 50_000, 4_000_000),
    );
    let (mut highest, mut punctual) = (0, 0);
    for rate in (first..=last).step_by(step) {
        // One disturbance does not end the search.
        for _ in 0..3 {
            let outcome = attempt(rate, seconds, latency, By::Handle);
            if outcome.is_sustained {
                highest = rate;
            }
            if outcome.is_punctual {
                punctual = rate;
                break;
            }
        }
        if highest < rate {
            break;
        }
    }
    [highest, punctual]
}

struct Outcome {
    is_sustained: bool,
    is_punctual: bool,
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
fn attempt(rate: u32, seconds: u32, latency: [u32; 2], by: By) -> Outcome {
    let (schedule, purgatory) = (Schedule::new(rate, seconds, latency), Requests::new());
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
        is_punctual: is_sustained && missed * 100 <= number,
        cpu: cpu.map(|cpu| cpu.as_secs_f64() * 1e9 / count(number as u64)),
    }
}

struct Run<'a> {
    by: By,
    schedule: &'a Schedule,
    purgatory: &'a Requests,
    answers: &'static [Answer],
    origin: Instant,
}

/// Handles of requests in the order of creation; `None` without a purgatory.
type Created = Vec<Option<OperationKey>>;

impl Run<'_> {
    /// Creates requests as they arrive. Returns when the last one was created.
    fn create(&self, created: &Sender<Created>) -> Duration {
        const BATCH: usize = 1_024;
        let arrivals = &self.schedule.arrivals;
        let mut next = 0;
        while next < arrivals.len() {
            let now = self.now();
            let mut batch = Created::with_capacity(BATCH);
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

    #[inline]
    fn watch(&self, request: usize) -> OperationKey {
        let operation = Request(&self.answers[request]);
        let watched =
            self.purgatory.try_complete_else_watch(operation, self.schedule.keys[request], TIMEOUT);
        watched.expect("there is room").key().expect("a request waits")
    }

    /// Completes requests when they are due.
    fn complete(&self, created: &Receiver<Created>) {
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
                    self.complete_one(handles[request as usize], request);
                });
            }
            if next < completions.len() {
                self.sleep(now, completions[next].0);
            }
        }
    }

    #[inline]
    fn complete_one(&self, handle: Option<OperationKey>, request: u32) {
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
        self.purgatory.check_and_complete_all(&keys);
    }

    /// Checks that each request ended once: it expired, unless it was to complete before. Returns how many were
    /// satisfied.
    fn settle(&self) -> usize {
        let satisfied = self.answers.iter().filter(|answer| answer.is_satisfied()).count();
        let expired = self.answers.iter().filter(|answer| answer.is_expired()).count();
        let completions = self.schedule.completions.iter();
        let due =
            completions.filter(|&&(_, request)| self.answers[request as usize].is_satisfied());
        assert_eq!(due.count(), satisfied, "a request completed that should expire");
        if self.by != By::Nothing {
            assert_eq!(satisfied + expired, self.answers.len(), "each request ended");
            settle_all(self.purgatory, [satisfied as u64, expired as u64]);
        }
        satisfied
    }

    /// Nanoseconds after the start; 0 before.
    #[inline]
    fn now(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.origin))
    }

    fn sleep(&self, now: u64, due: u64) {
        sleep_until(self.origin + Duration::from_nanos(due.max(now + 500_000)));
    }
}
