//! The choice of the shard that a thread uses.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

std::thread_local! {
    /// The number of this thread, in the order in which threads used a timer.
    static THREAD: Cell<usize> = const { Cell::new(UNNUMBERED) };

    /// The distance of this thread's shard from its first one. It grows when the thread finds the
    /// lock of its shard taken.
    static MOVES: Cell<usize> = const { Cell::new(0) };
}

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
    /// A thread that finds the lock of its shard taken uses the next free shard from then on. So it
    /// seldom waits for threads that end operations of its former shard.
    #[inline]
    pub(super) fn unlocked(&self, is_locked: impl Fn(usize) -> bool) -> usize {
        let moves = MOVES.try_with(Cell::get).unwrap_or(0);
        let index = self.moved(moves);
        if self.mask > 0 && is_locked(index) {
            self.move_on(index, moves, is_locked)
        } else {
            index
        }
    }

    #[cold]
    fn move_on(&self, index: usize, moves: usize, is_locked: impl Fn(usize) -> bool) -> usize {
        for moves in (1..self.count).map(|further| moves.wrapping_add(further)) {
            let next = self.moved(moves);
            if !is_locked(next) {
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
