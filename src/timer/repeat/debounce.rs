//! A callback that runs after a quiet period without calls.
//!
//! The first call schedules a timeout, and the following ones postpone it. In one hold of the lock,
//! a call finds out whether a timeout is pending, and schedules one if not. So calls of several
//! threads never schedule two timeouts, and the timer refuses a call only if none is pending.

use std::{
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use crate::{
    sync::Mutex,
    timer::{Task, TimeoutKey, Timer, error::ScheduleError},
};

/// Runs a callback after a quiet period without calls.
///
/// Each call restarts the quiet period, so the callback does not run as long as calls keep coming.
/// A call after the quiet period schedules another run, even if the first run still waits for an
/// executor thread.
///
/// Dropping the `Debounce` leaves a scheduled run scheduled, unless the `Debounce` has the last
/// clone of its timer. Then its drop shuts the timer down, and the timer drops the run.
///
/// If the clock steps back, the latest time seen counts. So a step back does not shorten a quiet
/// period.
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{Debounce, ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (saved, saves) = mpsc::channel();
/// let save = Debounce::new(&timer, Duration::from_millis(300), move || saved.send(()).unwrap());
///
/// for _ in 0..10 {
///     save.call()?;
///     clock.advance(Duration::from_millis(200));
/// }
/// assert_eq!(saves.try_iter().count(), 0);
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(saves.try_iter().count(), 1);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Debounce {
    timer: Timer,
    quiet: Duration,
    callback: Arc<dyn Fn() + Send + Sync>,
    /// The latest run, which may have ended. No user code runs under this lock.
    run: Mutex<Option<TimeoutKey>>,
}

impl Debounce {
    /// Creates a debounced callback. The `Debounce` keeps the timer running.
    #[must_use]
    pub fn new(
        timer: &Timer,
        quiet: Duration,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let (timer, callback) = (timer.clone(), Arc::new(callback));
        Self { timer, quiet, callback, run: Mutex::new(None) }
    }

    /// Schedules a run for the end of the quiet period that starts now, or postpones the scheduled
    /// run until then.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] if the timer refuses the run. Then no run is scheduled, but an
    /// earlier one may wait for an executor thread.
    #[inline]
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let timer = self.timer.values.shared();
        let task = |()| {
            let callback = Arc::clone(&self.callback);
            Task::new(move || callback())
        };
        // The clock and the start of the threads may run user code, so both come before the lock.
        let shards = &timer.shards;
        let read = shards.clock.read();
        timer.ensure_started(()).map_err(|refused| refused.map(task))?;
        let mut run = self.run.lock();
        if !run.is_some_and(|run| shards.postpone(run, read, self.quiet)) {
            let deadline = shards.clock.deadline(read, self.quiet);
            *run = Some(shards.insert(read.now, deadline, task(()))?);
            drop(run);
            timer.help_if_late(read);
        }
        Ok(())
    }

    /// Cancels the scheduled run. Returns whether there was one. Also returns `false` if the cancel
    /// came too late: the callback has begun or is about to.
    #[inline]
    pub fn cancel(&self) -> bool {
        let run = self.run.lock();
        let cancelled = run.and_then(|run| self.timer.values.shared().shards.cancel(run));
        drop(run);
        cancelled.is_some()
    }
}

// User code never runs under the lock of a debounce, so a panic leaves no inconsistent state.
impl UnwindSafe for Debounce {}
impl RefUnwindSafe for Debounce {}

impl fmt::Debug for Debounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debounce").field("quiet", &self.quiet).finish_non_exhaustive()
    }
}
