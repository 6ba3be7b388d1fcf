//! Letting time pass: buckets that are due, in order, one step at a time.

use core::iter::FusedIterator;

use super::{Key, TimingWheel, geometry::Place};
use crate::Tick;

/// A timeout that has become due, with its value.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TimingWheel};
///
/// let mut wheel = TimingWheel::new(Tick::ZERO);
/// let key = wheel.insert(Tick::new(5), "value")?;
/// let expired = wheel.advance(Tick::new(8)).next().unwrap();
/// assert_eq!((expired.key, expired.deadline, expired.value), (key, Tick::new(5), "value"));
/// # Ok::<_, delaywheel::InsertError<&str>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired<T> {
    /// The key that the timeout had, dead now.
    pub key: Key,
    /// The deadline that it had; never after the tick that was advanced to.
    pub deadline: Tick,
    /// What was inserted.
    pub value: T,
}

/// Iterator over the timeouts that are due; from [`TimingWheel::advance`].
///
/// Each call of `next` leaves the wheel in order, so the iterator may be dropped, or leaked, at any
/// point.
#[derive(Debug)]
#[must_use = "timeouts expire as this is iterated; what is not taken stays due"]
pub struct Advance<'a, T> {
    wheel: &'a mut TimingWheel<T>,
    /// Steps that may still be taken.
    steps: u64,
}

impl<'a, T> Advance<'a, T> {
    #[inline]
    pub(super) fn new(wheel: &'a mut TimingWheel<T>) -> Self {
        Self { wheel, steps: u64::MAX }
    }

    /// Ends the iteration after `steps` steps, even if more is due.
    ///
    /// A step expires one timeout, or moves one, or drops one stale record, or looks at one sparse
    /// bucket; it takes constant time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// for value in 0..5 {
    ///     wheel.insert(Tick::new(10), value)?;
    /// }
    /// let mut due = wheel.advance(Tick::new(10)).limit(3);
    /// assert_eq!(due.by_ref().count(), 3);
    /// assert!(!due.is_drained());
    ///
    /// let mut due = wheel.advance(Tick::new(10));
    /// assert_eq!(due.by_ref().count(), 2);
    /// assert!(due.is_drained());
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    pub fn limit(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Returns whether nothing is due any more, so that the iteration did not end for its limit.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.wheel.next_expiration().is_none_or(|next| next > self.wheel.now)
    }
}

impl<T> Iterator for Advance<'_, T> {
    type Item = Expired<T>;

    #[inline]
    fn next(&mut self) -> Option<Expired<T>> {
        self.wheel.expire_next(&mut self.steps)
    }
}

impl<T> FusedIterator for Advance<'_, T> {}

impl<T> TimingWheel<T> {
    /// Takes out the next timeout that is due, in at most `steps` steps, which are counted down.
    fn expire_next(&mut self, steps: &mut u64) -> Option<Expired<T>> {
        self.settle_departures();
        while let Some((place, expiration)) = self.queue.first() {
            if expiration > self.now {
                break;
            }
            if *steps == 0 {
                return None;
            }
            debug_assert!(expiration >= self.clock, "a bucket was passed over");
            self.clock = expiration;
            let expired = self.visit(place, steps).or_else(|| self.walk(place, steps));
            if expired.is_some() {
                return expired;
            }
        }
        self.clock = self.now;
        None
    }

    /// Expires a timeout of a sparse bucket above level 0, and leaves in place what is not due.
    ///
    /// Does nothing if none is due, because the one with the least deadline has left, or if one was
    /// put off beyond the bucket's range. Then the others are to cascade as well: so a timeout is
    /// never woken for in vain more often than there are levels below it.
    fn visit(&mut self, place: Place, steps: &mut u64) -> Option<Expired<T>> {
        let bucket = self.levels.bucket(place);
        let level = self.geometry.level(place);
        if level == 0 || !bucket.is_sparse() {
            return None;
        }
        let lap = self.geometry.lap_index(level, self.clock);
        let mut due = None;
        let mut least = Tick::MAX;
        for &record in bucket.run().oldest(&self.pool) {
            let Some(deadline) = self.arena.deadline_at(record, place) else { continue };
            if self.geometry.lap_index(level, deadline) != lap {
                return None;
            }
            if deadline <= self.clock && due.is_none_or(|due| due == record) {
                due = Some(record);
            } else {
                least = least.min(deadline);
            }
        }
        let expired = self.expire(due?, place);
        *steps -= 1;
        if self.levels.bucket(place).live() > 0 {
            self.requeue(place, least);
        }
        Some(expired)
    }

    /// Takes records off a bucket that is due until one expires, the bucket is empty or no step is
    /// left.
    ///
    /// What is not due moves on; from above level 0, to a finer level, unless it was put off
    /// meanwhile.
    fn walk(&mut self, place: Place, steps: &mut u64) -> Option<Expired<T>> {
        while *steps > 0 {
            let bucket = self.levels.bucket_mut(place);
            if bucket.run().is_at_chunk() {
                self.arena.touch(bucket.run().oldest(&self.pool));
            }
            let record = bucket.pop(&mut self.pool)?;
            *steps -= 1;
            let Some(deadline) = self.arena.deadline_at(record, place) else { continue };
            if deadline <= self.clock {
                return Some(self.expire(record, place));
            }
            self.cascade(record, place, deadline);
        }
        None
    }

    /// Moves a timeout, whose record was taken off `place`, to where it belongs now.
    #[inline]
    fn cascade(&mut self, record: u32, place: Place, deadline: Tick) {
        let target = self.geometry.place(self.clock, deadline);
        debug_assert_ne!(target, place, "a timeout stayed in a bucket that is due");
        self.settle(record, deadline, target);
        self.depart(place);
        self.cascades += 1;
    }

    /// Takes out a timeout that rests at `place`.
    #[inline]
    fn expire(&mut self, record: u32, place: Place) -> Expired<T> {
        let pending = self.arena.take(record).expect("a timeout that is due is in the arena");
        self.depart(place);
        let key = Key::new(record, pending.generation());
        Expired { key, deadline: pending.deadline, value: pending.value }
    }
}
