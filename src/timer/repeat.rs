//! Callbacks that run again and again.
//!
//! An occurrence schedules the next one when it has run, from the instant that it was planned for,
//! not from the one at which it ran. So delays do not add up, and a callback never overlaps with
//! itself.

use std::{
    boxed::Box,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Task, Timer, core::Address, engine::WeakEngine, error::ScheduleError, ticks::after};
use crate::sync::Mutex;

/// When a repeated callback runs next, if it was held up past that.
///
/// # Examples
///
/// With a period of 10 ms, an occurrence planned for 20 ms ran until 47 ms. The next ones are
/// planned for:
///
/// | | | | |
/// |-|-|-|-|
/// | `Burst` | 30 ms | 40 ms | 50 ms |
/// | `Delay` | 57 ms | 67 ms | 77 ms |
/// | `Skip` | 50 ms | 60 ms | 70 ms |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissedTicks {
    /// What was missed is made up for, at once: in the long run there is one occurrence for each
    /// period.
    #[default]
    Burst,
    /// A full period passes after the one that was held up. Of occurrences that are on time this is
    /// not true: they stay on the grid.
    Delay,
    /// What was missed is left out; the others stay on the grid.
    Skip,
}

/// How a callback is repeated.
#[derive(Debug, Clone, Copy)]
enum Rhythm {
    /// On a grid of instants.
    Rate(MissedTicks),
    /// So long after the end of the last one.
    Delay,
}

/// A callback that is being repeated: its handle, by which it can be stopped.
///
/// Dropping the handle leaves it running. It ends when it is stopped, when its callback panics, and
/// when the next occurrence is dropped without being run: that is refused by a timer that is full,
/// or shut down, or was returned by a shutdown.
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
    shared: Arc<Shared>,
}

struct Shared {
    engine: WeakEngine<Task>,
    period: Duration,
    rhythm: Rhythm,
    state: Mutex<State>,
}

enum State {
    /// Waits for the next occurrence, unless `address` is yet to be set.
    Waiting {
        callback: Callback,
        planned: Instant,
        address: Option<Address>,
    },
    /// The callback runs.
    Running,
    Stopped,
}

type Callback = Box<dyn FnMut(&Repeating) + Send>;

impl Timer {
    /// Runs `callback` after `period`, and from then on once every `period`, on a grid that starts
    /// now.
    ///
    /// The callback is given its own handle, to stop itself. Occurrences do not overlap; `missed`
    /// says what becomes of those that were held up. With a period shorter than a tick, one tick's
    /// occurrences are held up until it begins: they run together, or, with `Skip`, one for all.
    /// A period of zero is taken as 1 ns: but for `Skip`, that is a million runs for a tick of 1 ms,
    /// more than a thread can do.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], as [`schedule`](Self::schedule), with the callback's first occurrence.
    /// Should a later one be refused, because the timer is full, the repetition ends.
    pub fn schedule_at_fixed_rate(
        &self,
        period: Duration,
        missed: MissedTicks,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.repeat(period, Rhythm::Rate(missed), Box::new(callback))
    }

    /// Runs `callback` after `delay`, and again whenever `delay` has passed since it returned.
    ///
    /// # Errors
    ///
    /// Those of [`schedule_at_fixed_rate`](Self::schedule_at_fixed_rate).
    pub fn schedule_with_fixed_delay(
        &self,
        delay: Duration,
        callback: impl FnMut(&Repeating) + Send + 'static,
    ) -> Result<Repeating, ScheduleError<Task>> {
        self.repeat(delay, Rhythm::Delay, Box::new(callback))
    }

    fn repeat(
        &self,
        period: Duration,
        rhythm: Rhythm,
        callback: Callback,
    ) -> Result<Repeating, ScheduleError<Task>> {
        let engine = self.values.engine();
        let now = engine.core.ticks().clock().now();
        let period = period.max(Duration::from_nanos(1));
        let planned = after(now, period);
        let state = Mutex::new(State::Waiting { callback, planned, address: None });
        let shared = Shared { engine: Arc::downgrade(engine), period, rhythm, state };
        let repeating = Repeating { shared: Arc::new(shared) };
        let address = self.values.schedule_at(planned, repeating.task())?.0;
        // Nobody else has the handle yet, unless the first occurrence has begun.
        drop(repeating.note(planned, address));
        Ok(repeating)
    }
}

