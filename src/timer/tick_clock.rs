//! The clock of a timer, divided into ticks; [`Ticks`] has the rounding rules.
//!
//! If the user's clock steps back, this clock stays at the start of the latest tick that it has
//! seen.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    clock::{Clock, Monotonic, SystemClock},
    sync::{AtomicU64, Ordering},
    tick::Tick,
    ticks::{Nanos, Ticks},
};

/// A clock divided into ticks.
#[derive(Debug)]
pub(crate) struct TickClock {
    source: Source,
    /// Start of tick 0.
    origin: Instant,
    ticks: Ticks,
    /// The latest tick that a thread has seen. Written once a tick, so that threads seldom contend
    /// for its cache line.
    latest: AtomicU64,
}

#[derive(Debug)]
enum Source {
    /// [`SystemClock`], as the time since the start of tick 0.
    System(Monotonic),
    User(Arc<dyn Clock>),
}

/// A reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading {
    /// The time since the start of tick 0.
    pub(crate) elapsed: Nanos,
    /// The tick that was current.
    pub(crate) now: Tick,
}

impl Reading {
    /// A reading at the start of tick 0.
    pub(crate) const ZERO: Self = Self { elapsed: Nanos::ZERO, now: Tick::ZERO };
}

impl TickClock {
    /// Starts tick 0 now. A tick has 1 ns to 292 years: see [`Ticks::is_in`].
    pub(super) fn new(source: Arc<dyn Clock>, tick: Duration) -> Self {
        let (origin, source) = if source.is_system() {
            let (origin, clock) = Monotonic::start();
            (origin, Source::System(clock))
        } else {
            (source.now(), Source::User(source))
        };
        let tick = tick.clamp(Duration::from_nanos(1), Duration::from_nanos(1 << 63));
        let ticks = Ticks::new(Duration::ZERO, tick);
        Self { source, origin, ticks, latest: AtomicU64::new(0) }
    }

    /// Returns the user's clock.
    pub(super) fn source(&self) -> &dyn Clock {
        match &self.source {
            Source::System(_) => &SystemClock,
            Source::User(clock) => &**clock,
        }
    }

    /// Returns the time since the start of tick 0.
    #[inline]
    pub(crate) fn elapsed(&self) -> Nanos {
        self.read().elapsed
    }

    /// Returns the current tick.
    #[inline]
    pub(super) fn now(&self) -> Tick {
        self.read().now
    }

    /// Returns the latest tick that a thread has seen, without reading the clock.
    #[cfg(feature = "future")]
    #[inline]
    pub(super) fn latest(&self) -> Tick {
        Tick::new(self.latest.load(Ordering::Relaxed))
    }

    /// Returns whether a thread has seen this tick or a later one, without reading the clock.
    #[cfg(feature = "future")]
    #[inline]
    pub(super) fn has_begun(&self, tick: Tick) -> bool {
        self.latest() >= tick
    }

    /// Returns whether a thread has seen a tick that began at `elapsed` or later, without reading
    /// the clock. So if it returns `true`, that time has passed.
    #[cfg(feature = "future")]
    #[inline]
    pub(super) fn has_passed(&self, elapsed: Nanos) -> bool {
        self.start(self.latest()) >= elapsed
    }

    /// Returns the time from the start of tick 0 to that of `tick`.
    #[inline]
    pub(super) fn start(&self, tick: Tick) -> Nanos {
        self.ticks.until_start(tick)
    }

    /// Reads the clock. Divides only if no thread has seen the current tick.
    #[inline]
    pub(crate) fn read(&self) -> Reading {
        let elapsed = match &self.source {
            Source::System(clock) => clock.elapsed(),
            Source::User(clock) => self.elapsed_at(clock.now()).min(Nanos::LAST),
        };
        let latest = Tick::new(self.latest.load(Ordering::Relaxed));
        if self.ticks.is_in(elapsed, latest) {
            debug_assert_eq!(self.floor(elapsed), latest);
            return Reading { elapsed, now: latest };
        }
        self.leave_tick(elapsed, latest)
    }

    /// The same for a time outside the latest tick.
    #[cold]
    fn leave_tick(&self, elapsed: Nanos, latest: Tick) -> Reading {
        let begun = self.start(latest);
        if elapsed < begun {
            return Reading { elapsed: begun, now: latest };
        }
        let now = self.floor(elapsed);
        debug_assert!(now > latest, "the clock left tick {latest} for tick {now}");
        self.latest.fetch_max(now.get(), Ordering::Relaxed);
        Reading { elapsed, now }
    }

