//! Runs: the timeouts of a due crowded bucket, sorted by deadline.
//!
//! Such a bucket is sorted once into a run and expires from there. Its records stay where they are,
//! and no slot is touched before its timeout expires. The run takes over the chunks of the bucket
//! and frees them at its end. So an entry is live if and only if its record's bit in the mask is
//! set.
//!
//! One run for each level is enough: a bucket becomes due when expiry has reached its range, and
//! then the run before it has ended.

use alloc::vec::Vec;

use super::{
    chunks::{CHUNK, Chunks, NIL, Owner, Position, bits},
    geometry::BucketId,
};
use crate::tick::{Tick, TickSpan};

/// Maximum number of timeouts of a run. Sorting them takes about 40 us. Further timeouts of the
/// bucket cascade.
pub(super) const LONGEST: usize = 8192;

/// Logarithm of the widest bucket, in ticks, that can be sorted: half an entry holds the ticks.
pub(super) const WIDEST: u32 = 32;

/// Number of entries above which a counting sort is faster than a comparison sort.
const COUNTED: usize = 48;

/// Ticks of the widest bucket that uses the counting sort.
const COUNTERS: usize = 256;

/// Ticks since the start of the bucket in the upper half, position of the record in the lower half.
type Entry = u64;

#[derive(Debug, Default)]
struct Run {
    entries: Vec<Entry>,
    /// Index of the next entry to visit.
    next: usize,
    /// The first tick of the bucket.
    start: Tick,
    /// Head of the list of chunks that the entries are in, or `NIL`.
    first_chunk: u32,
}

/// The first live entry of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) level: usize,
    pub(super) deadline: Tick,
    pub(super) position: Position,
}

/// The runs of all levels.
#[derive(Debug, Default)]
pub(super) struct Runs {
    levels: Vec<Run>,
    /// A bit for each level whose run is sorted and has entries left.
    active: u64,
    /// The bucket whose timeouts are being gathered for the run of its level.
    gathering: Option<BucketId>,
    /// Output buffer of the counting sort.
    scratch: Vec<Entry>,
}

impl Run {
    #[inline]
    fn deadline(&self, entry: Entry) -> Tick {
        Tick::new(self.start.get() + (entry >> 32))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the position is the lower half")]
    fn position(entry: Entry) -> Position {
        Position::from_number(entry as u32)
    }

    fn rest(&self) -> &[Entry] {
        &self.entries[self.next..]
    }

    /// Moves the live entries to new chunks, without gaps.
    fn rewrite(&mut self, from: &Chunks, to: &mut Chunks, moved: &mut impl FnMut(u32, Position)) {
        self.entries.drain(..core::mem::take(&mut self.next));
        self.entries.retain(|&entry| from.is_live(Self::position(entry)));
        self.entries.shrink_to_fit();
        self.first_chunk = NIL;
        for entries in self.entries.chunks_mut(CHUNK as usize) {
            self.first_chunk = to.allocate(Owner::Run, self.first_chunk);
            let mut mask = 0;
            for (offset, entry) in (0..).zip(entries) {
                let record = from.record(Self::position(*entry));
                let position = Position::new(self.first_chunk, offset);
                to.write(position, record.deadline(), record.slot);
                moved(record.slot, position);
                mask |= 1 << offset;
                *entry = *entry >> 32 << 32 | u64::from(position.number());
            }
            to.set_mask(self.first_chunk, mask);
        }
    }
}

impl Runs {
    pub(super) const fn new() -> Self {
        Self { levels: Vec::new(), active: 0, gathering: None, scratch: Vec::new() }
    }

