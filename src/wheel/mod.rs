//! Hierarchical timing wheels with a bucket delay queue: the deterministic core.
//!
//! Time is an argument. The wheel reads no clock, takes no lock and starts no thread. The owner
//! passes the time to [`TimingWheel::advance`]. [`TimingWheel::next_expiration`] returns when to
//! call `advance` next.
//!
//! # Contract
//!
//! The [contract](crate::contract#the-wheel) has the promises. Here too, *now* is the tick of the
//! latest `advance` or `observe`. `expired_to` is the tick up to which timeouts have expired:
//! *now*, or an earlier tick while timeouts are due. `check_invariants` checks the promises as far
//! as one state of a wheel can show them.
//!
//! # Implementation
//!
//! A value stays in one slot of the slab. Its *record* has the deadline and the slot, and is in the
//! bucket of the deadline. `Geometry` computes that bucket: to *place* a timeout is to write its
//! record there. A bucket holds its only record itself, and several in chunks. `buckets` owns the
//! levels. Their `queue` orders the levels by the expiration of the first non-empty bucket of each,
//! so that the wheel finds due buckets in order. `advance` takes the records of a due bucket one by
//! one. A timeout that is due expires. A timeout that is not due *cascades*: the wheel places it
//! again, and those of a chunk of a crowded bucket together, so that their cache misses overlap.
//! Only a crowded bucket of level 1 is `opened`: the wheel lists its records by tick, because each
//! cascade would cost a cache miss. The hierarchy is scheme 7 of Varghese and Lauck.
//! The delay queue of buckets and the overflow wheels are those of Apache Kafka.
//!
//! Each end has one verb: a timeout *expires*, is *cancelled* or is *drained*. The slab then
//! removes its value, and the record is *dead*. A record has a *position*, a value has a *slot*, a
//! bucket has an *id*.

mod advance;
mod buckets;
mod invariants;
mod iter;
mod opened;
mod queue;
mod records;

use core::{fmt, hint::black_box};

pub use self::{
    advance::{Advance, Expired},
    iter::{Drain, Iter},
};
use self::{
    buckets::{Buckets, Geometry},
    records::{BucketId, CHUNK, Record},
};
pub use crate::slab::Key;
use crate::{
    error::{BuildError, InsertError},
    slab::{END, Slab},
    tick::Tick,
};

/// A set of timeouts, each with a value and a deadline, which expire in order as time advances.
///
/// The cost of an insert, cancel or reset does not depend on the number of pending timeouts, nor on
/// their deadlines. Any tick from 0 to `u64::MAX` is valid as a start, a deadline or *now*.
///
/// [`Ticks`](crate::Ticks) converts the time of a clock into ticks. The
/// [guide](crate::guide#an-event-loop) has an event loop.
///
/// The [contract](crate::contract#the-wheel) lists the promises of a wheel. Dropping the wheel
/// drops the pending values. As with a `Vec`, a panic in one drop does not prevent the others, and
/// a second one aborts.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, wheel::TimingWheel};
///
/// let mut wheel = TimingWheel::new(Tick::ZERO);
/// wheel.insert(Tick::new(10), "soon")?;
/// let request = wheel.insert(Tick::new(30), "request")?;
/// wheel.insert(Tick::new(31_536_000_000), "in a year of milliseconds")?;
///
/// assert_eq!(wheel.next_expiration(), Some(Tick::new(10)));
/// assert_eq!(wheel.advance(Tick::new(9)).count(), 0);
/// let due: Vec<_> = wheel.advance(Tick::new(10)).map(|expired| expired.value).collect();
/// assert_eq!(due, ["soon"]);
///
/// assert_eq!(wheel.cancel(request), Some("request"));
/// assert_eq!(wheel.next_expiration(), Some(Tick::new(31_536_000_000)));
/// # Ok::<_, delaywheel::InsertError<&str>>(())
/// ```
pub struct TimingWheel<T> {
    /// The values, tagged with the positions of their records.
    values: Slab<T>,
    /// The records: when each value is due.
    buckets: Buckets,
    max_pending: usize,
    /// The latest tick given to `advance` or `observe`, or the start.
    now: Tick,
    /// The tick up to which timeouts have expired: `now`, or an earlier tick while timeouts are
    /// due.
    ///
    /// No bucket is due before this tick.
    expired_to: Tick,
}

