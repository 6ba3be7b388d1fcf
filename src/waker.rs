//! Wakers behind a lock: a poll stores a waker, and another thread takes it to wake the task.
//!
//! Cloning and dropping a waker is user code, so neither happens under the lock.

use std::{
    mem,
    task::{Poll, Waker},
};

use crate::{panics::catch, sync::Mutex};

/// Wakes tasks. A waker that panics does not stop the others, and its panic is not counted.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| drop(catch(|| waker.wake())));
}

/// Drops a holder of wakers. A panic of the drop would lose the value that the poll returns.
pub(crate) fn discard(holder: impl Sized) {
    drop(catch(|| drop(holder)));
}

/// Takes a value out of a state, or stores the waker in its slot, in one hold of the lock.
///
/// `take` returns the value, or the slot for the waker if there is no value. It runs again after
/// the waker had to be cloned, without the lock.
pub(crate) fn poll_or_store<S, R>(
    state: &Mutex<S>,
    waker: &Waker,
    mut take: impl FnMut(&mut S) -> Result<R, &mut Option<Waker>>,
) -> Poll<R> {
    let mut clone = None;
    loop {
        let mut guard = state.lock();
        match take(&mut guard) {
            Ok(value) => {
                drop(guard);
                discard(clone);
                return Poll::Ready(value);
            }
            Err(Some(held)) if held.will_wake(waker) => return Poll::Pending,
            Err(slot) if clone.is_some() => {
                mem::swap(slot, &mut clone);
                debug_assert!(slot.is_some(), "the task of this poll is not woken");
                drop(guard);
                return Poll::Pending;
            }
            Err(_) => {}
        }
        drop(guard);
        clone = Some(waker.clone());
    }
}
