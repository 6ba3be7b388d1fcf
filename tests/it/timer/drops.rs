//! The drop of a value is user code: it may use the timer, wherever it happens.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use delaywheel::{ManualClock, ScheduleErrorKind, TimeoutKey, Timer, TimerBuilder, ValueTimer};

use super::support::{Log, OnDrop, SECOND, manual, must_return};

type Meddled = ValueTimer<Option<OnDrop>>;

/// Uses its timer when it is dropped, which deadlocks if a lock is held.
fn meddler(used: &Arc<OnceLock<Meddled>>, log: &Log<&'static str>) -> OnDrop {
    let (used, log) = (Arc::clone(used), log.clone());
    OnDrop::new(move || {
        log.push("dropped");
        let Some(timer) = used.get() else { return };
        if let Ok(key) = timer.schedule(SECOND, None) {
            timer.reset(key, 2 * SECOND);
            timer.cancel(key);
        }
        assert_eq!(timer.stats().panicked, 0);
        assert!(format!("{timer:?}").contains("pending"));
    })
}

/// Runs a test with a timer, the key of such a value, and a function that makes more of them.
fn meddle(
    change: fn(TimerBuilder) -> TimerBuilder,
    test: fn(&ManualClock, &Meddled, TimeoutKey, &dyn Fn() -> OnDrop),
) {
    let dropped = must_return(move || {
        let (clock, log) = (ManualClock::new(), Log::new());
        let builder = change(Timer::builder().clock(clock.clone()));
        let timer = builder.build_with(drop::<Option<OnDrop>>).unwrap();
        let slot = Arc::new(OnceLock::new());
        let meddler = || meddler(&slot, &log);
        let key = timer.schedule(SECOND, Some(meddler())).unwrap();
        slot.set(timer.clone()).unwrap();
        test(&clock, &timer, key, &meddler);
        log.take()
    });
    assert_eq!(dropped, ["dropped"]);
}

#[test]
fn the_drop_of_a_value_may_use_the_timer_wherever_it_happens() {
    let free = |builder| builder;
    meddle(free, |_, timer, key, _| drop(timer.cancel(key)));
    meddle(free, |clock, _, _, _| clock.advance(SECOND));
    meddle(
        |builder| builder.max_pending(1),
        |_, timer, _, meddler| {
            let refused = timer.schedule(Duration::ZERO, Some(meddler()));
            assert_eq!(refused.unwrap_err().kind(), ScheduleErrorKind::Full);
        },
    );
    meddle(free, |_, timer, _, _| drop(timer.shutdown()));
    meddle(free, |_, timer, key, meddler| {
        std::mem::forget(timer.shutdown());
        assert!(!timer.is_pending(key));
        let refused = timer.schedule(Duration::ZERO, Some(meddler()));
        assert_eq!(refused.unwrap_err().kind(), ScheduleErrorKind::ShutDown);
    });
}

#[test]
fn each_value_pending_at_the_drop_of_a_timer_is_dropped_and_may_use_handles_or_panic() {
    let mut dropped = must_return(|| {
        let (log, (_clock, timer)) = (Log::new(), manual());
        for index in 0..10 {
            let (log, handle) = (log.clone(), timer.schedule(SECOND, || ()).unwrap());
            let value = OnDrop::new(move || {
                let is_dead = !handle.reset(SECOND) && !handle.is_pending() && !handle.cancel();
                log.push((index, is_dead));
                assert!(index % 4 != 1, "drops 1, 5 and 9 panic");
            });
            timer.schedule(SECOND, move || drop(value)).unwrap();
        }
        drop(timer);
        log.take()
    });
    dropped.sort_unstable();
    assert!(dropped.into_iter().eq((0..10).map(|index| (index, true))));
}
