//! Netty's `HashedWheelTimer`, written after it: a thread that ticks, and queues in front of it.
//!
//! Callers touch no bucket: a new timeout goes into one queue and a cancelled one into another, and
//! the worker empties both once in a tick. Ticks are of a millisecond, the shortest that Netty
//! allows; its own default is 100. As there, timeouts run on the worker, and a timeout is one
//! allocation.
//!
//! The original on the JVM is about twice as fast: a caller allocates a timeout and the worker
//! frees it, which costs less there. `docs/benchmarks.md` has figures of the original.

use crossbeam_queue::SegQueue;

use super::Task;
use crate::prelude::*;
use crate::timers::netty::{BUCKETS, TRANSFERS_PER_TICK, index};

/// Nanoseconds of a tick.
const TICK: u64 = 1_000_000;

#[derive(Clone)]
pub struct NettyTimer {
    queues: Arc<Queues>,
    pub ran: Counter,
    _running: Arc<Running>,
}

/// Shared by callers and the worker.
struct Queues {
    start: Instant,
    inbox: SegQueue<Arc<Timeout>>,
    cancelled: SegQueue<Arc<Timeout>>,
    is_stopped: AtomicBool,
    /// The worker holds it while it works.
    at_work: Mutex<()>,
}

/// Stops the worker when it is dropped.
struct Running(Arc<Queues>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Release);
    }
}

/// A timeout of [`NettyTimer`].
pub struct Timeout {
    /// The tick in which it is due.
    tick: u64,
    task: Task,
    /// Whether it was cancelled or has expired, of which one succeeds.
    is_over: AtomicBool,
    /// Its entry in a bucket; unset while it is in the inbox.
    entry: OnceLock<DefaultKey>,
}

impl Timeout {
    /// Ends it. Returns whether it was not over.
    fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::AcqRel)
    }
}

impl NettyTimer {
    fn add(&self, delay: Duration, task: Task) -> Arc<Timeout> {
        let tick = nanos(self.queues.start.elapsed()).saturating_add(nanos(delay)) / TICK;
        let (is_over, entry) = (AtomicBool::new(false), OnceLock::new());
        let timeout = Arc::new(Timeout { tick, task, is_over, entry });
        self.queues.inbox.push(Arc::clone(&timeout));
        timeout
    }
}

impl SharedTimer for NettyTimer {
    type Timeout = Arc<Timeout>;

    const PROMISES: Promises =
        Promises { name: "netty_timer", lateness: 2, wakes: Wakes::Every(1), ..Promises::STRICT };

    fn start() -> Self {
        let queues = Arc::new(Queues {
            start: Instant::now(),
            inbox: SegQueue::new(),
            cancelled: SegQueue::new(),
            is_stopped: AtomicBool::new(false),
            at_work: Mutex::new(()),
        });
        let worker = Worker {
            queues: Arc::clone(&queues),
            buckets: Lists::new(index(BUCKETS - 1) + 1),
            tick: 0,
        };
        let builder = thread::Builder::new().name("netty-worker".into());
        builder.spawn(move || worker.run()).expect("a thread can be started");
        Self { _running: Arc::new(Running(Arc::clone(&queues))), queues, ran: Counter::new() }
    }

    fn schedule(&self, delay: Duration) -> Arc<Timeout> {
        self.add(delay, Task::Count(self.ran))
    }

    fn replace(&self, timeout: &mut Arc<Timeout>, delay: Duration) -> bool {
        let was_pending = timeout.end();
        let gone = std::mem::replace(timeout, self.schedule(delay));
        if was_pending {
            self.queues.cancelled.push(gone);
        }
        was_pending
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        self.add(delay, Task::Note(note));
    }

    /// Waits until both queues are empty and the worker has processed their timeouts.
    fn catch_up(&self) {
        let Queues { inbox, cancelled, at_work, .. } = &*self.queues;
        wait_until("the queues are empty", || inbox.is_empty() && cancelled.is_empty());
        drop(at_work.lock());
    }
}

/// The thread that ticks.
struct Worker {
    queues: Arc<Queues>,
    buckets: Lists<Waiting>,
    tick: u64,
}

/// A timeout in a bucket, and the rounds of the wheel that it still waits.
struct Waiting {
    timeout: Arc<Timeout>,
    rounds: u64,
}

impl Worker {
    fn run(mut self) {
        let queues = Arc::clone(&self.queues);
        while !queues.is_stopped.load(Ordering::Acquire) {
            self.wait();
            let at_work = queues.at_work.lock();
            while let Some(timeout) = queues.cancelled.pop() {
                timeout.entry.get().map(|&entry| self.buckets.remove(entry));
            }
            self.transfer();
            self.expire();
            self.tick += 1;
            drop(at_work);
        }
    }

    /// Sleeps until the tick is over, for whole milliseconds as Netty does.
    fn wait(&self) {
        loop {
            let rest = ((self.tick + 1) * TICK).saturating_sub(nanos(self.queues.start.elapsed()));
            if rest == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(rest.div_ceil(1_000_000)));
        }
    }

    fn transfer(&mut self) {
        let queues = Arc::clone(&self.queues);
        for _ in 0..TRANSFERS_PER_TICK {
            let Some(timeout) = queues.inbox.pop() else { break };
            if !timeout.is_over.load(Ordering::Acquire) {
                self.insert(&timeout);
            }
        }
    }

    fn insert(&mut self, timeout: &Arc<Timeout>) {
        let rounds = timeout.tick.saturating_sub(self.tick) / BUCKETS;
        let bucket = index(timeout.tick.max(self.tick));
        let entry = self.buckets.push(bucket, Waiting { timeout: Arc::clone(timeout), rounds });
        timeout.entry.set(entry).expect("the inbox holds a timeout once");
    }

    fn expire(&mut self) {
        let mut cursor = self.buckets.first(index(self.tick));
        while let Some(entry) = cursor {
            cursor = self.buckets.next(entry);
            let waiting = self.buckets.get_mut(entry).expect("a bucket holds its timeouts");
            if waiting.rounds > 0 {
                waiting.rounds -= 1;
            } else if let Some(Waiting { timeout, .. }) = self.buckets.remove(entry)
                && timeout.end()
            {
                timeout.task.run();
            }
        }
    }
}
