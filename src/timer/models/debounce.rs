//! Two calls of a debounce beside a run.

use std::{sync::Arc, time::Duration};

use super::{beside, check, join};
use crate::{
    clock::ManualClock,
    sync::{AtomicU64, Ordering},
    timer::{Debounce, Timer},
};

#[test]
fn a_call_that_returns_is_followed_by_a_run() {
    check(|| {
        let (clock, quiet) = (ManualClock::new(), Duration::from_millis(1));
        let settings = Timer::builder().clock(clock.clone()).shards(1).wheel_size(2);
        let timer = settings.build().expect("the settings are valid");
        let (called, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (at_run, saw) = (Arc::clone(&called), Arc::clone(&seen));
        let run = move || _ = saw.fetch_max(at_run.load(Ordering::SeqCst), Ordering::SeqCst);
        let debounce = Arc::new(Debounce::new(&timer, quiet, run));
        let other = beside(&debounce, |debounce| debounce.call().expect("the timer runs"));
        clock.advance(quiet);
        called.store(1, Ordering::SeqCst);
        debounce.call().expect("the timer runs");
        join(other);
        clock.advance(2 * quiet);
        assert_eq!(seen.load(Ordering::SeqCst), 1, "the call is lost");
    });
}
