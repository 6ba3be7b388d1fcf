//! Locks of the user that checks take, and that other threads hold while they announce events.
//!
//! Real threads run a bounded number of rounds. Each test waits until they return.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use delaywheel::{Completion, Completion::Satisfied, DelayedOperation, Purgatory, Timer};

use super::support::{Cancel as _, HOUR, Op, Shared, Tagged, must_return, wait_until};
use crate::timer::support::Set;

fn purgatory() -> Shared {
    Purgatory::builder().timer(Timer::builder().shards(2)).build().unwrap()
}

#[test]
fn a_thread_that_announces_under_a_lock_does_not_wait_for_a_check_that_wants_it() {
    must_return(|| {
        let (purgatory, lock) = (purgatory(), Arc::new(Mutex::new(false)));
        let (wants, inside) = (Arc::clone(&lock), Arc::new(AtomicBool::new(false)));
        let (is_inside, is_done) = (Arc::clone(&inside), Arc::new(AtomicBool::new(false)));
        let done = Arc::clone(&is_done);
        let mut checks = 0;
        let op = Op::new()
            .check(move || {
                checks += 1;
                if checks == 3 {
                    is_inside.store(true, Ordering::Release);
                }
                checks > 2 && *wants.lock().unwrap()
            })
            .end(move |end| done.store(end == Satisfied, Ordering::Release));
        let _ = purgatory.watch(op, [1, 2], HOUR).unwrap();
        let mut held = lock.lock().unwrap();
        let other = purgatory.clone();
        let checker = thread::spawn(move || other.check_and_complete(&1));
        wait_until("the check waits for the lock", || inside.load(Ordering::Acquire));
        *held = true;
        assert_eq!(purgatory.check_and_complete(&2), 0, "the other thread checks the operation");
        assert_eq!(purgatory.check_each([1, 2]), 0);
        assert_eq!((purgatory.stats().delayed, purgatory.stats().watched), (1, 2));
        drop(held);
        assert_eq!(checker.join().unwrap(), 1);
        assert!(is_done.load(Ordering::Acquire));
        assert_eq!((purgatory.stats().delayed, purgatory.stats().watched), (0, 0));
    });
}

#[test]
fn an_event_during_a_blocked_check_causes_another_check() {
    must_return(|| {
        let (purgatory, lock) = (purgatory(), Arc::new(Mutex::new(())));
        let flag = Arc::new(AtomicBool::new(false));
        let (seen, wants) = (Arc::clone(&flag), Arc::clone(&lock));
        let inside = Arc::new(AtomicBool::new(false));
        let is_inside = Arc::clone(&inside);
        let mut checks = 0;
        let op = Op::new().check(move || {
            checks += 1;
            let is_ready = seen.load(Ordering::Relaxed);
            if checks == 3 {
                // It has read the flag. The event comes after that.
                is_inside.store(true, Ordering::Release);
                drop(wants.lock().unwrap());
            }
            is_ready
        });
        let _ = purgatory.watch(op, [1], HOUR).unwrap();
        let held = lock.lock().unwrap();
        let other = purgatory.clone();
        let checker = thread::spawn(move || other.check_and_complete(&1));
        wait_until("the check waits for the lock", || inside.load(Ordering::Acquire));
        flag.store(true, Ordering::Relaxed);
        assert_eq!(purgatory.check_and_complete(&1), 0);
        drop(held);
        assert_eq!(checker.join().unwrap(), 1, "the checking thread did not check again");
    });
}

type Key = Tagged<Owning>;

/// Owns a handle of the purgatory, and calls it when it is dropped.
struct Owning {
    purgatory: Arc<Mutex<Option<Purgatory<Key, Counted>>>>,
    shuts_down: bool,
}

impl Drop for Owning {
    fn drop(&mut self) {
        let last = self.purgatory.lock().unwrap().take();
        if let Some(purgatory) = last.filter(|_| self.shuts_down) {
            drop(purgatory.shutdown());
        }
    }
}

struct Counted(Arc<AtomicUsize>);

impl DelayedOperation<Key> for Counted {
    fn complete(self, _: Completion) {}
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn the_drop_of_an_expired_key_may_end_the_purgatory() {
    for shuts_down in [true, false] {
        must_return(move || {
            let clock = Set::quiet();
            let timer = Timer::builder().clock(clock.clone()).shards(1);
            let purgatory = Purgatory::builder().timer(timer).build().unwrap();
            let (last, ended) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
            let key = Tagged(1, Owning { purgatory: Arc::clone(&last), shuts_down });
            assert!(purgatory.watch(Counted(Arc::clone(&ended)), [key], HOUR).is_ok());
            assert!(purgatory.watch(Counted(Arc::clone(&ended)), [], 9 * HOUR).is_ok());
            *last.lock().unwrap() = Some(purgatory.clone());
            clock.pass(2 * HOUR);
            assert!(purgatory.watch(Counted(Arc::clone(&ended)), [], 9 * HOUR).is_ok());
            drop(purgatory);
            wait_until("the key ends the purgatory", || ended.load(Ordering::Acquire) == 3);
        });
    }
}
