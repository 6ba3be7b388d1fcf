//! Times of the wall clock beside a step back, a turn and an insert.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
    vec::Vec,
};

use loom::thread;

use super::{FAR, check, expire_due, shards_with};
use crate::{
    clock::{Clock, StepListener},
    sync::{AtomicU64, Ordering, Parker},
    tick::Tick,
    timer::{ShardGuard, shards::Shards},
};

/// The wall clock is set back by an hour, and then two ticks pass.
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

    fn watch(&self, _: Weak<dyn StepListener>) -> Option<Duration> {
        None
    }
}

#[test]
fn a_time_is_not_early_though_the_clock_steps_back_while_it_is_scheduled() {
    check(|| {
        let (parker, stage) = (Parker::new(), Arc::new(AtomicU64::new(0)));
        let clock = Stepped(Instant::now(), Arc::clone(&stage));
        let shards = Arc::new(shards_with(1, None, clock, &parker));
        let schedule = |shards: &Arc<Shards<_>>| {
            let time = UNIX_EPOCH + HOUR + Duration::from_millis(1);
            let insert = |shard: &mut ShardGuard<'_, _>, now, tick| shard.insert(now, tick, 1);
            assert!(shards.put_at_time(0, time, insert).is_ok());
        };
        // One that has its place already. The model checker does not know a lock of the first use.
        schedule(&shards);
        let scheduler = thread::spawn({
            let shards = Arc::clone(&shards);
            move || schedule(&shards)
        });
        let step = move || (1..=2).for_each(|next| stage.store(next, Ordering::SeqCst));
        let steps = thread::spawn(step);
        let turn = || {
            let (read, mut expired) = (shards.clock.read(), Vec::new());
            shards.follow_wall_clock(read.now);
            expire_due(&shards, read, &mut expired);
            assert!(expired.is_empty(), "it is early");
        };
        turn();
        scheduler.join().expect("no thread panics");
        steps.join().expect("no thread panics");
        turn();
    });
}

#[test]
fn a_time_is_not_early_though_an_insert_after_a_step_back_moves_the_wheel_on() {
    check(|| {
        let (parker, stage) = (Parker::new(), Arc::new(AtomicU64::new(0)));
        let clock = Stepped(Instant::now(), Arc::clone(&stage));
        let shards = Arc::new(shards_with(1, None, clock, &parker));
        let (now, time) = (Tick::ZERO, UNIX_EPOCH + HOUR + Duration::from_millis(1));
        let insert = |shard: &mut ShardGuard<'_, _>, now, tick| shard.insert(now, tick, 1);
        assert!(shards.put_at_time(0, time, insert).is_ok());
        shards.lock(0).insert(now, now, 2).expect("the wheel has room");
        let other = thread::spawn({
            let shards = Arc::clone(&shards);
            move || {
                (1..=2).for_each(|next| stage.store(next, Ordering::SeqCst));
                let read = shards.clock.read();
                shards.lock(0).insert(read.now, FAR, 3).expect("the wheel has room");
            }
        });
        let (read, mut expired) = (shards.clock.read(), Vec::new());
        shards.follow_wall_clock(read.now);
        expire_due(&shards, read, &mut expired);
        assert!(expired.iter().all(|expired| expired.value != 1), "it is early by an hour");
        other.join().expect("no thread panics");
    });
}