impl<T> TimingWheel<T> {
    /// Makes an empty wheel of the default size whose time starts at `start`. Allocates nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let wheel: TimingWheel<u64> = TimingWheel::new(Tick::new(1_000));
    /// assert_eq!(wheel.now(), Tick::new(1_000));
    /// assert!(wheel.is_empty());
    /// ```
    #[must_use]
    pub fn new(start: Tick) -> Self {
        let Ok(wheel) = WheelBuilder::new().build() else {
            unreachable!("the default settings are valid")
        };
        Self { now: start, expired_to: start, ..wheel }
    }

    /// Adds a timeout that expires at `deadline`.
    ///
    /// A deadline that has passed is replaced by [`now`](Self::now), or by an earlier tick while
    /// timeouts are due. The next [`advance`](Self::advance) expires the timeout, in the order of
    /// deadlines.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::new(100));
    /// let late = wheel.insert(Tick::new(7), "late")?;
    /// assert_eq!(wheel.deadline(late), Some(Tick::new(100)));
    /// assert_eq!(wheel.advance(Tick::new(100)).count(), 1);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InsertError`] hands the value back when
    /// [`max_pending`](WheelBuilder::max_pending) timeouts are pending.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized. Allocates at most a segment of 1024 slots, a segment of 1024
    /// records, a block of 32 buckets, and room in their tables. An insert copies other timeouts
    /// only while the wheel has less than one segment of slots.
    #[inline]
    pub fn insert(&mut self, deadline: Tick, value: T) -> Result<Key, InsertError<T>> {
        // Each call that is not inlined is the last step of its branch. So hardly a value has to
        // survive a call, and the compiler saves few registers.
        let slot = self.values.vacant();
        if slot == END || self.is_full() || self.expired_to < self.now {
            return self.insert_slowly(deadline, value);
        }
        let record = Record { deadline: deadline.max(self.expired_to), slot };
        let id = self.buckets.geometry.bucket(self.expired_to, record.deadline());
        match self.buckets.place_quickly(id, record) {
            Some(position) => Ok(self.values.fill(position, value)),
            None => Ok(self.insert_into(id, record, value)),
        }
    }

