//! One attempt to deliver a timeout, and how it may end.

use std::{
    any::Any,
    fmt,
    future::{Future, poll_fn},
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use delaywheel::{BootClock, Clock as _};
use parking_lot::{Condvar, Mutex};

use super::core::Core;
use crate::{
    record::{Claim, Record, TimeoutId},
    time::{WallTime, When},
};

/// A delivery that is under way.
///
/// It ends with [`acknowledge`](Self::acknowledge), [`retry`](Self::retry), [`dead`](Self::dead),
/// or [`leave`](Self::leave). A delivery that is dropped counts as failed, as with `retry`. After
/// [`acknowledged_in_transaction`](Self::acknowledged_in_transaction) it ends as acknowledged.
///
/// None of these methods blocks. The next group commit writes the end. If the process is killed
/// before that, the timeout is delivered again.
#[must_use = "a delivery that is dropped counts as failed"]
#[derive(Debug)]
pub struct Delivery {
    record: Record,
    run: Arc<Run>,
    /// `None` once it has ended.
    core: Option<Arc<Core>>,
}

/// When the lease of a worker ends, in microseconds of the monotonic clock; `u64::MAX` for never.
#[derive(Debug, Default)]
pub(super) struct Lease(AtomicU64);

impl Lease {
    /// Returns the time of a clock that never steps, and on Linux runs during a suspension.
    pub(super) fn now() -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(|| BootClock.now());
        let start = *START;
        BootClock.now().saturating_duration_since(start)
    }

    pub(super) fn is_valid(&self) -> bool {
        self.remaining().is_none_or(|remaining| !remaining.is_zero())
    }

    /// Returns the time until the end; `None` for a lease without one, and zero after the end.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let until = self.0.load(SeqCst);
        let remaining = || Duration::from_micros(until).saturating_sub(Self::now());
        (until != u64::MAX).then(remaining)
    }

    /// Sets a later end. Returns `false` if the lease has ended, which is final.
    pub(super) fn extend(&self, end: Duration) -> bool {
        let is_valid = self.is_valid();
        if is_valid {
            self.set(end);
        }
        is_valid
    }

    /// Sets the end of a new lease, or zero to end this one.
    pub(super) fn set(&self, end: Duration) {
        self.0.store(u64::try_from(end.as_micros()).unwrap_or(u64::MAX), SeqCst);
    }
}

const RECALLED: u64 = u64::MAX;

const WAITING: u64 = RECALLED - 1;

#[derive(Debug)]
pub(super) struct Run {
    lease: Arc<Lease>,
    pub(super) driver: usize,
    /// When the handler started, in microseconds of the monotonic clock; [`WAITING`] before that,
    /// and [`RECALLED`] if it never does.
    started: AtomicU64,
    pub(super) claim: Claim,
    pub(super) attempt: u32,
    /// The store knows the end already.
    pub(super) is_acknowledged: AtomicBool,
    /// `None` once the delivery is void; otherwise tasks that wait for that. Their futures hold
    /// the wakers, so that those of earlier tasks do not stay.
    waiting: Mutex<Option<Vec<Weak<Waker>>>>,
    stopped: Condvar,
}

impl Run {
    pub(super) fn new(lease: Arc<Lease>, driver: usize, record: &Record) -> Self {
        let (claim, attempt) = (record.claim(), record.attempt);
        let (started, is_acknowledged) = (AtomicU64::new(WAITING), AtomicBool::new(false));
        let (waiting, stopped) = (Mutex::new(Some(Vec::new())), Condvar::new());
        Self { lease, driver, started, claim, attempt, is_acknowledged, waiting, stopped }
    }

    /// The handler starts now. Returns `false` if the delivery was recalled.
    pub(super) fn start(&self, now: Duration) -> bool {
        let now = u64::try_from(now.as_micros()).unwrap_or(WAITING - 1);
        self.started.compare_exchange(WAITING, now, SeqCst, SeqCst).is_ok()
    }

    /// Returns when the handler started, if it has, in whole microseconds.
    pub(super) fn started(&self) -> Option<Duration> {
        let started = self.started.load(SeqCst);
        (started < WAITING).then(|| Duration::from_micros(started))
    }

