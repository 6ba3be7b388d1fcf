//! Waits in a purgatory.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Wake, Waker},
};

use delaywheel::{
    Completion, Condition, ManualClock, Overload, Purgatory, Timer, Watch, WatchErrorKind,
    future::{AsyncPurgatory, Wait},
};

use crate::support::{SECOND, Wakes, poll, poll_with, purgatory};

fn completion(wait: &mut Wait<u32>) -> Option<Completion> {
    let Poll::Ready(result) = poll(wait) else { return None };
    Some(result.expect("the purgatory is open"))
}

fn assert_empty(purgatory: &AsyncPurgatory<u32>) {
    assert_eq!((purgatory.stats().delayed, purgatory.stats().watched), (0, 0));
    assert_eq!(purgatory.stats().timer.pending, 0);
    purgatory.check_invariants();
}

#[test]
fn a_wait_ends_by_an_event_after_its_first_poll() {
    let (purgatory, _clock) = purgatory();
    let mut wait = purgatory.wait([3, 4], SECOND);
    assert_eq!(purgatory.check_and_complete(&3), 0, "it has not begun");
    let (woken, waker) = Wakes::new();
    assert!(poll_with(&mut wait, &waker).is_pending());
    assert_eq!(purgatory.check_and_complete(&5), 0, "another key");
    assert!(poll_with(&mut wait, &waker).is_pending());
    assert_eq!((purgatory.check_and_complete(&4), woken.count()), (1, 1));
    assert_eq!(completion(&mut wait), Some(Completion::Satisfied));
    assert_empty(&purgatory);
}

#[test]
fn a_wait_with_a_condition_ends_when_that_holds() {
    let (purgatory, _clock) = purgatory();
    let holds = Arc::new(AtomicBool::new(false));
    let condition = Arc::clone(&holds);
    let mut wait = purgatory.wait([3], SECOND).when(move || condition.load(Ordering::Acquire));
    assert_eq!(completion(&mut wait), None);
    assert_eq!(purgatory.check_and_complete(&3), 0);
    holds.store(true, Ordering::Release);
    assert_eq!(completion(&mut wait), None, "no event was announced");
    assert_eq!(purgatory.check_and_complete(&3), 1);
    assert_eq!(completion(&mut wait), Some(Completion::Satisfied));
    let mut at_once = purgatory.wait([3], SECOND).when(|| true);
    assert_eq!(completion(&mut at_once), Some(Completion::Satisfied));
    assert_empty(&purgatory);
}

#[test]
fn a_dropped_wait_loses_no_event_if_the_next_one_checks_its_condition_first() {
    let (purgatory, _clock) = purgatory();
    let holds = Arc::new(AtomicBool::new(false));
    let wait = || {
        let condition = Arc::clone(&holds);
        purgatory.wait([3], SECOND).when(move || condition.load(Ordering::Acquire))
    };
    let mut dropped = (wait(), purgatory.wait([3], SECOND));
    assert_eq!((completion(&mut dropped.0), completion(&mut dropped.1)), (None, None));
    holds.store(true, Ordering::Release);
    assert_eq!(purgatory.check_and_complete(&3), 2);
    drop(dropped);
    assert_eq!(completion(&mut wait()), Some(Completion::Satisfied));
    assert_eq!(completion(&mut purgatory.wait([3], SECOND)), None, "without one, it is lost");
    assert_empty(&purgatory);
}

#[test]
fn a_wait_expires_and_is_cancelled_and_the_task_is_woken() {
    let (purgatory, clock) = purgatory();
    let (woken, waker) = Wakes::new();
    let mut wait = purgatory.wait([3], SECOND);
    assert!(poll_with(&mut wait, &waker).is_pending());
    clock.advance(SECOND);
    assert_eq!((woken.count(), completion(&mut wait)), (1, Some(Completion::Expired)));
    let mut wait = purgatory.wait([3], SECOND);
    assert!(poll_with(&mut wait, &waker).is_pending());
    for waiting in purgatory.cancel_for_key(&3) {
        delaywheel::DelayedOperation::complete(waiting, Completion::Cancelled);
    }
    assert_eq!((woken.count(), completion(&mut wait)), (2, Some(Completion::Cancelled)));
    assert_empty(&purgatory);
}

#[test]
fn thresholds_satisfy_any_or_all() {
    let (purgatory, clock) = purgatory();
    let watches = [Condition::Threshold(3, 100), Condition::Threshold(4, 200)];
    let mut any = purgatory.wait(Watch::any(watches), SECOND);
    let mut all = purgatory.wait(Watch::all(watches), SECOND);
    assert_eq!((completion(&mut any), completion(&mut all)), (None, None));
    assert_eq!(purgatory.advance(&3, 99), 0);
    assert_eq!(purgatory.advance(&3, 100), 1);
    assert_eq!(completion(&mut any), Some(Completion::Satisfied));
    assert_eq!(completion(&mut all), None);
    assert_eq!(purgatory.advance(&4, 300), 1);
    assert_eq!(completion(&mut all), Some(Completion::Satisfied));
    let mut reached = purgatory.wait(Watch::all(watches), SECOND).when_reached(|key, _| *key == 3);
    assert_eq!(completion(&mut reached), None);
    clock.advance(SECOND);
    assert_eq!(completion(&mut reached), Some(Completion::Expired));
    let mut reached = purgatory.wait(Watch::all(watches), SECOND).when_reached(|_, at| at <= 200);
    assert_eq!(completion(&mut reached), Some(Completion::Satisfied));
    let too_many = (0..1025).map(|key| Condition::Threshold(key, 1));
    let mut refused =
        purgatory.wait(Watch::all(too_many), SECOND).when_reached(|key, _| *key < 1024);
    let Poll::Ready(Err(error)) = poll(&mut refused) else { panic!("key 1024 is not reached") };
    assert_eq!(error.kind(), WatchErrorKind::TooManyKeys);
    assert_empty(&purgatory);
}

