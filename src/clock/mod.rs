//! Sources of time for timers.
//!
//! A [`Timer`](crate::Timer) reads the time only from its [`Clock`]. With [`SystemClock`] a
//! background thread waits in real time. With [`ManualClock`] a test advances the time, and the
//! same timer runs on the thread of the test. [`BootClock`] also counts the time for which the
//! machine is suspended.

mod boot;
mod jumps;
#[cfg_attr(not(feature = "future"), expect(dead_code, reason = "for sleeps"))]
mod tick_clock;

use std::{
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use self::jumps::Listeners;
pub(crate) use self::tick_clock::{Reading, TickClock};
pub use self::{
    boot::BootClock,
    jumps::{JumpListener, watch_jumps},
};

/// A source of time for a timer.
///
/// A clock should not run backwards. If it does, a timer stays at the start of the latest tick that
/// the timer has seen. By this time, which [`Timer::now`](crate::Timer::now) returns, no timeout
/// expires early. A reading from before the step that the timer gets after it counts as a jump
/// ahead.
///
/// If a clock jumps ahead, the due timeouts expire when the reaper reads the clock again, those of
/// each shard in order. The reaper reads it at its next wake-up, when
/// [`Timer::wake`](crate::Timer::wake) is called, and after a resume if the clock [may
/// jump](Self::may_jump). A schedule or reset also wakes the reaper if the clock is then past the
/// time of its next wake-up.
///
/// A tick should not be shorter than the resolution of the clock. Otherwise
/// [`system_time`](Self::system_time) goes on for more than a tick while [`now`](Self::now) stands
/// still. A timer takes that for a step of the wall clock, and moves all timeouts whose deadlines
/// are by the wall clock.
///
/// A clock drives timers if it overrides [`adopt`](Self::adopt). A clock that wraps a
/// [`ManualClock`] must forward `adopt` to it. Otherwise its timers get threads. It must never show
/// an earlier time than the [`ManualClock`]. Otherwise the methods of [`ManualClock`] that move the
/// time find that a timeout is due which by the wrapping clock is not, and try again without end.
///
/// # Examples
///
/// A clock with a resolution of 10 ms:
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use delaywheel::{Clock, Timer};
///
/// #[derive(Debug)]
/// struct Coarse(Instant);
///
/// impl Clock for Coarse {
///     fn now(&self) -> Instant {
///         let steps = self.0.elapsed().as_millis() / 10;
///         self.0 + Duration::from_millis(10) * u32::try_from(steps).unwrap_or(u32::MAX)
///     }
/// }
///
/// let resolution = Duration::from_millis(10);
/// let timer = Timer::builder().clock(Coarse(Instant::now())).tick(resolution).build()?;
/// # drop(timer);
/// # Ok::<_, delaywheel::TimerBuildError>(())
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    ///
    /// This must not panic. After a panic on the reaper thread, that thread stops serving the
    /// timer. The timer then refuses timeouts, as after a shutdown, and
    /// [`is_reaper_dead`](crate::Timer::is_reaper_dead) returns true. Other timers of a shared
    /// [`Reaper`](crate::Reaper) continue.
    fn now(&self) -> Instant;

    /// Returns the time of the wall clock, for deadlines such as those of
    /// [`Timer::schedule_at_time`](crate::Timer::schedule_at_time). The wall clock may step forward
    /// and back.
    ///
    /// The default is the wall clock of the system. Like [`now`](Self::now), this must not panic.
    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Returns whether this clock jumps when the machine resumes or the wall clock is set. If it
    /// does, its timers read it after each resume and each step: see [`BootClock`]. The default is
    /// `false`.
    fn may_jump(&self) -> bool {
        false
    }

    /// Calls a listener after each jump from now on. Returns the period at which the listener must
    /// also read the clocks, if the system does not report all jumps.
    ///
    /// A [`Timer`](crate::Timer) calls this at its first timeout if the clock [may
    /// jump](Self::may_jump), and at its first deadline by the wall clock. The default,
    /// [`watch_jumps`], is right for clocks of the system. A clock that jumps for other reasons
    /// keeps the listeners, and calls them itself. Like [`now`](Self::now), this must not panic.
    fn watch(&self, listener: Weak<dyn JumpListener>) -> Option<Duration> {
        watch_jumps(listener)
    }

    /// Registers a timer. Returns whether this clock from now on drives the timer, instead of a
    /// thread, as [`ManualClock`] does; the default is `false`. If the clock drives timers that
    /// have deadlines by the wall clock, [`system_time`](Self::system_time) must advance with
    /// `now`.
    ///
    /// # Examples
    ///
    /// The clock of a simulation, which runs timers in its own loop:
    ///
    /// ```
    /// use std::{
    ///     sync::{Arc, Mutex, Weak, mpsc},
    ///     time::{Duration, Instant},
    /// };
    ///
    /// use delaywheel::{Clock, Driven, Timer};
    ///
    /// #[derive(Clone)]
    /// struct Simulated(Arc<Mutex<(Instant, Vec<Weak<dyn Driven>>)>>);
    ///
    /// impl std::fmt::Debug for Simulated {
    ///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    ///         f.write_str("Simulated")
    ///     }
    /// }
    ///
    /// impl Clock for Simulated {
    ///     fn now(&self) -> Instant {
    ///         self.0.lock().unwrap().0
    ///     }
    ///
    ///     fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
    ///         self.0.lock().unwrap().1.push(timer);
    ///         true
    ///     }
    /// }
    ///
    /// let clock = Simulated(Arc::new(Mutex::new((Instant::now(), Vec::new()))));
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (ran, runs) = mpsc::channel();
    /// timer.schedule(Duration::from_secs(3600), move || ran.send("an hour later").unwrap())?;
    ///
    /// // The lock of the clock is free while a timer reads it.
    /// let timers = clock.0.lock().unwrap().1.clone();
    /// let timers: Vec<_> = timers.iter().filter_map(Weak::upgrade).collect();
    /// while let Some(next) = timers.iter().filter_map(|timer| timer.next_turn()).min() {
    ///     clock.0.lock().unwrap().0 = next;
    ///     timers.iter().for_each(|timer| timer.turn());
    /// }
    /// assert_eq!(runs.try_recv(), Ok("an hour later"));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        let _ = timer;
        false
    }

    /// Returns the [`ManualClock`] if this clock is one, so that a timer also works on a target
    /// without [`Instant`]. Not part of the public interface: other clocks keep the default.
    #[doc(hidden)]
    fn as_manual(&self) -> Option<&ManualClock> {
        None
    }
}

