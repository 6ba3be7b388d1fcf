//! The timing wheel of this repository.

use delaywheel::{Key, Tick, TimingWheel, WheelBuilder};

use super::rounded::Rounded;
use crate::{Promises, Timers};

/// [`TimingWheel`] as it comes.
#[derive(Debug, Default)]
pub struct Wheel(TimingWheel<u64>);

impl Wheel {
    /// Makes a wheel with this many buckets a level.
    pub fn with_size(buckets: usize) -> Self {
        Self(WheelBuilder::new().size(buckets).build().expect("the size is in range"))
    }

    /// The wheel itself, for what only it can do.
    pub fn get_mut(&mut self) -> &mut TimingWheel<u64> {
        &mut self.0
    }
}

impl Timers for Wheel {
    type Key = Key;

    const NAME: &'static str = "delaywheel";

    const PROMISES: Promises =
        Promises { scheme: "hierarchical wheel with a bucket delay queue", ..Promises::STRICT };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> Key {
        self.0.insert(Tick::new(deadline), payload).expect("the wheel takes 2^32 timeouts")
    }

    #[inline]
    fn cancel(&mut self, key: Key) -> bool {
        self.0.cancel(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: Key, deadline: u64) -> Option<Key> {
        self.0.reset(key, Tick::new(deadline)).map(|_| key)
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        self.0.next_expiration().map(Tick::get)
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let due = self.0.advance(Tick::new(now));
        due.inspect(|timeout| expired(timeout.value)).count()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn in_tenths() -> impl Timers {
        Rounded::<Self>::new(true)
    }
}
