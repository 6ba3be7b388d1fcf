//! The choice of the shard that a thread uses.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

// In models, all threads begin with the first shard, and each execution begins anew.
#[cfg(loom)]
loom::thread_local! {
    static THREAD: Cell<usize> = Cell::new(0);
    static MOVES: Cell<Moves> = Cell::new(Moves::NONE);
}
#[cfg(not(loom))]
std::thread_local! {
    /// The number of this thread, in the order in which threads used a timer.
    static THREAD: Cell<usize> = const { Cell::new(UNNUMBERED) };

    static MOVES: Cell<Moves> = const { Cell::new(Moves::NONE) };
}

/// How far a thread has moved from shards whose locks it found taken.
#[derive(Clone, Copy)]
struct Moves {
    /// The distance of its shard from its first one.
    distance: usize,
    /// How often it lately found the lock of its shard taken: [`TAKEN`] more for each time, and one
    /// less for each time that the lock was free.
    taken: u32,
}

impl Moves {
    const NONE: Self = Self { distance: 0, taken: 0 };
}

/// A thread leaves its shard if it finds the lock free fewer times than this for each time that it
/// finds the lock taken.
const TAKEN: u32 = 8;

/// The most of [`Moves::taken`] at which a thread stays.
const MOST_TAKEN: u32 = 3 * TAKEN;

/// The number of a thread that has used no timer. On systems where local data of a thread needs a
/// destructor, also that of a thread that exits.
const UNNUMBERED: usize = usize::MAX;

/// Gives this thread the next number, and returns it.
#[cold]
fn number_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    _ = THREAD.try_with(|number| number.set(thread));
    thread
}

/// Spreads threads over the shards of a timer, by index.
pub(super) struct ShardChoice {
    /// The number of shards.
    count: usize,
    /// One less than that number, rounded up to a power of two.
    mask: usize,
}

impl ShardChoice {
    pub(super) fn new(count: usize) -> Self {
        Self { count, mask: count.next_power_of_two() - 1 }
    }

    /// Returns the index of the shard that this thread uses.
    #[inline]
    pub(super) fn current(&self) -> usize {
        self.moved(0)
    }

    /// Returns the index of a shard whose lock was free a moment ago. If there is none, returns
    /// that of the shard that this thread uses.
    ///
    /// A thread that often finds the lock of its shard taken moves to the next free shard. So it
    /// seldom waits for threads that end operations of its former shard. One that finds the lock
    /// taken now and then uses another shard once, so its operations stay in few shards.
    #[inline]
    pub(super) fn unlocked(&self, is_locked: impl Fn(usize) -> bool) -> usize {
        let moves = MOVES.try_with(Cell::get).unwrap_or(Moves::NONE);
        let index = self.moved(moves.distance);
        if self.mask > 0 && is_locked(index) {
            return self.next_unlocked(index, moves, is_locked);
        }
        if moves.taken > 0 {
            _ = MOVES.try_with(|current| current.set(Moves { taken: moves.taken - 1, ..moves }));
        }
        index
    }

    #[cold]
    fn next_unlocked(
        &self,
        index: usize,
        moves: Moves,
        is_locked: impl Fn(usize) -> bool,
    ) -> usize {
        let taken = moves.taken + TAKEN;
        let is_left = taken > MOST_TAKEN;
        // The shards beside this one are those of other threads.
        let start = if is_left { 1 } else { self.count / 2 };
        // `mask + 1` distances in a row reach all shards, even if their number is no power of two.
        for further in start..=start + self.mask {
            let distance = moves.distance.wrapping_add(further);
            let next = self.moved(distance);
            if !is_locked(next) {
                let stay = Moves { taken, ..moves };
                let moves = if is_left { Moves { distance, taken: 0 } } else { stay };
                _ = MOVES.try_with(|current| current.set(moves));
                return next;
            }
        }
        index
    }

    /// Returns the index of the shard at this distance from the first one of this thread.
    #[inline]
    fn moved(&self, moves: usize) -> usize {
        let thread = THREAD.try_with(Cell::get).unwrap_or(UNNUMBERED);
        let thread = if thread == UNNUMBERED { number_thread() } else { thread };
        let place = thread.wrapping_add(moves);
        // A remainder takes longer than the rest of this function.
        let index = place & self.mask;
        if index < self.count { index } else { place % self.count }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_a_shard_whose_lock_it_often_finds_taken() {
        let choice = ShardChoice::new(4);
        let free = || choice.unlocked(|_| false);
        let first = free();
        let while_taken = || choice.unlocked(|index| index == first);
        for _ in 0..100 {
            // The lock is taken once in nine times.
            assert_ne!(while_taken(), first, "it waits for a lock");
            assert!((0..TAKEN).all(|_| free() == first), "it has left its shard");
        }
        assert!((0..MOST_TAKEN / TAKEN).all(|_| while_taken() != first));
        assert_eq!(free(), first);
        assert_ne!(while_taken(), first);
        let second = while_taken();
        assert!(second != first && free() == second);
        assert_eq!(choice.unlocked(|_| true), second, "all are taken");
    }

    #[test]
    fn a_thread_finds_the_only_shard_that_is_free() {
        for count in 1..20 {
            let choice = ShardChoice::new(count);
            for place in 0..4 * count {
                THREAD.set(place);
                for free in 0..count {
                    assert_eq!(choice.unlocked(|index| index != free), free, "of {count}");
                }
            }
        }
    }
}
