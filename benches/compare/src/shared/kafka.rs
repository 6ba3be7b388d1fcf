//! Kafka's `SystemTimer`, written after it: wheels behind a read-write lock, and a reaper.
//!
//! An insert takes the read lock and the lock of a bucket, a cancel only the latter. The reaper
//! flushes buckets under the write lock and hands due timeouts to an executor of one thread. It
//! waits on the queue of buckets for at most 200 ms. Ticks are of a millisecond. A timeout is one
//! allocation. [`KafkaPurgatory`](crate::purgatory::KafkaPurgatory) uses the same wheels.

use std::{mem, thread::JoinHandle};

use crossbeam_channel::Sender;
use parking_lot::{Condvar, RwLock};

use super::Task;
use crate::prelude::*;

const BUCKETS: u64 = 20;

/// How long the reaper waits at most.
const POLL: Duration = Duration::from_millis(200);

/// The expiration of a bucket that is not in the queue.
const NOT_QUEUED: u64 = u64::MAX;

/// The work of an expired timeout, on the executor.
pub(crate) trait Expire: Send + Sync + 'static {
    fn expire(&self);
}

impl Expire for Task {
    fn expire(&self) {
        self.run();
    }
}

/// The wheels with their threads, which end when this is dropped.
pub(crate) struct Wheels<T: 'static> {
    core: Arc<Core<T>>,
    reaper: Option<JoinHandle<()>>,
}

struct Core<T: 'static> {
    start: Instant,
    levels: RwLock<Vec<Level<T>>>,
    queue: Mutex<BinaryHeap<Reverse<Queued>>>,
    /// The head of the queue has changed.
    head: Condvar,
    executor: Sender<Arc<Timeout<T>>>,
    /// Timeouts in buckets.
    pending: AtomicUsize,
    is_stopped: AtomicBool,
}

/// The expiration of a bucket, its level and its index there.
type Queued = (u64, usize, usize);

struct Level<T: 'static> {
    tick: u64,
    current_time: u64,
    /// Never freed, so that a timeout counts no reference to its bucket; there are a few dozen.
    buckets: Vec<&'static Bucket<T>>,
}

struct Bucket<T: 'static> {
    expiration: AtomicU64,
    timeouts: Mutex<SlotMap<DefaultKey, Arc<Timeout<T>>>>,
}

impl<T> Level<T> {
    fn new(tick: u64, now: u64) -> Self {
        let bucket = |_| {
            let expiration = AtomicU64::new(NOT_QUEUED);
            &*Box::leak(Box::new(Bucket { expiration, timeouts: Mutex::default() }))
        };
        let buckets = (0..BUCKETS).map(bucket).collect();
        Self { tick, current_time: now - now % tick, buckets }
    }
}

/// A timeout in [`Wheels`].
pub struct Timeout<T: 'static> {
    /// In milliseconds since the start.
    deadline: u64,
    pub(crate) task: T,
    /// Locked before a bucket.
    place: Mutex<Place<T>>,
}

enum Place<T: 'static> {
    /// Not in a bucket yet.
    New,
    /// In this bucket, or just being flushed from it.
    Bucket(&'static Bucket<T>, DefaultKey),
    /// Cancelled, or expired.
    Gone,
}

impl<T: Expire> Wheels<T> {
    /// Starts the threads. The reaper calls `advanced` with the number of pending timeouts after
    /// each advance of the clock, and after each wait that ended without one.
    pub(crate) fn start(mut advanced: impl FnMut(usize) + Send + 'static) -> Self {
        let (executor, due) = crossbeam_channel::unbounded::<Arc<Timeout<T>>>();
        let core = Arc::new(Core {
            start: Instant::now(),
            levels: RwLock::new(vec![Level::new(1, 0)]),
            queue: Mutex::default(),
            head: Condvar::new(),
            executor,
            pending: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let own = Arc::clone(&core);
        let reaper = start("kafka-reaper", move || own.reap(&mut advanced));
        start("kafka-executor", move || due.iter().for_each(|timeout| timeout.task.expire()));
        Self { core, reaper: Some(reaper) }
    }

    /// Makes a timeout that is not in a bucket yet. Rounds the delay up to milliseconds, as Kafka's
    /// callers do.
    pub(crate) fn timeout(&self, delay: Duration, task: T) -> Arc<Timeout<T>> {
        let deadline = self.core.now().saturating_add(nanos(delay).div_ceil(1_000_000));
        Arc::new(Timeout { deadline, task, place: Mutex::new(Place::New) })
    }

    /// Puts a timeout into its bucket, unless it was cancelled.
    pub(crate) fn add(&self, timeout: &Arc<Timeout<T>>) {
        self.core.add(timeout);
    }

    /// Cancels a timeout. Returns whether it was in a bucket.
    pub(crate) fn cancel(&self, timeout: &Timeout<T>) -> bool {
        self.core.cancel(timeout)
    }

    pub(crate) fn pending(&self) -> usize {
        self.core.pending.load(Ordering::Relaxed)
    }
}

/// Stops the reaper; and with it the executor, which has no other sender.
impl<T: 'static> Drop for Wheels<T> {
    fn drop(&mut self) {
        let queue = self.core.queue.lock();
        self.core.is_stopped.store(true, Ordering::Release);
        self.core.head.notify_one();
        drop(queue);
        let reaper = self.reaper.take().expect("the wheels are dropped once");
        reaper.join().expect("the reaper does not panic");
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name.into()).spawn(work).expect("a thread can be started")
}

#[derive(Clone)]
pub struct KafkaTimer {
    wheels: Arc<Wheels<Task>>,
    pub ran: Counter,
}

impl KafkaTimer {
    fn add(&self, delay: Duration, task: Task) -> Arc<Timeout<Task>> {
        let timeout = self.wheels.timeout(delay, task);
        self.wheels.add(&timeout);
        timeout
    }
}

impl SharedTimer for KafkaTimer {
    type Timeout = Arc<Timeout<Task>>;

