//! Sets of timeouts whose caller lets time pass, and operations on them. The sets are the wheel
//! and timers of values.

use std::time::Duration;

use delaywheel::{
    ManualClock, Tick, TimeoutKey, TimerBuilder, ValueTimer,
    wheel::{Key, TimingWheel},
};
use fastrand::Rng;

// Each benchmark uses some of the subjects, which leaves the others without a use.
const _: [usize; 2] = [size_of::<Wheel>(), size_of::<Values>()];

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
    #[inline]
    fn pass(&mut self, clock: &ManualClock, millis: u64) {
        clock.advance(Duration::from_millis(millis));
    }

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

    fn pending(&self) -> u64 {
        self.0.stats().pending
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Insert,
    Cancel,
    ResetLater,
    Expire,
}

use Operation::{Cancel, Expire, Insert, ResetLater};

/// A subject with timeouts, and the next operations.
pub(crate) struct Setting<S: Subject> {
    pub(crate) subject: S,
    clock: ManualClock,
    rng: Rng,
    /// Milliseconds of the longest delay.
    longest: u64,
    keys: Vec<S::Key>,
    delays: Vec<u64>,
}

impl<S: Subject> Setting<S> {
    /// Makes a subject with some timeouts that no operation touches. Its settings have the clock.
    pub(crate) fn new(
        (settings, clock): (TimerBuilder, ManualClock),
        others: u32,
        longest: u64,
        seed: u64,
    ) -> Self {
        let (mut subject, mut rng) = (S::new(settings), Rng::with_seed(seed));
        for _ in 0..others {
            subject.insert(rng.u64(1..=longest));
        }
        Self { subject, clock, rng, longest, keys: Vec::new(), delays: Vec::new() }
    }

    /// Cancels the timeouts of the last operations, and prepares this many.
    pub(crate) fn prepare(&mut self, operation: Operation, count: usize) {
        self.perform(Cancel);
        self.delays.clear();
        self.delays.extend((0..count).map(|_| self.rng.u64(1..=self.longest)));
        self.keys.reserve(count);
        if operation == Insert {
            return;
        }
        self.perform(Insert);
        match operation {
            Cancel => self.rng.shuffle(&mut self.keys),
            Expire => self.keys.clear(),
            _ => {
                let mut timeouts: Vec<_> = self.keys.drain(..).zip(self.delays.drain(..)).collect();
                self.rng.shuffle(&mut timeouts);
                let later = timeouts.into_iter().map(|(key, delay)| (key, delay + self.longest));
                (self.keys, self.delays) = later.unzip();
            }
        }
    }

    #[inline]
    pub(crate) fn perform(&mut self, operation: Operation) {
        match operation {
            Insert => self.keys.extend(self.delays.iter().map(|&delay| self.subject.insert(delay))),
            Cancel => {
                self.keys
                    .drain(..)
                    .for_each(|key| assert!(self.subject.cancel(&key), "not pending"));
            }
            ResetLater => {
                for (key, &delay) in self.keys.iter().zip(&self.delays) {
                    assert!(self.subject.reset(key, delay), "not pending");
                }
            }
            Expire => self.subject.pass(&self.clock, self.longest),
        }
    }
}