/// An `Arc` of a clock, also of a `dyn Clock`, is that clock. Only a [`SystemClock`] without an
/// `Arc` is read without a dynamic call.
///
/// # Examples
///
/// ```
/// use std::{
///     sync::{Arc, mpsc},
///     time::Duration,
/// };
///
/// use delaywheel::{Clock, ManualClock, Timer};
///
/// /// A part of a program, which also needs the time.
/// struct Server {
///     clock: Arc<dyn Clock>,
///     timer: Timer,
/// }
///
/// impl Server {
///     fn new(clock: Arc<dyn Clock>) -> Self {
///         Self { timer: Timer::builder().clock(Arc::clone(&clock)).build().unwrap(), clock }
///     }
/// }
///
/// let manual = ManualClock::new();
/// let tested = Server::new(Arc::new(manual.clone()));
/// let (ran, runs) = mpsc::channel();
/// let hour = Duration::from_secs(3600);
/// let (by_wall, due) = (ran.clone(), tested.clock.system_time() + hour);
/// tested.timer.schedule(hour, move || ran.send("an hour later").unwrap())?;
/// tested.timer.schedule_at_time(due, move || by_wall.send("at one").unwrap())?;
/// manual.advance(hour);
/// assert_eq!(runs.try_iter().count(), 2);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn system_time(&self) -> SystemTime {
        (**self).system_time()
    }

    fn may_jump(&self) -> bool {
        (**self).may_jump()
    }

    fn watch(&self, listener: Weak<dyn JumpListener>) -> Option<Duration> {
        (**self).watch(listener)
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        (**self).adopt(timer)
    }

    fn as_manual(&self) -> Option<&ManualClock> {
        (**self).as_manual()
    }
}

/// A timer that a clock drives: see [`Clock::adopt`], which has an example. Timers implement this
/// trait.
pub trait Driven: Send + Sync {
    /// Expires the due timeouts, and runs their callbacks on this thread.
    fn turn(&self);

    /// Returns the time of the next turn; `None` if no timeout is pending or a shutdown has begun.
    fn next_turn(&self) -> Option<Instant>;

    /// Returns the time of the next turn since the start of a [`ManualClock`]; `None` on another
    /// clock, whose [`next_turn`](Self::next_turn) returns an instant.
    fn next_elapsed(&self) -> Option<Duration>;
}

