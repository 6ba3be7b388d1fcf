//! Settings of a timer.

use std::{any::Any, fmt, num::NonZeroU64, string::String, sync::Arc, thread, time::Duration};

use super::{
    Task, Timer,
    delivery::{Backlog, Delivery, Executor, Handler},
    error::TimerBuildError,
    reaper::Reaper,
    shards::{Shards, shard::ShardState},
    stats::Events,
    value::{SharedTimer, Starter, ValueTimer},
};
use crate::{
    clock::{Clock, SystemClock, TickClock},
    wheel::{TimingWheel, WheelBuilder},
};

/// Settings of a new [`Timer`], [`ValueTimer`] or
/// [`DelayQueue`](crate::DelayQueue); from [`Timer::builder`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::Timer;
///
/// let timer = Timer::builder()
///     .tick(Duration::from_micros(100))
///     .shards(4)
///     .max_pending(1_000_000)
///     .executor_threads(2)
///     .name("requests")
///     .build()?;
/// # drop(timer);
/// # Ok::<_, delaywheel::TimerBuildError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct TimerBuilder {
    tick: Duration,
    wheel: WheelBuilder,
    /// `None` for the default.
    pub(super) shards: Option<usize>,
    pub(crate) max_pending: Option<u64>,
    /// `None` for the default, one thread.
    pub(super) execution: Option<Execution>,
    /// `None` for [`SystemClock`].
    clock: Option<Arc<dyn Clock>>,
    /// `None` if the timer has a reaper of its own.
    reaper: Option<Reaper>,
    pub(crate) name: String,
    /// Lateness above which a warning is emitted.
    warn_if_later_than: Duration,
}

#[derive(Clone)]
pub(super) enum Execution {
    Inline,
    Threads(usize),
    Pool(Arc<dyn Executor>),
    /// The user receives the timeouts.
    Queue,
}

/// Shards by default, for each thread that the machine runs at once. Threads get their shards in
/// turn. With only one shard for each running thread, two busy threads often have the same one.
/// See `docs/decisions/0008-nothing-shared-between-threads-of-different-shards.md`.
const SHARDS_PER_THREAD: usize = 4;

/// Upper limit of the default number of shards. The reaper checks each shard, and an event of a
/// purgatory reads a cache line for each 16 of them.
const MAX_DEFAULT_SHARDS: usize = 64;

impl TimerBuilder {
    /// Sets the length of a tick, 1 us to 1 day. Default 1 ms. With a length out of this range,
    /// `build` fails with [`TimerBuildError::TickOutOfRange`].
    ///
    /// Deadlines are rounded up to a tick. With a longer tick, the reaper wakes less often. With
    /// ticks of at most 20 us, the reaper measures how late the system wakes it, and asks to wake
    /// earlier by that time, up to 100 us. About one wake-up in nine is then too early, and at most
    /// every second one. Each of these costs one more sleep.
    pub fn tick(self, tick: Duration) -> Self {
        Self { tick, ..self }
    }

    /// Sets the number of buckets of each level of a wheel, for tests of this crate. Default 256.
    /// The build panics unless the number is within 2..=65536.
    #[doc(hidden)]
    pub fn wheel_size(self, buckets: usize) -> Self {
        Self { wheel: self.wheel.size(buckets), ..self }
    }

