//! Locks of the user that checks take, and that other threads hold while they announce events.
//!
//! Real threads run a bounded number of rounds. Each test waits until they return.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delaywheel::{Completion::Satisfied, Purgatory, Timer};

use super::support::{Builder, Cancel as _, HOUR, Key, OnKeys, Op, must_return, wait_until};
use crate::timer::support::Set;

#[test]
fn a_thread_that_announces_under_a_lock_does_not_wait_for_a_check_that_wants_it() {
    must_return(|| {
        let builder: Builder = Purgatory::builder().timer(Timer::builder().shards(2));
        let (purgatory, lock) = (builder.build().unwrap(), Arc::new(Mutex::new(false)));
        let [inside, done] = [(); 2].map(|()| Arc::<AtomicBool>::default());
        let (wants, is_inside, is_done) =
            (Arc::clone(&lock), Arc::clone(&inside), Arc::clone(&done));
        let mut checks = 0;
        let check = move || {
            checks += 1;
            is_inside.store(checks == 3, Ordering::Release);
            checks > 2 && *wants.lock().unwrap()
        };
        let end = move |end| is_done.store(end == Satisfied, Ordering::Release);
        let _ = purgatory.watch(Op::new().check(check).end(end), [1, 2], HOUR).unwrap();
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
        assert!(done.load(Ordering::Acquire));
        assert_eq!((purgatory.stats().delayed, purgatory.stats().watched), (0, 0));
    });
}

#[test]
fn the_drop_of_an_expired_key_may_end_the_purgatory() {
    for shuts_down in [true, false] {
        must_return(move || {
            let clock = Set::quiet();
            let timer = Timer::builder().clock(clock.clone()).shards(1);
            let purgatory: OnKeys = Purgatory::builder().timer(timer).build().unwrap();
            let (last, held) = (Arc::new(Mutex::new(None::<OnKeys>)), Arc::new(()));
            let op = || {
                let held = Arc::clone(&held);
                Op::new().end(move |_| drop(held))
            };
            let own = Arc::clone(&last);
            let key = Key::new(1, move || {
                let last = own.lock().unwrap().take();
                if let Some(purgatory) = last.filter(|_| shuts_down) {
                    drop(purgatory.shutdown());
                }
            });
            assert!(purgatory.watch(op(), [key], HOUR).is_ok());
            assert!(purgatory.watch(op(), [], 9 * HOUR).is_ok());
            *last.lock().unwrap() = Some(purgatory.clone());
            clock.pass(2 * HOUR);
            purgatory.wake();
            drop(purgatory);
            wait_until("the key ends the purgatory", || Arc::strong_count(&held) == 1);
        });
    }
}
