//! Sets of timeouts whose caller lets time pass: the wheel, and timers of values and of closures.

use std::{hint::black_box, time::Duration};

use delaywheel::{
    Key, ManualClock, Tick, Timeout, TimeoutKey, Timer, TimerBuilder, TimingWheel, ValueTimer,
};

// Each benchmark uses some of the subjects, which leaves the others without a use.
const _: [usize; 3] = [size_of::<Wheel>(), size_of::<Values>(), size_of::<Closures>()];

/// A set of timeouts. Delays are in milliseconds.
pub(crate) trait Subject {
    type Key;

    /// Makes one without timeouts. A wheel has no settings.
    fn new(settings: TimerBuilder) -> Self;

    fn insert(&mut self, delay: u64) -> Self::Key;

    fn cancel(&mut self, key: &Self::Key) -> bool;

    fn reset(&mut self, key: &Self::Key, delay: u64) -> bool;

    /// Lets time pass and expires due timeouts: by the clock of a timer, and from expiration to
    /// expiration in a wheel.
    fn pass(&mut self, clock: &ManualClock, millis: u64);

    fn pending(&self) -> u64;
}

/// [`TimingWheel`] with ticks of a millisecond, and its time.
pub(crate) struct Wheel(TimingWheel<u64>, u64);

impl Subject for Wheel {
    type Key = Key;

    fn new(_: TimerBuilder) -> Self {
        Self(TimingWheel::default(), 0)
    }

    #[inline]
    fn insert(&mut self, delay: u64) -> Key {
        self.0.insert(Tick::new(self.1 + delay), delay).expect("the wheel has room")
    }

    #[inline]
    fn cancel(&mut self, key: &Key) -> bool {
        self.0.cancel(*key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: &Key, delay: u64) -> bool {
        self.0.reset(*key, Tick::new(self.1 + delay)).is_some()
    }

    #[inline]
    fn pass(&mut self, _: &ManualClock, millis: u64) {
        let end = Tick::new(self.1 + millis);
        while let Some(next) = self.0.next_expiration().filter(|&next| next <= end) {
            self.0.advance(next).for_each(drop);
        }
        self.0.advance(end).for_each(drop);
        self.1 += millis;
    }

    fn pending(&self) -> u64 {
        self.0.len() as u64
    }
}

/// [`ValueTimer`].
pub(crate) struct Values(ValueTimer<u64>);

impl Subject for Values {
    type Key = TimeoutKey;

    fn new(settings: TimerBuilder) -> Self {
        Self(settings.build_with(drop).expect("the settings are valid"))
    }

    #[inline]
    fn insert(&mut self, delay: u64) -> TimeoutKey {
        let timeout = self.0.schedule(Duration::from_millis(delay), delay);
        timeout.expect("the timer has room")
    }

    #[inline]
    fn cancel(&mut self, key: &TimeoutKey) -> bool {
        self.0.cancel(*key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: &TimeoutKey, delay: u64) -> bool {
        self.0.reset(*key, Duration::from_millis(delay))
    }

    #[inline]
    fn pass(&mut self, clock: &ManualClock, millis: u64) {
        clock.advance(Duration::from_millis(millis));
    }

    fn pending(&self) -> u64 {
        self.0.stats().pending
    }
}

/// [`Timer`], with closures that capture eight bytes.
pub(crate) struct Closures(Timer);

impl Subject for Closures {
    type Key = Timeout;

    fn new(settings: TimerBuilder) -> Self {
        Self(settings.build().expect("the settings are valid"))
    }

    #[inline]
    fn insert(&mut self, delay: u64) -> Timeout {
        let timeout = self.0.schedule(Duration::from_millis(delay), move || _ = black_box(delay));
        timeout.expect("the timer has room")
    }

    #[inline]
    fn cancel(&mut self, key: &Timeout) -> bool {
        key.cancel()
    }

    #[inline]
    fn reset(&mut self, key: &Timeout, delay: u64) -> bool {
        key.reset(Duration::from_millis(delay))
    }

    #[inline]
    fn pass(&mut self, clock: &ManualClock, millis: u64) {
        clock.advance(Duration::from_millis(millis));
    }

    fn pending(&self) -> u64 {
        self.0.stats().pending
    }
}
