//! Limits: a full timer refuses timeouts, and a builder refuses settings that are out of range.

use std::time::Duration;

use delaywheel::{
    ManualClock, ScheduleErrorKind, Timer, TimerBuildError, TimerBuilder, ValueTimer,
};

use super::support::SECOND;

fn of_three() -> (ManualClock, ValueTimer<u32>) {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).max_pending(3).shards(4);
    (clock, builder.build_with(|_: u32| ()).unwrap())
}

/// Fills the timer. Returns how many permits were free.
fn fill(timer: &ValueTimer<u32>) -> u32 {
    let mut count = 0;
    loop {
        match timer.schedule(SECOND, count) {
            Ok(_) => count += 1,
            Err(refused) => {
                assert_eq!(
                    (refused.kind(), refused.into_value()),
                    (ScheduleErrorKind::Full, count)
                );
                return count;
            }
        }
    }
}

#[test]
fn every_end_of_a_timeout_releases_its_permit() {
    let (clock, timer) = of_three();
    let keys = [1, 2, 3].map(|value| timer.schedule(SECOND, value).unwrap());
    assert_eq!(timer.cancel(keys[0]), Some(1));
    assert_eq!(timer.cancel(keys[0]), None, "the permit is released once");
    assert_eq!(fill(&timer), 1);
    assert!(timer.reset(keys[1], 2 * SECOND), "a reset takes no permit");
    clock.advance(SECOND);
    assert_eq!(timer.stats().pending, 1);
    assert_eq!(fill(&timer), 2);
    assert_eq!(timer.shutdown().len(), 3);
    let refused = timer.schedule(SECOND, 9).unwrap_err();
    assert_eq!(
        refused.kind(),
        ScheduleErrorKind::ShutDown,
        "a timer that is shut down is not full"
    );
    assert_eq!(refused.into_value(), 9);
}

fn refusal(change: impl FnOnce(TimerBuilder) -> TimerBuilder) -> TimerBuildError {
    change(Timer::builder()).build().expect_err("a setting is out of range")
}

#[test]
fn settings_out_of_range_are_refused_and_named() {
    use TimerBuildError as E;
    for tick in [Duration::ZERO, Duration::from_nanos(999), Duration::from_secs(86_401)] {
        let error = refusal(|builder| builder.tick(tick));
        assert!(matches!(error, E::TickOutOfRange { tick: refused } if refused == tick));
        assert!(error.to_string().contains(&format!("{tick:?}")), "{error}");
    }
    for count in [0, 65_537] {
        let error = refusal(|builder| builder.shards(count));
        assert!(matches!(error, E::ShardsOutOfRange { shards } if shards == count), "{error}");
    }
    assert!(matches!(refusal(|builder| builder.executor_threads(0)), E::NoExecutor));
    assert!(matches!(refusal(|builder| builder.max_pending(0)), E::NothingPending));
    for builder in [Timer::builder().inline(), Timer::builder().executor_threads(2)] {
        let error = builder.build_queue::<u32>().expect_err("a queue runs no callbacks");
        assert!(matches!(error, E::ExecutorOfQueue), "{error}");
    }
}
