//! Kafka's `SystemTimer`, written after it: wheels behind a read-write lock, and a reaper.
//!
//! An insert takes the read lock and that of a bucket, a cancel that of a bucket. The reaper flushes buckets
//! under the write lock and hands due timeouts to an executor of one thread. It waits on the queue of
//! buckets for at most 200 ms. Ticks are of a millisecond. A timeout is one allocation.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex, RwLock};
use slotmap::{DefaultKey, SlotMap};

use super::{Note, SharedTimer, Task, counter};
use crate::{Promises, Wakes, workload::nanos};

/// Kafka's default.
const BUCKETS: u64 = 20;

/// How long the reaper waits at most.
const POLL: Duration = Duration::from_millis(200);

/// The expiration of a bucket that is not in the queue.
const NOT_QUEUED: u64 = u64::MAX;

/// The timer.
#[derive(Debug, Clone)]
pub struct KafkaTimer {
    core: Arc<Core>,
    ran: &'static AtomicU64,
    _running: Arc<Running>,
}

#[derive(Debug)]
struct Core {
    start: Instant,
    levels: RwLock<Vec<Level>>,
    queue: Mutex<BinaryHeap<Reverse<Queued>>>,
    /// The head of the queue has changed.
    head: Condvar,
    executor: Sender<Arc<Timeout>>,
    is_stopped: AtomicBool,
}

/// The expiration of a bucket, its level and its index there.
type Queued = (u64, usize, usize);

#[derive(Debug)]
struct Level {
    tick: u64,
    current_time: u64,
    /// Never freed, so that a timeout counts no reference to its bucket; there are a few dozen.
    buckets: Vec<&'static Bucket>,
}

#[derive(Debug)]
struct Bucket {
    expiration: AtomicU64,
    timeouts: Mutex<SlotMap<DefaultKey, Arc<Timeout>>>,
}

impl Level {
    fn new(tick: u64, now: u64) -> Self {
        let bucket = |_| {
            let expiration = AtomicU64::new(NOT_QUEUED);
            &*Box::leak(Box::new(Bucket { expiration, timeouts: Mutex::default() }))
        };
        let buckets = (0..BUCKETS).map(bucket).collect();
        Self { tick, current_time: now - now % tick, buckets }
    }
}

/// A timeout of [`KafkaTimer`].
#[derive(Debug)]
pub struct Timeout {
    /// In milliseconds since the start.
    deadline: u64,
    task: Task,
    /// Locked before a bucket.
    place: Mutex<Place>,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Not in a bucket yet.
    New,
    /// In this bucket, or just being flushed from it.
    Bucket(&'static Bucket, DefaultKey),
    /// Cancelled, or expired.
    Gone,
}

impl Timeout {
    /// Takes it out of its bucket. Returns whether it was pending.
    #[inline]
    fn cancel(&self) -> bool {
        let mut place = self.place.lock();
        let Place::Bucket(bucket, key) = mem::replace(&mut *place, Place::Gone) else {
            return false;
        };
        // If it is being flushed, it is not there, but then it is seen to be gone.
        bucket.timeouts.lock().remove(key);
        true
    }
}

/// Stops the reaper when it is dropped; and with it the executor, which has no other sender.
#[derive(Debug)]
struct Running(Arc<Core>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Release);
    }
}

impl KafkaTimer {
    /// How many timeouts have run that count.
    pub fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    /// Adds a timeout. Rounds the delay up to milliseconds, as Kafka's callers do.
    #[inline]
    fn add(&self, delay: Duration, task: Task) -> Arc<Timeout> {
        let deadline = self.core.now().saturating_add(nanos(delay).div_ceil(1_000_000));
        let timeout = Arc::new(Timeout { deadline, task, place: Mutex::new(Place::New) });
        self.core.add(&timeout);
        timeout
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(work).expect("a thread can be started");
}

impl SharedTimer for KafkaTimer {
    type Timeout = Arc<Timeout>;

    const NAME: &'static str = "kafka_timer";

    const PROMISES: Promises = Promises {
        scheme: "hierarchical wheel with a bucket delay queue, a reaper and an executor, as Kafka's",
        describes: "early by up to 1 ms, since it rounds down; wakes every 200 ms, and for what was \
                    cancelled",
        earliness: 1,
        lateness: 1,
        wakes: Wakes::Every(200),
        ..Promises::STRICT
    };