    /// Starts to gather a bucket, whose first tick is `start`, into the run of its level.
    pub(super) fn begin(&mut self, id: BucketId, start: Tick, chunks: &mut Chunks) {
        let level = id.level();
        debug_assert!(self.gathering.is_none(), "{:?} is being gathered", self.gathering);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Run::default);
        }
        self.end(level, chunks);
        self.levels[level].start = start;
        self.gathering = Some(id);
    }

    /// Returns the bucket whose timeouts are being gathered.
    #[inline]
    pub(super) fn gathering(&self) -> Option<BucketId> {
        self.gathering
    }

    /// Returns whether the run that is being gathered has room for the timeouts of another chunk.
    pub(super) fn has_room(&self) -> bool {
        let len = self.gathering.map_or(0, |id| self.levels[id.level()].entries.len());
        len + CHUNK as usize <= LONGEST
    }

    /// Adds the live records of a chunk, which is in no list, to the run that is being gathered.
    /// Skips the records whose deadline is `span` ticks after the run's start or later, and returns
    /// their mask.
    pub(super) fn gather(&mut self, chunk: u32, span: TickSpan, chunks: &mut Chunks) -> u16 {
        let Some(id) = self.gathering else { unreachable!("no run is being gathered") };
        let run = &mut self.levels[id.level()];
        chunks.set_owner(chunk, Owner::Run);
        chunks.set_next(chunk, run.first_chunk);
        run.first_chunk = chunk;
        let records = chunks.records(chunk);
        let mut beyond = 0;
        for offset in bits(chunks.mask(chunk)) {
            let deadline = records[offset as usize].deadline();
            debug_assert!(deadline >= run.start, "{deadline:?} is before {:?}", run.start);
            let ticks = deadline.get() - run.start.get();
            if ticks < span.get() {
                run.entries.push(ticks << 32 | u64::from(Position::new(chunk, offset).number()));
            } else {
                beyond |= 1 << offset;
            }
        }
        beyond
    }

    /// Sorts the gathered run. The ticks of its entries are less than `span`. Returns its length
    /// and the deadline of its first timeout, or `None` if it is empty.
    pub(super) fn finish(&mut self, span: TickSpan, chunks: &mut Chunks) -> Option<(usize, Tick)> {
        let level = self.gathering.take()?.level();
        let run = &mut self.levels[level];
        if run.entries.len() > COUNTED && span.get() <= COUNTERS as u64 {
            sort_by_counting(&mut run.entries, &mut self.scratch);
        } else {
            run.entries.sort_unstable();
        }
        let Some(&first) = run.entries.first() else {
            self.end(level, chunks);
            return None;
        };
        self.active |= 1 << level;
        Some((run.entries.len(), run.deadline(first)))
    }

    /// Returns the live entry that is due first, and the least deadline of the other runs. Ends
    /// runs without a live entry.
    pub(super) fn first(&mut self, chunks: &mut Chunks) -> Option<(Head, Tick)> {
        let mut first: Option<(Head, Tick)> = None;
        for level in bits(self.active) {
            let Some(head) = self.head(level as usize, chunks) else { continue };
            first = Some(match first {
                None => (head, Tick::MAX),
                Some((before, _)) if head.deadline < before.deadline => (head, before.deadline),
                Some((before, others)) => (before, others.min(head.deadline)),
            });
        }
        first
    }

    /// Returns the next live entry of the run of a level; `None` if the run has ended.
    #[inline]
    pub(super) fn head(&mut self, level: usize, chunks: &mut Chunks) -> Option<Head> {
        let run = &mut self.levels[level];
        while let Some(&entry) = run.entries.get(run.next) {
            let position = Run::position(entry);
            if chunks.is_live(position) {
                return Some(Head { level, deadline: run.deadline(entry), position });
            }
            run.next += 1;
        }
        self.end(level, chunks);
        None
    }

    fn gathering_level(&self) -> Option<usize> {
        self.gathering.map(BucketId::level)
    }

    /// Ends a run. None of its entries may be live.
    fn end(&mut self, level: usize, chunks: &mut Chunks) {
        let run = &mut self.levels[level];
        debug_assert!(
            run.rest().iter().all(|&entry| !chunks.is_live(Run::position(entry))),
            "the run of level {level} has live entries"
        );
        chunks.free_all(core::mem::replace(&mut run.first_chunk, NIL));
        run.entries.clear();
        run.next = 0;
        self.active &= !(1 << level);
    }

    /// Skips the next entry of a run. Returns whether to read the slots [ahead](Self::ahead), at
    /// every 16th entry.
    #[inline]
    pub(super) fn skip_entry(&mut self, level: usize) -> bool {
        let run = &mut self.levels[level];
        debug_assert!(run.next < run.entries.len(), "the run of level {level} has ended");
        run.next += 1;
        run.next % 16 == 1
    }

    /// Returns the positions of the next 16 entries of a run.
    pub(super) fn ahead(&self, level: usize) -> impl Iterator<Item = Position> {
        self.levels[level].rest().iter().take(16).map(|&entry| Run::position(entry))
    }

    /// Returns the deadlines and positions of the entries of a level that have not been visited.
    pub(super) fn iter(&self, level: usize) -> impl Iterator<Item = (Tick, Position)> {
        let run = self.levels.get(level);
        let rest = run.map_or(&[][..], Run::rest);
        rest.iter().filter_map(move |&entry| Some((run?.deadline(entry), Run::position(entry))))
    }

    /// Returns the chunks of the run of a level.
    pub(super) fn chunks(&self, level: usize, chunks: &Chunks) -> impl Iterator<Item = u32> {
        chunks.list(self.levels[level].first_chunk)
    }

    /// Returns the number of levels that may have a run.
    pub(super) fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Panics unless active runs are sorted, all others are empty or being gathered, and runs own
    /// their chunks. Returns the number of chunks of all runs.
    pub(super) fn check_invariants(&self, chunks: &Chunks) -> usize {
        let mut count = 0;
        for (level, run) in self.levels.iter().enumerate() {
            let is_active = self.active >> level & 1 != 0;
            let is_gathered = self.gathering_level() == Some(level);
            assert!(
                !is_active || run.rest().is_sorted_by_key(|entry| entry >> 32),
                "the run of level {level} is not in order"
            );
            let len = run.entries.len();
            assert!(is_active || is_gathered || len == 0, "level {level} has {len} old entries");
            for chunk in chunks.list(run.first_chunk) {
                assert_eq!(chunks.owner(chunk), Owner::Run, "chunk {chunk} of level {level}");
                count += 1;
            }
        }
        count
    }

    /// Moves the live entries of all runs to new chunks, and frees unused capacity.
    pub(super) fn rewrite(
        &mut self,
        from: &Chunks,
        to: &mut Chunks,
        mut moved: impl FnMut(u32, Position),
    ) {
        for (level, run) in self.levels.iter_mut().enumerate() {
            run.rewrite(from, to, &mut moved);
            if run.entries.is_empty() {
                self.active &= !(1 << level);
            }
        }
        let last = self.levels.iter().rposition(|run| !run.entries.is_empty());
        let kept = last.max(self.gathering_level()).map_or(0, |last| last + 1);
        self.levels.truncate(kept);
        self.levels.shrink_to_fit();
        self.scratch = Vec::new();
    }
}

/// Sorts entries whose ticks are less than [`COUNTERS`].
fn sort_by_counting(entries: &mut Vec<Entry>, scratch: &mut Vec<Entry>) {
    let tick = |entry: Entry| (entry >> 32) as usize % COUNTERS;
    let mut starts = [0_usize; COUNTERS];
    for &entry in entries.iter() {
        starts[tick(entry)] += 1;
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += core::mem::replace(start, sum);
    }
    scratch.clear();
    scratch.resize(entries.len(), 0);
    for &entry in entries.iter() {
        let next = &mut starts[tick(entry)];
        scratch[*next] = entry;
        *next += 1;
    }
    core::mem::swap(entries, scratch);
}
