//! A callback that runs at most once in a period.
//!
//! A run counts as scheduled until its callback begins or its task is dropped, not until it leaves
//! the wheel. So a cancel that comes too late does not make room for a second run. As in a
//! debounce, a call finds out in one hold of the lock whether a run is scheduled, and schedules one
//! if not.

use std::{
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crate::{
    sync::Mutex,
    timer::{Task, TimeoutKey, Timer, error::ScheduleError},
};

/// Runs a callback at most once in a period.
///
/// If the period of the latest run is over, a call runs the callback at once. Otherwise all calls
/// within the period together cause one run, at the end of the period.
///
/// A period lasts from the start of one run to the start of the next. On a timer with several
/// executor threads, a run that takes longer than a period overlaps with the next.
///
/// Dropping the `Throttle` leaves a scheduled run scheduled, unless the `Throttle` has the last
/// clone of its timer. Then its drop shuts the timer down, and the timer drops the run.
///
/// If the clock steps back, the latest time seen counts. So a step back does not shorten a period.
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{ManualClock, Throttle, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (drawn, draws) = mpsc::channel();
/// let draw = Throttle::new(&timer, Duration::from_millis(100), move || drawn.send(()).unwrap());
///
/// for _ in 0..10 {
///     draw.call()?;
///     clock.advance(Duration::from_millis(25));
/// }
/// clock.advance(Duration::from_secs(1));
/// // At 0, 100, 200 and 300 ms.
/// assert_eq!(draws.try_iter().count(), 4);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Throttle {
    callback: Arc<dyn Fn() + Send + Sync>,
    shared: Arc<SharedThrottle>,
}

/// The part of a throttle to which its runs refer weakly, so that no run keeps the timer running.
struct SharedThrottle {
    timer: Timer,
    period: Duration,
    /// No user code runs under this lock.
    state: Mutex<ThrottleState>,
}

#[derive(Default)]
struct ThrottleState {
    /// Start of the latest run; `None` before the first.
    last: Option<Instant>,
    /// Number and timeout of the scheduled run, until its callback begins or its task is dropped.
    run: Option<(u64, TimeoutKey)>,
    /// Number of the latest run that a call tried to schedule.
    number: u64,
}

impl Throttle {
    /// Creates a throttled callback. The `Throttle` keeps the timer running.
    #[must_use]
    pub fn new(
        timer: &Timer,
        period: Duration,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let shared = SharedThrottle { timer: timer.clone(), period, state: Mutex::default() };
        Self { callback: Arc::new(callback), shared: Arc::new(shared) }
    }

    /// Schedules a run for the end of the period that the latest run started; at once if the period
    /// is over. Does nothing if a run is scheduled already.
    ///
    /// Every run takes place where the timer runs its callbacks, never within this call.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] if the timer refuses the run. Then no run is scheduled. The caller
    /// may run the callback that the error holds, which starts a period.
    #[inline]
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let SharedThrottle { timer, period, state } = &*self.shared;
        if state.lock().run.is_some() {
            return Ok(());
        }
        let timer = timer.values.shared();
        // The clock and the start of the threads may run user code, so both come before the lock.
        let clock = &timer.shards.clock;
        let read = clock.read();
        // No scheduled run has the number 0.
        timer.ensure_started(()).map_err(|refused| refused.map(|()| self.task(0)))?;
        let mut state = state.lock();
        if state.run.is_none() {
            let deadline = match state.last {
                None => read.now,
                Some(last) => clock.at_or_never(read, last.checked_add(*period)),
            };
            state.number += 1;
            let number = state.number;
            let run = timer.shards.insert(read.now, deadline, self.task(number))?;
            state.run = Some((number, run));
            drop(state);
            timer.help_if_late(read);
        }
        Ok(())
    }

    /// Returns the task of a run.
    #[inline]
    fn task(&self, number: u64) -> Task {
        let run = Run { throttle: Arc::downgrade(&self.shared), number };
        let callback = Arc::clone(&self.callback);
        Task::new(move || {
            run.begin();
            callback();
        })
    }

    /// Cancels the scheduled run. Returns whether there was one. Also returns `false` if the cancel
    /// came too late: the callback has begun or is about to.
    #[inline]
    pub fn cancel(&self) -> bool {
        let SharedThrottle { timer, state, .. } = &*self.shared;
        let state = state.lock();
        let cancelled = state.run.and_then(|(_, run)| timer.values.cancel(run));
        drop(state);
        // The drop of the cancelled task lets a call schedule another run.
        cancelled.is_some()
    }
}

/// A run that has not begun. Once it begins or is dropped, a call may schedule another.
struct Run {
    throttle: Weak<SharedThrottle>,
    number: u64,
}

impl Run {
    /// Stores the start of the run. The period starts now, not at the deadline, even if the run is
    /// late or the caller runs a task that was refused. After the drop of the throttle, no other
    /// run follows.
    #[inline]
    fn begin(self) {
        if let Some(throttle) = self.throttle.upgrade() {
            let now = throttle.timer.now();
            let mut state = throttle.state.lock();
            state.last = state.last.max(Some(now));
        }
    }
}

impl Drop for Run {
    #[inline]
    fn drop(&mut self) {
        if let Some(throttle) = self.throttle.upgrade() {
            // A task that was refused or cancelled may be dropped after another run was scheduled.
            throttle.state.lock().run.take_if(|(number, _)| *number == self.number);
        }
    }
}

// User code never runs under the lock of a throttle, so a panic leaves no inconsistent state.
impl UnwindSafe for Throttle {}
impl RefUnwindSafe for Throttle {}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("period", &self.shared.period).finish_non_exhaustive()
    }
}
