//! What a bucket holds: a run of records, each the arena index of a timeout, four bytes long.
//!
//! Runs are queues of fixed-size chunks out of one pool. Walking a run reads memory in order, where a
//! linked list of timeouts would wait for one cache miss after the other, and giving up a run is
//! one splice, however long it is. A record carries no deadline and no generation: it is a hint to look
//! at a timeout, and the timeout itself says whether it still rests in this bucket. So a timeout that
//! leaves its bucket need not touch the record, which goes stale and is dropped when the run is next
//! walked or swept.

use super::segments::Segments;

/// Records in a chunk: with the link it fills two cache lines.
const CAPACITY: u8 = 31;

/// The end of a list of chunks.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Chunk {
    records: [u32; CAPACITY as usize],
    next: u32,
}

/// All chunks of a wheel, those in runs and those waiting for use.
#[derive(Debug)]
pub(super) struct Pool {
    chunks: Segments<Chunk>,
    /// Head of the list of unused chunks, or `NIL`.
    free: u32,
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self { chunks: Segments::new(), free: NIL }
    }

    fn allocate(&mut self) -> u32 {
        if self.free == NIL {
            let chunk = Chunk { records: [0; CAPACITY as usize], next: NIL };
            let pushed = self.chunks.push(chunk);
            return pushed.expect("a chunk holds records of more timeouts than there can be");
        }
        let id = self.free;
        self.free = self.chunk(id).next;
        self.chunk_mut(id).next = NIL;
        id
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
        let mut unused = 0;
        let mut id = self.free;
        while id != NIL {
            unused += 1;
            id = self.chunk(id).next;
        }
        (self.chunks.iter().count(), unused)
    }
}

/// A first-in first-out queue of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Chunk that the oldest record is in, or `NIL` when there is none.
    first: u32,
    /// Chunk that the next record goes into.
    last: u32,
    len: u32,
    /// Position of the oldest record in `first`.
    front: u8,
    /// Position that the next record takes in `last`.
    back: u8,
}

impl Run {
    pub(super) const fn new() -> Self {
        Self { first: NIL, last: NIL, len: 0, front: 0, back: CAPACITY }
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) fn push(&mut self, pool: &mut Pool, record: u32) {
        if self.back == CAPACITY {
            self.extend(pool);
        }
        pool.chunk_mut(self.last).records[usize::from(self.back)] = record;
        self.back += 1;
        self.len += 1;
    }

    fn extend(&mut self, pool: &mut Pool) {
        let chunk = pool.allocate();
        if self.first == NIL {
            self.first = chunk;
        } else {
            pool.chunk_mut(self.last).next = chunk;
        }
        self.last = chunk;
        self.back = 0;
    }

    #[inline]
    pub(super) fn pop(&mut self, pool: &mut Pool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let chunk = pool.chunk(self.first);
        let (record, next) = (chunk.records[usize::from(self.front)], chunk.next);
        self.front += 1;
        self.len -= 1;
        if self.len == 0 {
            self.clear(pool);
        } else if self.front == CAPACITY {
            pool.release(self.first, self.first);
            self.first = next;
            self.front = 0;
        }
        Some(record)
    }

    /// Forgets all records. *O*(1).
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        if self.first != NIL {
            pool.release(self.first, self.last);
            *self = Self::new();
        }
    }

    /// The records, oldest first.
    pub(super) fn iter(self, pool: &Pool) -> impl Iterator<Item = u32> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let chunk = (rest.len > 0).then(|| pool.chunk(rest.first))?;
            let record = chunk.records[usize::from(rest.front)];
            rest.len -= 1;
            rest.front += 1;
            if rest.front == CAPACITY {
                (rest.first, rest.front) = (chunk.next, 0);
            }
            Some(record)
        })
    }

    /// Number of chunks in use.
    pub(super) fn chunk_count(self) -> usize {
        (usize::from(self.front) + self.len as usize).div_ceil(usize::from(CAPACITY))
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
                    run.push(&mut pool, record);
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
