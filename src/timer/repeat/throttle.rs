//! A callback that runs at most once in a period.
//!
//! A scheduled run counts until its callback begins or its task is dropped, not until it leaves the
//! wheel. So a cancel that comes too late does not make room for a second run.
//!
//! The clock is user code, so a call reads it before it takes the lock. A task takes the lock when
//! it is dropped, so no task is dropped under it.

use std::{
    boxed::Box,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use crate::{
    sync::Mutex,
    ticks::Nanos,
    timer::{Task, Timer, error::ScheduleError, shards::key::TimeoutKey},
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
    timer: Timer,
    period: Duration,
    callback: Arc<dyn Fn() + Send + Sync>,
    /// No user code runs under this lock. A shard's lock is taken within it.
    state: Arc<Mutex<State>>,
}

struct State {
    /// Start of the latest run, on the clock of the timer; `None` before the first.
    last: Option<Nanos>,
    /// Number and key of the scheduled run, until its callback begins or its task is dropped.
    scheduled: Option<(u64, TimeoutKey)>,
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
        let state = Arc::new(Mutex::new(State { last: None, scheduled: None, number: 0 }));
        Self { timer: timer.clone(), period, callback: Arc::new(callback), state }
    }

    /// Schedules a run for the end of the period that the latest run started; at once if the period
    /// is over. Does nothing if a run is scheduled already.
    ///
    /// Every run takes place where the timer runs its callbacks, never within this call.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] if the timer refuses the run. Then no run is scheduled.
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let Some(number) = self.state.lock().next_number() else { return Ok(()) };
        let values = &self.timer.values;
        let read = values.shards().clock().read();
        let task = values.ensure_started(self.task(number))?;
        let mut state = self.state.lock();
        // Another thread may have scheduled a run since. The drop of the task takes the lock.
        if state.scheduled.is_some() {
            drop(state);
            drop(task);
            return Ok(());
        }
        let period = self.period.into();
        let deadline = state.last.map_or(Nanos::ZERO, |last| last.saturating_add(period));
        debug_assert!(number <= state.number, "the number of a run comes from this state");
        state.scheduled = Some((number, values.shards().insert_at_elapsed(read, deadline, task)?));
        Ok(())
    }

    /// Cancels the scheduled run. Returns whether there was one. Also returns `false` if the cancel
    /// came too late: the callback has begun or is about to.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn cancel(&self) -> bool {
        let scheduled = self.state.lock().scheduled;
        let task = scheduled.and_then(|(_, run)| self.timer.values.shards().cancel(run));
        task.is_some()
    }

    /// Returns the task of a run.
    fn task(&self, number: u64) -> Task {
        let shared = Arc::downgrade(self.timer.values.shared());
        let run = Run { state: Arc::clone(&self.state), number };
        let callback = Arc::clone(&self.callback);
        Task(Box::new(move || {
            // The period starts now, not at the deadline, even if the run is late. After the end of
            // the timer, no other run follows.
            let elapsed = shared.upgrade().map(|shared| shared.shards.clock().elapsed());
            run.begin(elapsed);
            callback();
        }))
    }
}

impl State {
    /// Returns a number for a new run; `None` if a run is scheduled.
    fn next_number(&mut self) -> Option<u64> {
        if self.scheduled.is_some() {
            return None;
        }
        self.number += 1;
        Some(self.number)
    }
}

/// A run that has not begun. Once it begins or is dropped, a call may schedule another.
struct Run {
    state: Arc<Mutex<State>>,
    number: u64,
}

impl Run {
    /// Stores the start of the run.
    fn begin(self, elapsed: Option<Nanos>) {
        let mut state = self.state.lock();
        state.last = state.last.max(elapsed);
        drop(state);
        drop(self);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        // A task that was refused or cancelled may be dropped after another run was scheduled.
        if state.scheduled.is_some_and(|(number, _)| number == self.number) {
            state.scheduled = None;
        }
    }
}

// User code never runs under its lock, so a panic leaves no inconsistent state.
impl UnwindSafe for Throttle {}
impl RefUnwindSafe for Throttle {}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("period", &self.period).finish_non_exhaustive()
    }
}