    /// Cancels a timeout and returns its value, or `None` if the key is dead.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 'a')?;
    /// assert_eq!(wheel.cancel(key), Some('a'));
    /// assert_eq!(wheel.cancel(key), None);
    /// assert_eq!(wheel.next_expiration(), None);
    /// # Ok::<_, delaywheel::InsertError<char>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized: one call in 13 moves up to three records to free memory. If
    /// the timeout was the first of a bucket that is expiring, the wheel searches for the next
    /// timeout of that bucket. It passes each cancelled timeout once. A call that moves records
    /// allocates memory for their new buckets if these have none.
    #[inline]
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let (_, position, value) = self.values.remove(key.index(), Some(key))?;
        self.remove(position);
        Some(value)
    }

    /// Moves a timeout to a new deadline, earlier or later, and returns the old one; `None` if the
    /// key is dead.
    ///
    /// The key stays valid. A deadline that has passed is replaced as in [`insert`](Self::insert).
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let session = wheel.insert(Tick::new(30), "session")?;
    /// assert_eq!(wheel.reset(session, Tick::new(60)), Some(Tick::new(30)));
    /// assert_eq!(wheel.advance(Tick::new(59)).count(), 0);
    /// assert_eq!(wheel.advance(Tick::new(60)).count(), 1);
    /// assert_eq!(wheel.reset(session, Tick::new(90)), None);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// A reset to a later deadline takes one store: the timeout moves when its bucket is due. A
    /// reset to an earlier deadline writes another record, in *O*(1) time, amortized.
    #[inline]
    pub fn reset(&mut self, key: Key, deadline: Tick) -> Option<Tick> {
        self.observe(self.now);
        let deadline = deadline.max(self.expired_to);
        let position = self.values.tag(key)?;
        let record = self.buckets.record_mut(position);
        let before = record.deadline();
        if deadline >= before {
            record.deadline = deadline;
        } else {
            self.remove(position);
            self.place(Record { deadline, slot: key.index() });
        }
        Some(before)
    }

    /// Returns the value of a timeout, or `None` if the key is dead. Takes *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 7)?;
    /// assert_eq!(wheel.get(key), Some(&7));
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.values.get(key)
    }

    /// Returns a mutable reference to the value of a timeout, or `None` if the key is dead. Takes
    /// *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 7)?;
    /// *wheel.get_mut(key).unwrap() += 1;
    /// assert_eq!(wheel.cancel(key), Some(8));
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.values.get_mut(key)
    }

    /// Returns the deadline of a timeout, or `None` if the key is dead. Takes *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), ())?;
    /// assert_eq!(wheel.deadline(key), Some(Tick::new(5)));
    /// # Ok::<_, delaywheel::InsertError<()>>(())
    /// ```
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<Tick> {
        Some(self.buckets.record(self.values.tag(key)?).deadline())
    }

    /// Advances the time to `now`, and returns an iterator that removes the due timeouts.
    ///
    /// If the iterator is dropped early, the remaining timeouts stay due, and the next `advance`
    /// yields them. Until then, they can still be cancelled and reset. [`Advance::limit`] bounds
    /// the work of one call.
    ///
    /// A `now` before the latest one counts as the latest one. [`observe`](Self::observe) advances
    /// the time without removing timeouts.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// for deadline in [30, 10, 20, 40] {
    ///     wheel.insert(Tick::new(deadline), deadline)?;
    /// }
    /// let due: Vec<_> = wheel.advance(Tick::new(30)).map(|expired| expired.value).collect();
    /// assert_eq!(due, [10, 20, 30]);
    /// # Ok::<_, delaywheel::InsertError<u64>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time when no timeout is due. A timeout that expires costs *O*(1), amortized. It
    /// may first move to a finer level, at most once for each level below the one that `insert` or
    /// the last `reset` placed it in.
    #[inline]
    pub fn advance(&mut self, now: Tick) -> Advance<'_, T> {
        // `Advance::next` advances `expired_to`.
        self.now = now.max(self.now);
        Advance::new(self)
    }

    /// Advances the time to `now` without removing timeouts.
    ///
    /// Due timeouts stay pending until the next [`advance`](Self::advance). Call `observe` before
    /// an insert or reset whose deadline may have passed by now. Unless a timeout is due, the wheel
    /// then replaces such a deadline by this `now`, and not by that of the latest `advance`. If
    /// `now` is before the latest one, nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// wheel.observe(Tick::new(100));
    /// assert_eq!(wheel.now(), Tick::new(100));
    ///
    /// let late = wheel.insert(Tick::new(7), "late")?;
    /// assert_eq!(wheel.deadline(late), Some(Tick::new(100)));
    /// wheel.observe(Tick::new(200));
    /// assert_eq!(wheel.len(), 1);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time.
    #[inline]
    pub fn observe(&mut self, now: Tick) {
        self.now = now.max(self.now);
        // While a timeout may be due, `expired_to` stays: no bucket may be due before it.
        if self.expired_to < self.now && self.next_expiration().is_none_or(|next| next > self.now) {
            self.expired_to = self.now;
        }
    }

    /// Returns the least tick at which [`advance`](Self::advance) would expire or move timeouts;
    /// `None` if and only if no timeout is pending.
    ///
    /// The result is never later than the least deadline. It may be earlier in two cases. The
    /// timeout with the least deadline of its bucket was cancelled or reset to a later deadline. Or
    /// the wheel must spread a crowded bucket before its first deadline. If a timeout is due, the
    /// returned tick is not after [`now`](Self::now).
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// assert_eq!(wheel.next_expiration(), None);
    /// wheel.insert(Tick::new(1 << 40), "in 34 years of milliseconds")?;
    /// assert_eq!(wheel.next_expiration(), Some(Tick::new(1 << 40)));
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time.
    #[inline]
    #[must_use]
    pub fn next_expiration(&self) -> Option<Tick> {
        self.buckets.next_expiration()
    }

    /// Returns the latest tick given to [`advance`](Self::advance) or [`observe`](Self::observe),
    /// or the start.
    #[must_use]
    pub const fn now(&self) -> Tick {
        self.now
    }

    /// Returns the number of pending timeouts, including those that are due but not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether no timeout is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees memory that pending timeouts do not need.
    ///
    /// Keys stay valid, and dead keys stay dead. Values of up to 24 bytes keep their segment of
    /// 1024 slots. Larger values move into smaller blocks. The memory goes to the allocator in
    /// pieces of a few kilobytes. An allocator may keep these for the process, as that of glibc
    /// does.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(1 << 40), "far")?;
    /// wheel.cancel(key);
    /// wheel.shrink();
    /// assert!(wheel.is_empty() && wheel.cancel(key).is_none());
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes time proportional to the memory in use.
    pub fn shrink(&mut self) {
        self.values.shrink();
        self.buckets.shrink();
    }

    /// Frees memory of values, but not of records, if few are left in the segment of a removed one.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn close_sparse(&mut self, removed: Key) {
        self.values.close_sparse(removed.index());
    }

    /// Frees the slots of an empty wheel, and takes its other memory, so that the caller can free
    /// it without a lock. Dead keys stay dead. *O*(slots).
    #[cfg(feature = "std")]
    pub(crate) fn take_memory(&mut self) -> impl Send + use<T> {
        debug_assert!(self.is_empty(), "a timeout would be lost");
        self.values.shrink();
        let empty = Buckets::new(self.buckets.geometry.clone());
        core::mem::replace(&mut self.buckets, empty)
    }

    /// Returns whether `max_pending` timeouts are pending.
    #[inline]
    fn is_full(&self) -> bool {
        self.values.len() >= self.max_pending
    }

    /// Adds a timeout unless the wheel is full. Adds a slot if none is vacant, and moves
    /// `expired_to` if no timeout is due.
    #[inline(never)]
    fn insert_slowly(&mut self, deadline: Tick, value: T) -> Result<Key, InsertError<T>> {
        if self.is_full() || !self.values.make_room() {
            return Err(InsertError::full(value));
        }
        self.observe(self.now);
        let deadline = deadline.max(self.expired_to);
        let record = Record { deadline, slot: self.values.vacant() };
        let id = self.buckets.geometry.bucket(self.expired_to, deadline);
        Ok(self.insert_into(id, record, value))
    }

    /// Adds a timeout with this record, which may change more of its bucket than the newest chunk.
    #[inline(never)]
    fn insert_into(&mut self, id: BucketId, record: Record, value: T) -> Key {
        let position = self.add_record(id, record);
        self.values.fill(position, value)
    }

    /// Puts the timeout in a slot into the bucket of its deadline.
    ///
    /// Not inlined, because a reset to a later deadline does not need it.
    #[inline(never)]
    fn place(&mut self, record: Record) {
        let id = self.buckets.geometry.bucket(self.expired_to, record.deadline());
        let position = match self.buckets.place_quickly(id, record) {
            Some(position) => position,
            None => self.add_record(id, record),
        };
        self.values.set_tag(record.slot, position);
    }

    /// Adds a record to a bucket. Returns its position.
    #[inline]
    fn add_record(&mut self, id: BucketId, record: Record) -> u32 {
        let (position, other) = self.buckets.place(id, record);
        if let Some(other) = other {
            self.values.set_tag(other, position - 1);
        }
        position
    }

    /// Removes a record. If few live records are left in its chunk, the wheel places them again.
    #[inline]
    fn remove(&mut self, position: u32) {
        if self.buckets.remove(position) {
            self.merge(position / CHUNK);
        }
    }

    #[inline(never)]
    fn merge(&mut self, chunk: u32) {
        let (newer, _) = self.buckets.records.neighbours(chunk);
        if newer.is_some() {
            self.spread(chunk);
        }
    }

    /// Moves the records of a chunk to the buckets that their deadlines have by now. Returns their
    /// number.
    fn spread(&mut self, chunk: u32) -> u64 {
        let records = self.buckets.take(chunk);
        // Reads all slots first, so that their cache misses overlap.
        for record in records.clone() {
            black_box(self.values.key_at(record.slot));
        }
        records.map(|record| self.place(record)).count() as u64
    }
}

