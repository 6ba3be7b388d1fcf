//! Callbacks that run repeatedly.
//!
//! Each occurrence schedules the next one after it has run. So a callback never overlaps with
//! itself, and there is one timeout per repetition.
//!
//! A repetition has a lock for its state. A thread takes the callback out before it runs the
//! callback, so the lock covers no user code.

pub(super) mod debounce;
pub(crate) mod grid;
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

use foldhash::quality::FixedState;

use self::grid::{Grid, MissedTicks};
use super::{Task, Timer, error::ScheduleError, shards::TimeoutKey, value::SharedTimer};
use crate::{clock::Reading, sync::Mutex, ticks::Nanos, wheel::TimingWheel};

/// Handle of a repeated callback; from [`Timer::repeat`].
///
/// Dropping the handle does not stop the repetition. A call of [`stop`](Self::stop) ends it, and so
/// does a panic of its callback. The repetition also ends with the timer, or when the timer refuses
/// an occurrence.
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
/// let beat = timer.repeat(period).at_fixed_rate(MissedTicks::Skip, beat)?;
///
/// clock.advance(Duration::from_secs(35));
/// assert_eq!(runs.try_iter().count(), 3);
/// assert!(beat.stop());
/// clock.advance(Duration::from_secs(35));
/// assert_eq!(runs.try_iter().count(), 0);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone)]
pub struct Repeating(Arc<Repetition>);

struct Repetition {
    /// Does not keep the timer running.
    timer: Weak<SharedTimer<TimingWheel<Task>>>,
    /// The policy of a fixed rate; `None` with a fixed delay.
    missed: Option<MissedTicks>,
    period: Duration,
    state: Mutex<RepeatState>,
}

enum RepeatState {
    /// The next occurrence is planned.
    Waiting {
        work: Work,
        /// When the occurrence starts; `None` if an [`Instant`] cannot represent the time.
        start: Option<Instant>,
        /// The timeout of the occurrence; `None` until the timer has accepted it.
        key: Option<TimeoutKey>,
    },
    /// The callback runs.
    Running,
    Stopped,
}

/// The callback, and the plan of its occurrences.
struct Work {
    callback: Callback,
    grid: Grid,
    jitter: Jitter,
}

type Callback = Box<dyn FnMut(&Repeating) + Send>;

impl Timer {
    /// Returns a builder for a callback that repeats every `period`.
    ///
    /// A period shorter than a tick of the timer, such as zero, counts as one tick. The period
    /// follows the timer's clock, not the wall clock. For a time of day, let each callback schedule
    /// the next one with [`schedule_at_time`](Timer::schedule_at_time).
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
    /// At a random time within the first period.
    Anywhere,
}