    fn start() -> Self {
        let (executor, due) = crossbeam_channel::unbounded::<Arc<Timeout>>();
        let core = Arc::new(Core {
            start: Instant::now(),
            levels: RwLock::new(vec![Level::new(1, 0)]),
            queue: Mutex::default(),
            head: Condvar::new(),
            executor,
            is_stopped: AtomicBool::new(false),
        });
        let reaper = Arc::clone(&core);
        start("kafka-reaper", move || reaper.reap());
        start("kafka-executor", move || due.iter().for_each(|timeout| timeout.task.run()));
        let running = Arc::new(Running(Arc::clone(&core)));
        Self { core, ran: counter(), _running: running }
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> Arc<Timeout> {
        self.add(delay, Task::Count(self.ran))
    }

    #[inline]
    fn replace(&self, timeout: &mut Arc<Timeout>, delay: Duration) -> bool {
        let was_pending = timeout.cancel();
        *timeout = self.schedule(delay);
        was_pending
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        self.add(delay, Task::Note(note));
    }
}

impl Core {
    fn now(&self) -> u64 {
        nanos(self.start.elapsed()) / 1_000_000
    }

    #[inline]
    fn add(&self, timeout: &Arc<Timeout>) {
        if self.place(&self.levels.read(), timeout) {
            return;
        }
        let mut levels = self.levels.write();
        while !self.place(&levels, timeout) {
            let last = levels.last().expect("there is a first level");
            let next = Level::new(last.tick.saturating_mul(BUCKETS), levels[0].current_time);
            levels.push(next);
        }
    }

    /// Puts a timeout into its bucket, or hands it to the executor if it is due; nothing if it is
    /// gone. Returns whether there was a level for it.
    fn place(&self, levels: &[Level], timeout: &Arc<Timeout>) -> bool {
        let deadline = timeout.deadline;
        let mut place = timeout.place.lock();
        if matches!(*place, Place::Gone) {
            return true;
        }
        for (level, wheel) in levels.iter().enumerate() {
            let Level { tick, current_time, buckets } = wheel;
            if deadline < current_time.saturating_add(*tick) {
                *place = Place::Gone;
                self.executor.send(Arc::clone(timeout)).expect("the executor runs");
                return true;
            }
            if deadline < current_time.saturating_add(tick.saturating_mul(BUCKETS)) {
                let id = deadline / tick;
                let index = (id % BUCKETS) as usize;
                let bucket = buckets[index];
                let key = bucket.timeouts.lock().insert(Arc::clone(timeout));
                *place = Place::Bucket(bucket, key);
                drop(place);
                self.offer(bucket, (id * tick, level, index));
                return true;
            }
        }
        false
    }

    /// Puts a bucket into the queue, unless it is there.
    #[inline]
    fn offer(&self, bucket: &Bucket, queued: Queued) {
        if bucket.expiration.swap(queued.0, Ordering::AcqRel) == queued.0 {
            return;
        }
        let mut queue = self.queue.lock();
        queue.push(Reverse(queued));
        if queue.peek() == Some(&Reverse(queued)) {
            self.head.notify_one();
        }
    }

    fn reap(&self) {
        while !self.is_stopped.load(Ordering::Acquire) {
            let Some(first) = self.wait() else { continue };
            let mut levels = self.levels.write();
            let mut next = Some(first);
            while let Some(queued) = next {
                advance_clock(&mut levels, queued.0);
                self.flush(&levels, queued);
                next = self.poll();
            }
        }
        for bucket in self.levels.read().iter().flat_map(|level| &level.buckets) {
            mem::take(&mut *bucket.timeouts.lock());
        }
    }

    /// Waits for a bucket to come up, for a while.
    fn wait(&self) -> Option<Queued> {
        let end = Instant::now() + POLL;
        let mut queue = self.queue.lock();
        loop {
            let head = queue.peek().map(|Reverse(head)| self.start + Duration::from_millis(head.0));
            if head.is_some_and(|head| head <= Instant::now()) {
                return queue.pop().map(|Reverse(queued)| queued);
            }
            let wake = head.map_or(end, |head| head.min(end));
            if self.head.wait_until(&mut queue, wake).timed_out() && wake == end {
                return None;
            }
        }
    }

    fn poll(&self) -> Option<Queued> {
        let mut queue = self.queue.lock();
        let is_due = queue.peek().is_some_and(|Reverse(head)| head.0 <= self.now());
        if is_due { queue.pop().map(|Reverse(queued)| queued) } else { None }
    }

    fn flush(&self, levels: &[Level], (_, level, index): Queued) {
        let bucket = &levels[level].buckets[index];
        let timeouts = mem::take(&mut *bucket.timeouts.lock());
        for timeout in timeouts.into_iter().map(|(_, timeout)| timeout) {
            assert!(self.place(levels, &timeout), "a timeout moves down");
        }
        bucket.expiration.store(NOT_QUEUED, Ordering::Release);
    }
}

/// Moves the clocks of all levels, of which each is a whole number of its own ticks.
fn advance_clock(levels: &mut [Level], time: u64) {
    for level in levels {
        if time < level.current_time.saturating_add(level.tick) {
            break;
        }
        level.current_time = time - time % level.tick;
    }
}
