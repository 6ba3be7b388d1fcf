//! What waits in a purgatory, and how it ends.

use std::convert::Infallible;

/// A request that waits for an event, and is answered exactly once.
///
/// `K` is what events happen to, a partition of a topic for one; `R` is why a waiting operation is
/// cancelled.
///
/// No lock of the purgatory is held while a method runs, and no two methods of one operation run at
/// once. So a method may take locks of its own, and other threads may hold them while they call
/// [`Purgatory::check_and_complete`](super::Purgatory::check_and_complete). Both may call the
/// purgatory. But a check that announces an event on a key of its own operation, or on one whose
/// operations announce that, is checked again because of it, for ever if that is so every time; and
/// so does an operation that is displaced, and waits again at once, displace others for ever.
///
/// A check that panics has not found the operation complete. A panic in [`complete`](Self::complete)
/// has consumed it. Both are counted, and concern no other operation.
///
/// # Examples
///
/// See [`Purgatory`](super::Purgatory).
pub trait DelayedOperation<K, R = ()>: Send + 'static {
    /// Returns whether the operation can complete now.
    ///
    /// Asked before the operation waits, again when it has begun to, and then after events on its
    /// keys. It is answered from the state that the events announce, so a caller of
    /// `check_and_complete` changes that state first.
    ///
    /// By default it cannot: it waits for thresholds only.
    fn try_complete(&mut self) -> bool {
        false
    }

    /// Returns whether the value of a key has reached a threshold that the operation waits for.
    ///
    /// Asked before the operation waits and again when it has begun to; after that
    /// [`advance`](super::Purgatory::advance) tells. Like there, a value that was reached stays
    /// reached.
    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        let _ = (key, threshold);
        false
    }

    /// Answers the request. Called once, on the thread that completed the operation.
    ///
    /// If the purgatory completes another operation meanwhile on the same thread, because this method
    /// calls it, that completion runs when this one has returned. So do not wait in here for the
    /// answer of another operation.
    fn complete(self, completion: Completion<R>);
}

/// Has no values. It stands for the operation where there is none, in the type of
/// [`Purgatory::builder`](super::Purgatory::builder).
impl<K, R> DelayedOperation<K, R> for Infallible {
    fn complete(self, _: Completion<R>) {
        match self {}
    }
}

/// How an operation ended.
///
/// # Examples
///
/// ```
/// use delaywheel::Completion;
///
/// fn error_code(completion: &Completion<&'static str>) -> u16 {
///     match completion {
///         Completion::Satisfied => 0,
///         Completion::Expired => 7,
///         Completion::Cancelled(reason) if *reason == "moved" => 6,
///         _ => 13,
///     }
/// }
/// assert_eq!(error_code(&Completion::Cancelled("moved")), 6);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion<R = ()> {
    /// What it waited for has happened, or it was completed by its handle.
    Satisfied,
    /// Its delay is over.
    Expired,
    /// It was cancelled, by its handle or through one of its keys.
    Cancelled(R),
    /// It made room for a newer one; see [`Overload`](super::Overload).
    Displaced,
    /// The purgatory has been shut down.
    ShutDown,
}
