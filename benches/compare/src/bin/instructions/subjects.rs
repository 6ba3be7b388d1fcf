//! What is counted: the wheel and the timer, both in virtual time.

use std::time::Duration;

use delaywheel::{Key, ManualClock, Tick, TimeoutKey, TimingWheel, ValueTimer};

/// A set of timeouts, of which time is told.
pub(crate) trait Subject {
    type Key: Copy;

    /// An empty one, at time 0.
    fn new() -> Self;

    /// Adds a timeout that expires in so many milliseconds.
    fn insert(&mut self, millis: u64) -> Self::Key;

    /// Takes out a timeout. Returns whether it was pending.
    fn cancel(&mut self, key: Self::Key) -> bool;

    /// Has a timeout expire in so many milliseconds. Returns whether it was pending.
    fn reset(&mut self, key: Self::Key, millis: u64) -> bool;

    /// Lets so many milliseconds pass, stopping wherever something expires.
    fn pass(&mut self, millis: u64);

    /// Number of pending timeouts.
    fn pending(&self) -> usize;
}

/// [`TimingWheel`], with ticks of a millisecond.
pub(crate) struct Wheel {
    wheel: TimingWheel<u64>,
    now: u64,
}

impl Subject for Wheel {
    type Key = Key;

    fn new() -> Self {
        Self { wheel: TimingWheel::default(), now: 0 }
    }

    #[inline]
    fn insert(&mut self, millis: u64) -> Key {
        let deadline = Tick::new(self.now + millis);
        self.wheel.insert(deadline, millis).expect("the wheel takes 2^32 timeouts")
    }

    #[inline]
    fn cancel(&mut self, key: Key) -> bool {
        self.wheel.cancel(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: Key, millis: u64) -> bool {
        self.wheel.reset(key, Tick::new(self.now + millis)).is_some()
    }

    #[inline]
    fn pass(&mut self, millis: u64) {
        let end = Tick::new(self.now + millis);
        while let Some(next) = self.wheel.next_expiration().filter(|&next| next <= end) {
            self.wheel.advance(next).for_each(drop);
        }
        self.wheel.advance(end).for_each(drop);
        self.now += millis;
    }

    fn pending(&self) -> usize {
        self.wheel.len()
    }
}

/// [`ValueTimer`], whose clock the scenario moves.
pub(crate) struct Timer {
    timer: ValueTimer<u64>,
    clock: ManualClock,
}

impl Subject for Timer {
    type Key = TimeoutKey;

    /// With two shards, whatever the machine has: the reaper looks at each.
    fn new() -> Self {
        let clock = ManualClock::new();
        let timer = ValueTimer::builder().clock(clock.clone()).shards(2).build_with(drop);
        Self { timer: timer.expect("the settings are valid"), clock }
    }

    #[inline]
    fn insert(&mut self, millis: u64) -> TimeoutKey {
        let delay = Duration::from_millis(millis);
        self.timer.schedule(delay, millis).expect("the timer takes 2^32 timeouts")
    }

    #[inline]
    fn cancel(&mut self, key: TimeoutKey) -> bool {
        self.timer.cancel(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: TimeoutKey, millis: u64) -> bool {
        self.timer.reset(key, Duration::from_millis(millis))
    }

    #[inline]
    fn pass(&mut self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn pending(&self) -> usize {
        usize::try_from(self.timer.stats().pending).expect("they are in memory")
    }
}
