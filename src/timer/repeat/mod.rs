//! Callbacks that run repeatedly.
//!
//! Each occurrence schedules the next one after it has run. So a callback never overlaps with
//! itself, and there is one timeout per repetition.
//!
//! A repetition has a lock for its state. A thread takes the callback out before it runs it, so the
//! lock covers no user code. No other lock is taken within it.

pub(super) mod debounce;
pub(super) mod occurrences;
pub(super) mod throttle;

use std::{
    boxed::Box,
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use self::occurrences::{MissedTicks, Occurrences, Rhythm};
use super::{Task, Timer, error::ScheduleError, reaper::shared::Shared, shards::key::TimeoutKey};
use crate::{sync::Mutex, ticks::Nanos};

/// Handle of a repeated callback; from [`Timer::repeat`] and its shorter forms.
///
/// Dropping the handle does not stop the repetition. A call of [`stop`](Self::stop) ends it, and so
/// does a panic of its callback. It also ends with the timer, or when the timer refuses an
/// occurrence.
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{ManualClock, MissedTicks, Repeating, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (ran, runs) = mpsc::channel();
/// let period = Duration::from_secs(10);
/// let beat = move |_: &Repeating| ran.send(()).unwrap();
/// let beat = timer.schedule_at_fixed_rate(period, MissedTicks::Skip, beat)?;
///
/// clock.advance(Duration::from_secs(35));
/// assert_eq!(runs.try_iter().count(), 3);
/// assert!(beat.stop());
/// clock.advance(Duration::from_secs(35));
/// assert_eq!(runs.try_iter().count(), 0);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone)]
pub struct Repeating {
    repetition: Arc<Repetition>,
}

struct Repetition {
    /// Does not keep the timer running.
    timer: Weak<Shared<Task>>,
    rhythm: Rhythm,
    period: Duration,
    state: Mutex<State>,
}

enum State {
    /// The next occurrence is planned.
    Waiting {
        work: Work,
        next: Next,
    },
    /// The callback runs.
    Running,
    Stopped,
}

/// The callback, and the plan of its occurrences.
struct Work {
    callback: Callback,
    occurrences: Occurrences,
}

type Callback = Box<dyn FnMut(&Repeating) + Send>;

/// The next occurrence.
#[derive(Clone, Copy)]
struct Next {
    /// Number of the occurrence, from 0.
    number: u64,
    /// When it starts, on the clock of the timer.
    start: Nanos,
    /// Its timeout; `None` until the timer has accepted it.
    key: Option<TimeoutKey>,
}

impl Timer {
    /// Runs `callback` after `period`, and from then on once every `period`.
    ///
    /// Short for [`repeat(period)`](Self::repeat) and
    /// [`at_fixed_rate`](RepeatBuilder::at_fixed_rate), which have the details.
    ///
    /// # Errors
    ///
    /// The same as those of [`RepeatBuilder::at_fixed_rate`].
    pub fn schedule_at_fixed_rate(
        &self,
        period: Duration,
        missed: MissedTicks,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.repeat(period).at_fixed_rate(missed, callback)
    }

    /// Runs `callback` after `delay`, and again whenever `delay` has passed since it returned.
    ///
    /// Short for [`repeat(delay)`](Self::repeat) and
    /// [`with_fixed_delay`](RepeatBuilder::with_fixed_delay), which have the details.
    ///
    /// # Errors
    ///
    /// The same as those of [`RepeatBuilder::with_fixed_delay`].
    pub fn schedule_with_fixed_delay(
        &self,
        delay: Duration,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.repeat(delay).with_fixed_delay(callback)
    }

    /// Returns a builder for a callback that repeats every `period`.
    ///
    /// A period of zero is taken as one tick of the timer. A period shorter than a tick is kept.
    /// The occurrences of one tick then run together when the tick begins. With
    /// [`MissedTicks::Skip`], only one of them runs.
    ///
    /// # Examples
    ///
    /// At once, then every 10 s, each time up to 1 s late so that many machines do not run
    /// together:
    ///
    /// ```
    /// use std::{sync::mpsc, time::Duration};
    ///
    /// use delaywheel::{ManualClock, MissedTicks, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (ran, runs) = mpsc::channel();
    /// let shown = clock.clone();
    /// timer
    ///     .repeat(Duration::from_secs(10))
    ///     .first(Duration::ZERO)
    ///     .jitter(Duration::from_secs(1))
    ///     .at_fixed_rate(MissedTicks::Skip, move |_| ran.send(shown.elapsed()).unwrap())?;
    ///
    /// clock.advance(Duration::from_secs(31));
    /// let runs: Vec<u64> = runs.try_iter().map(|run| run.as_secs() / 10).collect();
    /// assert_eq!(runs, [0, 1, 2, 3]);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn repeat(&self, period: Duration) -> RepeatBuilder<'_> {
        RepeatBuilder {
            timer: self,
            period,
            first: First::AfterPeriod,
            jitter: Duration::ZERO,
            seed: None,
        }
    }
}

/// Settings of a repeated callback; from [`Timer::repeat`], where there is an example.
#[derive(Debug, Clone)]
#[must_use = "nothing is scheduled until `at_fixed_rate` or `with_fixed_delay` is called"]
pub struct RepeatBuilder<'a> {
    timer: &'a Timer,
    period: Duration,
    first: First,
    jitter: Duration,
    seed: Option<u64>,
}

