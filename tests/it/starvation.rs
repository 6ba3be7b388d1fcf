//! Callbacks and operations that start again at once do not starve others.

use std::{sync::mpsc, time::Duration};

use delaywheel::{Completion, Timer};

use crate::{
    purgatory::support::{Op, Shared},
    timer::support::{GENEROUS, MS},
};

fn again(timer: &Timer) {
    let own = timer.clone();
    let _ = timer.schedule(Duration::ZERO, move || again(&own));
}

#[test]
fn callbacks_that_reschedule_themselves_do_not_starve_others() {
    let builders = [Timer::builder(), Timer::builder().inline(), Timer::builder().shards(3)];
    for builder in builders {
        let timer = builder.build().unwrap();
        (0..4).for_each(|_| again(&timer));
        for delay in [Duration::ZERO, MS, 20 * MS] {
            let (ran, runs) = mpsc::channel();
            timer.schedule(delay, move || ran.send(()).unwrap()).unwrap();
            assert_eq!(runs.recv_timeout(GENEROUS), Ok(()), "{delay:?}");
        }
        timer.shutdown();
    }
}

/// Makes an operation wait, and again when it has expired, until the purgatory is shut down.
fn wait_again(purgatory: &Shared) {
    let own = purgatory.clone();
    let op = Op::new().end(move |end| {
        if end == Completion::Expired {
            wait_again(&own);
        }
    });
    let _ = purgatory.watch(op, [1], Duration::ZERO);
}

#[test]
fn operations_that_wait_again_do_not_starve_others() {
    let purgatory = Shared::new();
    (0..4).for_each(|_| wait_again(&purgatory));
    for delay in [MS, 20 * MS] {
        let (ended, ends) = mpsc::channel();
        let op = Op::new().end(move |end| ended.send(end).unwrap());
        let _ = purgatory.watch(op, [2], delay).unwrap();
        assert_eq!(ends.recv_timeout(GENEROUS), Ok(Completion::Expired), "{delay:?}");
    }
    drop(purgatory.shutdown());
}