impl<T> Default for TimingWheel<T> {
    /// Makes an empty wheel of the default size whose time starts at 0.
    fn default() -> Self {
        Self::new(Tick::ZERO)
    }
}

impl<T> fmt::Debug for TimingWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimingWheel")
            .field("now", &self.now)
            .field("size", &self.buckets.geometry.size())
            .field("pending", &self.len())
            .field("next_expiration", &self.next_expiration())
            .finish_non_exhaustive()
    }
}

/// Default number of buckets of a level. Decision 0014 has measurements.
const DEFAULT_SIZE: usize = 256;

/// Builder for a [`TimingWheel`].
///
/// # Examples
///
/// ```
/// use delaywheel::wheel::{TimingWheel, WheelBuilder};
///
/// let wheel: TimingWheel<u64> = WheelBuilder::new().size(200).max_pending(1000).build()?;
/// assert!(wheel.is_empty());
/// # Ok::<_, delaywheel::BuildError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct WheelBuilder {
    size: usize,
    max_pending: u32,
}

impl WheelBuilder {
    /// Starts with the default settings.
    pub const fn new() -> Self {
        Self { size: DEFAULT_SIZE, max_pending: u32::MAX }
    }

    /// Sets the number of buckets of each level, 2 to 65536. `build` rounds it up to a power of
    /// two. Default 256.
    ///
    /// A larger wheel cascades less and takes more memory: 24 bytes a bucket, allocated by 32
    /// buckets when a timeout first needs one of them.
    pub const fn size(mut self, buckets: usize) -> Self {
        self.size = buckets;
        self
    }

