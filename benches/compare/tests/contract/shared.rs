//! Timers with threads and a real clock: nothing is lost or doubled, and none is earlier than said.
//!
//! How late they are is not tested, since the machine may be busy, save where it is by design; nor
//! is that one is early, which a busy machine may hide.

use std::{
    thread,
    time::{Duration, Instant},
};

use delaywheel_compare::{
    real::wait_until,
    shared::{
        Expiry, HashWheelThread, KafkaTimer, Load, NettyTimer, Pingora, SharedTimer, SharedVisitor,
        Typed, Victim, replace_all, schedule_all, schedule_all_expected, visit_all_shared,
    },
};
use fastrand::Rng;

const PATIENCE: Duration = Duration::from_mins(1);

const MILLISECOND: u64 = 1_000_000;

/// Delays of up to a tenth of a second, from a seed.
fn delays(seed: u64, count: u32) -> Vec<Duration> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| Duration::from_nanos(rng.u64(2 * MILLISECOND..100 * MILLISECOND))).collect()
}

#[test]
fn every_shared_timer_expires_each_timeout_once_and_no_earlier_than_said() {
    struct Expects;
    impl SharedVisitor for Expects {
        fn visit<S: SharedTimer>(&mut self, make: impl Fn() -> S) {
            let timer = make();
            let _entered = timer.enter();
            let earliest = S::PROMISES.earliness * MILLISECOND;
            for expiry in schedule_all_expected(&timer, &delays(1, 500)).settle(PATIENCE) {
                let is_fine = match expiry {
                    Expiry::Early(by) => by <= earliest,
                    Expiry::Late(_) => true,
                    Expiry::Lost | Expiry::Doubled => false,
                };
                assert!(is_fine, "{}: {expiry:?}", S::NAME);
            }
        }
    }
    visit_all_shared(&mut Expects);
}

#[test]
fn every_shared_timer_cancels_what_is_pending() {
    struct Replaces;
    impl SharedVisitor for Replaces {
        fn visit<S: SharedTimer>(&mut self, make: impl Fn() -> S) {
            let timer = make();
            let _entered = timer.enter();
            let mut load = Load::new(2);
            let far: Vec<_> = load.delays(1_000).iter().map(|&delay| 60 * delay).collect();
            if S::NAME == HashWheelThread::NAME {
                // It is never told, and has a test of its own.
                return;
            }
            let mut timeouts = schedule_all(&timer, &far);
            let mut victims = load.victims(1_000, 5_000);
            for victim in &mut victims {
                victim.delay *= 60;
            }
            assert_eq!(replace_all(&timer, &mut timeouts, &victims), 5_000, "{}", S::NAME);
        }
    }
    visit_all_shared(&mut Replaces);
}

#[test]
fn a_hash_wheel_thread_runs_nothing_that_was_cancelled() {
    check_that_nothing_runs(&HashWheelThread::new(), HashWheelThread::ran);
}

#[test]
fn nettys_timer_runs_nothing_that_was_cancelled() {
    check_that_nothing_runs(&NettyTimer::new(), NettyTimer::ran);
}

#[test]
fn kafkas_timer_runs_nothing_that_was_cancelled() {
    check_that_nothing_runs(&KafkaTimer::new(), KafkaTimer::ran);
}

fn check_that_nothing_runs<S: SharedTimer>(timer: &S, ran: impl Fn(&S) -> u64) {
    // A machine may be so busy that timeouts run before they are cancelled; then they must be longer.
    for delay in (0..8).map(|doublings| Duration::from_millis(200 << doublings)) {
        let (start, before) = (Instant::now(), ran(timer));
        let mut timeouts = schedule_all(timer, &vec![delay; 1_000]);
        let far = (0..1_000).map(|index| Victim { index, delay: Duration::from_hours(1) });
        replace_all(timer, &mut timeouts, &far.collect::<Vec<_>>());
        timer.catch_up();
        if start.elapsed() >= delay / 2 {
            continue;
        }
        // When this has come, the others would have, which were due before it.
        schedule_all_expected(timer, &[delay]).settle(PATIENCE);
        timer.catch_up();
        assert_eq!(ran(timer), before, "some ran that were cancelled");
        return;
    }
    panic!("a machine that takes seconds for a thousand timeouts");
}

#[test]
fn what_races_with_a_cancel_runs_or_is_cancelled() {
    check_races(&NettyTimer::new(), NettyTimer::ran);
    check_races(&KafkaTimer::new(), KafkaTimer::ran);
}

/// Two threads replace timeouts just as these are due; each runs, is cancelled, or is pending at the
/// end.
fn check_races<S: SharedTimer>(timer: &S, ran: impl Fn(&S) -> u64) {
    let (count, rounds) = (200, 200);
    let soon = |seed| {
        let mut rng = Rng::with_seed(seed);
        move || Duration::from_micros(rng.u64(0..4_000))
    };
    let work = |timer: S, seed| {
        let mut soon = soon(seed);
        let mut timeouts = schedule_all(&timer, &vec![Duration::ZERO; count as usize]);
        let mut cancelled = 0;
        for _ in 0..rounds {
            let victims = (0..count).map(|index| Victim { index, delay: soon() });
            cancelled += replace_all(&timer, &mut timeouts, &victims.collect::<Vec<_>>());
        }
        cancelled
    };
    let cancelled: u64 = thread::scope(|scope| {
        let spawn = |seed| {
            let timer = timer.clone();
            scope.spawn(move || work(timer, seed))
        };
        let workers = [spawn(1), spawn(2)];
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let scheduled = 2 * u64::from(count) * (rounds + 1);
    wait_until("the last have run", || ran(timer) + cancelled >= scheduled);
    assert_eq!(ran(timer) + cancelled, scheduled, "{}", S::NAME);
}

#[test]
fn whoever_leaves_work_to_a_thread_waits_until_it_is_done() {
    let timer = HashWheelThread::new();
    schedule_all(&timer, &vec![Duration::ZERO; 10_000]);
    timer.catch_up();
    assert_eq!(timer.ran(), 10_000);
}

#[test]
fn pingora_is_late_by_nearly_ten_milliseconds() {
    let timer = Pingora::new();
    let _entered = timer.enter();
    let delays: Vec<_> = (20..40).map(Duration::from_millis).collect();
    let expiries = schedule_all_expected(&timer, &delays).settle(PATIENCE);
    let is_late = |expiry: &Expiry| matches!(expiry, Expiry::Late(by) if *by > 8 * MILLISECOND);
    assert!(expiries.iter().any(is_late), "{expiries:?}");
}

#[test]
fn ours_expects_timeouts_in_one_place_only() {
    let timer = Typed::new(delaywheel::Timer::builder());
    schedule_all_expected(&timer, &delays(3, 1));
    assert!(crate::panics(|| schedule_all_expected(&timer, &delays(3, 1))));
}
