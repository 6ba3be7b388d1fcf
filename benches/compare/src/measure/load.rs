//! The workload that was published with Kafka's purgatory, `TestPurgatoryPerformance`, on a ladder
//! of offered rates.
//!
//! Requests arrive as a Poisson process and wait on 3 keys out of 100, with a timeout of 200 ms.
//! Latencies are log-normal. If the latency of a request is shorter than the timeout, another
//! thread completes it through its handle, so long after its creation. In the published program all
//! requests watch the same three keys; here each draws its own. Both threads process due requests
//! and then sleep for half a millisecond. The completing thread passes all due handles to one call.
//!
//! At each rate there is a slot of half a second. A rate is sustained if 0.99 of the requests that
//! arrive in the slot are created, which is the published criterion, and at most 0.01 of them are
//! missed. A missed request was created, should complete within the slot, and has not completed
//! 20 ms after it.
//! The climb ends after three rates in a row that are not sustained.

use std::{
    f64::consts::TAU,
    sync::mpsc::{self, Receiver, Sender},
};

use crate::prelude::*;

/// Percentiles 75 and 50 of the latencies in milliseconds: the two workloads that were published.
const PUBLISHED: [[u32; 2]; 2] = [[60, 20], [400, 200]];

const KEYS_EACH: usize = 3;
const KEY_SPACE: u32 = 100;
const TIMEOUT: Duration = Duration::from_millis(200);

/// The time after the end of a slot in which requests still complete.
const GRACE: Duration = Duration::from_millis(20);

/// Offered rates in thousands a second. Three steps are a factor of 1.5, and five one of 2.
const LADDER: [u32; 24] = [
    229, 262, 300, 343, 393, 450, 515, 590, 675, 773, 884, 1013, 1159, 1327, 1519, 1739, 1991,
    2279, 2610, 2989, 3423, 3920, 4489, 5141,
];

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

const NAME: &str = <Wheel as crate::Timers>::NAME;

/// Climbs the ladder, and measures at fixed rates.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let slot = bench.millis(100, 500);
    for _ in 0..bench.rounds() {
        for latency in PUBLISHED {
            for (by, suffix) in [(By::Handle, ""), (By::Events, "/events")] {
                let case = format!("{}-{}{suffix}", latency[0], latency[1]);
                if bench.is_asked(&format!("purgatory/load/sustained/{case}")) {
                    climb(bench, &case, slot, latency, by);
                }
            }
        }
        if bench.is_asked("purgatory/load/cpu") {
            let rate = bench.full(20_000, 400_000);
            for (row, rate, by) in [
                ("handle", rate, By::Handle),
                ("events", 20_000, By::Events),
                ("driver", rate, By::Nothing),
            ] {
                let schedule = Schedule::new(rate, slot, PUBLISHED[0]);
                if let Some(cpu) = attempt(&schedule, by).cpu {
                    bench.add(&format!("purgatory/load/cpu/{row}"), NAME, cpu);
                }
            }
        }
    }
    Ok(())
}

/// Offers the rates of the ladder.
fn climb(bench: &mut Bench, case: &str, slot: Duration, latency: [u32; 2], by: By) {
    let ladder = bench.full(&LADDER[..1], ladder(by));
    let climb = offer_each(ladder, |rate| {
        let outcome = attempt(&Schedule::new(bench.full(20, rate) * 1_000, slot, latency), by);
        bench.tell(&format!("{case}, {rate} k/s: {outcome:.2?}"));
        outcome
    });
    let mut add = |row, value| bench.add(&format!("purgatory/load/{row}/{case}"), NAME, value);
    let Some(sustained) = climb.iter().rposition(Outcome::is_sustained) else {
        add("sustained", 0.0);
        return;
    };
    add("sustained", f64::from(ladder[sustained]));
    let best = climb.iter().map(|outcome| outcome.completed).fold(0.0, f64::max);
    let (half, past) = (sustained.saturating_sub(5), climb.get(sustained + 3));
    let (Some(half), Some(past)) = (climb.get(half), past) else { return };
    add("past/done", past.completed / best);
    if let (Some(past), Some(half)) = (past.cpu, half.cpu) {
        add("past/cpu", past);
        add("past/cpu_of_half", past / half);
    }
}