/// The monotonic clock of the system.
///
/// On Linux it stops while the machine is suspended, so a timeout of an hour expires after the
/// machine has run for an hour. [`BootClock`] counts suspensions too. Changes of the wall clock do
/// not affect this clock.
///
/// # Examples
///
/// ```
/// use delaywheel::{Clock, SystemClock};
///
/// let earlier = SystemClock.now();
/// assert!(SystemClock.now() >= earlier);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock for tests. Its time changes only by the methods below, which also run the timers.
///
/// Timers on this clock have no threads. [`advance`](Self::advance) runs callbacks on the calling
/// thread, in the order of their deadlines. While a callback runs, the clock shows the tick at
/// which that callback is due.
///
/// Clones share one time: pass `clock.clone()` to the timer, and keep `clock` to advance it.
///
/// A callback may advance the clock. Timeouts that become due then expire inside that call, before
/// the other timeouts of the tick. The clock never goes back. If two threads advance it at once,
/// callbacks run on both, and the spans may overlap: each counts from the time at its call. A
/// timeout that another thread schedules meanwhile may run only with the next
/// [`advance`](Self::advance), even if it is due. A sleep that is due ends without another call.
///
/// This clock also drives timers on `wasm32-unknown-unknown`, where the system has no clock. There,
/// timeouts, sleeps, maps and purgatories work with delays. Calls that take or return an
/// [`Instant`] panic, and so do repetitions, intervals, throttles, the functions `next` of maps and
/// [`DelayQueue::recv_timeout`](crate::DelayQueue::recv_timeout).
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (fired, events) = mpsc::channel();
/// timer.schedule(Duration::from_secs(3600), move || fired.send("an hour later").unwrap())?;
///
/// clock.advance(Duration::from_secs(3599));
/// assert!(events.try_recv().is_err());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(events.try_recv(), Ok("an hour later"));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<SharedManual>,
}

struct SharedManual {
    /// Set by `new` unless the target has no [`Instant`].
    origin: OnceLock<Instant>,
    /// Time since `origin`.
    elapsed: Mutex<Duration>,
    /// The present wall clock less `elapsed`.
    system_origin: Mutex<SystemTime>,
    timers: Listeners<dyn Driven>,
}

