//! Times of the wall clock beside a step back, a turn and an insert.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
    vec::Vec,
};

use loom::thread;

use super::{FAR, beside, check, end, expire_due, join, shards_with};
use crate::{
    clock::{Clock, JumpListener},
    sync::{AtomicU64, Ordering, Parker},
    tick::Tick,
    timer::{ShardGuard, shards::Shards},
    wheel::TimingWheel,
};

/// A clock whose wall clock is set back by an hour. Then two ticks pass.
#[derive(Debug)]
struct Stepped(Instant, Arc<AtomicU64>);

const HOUR: Duration = Duration::from_secs(3600);

impl Stepped {
    fn passed(stage: u64) -> Duration {
        Duration::from_millis(if stage == 2 { 2 } else { 0 })
    }
}

impl Clock for Stepped {
    fn now(&self) -> Instant {
        self.0 + Self::passed(self.1.load(Ordering::SeqCst))
    }

    fn system_time(&self) -> SystemTime {
        let stage = self.1.load(Ordering::SeqCst);
        UNIX_EPOCH + Self::passed(stage) + if stage == 0 { HOUR } else { Duration::ZERO }
    }

    fn watch(&self, _: Weak<dyn JumpListener>) -> Option<Duration> {
        None
    }
}

type Timeouts = Shards<TimingWheel<u32>>;

/// Schedules timeout 1 for a tick after the time that the wall clock shows before the step.
fn schedule(shards: &Arc<Timeouts>) {
    let time = UNIX_EPOCH + HOUR + Duration::from_millis(1);
    let insert = |shard: &mut ShardGuard<'_, _>, now, tick| shard.insert(now, tick, 1);
    assert!(shards.put_at_time(0, shards.clock.read().now, time, insert).is_ok());
}

/// Returns shards with one such timeout, and the stage of their clock. The timeout has its place
/// before threads start: the model checker does not know the `OnceLock` of the first use.
fn scheduled() -> (Arc<Timeouts>, Arc<AtomicU64>) {
    let (parker, stage) = (Parker::new(), Arc::new(AtomicU64::new(0)));
    let clock = Stepped(Instant::now(), Arc::clone(&stage));
    let shards = shards_with(1, None, clock, &parker);
    schedule(&shards);
    (shards, stage)
}

fn step(stage: &AtomicU64) {
    (1..=2).for_each(|next| stage.store(next, Ordering::SeqCst));
}

/// Takes a turn, which must not expire timeout 1.
fn turn(shards: &Timeouts) {
    let (read, mut expired) = (shards.clock.read(), Vec::new());
    shards.follow_wall_clock(read.now);
    expire_due(shards, read, &mut expired);
    assert!(expired.iter().all(|expired| expired.value != 1), "it is early by an hour");
}

#[test]
fn a_time_is_not_early_though_the_clock_steps_back_while_it_is_scheduled() {
    check(|| {
        let (shards, stage) = scheduled();
        let same = Arc::clone(&shards);
        let threads = [thread::spawn(move || schedule(&same)), beside(&stage, step)];
        turn(&shards);
        end(threads);
        turn(&shards);
    });
}

#[test]
fn a_time_is_not_early_though_an_insert_after_a_step_back_moves_the_wheel_on() {
    check(|| {
        let (shards, stage) = scheduled();
        shards.lock(0).insert(Tick::ZERO, Tick::ZERO, 2).expect("the wheel has room");
        let other = beside(&shards, move |shards| {
            step(&stage);
            let read = shards.clock.read();
            shards.lock(0).insert(read.now, FAR, 3).expect("the wheel has room");
        });
        turn(&shards);
        join(other);
    });
}
