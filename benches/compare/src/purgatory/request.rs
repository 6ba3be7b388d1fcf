//! A request, and where it is answered: once, or that is seen.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, Ordering},
    thread,
};

use delaywheel::{Completion, DelayedOperation};

/// What a request waits for, and how it ended.
///
/// Read and written, not counted up: so that it costs a load and a store. That each is written once
/// is asserted by whoever writes, and the purgatory counts how they ended.
#[derive(Debug, Default)]
pub struct Answer(AtomicU8);

/// Not ended, and cannot complete.
const WAITING: u8 = 0;
/// Not ended, and can complete.
const READY: u8 = 1;
const SATISFIED: u8 = 2;
const EXPIRED: u8 = 3;
/// Ended in another way.
const RETURNED: u8 = 4;

impl Answer {
    /// Makes some, which are never freed: so a request holds no more than where its own is, and
    /// counts no references.
    #[must_use]
    pub fn leak(count: usize) -> &'static [Self] {
        Vec::leak((0..count).map(|_| Self::default()).collect())
    }

    /// Lets the request complete when it is checked next.
    #[inline]
    pub fn make_ready(&self) {
        self.0.store(READY, Ordering::Release);
    }

    /// Lets the request complete when it is checked next, unless it has ended. Only for one thread
    /// at a time, and one that is prepared for the request to end in between.
    #[inline]
    pub fn make_ready_if_waiting(&self) {
        let _ = self.0.compare_exchange(WAITING, READY, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Waits until the request has been satisfied, by another thread maybe, and makes the answer
    /// that of another one.
    ///
    /// # Panics
    ///
    /// If the request has ended in another way.
    #[inline]
    pub fn reuse(&self) {
        let mut looks = 0_u32;
        while !self.has_ended() {
            looks += 1;
            if looks.is_multiple_of(64) { thread::yield_now() } else { spin_loop() }
        }
        assert!(self.is_satisfied(), "a request was not satisfied");
        self.0.store(WAITING, Ordering::Release);
    }

    /// Whether the request has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) >= SATISFIED
    }

    /// Whether the request has completed before its delay was over.
    #[must_use]
    pub fn is_satisfied(&self) -> bool {
        self.0.load(Ordering::Acquire) == SATISFIED
    }

    /// Whether the request has expired.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.0.load(Ordering::Acquire) == EXPIRED
    }
}

/// An operation that completes when its answer is ready.
#[derive(Debug)]
pub struct Request(pub &'static Answer);

impl DelayedOperation<u32> for Request {
    #[inline]
    fn try_complete(&mut self) -> bool {
        self.0.0.load(Ordering::Acquire) == READY
    }

    #[inline]
    fn complete(self, completion: Completion) {
        let Self(Answer(state)) = self;
        assert!(state.load(Ordering::Acquire) <= READY, "a request was answered twice");
        let end = match completion {
            Completion::Satisfied => SATISFIED,
            Completion::Expired => EXPIRED,
            _ => RETURNED,
        };
        state.store(end, Ordering::Release);
    }
}
