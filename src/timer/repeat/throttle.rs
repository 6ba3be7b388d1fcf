//! A callback that runs at most once in a period.
//!
//! A scheduled run counts until its callback begins or its task is dropped, not until it leaves the
//! wheel. So a cancel that comes too late does not make room for a second run.

use std::{
    fmt, mem,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crate::{
    sync::Mutex,
    timer::{Task, TimeoutHandle, Timer, error::ScheduleError},
};

/// Runs a callback at most once in a period.
///
/// If the period of the latest run is over, a call runs the callback at once. Otherwise all calls
/// within the period together cause one run, at its end.
///
/// A period lasts from the start of one run to the start of the next. On a timer with several
/// executor threads, a run that takes longer than a period overlaps with the next. Dropping the
/// `Throttle` leaves a scheduled run scheduled.
///
/// If the clock steps back, the latest time seen counts. So a step does not shorten a period.
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
    shared: Arc<Shared>,
}

/// The part that a run refers to. A run does not keep the timer running.
struct Shared {
    timer: Timer,
    period: Duration,
    /// No lock is taken under this one, and no user code runs.
    state: Mutex<State>,
}

struct State {
    /// Start of the latest run; `None` before the first.
    last: Option<Instant>,
    /// Number of the scheduled run, until its callback begins or its task is dropped.
    scheduled: Option<u64>,
    /// Its timeout, once the timer has accepted it.
    timeout: Option<TimeoutHandle>,
    /// Whether a call is about to store that timeout, and the run has not begun.
    is_under_way: bool,
    /// Number of the latest run that a call tried to schedule.
    number: u64,
}

impl Throttle {
    /// Creates a throttled callback. It keeps the timer running.
    #[must_use]
    pub fn new(
        timer: &Timer,
        period: Duration,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state =
            State { last: None, scheduled: None, timeout: None, is_under_way: false, number: 0 };
        let shared = Shared { timer: timer.clone(), period, state: Mutex::new(state) };
        Self { callback: Arc::new(callback), shared: Arc::new(shared) }
    }

    /// Schedules a run for the end of the period that the latest run started; at once if the period
    /// is over. Does nothing if a run is scheduled already, or if another call is about to schedule
    /// one.
    ///
    /// Every run takes place where the timer runs its callbacks, never within this call.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] if the timer refuses the run. Then no run is scheduled. The caller
    /// may run the callback that the error holds, which starts a period. If another call is about
    /// to schedule the run, only that call returns the error.
    #[inline]
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let Shared { timer, period, state } = &*self.shared;
        let (number, last) = {
            let mut state = state.lock();
            if state.scheduled.is_some() {
                return Ok(());
            }
            state.number += 1;
            (state.scheduled, state.is_under_way) = (Some(state.number), true);
            (state.number, state.last)
        };
        let task = |number| {
            let run = Run { throttle: Arc::downgrade(&self.shared), number };
            let callback = Arc::clone(&self.callback);
            move || {
                if run.begin() {
                    callback();
                }
            }
        };
        let run = task(number);
        let scheduled = match last.map(|last| last.checked_add(*period)) {
            None => timer.schedule(Duration::ZERO, run),
            Some(Some(deadline)) => timer.schedule_at(deadline, run),
            Some(None) => timer.schedule(Duration::MAX, run),
        };
        // The drop of the refused run lets a call schedule another. The caller gets a run that is
        // not scheduled, and may begin at any time.
        let timeout = scheduled.map_err(|refused| -> ScheduleError<Task> {
            refused.map(|_| Task::new(task(NOT_SCHEDULED)))
        })?;
        let mut state = state.lock();
        if state.scheduled == Some(number) {
            state.is_under_way = false;
            state.timeout = Some(timeout);
        } else {
            // The run has begun, or was cancelled.
            drop(state);
            timeout.cancel();
        }
        Ok(())
    }

    /// Cancels the scheduled run. Returns whether there was one. Also returns `false` if the cancel
    /// came too late: the callback has begun or is about to.
    #[inline]
    pub fn cancel(&self) -> bool {
        let mut state = self.shared.state.lock();
        if mem::take(&mut state.is_under_way) {
            // Without its number, the run neither begins nor keeps its timeout.
            state.scheduled = None;
            return true;
        }
        let timeout = state.timeout.take();
        drop(state);
        timeout.is_some_and(|timeout| timeout.cancel())
    }
}

impl Shared {
    /// Lets a call schedule another run, if this one is scheduled.
    #[inline]
    fn end(&self, number: u64) {
        let mut state = self.state.lock();
        // A task that was refused or cancelled may be dropped after another run was scheduled.
        if state.scheduled == Some(number) {
            (state.scheduled, state.is_under_way) = (None, false);
            let _timeout = state.timeout.take();
            drop(state);
        }
    }
}

/// Number of a run that the timer has refused.
const NOT_SCHEDULED: u64 = 0;

/// A run that has not begun. Once it begins or is dropped, a call may schedule another.
struct Run {
    throttle: Weak<Shared>,
    number: u64,
}

impl Run {
    /// Stores the start of the run. The period starts now, not at the deadline, even if the run is
    /// late. After the end of the throttle, no other run follows. Returns `false` if the run was
    /// cancelled.
    #[inline]
    fn begin(self) -> bool {
        let Some(throttle) = self.throttle.upgrade() else { return true };
        let now = throttle.timer.now();
        let mut state = throttle.state.lock();
        let is_scheduled = state.scheduled == Some(self.number);
        let begins = is_scheduled || self.number == NOT_SCHEDULED;
        if begins {
            state.last = state.last.max(Some(now));
            state.is_under_way &= !is_scheduled;
        }
        begins
    }
}

impl Drop for Run {
    #[inline]
    fn drop(&mut self) {
        if let Some(throttle) = self.throttle.upgrade() {
            throttle.end(self.number);
        }
    }
}

// User code never runs under its lock, so a panic leaves no inconsistent state.
impl UnwindSafe for Throttle {}
impl RefUnwindSafe for Throttle {}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("period", &self.shared.period).finish_non_exhaustive()
    }
}
