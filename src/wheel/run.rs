//! Runs: the timeouts of a due crowded bucket, sorted by deadline.
//!
//! Such a bucket is sorted once into a run and expires from there. Its records stay where they are,
//! and no slot is touched before its timeout expires. The run takes over the chunks of the bucket
//! and frees them at its end. So an entry is live if and only if its record's bit in the mask is
//! set.
//!
//! One run for each level is enough: a bucket becomes due when expiry has reached its range, and
//! then the run before it has ended. The timeouts of a long run are in [parts].

use alloc::vec::Vec;

use super::{
    chunks::{CHUNK, Chunks, NIL, Owner, Position, bits},
    geometry::BucketId,
    parts::{self, Entry, LONGEST, Parts, position_of},
};
use crate::tick::{Tick, TickSpan};

/// Logarithm of the widest bucket, in ticks, that can be sorted: half an entry holds the ticks.
pub(super) const WIDEST: u32 = 32;

/// Number of entries above which a counting sort is faster than a comparison sort.
const COUNTED: usize = 48;

/// Ticks of the widest bucket that uses the counting sort.
const COUNTERS: usize = 256;

#[derive(Debug, Default)]
struct Run {
    entries: Vec<Entry>,
    /// Index of the next entry to visit.
    next: usize,
    /// The first tick of the bucket.
    start: Tick,
    /// Head of the list of chunks that the entries are in, or `NIL`.
    first_chunk: u32,
    /// The last chunk of that list, if there is one.
    last_chunk: u32,
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
    /// The parts of the long run.
    parts: Parts,
}

impl Run {
    #[inline]
    fn deadline(&self, entry: Entry) -> Tick {
        Tick::new(self.start.get() + (entry >> 32))
    }

    fn rest(&self) -> &[Entry] {
        &self.entries[self.next..]
    }

    /// Puts a chunk in front of the list of chunks.
    fn add_chunk(&mut self, chunk: u32, chunks: &mut Chunks) {
        if self.first_chunk == NIL {
            self.last_chunk = chunk;
        }
        chunks.set_owner(chunk, Owner::NoBucket);
        chunks.set_next(chunk, self.first_chunk);
        self.first_chunk = chunk;
    }

    /// Moves the live records of some entries to new chunks, from position `next` on.
    fn rewrite(
        &mut self,
        entries: &mut Vec<Entry>,
        next: &mut u32,
        from: &Chunks,
        to: &mut Chunks,
        moved: &mut impl FnMut(u32, Position),
    ) {
        entries.retain(|&entry| from.is_live(position_of(entry)));
        entries.shrink_to_fit();
        for entry in entries {
            if *next % CHUNK == 0 {
                let chunk = to.allocate(Owner::NoBucket, NIL);
                self.add_chunk(chunk, to);
                to.set_mask(chunk, 0);
                *next = chunk * CHUNK;
            }
            let (record, position) =
                (from.record(position_of(*entry)), Position::from_number(*next));
            *next += 1;
            to.write(position, record.deadline(), record.slot);
            to.set_mask(position.chunk(), to.mask(position.chunk()) | position.bit());
            moved(record.slot, position);
            *entry = *entry >> 32 << 32 | u64::from(position.number());
        }
    }
}