    /// Keeps the handler from starting. Returns `false` if it has started, or was recalled before.
    pub(super) fn recall(&self) -> bool {
        self.started.compare_exchange(WAITING, RECALLED, SeqCst, SeqCst).is_ok()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.waiting.lock().is_none() || !self.lease.is_valid()
    }

    /// Returns the wakers of the tasks that wait for this, to be woken without a lock.
    pub(super) fn stop(&self) -> impl Iterator<Item = Arc<Waker>> + use<> {
        let waiting = self.waiting.lock().take();
        self.stopped.notify_all();
        waiting.into_iter().flatten().filter_map(|waker| waker.upgrade())
    }
}

/// Tells the handler of a delivery, and its helpers, that the delivery is void: its lease has
/// ended, the handler has exceeded its limit, or the timeout was cancelled or replaced. A shutdown
/// of the timer stops no delivery.
///
/// A handler that stops before its work is done ends with an error: after the end of its lease,
/// `Ok` acknowledges the timeout if no other worker has taken it over.
///
/// A cancel by any process stops the delivery at once if the store notifies its timers, and with
/// the next renewal of the lease otherwise, which is a third of it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use delaywheel_durable::{DurableTimer, ManualClock, SqliteStore};
///
/// let clock = ManualClock::new();
/// let (sender, deliveries) = std::sync::mpsc::channel();
/// let timer = DurableTimer::builder(SqliteStore::in_memory())
///     .clock(clock.clone())
///     .build_with(move |delivery| drop(sender.send(delivery)))?;
/// timer.schedule("video/17", Duration::ZERO, b"").wait()?;
/// clock.advance(Duration::ZERO);
/// let delivery = deliveries.recv()?;
/// assert!(!delivery.stop_token().wait(Duration::ZERO));
/// timer.cancel("video/17").wait()?;
/// clock.advance(Duration::ZERO);
/// assert!(delivery.stop_token().wait(Duration::ZERO));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopToken(pub(super) Arc<Run>);

