//! Operations: their trait, their completions, their keys, and their places while they wait.

use std::{boxed::Box, vec::Vec};

use super::{
    conditions::Rule,
    lists::{Lists, Spot, Watcher},
};
use crate::{ticks::Nanos, wheel::Key};

/// A request that waits for an event, and is answered exactly once.
///
/// `K` is the type of the keys, such as a partition of a topic.
///
/// The purgatory holds no lock while a method runs, and runs one method of an operation at a time.
/// So a method may take locks and call the purgatory.
///
/// [`Purgatory::check_and_complete`](super::Purgatory::check_and_complete) runs
/// [`try_complete`](Self::try_complete) on the thread that calls it. Release a lock that
/// `try_complete` takes before that call. A thread that holds a [`std::sync::Mutex`] would
/// deadlock.
///
/// Two cycles never end:
///
/// - A check announces an event that leads to a check of the same operation, each time.
/// - A displaced operation waits again at once, and displaces another one that does the same.
///
/// If `try_complete` panics, the operation continues to wait. If [`complete`](Self::complete)
/// panics, the operation has ended. The purgatory catches and counts both panics, and other
/// operations are not affected.
///
/// # Examples
///
/// See [`Purgatory`](super::Purgatory).
pub trait DelayedOperation<K>: Send + 'static {
    /// Returns whether the operation can complete now.
    ///
    /// The purgatory calls this before the operation waits, after it has begun to wait, and after
    /// each event on its keys. The answer depends on the state that the events announce, so change
    /// that state before you call `check_and_complete`.
    ///
    /// A check may announce events. When checks have announced each other eight deep, the purgatory
    /// makes the further checks after the outermost one has returned.
    ///
    /// Returns `false` by default, for operations that wait for thresholds only.
    fn try_complete(&mut self) -> bool {
        false
    }

    /// Returns whether the value of a key has reached a threshold that the operation waits for.
    ///
    /// The purgatory calls this before the operation waits, and when it has begun to wait. After
    /// that, [`advance`](super::Purgatory::advance) passes new values in. Values never decrease:
    /// once this returns `true`, the threshold stays reached.
    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        let _ = (key, threshold);
        false
    }

    /// Answers the request. The purgatory calls this once.
    ///
    /// It runs on the thread whose call completed the operation, such as the thread that announced
    /// the event. After an expiration it runs where the [timer](super::PurgatoryBuilder::timer)
    /// runs callbacks. While it runs, that thread completes no other operation.
    ///
    /// If this method completes another operation, the purgatory calls `complete` of that one after
    /// this method returns. So do not wait in here for the answer of another operation.
    fn complete(self, completion: Completion);
}

/// How an operation ended.
///
/// # Examples
///
/// ```
/// use delaywheel::Completion;
///
/// fn error_code(completion: Completion) -> u16 {
///     match completion {
///         Completion::Satisfied => 0,
///         Completion::Expired => 7,
///         _ => 13,
///     }
/// }
/// assert_eq!(error_code(Completion::Cancelled), 13);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion {
    /// Its conditions hold, or a caller completed it by its key.
    Satisfied,
    /// Its delay has elapsed.
    Expired,
    /// It was cancelled while a thread checked it, or by an
    /// [`OperationGuard`](super::OperationGuard). A cancelled operation that waits returns to the
    /// caller of [`cancel`](super::Purgatory::cancel), who answers it.
    Cancelled,
    /// It made room for a newer one; see [`Overload`](super::Overload).
    Displaced,
    /// The purgatory has been shut down.
    ShutDown,
}

/// Identifies an operation in the purgatory where it waits.
///
/// It is plain data, and valid until the operation ends. The purgatory does not use it for another
/// operation afterwards. In another purgatory, it names no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationKey {
    /// The key of its timeout.
    pub(super) key: Key,
    pub(super) shard: u32,
    /// The number of its purgatory in the process.
    pub(super) purgatory: u32,
}

/// Result of registering an operation. You may ignore it: the purgatory completes the operation in
/// either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watched {
    /// It completed at once.
    Completed,
    /// It waits. It may have completed in the meantime.
    Waiting(OperationKey),
}

