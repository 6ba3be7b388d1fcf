//! Netty's `HashedWheelTimer`, written after it: a thread that ticks, and queues before it.
//!
//! Callers touch no bucket: a new timeout goes into one queue and a cancelled one into another, and
//! the worker empties both once in a tick. Its ticks are of a millisecond, the shortest that Netty
//! allows; its own default is 100. As there, timeouts run on the worker.

use std::{
    fmt::{self, Debug, Formatter},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use slotmap::DefaultKey;

use super::{Expectation, SharedTimer, counting};
use crate::{Promises, Wakes, real::wait_until, timers::Lists};

/// Netty's default.
const BUCKETS: u64 = 512;

/// The same, of lists.
const LISTS: usize = 512;

const _: () = assert!(LISTS as u64 == BUCKETS);

const TICK: Duration = Duration::from_millis(1);

/// How many new timeouts Netty takes from the queue in one tick.
const TRANSFERS_PER_TICK: usize = 100_000;

/// The timer, whose timeouts count.
#[derive(Debug, Clone)]
pub struct NettyTimer {
    queues: Arc<Queues>,
    /// Never freed, as that of our closures.
    ran: &'static AtomicU64,
    _running: Arc<Running>,
}

/// What callers and the worker share.
#[derive(Debug)]
struct Queues {
    start: Instant,
    inbox: SegQueue<Arc<Timeout>>,
    cancelled: SegQueue<Arc<Timeout>>,
    is_stopped: AtomicBool,
    /// Held by the worker while it works.
    at_work: Mutex<()>,
}

/// Stops the worker when it is dropped.
#[derive(Debug)]
struct Running(Arc<Queues>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Release);
    }
}

/// A timeout of [`NettyTimer`].
pub struct Timeout {
    /// Since the start.
    deadline: Duration,
    task: Box<dyn Fn() + Send + Sync>,
    /// Whether it was cancelled or has expired, of which only one succeeds.
    is_over: AtomicBool,
    /// Where the worker has it; unset until it is taken from the queue.
    place: OnceLock<DefaultKey>,
}

impl Debug for Timeout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Timeout {
    /// Ends it. Returns whether it was not over.
    #[inline]
    fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::AcqRel)
    }
}

impl NettyTimer {
    /// Starts the worker.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn new() -> Self {
        let queues = Arc::new(Queues {
            start: Instant::now(),
            inbox: SegQueue::new(),
            cancelled: SegQueue::new(),
            is_stopped: AtomicBool::new(false),
            at_work: Mutex::new(()),
        });
        let worker = Worker { queues: Arc::clone(&queues), buckets: Lists::new(LISTS), tick: 0 };
        let builder = thread::Builder::new().name("netty-worker".into());
        builder.spawn(move || worker.run()).expect("a thread can be started");
        Self {
            _running: Arc::new(Running(Arc::clone(&queues))),
            queues,
            ran: Box::leak(Box::default()),
        }
    }

    /// How many timeouts have run that nobody expected.
    #[must_use]
    pub fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    #[inline]
    fn add(&self, delay: Duration, task: Box<dyn Fn() + Send + Sync>) -> Arc<Timeout> {
        let deadline = self.queues.start.elapsed() + delay;
        let (is_over, place) = (AtomicBool::new(false), OnceLock::new());
        let timeout = Arc::new(Timeout { deadline, task, is_over, place });
        self.queues.inbox.push(Arc::clone(&timeout));
        timeout
    }
}

impl Default for NettyTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedTimer for NettyTimer {
    type Timeout = Arc<Timeout>;

    const NAME: &'static str = "netty_timer";

    const PROMISES: Promises = Promises {
        scheme: "scheme 6: hashed wheel with rounds, of one thread, as Netty's",
        describes: "late by up to two ticks of 1 ms; wakes at every tick",
        lateness: 2,
        wakes: Wakes::Every(1),
        ..Promises::STRICT
    };

    #[inline]
    fn schedule(&self, delay: Duration) -> Arc<Timeout> {
        self.add(delay, Box::new(counting(self.ran)))
    }

    #[inline]
    fn replace(&self, timeout: &mut Arc<Timeout>, delay: Duration) -> bool {
        let was_pending = timeout.end();
        let gone = std::mem::replace(timeout, self.schedule(delay));
        if was_pending {
            self.queues.cancelled.push(gone);
        }
        was_pending
    }

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        self.add(delay, Box::new(move || expectation.meet()));
    }

    /// Waits until both queues are empty, and what was in them is in its bucket or gone.
    fn catch_up(&self) {
        let Queues { inbox, cancelled, at_work, .. } = &*self.queues;
        wait_until("the queues are empty", || inbox.is_empty() && cancelled.is_empty());
        drop(at_work.lock());
    }
}

/// The thread that ticks.
struct Worker {
    queues: Arc<Queues>,
    buckets: Lists<Entry>,
    tick: u64,
}

struct Entry {
    timeout: Arc<Timeout>,
    /// Laps that it has still to wait.
    rounds: u64,
}

impl Worker {
    fn run(mut self) {
        let queues = Arc::clone(&self.queues);
        while !queues.is_stopped.load(Ordering::Acquire) {
            self.wait();
            let at_work = queues.at_work.lock();
            self.remove_cancelled();
            self.transfer();
            self.expire();
            self.tick += 1;
            drop(at_work);
        }
    }

    /// Sleeps until the tick is over, for whole milliseconds as Netty does.
    fn wait(&self) {
        let end = TICK * u32::try_from(self.tick + 1).expect("it runs for less than 49 days");
        loop {
            let rest = end.saturating_sub(self.queues.start.elapsed());
            if rest.is_zero() {
                return;
            }
            let millis = rest.as_nanos().div_ceil(1_000_000);
            thread::sleep(Duration::from_millis(u64::try_from(millis).expect("a tick or less")));
        }
    }

    fn remove_cancelled(&mut self) {
        while let Some(timeout) = self.queues.cancelled.pop() {
            if let Some(&key) = timeout.place.get() {
                self.buckets.remove(key);
            }
        }
    }

    fn transfer(&mut self) {
        for _ in 0..TRANSFERS_PER_TICK {
            let Some(timeout) = self.queues.inbox.pop() else { break };
            if timeout.is_over.load(Ordering::Acquire) {
                continue;
            }
            let tick = timeout.deadline.as_nanos() / TICK.as_nanos();
            let tick = u64::try_from(tick).unwrap_or(u64::MAX);
            let rounds = tick.saturating_sub(self.tick) / BUCKETS;
            let bucket = (tick.max(self.tick) % BUCKETS) as usize;
            let key = self.buckets.push(bucket, Entry { timeout: Arc::clone(&timeout), rounds });
            timeout.place.set(key).expect("it comes out of the queue once");
        }
    }

    fn expire(&mut self) {
        let mut cursor = self.buckets.first((self.tick % BUCKETS) as usize);
        while let Some(key) = cursor {
            cursor = self.buckets.next(key);
            let entry = self.buckets.get_mut(key).expect("a bucket holds what is there");
            if entry.rounds > 0 {
                entry.rounds -= 1;
                continue;
            }
            let entry = self.buckets.remove(key).expect("it was there just now");
            if entry.timeout.end() {
                (entry.timeout.task)();
            }
        }
    }
}
