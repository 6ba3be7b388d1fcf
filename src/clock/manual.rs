//! Virtual time, for tests.

use std::{
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, Weak},
    time::{Duration, Instant},
    vec::Vec,
};

use parking_lot::Mutex;

use super::{Clock, Driven};

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
/// callbacks run on both.
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
    shared: Arc<Shared>,
}

struct Shared {
    origin: Instant,
    /// Time since `origin`.
    elapsed: Mutex<Duration>,
    timers: Mutex<Vec<Weak<dyn Driven>>>,
}

impl ManualClock {
    /// Makes a clock that starts at the present time.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared {
            origin: Instant::now(),
            elapsed: Mutex::new(Duration::ZERO),
            timers: Mutex::new(Vec::new()),
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
    /// # Panics
    ///
    /// Panics if an [`Instant`] cannot represent the new time.
    pub fn advance(&self, span: Duration) {
        let end = self.now().checked_add(span).expect("an `Instant` cannot represent the new time");
        self.turn();
        while let Some(next) = self.next_turn().filter(|&next| next <= end) {
            self.show(next);
            self.turn();
        }
        self.show(end);
        self.turn();
    }

    /// Advances the time to the next wake-up of a timer. Returns the time that passed, or `None` if
    /// no timeout is pending at a time that an [`Instant`] can represent.
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
    #[expect(clippy::must_use_candidate, reason = "it is called to let time pass")]
    pub fn advance_to_next(&self) -> Option<Duration> {
        let next = self.next_turn()?;
        let span = next.saturating_duration_since(self.now());
        self.show(next);
        self.turn();
        Some(span)
    }

    /// Advances the time until no timeout is pending, through at most `limit` wake-ups. Returns
    /// whether no timeout is pending.
    ///
    /// The limit ends the call when callbacks schedule new timeouts without end.
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
    fn show(&self, time: Instant) {
        let since = time.saturating_duration_since(self.shared.origin);
        let mut elapsed = self.shared.elapsed.lock();
        *elapsed = since.max(*elapsed);
    }

    fn turn(&self) {
        for timer in self.timers() {
            timer.turn();
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        self.timers().iter().filter_map(|timer| timer.next_turn()).min()
    }

    /// Returns the timers that still exist. The caller runs them without the lock.
    fn timers(&self) -> Vec<Arc<dyn Driven>> {
        let mut timers = self.shared.timers.lock();
        timers.retain(|timer| timer.strong_count() > 0);
        timers.iter().filter_map(Weak::upgrade).collect()
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
        self.shared.origin + self.elapsed()
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        let mut timers = self.shared.timers.lock();
        // A weak reference keeps the memory of a dropped timer. Removing such references only when
        // the list is full takes amortized constant time per timer.
        if timers.len() == timers.capacity() {
            timers.retain(|timer| timer.strong_count() > 0);
            let live = timers.len();
            timers.reserve(live + 1);
        }
        timers.push(timer);
        true
    }
}
