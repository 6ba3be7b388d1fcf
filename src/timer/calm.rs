//! Calls that come too often: run once they have ceased, or no more often than so.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Task, Timeout, Timer, error::ScheduleError};
use crate::sync::Mutex;

/// Runs a callback once calls have ceased for a while.
///
/// Dropped, it leaves a run that is going to be. As long as calls do not cease, nothing runs.
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
    timeout: Mutex<Option<Timeout>>,
}

impl Debounce {
    /// Makes a debounced callback, which keeps its timer running.
    #[must_use]
    pub fn new(
        timer: &Timer,
        quiet: Duration,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let callback = Arc::new(callback);
        Self { timer: timer.clone(), quiet, callback, timeout: Mutex::new(None) }
    }

    /// Has the callback run when there was no other call for the quiet period. A reset, if it was
    /// going to.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], if the timer refuses; then nothing is going to run.
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        let mut timeout = self.timeout.lock();
        if timeout.as_ref().is_some_and(|timeout| timeout.reset(self.quiet)) {
            return Ok(());
        }
        let callback = Arc::clone(&self.callback);
        *timeout = Some(self.timer.schedule(self.quiet, move || callback())?);
        Ok(())
    }

    /// Gives up a run that is going to be. Returns whether there was one.
    pub fn cancel(&self) -> bool {
        let timeout = self.timeout.lock().take();
        timeout.is_some_and(|timeout| timeout.cancel())
    }
}

impl fmt::Debug for Debounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debounce").field("quiet", &self.quiet).finish_non_exhaustive()
    }
}

/// Runs a callback at most once in a period, at once if it can, and for the last time after the
/// last call.
///
/// A period is from the start of one run to the start of the next. On a timer with several executor
/// threads, a run that takes longer than that overlaps with the next. Dropped, it leaves a run that
/// is going to be.
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
    state: Arc<Mutex<Throttled>>,
}

/// What a throttle remembers.
struct Throttled {
    /// When the callback last began to run; `None` if it never did.
    last: Option<Instant>,
    /// The run at the end of the period, if there is to be one.
    timeout: Option<Timeout>,
    /// The number of that run, or of the one before.
    number: u64,
}

impl Throttle {
    /// Makes a throttled callback, which keeps its timer running.
    #[must_use]
    pub fn new(
        timer: &Timer,
        period: Duration,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(Mutex::new(Throttled { last: None, timeout: None, number: 0 }));
        Self { timer: timer.clone(), period, callback: Arc::new(callback), state }
    }

    /// Has the callback run as soon as a period has passed since it last did; once for all calls
    /// until then.
    ///
    /// It runs where callbacks of the timer run, also if it does so at once.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], if the timer refuses; then nothing is going to run.
    pub fn call(&self) -> Result<(), ScheduleError<Task>> {
        // Another run may begin before the lock is held. Then the delay is too long, if anything.
        let now = self.timer.values.engine().core.ticks().clock().now();
        let mut state = self.state.lock();
        if state.timeout.is_some() {
            return Ok(());
        }
        let passed = state.last.map(|last| now.saturating_duration_since(last));
        let delay = passed.map_or(Duration::ZERO, |passed| self.period.saturating_sub(passed));
        state.number += 1;
        state.timeout = Some(self.timer.schedule(delay, self.task(state.number))?);
        Ok(())
    }

    fn task(&self, number: u64) -> impl FnOnce() + Send + use<> {
        let engine = Arc::downgrade(self.timer.values.engine());
        let run = Run { state: Arc::clone(&self.state), number };
        let callback = Arc::clone(&self.callback);
        move || {
            // Not when it was planned for: it may have been held up, and the next is not to follow
            // at once. Without a timer there is no next.
            let now = engine.upgrade().map(|engine| engine.core.ticks().clock().now());
            run.state.lock().last = now;
            drop(run);
            callback();
        }
    }

    /// Gives up a run that is going to be. Returns whether there was one.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn cancel(&self) -> bool {
        let timeout = self.state.lock().timeout.take();
        timeout.is_some_and(|timeout| timeout.cancel())
    }
}

/// A run that is going to be. When it is, or never will be, the next call may plan another.
struct Run {
    state: Arc<Mutex<Throttled>>,
    number: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        // One that was refused or given up may be dropped late, when another has been planned.
        if state.number == self.number {
            state.timeout = None;
        }
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("period", &self.period).finish_non_exhaustive()
    }
}