#[test]
fn a_wait_for_a_value_and_an_event_ends_after_both_in_either_order() {
    let (purgatory, _clock) = purgatory();
    for (is_reached_first, is_found) in [(true, true), (true, false), (false, false)] {
        let watch = Watch::all([Condition::Threshold(3, 100), Condition::Events(4)]);
        let mut wait = purgatory.wait(watch, SECOND).when_reached(move |_, _| is_found);
        assert_eq!(completion(&mut wait), None);
        let announce = |is_value| {
            if is_value { purgatory.advance(&3, 100) } else { purgatory.check_and_complete(&4) }
        };
        assert_eq!(announce(is_reached_first), 0, "the other one is missing");
        assert_eq!(completion(&mut wait), None);
        assert_eq!(announce(!is_reached_first), 1);
        assert_eq!(completion(&mut wait), Some(Completion::Satisfied));
    }
    assert_empty(&purgatory);
}

/// Polls a wait when its waker is woken, as an executor without a queue does.
struct Inline {
    wait: Mutex<Wait<u32>>,
    waker: Waker,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let mut wait = self.wait.lock().expect("no poll panics");
        assert!(poll_with(&mut *wait, &self.waker).is_pending(), "completions are not nested");
    }
}

#[test]
fn a_wait_that_is_satisfied_within_a_completion_ends_after_it() {
    let (purgatory, _clock) = purgatory();
    let (woken, waker) = Wakes::new();
    let wait = Mutex::new(purgatory.wait([4], SECOND).when(|| true));
    let inline = Arc::new(Inline { wait, waker });
    let mut outer = purgatory.wait([3], SECOND);
    assert!(poll_with(&mut outer, &Waker::from(Arc::clone(&inline))).is_pending());
    assert_eq!((purgatory.check_and_complete(&3), woken.count()), (1, 1));
    assert_eq!(completion(&mut outer), Some(Completion::Satisfied));
    let mut inner = inline.wait.lock().expect("no poll panicked");
    assert_eq!(completion(&mut inner), Some(Completion::Satisfied));
    assert_empty(&purgatory);
}

#[test]
#[should_panic(expected = "a wait is polled after its end")]
fn a_wait_that_is_polled_after_its_end_panics() {
    let (purgatory, _clock) = purgatory();
    let mut wait = purgatory.wait([3], SECOND).when(|| true);
    assert_eq!(completion(&mut wait), Some(Completion::Satisfied));
    let _ = poll(&mut wait);
}

#[test]
#[should_panic(expected = "the wait has begun")]
fn a_condition_after_the_first_poll_panics() {
    let (purgatory, _clock) = purgatory();
    let mut wait = purgatory.wait([3], SECOND);
    assert_eq!(completion(&mut wait), None);
    drop(wait.when(|| true));
}

#[test]
fn a_shutdown_ends_every_wait() {
    let (purgatory, _clock) = purgatory();
    let (woken, waker) = Wakes::new();
    let mut wait = purgatory.wait([3], SECOND);
    let mut late = purgatory.wait([3], SECOND);
    assert!(poll_with(&mut wait, &waker).is_pending());
    let operations = purgatory.shutdown();
    assert_eq!((operations.len(), woken.count()), (1, 0));
    drop(operations);
    assert_eq!((woken.count(), completion(&mut wait)), (1, Some(Completion::ShutDown)));
    let Poll::Ready(Err(error)) = poll(&mut late) else { panic!("it is shut down") };
    assert_eq!(error.kind(), WatchErrorKind::ShutDown);

    let (purgatory, _clock) = self::purgatory();
    let mut wait = purgatory.wait([3], SECOND);
    assert!(poll_with(&mut wait, &waker).is_pending());
    drop(purgatory);
    assert_eq!((woken.count(), completion(&mut wait)), (2, Some(Completion::ShutDown)));
}

#[test]
fn a_full_purgatory_refuses_or_displaces() {
    for overload in [Overload::Refuse, Overload::DisplaceOldest] {
        let timer = Timer::builder().clock(ManualClock::new());
        let builder = Purgatory::builder().timer(timer).max_delayed(1, overload);
        let purgatory: AsyncPurgatory<u32> = builder.build().expect("the settings are valid");
        let (mut first, mut second) = (purgatory.wait([3], SECOND), purgatory.wait([3], SECOND));
        assert!(poll(&mut first).is_pending());
        match (overload, poll(&mut second)) {
            (Overload::Refuse, Poll::Ready(Err(error))) => {
                assert_eq!(error.kind(), WatchErrorKind::Full);
                assert!(poll(&mut first).is_pending());
            }
            (Overload::DisplaceOldest, Poll::Pending) => {
                assert!(matches!(poll(&mut first), Poll::Ready(Ok(Completion::Displaced))));
            }
            (_, other) => panic!("{overload:?} gave {other:?}"),
        }
    }
}

#[test]
fn an_event_while_a_wait_begins_ends_it() {
    let (purgatory, _clock) = purgatory();
    let (mut questions, other) = (0, purgatory.clone());
    let watch = Watch::any([Condition::Threshold(1, 5), Condition::Events(2)]);
    let mut wait = purgatory.wait(watch, SECOND).when_reached(move |_, _| {
        questions += 1;
        if questions == 2 {
            // The wait watches its keys, and has not returned from its first poll.
            other.check_and_complete(&2);
        }
        false
    });
    assert_eq!(completion(&mut wait), Some(Completion::Satisfied));
    drop(wait);
    assert_empty(&purgatory);
}
