//! The purgatories: each request ends once and for the right reason, and no event is missed.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    os::wait_until,
    purgatory::{Answer, KafkaPurgatory, Requests, SharedPurgatory},
};

const LONG: Duration = Duration::from_hours(1);

/// Runs a test with each purgatory.
macro_rules! each {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check::$name::<Requests>();
            check::$name::<KafkaPurgatory>();
        }
    )*};
}

each! {
    an_event_completes_the_requests_on_its_key_that_are_ready
    a_request_that_is_ready_at_once_does_not_wait
    a_handle_completes_its_request_once
    a_request_expires_once_and_not_early
    a_request_that_completes_while_it_expires_ends_once
}

mod check {
    use super::*;

    pub(super) fn an_event_completes_the_requests_on_its_key_that_are_ready<P: SharedPurgatory>() {
        let (purgatory, answers) = (P::start(), Answer::leak(4));
        for (answer, keys) in answers.iter().zip([[1, 2, 3], [1, 2, 3], [4, 5, 1], [7, 8, 9]]) {
            purgatory.watch(answer, keys, LONG);
        }
        assert_eq!(purgatory.check_all(&[1, 2, 3, 4, 9, 10]), 0, "{}", P::NAME);
        [0, 2, 3].iter().for_each(|&index: &usize| answers[index].make_ready());
        assert_eq!((purgatory.check(2), purgatory.check(2)), (1, 0), "{}", P::NAME);
        assert_eq!(purgatory.check_all(&[1, 4, 5]), 1, "{}", P::NAME);
        let satisfied: Vec<_> = answers.iter().map(Answer::is_satisfied).collect();
        assert_eq!(satisfied, [true, false, true, false], "{}", P::NAME);
        purgatory.settle(2, 0, 2);
        assert!(answers.iter().all(Answer::has_ended), "{}", P::NAME);
    }

    pub(super) fn a_request_that_is_ready_at_once_does_not_wait<P: SharedPurgatory>() {
        let (purgatory, answers) = (P::start(), Answer::leak(1));
        answers[0].make_ready();
        assert!(purgatory.try_watch(&answers[0], [1, 2, 3], LONG).is_none(), "{}", P::NAME);
        assert!(answers[0].is_satisfied(), "{}", P::NAME);
    }

    pub(super) fn a_handle_completes_its_request_once<P: SharedPurgatory>() {
        let (purgatory, answers) = (P::start(), Answer::leak(2));
        let [by_handle, by_event] =
            [0, 1].map(|index: usize| purgatory.watch(&answers[index], [1, 2, 3], LONG));
        assert!(purgatory.complete(by_handle), "{}", P::NAME);
        answers[1].make_ready();
        assert_eq!(purgatory.check(1), 1, "{}", P::NAME);
        assert!(!purgatory.complete(by_event), "{}", P::NAME);
        purgatory.settle(2, 0, 0);
    }

    pub(super) fn a_request_expires_once_and_not_early<P: SharedPurgatory>() {
        const DELAY: Duration = Duration::from_millis(30);
        let (purgatory, answers, start) = (P::start(), Answer::leak(100), Instant::now());
        let watch = |answer| purgatory.watch(answer, [1, 2, 3], DELAY);
        let handles: Vec<_> = answers.iter().map(watch).collect();
        wait_until("all have expired", || answers.iter().all(Answer::is_expired));
        // Kafka rounds deadlines down to a tick.
        assert!(start.elapsed() + Duration::from_millis(1) >= DELAY, "{}", P::NAME);
        assert!(handles.into_iter().all(|handle| !purgatory.complete(handle)), "{}", P::NAME);
        assert_eq!(purgatory.check_all(&[1, 2, 3]), 0, "{}", P::NAME);
        purgatory.settle(0, 100, 0);
    }

    pub(super) fn a_request_that_completes_while_it_expires_ends_once<P: SharedPurgatory>() {
        let (purgatory, answers) = (P::start(), Answer::leak(10_000));
        let mut satisfied = 0;
        for batch in answers.chunks(100) {
            // An answer asserts that its request ends once.
            let watch = |answer| purgatory.watch(answer, [1, 2, 3], Duration::from_millis(1));
            let handles: Vec<_> = batch.iter().map(watch).collect();
            for (handle, answer) in handles.into_iter().zip(batch) {
                let is_completed = purgatory.complete(handle);
                wait_until("the request has ended", || answer.has_ended());
                assert_eq!(is_completed, answer.is_satisfied(), "{}", P::NAME);
                satisfied += u64::from(is_completed);
            }
        }
        purgatory.settle(satisfied, 10_000 - satisfied, 0);
    }
}

/// The reaper of Kafka's purgatory looks five times a second.
#[test]
fn kafkas_purgatory_keeps_completed_requests_until_it_purges() {
    let (purgatory, answers) = (KafkaPurgatory::start(), Answer::leak(1_101));
    let watch = |answer| purgatory.watch(answer, [1, 2, 3], LONG);
    let mut handles: Vec<_> = answers.iter().map(watch).collect();
    let rest = handles.split_off(900);
    assert!(handles.into_iter().all(|handle| purgatory.complete(handle)));
    assert_eq!(purgatory.watched(), 3 * 1_101);
    assert_eq!(purgatory.check(1), 0, "an event passes over them");
    assert_eq!(purgatory.watched(), 3 * 1_101 - 900);
    assert!(rest.into_iter().take(200).all(|handle| purgatory.complete(handle)));
    wait_until("the reaper has purged", || purgatory.watched() == 3);
    purgatory.settle(1_100, 0, 1);
}
