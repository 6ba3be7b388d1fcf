//! Futures that are dropped at every point of their lives.

use std::{
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::Arc,
};

use delaywheel::{
    Clock, Condition, DelayQueue, ManualClock, MissedTicks, Purgatory, Timer, Watch,
    future::{AsyncPurgatory, Interval, QueueStream},
};
use futures_core::Stream;

use crate::support::{SECOND, Wakes, poll_with};

/// The owners of the futures, all on one clock.
struct Owners {
    clock: ManualClock,
    timer: Timer,
    queue: DelayQueue<u32>,
    purgatory: AsyncPurgatory<u32>,
    interval: Interval,
    stream: QueueStream<u32>,
}

impl Owners {
    fn new() -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().clock(clock.clone());
        let timer = builder.clone().build().expect("the settings are valid");
        let queue = Timer::builder().clock(clock.clone()).build_queue();
        let queue = queue.expect("the settings are valid");
        queue.insert(SECOND, 7).expect("the queue is open");
        let purgatory = Purgatory::builder().timer(builder).build();
        let purgatory = purgatory.expect("the settings are valid");
        let start = clock.now() + SECOND;
        let mut interval = timer.interval(SECOND, MissedTicks::Burst);
        interval.reset_at(start);
        let stream = queue.stream();
        Self { clock, timer, queue, purgatory, interval, stream }
    }
}

type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Makes a future that is ready after a second.
type Make = fn(&mut Owners) -> Boxed<'_>;

fn boxed<'a, T>(future: impl Future<Output = T> + 'a) -> Boxed<'a> {
    Box::pin(async move { drop(future.await) })
}

const FUTURES: [(&str, Make); 8] = [
    ("sleep", |owners| boxed(owners.timer.sleep(SECOND))),
    ("timeout", |owners| boxed(owners.timer.timeout(SECOND, pending::<()>()))),
    ("tick", |owners| boxed(owners.interval.tick())),
    ("recv_async", |owners| boxed(owners.queue.recv_async())),
    ("recv by stream", |owners| boxed(poll_fn(|cx| Pin::new(&mut owners.stream).poll_next(cx)))),
    ("wait", |owners| boxed(owners.purgatory.wait([3, 4], SECOND))),
    ("wait for any", |owners| boxed(owners.purgatory.wait(Watch::any(CONDITIONS), SECOND))),
    ("wait for all", |owners| boxed(owners.purgatory.wait(Watch::all(CONDITIONS), SECOND))),
];

const CONDITIONS: [Condition<u32>; 2] = [Condition::Threshold(3, 9), Condition::Events(4)];

#[derive(Debug, Clone, Copy)]
enum Dropped {
    /// After this many pending polls.
    Pending(u32),
    /// When its task has been woken, before the next poll.
    Woken,
    /// After it was ready.
    Ended,
}

#[test]
fn a_future_that_is_dropped_at_any_point_leaves_nothing_behind() {
    use Dropped::{Ended, Pending, Woken};

    for (name, make) in FUTURES {
        for dropped in [Pending(0), Pending(1), Pending(2), Woken, Ended] {
            check(&format!("{name}, {dropped:?}"), make, dropped);
        }
    }
}

fn check(case: &str, make: Make, dropped: Dropped) {
    let mut owners = Owners::new();
    let clock = owners.clock.clone();
    let (woken, waker) = Wakes::new();
    let mut future = make(&mut owners);
    let polls = if let Dropped::Pending(polls) = dropped { polls } else { 1 };
    for _ in 0..polls {
        assert!(poll_with(&mut future, &waker).is_pending(), "{case}");
    }
    let ends = !matches!(dropped, Dropped::Pending(_));
    if ends {
        clock.advance(SECOND);
    }
    let has_ended = matches!(dropped, Dropped::Ended);
    if has_ended {
        assert!(poll_with(&mut future, &waker).is_ready(), "{case}");
    }
    drop(future);
    let Owners { timer, queue, purgatory, interval, stream, .. } = owners;
    drop((interval, stream));
    assert_eq!(timer.stats().pending, 0, "{case}");
    assert_eq!((purgatory.stats().delayed, purgatory.stats().watched), (0, 0), "{case}");
    assert_eq!(purgatory.stats().timer.pending, 0, "{case}");
    drop(waker);
    assert_eq!(Arc::strong_count(&woken), 1, "{case}: the waker is held");

    clock.advance(SECOND);
    assert_eq!(woken.count(), u64::from(ends), "{case}: wakes");
    let is_received = case.contains("recv") && has_ended;
    assert_eq!(queue.try_recv().is_ok(), !is_received, "{case}: the value of the queue");
    timer.check_invariants();
    purgatory.check_invariants();
}