    const PROMISES: Promises = Promises {
        name: "kafka_timer",
        earliness: 1,
        lateness: 1,
        wakes: Wakes::Every(200),
        ..Promises::STRICT
    };

    fn start() -> Self {
        Self { wheels: Arc::new(Wheels::start(drop)), ran: Counter::new() }
    }

    fn schedule(&self, delay: Duration) -> Arc<Timeout<Task>> {
        self.add(delay, Task::Count(self.ran))
    }

    fn replace(&self, timeout: &mut Arc<Timeout<Task>>, delay: Duration) -> bool {
        let was_pending = self.wheels.cancel(timeout);
        *timeout = self.schedule(delay);
        was_pending
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        self.add(delay, Task::Note(note));
    }
}

impl<T: Expire> Core<T> {
    fn now(&self) -> u64 {
        nanos(self.start.elapsed()) / 1_000_000
    }

    fn cancel(&self, timeout: &Timeout<T>) -> bool {
        let mut place = timeout.place.lock();
        let Place::Bucket(bucket, key) = mem::replace(&mut *place, Place::Gone) else {
            return false;
        };
        // If the reaper is flushing the bucket, the bucket does not hold the timeout, and the
        // reaper sees that it has ended.
        if bucket.timeouts.lock().remove(key).is_some() {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    fn add(&self, timeout: &Arc<Timeout<T>>) {
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

    /// Puts a timeout into its bucket, or hands it to the executor if it is due. Does nothing if it
    /// has ended. Returns whether there was a level for it.
    fn place(&self, levels: &[Level<T>], timeout: &Arc<Timeout<T>>) -> bool {
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
                self.pending.fetch_add(1, Ordering::Relaxed);
                drop(place);
                self.offer(bucket, (id * tick, level, index));
                return true;
            }
        }
        false
    }

    /// Puts a bucket into the queue, unless it is there.
    fn offer(&self, bucket: &Bucket<T>, queued: Queued) {
        if bucket.expiration.swap(queued.0, Ordering::AcqRel) == queued.0 {
            return;
        }
        let mut queue = self.queue.lock();
        queue.push(Reverse(queued));
        if queue.peek() == Some(&Reverse(queued)) {
            self.head.notify_one();
        }
    }

    fn reap(&self, advanced: &mut impl FnMut(usize)) {
        while !self.is_stopped.load(Ordering::Acquire) {
            if let Some(first) = self.wait() {
                let mut levels = self.levels.write();
                let mut next = Some(first);
                while let Some(queued) = next {
                    advance_clock(&mut levels, queued.0);
                    self.flush(&levels, queued);
                    next = self.poll();
                }
            }
            advanced(self.pending.load(Ordering::Relaxed));
        }
        for bucket in self.levels.read().iter().flat_map(|level| &level.buckets) {
            mem::take(&mut *bucket.timeouts.lock());
        }
    }

    /// Waits for a bucket to come up, for a while.
    fn wait(&self) -> Option<Queued> {
        let end = Instant::now() + POLL;
        let mut queue = self.queue.lock();
        while !self.is_stopped.load(Ordering::Acquire) {
            let head = queue.peek().map(|Reverse(head)| self.start + Duration::from_millis(head.0));
            if head.is_some_and(|head| head <= Instant::now()) {
                return queue.pop().map(|Reverse(queued)| queued);
            }
            let wake = head.map_or(end, |head| head.min(end));
            if self.head.wait_until(&mut queue, wake).timed_out() && wake == end {
                break;
            }
        }
        None
    }

    fn poll(&self) -> Option<Queued> {
        let mut queue = self.queue.lock();
        let is_due = queue.peek().is_some_and(|Reverse(head)| head.0 <= self.now());
        if is_due { queue.pop().map(|Reverse(queued)| queued) } else { None }
    }

    fn flush(&self, levels: &[Level<T>], (_, level, index): Queued) {
        let bucket = &levels[level].buckets[index];
        let timeouts = mem::take(&mut *bucket.timeouts.lock());
        self.pending.fetch_sub(timeouts.len(), Ordering::Relaxed);
        for timeout in timeouts.into_iter().map(|(_, timeout)| timeout) {
            assert!(self.place(levels, &timeout), "a timeout moves down");
        }
        bucket.expiration.store(NOT_QUEUED, Ordering::Release);
    }
}

/// Moves the clocks of all levels, of which each is a whole number of its own ticks.
fn advance_clock<T>(levels: &mut [Level<T>], time: u64) {
    for level in levels {
        if time < level.current_time.saturating_add(level.tick) {
            break;
        }
        level.current_time = time - time % level.tick;
    }
}
