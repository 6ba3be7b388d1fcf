//! A run: one thread creates requests as they arrive, another completes them.

use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation, purgatory::OperationKey};
use delaywheel_compare::{
    delivered::nanos,
    purgatory::{Answer, Request, Requests, settle_all},
    real::{process_cpu, sleep_until, wait_until},
    report::table::count,
};

use crate::{
    options::{Mode, Options},
    schedule::Schedule,
};

/// How long a thread sleeps at least that has worked off what is due.
const STEP: Duration = Duration::from_micros(500);

/// Requests that are created before the other thread is told.
const BATCH: usize = 1_024;

/// How long before the first arrival the threads are started.
const LEAD: Duration = Duration::from_millis(20);

/// What a run has shown.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// From the beginning until the last request has ended.
    pub(crate) elapsed: Duration,
    /// Requests a second, as they arrive.
    pub(crate) target_rate: f64,
    /// Requests a second, as they were created.
    pub(crate) actual_rate: f64,
    pub(crate) cpu: Option<Duration>,
    pub(crate) satisfied: u64,
    pub(crate) expired: u64,
    /// Of the expired: those that were to be completed before.
    pub(crate) missed: u64,
}

impl Outcome {
    /// Whether requests were created as they arrived.
    pub(crate) fn is_sustained(&self) -> bool {
        self.actual_rate >= 0.99 * self.target_rate
    }

    /// Whether they were also completed when they were to be, but for one of a hundred.
    pub(crate) fn is_punctual(&self) -> bool {
        self.is_sustained() && self.missed * 100 <= self.satisfied + self.expired
    }
}

/// Runs a schedule, and checks that each request ended once, and as it had to.
pub(crate) fn run(options: &Options, schedule: &Schedule) -> Outcome {
    let purgatory = Requests::new();
    let num = schedule.arrivals.len();
    let run = Run {
        options,
        schedule,
        purgatory: &purgatory,
        answers: Answer::leak(num),
        origin: Instant::now() + LEAD,
    };
    let before = process_cpu();
    let (created, creations) = mpsc::channel();
    let (end, completed) = thread::scope(|scope| {
        let run = &run;
        let creator = scope.spawn(move || run.create(&created));
        let completer = scope.spawn(move || run.complete(&creations));
        let end = creator.join().expect("no request is refused");
        (end, completer.join().expect("no completion panics"))
    });
    if options.mode != Mode::Empty {
        let mut ended = 0;
        wait_until("all have ended", || {
            ended += run.answers[ended..].iter().take_while(|answer| answer.has_ended()).count();
            ended == num
        });
    }
    let elapsed = run.origin.elapsed();
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let [satisfied, expired] = run.settle(completed);
    let last = Duration::from_nanos(schedule.arrivals[num - 1]);
    let rate = |time: Duration| count(num as u64) / time.as_secs_f64();
    let missed = schedule.completions.len() as u64 - satisfied;
    let (target_rate, actual_rate) = (rate(last), rate(end));
    Outcome { elapsed, target_rate, actual_rate, cpu, satisfied, expired, missed }
}

struct Run<'a> {
    options: &'a Options,
    schedule: &'a Schedule,
    purgatory: &'a Requests,
    answers: &'static [Answer],
    origin: Instant,
}

/// Handles of requests, in the order in which they were created; `None` without a purgatory.
type Created = Vec<Option<OperationKey>>;