impl Runs {
    pub(super) const fn new() -> Self {
        Self {
            levels: Vec::new(),
            active: 0,
            gathering: None,
            scratch: Vec::new(),
            parts: Parts::new(),
        }
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

    /// Returns whether a run of a level has parts.
    #[inline]
    fn is_long(&self, level: usize) -> bool {
        level == parts::LEVEL && self.parts.are_used()
    }

    /// Returns whether the run that is being gathered has room for the timeouts of another chunk.
    /// Its bucket spans `span` ticks.
    pub(super) fn has_room(&self, span: TickSpan) -> bool {
        let Some(level) = self.gathering_level() else { return true };
        if self.is_long(level) {
            return self.parts.have_room();
        }
        self.fits_unsorted(level) || Parts::may_hold(level, span.get())
    }

    /// Returns whether the entries of a run and those of another chunk may be sorted together.
    fn fits_unsorted(&self, level: usize) -> bool {
        self.levels[level].entries.len() + CHUNK as usize <= LONGEST
    }

    /// Adds the live records of a chunk, which is in no list, to the run that is being gathered.
    /// Skips the records whose deadline is `span` ticks after the run's start or later, and returns
    /// their mask.
    pub(super) fn gather(&mut self, chunk: u32, span: TickSpan, chunks: &mut Chunks) -> u16 {
        let Some(level) = self.gathering_level() else { unreachable!("no run is being gathered") };
        let is_long = self.is_long(level) || !self.fits_unsorted(level);
        let run = &mut self.levels[level];
        if is_long && !self.parts.are_used() {
            self.parts.begin(&mut run.entries, span.get(), chunks);
        }
        run.add_chunk(chunk, chunks);
        let records = chunks.records(chunk);
        let mut beyond = 0;
        for offset in bits(chunks.mask(chunk)) {
            let deadline = records[offset as usize].deadline();
            debug_assert!(deadline >= run.start, "{deadline:?} is before {:?}", run.start);
            let ticks = deadline.get() - run.start.get();
            if ticks < span.get() {
                let entry = ticks << 32 | u64::from(Position::new(chunk, offset).number());
                if is_long { self.parts.add(entry) } else { run.entries.push(entry) }
            } else {
                beyond |= 1 << offset;
            }
        }
        if is_long {
            self.parts.count((chunks.mask(chunk) & !beyond).count_ones());
        }
        beyond
    }

    /// Sorts the gathered run, unless it is long. The ticks of its entries are less than `span`.
    /// Returns its length and the deadline of its first timeout, or `None` if it is empty.
    pub(super) fn finish(&mut self, span: TickSpan, chunks: &mut Chunks) -> Option<(usize, Tick)> {
        let level = self.gathering.take()?.level();
        let is_long = self.is_long(level);
        let run = &mut self.levels[level];
        if is_long {
            self.parts.take_next(&mut run.entries);
        } else if run.entries.len() > COUNTED && span.get() <= COUNTERS as u64 {
            sort_by_counting(&mut run.entries, &mut self.scratch);
        } else {
            run.entries.sort_unstable();
        }
        let Some(&first) = run.entries.first() else {
            self.end(level, chunks);
            return None;
        };
        self.active |= 1 << level;
        let len = if is_long { self.parts.added() } else { run.entries.len() };
        Some((len, run.deadline(first)))
    }

    /// Removes dead entries of the long run, after so many timeouts were cancelled.
    #[inline]
    pub(super) fn remove_dead(&mut self, cancelled: usize, chunks: &Chunks) {
        if self.parts.are_used() {
            let run = &mut self.levels[parts::LEVEL];
            self.parts.remove_dead(cancelled, &mut run.entries, run.next, chunks);
        }
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
        loop {
            while let Some(&entry) = run.entries.get(run.next) {
                let position = position_of(entry);
                if chunks.is_live(position) {
                    return Some(Head { level, deadline: run.deadline(entry), position });
                }
                run.next += 1;
            }
            let is_long = level == parts::LEVEL && self.parts.are_used();
            if !is_long || !self.parts.take_next(&mut run.entries) {
                break;
            }
            run.next = 0;
        }
        self.end(level, chunks);
        None
    }

    fn gathering_level(&self) -> Option<usize> {
        self.gathering.map(BucketId::level)
    }

    /// Ends a run. None of its entries may be live.
    fn end(&mut self, level: usize, chunks: &mut Chunks) {
        debug_assert!(
            self.iter(level).all(|(_, position)| !chunks.is_live(position)),
            "the run of level {level} has live entries"
        );
        if self.is_long(level) {
            self.parts.end();
        }
        let run = &mut self.levels[level];
        chunks.free_all(core::mem::replace(&mut run.first_chunk, NIL), run.last_chunk);
        run.entries.clear();
        run.next = 0;
        self.active &= !(1 << level);
    }

    /// Skips the next entry of a run.
    #[inline]
    pub(super) fn skip_entry(&mut self, level: usize) {
        let run = &mut self.levels[level];
        debug_assert!(run.next < run.entries.len(), "the run of level {level} has ended");
        run.next += 1;
    }

    /// Returns whether the wheel must read the slots [ahead](Self::ahead): at every 16th entry.
    #[inline]
    pub(super) fn must_read_ahead(&self, level: usize) -> bool {
        self.levels[level].next % 16 == 1
    }

    /// Returns the positions of the next 16 entries of a run.
    pub(super) fn ahead(&self, level: usize) -> impl Iterator<Item = Position> {
        self.levels[level].rest().iter().take(16).map(|&entry| position_of(entry))
    }

    /// Returns the deadlines and positions of the entries of a level that have not been visited.
    pub(super) fn iter(&self, level: usize) -> impl Iterator<Item = (Tick, Position)> {
        let run = self.levels.get(level);
        let rest = run.map_or(&[][..], Run::rest);
        let parts = self.is_long(level).then(|| self.parts.rest());
        let entries = rest.iter().chain(parts.into_iter().flatten());
        entries.filter_map(move |&entry| Some((run?.deadline(entry), position_of(entry))))
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
                assert_eq!(chunks.owner(chunk), Owner::NoBucket, "chunk {chunk} of level {level}");
                count += 1;
            }
        }
        let dead = self.iter(parts::LEVEL).filter(|&(_, position)| !chunks.is_live(position));
        self.parts.check_invariants(dead.count());
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
            run.first_chunk = NIL;
            run.entries.drain(..core::mem::take(&mut run.next));
            let (mut entries, mut next) = (core::mem::take(&mut run.entries), 0);
            run.rewrite(&mut entries, &mut next, from, to, &mut moved);
            run.entries = entries;
            if level == parts::LEVEL {
                let lists = self.parts.lists_mut();
                lists.for_each(|list| run.rewrite(list, &mut next, from, to, &mut moved));
            }
            if run.first_chunk == NIL {
                self.active &= !(1 << level);
            }
        }
        if self.active >> parts::LEVEL & 1 == 0 && self.gathering_level() != Some(parts::LEVEL) {
            self.parts = Parts::new();
        }
        let last = self.levels.iter().rposition(|run| run.first_chunk != NIL);
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