    /// Sets the number of wheels, each with a lock of its own, over which threads are spread; 1 to
    /// 65536.
    ///
    /// Default: four for each thread that the machine runs at once, at most 64. So threads that use
    /// the timer at the same time seldom share a lock. A [`DelayQueue`](crate::DelayQueue) has one
    /// by default, and so has a timer on a [`ManualClock`](crate::ManualClock), so that tests do
    /// not depend on the machine. A purgatory has more: see
    /// [`PurgatoryBuilder::timer`](crate::PurgatoryBuilder::timer).
    ///
    /// A shard takes 1.3 KB before its first timeout, and in a [`Timer`] with the feature `future`
    /// 3 KB. So a program with hundreds of timers may want few shards in each.
    pub fn shards(self, shards: usize) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// Sets how many timeouts may be pending at once. Default: as many as the wheels can address.
    ///
    /// The number of callbacks or values never exceeds the limit; sleeps of a [`Timer`] have the
    /// same limit for themselves. For a moment after the end of a timeout, the timer may still
    /// refuse a new one. With a limit, all threads share one counter. With a limit of 0, `build`
    /// fails.
    ///
    /// The limit does not count expired timeouts that wait for an executor thread or, in a
    /// [`DelayQueue`](crate::DelayQueue), for a receiver. If callbacks or receivers are slower than
    /// timeouts become due, the number of expired timeouts grows without bound:
    /// [`TimerStats::waiting`](crate::TimerStats) shows it.
    pub fn max_pending(self, timeouts: u64) -> Self {
        Self { max_pending: Some(timeouts), ..self }
    }

    /// Sets the number of executor threads, which run callbacks. Default 1, so that callbacks never
    /// overlap.
    ///
    /// With several threads, a slow callback delays other callbacks only while all threads are
    /// busy.
    pub fn executor_threads(self, threads: usize) -> Self {
        Self { execution: Some(Execution::Threads(threads)), ..self }
    }

    /// Runs callbacks on the reaper thread. Use it for short callbacks, such as a send on a
    /// channel: a slow one delays all other timeouts.
    pub fn inline(self) -> Self {
        Self { execution: Some(Execution::Inline), ..self }
    }

    /// Runs callbacks on your own thread pool.
    pub fn executor(self, pool: impl Executor) -> Self {
        Self { execution: Some(Execution::Pool(Arc::new(pool))), ..self }
    }

    /// Sets the clock. Default [`SystemClock`].
    ///
    /// With a [`ManualClock`](crate::ManualClock), pass a clone and keep the original. That clock
    /// also runs the callbacks, and the settings of executors have no effect.
    pub fn clock(self, clock: impl Clock) -> Self {
        let is_system = (&clock as &dyn Any).is::<SystemClock>();
        Self { clock: (!is_system).then(|| Arc::new(clock) as _), ..self }
    }

    /// Sets the reaper that serves the timer, on the same thread as its other timers. Default: the
    /// timer has a reaper of its own. [`Reaper`] has an example.
    pub fn reaper(self, reaper: &Reaper) -> Self {
        Self { reaper: Some(reaper.clone()), ..self }
    }

