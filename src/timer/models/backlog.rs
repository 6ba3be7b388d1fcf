//! The backlog between a reaper and two executor threads.

use std::{sync::Arc, vec::Vec};

use loom::thread;

use super::{DUE, check};
use crate::{
    tick::Tick,
    timer::backlog::Backlog,
    wheel::{Expired, TimingWheel},
};

/// Timeouts that have expired.
pub(super) fn expired(values: impl IntoIterator<Item = u32>) -> Vec<Expired<u32>> {
    let mut wheel = TimingWheel::new(Tick::ZERO);
    for value in values {
        wheel.insert(DUE, value).expect("the wheel has room");
    }
    wheel.advance(DUE).collect()
}

/// No later batch comes that could wake an executor.
#[test]
fn each_timeout_of_a_batch_wakes_an_executor() {
    check(|| {
        let backlog = Arc::new(Backlog::new(false));
        let executors = [(); 2].map(|()| {
            let backlog = Arc::clone(&backlog);
            thread::spawn(move || backlog.take().map(|expired| expired.value))
        });
        backlog.wake(backlog.put(&mut expired([1, 2])).0);
        let mut taken = executors.map(|one| one.join().expect("no thread panics"));
        taken.sort_unstable();
        assert_eq!(taken, [Some(1), Some(2)]);
    });
}
