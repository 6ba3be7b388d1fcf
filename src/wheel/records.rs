//! What a bucket holds: a run of records, each the arena index of a timeout, four bytes long.
//!
//! A record carries no deadline and no generation: it is a hint to look at a timeout, and the
//! timeout itself says whether it still rests in this bucket. So a timeout that leaves its bucket
//! need not touch the record, which goes stale and is dropped when the run is next walked or swept.
//!
//! The newest records of a run lie in the bucket itself. When there are too many they spill, a full
//! chunk at a time, into a pool that all buckets share. Walking a run reads memory in order, where
//! a linked list of timeouts would wait for one cache miss after the other; giving up a run is one
//! splice, however long it is; and a bucket with few timeouts costs no memory besides its own.

use core::mem;

use crate::segments::Segments;

/// Records in a chunk: with the link it fills a cache line.
pub(super) const CHUNK: usize = 15;

/// The end of a list of chunks.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Chunk {
    records: [u32; CHUNK],
    next: u32,
}

const _: () = assert!(size_of::<Chunk>() == 64);

/// Chunks that are allocated at a time: 16 KiB.
const SEGMENT: usize = 256;

/// All chunks of a wheel, those in runs and those waiting for use.
#[derive(Debug)]
pub(super) struct Pool {
    chunks: Segments<Chunk, SEGMENT>,
    /// Head of the list of unused chunks, or `NIL`.
    free: u32,
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self { chunks: Segments::new(), free: NIL }
    }

    fn allocate(&mut self, records: [u32; CHUNK]) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        let id = self.free;
        let chunk = self.chunk_mut(id);
        let next = mem::replace(&mut chunk.next, NIL);
        chunk.records = records;
        self.free = next;
        id
    }

    #[cold]
    fn grow(&mut self) {
        let added = self.chunks.grow(|id| Chunk { records: [0; CHUNK], next: id + 1 });
        let added = added.expect("chunks hold the records of more timeouts than there can be");
        self.release(added.start, added.end - 1);
    }

    /// Takes back the chunks from `first` to `last`, which are linked.
    fn release(&mut self, first: u32, last: u32) {
        self.chunk_mut(last).next = self.free;
        self.free = first;
    }

    #[inline]
    fn chunk(&self, id: u32) -> &Chunk {
        self.chunks.get(id).expect("a run links to chunks that exist")
    }

    #[inline]
    fn chunk_mut(&mut self, id: u32) -> &mut Chunk {
        self.chunks.get_mut(id).expect("a run links to chunks that exist")
    }

    /// Number of chunks, and how many of them are unused. *O*(n).
    pub(super) fn count(&self) -> (usize, usize) {
        let unused = self.chain(self.free).count();
        (self.chunks.iter().count(), unused)
    }

    /// The chunks of a list, with their ids.
    fn chain(&self, first: u32) -> impl Iterator<Item = &Chunk> {
        let head = self.chunks.get(first);
        core::iter::successors(head, |chunk| self.chunks.get(chunk.next))
    }
}

/// A first-in first-out queue of records.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The newest records; those before `back`, and from `front` on if nothing has spilled.
    open: [u32; CHUNK],
    /// The chunk with the oldest records, or `NIL` if nothing has spilled.
    first: u32,
    /// The chunk that spilled last.
    last: u32,
    len: u32,
    /// Position of the oldest record, in the first chunk or else in `open`.
    front: u8,
    /// Position after the newest record, in `open`.
    back: u8,
}

impl Run {
    pub(super) const fn new() -> Self {
        Self { open: [0; CHUNK], first: NIL, last: NIL, len: 0, front: 0, back: 0 }
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) const fn has_spilled(&self) -> bool {
        self.first != NIL
    }