/// When the first occurrence is due, without jitter.
#[derive(Debug, Clone, Copy)]
enum First {
    AfterPeriod,
    After(Duration),
    At(Instant),
}

impl RepeatBuilder<'_> {
    /// Sets the delay of the first occurrence. The default is the period.
    pub fn first(self, delay: Duration) -> Self {
        Self { first: First::After(delay), ..self }
    }

    /// Sets the instant of the first occurrence. An instant that has passed is due at once, and the
    /// grid of a fixed rate still starts there.
    pub fn first_at(self, instant: Instant) -> Self {
        Self { first: First::At(instant), ..self }
    }

    /// Delays each occurrence by a random time from zero to `max`; at most the period. The default
    /// is zero.
    ///
    /// Jitter does not add up: the grid of a fixed rate stays as it is, and no occurrence starts
    /// before its instant on the grid.
    pub fn jitter(self, max: Duration) -> Self {
        Self { jitter: max, ..self }
    }

    /// Sets the seed of the jitter, for tests: with equal seeds, jitter is equal. The default is a
    /// new seed for each callback.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Runs `callback` at the first instant and then once every period, on a grid that starts
    /// there.
    ///
    /// The callback receives its own handle, to stop itself. Occurrences do not overlap. If one
    /// ends after the next was due, `missed` decides when the next one runs. If the clock steps
    /// back, the latest time seen counts.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] with the first occurrence, as [`schedule`](Timer::schedule) does.
    /// If the timer refuses a later one because it is full, the repetition ends.
    pub fn at_fixed_rate(
        self,
        missed: MissedTicks,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.start(Rhythm::Rate(missed), Box::new(callback))
    }

    /// Runs `callback` at the first instant, and again whenever a period has passed since it
    /// returned.
    ///
    /// The callback receives its own handle, to stop itself. If the clock steps back, the latest
    /// time seen counts.
    ///
    /// # Errors
    ///
    /// The same as those of [`at_fixed_rate`](Self::at_fixed_rate).
    pub fn with_fixed_delay(
        self,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.start(Rhythm::Delay, Box::new(callback))
    }

    fn start(self, rhythm: Rhythm, callback: Callback) -> Result<Repeating, ScheduleError<Task>> {
        let values = &self.timer.values;
        let clock = values.shards().clock();
        let read = clock.read();
        let period = if self.period.is_zero() { clock.tick() } else { self.period };
        let first = match self.first {
            First::AfterPeriod => read.elapsed.saturating_add(period.into()),
            First::After(delay) => read.elapsed.saturating_add(delay.into()),
            First::At(instant) => clock.elapsed_at(instant),
        };
        let seed = self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let mut occurrences =
            Occurrences::new(rhythm, period.into(), first, self.jitter.into(), seed);
        let next = Next { number: 0, start: occurrences.start(), key: None };
        let state = Mutex::new(State::Waiting { work: Work { callback, occurrences }, next });
        let timer = Arc::downgrade(values.shared());
        let repetition = Arc::new(Repetition { timer, rhythm, period, state });
        let repeating = Repeating { repetition };
        let task = values.ensure_started(repeating.task())?;
        let key = values.shards().insert_at_elapsed(read, next.start, task)?;
        // The first occurrence may have begun, and stopped the repetition.
        drop(repeating.store_key(next.number, key));
        Ok(repeating)
    }
}

