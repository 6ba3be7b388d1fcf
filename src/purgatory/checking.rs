//! What follows from an event: the operations on its key are checked.

use std::{borrow::Borrow, hash::Hash};

use smallvec::SmallVec;

use super::{
    core::Core,
    filter::fence_event,
    operation::DelayedOperation,
    shard::{BATCH, Batch},
    walk::Walk,
};

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Something happened to a key: completes the operations on it that can. Returns how many those
    /// were.
    #[inline]
    pub(super) fn check_key<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = (self.hash(key), key);
        fence_event();
        let mut completed = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            if shard.filter.may_have(key.0) {
                let mut walk = Walk::new(shard, 0);
                completed += self.check_walk(number, &mut walk, key, &mut { usize::MAX });
            }
        }
        completed
    }

    /// The same for several keys; each operation is checked once.
    pub(super) fn check_keys<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        // The caller's iterator may change what the checks look at.
        let keys: SmallVec<[_; 8]> = keys.into_iter().map(|key| (self.hash(key), key)).collect();
        fence_event();
        let mut passes = self.passes();
        let mut completed = 0;
        for key in keys {
            for (number, pass) in passes.iter_mut().enumerate() {
                completed += self.check_in_pass(number, pass, key);
            }
        }
        completed
    }

    /// Passes that have not begun, one for each shard.
    pub(super) fn passes(&self) -> SmallVec<[u64; 16]> {
        SmallVec::from_elem(0, self.shards.len())
    }

    fn check_in_pass<Q>(&self, number: usize, pass: &mut u64, key: (u64, &Q)) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Some(mut walk) = self.walk(number, *pass, key.0) else { return 0 };
        let completed = self.check_walk(number, &mut walk, key, &mut { usize::MAX });
        *pass = walk.pass();
        completed
    }

    /// A walk, in a pass, along the watchers of a key in a shard, unless there are none.
    pub(super) fn walk(&self, number: usize, pass: u64, hash: u64) -> Option<Walk<'_, K, O, R>> {
        let shard = &*self.shards[number];
        shard.filter.may_have(hash).then(|| Walk::new(shard, pass))
    }

    /// Goes on with a walk until its end, or until `budget` is used up, one for each operation that
    /// is checked. Returns how many have completed.
    #[inline]
    pub(super) fn check_walk<Q>(
        &self,
        number: usize,
        walk: &mut Walk<'_, K, O, R>,
        key: (u64, &Q),
        budget: &mut usize,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = walk.shard();
        let mut batch = Batch::new();
        let mut completed = 0;
        while !walk.is_done() && *budget > 0 {
            let size = BATCH.min(*budget);
            walk.go_on(&mut shard.contents.lock(), key, |contents, waiter| {
                let has_room = batch.len() < size;
                if has_room {
                    contents.call(waiter, &mut batch);
                }
                has_room
            });
            *budget -= batch.len();
            if !batch.is_empty() {
                completed += self.check_out(number, &mut batch);
            }
        }
        completed
    }
}
