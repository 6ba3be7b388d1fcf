//! Hierarchical timing wheels with a bucket delay queue: the deterministic core.
//!
//! Time is an argument. The wheel reads no clock, takes no lock and starts no thread. The owner
//! passes the time to [`TimingWheel::advance`]. [`TimingWheel::next_expiration`] returns when to
//! call it next.
//!
//! # Contract
//!
//! Here *now* is the tick of the latest `advance` or `observe`. `d(t)` is the deadline of timeout
//! `t`: the tick given to `insert` or `reset`. If timeouts had expired up to a later tick already,
//! `d(t)` is that later tick: *now*, or less while timeouts are due.
//!
//! 1. *Never early.* `t` expires in `advance(now)` only if `d(t) <= now`.
//! 2. *Never held.* After `advance(now)` has been drained, every timeout left has `d(t) > now`.
//! 3. *Exactly once.* A key ends once: its timeout expires, is cancelled or is drained. Then the
//!    key is dead, and the wheel does not use it for another timeout.
//! 4. *In order.* One `advance` yields non-decreasing `d`. So do all calls of `advance` of a wheel
//!    together, with insertions and resets in between. Equal deadlines expire in an order that
//!    depends only on the calls made. It need not be the order of insertion.
//! 5. *Bounded.* A step expires one timeout, moves one to a finer level, or gathers up to 16 of one
//!    bucket to be sorted. One step for each bucket sorts at most 8192, or divides them by tick.
//!    The first step of an `advance` also places up to 60 of the latest timeouts in levels. No step
//!    is proportional to the time skipped or to the number of empty buckets.
//! 6. *No surprise.* `next_expiration()` is the least tick at which `advance` would expire, move or
//!    sort a timeout. It is never later than the least deadline, and `None` if and only if the
//!    wheel is empty. An emptied bucket leaves no wake-up behind.
//!
//! [`TimingWheel::check_invariants`] checks the part of this that one state of a wheel shows.
//!
//! # Implementation
//!
//! Values live in the `arena` and do not move. Each has a *record* with its deadline and slot: in
//! the `nursery` at first, then in the `chunks` of a bucket. `geometry` computes the level and the
//! bucket of a deadline. The `hierarchy` owns the levels, and its `queue` holds the first bucket of
//! each. `advance` takes due buckets in that order. A `sparse` one expires in place, and a crowded
//! one is sorted into a `run`; its timeouts expire from there. The records of cancelled timeouts
//! wait in `cancelled`, and `merge` removes them 16 at a time, and frees chunks that are nearly
//! empty. The hierarchy is scheme 7 of Varghese and Lauck. The delay queue of buckets and the
//! overflow wheels are those of Apache Kafka.
//!
//! Each end has one verb: a timeout *expires*, is *cancelled* or is *drained*. The arena and the
//! hierarchy then *remove* its value and its record: the slot becomes *vacant*, and the bit of the
//! record is *cleared*. A chunk without a live record is *freed*. A bucket without a chunk is
//! *marked as empty*. To *place* a timeout is to put its record into the bucket of its deadline. A
//! record has a *position*, a value has a *slot*, a bucket has an *id*.

mod advance;
mod arena;
mod builder;
mod cancelled;
mod chunks;
mod drain;
mod geometry;
mod hierarchy;
mod invariants;
mod iter;
mod level;
mod merge;
mod next_due;
mod nursery;
mod parts;
mod queue;
mod run;
mod shape;
mod shrink;
mod sparse;

pub use self::{
    advance::{Advance, Expired},
    arena::Key,
    builder::WheelBuilder,
    drain::Drain,
    iter::Iter,
    shape::{BucketShape, LevelShape, Shape},
};
use self::{arena::Arena, chunks::Owner, hierarchy::Hierarchy, nursery::Nursery};
use crate::{error::InsertError, tick::Tick};

