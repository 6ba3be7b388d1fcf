//! A lock that those who do one thing get before the one who has very much to do.
//!
//! The reaper takes a shard's lock again and again while it moves or expires a million timeouts. A
//! lock that is let go of for a moment is most often taken again by the thread that had it, and the
//! others wait for as long as the whole takes. So they say that they wait, and the reaper gives way.

use std::{
    ops::DerefMut,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use crate::sync::Mutex;

/// How often the reaper lets other threads run before it goes on in spite of those who wait.
///
/// There are always some, if enough threads insert. Of 64 turns at half a microsecond each, one is
/// most often enough.
const TURNS: u32 = 64;

/// A value behind a lock.
pub(super) struct Gate<T> {
    value: Mutex<T>,
    /// Threads that found the lock taken. A hint: no protocol rests on it.
    waiting: AtomicU32,
}

impl<T> Gate<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    #[inline]
    pub(super) fn lock(&self) -> impl DerefMut<Target = T> + '_ {
        self.value.try_lock().unwrap_or_else(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let guard = self.value.lock();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            guard
        })
    }

    /// Lets those who wait go first. The caller does not hold the lock.
    pub(super) fn give_way(&self) {
        for _ in 0..TURNS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            thread::yield_now();
        }
    }
}
