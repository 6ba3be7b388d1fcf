//! Operations as users see them: their trait, their completions and their keys.

use crate::wheel::Key;

/// A request that waits for an event, and is answered exactly once.
///
/// `K` is the type of the keys, such as a partition of a topic.
///
/// The purgatory holds no lock while a method runs, and runs one method of an operation at a time.
/// So a method may take locks and call the purgatory.
///
/// [`Purgatory::check_and_complete`](super::Purgatory::check_and_complete) runs
/// [`try_complete`](Self::try_complete) on the thread that calls it. If `try_complete` takes a
/// lock, release this lock before that call. A thread that still holds the lock would deadlock,
/// with a [`std::sync::Mutex`] for example.
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
    /// A check may announce events. When checks are nested eight deep, the purgatory makes further
    /// checks after the outermost one has returned. A check may also call
    /// [`watch`](super::Purgatory::watch), whose checks run at once. So do not let each operation
    /// add the next one from its check: a long chain would overflow the stack.
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
    /// this method returns. So this method must not wait for the answer of another operation.
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
    /// [`OperationGuard`](super::OperationGuard). [`cancel`](super::Purgatory::cancel) hands a
    /// waiting operation back to the caller, who answers it.
    Cancelled,
    /// It made room for a newer one; see [`Overload`](super::Overload).
    Displaced,
    /// The purgatory has been shut down.
    ShutDown,
}

/// Identifies an operation in the purgatory where it waits.
///
/// A key is plain data, and valid until its operation ends. The purgatory does not use the key for
/// another operation afterwards. In another purgatory, the key names no operation.
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
    /// The operation completed at once.
    Completed,
    /// The operation waits. It may have ended in the meantime.
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
