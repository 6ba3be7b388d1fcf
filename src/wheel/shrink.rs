//! `shrink`: frees memory that no pending timeout uses.

use alloc::vec::Vec;

use super::{
    TimingWheel,
    arena::Arena,
    cancelled::Worn,
    chunks::{Chunks, NIL, Position, bits},
    geometry::BucketId,
    hierarchy::Hierarchy,
    level::{Bucket, Level},
    queue::BucketQueue,
    sparse::SparseOrder,
};

impl<T> TimingWheel<T> {
    /// Frees memory that pending timeouts do not need, without moving their values.
    ///
    /// Keys stay valid, and dead keys stay dead. Also places the latest timeouts in levels.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(1 << 40), "far")?;
    /// wheel.cancel(key);
    /// wheel.shrink();
    /// assert_eq!(wheel.levels(), 0);
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes time proportional to the memory in use.
    pub fn shrink(&mut self) {
        self.place_nursery();
        let Self { arena, hierarchy } = self;
        hierarchy.nursery.close();
        arena.shrink();
        hierarchy.rewrite(arena);
        hierarchy.shrink_levels();
        hierarchy.find_next_due();
    }

    /// Takes the memory of an empty wheel, so that the caller can free it without a lock. Dead keys
    /// stay dead. *O*(1).
    ///
    /// `newest` is the highest generation that a key ever had. Returns `None` if a timeout is
    /// pending, or if `newest` is more than half of all generations.
    #[cfg(feature = "std")]
    pub(crate) fn take_memory(&mut self, newest: u32) -> Option<Self> {
        let arena = self.arena.without_slots(newest)?;
        let Hierarchy { geometry, now, expired_to, cascades, .. } = &self.hierarchy;
        let mut hierarchy = Hierarchy::new(geometry.clone(), *now);
        (hierarchy.expired_to, hierarchy.cascades) = (*expired_to, *cascades);
        Some(core::mem::replace(self, Self { arena, hierarchy }))
    }
}

impl Hierarchy {
    /// Moves all live records to new chunks, without gaps.
    fn rewrite<T>(&mut self, arena: &mut Arena<T>) {
        let mut to = Chunks::new();
        let mut emptied = Vec::new();
        let mut moved = |slot, position| arena.set_position(slot, position);
        for (index, level) in self.levels.iter_mut().enumerate() {
            let occupied = level.iter_mut().enumerate().filter(|(_, bucket)| !bucket.is_empty());
            for (number, bucket) in occupied {
                let id = BucketId::new(index, number);
                rewrite_bucket(id, bucket, &self.chunks, &mut to, &mut moved);
                if bucket.is_empty() {
                    emptied.push(id);
                }
            }
        }
        self.runs.rewrite(&self.chunks, &mut to, moved);
        self.chunks = to;
        self.prefetched = NIL;
        self.worn = Worn::new();
        self.sparse = SparseOrder::new();
        for id in emptied {
            self.mark_empty(id);
        }
    }

    /// Frees the levels without timeouts.
    fn shrink_levels(&mut self) {
        self.queue = BucketQueue::new();
        for (index, level) in self.levels.iter_mut().enumerate() {
            level.queued = level.first().map(|bucket| level.bucket(bucket).expiration);
            match level.queued {
                Some(expiration) => self.queue.set(index, expiration),
                None => *level = Level::new(),
            }
        }
        let last = self.levels.iter().rposition(|level| level.queued.is_some());
        // The level of a run stays, although it may have no bucket: `shape` reports the run there.
        self.levels.truncate(last.map_or(0, |last| last + 1).max(self.runs.levels()));
        self.levels.shrink_to_fit();
    }
}

fn rewrite_bucket(
    id: BucketId,
    bucket: &mut Bucket,
    from: &Chunks,
    to: &mut Chunks,
    moved: &mut impl FnMut(u32, Position),
) {
    let mut written = bucket.written();
    let mut chunk = bucket.newest();
    bucket.set_newest(NIL);
    while chunk != NIL {
        for offset in bits(from.mask(chunk) & written) {
            let record = from.record(Position::new(chunk, offset));
            let position = bucket.reserve_or_allocate(id, to);
            to.write(position, record.deadline(), record.slot);
            moved(record.slot, position);
        }
        written = u16::MAX;
        chunk = from.next(chunk);
    }
}