impl StopToken {
    /// Blocks until the delivery is void, at most for a time. Returns whether it is.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now().checked_add(limit);
        loop {
            let now = Instant::now();
            let mut waiting = self.0.waiting.lock();
            let is_over = deadline.is_some_and(|deadline| deadline <= now);
            if waiting.is_none() || !self.0.lease.is_valid() || is_over {
                drop(waiting);
                return self.0.is_stopped();
            }
            // The lease may end without a notification, or be extended.
            let lapse = self.0.lease.remaining().and_then(|remaining| now.checked_add(remaining));
            match deadline.into_iter().chain(lapse).min() {
                Some(until) => drop(self.0.stopped.wait_until(&mut waiting, until)),
                None => self.0.stopped.wait(&mut waiting),
            }
        }
    }

    /// Waits until the delivery is void. The timer notices the end of a lease after its next call
    /// of the store, which may wait for a server that is silent.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let (run, mut own) = (Arc::clone(&self.0), None::<Arc<Waker>>);
        poll_fn(move |context| {
            if run.is_stopped() {
                return Poll::Ready(());
            }
            if !own.as_ref().is_some_and(|own| own.will_wake(context.waker())) {
                let own = own.insert(Arc::new(context.waker().clone()));
                let mut waiting = run.waiting.lock();
                let Some(waiting) = &mut *waiting else { return Poll::Ready(()) };
                waiting.retain(|waker| waker.strong_count() > 0);
                waiting.push(Arc::downgrade(own));
            }
            Poll::Pending
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    /// With a time if the policy is not to decide.
    Failed(String, Option<When>),
    Dead(String),
    Left(String),
    /// No handler has seen it.
    Released,
    /// The driver has given it back.
    Recalled,
}

impl Delivery {
    pub(super) fn new(record: Record, run: Arc<Run>, core: Arc<Core>) -> Self {
        Self { record, run, core: Some(core) }
    }

    /// Starts the delivery in the thread or task of its handler. Otherwise gives it back: the lease
    /// has ended since the delivery began, the timer was shut down, or the driver has recalled it.
    pub(super) fn start(self) -> Option<Self> {
        let start = self.core.as_ref().and_then(|core| core.start());
        // The lease is checked last, directly before the handler runs.
        match start {
            Some(now) if self.run.lease.is_valid() && self.run.start(now) => Some(self),
            _ => None,
        }
    }

    /// Returns whether this worker may still deliver the timeout: see [`StopToken`]. Does not ask
    /// the store, and takes well under a microsecond, so a long handler can call it before each
    /// effect.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.run.is_stopped()
    }

    /// Returns a token that tells when the delivery is void.
    #[must_use]
    pub fn stop_token(&self) -> StopToken {
        StopToken(Arc::clone(&self.run))
    }

    /// Returns the name of the timeout.
    #[must_use]
    pub fn id(&self) -> &TimeoutId {
        &self.record.id
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.record.payload
    }

    /// Returns the time for which the timeout was scheduled.
    #[must_use]
    pub fn due(&self) -> WallTime {
        self.record.due
    }

    /// Returns the number of this attempt; the first one is 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.record.attempt
    }

    /// Returns the record, with the error of the attempt before and the token of the claim.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Ends the delivery as successful: the timeout is removed, or its next occurrence scheduled.
    pub fn acknowledge(self) {
        self.end(Verdict::Done);
    }

    /// Ends the delivery by the error of a handler, and the text of that error.
    #[cfg_attr(not(feature = "serde"), expect(unused_variables, reason = "it has no version"))]
    pub(super) fn fail(self, error: &dyn Any, text: &str) {
        #[cfg(feature = "serde")]
        if crate::payload::is_unknown_version(error) {
            return self.leave(text);
        }
        self.retry(text);
    }

    /// Ends the delivery as failed. The [`Backoff`](crate::Backoff) decides when it is tried again,
    /// or that it is dead.
    pub fn retry(self, error: impl fmt::Display) {
        self.end(Verdict::Failed(error.to_string(), None));
    }

    /// Ends the delivery as failed; the next attempt is at `when`. The limit of attempts holds. A
    /// time after the year 9999 counts as [`WallTime::MAX`].
    pub fn retry_at(self, when: impl Into<When>, error: impl fmt::Display) {
        self.end(Verdict::Failed(error.to_string(), Some(when.into())));
    }

    /// Ends the delivery as failed for good. The timeout is kept as dead.
    pub fn dead(self, error: impl fmt::Display) {
        self.end(Verdict::Dead(error.to_string()));
    }

    /// Leaves the timeout to another worker, which may know what this one does not: its payload,
    /// for example. This counts no attempt. Workers can claim the timeout again after 5 seconds.
    /// From the third time on that this process leaves it, the time doubles, up to 10 minutes. If
    /// it leaves more than 10,000, the time of further ones is that from their due time to the time
    /// for which this attempt was planned, within these limits.
    pub fn leave(self, error: impl fmt::Display) {
        self.end(Verdict::Left(error.to_string()));
    }

    /// Tells the timer that a transaction of the handler has acknowledged the delivery and has
    /// committed. However the handler ends the delivery then, it counts as acknowledged.
    ///
    /// Do not call this after a rollback: the timeout is delivered again, but only a minute or two
    /// later, when the timer and the store compare which timeouts the timer holds. On a store that
    /// one process has alone, such as `SqliteStore`, only the next timer delivers it.
    pub fn acknowledged_in_transaction(&self) {
        self.run.is_acknowledged.store(true, SeqCst);
    }

    fn end(mut self, verdict: Verdict) {
        if let Some(core) = self.core.take() {
            core.end(self.record.clone(), &self.run, verdict);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            let failed = |error: &str| Verdict::Failed(error.to_owned(), None);
            let verdict = match () {
                () if self.run.recall() => Verdict::Released,
                () if self.run.started.load(SeqCst) == RECALLED => Verdict::Recalled,
                () if std::thread::panicking() => failed("the handler panicked"),
                () => failed("the delivery was dropped"),
            };
            core.end(self.record.clone(), &self.run, verdict);
        }
    }
}
