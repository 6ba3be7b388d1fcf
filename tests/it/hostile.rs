//! Hostile clients: requests up to the limits are accepted, further ones are returned, ended ones
//! free their memory, and timeouts of other clients stay on time.

use std::{sync::mpsc, time::Duration};

use delaywheel::{
    Completion, DelayedOperation, ManualClock, Purgatory, PurgatoryBuilder, ScheduleErrorKind,
    Timer, ValueTimer, WatchErrorKind,
};

use crate::timer::support::{GENEROUS, Log, MS, SECOND, YEAR};

/// A million where the compiler optimizes.
const MANY: u32 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

/// Delays that do not end during a test.
const FAR: [Duration; 4] = [
    Duration::MAX,
    Duration::from_millis(u64::MAX),
    Duration::from_secs(500 * 365 * 24 * 3600),
    Duration::from_secs(9 * 365 * 24 * 3600),
];

fn far(number: u32) -> Duration {
    FAR[number as usize % FAR.len()]
}

fn values(limit: u32) -> (ManualClock, ValueTimer<u32>, Log<u32>) {
    let (clock, log) = (ManualClock::new(), Log::new());
    let noted = log.clone();
    let builder = ValueTimer::builder().clock(clock.clone()).max_pending(u64::from(limit));
    let timer = builder.build_with(move |number| noted.push(number)).unwrap();
    (clock, timer, log)
}

/// Checks that exactly this number of permits is free. Leaves them free.
fn assert_free(timer: &ValueTimer<u32>, permits: u32) {
    let keys: Vec<_> = (0..permits).map(|number| timer.schedule(YEAR, number).unwrap()).collect();
    let error = timer.schedule(YEAR, 7).unwrap_err();
    assert_eq!((error.kind(), error.into_value()), (ScheduleErrorKind::Full, 7));
    assert!(timer.cancel_batch(keys).iter().all(Option::is_some));
}

#[test]
fn a_million_far_timeouts_take_and_release_their_permits() {
    let (clock, timer, log) = values(MANY + 1);
    let keys: Vec<_> =
        (0..MANY).map(|number| timer.schedule(far(number), number).unwrap()).collect();
    timer.schedule(MS, MANY).unwrap();
    assert_free(&timer, 0);
    clock.advance(MS);
    assert_eq!(log.take(), [MANY], "the near timeout is on time");
    assert_free(&timer, 1);
    clock.advance(YEAR);
    assert_eq!((log.take(), timer.stats().pending), (vec![], u64::from(MANY)));
    let values = timer.cancel_batch(keys);
    assert!(values.into_iter().flatten().eq(0..MANY), "a key returned another value");
    assert_eq!((timer.stats().pending, clock.advance_to_next()), (0, None));
    timer.shrink();
    assert_free(&timer, MANY + 1);
}

#[test]
fn a_storm_of_cancels_leaks_no_permit_and_delays_no_other_timeout() {
    let (clock, timer, log) = values(2);
    for round in 0..10 {
        timer.schedule(5 * MS, round).unwrap();
        for number in 0..MANY / 10 {
            let key = timer.schedule(far(number) / (number % 5 + 1), number).unwrap();
            assert_eq!(timer.cancel(key), Some(number));
        }
        assert_free(&timer, 1);
        clock.advance(Duration::from_nanos(4_999_999));
        assert_eq!(log.take(), []);
        clock.advance(MS);
        assert_eq!(log.take(), [round]);
    }
    assert_eq!(clock.advance_to_next(), None, "a cancelled timeout causes a wake-up");
    assert_free(&timer, 2);
}

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
            let _ = purgatory.try_complete_else_watch(operation, [1], Duration::ZERO);
        }
    }
}

struct World {
    clock: ManualClock,
    purgatory: Purgatory<u32, Client>,
    ended: Log<(u32, Completion)>,
}

impl World {
    fn new(change: impl FnOnce(PurgatoryBuilder) -> PurgatoryBuilder) -> Self {
        let clock = ManualClock::new();
        let builder = PurgatoryBuilder::new().timer(Timer::builder().clock(clock.clone()));
        let purgatory = change(builder).build().unwrap();
        Self { clock, purgatory, ended: Log::new() }
    }

    fn client(&self, number: u32) -> Client {
        Client { number, ended: self.ended.clone(), again: None }
    }

    /// Registers a client. Returns the number of a refused one.
    fn watch(
        &self,
        number: u32,
        keys: impl IntoIterator<Item = u32>,
        delay: Duration,
    ) -> Result<(), (WatchErrorKind, u32)> {
        let client = self.client(number);
        let watched = self.purgatory.try_complete_else_watch(client, keys, delay);
        watched.map(drop).map_err(|error| (error.kind(), error.into_value().number))
    }

    fn assert_empty(&self) {
        let stats = self.purgatory.stats();
        assert_eq!((stats.delayed, stats.watched, stats.keys), (0, 0, 0));
        assert_eq!(self.purgatory.timer_stats().pending, 0);
    }
}

#[test]
fn a_million_waiters_on_one_key_do_not_delay_other_operations() {
    let world = World::new(|builder| builder);
    for number in 0..MANY {
        world.watch(number, [0], far(number)).unwrap();
    }
    world.watch(MANY, [1], MS).unwrap();
    world.watch(MANY + 1, [1], far(0)).unwrap();
    let mut checks = world.purgatory.checks(&[0, 1]);
    assert_eq!(checks.run(100), 0);
    drop(checks);
    world.clock.advance(MS);
    assert_eq!(world.ended.take(), [(MANY, Completion::Expired)]);
    assert_eq!(world.purgatory.cancel_for_key(&1), 1);
    assert_eq!(world.ended.take(), [(MANY + 1, Completion::Cancelled(()))]);
    assert_eq!(world.purgatory.check_and_complete(&0), 0);
    assert_eq!(world.purgatory.cancel_for_key(&0), MANY as usize);
    assert_eq!(world.ended.take().len(), MANY as usize);
    world.assert_empty();
}

#[test]
fn a_million_keys_are_removed_with_their_operations() {
    let world = World::new(|builder| builder.max_keys(MANY as usize));
    for number in 0..MANY {
        world.watch(number, [number], SECOND).unwrap();
    }
    world.watch(MANY, 0..MANY, 2 * SECOND).unwrap();
    assert_eq!(world.purgatory.stats().watched, 2 * u64::from(MANY));
    world.clock.advance(SECOND);
    assert_eq!(world.purgatory.watched(), u64::from(MANY), "one operation waits, on every key");
    assert_eq!(world.purgatory.cancel_for_key(&(MANY / 2)), 1);
    assert_eq!(world.ended.take().len(), MANY as usize + 1);
    world.assert_empty();
}

#[test]
fn operations_that_wait_again_do_not_starve_others() {
    let purgatory = Purgatory::new();
    let ended = Log::new();
    for number in 0..4 {
        let again = Some(purgatory.clone());
        let client = Client { number, ended: Log::new(), again };
        let _ = purgatory.try_complete_else_watch(client, [1], Duration::ZERO).unwrap();
    }
    for delay in [MS, 20 * MS] {
        let client = Client { number: 9, ended: ended.clone(), again: None };
        let _ = purgatory.try_complete_else_watch(client, [2], delay).unwrap();
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
