//! Walks along the watchers of a key, with the lock released from time to time.
//!
//! A walk marks its position with a cursor, which moves on when the watchers there leave. It
//! visits each operation that waited when its *pass* began, once. Walks of one pass, over several
//! keys, visit it once together.
//!
//! A list is in the order of registration, so a walk ends at the first operation that came after
//! its first hold. It ends even if other threads keep adding watchers.

use std::{borrow::Borrow, mem};

use super::{
    batch::Batch,
    cursors::Cursor,
    lists::HashedKey,
    shard::{STEPS_PER_HOLD, Shard},
    slab::Index,
    waiters::Waiters,
    watchers::{Gathered, Position},
};

/// The progress of a walk.
enum Progress {
    Start,
    At(Cursor),
    End,
}

/// A walk along the watchers of a key's events, in one shard.
pub(super) struct Walk<'a, K, O, R> {
    shard: Shard<'a, K, O, R>,
    /// The number of the pass; 0 if it has not begun.
    pass: u64,
    /// The serial number of the operation at which it ends.
    next_serial: u64,
    progress: Progress,
}

impl<'a, K: Send + 'static, O: Send + 'static, R: Send + 'static> Walk<'a, K, O, R> {
    #[inline]
    pub(super) fn new(shard: Shard<'a, K, O, R>, pass: u64) -> Self {
        Self { shard, pass, next_serial: u64::MAX, progress: Progress::Start }
    }

    /// Makes a walk that ends at the operation with a serial number.
    pub(super) fn before(shard: Shard<'a, K, O, R>, next_serial: u64) -> Self {
        Self { shard, pass: 0, next_serial, progress: Progress::Start }
    }

    pub(super) fn shard(&self) -> Shard<'a, K, O, R> {
        self.shard
    }

    /// Returns the number of the pass; 0 if it has not begun.
    pub(super) fn pass(&self) -> u64 {
        self.pass
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        matches!(self.progress, Progress::End)
    }

    /// Continues under the lock: takes operations out for a check, until the batch has `size`.
    ///
    /// A walk skips an operation that a later pass has seen, because the later pass checks it too.
    ///
    /// It first lists the operations and then takes them out. Each is in another cache line, and
    /// the processor loads the next ones while it waits for the first.
    #[inline]
    pub(super) fn take_next<Q: Eq + ?Sized>(
        &mut self,
        waiters: &mut Waiters<K, O, R>,
        key: HashedKey<'_, Q>,
        size: usize,
        batch: &mut Batch<O, R>,
    ) where
        K: Borrow<Q>,
    {
        if self.pass == 0 {
            self.pass = waiters.begin_pass();
        }
        let Some(start) = self.resume(waiters, key) else { return };
        let mut found = Gathered::new();
        if let Some(next) = waiters.lists.gather(start, size - batch.len(), &mut found) {
            self.go_on_at(next, waiters);
        }
        waiters.on_event(&found, self.pass, batch);
    }

    /// Continues under the lock: calls `visit` with each operation, for a bounded number of steps.
    /// Stops when `visit` returns `false`; the next call visits this operation again.
    #[inline]
    pub(super) fn visit<Q: Eq + ?Sized>(
        &mut self,
        waiters: &mut Waiters<K, O, R>,
        key: HashedKey<'_, Q>,
        mut visit: impl FnMut(&mut Waiters<K, O, R>, Index) -> bool,
    ) where
        K: Borrow<Q>,
    {
        let Some(start) = self.resume(waiters, key) else { return };
        let mut steps = STEPS_PER_HOLD;
        let mut next = waiters.lists.seek(start);
        while let Some((here, waiter)) = next {
            // The visited operation may leave. The next one stays where it is.
            next = waiters.lists.seek(here.next());
            let is_later = !waiters.is_before(waiter, self.next_serial);
            if is_later || steps == 0 || !visit(waiters, waiter) {
                return self.go_on_at(here, waiters);
            }
            steps -= 1;
        }
    }

    /// Continues at a watcher in the next hold, unless the walk ends there.
    fn go_on_at(&mut self, next: Position, waiters: &mut Waiters<K, O, R>) {
        // Serial numbers grow, so the first hold decides.
        self.next_serial = self.next_serial.min(waiters.next_serial());
        let waiter = waiters.lists.waiter_at(next);
        if waiter.is_some_and(|waiter| waiters.is_before(waiter, self.next_serial)) {
            self.progress = Progress::At(waiters.lists.cursors.open(next));
        }
    }

    /// Returns the position of the walk, which is at its end until it gets another one.
    #[inline]
    fn resume<Q: Eq + ?Sized>(
        &mut self,
        waiters: &mut Waiters<K, O, R>,
        key: HashedKey<'_, Q>,
    ) -> Option<Position>
    where
        K: Borrow<Q>,
    {
        debug_assert!(!self.is_done(), "a walk goes on after its end");
        match mem::replace(&mut self.progress, Progress::End) {
            Progress::Start => {
                let list = waiters.lists.find(key)?;
                Some(Position::in_key(list, 0))
            }
            Progress::At(cursor) => waiters.lists.cursors.close(cursor),
            Progress::End => None,
        }
    }
}

impl<K, O, R> Drop for Walk<'_, K, O, R> {
    #[inline]
    fn drop(&mut self) {
        if let Progress::At(cursor) = self.progress {
            self.shard.hold(|waiters, _| waiters.lists.cursors.close(cursor));
        }
    }
}
