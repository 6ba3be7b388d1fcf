//! The buckets of all levels, and when each is due.
//!
//! A bucket is due at its *expiration*:
//!
//! - While it is *sparse*, that is its least deadline, or less if that timeout has left. A single
//!   timeout a year ahead expires from its coarse bucket, without an earlier wake-up.
//! - Once it is *crowded*, it is the start of its range, as in Kafka. So the wheel moves its
//!   timeouts to finer levels before the first of them is due, and a burst is not late.

use alloc::{boxed::Box, vec::Vec};

use super::{
    geometry::{BucketId, Geometry},
    occupied::Occupied,
    opened::Opened,
    queue::BucketQueue,
    records::{CHUNK, NIL, ROOT, Record, Records},
};
use crate::tick::Tick;

/// Buckets that are allocated together: 512 bytes.
const BLOCK: usize = 32;

/// Largest range of a bucket whose records are listed by tick when it is due.
const OPENED: usize = 256;

/// Timeouts of one level whose deadlines fall into one range of ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    /// When the bucket is due: not after any deadline in it. Meaningless while it is empty.
    pub(super) expiration: Tick,
    /// The chunk that takes new records, or `NIL`.
    newest: u32,
    /// Whether it has had two chunks since it was empty.
    pub(super) is_crowded: bool,
}

const _: () = assert!(size_of::<Bucket>() == 16);

impl Bucket {
    const EMPTY: Self = Self { expiration: Tick::ZERO, newest: NIL, is_crowded: false };

    pub(super) const fn is_empty(&self) -> bool {
        self.newest == NIL
    }
}

/// The part of the wheel that is due first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    /// A bucket.
    Bucket(BucketId),
    /// The front record of the opened bucket.
    Opened(u32),
}

/// The records of a wheel in buckets, and the queue of the buckets that are due first.
#[derive(Debug)]
pub(super) struct Buckets {
    pub(super) geometry: Geometry,
    pub(super) records: Records,
    /// By number of the bucket. A block is made when a timeout first needs it.
    blocks: Vec<Option<Box<[Bucket; BLOCK]>>>,
    /// The levels up to the last that was ever used.
    levels: Vec<Occupied>,
    queue: BucketQueue,
    /// The bucket above all levels, whose range is all time. Its only chunk is the first one, and
    /// each new timeout takes a position there. So few timeouts, or those that come and go, make no
    /// chunk and no bucket.
    root: Bucket,
    pub(super) opened: Opened,
}