impl Watched {
    /// Returns the key of an operation that waits; `None` if it has completed at once.
    #[must_use]
    pub const fn key(self) -> Option<OperationKey> {
        match self {
            Self::Completed => None,
            Self::Waiting(key) => Some(key),
        }
    }
}

/// Keys that an operation names without an allocation.
const FEW: usize = 3;

/// An operation whose end is not decided: the value of its timeout.
pub(super) struct Waiting<O> {
    /// `None` while a thread has it out.
    pub(super) operation: Option<O>,
    /// Its number in the order of registration.
    pub(super) number: u64,
    /// The last pass that has visited it.
    pub(super) seen: u64,
    /// The time of its registration.
    pub(super) since: Nanos,
    pub(super) rule: Rule,
    /// Where it watches events.
    pub(super) spots: [Spot; FEW],
    /// Its thresholds, and then the spots for which there is no room above.
    #[expect(clippy::box_collection, reason = "most operations have none, and a word is a third")]
    pub(super) further: Option<Box<Vec<Watcher>>>,
    /// Whether an event was announced while it is out.
    pub(super) is_announced: bool,
    /// Whether the limits that displace count it.
    pub(super) is_counted: bool,
}

const _: () = assert!(size_of::<Waiting<&u8>>() == 64);

impl<O> Waiting<O> {
    /// Makes the place of an operation that is out.
    #[inline]
    pub(super) fn new(since: Nanos, rule: Rule) -> Self {
        Self {
            operation: None,
            number: 0,
            seen: 0,
            since,
            rule,
            spots: [Spot::NONE; FEW],
            further: None,
            is_announced: false,
            is_counted: false,
        }
    }

    /// Returns the watchers, with their numbers in the order of registration.
    #[inline]
    pub(super) fn watchers(&self) -> impl Iterator<Item = (u64, Watcher)> {
        let few = self.spots.iter().filter(|&&spot| spot != Spot::NONE);
        let few = few.map(|&spot| (self.number, Watcher::Event(spot)));
        let further = self.further.iter().flat_map(|further| further.iter());
        few.chain((self.number + 1..).zip(further.copied()))
    }

    /// Leaves all lists and the limits, and counts the end.
    #[inline]
    pub(super) fn leave<K>(&self, lists: &mut Lists<K>, how: Completion, now: Nanos) {
        for (number, watcher) in self.watchers() {
            lists.remove(number, watcher, self.is_counted);
        }
        if lists.limits.is_total() {
            lists.all.remove(&self.number);
            if self.is_counted {
                lists.limits.release();
            }
        }
        lists.stats.count(how, now.saturating_sub(self.since));
    }

    /// Marks the threshold with a number as reached. Returns its key and its value, unless it was
    /// marked before.
    pub(super) fn reach(&mut self, number: u64) -> Option<(u32, u64)> {
        let index = usize::try_from(number - self.number - 1).ok()?;
        let watcher = self.further.as_mut()?.get_mut(index)?;
        let &mut Watcher::Threshold(key, at) = watcher else { return None };
        *watcher = Watcher::Reached;
        Some((key, at))
    }
}

/// An operation that a thread has taken out.
pub(super) struct Out<O> {
    pub(super) key: Key,
    /// `None` if it waits again.
    pub(super) operation: Option<O>,
    /// Whether its last check found that it can complete.
    pub(super) can_complete: bool,
    pub(super) back: Back,
}

/// What became of an operation that a thread has brought back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    Waits,
    /// It waits, but an event was announced while it was out.
    IsAnnounced,
    /// It has ended, and the thread that had it out completes it.
    Ended(Completion),
}

impl<O> Out<O> {
    #[inline]
    pub(super) const fn new(key: Key, operation: O) -> Self {
        Self { key, operation: Some(operation), can_complete: false, back: Back::Waits }
    }

    /// Makes one that waits, and needs a check.
    pub(super) const fn announced(key: Key) -> Self {
        Self { key, operation: None, can_complete: false, back: Back::IsAnnounced }
    }
}