impl Run<'_> {
    /// Creates requests as they arrive. Returns when the last one was created.
    fn create(&self, created: &Sender<Created>) -> Duration {
        let arrivals = &self.schedule.arrivals;
        let mut next = 0;
        while next < arrivals.len() {
            let now = self.now();
            let mut batch = Created::with_capacity(BATCH);
            while next < arrivals.len() && arrivals[next] <= now && batch.len() < BATCH {
                batch.push((self.options.mode != Mode::Empty).then(|| self.watch(next)));
                next += 1;
            }
            let is_full = batch.len() == BATCH;
            // Nobody listens any more when the last completion was made: others only expire.
            let _ = created.send(batch);
            if !is_full && next < arrivals.len() {
                self.sleep(now, arrivals[next]);
            }
        }
        self.origin.elapsed()
    }

    #[inline]
    fn watch(&self, request: usize) -> OperationKey {
        let keys = self.schedule.keys(request).iter().copied();
        let operation = Request(&self.answers[request]);
        let timeout = self.options.timeout;
        let watched = self.purgatory.try_complete_else_watch(operation, keys, timeout);
        watched.expect("there is room").key().expect("a request waits")
    }

    /// Completes requests when they are due. Returns how many of them had not expired; without a
    /// handle, nothing.
    fn complete(&self, created: &Receiver<Created>) -> Option<u64> {
        let completions = &self.schedule.completions;
        let mut handles = Vec::with_capacity(self.answers.len());
        let (mut next, mut completed) = (0, 0);
        while next < completions.len() {
            handles.extend(created.try_iter().flatten());
            let now = self.now();
            let due = completions[next..]
                .iter()
                .take_while(|&&(at, request)| at <= now && (request as usize) < handles.len());
            let due = &completions[next..next + due.count()];
            next += due.len();
            if self.options.mode == Mode::ByEvents {
                self.announce(due);
            } else {
                for &(_, request) in due {
                    completed += u64::from(self.complete_by_handle(&handles, request as usize));
                }
            }
            if next < completions.len() {
                self.sleep(now, completions[next].0);
            }
        }
        (self.options.mode != Mode::ByEvents).then_some(completed)
    }

    #[inline]
    fn complete_by_handle(&self, handles: &[Option<OperationKey>], request: usize) -> bool {
        let answer = &self.answers[request];
        let Some(handle) = handles[request] else {
            Request(answer).complete(Completion::Satisfied);
            return true;
        };
        let is_completed = self.purgatory.complete(handle);
        assert!(!is_completed || answer.is_satisfied(), "a request completed that had expired");
        is_completed
    }

    /// Lets requests complete, and announces events on all of their keys.
    fn announce(&self, due: &[(u64, u32)]) {
        let mut keys = vec![false; self.options.key_space as usize];
        for &(_, request) in due {
            self.answers[request as usize].make_ready_if_waiting();
            for &key in self.schedule.keys(request as usize) {
                keys[key as usize] = true;
            }
        }
        let keys: Vec<_> =
            (0..).zip(keys).filter_map(|(key, is_due)| is_due.then_some(key)).collect();
        self.purgatory.check_and_complete_all(&keys);
    }

    /// Checks that each request ended once: that it expired, unless it was to be completed before.
    /// Returns how many were satisfied, and how many expired.
    fn settle(&self, completed: Option<u64>) -> [u64; 2] {
        let satisfied = self.answers.iter().filter(|answer| answer.is_satisfied()).count() as u64;
        let expired = self.answers.iter().filter(|answer| answer.is_expired()).count() as u64;
        assert_eq!(completed.unwrap_or(satisfied), satisfied, "completed, satisfied");
        let completions = self.schedule.completions.iter();
        let due =
            completions.filter(|&&(_, request)| self.answers[request as usize].is_satisfied());
        assert_eq!(due.count() as u64, satisfied, "a request completed that was not to");
        if self.options.mode != Mode::Empty {
            assert_eq!(satisfied + expired, self.answers.len() as u64, "each ended");
            settle_all(self.purgatory, [satisfied, expired]);
        }
        [satisfied, expired]
    }

    /// Nanoseconds from the beginning; 0 before.
    #[inline]
    fn now(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.origin))
    }

    /// Sleeps until something is due, and not for a moment only.
    fn sleep(&self, now: u64, due: u64) {
        sleep_until(self.origin + Duration::from_nanos(due.max(now + nanos(STEP))));
    }
}
