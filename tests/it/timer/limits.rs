//! Limits: a builder refuses settings that are out of range.

use std::time::Duration;

use delaywheel::{Timer, TimerBuildError, TimerBuilder};

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
