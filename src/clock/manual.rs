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

/// A clock that stands still until it is told to go on, and runs the timers that use it as it does.
///
/// Timers built on it have no threads: callbacks run inside of the calls below, on the calling
/// thread, in the order of their deadlines, each at the very tick at which it is due. Clones are
/// the same clock.
///
/// A callback may move the clock as well. What comes due by that runs inside of its call, before
/// what was due together with the callback and has not run yet; and the clock, once ahead, does not
/// go back. Two threads may move the clock at once; then callbacks run on both.
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
    /// Makes a clock that shows the present time, and stands still.
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

    /// Lets `span` pass, stopping at every tick at which something is due.
    ///
    /// What the callbacks schedule for within the span expires in it as well. One that always
    /// schedules another without a delay keeps the time from passing for ever.
    ///
    /// # Panics
    ///
    /// If the time would be past what [`Instant`] can show.
    pub fn advance(&self, span: Duration) {
        let end = self.now().checked_add(span).expect("the clock cannot show so late a time");
        self.turn();
        while let Some(next) = self.next_turn().filter(|&next| next <= end) {
            self.show(next);
            self.turn();
        }
        self.show(end);
        self.turn();
    }

    /// Lets time pass until a timer is next due. Returns by how much, or `None` if nothing is
    /// pending, or only what is later than an [`Instant`] can tell.
    ///
    /// A stop may be one at which a timer only sorts what it holds, and nothing expires: after a
    /// timeout was cancelled or put off, or when very many are due soon.
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

    /// Lets time pass until nothing is pending, at most `limit` stops. Returns whether nothing is.
    ///
    /// The limit is for timers that never idle, because their callbacks schedule new ones.
    #[must_use]
    pub fn run_until_idle(&self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.advance_to_next().is_none() {
                return true;
            }
        }
        self.next_turn().is_none()
    }

    /// Shows a time, unless it is already later.
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

    /// The timers that still exist; no lock is held while they run.
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

// Timers turn with no lock of the clock held, so a panic leaves nothing half done.
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
        // A weak reference keeps the memory of a dropped timer. Looking for these only when the list
        // is full takes constant time per timer.
        if timers.len() == timers.capacity() {
            timers.retain(|timer| timer.strong_count() > 0);
            let live = timers.len();
            timers.reserve(live + 1);
        }
        timers.push(timer);
        true
    }
}