    /// Whether there must be made room before the next push.
    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.back as usize >= CHUNK
    }

    /// Adds a record, for which there is room.
    #[inline]
    pub(super) fn push(&mut self, record: u32) {
        self.open[usize::from(self.back)] = record;
        self.back += 1;
        self.len += 1;
    }

    /// Makes room for at least one record; by spilling, unless there is room at the front.
    pub(super) fn make_room(&mut self, pool: &mut Pool) {
        if self.has_spilled() || self.front == 0 {
            self.spill(pool);
        } else {
            self.open.copy_within(usize::from(self.front).., 0);
            self.back -= self.front;
            self.front = 0;
        }
    }

    fn spill(&mut self, pool: &mut Pool) {
        let chunk = pool.allocate(self.open);
        if self.has_spilled() {
            pool.chunk_mut(self.last).next = chunk;
        } else {
            self.first = chunk;
        }
        self.last = chunk;
        self.back = 0;
    }

    #[inline]
    pub(super) fn pop(&mut self, pool: &mut Pool) -> Option<u32> {
        let record = *self.oldest(pool).first()?;
        self.skip(pool, 1);
        Some(record)
    }

    /// Drops the `count` oldest records, which lie together.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "`count` is no more than a chunk holds")]
    fn skip(&mut self, pool: &mut Pool, count: usize) {
        self.front += count as u8;
        self.len -= count as u32;
        if self.has_spilled() {
            if usize::from(self.front) == CHUNK {
                self.leave_chunk(pool);
            }
        } else if self.front == self.back {
            (self.front, self.back) = (0, 0);
        }
    }

    fn leave_chunk(&mut self, pool: &mut Pool) {
        let next = pool.chunk(self.first).next;
        pool.release(self.first, self.first);
        (self.first, self.front) = (next, 0);
    }

    /// The oldest records, as many as lie together.
    #[inline]
    pub(super) fn oldest<'a>(&'a self, pool: &'a Pool) -> &'a [u32] {
        let front = usize::from(self.front);
        match pool.chunks.get(self.first) {
            Some(chunk) => &chunk.records[front..],
            None => &self.open[front..usize::from(self.back)],
        }
    }

    /// Takes out the oldest records, as many as lie together, at most `limit`.
    pub(super) fn take_oldest(&mut self, pool: &mut Pool, limit: u32) -> Group {
        let start = usize::from(self.front);
        let (records, end) = match pool.chunks.get(self.first) {
            Some(chunk) => (chunk.records, CHUNK),
            None => (self.open, usize::from(self.back)),
        };
        let end = end.min(start + limit as usize);
        self.skip(pool, end - start);
        Group { records, start, end }
    }

    pub(super) fn append(&mut self, pool: &mut Pool, group: &Group) {
        for &record in &group.records[group.start..group.end] {
            if self.is_full() {
                self.make_room(pool);
            }
            self.push(record);
        }
    }

    /// A run in another pool of those records for which `keep` holds.
    pub(super) fn rewritten(
        &self,
        from: &Pool,
        to: &mut Pool,
        mut keep: impl FnMut(u32) -> bool,
    ) -> Self {
        let mut run = Self::new();
        for record in self.iter(from).filter(|&record| keep(record)) {
            if run.is_full() {
                run.make_room(to);
            }
            run.push(record);
        }
        run
    }

    /// Whether the oldest record is the first of those that lie together.
    #[inline]
    pub(super) const fn is_at_chunk(&self) -> bool {
        self.front == 0
    }

    /// Forgets all records. *O*(1).
    #[inline]
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        if self.has_spilled() {
            pool.release(self.first, self.last);
            self.first = NIL;
        }
        (self.len, self.front, self.back) = (0, 0, 0);
    }

    /// The records, oldest first.
    pub(super) fn iter<'a>(&'a self, pool: &'a Pool) -> impl Iterator<Item = u32> + 'a {
        let spilled = pool.chain(self.first).take(self.chunk_count());
        let records = spilled.flat_map(|chunk| chunk.records).chain(self.open);
        records.skip(usize::from(self.front)).take(self.len as usize)
    }

    /// Number of chunks that have spilled and not been left.
    pub(super) fn chunk_count(&self) -> usize {
        let spilled = self.len as usize + usize::from(self.front) - usize::from(self.back);
        spilled / CHUNK
    }
}

/// A few records taken out of a run: those from `start` to `end`.
#[derive(Debug)]
pub(super) struct Group {
    records: [u32; CHUNK],
    start: usize,
    end: usize,
}

impl Group {
    #[expect(clippy::cast_possible_truncation, reason = "a group is no longer than a chunk")]
    pub(super) const fn len(&self) -> u32 {
        (self.end - self.start) as u32
    }

    /// Drops the records for which `keep` does not hold; without a branch on which those are.
    #[inline]
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let mut kept = self.start;
        for position in self.start..self.end {
            let record = self.records[position];
            self.records[kept] = record;
            kept += usize::from(keep(record));
        }
        self.end = kept;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    #[test]
    fn runs_are_queues_and_return_their_chunks() {
        let mut pool = Pool::new();
        let mut runs = [(Run::new(), VecDeque::new()), (Run::new(), VecDeque::new())];
        let mut random = 1_u32;
        for record in 0..100_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (run, model) = &mut runs[(random >> 31) as usize];
            match (random >> 20) % 16 {
                0..9 => {
                    if run.is_full() {
                        run.make_room(&mut pool);
                    }
                    run.push(record);
                    model.push_back(record);
                }
                9..15 => assert_eq!(run.pop(&mut pool), model.pop_front()),
                _ if random % 64 == 0 => {
                    run.clear(&mut pool);
                    model.clear();
                }
                _ => assert!(run.iter(&pool).eq(model.iter().copied())),
            }
            assert_eq!(run.len() as usize, model.len());
        }
        let in_runs: usize = runs.iter().map(|(run, _)| run.chunk_count()).sum();
        let (all, unused) = pool.count();
        assert_eq!(all, in_runs + unused);
        for (run, _) in &mut runs {
            run.clear(&mut pool);
        }
        assert_eq!(pool.count(), (all, all));
    }
}