    /// Returns the first tick that begins `delay` after a reading or later.
    #[inline]
    pub(crate) fn deadline(&self, read: Reading, delay: Duration) -> Tick {
        let deadline = self.ceil(read.elapsed.saturating_add(delay.into()));
        debug_assert!(read.now <= deadline, "a deadline lies before the call");
        deadline
    }

    /// Returns the first tick that begins at `instant` or later; tick 0 for an earlier instant.
    pub(super) fn at(&self, instant: Instant) -> Tick {
        self.ceil(self.elapsed_at(instant))
    }

    /// Returns the time from the start of tick 0 to `instant`; zero for an earlier instant.
    pub(super) fn elapsed_at(&self, instant: Instant) -> Nanos {
        instant.saturating_duration_since(self.origin).into()
    }

    /// Returns the instant at `elapsed` after the start of tick 0; `None` if an [`Instant`] cannot
    /// represent it.
    pub(super) fn instant_at(&self, elapsed: Nanos) -> Option<Instant> {
        self.origin.checked_add(elapsed.finite()?)
    }

    /// Returns the length of a tick.
    pub(super) fn tick(&self) -> Duration {
        self.ticks.tick()
    }

    /// Returns how long to wait from now until a tick begins; [`Duration::MAX`] if it never comes.
    pub(super) fn pause_until(&self, tick: Tick) -> Duration {
        let pause = match &self.source {
            // The clock that decides which tick is current. An `Instant` may be ahead of it, and a
            // pause that an `Instant` measures may end before the tick.
            Source::System(clock) => {
                self.start(tick).finite().map(|start| start.saturating_sub(clock.elapsed().into()))
            }
            Source::User(clock) => {
                self.instant(tick).map(|start| start.saturating_duration_since(clock.now()))
            }
        };
        pause.unwrap_or(Duration::MAX)
    }

    /// Returns the start of a tick; `None` if an [`Instant`] cannot represent it.
    pub(super) fn instant(&self, tick: Tick) -> Option<Instant> {
        self.instant_at(self.start(tick))
    }

    /// Returns the time from the start of tick 0 to that of `tick`.
    pub(super) fn since_origin(&self, tick: Tick) -> Duration {
        self.ticks.start(tick)
    }

    /// Rounds a time down to a tick.
    #[inline]
    pub(super) fn floor(&self, elapsed: Nanos) -> Tick {
        self.ticks.floor(elapsed)
    }

    /// Rounds a deadline up to a tick.
    #[inline]
    pub(super) fn ceil(&self, elapsed: Nanos) -> Tick {
        self.ticks.ceil(elapsed)
    }
}

/// Returns the instant `span` after `instant`, or centuries after it if an [`Instant`] cannot
/// represent that.
pub(super) fn after(instant: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(500 * 365 * 24 * 60 * 60);
    instant.checked_add(span).or_else(|| instant.checked_add(FAR)).unwrap_or(instant)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    /// A clock that steps back if the test wants it.
    #[derive(Debug)]
    struct Steps(Instant, Mutex<Duration>);

    impl Clock for Steps {
        fn now(&self) -> Instant {
            self.0 + *self.1.lock()
        }
    }

    #[test]
    fn a_clock_that_steps_back_stays_in_its_tick_however_long_that_is() {
        for length in [1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX] {
            let source = Arc::new(Steps(Instant::now(), Mutex::default()));
            let clock = TickClock::new(Arc::clone(&source) as _, Duration::from_nanos(length));
            *source.1.lock() = clock.tick();
            assert_eq!(clock.now(), Tick::new(1));
            *source.1.lock() = Duration::ZERO;
            assert_eq!(clock.now(), Tick::new(1), "with ticks of {length} ns");
        }
    }

    #[test]
    fn a_clock_that_steps_back_from_the_last_tick_stays_in_it() {
        for length in [Duration::from_millis(1), Duration::from_secs(3600)] {
            let source = Arc::new(Steps(Instant::now(), Mutex::default()));
            let clock = TickClock::new(Arc::clone(&source) as _, length);
            *source.1.lock() = Duration::from_secs(600 * 365 * 86_400);
            let last = clock.now();
            *source.1.lock() = Duration::from_nanos(400);
            assert_eq!(clock.now(), last, "with ticks of {length:?}");
        }
    }

    #[test]
    fn a_pause_ends_in_its_tick_although_instants_are_ahead() {
        let mut clock = TickClock::new(Arc::new(SystemClock), Duration::from_millis(1));
        clock.origin -= Duration::from_secs(1);
        let until = Tick::new(3_600_000);
        let earliest = clock.elapsed();
        let pause = clock.pause_until(until);
        let end = clock.since_origin(until);
        assert!(Duration::from(earliest) + pause <= end, "it ends late");
        assert!(pause + Duration::from(clock.elapsed()) >= end, "it ends before its tick");
    }
}
