//! `advance`: expires due buckets in order, one bounded step at a time.

use core::{hint::black_box, iter::FusedIterator};

use super::{
    Key, TimingWheel,
    buckets::{Contents, FirstDue},
    records::{BucketId, NIL},
};
use crate::tick::Tick;

/// An expired timeout, with its value.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, wheel::TimingWheel};
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
    /// The key of the timeout. It is dead now.
    pub key: Key,
    /// The deadline; never after the tick passed to `advance`.
    pub deadline: Tick,
    /// The value that was inserted.
    pub value: T,
}

/// Iterator over the timeouts that are due; from [`TimingWheel::advance`].
///
/// The wheel is consistent after each call of `next`. So you may drop or leak the iterator at any
/// point.
#[derive(Debug)]
#[must_use = "timeouts expire as this is iterated; the others stay due"]
pub struct Advance<'a, T> {
    wheel: &'a mut TimingWheel<T>,
    /// Timeouts with later deadlines stay.
    until: Tick,
    /// Steps that may still be taken.
    steps: u64,
}

impl<'a, T> Advance<'a, T> {
    #[inline]
    pub(super) fn new(wheel: &'a mut TimingWheel<T>) -> Self {
        Self { until: wheel.now, wheel, steps: u64::MAX }
    }

    /// Leaves the timeouts with deadlines after `tick`, even if the time of the wheel is later.
    #[cfg(feature = "std")]
    pub(crate) fn until(mut self, tick: Tick) -> Self {
        self.until = tick;
        self
    }

    /// Ends the iteration after `steps` steps, even if more timeouts are due.
    ///
    /// A step looks through at most 16 timeouts, and expires or moves at most one of them. Or it
    /// lists up to 16 timeouts of a larger bucket by tick, and moves those that a reset has put
    /// beyond the range of the bucket. Or it moves up to 16 of a larger bucket, and all of them
    /// count as steps, so the last step may go beyond the limit by 15. Each step takes constant
    /// time, amortized.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
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

    /// Returns whether no timeout is due and no due bucket is left. After the iteration, `false`
    /// means that the iteration ended at its limit: the last steps may have moved timeouts that are
    /// not due.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.wheel.next_expiration().is_none_or(|next| next > self.until)
    }
}

impl<T> Iterator for Advance<'_, T> {
    type Item = Expired<T>;

    #[inline]
    fn next(&mut self) -> Option<Expired<T>> {
        self.wheel.expire_next(self.until, &mut self.steps)
    }
}

impl<T> FusedIterator for Advance<'_, T> {}

impl<T> TimingWheel<T> {
    /// Removes the next timeout that is due at `until`, in at most `steps` steps. Subtracts the
    /// steps that it used.
    fn expire_next(&mut self, until: Tick, steps: &mut u64) -> Option<Expired<T>> {
        while let Some((due, expiration)) = self.buckets.first_due(self.expired_to) {
            if expiration > until {
                break;
            }
            *steps = steps.checked_sub(1)?;
            debug_assert!(self.expired_to <= expiration, "{due:?} was skipped");
            self.expired_to = expiration;
            let position = match due {
                FirstDue::Opened(position) => {
                    if let Some(mut line) = self.buckets.opened.full_line() {
                        self.read_ahead(&mut line);
                    }
                    position
                }
                FirstDue::Bucket(id) => match self.next_of_bucket(id, steps) {
                    Some(position) => position,
                    None => continue,
                },
            };
            let record = self.buckets.record(position);
            if record.deadline() <= expiration {
                let Some((key, _, value)) = self.values.remove(record.slot, None) else {
                    unreachable!("a live record has a timeout")
                };
                self.buckets.remove(position);
                return Some(Expired { key, deadline: record.deadline(), value });
            }
            self.cascade(position);
        }
        self.expired_to = self.expired_to.max(until);
        None
    }

    /// Returns the record that must leave a due bucket next. `None` if this step has listed the
    /// records of a chunk by tick, or has moved them, or if a sparse bucket has no due timeout
    /// left. Subtracts a step for each record that it moves but the first.
    fn next_of_bucket(&mut self, id: BucketId, steps: &mut u64) -> Option<u32> {
        let Contents::Chunks { newest, is_crowded } = self.buckets.bucket(id).contents else {
            return Some(id.link());
        };
        let level = self.buckets.geometry.level(id);
        if level == 0 {
            return Some(self.buckets.records.any_of(newest));
        }
        if !is_crowded {
            return self.next_of_sparse(id, newest);
        }
        if self.buckets.is_opened_when_due(level) {
            for position in self.buckets.open(id, newest) {
                self.cascade(position);
            }
            return None;
        }
        let (_, older) = self.buckets.records.neighbours(newest);
        let moved = self.spread(if older == NIL { newest } else { older });
        *steps = steps.saturating_sub(moved - 1);
        None
    }

    /// Returns the earliest record of a sparse bucket, which has this one chunk; `None` if it is
    /// not due. The bucket is then due at the earliest deadline that stays in it. But first returns
    /// a record that a reset has moved beyond the range of the bucket, if there is one.
    fn next_of_sparse(&mut self, id: BucketId, chunk: u32) -> Option<u32> {
        let Self { buckets, expired_to, .. } = self;
        let start = buckets.geometry.start(id, *expired_to);
        let (mut earliest, mut second) = ((Tick::MAX, None), None::<Tick>);
        for (deadline, position) in buckets.records.deadlines(chunk) {
            if buckets.geometry.start(id, deadline) != start {
                return Some(position);
            }
            if earliest.1.is_none() || deadline < earliest.0 {
                second = earliest.1.map(|_| earliest.0);
                earliest = (deadline, Some(position));
            } else {
                second = Some(second.map_or(deadline, |second| second.min(deadline)));
            }
        }
        let is_due = earliest.0 <= *expired_to;
        if let Some(next) = if is_due { second } else { Some(earliest.0) } {
            buckets.set_expiration(id, next);
        }
        earliest.1.filter(|_| is_due)
    }

    /// Reads the slots of some timeouts, so that their cache misses overlap. Replaces the positions
    /// by the slots. The loops are short, because the processor looks only some hundred
    /// instructions ahead.
    #[inline(never)]
    fn read_ahead(&self, positions: &mut [u32]) {
        // With a known length, the compiler would write out the loops, in 3 KB.
        let positions = black_box(positions);
        for position in &mut *positions {
            *position = self.buckets.records.slot(*position);
        }
        for &mut slot in positions {
            black_box(self.values.key_at(slot));
        }
    }

    /// Moves a record to the bucket that its deadline has by now.
    fn cascade(&mut self, position: u32) {
        let record = self.buckets.record(position);
        self.place(record);
        self.buckets.remove(position);
    }
}
