//! Callbacks and operations that start again at once do not starve others.

use std::{sync::mpsc, time::Duration};

use delaywheel::{Completion, DelayedOperation, Purgatory, Timer};

use crate::timer::support::{GENEROUS, Log, MS};

/// Schedules itself again without a delay, until the timer is shut down.
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

/// Logs its end, and never completes by itself.
struct Client {
    number: u32,
    ended: Log<(u32, Completion)>,
    /// Waits again when it has expired.
    again: Option<Purgatory<u32, Self>>,
}

impl DelayedOperation<u32> for Client {
    fn complete(mut self, completion: Completion) {
        self.ended.push((self.number, completion));
        if let (Some(purgatory), Completion::Expired) = (self.again.take(), completion) {
            let operation = Self { again: Some(purgatory.clone()), ..self };
            let _ = purgatory.watch(operation, [1], Duration::ZERO);
        }
    }
}

#[test]
fn operations_that_wait_again_do_not_starve_others() {
    let purgatory = Purgatory::new();
    let ended = Log::new();
    for number in 0..4 {
        let again = Some(purgatory.clone());
        let client = Client { number, ended: Log::new(), again };
        let _ = purgatory.watch(client, [1], Duration::ZERO).unwrap();
    }
    for delay in [MS, 20 * MS] {
        let client = Client { number: 9, ended: ended.clone(), again: None };
        let _ = purgatory.watch(client, [2], delay).unwrap();
        let end = std::time::Instant::now() + GENEROUS;
        let mut all = Vec::new();
        while all.is_empty() && std::time::Instant::now() < end {
            std::thread::yield_now();
            all = ended.take();
        }
        assert_eq!(all, [(9, Completion::Expired)]);
    }
    drop(purgatory.shutdown());
}