/// A set of timeouts, each with a value and a deadline, which expire in order as time advances.
///
/// The cost of an insert, cancel or reset does not depend on the number of pending timeouts, nor on
/// their deadlines. Any tick from 0 to `u64::MAX` is valid as a start, a deadline or *now*.
///
/// [`Ticks`](crate::Ticks) converts the time of a clock into ticks. The
/// [guide](crate::guide#an-event-loop) has an event loop.
///
/// The [contract](self#contract) lists the promises of a wheel. Dropping the wheel drops the
/// pending values. As with a `Vec`, a panic in one drop does not prevent the others, and a second
/// one aborts.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TimingWheel};
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
    /// The values, and the positions of their records.
    arena: Arena<T>,
    /// The records, and the bucket or run that is due first.
    hierarchy: Hierarchy,
}

impl<T> TimingWheel<T> {
    /// Makes an empty wheel of the default size whose time starts at `start`. Allocates nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let wheel: TimingWheel<u64> = TimingWheel::new(Tick::new(1_000));
    /// assert_eq!(wheel.now(), Tick::new(1_000));
    /// assert!(wheel.is_empty());
    /// ```
    #[must_use]
    pub fn new(start: Tick) -> Self {
        match WheelBuilder::new().start(start).build() {
            Ok(wheel) => wheel,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }

    /// Adds a timeout that expires at `deadline`.
    ///
    /// A deadline that has passed is replaced by [`now`](Self::now), or by less while timeouts are
    /// due: the next [`advance`](Self::advance) expires the timeout, in the order of deadlines.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
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
    /// Takes *O*(1) time, amortized: one call in 15 may place up to 60 of the latest timeouts in
    /// levels. Allocates at most one segment of slots (1024), one of records (4096), the buckets up
    /// to those of the deadlines, and room in their tables. A timeout is copied only while the
    /// wheel has fewer than one segment of them.
    #[expect(clippy::inline_always, reason = "a call costs 30 of 130 instructions")]
    #[inline(always)]
    pub fn insert(&mut self, deadline: Tick, value: T) -> Result<Key, InsertError<T>> {
        // The only call is the last, so the compiler saves no registers.
        let Self { arena, hierarchy } = self;
        if arena.has_room() && hierarchy.takes_records() {
            let deadline = deadline.max(hierarchy.expired_to);
            if let Some(position) = hierarchy.reserve(deadline) {
                let vacancy = arena.vacancy();
                hierarchy.chunks.write(position, deadline, vacancy.index);
                return Ok(vacancy.fill(value, position));
            }
        }
        self.insert_slowly(deadline, value)
    }

    /// Like [`insert`](Self::insert). Also makes room, opens buckets and notes the next expiration.
    #[inline(never)]
    fn insert_slowly(&mut self, deadline: Tick, value: T) -> Result<Key, InsertError<T>> {
        if !self.arena.has_room() && !self.make_room() {
            return Err(InsertError::full(value));
        }
        self.hierarchy.update_expired_to();
        let deadline = deadline.max(self.hierarchy.expired_to);
        if self.hierarchy.nursery.is_open() {
            return Ok(self.insert_into_nursery(deadline, value));
        }
        let vacancy = self.arena.vacancy();
        let position = self.hierarchy.place(deadline, vacancy.index);
        Ok(vacancy.fill(value, position))
    }

    /// Cancels a timeout and returns its value, or `None` if the key is dead.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
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
    /// Takes *O*(1) time, amortized: one call in 16 removes the records of 16 timeouts, and moves
    /// up to 12 others to free memory. If the timeout determined the next expiration, the wheel
    /// searches for the next one, past emptied buckets and cancelled timeouts. It passes each of
    /// these once. While a bucket of more than 8192 timeouts expires, a cancel also visits 16 of
    /// them. Allocates nothing.
    #[inline]
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let (value, position) = self.arena.remove(key)?;
        self.remove_record(position);
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
    /// use delaywheel::{Tick, TimingWheel};
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
    /// Takes one store in two cases. The timeout is one of the latest, which are not in a level
    /// yet. Or the new deadline is later, and the wheel has not sorted the timeout's bucket. In the
    /// second case the timeout moves when its bucket is due. Otherwise, a reset costs a
    /// [`cancel`](Self::cancel) and an [`insert`](Self::insert).
    #[inline]
    pub fn reset(&mut self, key: Key, deadline: Tick) -> Option<Tick> {
        let Self { arena, hierarchy } = self;
        hierarchy.update_expired_to();
        let deadline = deadline.max(hierarchy.expired_to);
        let position = arena.position(key)?;
        let record = hierarchy.chunks.record(position);
        let previous = record.deadline();
        if Nursery::contains(position) {
            hierarchy.chunks.write(position, deadline, record.slot);
            hierarchy.nursery.move_to(position, deadline);
            return Some(previous);
        }
        let is_sorted = hierarchy.chunks.owner(position.chunk()) == Owner::NoBucket;
        if deadline >= previous && !is_sorted {
            hierarchy.sparse.drop_order(position.chunk());
            hierarchy.chunks.write(position, deadline, record.slot);
        } else if deadline != previous {
            let moved = hierarchy.place_again(deadline, record.slot);
            arena.set_position(record.slot, moved);
            self.remove_record(position);
        }
        Some(previous)
    }

    /// Returns the value of a timeout, or `None` if the key is dead. Takes *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 7)?;
    /// assert_eq!(wheel.get(key), Some(&7));
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.arena.get(key)
    }

