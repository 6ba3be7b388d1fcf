//! The counts of a timer, and its events for `tracing` if that feature is on.
//!
//! Each shard counts under its own lock, which each counted operation holds anyway. One more
//! [`TimerStats`] has the wake-ups of the reaper, and the lateness of all timeouts.
//!
//! A subscriber is user code. The timer calls it without a lock and catches its panics, so that no
//! panic ends a thread of the timer. Cancelling emits no events, and there are no spans. Scheduling
//! emits events in two cases: when the first timeout starts the threads, and when lateness begins
//! or ends as a thread hands off timeouts of a late reaper.

use std::{
    string::String,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{histogram::Histogram, panics::Panic};

/// Counts of a timer; from [`Timer::stats`](crate::Timer::stats).
///
/// In each shard, `scheduled = pending + expired + cancelled + returned` holds at all times. The
/// call reads one shard after the other, so if other threads use the timer, the sums are not those
/// of one moment.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// timer.schedule(Duration::from_secs(1), || ())?;
/// timer.schedule(Duration::from_secs(9), || ())?;
/// clock.advance(Duration::from_secs(5));
/// let stats = timer.stats();
/// assert_eq!((stats.scheduled, stats.expired, stats.pending), (2, 1, 1));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TimerStats {
    /// Timeouts that are pending.
    pub pending: u64,
    /// Timeouts that were accepted.
    pub scheduled: u64,
    /// Timeouts that became due and were handed off, even if a shutdown then returned them. The
    /// number may fall: a sleep that was reset to a later deadline counts as expired from its old
    /// deadline until its next poll.
    pub expired: u64,
    /// Expired timeouts that wait for an executor thread or, in a
    /// [`DelayQueue`](crate::DelayQueue), for a receiver. They count as expired, and outside of
    /// [`max_pending`](crate::TimerBuilder::max_pending). Always 0 if callbacks run inline, on a
    /// [`ManualClock`](crate::ManualClock) or on a pool: ask the pool how many wait there.
    pub waiting: u64,
    /// Timeouts that were cancelled.
    pub cancelled: u64,
    /// Timeouts that were refused because the timer was full or had been shut down.
    pub refused: u64,
    /// Pending timeouts that a shutdown returned.
    pub returned: u64,
    /// Panics of the user's code that the timer caught: of callbacks, of drops of values, of a
    /// pool, of a clock, and of wakers whose sleep expired or for whose queue a value became due.
    pub panicked: u64,
    /// Wake-ups of the reaper: at the end of its sleep, or earlier because of an insert or `wake`.
    /// Each timer of a shared [`Reaper`](crate::Reaper) counts all wake-ups of that thread.
    /// With a [`ManualClock`](crate::ManualClock) there is no reaper, and this stays 0: count the
    /// calls of [`advance_to_next`](crate::ManualClock::advance_to_next) instead.
    pub wakeups: u64,
    /// How late timeouts left the wheel, counted from the deadline rounded up to a tick.
    ///
    /// The wheel stores only the tick. So the time since the requested instant is longer than the
    /// lateness, by less than a tick. An example with ticks of 1 ms: a delay of 20 ms begins 0.3 ms
    /// into a tick. It ends 20.3 ms after the start of that tick, which is rounded up to 21 ms. If
    /// the timeout is handed off at 21.1 ms, its lateness is 0.1 ms, and 20.8 ms have passed since
    /// the call.
    ///
    /// A delay of zero counts from the start of the tick in which the call was made.
    ///
    /// Hand-off is when the reaper takes the timeout out of the wheel, before the callback waits
    /// for an executor. A sleep that was reset to a later deadline is handed off at its old
    /// deadline as well, and has a lateness for each hand-off.
    pub lateness: Histogram,
}

impl TimerStats {
    /// Adds the counts of another part of the same timer.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        self.pending += other.pending;
        self.scheduled += other.scheduled;
        self.expired += other.expired;
        self.waiting += other.waiting;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.returned += other.returned;
        self.panicked += other.panicked;
        self.wakeups += other.wakeups;
        self.lateness.add(&other.lateness);
        self
    }
}

/// Emits an event, if the feature `tracing` is on. A subscriber that panics stops nothing.
macro_rules! emit {
    ($level:ident, $events:expr, $($name:ident = $value:expr,)* $text:literal) => {
        #[cfg(feature = "tracing")]
        drop(crate::panics::catch(|| {
            tracing::$level!(target: "delaywheel", timer = $events.name, $($name = $value,)* $text);
        }));
        #[cfg(not(feature = "tracing"))]
        let _ = (&$events.name, $(&$value,)*);
    };
}

/// Emits the events of a timer or of a purgatory's operations, and counts panics.
pub(crate) struct Events {
    pub(super) name: String,
    warn_if_later_than: Duration,
    /// Whether the latest batch was late. An event is emitted when this changes.
    is_late: AtomicBool,
    /// Number of panics of user code.
    pub(crate) panics: AtomicU64,
}

impl Events {
    pub(crate) fn new(name: String, warn_if_later_than: Duration) -> Self {
        Self { name, warn_if_later_than, is_late: false.into(), panics: 0.into() }
    }

    pub(super) fn started(&self) {
        emit!(debug, self, "threads started");
    }

    /// Emits the event of a shutdown that returned this number of timeouts.
    pub(super) fn shut_down(&self, returned: usize) {
        emit!(debug, self, returned = returned, "shut down");
    }

    /// Counts a panic of user code.
    pub(crate) fn panicked(&self, panic: &Panic) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let payload = panic.message().unwrap_or("not a text");
        emit!(error, self, payload = payload, "user code panicked");
    }

    /// Takes the greatest lateness of a batch. Emits an event if lateness begins or ends with it.
    pub(super) fn expired(&self, lateness: Duration) {
        let is_late = lateness > self.warn_if_later_than;
        let was_late = self.is_late.swap(is_late, Ordering::Relaxed);
        if is_late && !was_late {
            emit!(warn, self, latest_by = format_args!("{lateness:?}"), "timeouts are late");
        } else if was_late && !is_late {
            emit!(debug, self, "timeouts are on time again");
        }
    }
}