/// Offers rates past the knee in slots of 3 s, this many times each, and prints the outcomes.
/// Returns whether every run completed at least 0.95 of the best rate, or of all that could
/// complete if that is less, and a request took at most 1.3 of the processor time at half of the
/// sustained rate. 20 runs take about 15 minutes.
pub fn judge_past(runs: usize) -> bool {
    let long = Duration::from_secs(3);
    let mut is_flat = true;
    for latency in PUBLISHED {
        for (by, how) in [(By::Handle, "by handle"), (By::Events, "by events")] {
            let climb = offer_each(ladder(by), |rate| {
                attempt(&Schedule::new(rate * 1_000, Duration::from_millis(500), latency), by)
            });
            let sustained = climb.iter().rposition(Outcome::is_sustained).unwrap_or(0);
            let sustained = ladder(by)[sustained] * 1_000;
            let offer = |rate, runs| -> (f64, Vec<Outcome>) {
                let schedule = Schedule::new(rate, long, latency);
                (schedule.possible(), (0..runs).map(|_| attempt(&schedule, by)).collect())
            };
            let greatest = |outcomes: &[Outcome], figure: fn(&Outcome) -> f64| {
                outcomes.iter().map(figure).fold(0.0, f64::max)
            };
            let cpu = |outcome: &Outcome| outcome.cpu.unwrap_or(f64::NAN);
            let half = greatest(&offer(sustained / 2, 2).1, cpu);
            let offers = [(10, 2), (13, runs), (15, runs), (20, runs)]
                .map(|(tenths, runs)| (tenths, offer(sustained / 10 * tenths, runs)));
            let bests = offers.iter().map(|(_, (_, runs))| greatest(runs, |run| run.completed));
            let best = bests.fold(0.0, f64::max);
            println!("\n{how}, {latency:?}: {} k/s, {half:.0} ns at half", sustained / 1_000);
            for (tenths, (possible, runs)) in &offers {
                let aim = best.min(*possible);
                let least = runs.iter().map(|run| run.completed).fold(aim, f64::min) / aim;
                let most = greatest(runs, cpu) / half;
                let verdict = match (tenths, least >= 0.95 && most <= 1.3) {
                    (10, _) => "for comparison",
                    (_, true) => "good",
                    (_, false) => "MISSED",
                };
                is_flat &= verdict != "MISSED";
                println!(
                    "{verdict} at {tenths}/10: {least:.2} of {aim:.0} k/s, time {most:.2} of half"
                );
                runs.iter().for_each(|run| println!("  {run:.2?}"));
            }
        }
    }
    is_flat
}

/// Rates that are offered, in thousands a second.
fn ladder(by: By) -> &'static [u32] {
    &LADDER[if by == By::Events { 0 } else { 4 }..]
}

/// Offers one rate after the other, until three in a row are not sustained.
fn offer_each(ladder: &[u32], mut offer: impl FnMut(u32) -> Outcome) -> Vec<Outcome> {
    let mut climb = Vec::<Outcome>::new();
    for &rate in ladder {
        climb.push(offer(rate));
        if climb.len() >= 3 && !climb.iter().rev().take(3).any(Outcome::is_sustained) {
            break;
        }
    }
    climb
}

/// What a contestant did in a slot.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "all fields are printed")]
struct Outcome {
    /// Requests that were created, of those that arrived.
    created: f64,
    /// Created requests that should have completed in the slot and did not, of those that arrived.
    missed: f64,
    /// Thousand requests that completed in a second.
    completed: f64,
    /// Nanoseconds of processor time of one created request.
    cpu: Option<f64>,
    /// Percentile 99 of lateness in milliseconds, up to the end of the batch that completed the
    /// request.
    late: f64,
}

impl Outcome {
    fn is_sustained(&self) -> bool {
        self.created >= 0.99 && self.missed <= 0.01
    }
}

/// Times are nanoseconds after the start.
struct Schedule {
    slot: u64,
    arrivals: Vec<u64>,
    /// Of each request; those from the timeout on never end.
    latencies: Vec<u64>,
    keys: Vec<[u32; KEYS_EACH]>,
}