impl Repeating {
    /// Stops the repetition. Returns whether it was running.
    ///
    /// An occurrence that is running is the last. May be called from within the callback.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn stop(&self) -> bool {
        let state = std::mem::replace(&mut *self.repetition.state.lock(), State::Stopped);
        // The callback is dropped here, with no lock held.
        match state {
            State::Stopped => false,
            State::Running => true,
            State::Waiting { next, .. } => {
                drop(next.key.and_then(|key| self.cancel(key)));
                true
            }
        }
    }

    /// Returns whether the repetition is running: the callback runs, or its next run is planned.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !matches!(*self.repetition.state.lock(), State::Stopped)
    }

    /// Returns when the next run is planned, jitter included.
    ///
    /// Returns `None` while the callback runs, since its end decides when the next run is. Also
    /// returns `None` after the end of the repetition or of the timer, and if an [`Instant`] cannot
    /// represent the time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Clock, ManualClock, MissedTicks, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let period = Duration::from_secs(10);
    /// let beat = timer.schedule_at_fixed_rate(period, MissedTicks::Skip, |_| ())?;
    /// assert_eq!(beat.next_run(), Some(clock.now() + period));
    /// beat.stop();
    /// assert_eq!(beat.next_run(), None);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn next_run(&self) -> Option<Instant> {
        let timer = self.repetition.timer.upgrade()?;
        match &*self.repetition.state.lock() {
            State::Waiting { next, .. } => timer.shards.clock().instant_at(next.start),
            State::Running | State::Stopped => None,
        }
    }

    /// Cancels the timeout of an occurrence. Returns its task.
    fn cancel(&self, scheduled: TimeoutKey) -> Option<Task> {
        self.repetition.timer.upgrade()?.shards.cancel(scheduled)
    }

    /// Returns the task of the next occurrence.
    fn task(&self) -> Task {
        let occurrence = Occurrence { repeating: self.clone(), is_run: false };
        Task(Box::new(move || occurrence.run()))
    }

    /// Runs the callback unless it has been stopped, and plans the next occurrence.
    fn run(&self) {
        let Some((mut work, number)) = self.begin() else { return };
        let stop = StopOnPanic(self);
        (work.callback)(self);
        std::mem::forget(stop);
        let Some(timer) = self.repetition.timer.upgrade() else {
            self.stop();
            return;
        };
        let read = timer.shards.clock().read();
        let start = work.occurrences.next_start(read.elapsed);
        let next = Next { number: number + 1, start, key: None };
        if self.resume(work, next) {
            match timer.shards.insert_at_elapsed(read, start, self.task()) {
                Ok(key) => drop(self.store_key(next.number, key)),
                // The drop of the refused occurrence ends the repetition.
                Err(refused) => drop(refused),
            }
        }
    }

    /// Takes the callback out to run it. Returns it with the number of the occurrence.
    fn begin(&self) -> Option<(Work, u64)> {
        let mut state = self.repetition.state.lock();
        match std::mem::replace(&mut *state, State::Running) {
            State::Waiting { work, next } => Some((work, next.number)),
            other => {
                debug_assert!(matches!(other, State::Stopped), "two occurrences overlap");
                *state = other;
                None
            }
        }
    }

    /// Stores the callback and the next occurrence. Returns whether the repetition continues.
    fn resume(&self, work: Work, next: Next) -> bool {
        let mut state = self.repetition.state.lock();
        debug_assert!(!matches!(*state, State::Waiting { .. }), "two occurrences are planned");
        let continues = matches!(*state, State::Running);
        if continues {
            *state = State::Waiting { work, next };
        }
        continues
    }

    /// Stores the key of an occurrence, so that `stop` can cancel it.
    ///
    /// If a thread stopped the repetition during the insert, this cancels the occurrence and
    /// returns its task.
    fn store_key(&self, number: u64, scheduled: TimeoutKey) -> Option<Task> {
        match &mut *self.repetition.state.lock() {
            State::Waiting { next, .. } if next.number == number => {
                debug_assert!(next.key.is_none(), "an occurrence has two timeouts");
                next.key = Some(scheduled);
                return None;
            }
            State::Waiting { next, .. } => {
                debug_assert!(next.number > number, "an occurrence was planned out of turn");
                return None;
            }
            State::Running => return None,
            State::Stopped => {}
        }
        self.cancel(scheduled)
    }
}

/// The task of one occurrence. Its drop without a run ends the repetition.
struct Occurrence {
    repeating: Repeating,
    is_run: bool,
}

impl Occurrence {
    fn run(mut self) {
        self.is_run = true;
        self.repeating.run();
    }
}

impl Drop for Occurrence {
    fn drop(&mut self) {
        if !self.is_run {
            self.repeating.stop();
        }
    }
}

/// Ends the repetition when the callback panics.
struct StopOnPanic<'a>(&'a Repeating);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

// User code never runs under its lock, so a panic leaves no inconsistent state.
impl UnwindSafe for Repeating {}
impl RefUnwindSafe for Repeating {}

impl fmt::Debug for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeating")
            .field("period", &self.repetition.period)
            .field("rhythm", &self.repetition.rhythm)
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}