    /// Returns a mutable reference to the value of a timeout, or `None` if the key is dead. Takes
    /// *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 7)?;
    /// *wheel.get_mut(key).unwrap() += 1;
    /// assert_eq!(wheel.cancel(key), Some(8));
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.arena.get_mut(key)
    }

    /// Returns the deadline of a timeout, or `None` if the key is dead. Takes *O*(1) time.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), ())?;
    /// assert_eq!(wheel.deadline(key), Some(Tick::new(5)));
    /// # Ok::<_, delaywheel::InsertError<()>>(())
    /// ```
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<Tick> {
        let position = self.arena.position(key)?;
        Some(self.hierarchy.chunks.record(position).deadline())
    }

    /// Advances the time to `now`, and returns an iterator that removes the due timeouts.
    ///
    /// If the iterator is dropped early, the remaining timeouts stay due, and the next `advance`
    /// yields them. They can still be cancelled and reset. [`Advance::limit`] bounds the work of
    /// one call.
    ///
    /// A `now` before the latest one counts as the latest one. [`observe`](Self::observe) advances
    /// the time without removing timeouts.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
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
    /// Takes *O*(1) time when no timeout is due. A timeout that expires costs *O*(log r) when r
    /// timeouts are sorted together, at most 8192. If its bucket held more, the timeout may first
    /// move to a finer level. It moves at most once for each level below the one that `insert` or
    /// the last `reset` placed it in.
    #[inline]
    pub fn advance(&mut self, now: Tick) -> Advance<'_, T> {
        // `Advance::next` advances `expired_to`.
        self.hierarchy.now = now.max(self.hierarchy.now);
        Advance::new(self)
    }

    /// Advances the time to `now` without removing timeouts.
    ///
    /// Due timeouts stay pending until the next [`advance`](Self::advance). Call `observe` before
    /// an insert or reset whose deadline may have passed by now: the deadline then counts from
    /// `now` instead of from the latest `advance`. A `now` before the latest one changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
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
        self.hierarchy.observe(now);
    }

    /// Returns the least tick at which [`advance`](Self::advance) would expire, move or sort
    /// timeouts; `None` if and only if none is pending.
    ///
    /// It is never later than the least deadline. It may be earlier in two cases. The timeout with
    /// the least deadline of its bucket was cancelled or reset to a later deadline. Or the wheel
    /// must sort a crowded bucket before its first deadline. If a timeout is due, the returned tick
    /// is not after [`now`](Self::now).
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
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
    /// Takes *O*(1) time. It reads up to 60 records if the earliest of the latest timeouts was
    /// cancelled or reset.
    #[inline]
    #[must_use]
    pub fn next_expiration(&self) -> Option<Tick> {
        self.hierarchy.next_expiration()
    }

    /// Returns the latest tick given to [`advance`](Self::advance) or [`observe`](Self::observe),
    /// or the start.
    #[must_use]
    pub const fn now(&self) -> Tick {
        self.hierarchy.now
    }

    /// Returns the number of pending timeouts, including those that are due but not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Returns whether no timeout is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Default for TimingWheel<T> {
    /// Makes an empty wheel of the default size whose time starts at 0.
    fn default() -> Self {
        Self::new(Tick::ZERO)
    }
}
