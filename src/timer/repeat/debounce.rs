//! A callback that runs after a quiet period without calls.
//!
//! The first call schedules a timeout, and the following ones postpone it.

use std::{
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use crate::{
    sync::Mutex,
    timer::{Task, TimeoutHandle, Timer, error::ScheduleError},
};

/// Runs a callback after a quiet period without calls.
///
/// Each call restarts the quiet period, so the callback does not run as long as calls keep coming.
/// A call after the quiet period schedules another run, even if the first run still waits for an
/// executor thread. Dropping the `Debounce` leaves a scheduled run scheduled.
///
/// If the clock steps back, the latest time seen counts. So a step does not shorten a quiet period.
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
    /// The scheduled run, which may have ended since. No lock is taken under this one, and no user
    /// code runs.
    run: Mutex<Option<Arc<TimeoutHandle>>>,
}

impl Debounce {
    /// Creates a debounced callback. It keeps the timer running.
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
    /// Returns [`ScheduleError`] if the timer refuses the run. Then no run is scheduled.
    #[inline]
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let run = self.run.lock().clone();
        if run.is_some_and(|run| run.postpone(self.quiet)) {
            return Ok(());
        }
        let callback = Arc::clone(&self.callback);
        let run = Arc::new(self.timer.schedule(self.quiet, move || callback())?);
        let other = self.run.lock().replace(Arc::clone(&run));
        // Another thread may have scheduled a run since, and its quiet period may end later.
        if other.is_some_and(|other| other.cancel()) && !run.postpone(self.quiet) {
            // The run of this call is over, unless a later call or cancel has taken it.
            let run = self.run.lock().clone();
            if let Some(run) = run {
                if !run.is_pending() {
                    return self.call();
                }
                run.postpone(self.quiet);
            }
        }
        Ok(())
    }

    /// Cancels the scheduled run. Returns whether there was one. Also returns `false` if the cancel
    /// came too late: the callback has begun or is about to.
    #[inline]
    pub fn cancel(&self) -> bool {
        let run = self.run.lock().take();
        run.is_some_and(|run| run.cancel())
    }
}

// User code never runs under its lock, so a panic leaves no inconsistent state.
impl UnwindSafe for Debounce {}
impl RefUnwindSafe for Debounce {}

impl fmt::Debug for Debounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debounce").field("quiet", &self.quiet).finish_non_exhaustive()
    }
}