impl Buckets {
    pub(super) const fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            records: Records::new(),
            blocks: Vec::new(),
            levels: Vec::new(),
            queue: BucketQueue::new(),
            root: Bucket { expiration: Tick::MAX, newest: ROOT, is_crowded: false },
            opened: Opened::new(),
        }
    }

    /// Returns what is due first, and when; `None` if all buckets are empty. Nothing is due before
    /// `expired_to`.
    #[inline]
    pub(super) fn first_due(&self, expired_to: Tick) -> Option<(Due, Tick)> {
        let opened = self.opened.front();
        if let Some((tick, position)) = opened.filter(|&(tick, _)| tick <= expired_to) {
            return Some((Due::Opened(position), tick));
        }
        let bucket = self.queue.first();
        if let Some(root) = self.root_expiration() {
            let is_first = |other: Tick| root <= other;
            let (opened, bucket) = (opened.map(|first| first.0), bucket.map(|first| first.1));
            if opened.is_none_or(is_first) && bucket.is_none_or(is_first) {
                return Some((Due::Bucket(BucketId::ROOT), root));
            }
        }
        match opened {
            // A bucket that is being opened comes before the records that it has listed.
            Some((tick, position)) if bucket.is_none_or(|(_, expiration)| tick < expiration) => {
                Some((Due::Opened(position), tick))
            }
            _ => {
                let (level, expiration) = bucket?;
                let index = self.levels[level as usize].first()?;
                Some((Due::Bucket(self.geometry.id(level, index)), expiration))
            }
        }
    }

    /// Returns the tick at which something is due first.
    #[inline]
    pub(super) fn next_expiration(&self) -> Option<Tick> {
        let bucket = self.queue.first().map(|(_, expiration)| expiration);
        let opened = self.opened.front().map(|(tick, _)| tick);
        bucket.into_iter().chain(opened).chain(self.root_expiration()).min()
    }

    #[inline]
    pub(super) fn root_expiration(&self) -> Option<Tick> {
        self.records.bits(ROOT).filter(|&live| live != 0).map(|_| self.root.expiration)
    }

    /// Adds the record of a timeout to the bucket of its deadline. Returns its position.
    #[inline]
    pub(super) fn place(&mut self, expired_to: Tick, deadline: Tick, slot: u32) -> u32 {
        let position = match self.free_position(expired_to, deadline) {
            Some(position) => position,
            None => self.reserve(expired_to, deadline),
        };
        self.records.set(position, Record::new(deadline, slot));
        position
    }

    /// Adds the record of a timeout to the root. Returns its position; `None` if the root is full,
    /// or has no chunk.
    #[expect(clippy::inline_always, reason = "an insert makes no call on its usual path")]
    #[inline(always)]
    pub(super) fn place_in_root(&mut self, deadline: Tick, slot: u32) -> Option<u32> {
        let position = self.records.take(ROOT)?;
        self.root.expiration = self.root.expiration.min(deadline);
        self.records.set(position, Record::new(deadline, slot));
        Some(position)
    }

    /// Empties the root, which has no free position, and returns its records. Makes its chunk, if
    /// it has none.
    pub(super) fn empty_root(&mut self) -> impl Iterator<Item = Record> + use<> {
        let records = self.records.take_all(ROOT);
        if records.is_none() {
            self.records.allocate(BucketId::ROOT, NIL);
        }
        self.root.expiration = Tick::MAX;
        records.into_iter().flatten()
    }

    /// Takes a free position for a record, if that changes nothing else than its bucket.
    #[inline]
    fn free_position(&mut self, expired_to: Tick, deadline: Tick) -> Option<u32> {
        let id = self.geometry.bucket(expired_to, deadline);
        let block = self.blocks.get(id.number() / BLOCK)?.as_ref()?;
        let bucket = &block[id.number() % BLOCK];
        if deadline >= bucket.expiration { self.records.take(bucket.newest) } else { None }
    }

    /// Takes a free position for a record, and updates the expiration of its bucket.
    #[inline(never)]
    fn reserve(&mut self, expired_to: Tick, deadline: Tick) -> u32 {
        let id = self.geometry.bucket(expired_to, deadline);
        let before = match self.blocks.get_mut(id.number() / BLOCK) {
            Some(Some(block)) => block[id.number() % BLOCK],
            _ => *make(&mut self.blocks, id),
        };
        let is_full = self.records.bits(before.newest).is_none_or(|live| live == u16::MAX);
        let newest = if is_full { self.records.allocate(id, before.newest) } else { before.newest };
        let is_crowded = before.is_crowded || is_full && !before.is_empty();
        let bucket = self.bucket_mut(id);
        (bucket.newest, bucket.is_crowded) = (newest, is_crowded);
        if before.is_empty() {
            self.occupy(id);
        }
        let becomes = before.is_empty() || is_crowded != before.is_crowded;
        if becomes || deadline < before.expiration {
            let start = self.geometry.start(id, deadline);
            self.set_expiration(id, if is_crowded { start } else { deadline });
        }
        self.records.take(newest).expect("the newest chunk has room")
    }

    /// Marks a bucket as non-empty.
    fn occupy(&mut self, id: BucketId) {
        let (level, index) = self.geometry.split(id);
        if level as usize >= self.levels.len() {
            self.levels.resize_with(level as usize + 1, Occupied::new);
        }
        self.levels[level as usize].set(index);
    }

    /// Removes a record. Returns whether few live ones are left in its chunk.
    #[inline]
    pub(super) fn remove(&mut self, position: u32) -> bool {
        let left = self.records.clear(position);
        if position / CHUNK == ROOT {
            self.leave_root(position);
            return false;
        }
        if left == 0 {
            if let Some((id, older)) = self.records.free(position / CHUNK) {
                self.set_newest(id, older);
            }
        }
        if self.opened.is_front(position) {
            self.opened.find_front(&self.records);
        }
        left != 0 && self.records.are_few(left)
    }

    /// Updates the expiration of the root after a record was removed.
    fn leave_root(&mut self, position: u32) {
        let is_first = self.records.get(position).deadline() == self.root.expiration;
        if is_first || self.records.is_dead(ROOT) {
            let left = self.records.deadlines(ROOT).map(|(deadline, _)| deadline);
            self.root.expiration = left.min().unwrap_or(Tick::MAX);
        }
    }

    /// Sets the newest chunk of a bucket, after the one that was has left.
    fn set_newest(&mut self, id: BucketId, chunk: u32) {
        self.bucket_mut(id).newest = chunk;
        if chunk == NIL {
            self.bucket_mut(id).is_crowded = false;
            self.vacate(id);
        }
    }

    /// Returns a live record of a non-empty bucket.
    #[inline]
    pub(super) fn any_of(&self, id: BucketId) -> u32 {
        let newest = self.bucket(id).newest;
        self.records.live(newest).next().expect("a chunk has a live record")
    }

    /// Returns the positions of the records of a bucket.
    pub(super) fn records_of(&self, id: BucketId) -> impl Iterator<Item = u32> {
        let chunks = self.records.list(self.bucket(id).newest);
        chunks.flat_map(|chunk| self.records.live(chunk))
    }

    /// Returns whether the wheel lists the records of a due bucket by tick, instead of moving each
    /// to a finer level.
    pub(super) fn is_opened_when_due(&self, id: BucketId) -> bool {
        self.geometry.level(id) == 1 && self.geometry.size() <= OPENED
    }

    /// Lists the records of one chunk of a due bucket. Returns those that a reset has moved beyond
    /// its range.
    pub(super) fn open(&mut self, id: BucketId) -> impl Iterator<Item = u32> + use<> {
        let chunk = self.bucket(id).newest;
        let start = self.geometry.start(id, self.bucket(id).expiration);
        self.opened.begin(start, self.geometry.size());
        let mut beyond = [NIL; CHUNK as usize];
        for ((deadline, position), moved) in self.records.deadlines(chunk).zip(&mut beyond) {
            if !self.opened.push(deadline, position) {
                *moved = position;
            }
        }
        if let Some((id, next)) = self.records.detach(chunk) {
            self.set_newest(id, next);
        }
        self.opened.find_front(&self.records);
        beyond.into_iter().filter(|&position| position != NIL)
    }

    /// Marks a bucket as empty.
    fn vacate(&mut self, id: BucketId) {
        let (level, index) = self.geometry.split(id);
        let occupied = &mut self.levels[level as usize];
        if !occupied.clear(index) {
            return;
        }
        match occupied.first() {
            Some(next) => {
                let expiration = self.bucket(self.geometry.id(level, next)).expiration;
                self.queue.set(level, expiration);
            }
            None => self.queue.remove(level),
        }
    }

    /// Sets the expiration of a non-empty bucket.
    pub(super) fn set_expiration(&mut self, id: BucketId, expiration: Tick) {
        self.bucket_mut(id).expiration = expiration;
        let (level, index) = self.geometry.split(id);
        if id != BucketId::ROOT && self.levels[level as usize].first() == Some(index) {
            self.queue.set(level, expiration);
        }
    }

    #[inline]
    pub(super) fn bucket(&self, id: BucketId) -> &Bucket {
        if id == BucketId::ROOT {
            return &self.root;
        }
        match &self.blocks[id.number() / BLOCK] {
            Some(block) => &block[id.number() % BLOCK],
            None => unreachable!("{id:?} was never used"),
        }
    }

    #[inline]
    fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket {
        if id == BucketId::ROOT {
            return &mut self.root;
        }
        match &mut self.blocks[id.number() / BLOCK] {
            Some(block) => &mut block[id.number() % BLOCK],
            None => unreachable!("{id:?} was never used"),
        }
    }

    /// Frees blocks, levels and chunks without timeouts.
    #[inline]
    pub(super) fn shrink(&mut self) {
        for block in &mut self.blocks {
            block.take_if(|block| block.iter().all(Bucket::is_empty));
        }
        let last = self.blocks.iter().rposition(Option::is_some);
        self.blocks.truncate(last.map_or(0, |last| last + 1));
        self.blocks.shrink_to_fit();
        let last = self.levels.iter().rposition(|level| level.first().is_some());
        self.levels.truncate(last.map_or(0, |last| last + 1));
        self.levels.shrink_to_fit();
        self.queue.shrink();
        self.records.shrink();
        if self.opened.front().is_none() {
            self.opened = Opened::new();
        }
    }

    /// Returns the buckets with a chunk but the root.
    pub(super) fn occupied(&self) -> impl Iterator<Item = BucketId> {
        let blocks = (0..).step_by(BLOCK).zip(&self.blocks);
        let buckets = blocks
            .flat_map(|(first, block)| (first..).zip(block.iter().flat_map(|block| block.iter())));
        let occupied = buckets.filter(|(_, bucket)| !bucket.is_empty());
        occupied.map(|(number, _)| BucketId::new(number))
    }

    /// Panics unless levels and queue know the first bucket with a chunk of each level, and the
    /// next expiration is that of the first.
    #[inline]
    pub(super) fn check_invariants(&self) {
        let mut first = alloc::vec![None; self.levels.len()];
        for id in self.occupied() {
            let (level, index) = self.geometry.split(id);
            let level = level as usize;
            first[level] = first[level].or(Some((index, self.bucket(id).expiration)));
        }
        for (number, (level, first)) in (0..).zip(self.levels.iter().zip(&first)) {
            level.check_invariants();
            assert_eq!(level.first(), first.map(|(index, _)| index), "first bucket of {number}");
            let expiration = first.map(|(_, expiration)| expiration);
            assert_eq!(self.queue.expiration(number), expiration, "level {number} in the queue");
        }
        assert_eq!(self.queue.len(), first.iter().flatten().count(), "more levels are queued");
        let mut front = self.opened.hints().filter(|&(_, position)| self.records.is_live(position));
        let least = front.next().map(|(tick, _)| tick);
        assert_eq!(self.opened.front().map(|(tick, _)| tick), least, "another record is in front");
        let buckets = self.occupied().map(|id| self.bucket(id).expiration);
        assert_eq!(
            self.next_expiration(),
            buckets.chain(least).chain(self.root_expiration()).min(),
            "the queue and the buckets differ in the first expiration"
        );
    }
}

/// Makes the block of a bucket.
#[cold]
fn make(blocks: &mut Vec<Option<Box<[Bucket; BLOCK]>>>, id: BucketId) -> &mut Bucket {
    let number = id.number() / BLOCK;
    if number >= blocks.len() {
        blocks.reserve_exact(number + 1 - blocks.len());
        blocks.resize_with(number + 1, || None);
    }
    &mut blocks[number].insert(Box::new([Bucket::EMPTY; BLOCK]))[id.number() % BLOCK]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_plain_bucket_takes_the_short_path() {
        let mut buckets = Buckets::new(Geometry::new(64).unwrap());
        assert_eq!(buckets.place_in_root(Tick::new(100), 0), None, "the root has no chunk");
        assert_eq!(buckets.empty_root().count(), 0);
        assert_eq!(buckets.place_in_root(Tick::new(100), 0), Some(0));
        buckets.place(Tick::ZERO, Tick::new(100), 0);
        let mut is_short = |at| buckets.free_position(Tick::ZERO, Tick::new(at)).is_some();
        assert!(is_short(100) && is_short(101) && !is_short(99));
    }
}
