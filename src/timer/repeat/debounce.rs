//! A callback that runs after a quiet period without calls.
//!
//! The first call schedules a timeout and the following ones reset it. The clock is user code, so a
//! call reads it before it takes the lock. A call that gets the lock after one that read a later
//! time uses the later time.

use std::{
    boxed::Box,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use crate::{
    sync::Mutex,
    timer::{
        Task, Timer,
        error::ScheduleError,
        shards::{Shards, key::TimeoutKey},
        tick_clock::Reading,
    },
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
    /// No user code runs under this lock. A shard's lock is taken within it.
    state: Mutex<State>,
}

struct State {
    /// Time of the latest call.
    called: Reading,
    /// The scheduled run; it may have ended since.
    run: Option<TimeoutKey>,
}

impl Debounce {
    /// Creates a debounced callback. It keeps the timer running.
    #[must_use]
    pub fn new(
        timer: &Timer,
        quiet: Duration,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = Mutex::new(State { called: Reading::ZERO, run: None });
        Self { timer: timer.clone(), quiet, callback: Arc::new(callback), state }
    }

    /// Schedules a run for the end of the quiet period that starts now, or postpones the scheduled
    /// run until then.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] if the timer refuses the run. Then no run is scheduled.
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let values = &self.timer.values;
        let (shards, read) = (values.shards(), values.shards().clock().read());
        if self.state.lock().postpone(shards, read, self.quiet) {
            return Ok(());
        }
        let callback = Arc::clone(&self.callback);
        let task = values.ensure_started(Task(Box::new(move || callback())))?;
        let mut state = self.state.lock();
        // Another thread may have scheduled a run since. The task is dropped without the lock.
        if state.postpone(shards, read, self.quiet) {
            drop(state);
            drop(task);
            return Ok(());
        }
        debug_assert!(state.called >= read, "a later call shortens the quiet period");
        let deadline = shards.clock().deadline(state.called, self.quiet);
        state.run = Some(shards.insert(shards.current(), state.called.now, deadline, task)?);
        Ok(())
    }

    /// Cancels the scheduled run. Returns whether there was one. Also returns `false` if the cancel
    /// came too late: the callback has begun or is about to.
    pub fn cancel(&self) -> bool {
        let run = self.state.lock().run.take();
        let task = run.and_then(|run| self.timer.values.shards().cancel(run));
        task.is_some()
    }
}

impl State {
    /// Moves the scheduled run to a quiet period after a call. Returns whether there was one.
    fn postpone(&mut self, shards: &Shards<Task>, call: Reading, quiet: Duration) -> bool {
        self.called = self.called.max(call);
        let deadline = shards.clock().deadline(self.called, quiet);
        self.run.is_some_and(|run| shards.reset_to(run, self.called.now, deadline))
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