impl ManualClock {
    /// Makes a clock that starts at the present time. Its wall clock starts at the year 2000.
    #[must_use]
    pub fn new() -> Self {
        let has_instants = cfg!(not(all(target_family = "wasm", target_os = "unknown")));
        let shared = SharedManual {
            origin: if has_instants { Instant::now().into() } else { OnceLock::new() },
            elapsed: Mutex::new(Duration::ZERO),
            system_origin: Mutex::new(UNIX_EPOCH + Duration::from_secs(946_684_800)),
            timers: Listeners::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns how far the clock has been advanced since it was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        *self.shared.elapsed.lock()
    }

    /// Advances the time by `span`, and runs the callbacks that become due on the way.
    ///
    /// Timeouts that a callback schedules within the span also expire. If each callback schedules
    /// the next one without a delay, this never returns.
    ///
    /// Time passes from one deadline to the next, so no occurrence of a repetition is missed. With
    /// [`jump`](Self::jump), they are missed, as after a suspension.
    ///
    /// # Panics
    ///
    /// Panics if an [`Instant`] cannot represent the new time.
    #[inline]
    pub fn advance(&self, span: Duration) {
        let end = self.after(span);
        self.turn();
        while let Some(next) = self.next_turn().filter(|&next| next <= end) {
            self.show(next);
            self.turn();
        }
        self.show(end);
        self.turn();
    }

    /// Advances the time by `span` at once, as after a suspension, and runs the callbacks that are
    /// due then, also those that a callback schedules, as in [`advance`](Self::advance). So
    /// [`MissedTicks`](crate::MissedTicks) decides which occurrences of a repetition run.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::mpsc, time::Duration};
    ///
    /// use delaywheel::{ManualClock, MissedTicks, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (hour, (ran, runs)) = (Duration::from_secs(3600), mpsc::channel());
    /// let report = move |_: &_| ran.send("a report").unwrap();
    /// let reports = timer.repeat(hour).at_fixed_rate(MissedTicks::Skip, report)?;
    /// clock.jump(8 * hour + hour / 2);
    /// assert_eq!(runs.try_iter().count(), 1, "one report after the night");
    /// clock.advance(hour / 2);
    /// assert_eq!(runs.try_iter().count(), 1);
    /// # drop(reports);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance).
    #[inline]
    pub fn jump(&self, span: Duration) {
        self.show(self.after(span));
        self.advance(Duration::ZERO);
    }

    /// Returns the time after a span.
    fn after(&self, span: Duration) -> Duration {
        let is_instant = |end: &Duration| {
            self.shared.origin.get().is_none_or(|origin| origin.checked_add(*end).is_some())
        };
        let end = self.elapsed().checked_add(span).filter(is_instant);
        end.expect("an `Instant` cannot represent the new time")
    }

    /// Sets the wall clock forward or back. Timeouts that become due by it run, also those that a
    /// callback schedules, as in [`advance`](Self::advance). The time of [`now`](Clock::now)
    /// stays the same, while `advance` moves both clocks.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// use delaywheel::{Clock, ManualClock};
    ///
    /// let (clock, second) = (ManualClock::new(), Duration::from_secs(1));
    /// clock.set_system_time(UNIX_EPOCH + second);
    /// clock.advance(second);
    /// assert_eq!(clock.system_time(), UNIX_EPOCH + 2 * second);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if a [`SystemTime`] cannot represent the wall clock at the start of this clock.
    pub fn set_system_time(&self, time: SystemTime) {
        let origin = time.checked_sub(self.elapsed());
        *self.shared.system_origin.lock() =
            origin.expect("`SystemTime` cannot represent the wall clock at the start");
        self.advance(Duration::ZERO);
    }

    /// Advances the time to the next wake-up of a timer. Returns the time that passed, or `None` if
    /// no pending timeout ever expires. Entries of a map count only while a task waits for them.
    ///
    /// A wake-up may expire no timeout: after a cancel, after a reset to a later deadline, and when
    /// the wheel sorts a crowded bucket. To run until a callback has run, call this in a loop, or
    /// [`advance`](Self::advance).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// timer.schedule(Duration::from_secs(30), || ())?;
    /// assert_eq!(clock.advance_to_next(), Some(Duration::from_secs(30)));
    /// assert_eq!(clock.advance_to_next(), None);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[inline]
    #[expect(clippy::must_use_candidate, reason = "it is called to let time pass")]
    pub fn advance_to_next(&self) -> Option<Duration> {
        let next = self.next_turn()?;
        let span = next.saturating_sub(self.elapsed());
        self.show(next);
        self.turn();
        Some(span)
    }

    /// Advances the time until no pending timeout ever expires, through at most `limit` wake-ups.
    /// Returns whether this state is reached.
    ///
    /// The limit ends the call when callbacks schedule new timeouts without end.
    #[inline]
    #[must_use]
    pub fn run_until_idle(&self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.advance_to_next().is_none() {
                return true;
            }
        }
        self.next_turn().is_none()
    }

    /// Sets the time, unless the clock is already later.
    fn show(&self, time: Duration) {
        let mut elapsed = self.shared.elapsed.lock();
        *elapsed = time.max(*elapsed);
    }

    /// Returns the instant at which the clock started.
    pub(crate) fn origin(&self) -> Instant {
        *self.shared.origin.get_or_init(Instant::now)
    }

    #[inline]
    fn turn(&self) {
        for timer in self.shared.timers.live() {
            timer.turn();
        }
    }

    #[inline]
    fn next_turn(&self) -> Option<Duration> {
        let next_of = |timer: &Arc<dyn Driven>| {
            // If a clock of the user wraps this one, its timers know only instants.
            let since = || Some(timer.next_turn()?.saturating_duration_since(self.origin()));
            timer.next_elapsed().or_else(since)
        };
        self.shared.timers.live().iter().filter_map(next_of).min()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

// Timers turn with no lock of the clock held, so a panic leaves no inconsistent state.
impl UnwindSafe for ManualClock {}
impl RefUnwindSafe for ManualClock {}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.origin() + self.elapsed()
    }

    fn as_manual(&self) -> Option<&ManualClock> {
        Some(self)
    }

    fn system_time(&self) -> SystemTime {
        let origin = *self.shared.system_origin.lock();
        origin.checked_add(self.elapsed()).unwrap_or(origin)
    }

    /// Does nothing: this clock gives its timers their turns itself.
    fn watch(&self, _: Weak<dyn JumpListener>) -> Option<Duration> {
        None
    }

    #[inline]
    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.shared.timers.add(timer);
        true
    }
}
