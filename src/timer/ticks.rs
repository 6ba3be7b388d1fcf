//! The clock of a timer, divided into ticks; [`Ticks`] has the rounding rules.
//!
//! The clock may step back; the present does not. It stays at the latest tick that was seen.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{Clock, Tick, Ticks, ticks::nanos};

/// A clock that has been divided into ticks.
#[derive(Debug)]
pub(super) struct TickClock {
    clock: Arc<dyn Clock>,
    /// Start of tick 0.
    origin: Instant,
    ticks: Ticks,
    /// The start of the latest tick that was seen, in nanoseconds. Written once a tick, so that
    /// threads seldom wait for its cache line.
    latest: AtomicU64,
}

impl TickClock {
    /// Starts counting at the present; `tick` is at least a nanosecond.
    pub(super) fn new(clock: Arc<dyn Clock>, tick: Duration) -> Self {
        let origin = clock.now();
        let tick = tick.max(Duration::from_nanos(1));
        let ticks = Ticks::new(Duration::ZERO, tick);
        Self { clock, origin, ticks, latest: AtomicU64::new(0) }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Nanoseconds since the start of tick 0; 584 years at most.
    #[inline]
    pub(super) fn elapsed(&self) -> u64 {
        let elapsed = nanos(self.clock.now().saturating_duration_since(self.origin));
        let latest = self.latest.load(Ordering::Relaxed);
        if elapsed.saturating_sub(latest) >= self.ticks.length() {
            let begun = self.floor(elapsed).get() * self.ticks.length();
            self.latest.fetch_max(begun, Ordering::Relaxed);
        }
        elapsed.max(latest)
    }

    /// The tick that has begun.
    #[inline]
    pub(super) fn now(&self) -> Tick {
        self.floor(self.elapsed())
    }

    /// The tick that has begun, and the first that begins after `delay`.
    #[inline]
    pub(super) fn now_and_after(&self, delay: Duration) -> (Tick, Tick) {
        self.at_and_after(self.elapsed(), delay)
    }

    /// The same as of an earlier look at the clock.
    #[inline]
    pub(super) fn at_and_after(&self, elapsed: u64, delay: Duration) -> (Tick, Tick) {
        (self.floor(elapsed), self.ceil(elapsed.saturating_add(nanos(delay))))
    }

    /// The tick that has begun, and what tells the first that begins after a delay from now.
    pub(super) fn now_and_deadlines(&self) -> (Tick, impl Fn(Duration) -> Tick) {
        let elapsed = self.elapsed();
        let deadline = move |delay| self.ceil(elapsed.saturating_add(nanos(delay)));
        (self.floor(elapsed), deadline)
    }

    /// The first tick that begins at `instant` or later; 0 for what was before.
    pub(super) fn at(&self, instant: Instant) -> Tick {
        self.ceil(self.elapsed_at(instant))
    }

    /// Returns the nanoseconds from the start of tick 0 to `instant`; 0 for an earlier instant.
    pub(super) fn elapsed_at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.origin))
    }

    /// Returns the instant so many nanoseconds after the start of tick 0; `None` for `u64::MAX`,
    /// which stands for any later time.
    pub(super) fn instant_at(&self, elapsed: u64) -> Option<Instant> {
        let is_exact = elapsed < u64::MAX;
        is_exact.then(|| self.origin.checked_add(Duration::from_nanos(elapsed))).flatten()
    }

    /// Returns the length of a tick.
    pub(super) fn tick(&self) -> Duration {
        self.ticks.tick()
    }

    /// When a tick begins; `None` if that is later than the clock can tell.
    pub(super) fn instant(&self, tick: Tick) -> Option<Instant> {
        self.origin.checked_add(Duration::from_nanos(self.ticks.nanos_until(tick)?))
    }

    /// The time from the start of tick 0 to that of another.
    pub(super) fn since_origin(&self, tick: Tick) -> Duration {
        self.ticks.start(tick)
    }

    /// The present, rounded down.
    #[inline]
    pub(super) fn floor(&self, elapsed: u64) -> Tick {
        self.ticks.floor(elapsed)
    }

    /// A deadline, rounded up.
    #[inline]
    fn ceil(&self, elapsed: u64) -> Tick {
        self.ticks.ceil(elapsed)
    }
}

/// The instant that lies `span` later, or one that is later than anybody waits for.
pub(super) fn after(instant: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(500 * 365 * 24 * 60 * 60);
    instant.checked_add(span).or_else(|| instant.checked_add(FAR)).unwrap_or(instant)
}