impl Repeating {
    /// Stops the repetition. Returns whether it was going on.
    ///
    /// An occurrence that is running is its last. May be called from within the callback.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn stop(&self) -> bool {
        let state = std::mem::replace(&mut *self.shared.state.lock(), State::Stopped);
        // The callback is dropped here, with no lock held.
        match state {
            State::Stopped => false,
            State::Running => true,
            State::Waiting { address, .. } => {
                drop(address.and_then(|address| self.cancel(address)));
                true
            }
        }
    }

    /// Takes an occurrence back that will not be run.
    fn cancel(&self, scheduled: Address) -> Option<Task> {
        self.shared.engine.upgrade()?.core.cancel(scheduled)
    }

    /// Returns whether the callback runs, or is going to.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !matches!(*self.shared.state.lock(), State::Stopped)
    }

    /// What the timer runs for one occurrence.
    fn task(&self) -> Task {
        let occurrence = Occurrence { repeating: self.clone(), is_run: false };
        Task(Box::new(move || occurrence.run()))
    }

    /// Runs the callback, unless it has been stopped, and plans the next occurrence.
    fn run(&self) {
        let Some((mut callback, planned)) = self.begin() else { return };
        let stop = StopOnPanic(self);
        callback(self);
        std::mem::forget(stop);
        let Some(engine) = self.shared.engine.upgrade() else {
            self.stop();
            return;
        };
        let now = engine.core.ticks().clock().now();
        let next = self.next(planned, now);
        if self.resume(callback, next) {
            match engine.core.schedule_at(next, self.task()) {
                Ok(address) => drop(self.note(next, address)),
                // With what was refused, the repetition ends.
                Err(refused) => drop(refused),
            }
        }
    }

    /// Takes the callback out, to be run.
    fn begin(&self) -> Option<(Callback, Instant)> {
        let mut state = self.shared.state.lock();
        match std::mem::replace(&mut *state, State::Running) {
            State::Waiting { callback, planned, .. } => Some((callback, planned)),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Puts the callback back. Returns whether it is to go on.
    fn resume(&self, callback: Callback, planned: Instant) -> bool {
        let mut state = self.shared.state.lock();
        let goes_on = matches!(*state, State::Running);
        if goes_on {
            *state = State::Waiting { callback, planned, address: None };
        }
        goes_on
    }

    /// Notes by what the occurrence planned for an instant can be cancelled, unless that is over.
    ///
    /// Whoever stopped the repetition in between could not know; then the occurrence is cancelled
    /// here and returned, so that it does not wait in the timer for nothing.
    fn note(&self, instant: Instant, scheduled: Address) -> Option<Task> {
        match &mut *self.shared.state.lock() {
            State::Waiting { planned, address, .. } if *planned == instant => {
                *address = Some(scheduled);
                return None;
            }
            State::Waiting { .. } | State::Running => return None,
            State::Stopped => {}
        }
        self.cancel(scheduled)
    }

    /// When the occurrence after that of `planned` is, at the end of that.
    fn next(&self, planned: Instant, now: Instant) -> Instant {
        let period = self.shared.period;
        let next = after(planned, period);
        match self.shared.rhythm {
            Rhythm::Rate(MissedTicks::Burst) => next,
            Rhythm::Rate(_) if next >= now => next,
            Rhythm::Rate(MissedTicks::Skip) => {
                let behind = now.saturating_duration_since(next).as_nanos() % period.as_nanos();
                let behind = Duration::from_nanos(u64::try_from(behind).unwrap_or(u64::MAX));
                after(now, period.saturating_sub(behind))
            }
            Rhythm::Rate(MissedTicks::Delay) | Rhythm::Delay => after(now, period),
        }
    }
}

/// What the timer holds for one occurrence. If it is dropped without being run, none follows.
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

/// A callback that panics has run for the last time.
struct StopOnPanic<'a>(&'a Repeating);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl fmt::Debug for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeating")
            .field("period", &self.shared.period)
            .field("rhythm", &self.shared.rhythm)
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}
