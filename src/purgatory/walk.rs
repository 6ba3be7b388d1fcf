//! Walks along the watchers of a key, with the lock released from time to time.
//!
//! A walk marks its position with a cursor, which moves to the next node when its node leaves. It
//! visits each operation that waited when its *pass* began, once. Walks of one pass, over several
//! keys, visit it once together. So a walk ends, even if other threads keep adding watchers.

use std::borrow::Borrow;

use super::{
    cursors::Cursor,
    shard::{STEPS_PER_HOLD, Shard},
    slab::Index,
    waiters::Waiters,
};

/// The position of a walk.
enum Place {
    Start,
    At(Cursor),
    End,
}

/// A walk along the watchers of a key's events, in one shard.
pub(super) struct Walk<'a, K, O, R> {
    shard: &'a Shard<K, O, R>,
    /// The number of the pass; 0 if it has not begun.
    pass: u64,
    place: Place,
}

impl<'a, K, O, R> Walk<'a, K, O, R>
where
    K: Send + 'static,
    O: Send + 'static,
    R: Send + 'static,
{
    #[inline]
    pub(super) fn new(shard: &'a Shard<K, O, R>, pass: u64) -> Self {
        Self { shard, pass, place: Place::Start }
    }

    pub(super) fn shard(&self) -> &'a Shard<K, O, R> {
        self.shard
    }

    /// Returns the number of the pass; 0 if it has not begun.
    pub(super) fn pass(&self) -> u64 {
        self.pass
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        matches!(self.place, Place::End)
    }

    /// Continues under the lock: calls `visit` with each operation and the number of the pass, for
    /// a bounded number of steps. Stops when `visit` returns `false`; the next call visits this
    /// operation again.
    ///
    /// A walk skips an operation that a later pass has seen, because the later pass checks it too.
    #[inline]
    pub(super) fn go_on<Q: Eq + ?Sized>(
        &mut self,
        waiters: &mut Waiters<K, O, R>,
        key: (u64, &Q),
        mut visit: impl FnMut(&mut Waiters<K, O, R>, Index, u64) -> bool,
    ) where
        K: Borrow<Q>,
    {
        if self.pass == 0 {
            self.pass = waiters.begin_pass();
        }
        let pass = self.pass;
        self.go_past(waiters, key, |waiters, waiter| visit(waiters, waiter, pass));
    }

    /// Like [`go_on`](Self::go_on), but begins no pass.
    #[inline]
    pub(super) fn go_past<Q: Eq + ?Sized>(
        &mut self,
        waiters: &mut Waiters<K, O, R>,
        (hash, key): (u64, &Q),
        mut visit: impl FnMut(&mut Waiters<K, O, R>, Index) -> bool,
    ) where
        K: Borrow<Q>,
    {
        let mut node = match self.place {
            Place::Start => {
                let list = waiters.lists.find(hash, |other| other.borrow() == key);
                list.and_then(|list| waiters.lists.first(list))
            }
            Place::At(cursor) => waiters.lists.cursors.close(cursor),
            Place::End => return,
        };
        let mut steps = STEPS_PER_HOLD;
        while let Some(here) = node {
            let (waiter, next) = waiters.lists.visit(here);
            if steps == 0 || !visit(waiters, waiter) {
                self.place = Place::At(waiters.lists.cursors.open(node));
                return;
            }
            steps -= 1;
            node = next;
        }
        self.place = Place::End;
    }
}

impl<K, O, R> Drop for Walk<'_, K, O, R> {
    #[inline]
    fn drop(&mut self) {
        if let Place::At(cursor) = self.place {
            self.shard.close_cursor(cursor);
        }
    }
}