impl RepeatBuilder<'_> {
    /// Sets the delay of the first occurrence. The default is the period. Of `first`,
    /// [`first_at`](Self::first_at) and [`spread`](Self::spread), the last call counts.
    pub fn first(self, delay: Duration) -> Self {
        Self { first: First::After(delay), ..self }
    }

    /// Sets the instant of the first occurrence. An instant that has passed is due at once, and the
    /// grid of a fixed rate still starts at that instant.
    pub fn first_at(self, instant: Instant) -> Self {
        Self { first: First::At(instant), ..self }
    }

    /// Starts at a random time within the first period, so that many repetitions that begin
    /// together, such as after a restart, are spread over it. The time differs in each run of the
    /// program.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{MissedTicks, Timer};
    ///
    /// let (timer, minute) = (Timer::new(), Duration::from_secs(60));
    /// let repeat = timer.repeat(minute).spread();
    /// let report = repeat.at_fixed_rate(MissedTicks::Skip, |_| println!("a report"))?;
    /// assert!(report.next_run().unwrap() <= timer.now() + minute);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn spread(self) -> Self {
        Self { first: First::Anywhere, ..self }
    }

    /// Starts each occurrence a random time after its instant on the grid: from zero to `max`, and
    /// at most the period. With a fixed delay, jitter lengthens each delay. The default is zero.
    ///
    /// An occurrence that is overdue by more than its jitter, as after an outage, runs at once. To
    /// avoid this, use [`spread`](Self::spread), or a first instant in the future.
    ///
    /// Jitter does not add up: the grid of a fixed rate stays as it is, and no occurrence starts
    /// before its instant on the grid.
    pub fn jitter(self, max: Duration) -> Self {
        Self { jitter: max, ..self }
    }

    /// Sets the seed of the jitter, for tests of this crate: with equal seeds, jitter is equal. The
    /// default is a new seed for each callback.
    #[doc(hidden)]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Runs `callback` at the first instant and then once every period, on a grid that starts at
    /// the first instant.
    ///
    /// The callback receives its own handle, to stop itself. Occurrences do not overlap. If one
    /// ends after the next was due, `missed` decides when the next one runs. If the clock steps
    /// back, the latest time seen counts.
    ///
    /// # Errors
    ///
    /// Returns [`ScheduleError`] with the first occurrence, as [`schedule`](Timer::schedule) does.
    /// If the timer is full and refuses a later occurrence, the repetition ends.
    pub fn at_fixed_rate(
        self,
        missed: MissedTicks,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.start(Some(missed), Box::new(callback))
    }

    /// Runs `callback` at the first instant, and again whenever a period has passed since it
    /// returned.
    ///
    /// The callback receives its own handle, to stop itself. If the clock steps back, the latest
    /// time seen counts.
    ///
    /// # Errors
    ///
    /// The errors of [`at_fixed_rate`](Self::at_fixed_rate).
    pub fn with_fixed_delay(
        self,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.start(None, Box::new(callback))
    }

    #[inline]
    fn start(
        self,
        missed: Option<MissedTicks>,
        callback: Callback,
    ) -> Result<Repeating, ScheduleError<Task>> {
        let timer = self.timer.values.shared();
        let clock = &timer.shards.clock;
        let read = clock.read();
        let after = |delay| clock.instant_at(read.elapsed)?.checked_add(delay);
        let tick = clock.ticks.tick();
        let seed = self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let period = self.period.max(tick);
        let first = match self.first {
            First::AfterPeriod => after(period),
            First::After(delay) => after(delay),
            First::At(instant) => Some(instant),
            First::Anywhere => Jitter { most: period, random: !seed }.delay(after(Duration::ZERO)),
        };
        let grid = Grid::new(first, period, tick);
        let mut jitter = Jitter { most: self.jitter.min(period), random: seed };
        let start = jitter.delay(first);
        let work = Work { callback, grid, jitter };
        let state = Mutex::new(RepeatState::Waiting { work, start, key: None });
        let repetition = Repetition { timer: Arc::downgrade(timer), missed, period, state };
        let repeating = Repeating(Arc::new(repetition));
        repeating.schedule(timer, read, start)?;
        Ok(repeating)
    }
}

/// The random delay of each occurrence.
struct Jitter {
    most: Duration,
    /// State of the random generator.
    random: u64,
}

impl Jitter {
    /// Delays an occurrence by a random time from zero to `most`.
    fn delay(&mut self, start: Option<Instant>) -> Option<Instant> {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = FixedState::default().hash_one(self.random);
        let most = u128::from(Nanos::from(self.most).get());
        let scaled = (u128::from(mixed) * (most + 1)) >> 64;
        debug_assert!(scaled <= most, "{scaled} exceeds the jitter");
        let nanos = u64::try_from(scaled).expect("it is at most the jitter");
        start?.checked_add(Duration::from_nanos(nanos))
    }
}

impl Repeating {
    /// Stops the repetition. Returns whether it was running.
    ///
    /// An occurrence that is running is the last one. The callback itself may call `stop`.
    #[inline]
    pub fn stop(&self) -> bool {
        let state = std::mem::replace(&mut *self.0.state.lock(), RepeatState::Stopped);
        // The drop of this state drops the callback, with no lock held.
        match state {
            RepeatState::Stopped => false,
            RepeatState::Running => true,
            RepeatState::Waiting { key, .. } => {
                drop(key.and_then(|key| self.0.timer.upgrade()?.shards.cancel(key)));
                true
            }
        }
    }

