//! The choice of the shard that a thread uses.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

// In models, all threads begin with the first shard, and each execution begins anew.
#[cfg(loom)]
loom::thread_local! {
    static THREAD: Cell<usize> = Cell::new(0);
}
#[cfg(not(loom))]
std::thread_local! {
    /// The number of this thread, in the order in which threads used a timer.
    static THREAD: Cell<usize> = const { Cell::new(UNNUMBERED) };
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

/// Returns the index of the shard that this thread uses, of `count` shards.
#[inline]
pub(super) fn own(count: usize) -> usize {
    let thread = THREAD.try_with(Cell::get).unwrap_or(UNNUMBERED);
    let thread = if thread == UNNUMBERED { number_thread() } else { thread };
    // A division takes longer than the rest.
    if thread < count { thread } else { thread % count }
}

/// Returns the index of the first shard whose lock is free, from that of this thread on. If there
/// is none, returns that of this thread.
#[inline]
pub(super) fn unlocked(count: usize, is_locked: impl Fn(usize) -> bool) -> usize {
    let own = own(count);
    if !is_locked(own) {
        return own;
    }
    (own + 1..own + count).map(|next| next % count).find(|next| !is_locked(*next)).unwrap_or(own)
}
