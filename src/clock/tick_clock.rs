//! The clock of a timer or a map, divided into ticks; [`Ticks`] has the rounding rules.
//!
//! If the user's clock steps back, this clock stays at the start of the latest tick that it has
//! seen.

use std::{
    ops::RangeInclusive,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use crossbeam::utils::CachePadded;

use super::{Clock, JumpListener, ManualClock, SystemClock};
use crate::{
    panics::catch,
    sync::{AtomicU64, Ordering},
    tick::Tick,
    ticks::{Nanos, Ticks},
};

/// A clock divided into ticks.
#[derive(Debug)]
pub(crate) struct TickClock {
    pub(crate) source: Arc<dyn Clock>,
    /// Whether it is the default clock, [`SystemClock`]. Then the timer reads the system's clock
    /// directly.
    pub(crate) is_system: bool,
    /// Start of tick 0; `None` with a [`ManualClock`], whose target may have no [`Instant`].
    origin: Option<Instant>,
    /// The start of tick 0 by [`system_nanos`], or a moment later. So a timeout whose deadline is
    /// an [`Instant`] is never early.
    started: Nanos,
    /// The time from the start of a [`ManualClock`] to tick 0, which may be more than 2^64 ns.
    manual_start: Duration,
    pub(crate) ticks: Ticks,
    /// The latest tick that a thread has seen. Written once a tick, so that threads seldom contend
    /// for its cache line.
    latest: Arc<CachePadded<AtomicU64>>,
    /// Period at which to read the clock while timeouts are pending, because it may jump. Empty
    /// until the first [`Self::watch_jumps`] has returned; `None` if the system reports jumps.
    recheck: OnceLock<Option<Duration>>,
    /// Number of calls of `watch_jumps` that found `recheck` empty.
    watch_calls: AtomicU64,
}

/// Returns the present as an instant, and by another clock, whose time may be a moment later.
pub(super) fn present(nanos: impl Fn() -> Nanos) -> (Instant, Nanos) {
    // The scheduler may interrupt this thread between two readings.
    let readings = (0..16).map(|_| (nanos(), Instant::now(), nanos()));
    let closest = readings.min_by_key(|(before, _, after)| after.saturating_sub(*before));
    let Some((_, instant, after)) = closest else { unreachable!("the range is not empty") };
    (instant, after)
}

/// Returns the time of the system's clock in nanoseconds, from an unknown origin.
///
/// A timer reads the clock for each timeout, and to subtract two [`Instant`]s takes as long as to
/// lock a shard.
#[cfg(target_os = "linux")]
#[inline]
#[expect(clippy::cast_sign_loss, reason = "this clock counts from the start of the system")]
fn system_nanos() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos::new(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// On other systems, the only clock to read is that of [`Instant`].
#[cfg(not(target_os = "linux"))]
fn system_nanos() -> Nanos {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().into()
}

/// A reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading {
    /// The time since the start of tick 0.
    pub(crate) elapsed: Nanos,
    /// The tick that was current.
    pub(crate) now: Tick,
}

impl TickClock {
    /// Starts tick 0 now. A tick has 1 ns to 292 years, so that tick 1 begins before
    /// [`Nanos::NEVER`].
    pub(crate) fn new(source: Option<Arc<dyn Clock>>, tick: Duration) -> Self {
        let tick = tick.clamp(Duration::from_nanos(1), Duration::from_nanos(1 << 63));
        let ticks = Ticks::new(Duration::ZERO, tick);
        let is_system = source.is_none();
        let source = source.unwrap_or_else(|| Arc::new(SystemClock));
        let manual_start = source.as_manual().map_or(Duration::ZERO, ManualClock::elapsed);
        let (origin, started) = match source.as_manual() {
            None if is_system => {
                let (origin, started) = present(system_nanos);
                (Some(origin), started)
            }
            None => (Some(source.now()), Nanos::ZERO),
            Some(_) => (None, Nanos::ZERO),
        };
        Self {
            source,
            is_system,
            origin,
            started,
            manual_start,
            ticks,
            latest: Arc::default(),
            recheck: OnceLock::new(),
            watch_calls: AtomicU64::new(0),
        }
    }

    /// Returns the start of tick 0.
    fn origin(&self) -> Instant {
        self.origin.unwrap_or_else(|| {
            let manual = self.source.as_manual();
            let manual = manual.expect("only a manual clock starts without an instant");
            manual.origin() + self.manual_start
        })
    }

    /// Notifies a listener of each jump of the clocks from now on. Only the first call has an
    /// effect. Returns `true` if the caller must wake the reaper. If the system reports no jumps,
    /// the reaper must begin to recheck. If another call has returned before the effect, the reaper
    /// may have missed a jump.
    pub(crate) fn watch_jumps(&self, listener: Weak<dyn JumpListener>) -> bool {
        if self.recheck.get().is_some() || self.watch_calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return false;
        }
        // No lock is held here, because the clock may use the timer.
        match catch(|| self.source.watch(listener)) {
            Ok(recheck) => {
                _ = self.recheck.set(recheck);
                recheck.is_some() || self.watch_calls.load(Ordering::Acquire) > 1
            }
            Err(panic) => {
                // The next call tries again.
                self.watch_calls.store(0, Ordering::Release);
                panic.resume()
            }
        }
    }

    /// Returns the time from the start of tick 0 until `span` from now.
    pub(crate) fn elapsed_after(&self, span: Duration) -> Nanos {
        self.elapsed().saturating_add(span.into())
    }

    /// Returns the time since the start of tick 0. Not `#[inline]`, so that a program contains the
    /// code of the read once, and not in each caller.
    pub(crate) fn elapsed(&self) -> Nanos {
        self.read().elapsed
    }

    /// Returns the latest tick that a thread has seen, without reading the clock.
    #[inline]
    pub(crate) fn latest(&self) -> Tick {
        Tick::new(self.latest.load(Ordering::Relaxed))
    }

    /// Returns whether a thread has seen a tick that began at `elapsed` or later, without reading
    /// the clock. So if it returns `true`, that time has passed.
    #[inline]
    pub(crate) fn has_passed(&self, elapsed: Nanos) -> bool {
        self.ticks.until_start(self.latest()) >= elapsed
    }

    /// Reads the clock. Divides only if no thread has seen the current tick.
    #[inline]
    pub(crate) fn read(&self) -> Reading {
        let elapsed = if self.is_system {
            system_nanos().saturating_sub(self.started)
        } else {
            self.elapsed_by_source()
        };
        let latest = Tick::new(self.latest.load(Ordering::Relaxed));
        if self.ticks.is_in(elapsed, latest) {
            debug_assert_eq!(self.ticks.floor(elapsed), latest);
            return Reading { elapsed, now: latest };
        }
        self.leave_tick(elapsed, latest)
    }

    /// Returns the time since the start of tick 0 by the clock of the user.
    #[inline(never)]
    fn elapsed_by_source(&self) -> Nanos {
        let elapsed = match self.source.as_manual() {
            Some(manual) => manual.elapsed().saturating_sub(self.manual_start).into(),
            None => self.elapsed_at(self.source.now()),
        };
        elapsed.min(Nanos::LAST)
    }

    /// Returns the reading for a time outside the latest tick.
    #[cold]
    fn leave_tick(&self, elapsed: Nanos, latest: Tick) -> Reading {
        let begun = self.ticks.until_start(latest);
        if elapsed < begun {
            return Reading { elapsed: begun, now: latest };
        }
        let now = self.ticks.floor(elapsed);
        debug_assert!(now > latest, "the clock left tick {latest} for tick {now}");
        self.latest.fetch_max(now.get(), Ordering::Relaxed);
        Reading { elapsed, now }
    }

    /// Returns the tick at which a delay that begins with a reading is over.
    #[inline]
    pub(crate) fn deadline(&self, read: Reading, delay: Duration) -> Tick {
        self.due(read, read.elapsed.saturating_add(delay.into()))
    }

    /// Returns the tick in a window of delays that timeouts with overlapping windows share most
    /// often.
    pub(crate) fn within(&self, read: Reading, window: &RangeInclusive<Duration>) -> Tick {
        let at = |delay: &Duration| read.elapsed.saturating_add((*delay).into());
        self.ticks.roundest(at(window.start()), at(window.end()))
    }

    /// Returns the tick at which an instant has passed.
    pub(crate) fn at(&self, read: Reading, instant: Instant) -> Tick {
        self.due(read, self.elapsed_at(instant))
    }

    /// Returns the tick at which an instant has passed; [`Tick::MAX`] for `None`.
    pub(crate) fn at_or_never(&self, read: Reading, instant: Option<Instant>) -> Tick {
        instant.map_or(Tick::MAX, |instant| self.at(read, instant))
    }

    /// Returns the first tick that begins at `time` or later. A time that has passed is due at
    /// once, in the tick of the reading: that tick may have begun before `time`.
    #[inline]
    pub(crate) fn due(&self, read: Reading, time: Nanos) -> Tick {
        let tick = self.ticks.ceil(time);
        if time <= read.elapsed { tick.min(read.now) } else { tick }
    }

    /// Returns the time from the start of tick 0 to `instant`; zero for an earlier instant.
    #[inline]
    pub(crate) fn elapsed_at(&self, instant: Instant) -> Nanos {
        instant.saturating_duration_since(self.origin()).into()
    }

    /// Returns the instant at `elapsed` after the start of tick 0; `None` if an [`Instant`] cannot
    /// represent it.
    pub(crate) fn instant_at(&self, elapsed: Nanos) -> Option<Instant> {
        // Before the origin is read, because a time that never comes needs none.
        let elapsed = elapsed.finite()?;
        self.origin().checked_add(elapsed)
    }

    /// Returns the current instant.
    pub(crate) fn instant_now(&self) -> Instant {
        // The clock has returned this instant or a later one, so an `Instant` can represent it.
        self.instant_at(self.elapsed()).unwrap_or_else(Instant::now)
    }

    /// Returns how long to wait from now until a tick begins; [`Duration::MAX`] if it never comes.
    /// Any other wait is at most the period of [`recheck`](Self::recheck).
    pub(crate) fn pause_until(&self, tick: Tick) -> Duration {
        let Some(start) = self.instant(tick) else { return Duration::MAX };
        let pause = start.saturating_duration_since(self.source.now());
        pause.min(self.recheck().unwrap_or(Duration::MAX))
    }

    /// Returns the period at which to read the clock while timeouts are pending, because it may
    /// jump.
    pub(crate) fn recheck(&self) -> Option<Duration> {
        self.recheck.get().copied().flatten()
    }

    /// Returns the time from the start of a [`ManualClock`] to the start of a tick; `None` on
    /// another clock, or if the tick never comes.
    pub(crate) fn since_manual(&self, tick: Tick) -> Option<Duration> {
        self.source.as_manual()?;
        self.manual_start.checked_add(self.ticks.until_start(tick).finite()?)
    }

    /// Returns the start of a tick; `None` if an [`Instant`] cannot represent it.
    pub(crate) fn instant(&self, tick: Tick) -> Option<Instant> {
        self.instant_at(self.ticks.until_start(tick))
    }
}