    /// Sets how many timeouts may be pending at once. Default `u32::MAX`; a wheel can address
    /// 2^32 - 2^20 of them. The wheel panics if they need more than 2^28 - 2^16 chunks of 16
    /// records, which take more than 50 GB.
    pub const fn max_pending(mut self, timeouts: u32) -> Self {
        self.max_pending = timeouts;
        self
    }

    /// Makes the wheel, whose time starts at 0: call [`TimingWheel::observe`] for a later start.
    /// Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError::SizeOutOfRange`] if the size is not in 2..=65536.
    pub fn build<T>(self) -> Result<TimingWheel<T>, BuildError> {
        Ok(TimingWheel {
            values: Slab::new(),
            buckets: Buckets::new(Geometry::new(self.size)?),
            max_pending: self.max_pending as usize,
            now: Tick::ZERO,
            expired_to: Tick::ZERO,
        })
    }
}

impl Default for WheelBuilder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;

    impl<T> TimingWheel<T> {
        /// Makes an empty wheel whose only slot has had almost 2^31 timeouts.
        pub(crate) fn worn() -> Self {
            Self { values: Slab::worn(), ..Self::default() }
        }

        /// Returns the number of slots that take memory.
        pub(crate) fn held(&self) -> usize {
            self.values.held()
        }
    }
}