    /// Sets the prefix of the names of the threads. Default "timer". NUL characters are left out.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into().replace('\0', ""), ..self }
    }

    /// Sets the lateness above which the feature `tracing` emits a warning. Default 1 s.
    ///
    /// The timer emits one event for the first timeout that is later than this, and another one
    /// when timeouts are on time again. Lateness ends at hand-off, before a callback waits for an
    /// executor thread.
    #[cfg(feature = "tracing")]
    pub fn warn_if_later_than(self, bound: Duration) -> Self {
        Self { warn_if_later_than: bound, ..self }
    }

    /// Makes a timer for closures. Starts no thread; the first timeout does.
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range.
    #[inline]
    pub fn build(self) -> Result<Timer, TimerBuildError> {
        let this = self.shards_per_thread(SHARDS_PER_THREAD);
        // Both parts share the latest tick: a time that one part has seen has passed for the other.
        let clock = TickClock::new(this.clock.clone(), this.tick);
        #[cfg(feature = "future")]
        let wakers = {
            // The reaper of the sleeps wakes tasks itself.
            let settings = this.clone().name(this.name.clone() + "-sleeps").inline();
            let clock = Some(clock.clone());
            settings.build_with_state(clock, |wheel, _, _| wheel, std::task::Waker::wake)?
        };
        let values = this.build_with_state(Some(clock), |wheel, _, _| wheel, Task::run)?;
        Ok(Timer {
            #[cfg(feature = "future")]
            sleeps: Arc::new(super::sleep::Sleeps::new(wakers, &values)),
            references: Shards::references(&values.shards),
            values: ValueTimer::from_shared(values),
        })
    }

    /// Makes a timer for values that are passed to `handler`. Starts no thread; the first timeout
    /// does.
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range.
    pub fn build_with<T: Send + 'static>(
        self,
        handler: impl Fn(T) + Send + Sync + 'static,
    ) -> Result<ValueTimer<T>, TimerBuildError> {
        self.build_with_state(None, |wheel, _, _| wheel, handler).map(ValueTimer::from_shared)
    }

    /// Makes a timer whose shards may have another state than a wheel. `state` makes the state of
    /// each shard, from its wheel, its index and the number of shards. `clock` is the clock of
    /// another part of the same timer.
    pub(crate) fn build_with_state<S: ShardState>(
        self,
        clock: Option<TickClock>,
        mut state: impl FnMut(TimingWheel<S::Value>, usize, usize) -> S,
        handle: impl Fn(S::Due) + Send + Sync + 'static,
    ) -> Result<Arc<SharedTimer<S>>, TimerBuildError> {
        let this = self.shards_per_thread(SHARDS_PER_THREAD);
        let max_pending = this.check()?;
        let backlog = |is_queue| Delivery::Backlog(Arc::new(Backlog::new(is_queue)));
        let (delivery, executors) = match this.execution.unwrap_or(Execution::Threads(1)) {
            Execution::Inline => (Delivery::Inline, 0),
            Execution::Threads(threads) => (backlog(false), threads),
            Execution::Pool(pool) => (Delivery::Pool(pool), 0),
            Execution::Queue => (backlog(true), 0),
        };
        let reaper = this.reaper.unwrap_or_else(|| Reaper::new(&*this.name));
        let clock = clock.unwrap_or_else(|| TickClock::new(this.clock, this.tick));
        let count = this.shards.expect("it has a default");
        let wheel = || this.wheel.clone().build().expect("the size of the wheels is in range");
        let states = (0..count).map(|index| state(wheel(), index, count));
        let shards = Shards::new(states, clock, reaper.parker().clone(), max_pending);
        let events = Events::new(this.name, this.warn_if_later_than);
        let starter = Starter { reaper, executors };
        Ok(SharedTimer::new(shards, Handler::new(events, handle), delivery, starter))
    }

    /// Unless the number of shards is set, sets it to `shards` for each thread that the machine
    /// runs at once, but at most to [`MAX_DEFAULT_SHARDS`]; to 1 with a manual clock.
    pub(crate) fn shards_per_thread(mut self, shards: usize) -> Self {
        let is_manual = self.clock.as_ref().is_some_and(|clock| clock.as_manual().is_some());
        let threads = || thread::available_parallelism().map_or(1, usize::from);
        let per_machine = || threads().saturating_mul(shards).min(MAX_DEFAULT_SHARDS);
        self.shards.get_or_insert_with(|| if is_manual { 1 } else { per_machine() });
        self
    }

    fn check(&self) -> Result<Option<NonZeroU64>, TimerBuildError> {
        const TICKS: std::ops::RangeInclusive<Duration> =
            Duration::from_micros(1)..=Duration::from_secs(24 * 60 * 60);
        if !TICKS.contains(&self.tick) {
            return Err(TimerBuildError::TickOutOfRange { tick: self.tick });
        }
        if let Some(shards) = self.shards.filter(|shards| !(1..=1 << 16).contains(shards)) {
            return Err(TimerBuildError::ShardsOutOfRange { shards });
        }
        if matches!(self.execution, Some(Execution::Threads(0))) {
            return Err(TimerBuildError::NoExecutor);
        }
        let limit = |timeouts| NonZeroU64::new(timeouts).ok_or(TimerBuildError::NothingPending);
        self.max_pending.map(limit).transpose()
    }
}

impl Default for TimerBuilder {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(1),
            wheel: WheelBuilder::new(),
            shards: None,
            max_pending: None,
            execution: None,
            clock: None,
            reaper: None,
            name: String::from("timer"),
            warn_if_later_than: Duration::from_secs(1),
        }
    }
}

impl fmt::Debug for TimerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerBuilder")
            .field("tick", &self.tick)
            .field("shards", &self.shards)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