// A panic of the user's clock changes nothing here.
impl UnwindSafe for TickClock {}
impl RefUnwindSafe for TickClock {}

/// A clone serves another part of a timer. It shares the latest tick that a thread has seen, but
/// has a listener of its own.
impl Clone for TickClock {
    fn clone(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            latest: Arc::clone(&self.latest),
            recheck: OnceLock::new(),
            watch_calls: AtomicU64::new(0),
            ..*self
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    impl TickClock {
        /// Raises the latest tick to the tick of an instant, as if a thread had read the clock
        /// then.
        pub(crate) fn raise_latest(&self, instant: Instant) {
            let tick = self.ticks.floor(self.elapsed_at(instant));
            self.latest.fetch_max(tick.get(), Ordering::Relaxed);
        }
    }

    /// A clock that steps back if the test wants it.
    #[derive(Debug)]
    struct Steps(Instant, Mutex<Duration>);

    impl Clock for Steps {
        fn now(&self) -> Instant {
            self.0 + *self.1.lock()
        }
    }

    #[test]
    fn the_systems_clock_counts_the_time_of_instants_and_is_never_ahead_of_it() {
        let clock = TickClock::new(None, Duration::from_millis(1));
        for _ in 0..1000 {
            let before = clock.origin().elapsed();
            let elapsed = Duration::from(clock.elapsed());
            assert!(elapsed <= clock.origin().elapsed(), "{elapsed:?} are not over");
            // It is behind by the shortest of 16 pauses.
            assert!(elapsed + Duration::from_secs(1) > before, "{before:?} have passed");
        }
    }

    #[test]
    fn a_clock_that_steps_back_stays_in_its_tick_however_long_that_is() {
        for length in [1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX] {
            let source = Arc::new(Steps(Instant::now(), Mutex::default()));
            let clock =
                TickClock::new(Some(Arc::clone(&source) as _), Duration::from_nanos(length));
            *source.1.lock() = clock.ticks.tick();
            assert_eq!(clock.read().now, Tick::new(1));
            *source.1.lock() = Duration::ZERO;
            assert_eq!(clock.read().now, Tick::new(1), "with ticks of {length} ns");
        }
    }

    /// A clock that may jump without notice.
    #[derive(Debug)]
    struct Unwatched(Instant);

    impl Clock for Unwatched {
        fn now(&self) -> Instant {
            self.0
        }

        fn watch(&self, _: Weak<dyn JumpListener>) -> Option<Duration> {
            Some(Duration::from_secs(1))
        }
    }

    /// A listener that does nothing.
    struct Ignoring;

    impl JumpListener for Ignoring {
        fn clock_has_jumped(&self) {}
    }

    #[test]
    fn a_clock_that_jumps_without_notice_is_read_again_while_timeouts_are_pending() {
        let clock = Arc::new(Unwatched(Instant::now()));
        let clock = TickClock::new(Some(clock), Duration::from_millis(1));
        let [near, far] = [400, 3_600_000].map(Tick::new);
        assert_eq!(clock.pause_until(far), Duration::from_secs(3600));
        clock.watch_jumps(Weak::<Ignoring>::new());
        assert_eq!(clock.pause_until(far), Duration::from_secs(1));
        assert_eq!(clock.pause_until(near), Duration::from_millis(400));
        assert_eq!(clock.pause_until(Tick::MAX), Duration::MAX, "without timeouts, it sleeps");
    }

    /// A clock that panics when it is first watched, and then uses its timer.
    #[derive(Debug)]
    struct Watching(Mutex<Option<Arc<TickClock>>>);

    impl Clock for Watching {
        fn now(&self) -> Instant {
            Instant::now()
        }

        fn watch(&self, listener: Weak<dyn JumpListener>) -> Option<Duration> {
            let clock = self.0.lock().take().expect("the clock panics");
            assert!(!clock.watch_jumps(listener), "it need not wake the reaper");
            None
        }
    }

    #[test]
    fn a_call_that_watches_tells_if_another_did_not_wait_for_it() {
        let source = Arc::new(Watching(Mutex::default()));
        let clock =
            Arc::new(TickClock::new(Some(Arc::clone(&source) as _), Duration::from_millis(1)));
        let watch = || clock.watch_jumps(Weak::<Ignoring>::new());
        assert!(catch(watch).is_err());
        *source.0.lock() = Some(Arc::clone(&clock));
        assert!(watch(), "the reaper may have missed a jump");
        assert!(!watch(), "only once");
        let clock = TickClock::new(Some(Arc::new(ManualClock::new())), Duration::from_millis(1));
        assert!(!clock.watch_jumps(Weak::<Ignoring>::new()), "no call came between");
    }

    #[test]
    fn a_tick_that_never_comes_needs_no_instant_of_a_manual_clock() {
        let mut manual = ManualClock::new();
        Arc::get_mut(&mut manual.shared).expect("there is no clone").origin.take();
        let clock = TickClock::new(Some(Arc::new(manual.clone())), Duration::from_millis(1));
        assert_eq!(clock.instant(Tick::MAX), None);
        assert_eq!(manual.shared.origin.get(), None, "this panics where there are no instants");
    }

    #[test]
    fn a_clock_that_steps_back_from_the_last_tick_stays_in_it() {
        for length in [Duration::from_millis(1), Duration::from_secs(3600)] {
            let source = Arc::new(Steps(Instant::now(), Mutex::default()));
            let clock = TickClock::new(Some(Arc::clone(&source) as _), length);
            *source.1.lock() = Duration::from_secs(600 * 365 * 86_400);
            let last = clock.read().now;
            *source.1.lock() = Duration::from_nanos(400);
            assert_eq!(clock.read().now, last, "with ticks of {length:?}");
        }
    }
}