impl Schedule {
    /// Returns how many thousand requests a second can complete: within their timeout and the slot.
    fn possible(&self) -> f64 {
        let times = self.arrivals.iter().zip(&self.latencies);
        let ends = times.filter(|(_, latency)| **latency < nanos(TIMEOUT));
        let ends = ends.filter(|(arrival, latency)| *arrival + *latency < self.slot);
        count(ends.count() as u64) / count(self.slot) * 1e6
    }

    /// Draws the requests that arrive in the slot.
    fn new(rate: u32, slot: Duration, latency: [u32; 2]) -> Self {
        let (mut rng, slot) = (Rng::with_seed(1), nanos(slot));
        let (mut arrivals, mut latencies, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let mut arrival = 0.0;
        loop {
            // An interval of a Poisson process.
            arrival -= (1.0 - rng.f64()).ln() / f64::from(rate);
            let at = nanos(Duration::from_secs_f64(arrival));
            if at >= slot {
                return Self { slot, arrivals, latencies, keys };
            }
            arrivals.push(at);
            latencies.push(draw_latency(&mut rng, latency));
            keys.push([(); KEYS_EACH].map(|()| rng.u32(0..KEY_SPACE)));
        }
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

/// Runs a schedule, and checks that each request ended once, and in the right way.
fn attempt(schedule: &Schedule, by: By) -> Outcome {
    let purgatory = Requests::start();
    let answers = Answer::leak(schedule.arrivals.len());
    let origin = Instant::now() + Duration::from_millis(10);
    let run = Run { by, schedule, purgatory: &purgatory, answers, origin };
    let cpu = process_cpu();
    let (created, creations) = mpsc::channel();
    let (created, due, late) = thread::scope(|scope| {
        let run = &run;
        let creator = scope.spawn(move || run.create(&created));
        let completer = scope.spawn(move || run.complete(&creations));
        let (due, late) = completer.join().expect("no completion panics");
        (creator.join().expect("no request is refused"), due, late)
    });
    if by != By::Nothing {
        let mut ended = 0;
        wait_until("all have ended", || {
            ended += answers[ended..created].iter().take_while(|answer| answer.has_ended()).count();
            ended == created
        });
    }
    let (arrived, requests) = (count(schedule.arrivals.len() as u64), count(created as u64));
    let cpu = process_cpu().zip(cpu).map(|(after, before)| after.saturating_sub(before));
    let satisfied = count(run.settle(created) as u64);
    Outcome {
        created: requests / arrived,
        missed: (count(due) - satisfied) / arrived,
        completed: satisfied / count(schedule.slot) * 1e6,
        cpu: cpu.filter(|_| created > 0).map(|cpu| count(nanos(cpu)) / requests),
        late: count(percentile(&late, "p99")) / 1e6,
    }
}

struct Run<'a> {
    by: By,
    schedule: &'a Schedule,
    purgatory: &'a Requests,
    answers: &'static [Answer],
    origin: Instant,
}

/// When requests were created, and their handles in this order; `None` without a purgatory.
type Created = (u64, Vec<Option<Handle>>);

/// The requests that are to complete, with their times: a list for each half of a millisecond.
struct Due {
    lists: Vec<Vec<(u64, u32)>>,
    /// The first list that is not empty, or not over.
    first: usize,
}

impl Due {
    const SPAN: u64 = 500_000;

    fn new(end: u64) -> Self {
        let lists = usize::try_from(end / Self::SPAN).expect("a slot is short") + 1;
        Self { lists: vec![Vec::new(); lists], first: 0 }
    }

    fn list(&mut self, at: u64) -> Option<&mut Vec<(u64, u32)>> {
        self.lists.get_mut(usize::try_from(at / Self::SPAN).ok()?)
    }

    /// Moves at most `most` requests that are due to a batch.
    fn take(&mut self, now: u64, most: usize, batch: &mut Vec<(u64, u32)>) {
        batch.clear();
        while (self.first as u64 + 1) * Self::SPAN <= now && self.first < self.lists.len() {
            let list = &mut self.lists[self.first];
            let rest = list.len().saturating_sub(most - batch.len());
            batch.extend(list.drain(rest..));
            if rest > 0 {
                return;
            }
            *list = Vec::new();
            self.first += 1;
        }
    }
}

/// Requests that are created or completed without a look at the clock.
const BATCH: usize = 1_024;

impl Run<'_> {
    /// Creates requests as they arrive, until the slot ends. Returns their number.
    fn create(&self, created: &Sender<Created>) -> usize {
        let arrivals = &self.schedule.arrivals;
        let mut next = 0;
        while next < arrivals.len() {
            let now = self.now();
            if now >= self.schedule.slot {
                break;
            }
            let mut batch = Vec::with_capacity(BATCH);
            while next < arrivals.len() && arrivals[next] <= now && batch.len() < BATCH {
                batch.push((self.by != By::Nothing).then(|| self.watch(next)));
                next += 1;
            }
            let is_full = batch.len() == BATCH;
            // The receiver is gone after the grace; later requests only expire.
            let _ = created.send((now, batch));
            if !is_full && next < arrivals.len() {
                self.sleep(now, arrivals[next]);
            }
        }
        next
    }

    fn watch(&self, request: usize) -> Handle {
        self.purgatory.watch(&self.answers[request], self.schedule.keys[request], TIMEOUT)
    }

    /// Completes requests when they are due, until the slot and the grace end. Returns how many
    /// were to complete, and the distribution of their lateness.
    fn complete(&self, created: &Receiver<Created>) -> (u64, Histogram<u64>) {
        let Schedule { slot, ref latencies, .. } = *self.schedule;
        let mut handles = Vec::with_capacity(self.answers.len());
        let (mut due, mut batch) = (Due::new(slot + nanos(TIMEOUT)), Vec::new());
        let (mut all, mut late) = (0, histogram([]));
        // One event completes all on its key that are due.
        let most = if self.by == By::Events { usize::MAX } else { BATCH };
        loop {
            for (at, created) in created.try_iter() {
                for handle in created {
                    let latency = latencies[handles.len()];
                    if latency < nanos(TIMEOUT) && at + latency < slot {
                        let request = u32::try_from(handles.len()).expect("a slot is short");
                        let list = due.list(at + latency).expect("it is within the slot");
                        list.push((at + latency, request));
                        all += 1;
                    }
                    handles.push(handle);
                }
            }
            let now = self.now();
            if now >= slot + nanos(GRACE) {
                return (all, late);
            }
            due.take(now, most, &mut batch);
            if self.by == By::Events {
                self.announce(&batch);
            } else {
                self.complete_all(&batch, &mut handles);
            }
            let end = self.now();
            for &(at, _) in &batch {
                late.record(end - at).expect("the histogram resizes itself");
            }
            if batch.len() < most {
                self.sleep(now, 0);
            }
        }
    }

    fn complete_all(&self, due: &[(u64, u32)], handles: &mut [Option<Handle>]) {
        let answers = due.iter().map(|&(_, request)| &self.answers[request as usize]);
        if self.by == By::Nothing {
            answers.for_each(Answer::satisfy);
            return;
        }
        let handles = due.iter().filter_map(|&(_, request)| handles[request as usize].take());
        let completed = self.purgatory.complete_all(handles.collect());
        let satisfied = answers.filter(|answer| answer.is_satisfied()).count();
        assert_eq!(completed, satisfied, "a request completed and expired");
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

    /// Checks that each created request ended once: it expired, unless it was to complete before.
    /// Returns how many were satisfied.
    fn settle(&self, created: usize) -> usize {
        let satisfied = self.answers.iter().filter(|answer| answer.is_satisfied()).count();
        let expired = self.answers.iter().filter(|answer| answer.is_expired()).count();
        let latencies = self.answers.iter().zip(&self.schedule.latencies);
        let due = latencies
            .filter(|(answer, latency)| answer.is_satisfied() && **latency < nanos(TIMEOUT));
        assert_eq!(due.count(), satisfied, "a request completed that should expire");
        if self.by != By::Nothing {
            assert_eq!(satisfied + expired, created, "each request ended");
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