    /// Returns whether the repetition is running: the callback runs, or its next run is planned. If
    /// a shutdown returns that run as a [`Task`], the repetition ends when the task is dropped or
    /// has run.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !matches!(*self.0.state.lock(), RepeatState::Stopped)
    }

    /// Returns when the next run is planned, jitter included.
    ///
    /// Returns `None` while the callback runs, since the end of that run decides when the next one
    /// is. Also returns `None` after the end of the repetition or a shutdown of the timer, and if
    /// an [`Instant`] cannot represent the time. After a panic of the clock on the reaper, the run
    /// stays planned until a shutdown.
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
    /// let beat = timer.repeat(period).at_fixed_rate(MissedTicks::Skip, |_| ())?;
    /// assert_eq!(beat.next_run(), Some(clock.now() + period));
    /// beat.stop();
    /// assert_eq!(beat.next_run(), None);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn next_run(&self) -> Option<Instant> {
        self.0.timer.upgrade().filter(|timer| !timer.shards.is_shut_down())?;
        match &*self.0.state.lock() {
            RepeatState::Waiting { start, .. } => *start,
            RepeatState::Running | RepeatState::Stopped => None,
        }
    }

    /// Returns the task of the next occurrence.
    #[inline]
    fn task(&self) -> Task {
        let occurrence = Occurrence { repeating: self.clone(), is_followed: false };
        Task::new(move || occurrence.run())
    }

    /// Takes the callback out to run it.
    #[inline]
    fn begin(&self) -> Option<Work> {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, RepeatState::Running) {
            RepeatState::Waiting { work, .. } => Some(work),
            other => {
                debug_assert!(matches!(other, RepeatState::Stopped), "two occurrences overlap");
                *state = other;
                None
            }
        }
    }

    /// Stores the callback and the start of the next occurrence, unless the repetition was stopped.
    #[inline]
    fn resume(&self, work: Work, start: Option<Instant>) {
        let mut state = self.0.state.lock();
        debug_assert!(
            !matches!(*state, RepeatState::Waiting { .. }),
            "two occurrences are planned"
        );
        if matches!(*state, RepeatState::Running) {
            *state = RepeatState::Waiting { work, start, key: None };
        }
    }

    /// Schedules the planned occurrence, unless the repetition was stopped. Inserts its timeout and
    /// stores the key in one hold of the lock. So `stop` finds the key, and the occurrence begins
    /// after the hold.
    #[inline]
    fn schedule(
        &self,
        timer: &Arc<SharedTimer<TimingWheel<Task>>>,
        read: Reading,
        start: Option<Instant>,
    ) -> Result<(), ScheduleError<Task>> {
        let task = timer.ensure_started(self.task())?;
        let deadline = timer.shards.clock.at_or_never(read, start);
        // The drop of a task takes this lock, so no task is dropped within the hold.
        if let RepeatState::Waiting { key, .. } = &mut *self.0.state.lock() {
            debug_assert!(key.is_none(), "an occurrence has two timeouts");
            *key = Some(timer.shards.insert(read.now, deadline, task)?);
        }
        timer.help_if_late(read);
        Ok(())
    }
}

/// The task of one occurrence. Its drop ends the repetition, unless the next occurrence has been
/// planned. So a panic of the callback or of the clock ends it, and so does the drop of a task that
/// never ran.
struct Occurrence {
    repeating: Repeating,
    is_followed: bool,
}

impl Occurrence {
    /// Runs the callback unless the repetition was stopped, and plans the next occurrence.
    #[inline]
    fn run(mut self) {
        let Repeating(repetition) = &self.repeating;
        let Some(mut work) = self.repeating.begin() else { return };
        (work.callback)(&self.repeating);
        let Some(timer) = repetition.timer.upgrade() else { return };
        let clock = &timer.shards.clock;
        let read = clock.read();
        // If an `Instant` cannot represent the present, the planned time of this occurrence stands
        // for it.
        let now = clock.instant_at(read.elapsed).or(work.grid.next);
        match (now, repetition.missed) {
            // Jitter alone does not make an occurrence count as missed.
            (Some(now), Some(missed)) => work.grid.advance(now, work.jitter.most, missed),
            (Some(now), None) => work.grid.restart(now),
            (None, _) => {}
        }
        let start = work.jitter.delay(work.grid.next);
        self.is_followed = true;
        self.repeating.resume(work, start);
        // The drop of a refused occurrence ends the repetition.
        drop(self.repeating.schedule(&timer, read, start));
    }
}

impl Drop for Occurrence {
    #[inline]
    fn drop(&mut self) {
        if !self.is_followed {
            self.repeating.stop();
        }
    }
}

// User code never runs under the lock of a repetition, so a panic leaves no inconsistent state.
impl UnwindSafe for Repeating {}
impl RefUnwindSafe for Repeating {}

impl fmt::Debug for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeating")
            .field("period", &self.0.period)
            .field("missed", &self.0.missed)
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}
