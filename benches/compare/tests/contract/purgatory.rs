//! Kafka's purgatory: each request ends once and for the right reason. The tests of the library
//! show the same of ours. Smoke runs show that neither misses an event on two threads.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    os::wait_until,
    purgatory::{Answer, KafkaPurgatory, SharedPurgatory},
};

const LONG: Duration = Duration::from_hours(1);

#[test]
fn an_event_completes_the_requests_on_its_key_that_are_ready() {
    let (purgatory, answers) = (KafkaPurgatory::start(), Answer::leak(5));
    let keys = [[1, 2, 3], [1, 2, 3], [4, 5, 1], [7, 8, 9]];
    let watch = |(answer, keys)| purgatory.watch(answer, keys, LONG);
    let handles: Vec<_> = answers.iter().zip(keys).map(watch).collect();
    assert_eq!(purgatory.check_all(&[1, 2, 3, 4, 9, 10]), 0);
    [0, 2, 4].iter().for_each(|&index: &usize| answers[index].make_ready());
    assert_eq!((purgatory.check(2), purgatory.check(2)), (1, 0));
    assert_eq!(purgatory.check_all(&[1, 4, 5]), 1);
    assert!(purgatory.try_watch(&answers[4], [1, 2, 3], LONG).is_none(), "it does not wait");
    let completed = handles.into_iter().map(|handle| purgatory.complete(handle));
    assert_eq!(completed.collect::<Vec<_>>(), [false, true, false, true]);
    assert!(answers.iter().all(Answer::is_satisfied));
    purgatory.settle(5, 0, 0);
}

#[test]
fn a_request_expires_once_and_not_early() {
    const DELAY: Duration = Duration::from_millis(30);
    let (purgatory, answers, start) = (KafkaPurgatory::start(), Answer::leak(100), Instant::now());
    let watch = |answer| purgatory.watch(answer, [1, 2, 3], DELAY);
    let handles: Vec<_> = answers.iter().map(watch).collect();
    wait_until("all have expired", || answers.iter().all(Answer::is_expired));
    // Kafka rounds deadlines down to a tick.
    assert!(start.elapsed() + Duration::from_millis(1) >= DELAY);
    assert!(handles.into_iter().all(|handle| !purgatory.complete(handle)));
    assert_eq!(purgatory.check_all(&[1, 2, 3]), 0);
    purgatory.settle(0, 100, 0);
}

#[test]
fn a_request_that_completes_while_it_expires_ends_once() {
    let (purgatory, answers) = (KafkaPurgatory::start(), Answer::leak(10_000));
    for batch in answers.chunks(100) {
        // An answer asserts that its request ends once.
        let watch = |answer| purgatory.watch(answer, [1, 2, 3], Duration::from_millis(1));
        let handles: Vec<_> = batch.iter().map(watch).collect();
        for (handle, answer) in handles.into_iter().zip(batch) {
            let is_completed = purgatory.complete(handle);
            wait_until("the request has ended", || answer.has_ended());
            assert_eq!(is_completed, answer.is_satisfied());
        }
    }
}

/// The reaper looks five times a second.
#[test]
fn completed_requests_stay_until_the_reaper_purges() {
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
