//! Allocations of wheels and timers: none in the steady state, small ones while they grow.

use allocation_counter::{AllocationInfo, measure};
use delaywheel::{
    Tick,
    wheel::{Key, TimingWheel, WheelBuilder},
};

/// Segments are of 64 KiB at most, and a level of 256 buckets takes less.
const LARGEST_STEP: u64 = 256 << 10;

const MILLION: u64 = 1_000_000;

#[test]
fn the_steady_state_allocates_nothing() {
    let operations = if cfg!(debug_assertions) { MILLION / 16 } else { MILLION };
    let mut random = fastrand::Rng::with_seed(1);
    let mut wheel = TimingWheel::new(Tick::ZERO);
    let mut keys = Vec::with_capacity(10_000);
    for value in 0..10_000 {
        keys.push(wheel.insert(ahead(&wheel, &mut random), value).unwrap());
    }
    for _ in 0..operations {
        churn(&mut wheel, &mut keys, &mut random);
    }
    let started = wheel.now();
    let steady = measure(|| {
        for _ in 0..operations {
            churn(&mut wheel, &mut keys, &mut random);
        }
    });
    assert_eq!(steady, AllocationInfo::default());
    assert!(wheel.now().saturating_since(started) > operations / 10, "time has passed");
    wheel.check_invariants();
}

#[test]
fn growing_never_copies_and_takes_little_more_than_29_bytes_for_a_timeout() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut wheel = TimingWheel::new(Tick::ZERO);
    let mut all = AllocationInfo::default();
    let mut largest = 0;
    for value in 0..MILLION {
        let deadline = ahead(&wheel, &mut random);
        let step = measure(|| {
            wheel.insert(deadline, value).unwrap();
        });
        largest = largest.max(step.bytes_total);
        all += step;
    }
    assert!(largest <= LARGEST_STEP, "one insert allocated {largest} bytes");
    let bytes = u64::try_from(all.bytes_current).unwrap();
    assert!(bytes <= 29_036_868, "{bytes} bytes for a million timeouts");
    assert!(all.bytes_total <= 29_249_904 && all.count_total <= 2_100, "{all:?}");
}

#[test]
fn churn_takes_at_most_42_bytes_for_a_live_timeout_and_little_for_a_few() {
    let operations = if cfg!(debug_assertions) { MILLION / 10 } else { 10 * MILLION };
    for (live, most) in [(1, LARGEST_STEP), (200, LARGEST_STEP), (100_000, 42 * 100_000)] {
        let mut random = fastrand::Rng::with_seed(3);
        let mut keys = Vec::with_capacity(100_000);
        let used = measure(|| {
            let mut wheel = TimingWheel::new(Tick::ZERO);
            for value in 0..live {
                keys.push(wheel.insert(ahead(&wheel, &mut random), value).unwrap());
            }
            for value in 0..operations {
                let index = random.usize(..keys.len());
                let key = &mut keys[index];
                wheel.cancel(*key).unwrap();
                *key = wheel.insert(ahead(&wheel, &mut random), value).unwrap();
            }
        });
        assert!(used.bytes_max <= most, "{} bytes at the peak of {live}", used.bytes_max);
        assert_eq!(used.bytes_current, 0);
    }
}

#[test]
fn bursts_at_other_ticks_of_their_buckets_keep_little_more_memory_than_one() {
    let count = if cfg!(debug_assertions) { 2048 } else { 262_144 };
    let mut wheel = TimingWheel::new(Tick::ZERO);
    let mut burst = |number: u64| {
        let at = Tick::new(number * 1000);
        (0..count).for_each(|value| drop(wheel.insert(at, value)));
        assert_eq!(wheel.advance(at).map(|expired| expired.value).max(), Some(count - 1));
    };
    let first = measure(|| burst(1)).bytes_current;
    let others = measure(|| (2..=64).for_each(&mut burst)).bytes_current;
    assert!(others <= 5_432, "one burst keeps {first} bytes, 63 others {others}");
}

#[test]
fn shrink_gives_back_everything_when_nothing_is_pending() {
    for size in [2, 64, 4096] {
        let mut wheel = WheelBuilder::new().size(size).build().unwrap();
        let used = measure(|| {
            let mut random = fastrand::Rng::with_seed(4);
            let mut keys: Vec<_> = (0..MILLION / 10)
                .map(|value| wheel.insert(ahead(&wheel, &mut random), value).unwrap())
                .collect();
            random.shuffle(&mut keys);
            for key in keys {
                wheel.cancel(key).unwrap();
            }
            wheel.shrink();
        });
        assert_eq!((used.bytes_current, used.count_current), (0, 0));
        assert!(used.bytes_max > MILLION / 10 * 24);
    }
}

#[test]
fn shrink_gives_back_the_lists_of_a_bucket_of_which_most_timeouts_were_cancelled() {
    let keeps = |now| {
        let mut wheel = TimingWheel::new(Tick::ZERO);
        let used = measure(|| {
            let insert = |value| wheel.insert(Tick::new(300 + value % 200), value).unwrap();
            let keys: Vec<_> = (0..10_000_u64).map(insert).collect();
            assert_eq!(wheel.advance(Tick::new(now)).count(), 0);
            assert!(keys[..9_999].iter().all(|&key| wheel.cancel(key).is_some()));
            wheel.shrink();
        });
        wheel.check_invariants();
        assert_eq!(wheel.advance(Tick::new(511)).map(|expired| expired.value).max(), Some(9_999));
        used.bytes_current
    };
    let (before, after) = (keeps(0), keeps(256));
    assert!(after <= before + 2048, "{after} bytes once it is due, {before} before");
}

#[test]
fn shrink_gives_back_an_empty_chunk_of_a_bucket_which_then_takes_others() {
    let mut wheel = TimingWheel::new(Tick::ZERO);
    let insert = |wheel: &mut TimingWheel<_>| wheel.insert(Tick::new(1000), ()).unwrap();
    // They fill the first segment of chunks.
    for _ in 0..1024 {
        insert(&mut wheel);
    }
    wheel.shrink();
    let kept = measure(|| {
        let only_one_of_its_chunk = insert(&mut wheel);
        wheel.cancel(only_one_of_its_chunk).unwrap();
        wheel.shrink();
    });
    // A segment takes 12 KiB. The table of chunks has grown.
    assert!(kept.bytes_current < 4 << 10 && kept.count_current == 0, "{kept:?}");
    wheel.check_invariants();
    insert(&mut wheel);
    wheel.check_invariants();
    assert_eq!(wheel.advance(Tick::new(1000)).count(), 1025);
}

#[test]
fn an_empty_wheel_allocates_nothing() {
    let used = measure(|| {
        let mut wheel: TimingWheel<u64> = TimingWheel::new(Tick::ZERO);
        wheel.advance(Tick::MAX).for_each(drop);
        drop(wheel.drain());
    });
    assert_eq!(used.count_total, 0);
}

#[cfg(feature = "std")]
mod timers {
    use std::sync::Arc;

    use delaywheel::{ManualClock, Task, TimeoutHandle, Timer};

    use super::*;
    use crate::timer::support::{MS, SECOND, manual, manual_with};

    /// A burst of timeouts, half of which expire and half are cancelled. Then `end` has to free
    /// their memory.
    fn burst(end: impl FnOnce(&Timer)) -> AllocationInfo {
        const BURST: u32 = if cfg!(debug_assertions) { 20_000 } else { 100_000 };

        let (clock, timer) = manual_with(|builder| builder.shards(1));
        measure(|| {
            let batch =
                (0..BURST).map(|number| (number % 5_000 * MS, move || assert!(number < BURST)));
            let timeouts: Vec<_> =
                batch.map(|(delay, run)| timer.schedule(delay, run).unwrap()).collect();
            assert!(timeouts.iter().step_by(2).all(TimeoutHandle::cancel));
            drop(timeouts);
            clock.advance(5 * SECOND);
            end(&timer);
        })
    }

    #[test]
    fn a_timer_keeps_what_a_burst_has_taken_until_it_shrinks_or_is_shut_down() {
        let kept = burst(|_| ());
        assert!(kept.bytes_current > 400_000, "{kept:?}");
        let shut_down = |timer: &Timer| {
            timer.schedule(SECOND, || ()).unwrap();
            assert_eq!(timer.shutdown().len(), 1);
        };
        for freed in [burst(Timer::shrink), burst(shut_down)] {
            // The histogram that the first expired timeout needs.
            assert_eq!((freed.bytes_current, freed.count_current), (4096, 1));
        }
    }

    #[test]
    fn a_queue_gives_the_memory_of_received_values_back() {
        const VALUES: u32 = 100_000;
        let clock = ManualClock::new();
        let queue = Timer::builder().clock(clock.clone()).build_queue().unwrap();
        for value in 0..VALUES {
            queue.insert(MS, value).unwrap();
        }
        clock.advance(MS);
        let received = measure(|| {
            for _ in 0..VALUES {
                queue.try_recv().unwrap();
            }
        });
        assert!(received.bytes_current < -(1 << 20), "{} bytes", received.bytes_current);
        let steady = measure(|| {
            queue.insert(MS, 0).unwrap();
            clock.advance(MS);
            assert_eq!(queue.try_recv().unwrap(), 0);
        });
        assert!(steady.bytes_total <= 416, "a chunk was allocated: {steady:?}");
        let large = Timer::builder().clock(clock.clone()).build_queue().unwrap();
        let kept = measure(|| {
            large.insert(MS, [0_u8; 4096]).unwrap();
            clock.advance(MS);
            large.try_recv().unwrap();
            large.timer().shrink();
        });
        assert!(kept.bytes_current < 256 << 10, "{} bytes", kept.bytes_current);
    }

    #[test]
    fn a_manual_clock_keeps_no_memory_of_dropped_timers() {
        let clock = ManualClock::new();
        let timer = || Timer::builder().clock(clock.clone()).build().unwrap();
        let live: Vec<_> = (0..10).map(|_| timer()).collect();
        let left = measure(|| (0..1_000).for_each(|_| drop(timer())));
        assert!(left.bytes_current < 8 << 10, "{} bytes", left.bytes_current);
        drop(live);
    }

    /// Each callback, large or small, runs or is dropped.
    #[test]
    fn a_callback_takes_an_allocation_only_if_it_has_more_than_24_bytes() {
        #[derive(Clone, Copy)]
        #[repr(align(16))]
        struct Aligned;

        fn check<T: Copy + Send + 'static>(captured: T, allocations: u64) {
            let (clock, timer) = manual();
            let shared = Arc::new(());
            let schedule = || -> TimeoutHandle {
                let shared = Arc::clone(&shared);
                timer.schedule(SECOND, move || drop((shared, captured))).unwrap()
            };
            schedule().cancel();
            let pair = measure(|| assert!(schedule().cancel()));
            assert_eq!((pair.count_total, pair.count_current), (allocations, 0));
            assert_eq!(Arc::strong_count(&shared), 1, "a cancelled callback is dropped");
            schedule();
            assert_eq!(Arc::strong_count(&shared), 2);
            clock.advance(SECOND);
            assert_eq!((Arc::strong_count(&shared), timer.stats().expired), (1, 1));
            schedule();
            timer.shutdown().into_iter().for_each(Task::run);
            assert_eq!(Arc::strong_count(&shared), 1, "one that was handed back runs");
        }

        check((), 0);
        check([7_u64; 2], 0);
        check([7_u64; 3], 1);
        check(Aligned, 1);
    }
}

#[cfg(feature = "future")]
mod futures {
    use std::{
        future::{Future, pending},
        pin::{Pin, pin},
        task::{Context, Waker},
        time::Duration,
    };

    use delaywheel::{MissedTicks, future::Sleep};

    use super::*;
    use crate::timer::support::manual_with;

    #[test]
    fn a_million_pending_sleeps_take_at_most_64_bytes_each_and_a_reset_takes_none() {
        let (_clock, timer) = manual_with(|builder| builder.shards(1));
        let delay = |number: u64| Duration::from_millis(1 + number * 7_919 % 60_000);
        let mut sleeps: Vec<_> = (0..MILLION).map(|number| timer.sleep(delay(number))).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut poll_all = |sleeps: &mut [Sleep]| {
            for sleep in sleeps {
                assert!(Pin::new(sleep).poll(&mut context).is_pending());
            }
        };
        let used = measure(|| poll_all(&mut sleeps));
        println!("{} bytes at the peak", used.bytes_max);
        assert!(used.bytes_max <= 64 * MILLION, "{} bytes at the peak", used.bytes_max);
        let moved = measure(|| {
            for sleep in &mut sleeps {
                sleep.reset(Duration::from_secs(60));
            }
            poll_all(&mut sleeps);
        });
        assert_eq!(moved, AllocationInfo::default());
        assert_eq!(timer.stats().pending, MILLION);
        let freed = measure(|| {
            sleeps.clear();
            timer.shrink();
        });
        assert_eq!(used.bytes_current + freed.bytes_current, 0, "{used:?}");
        assert_eq!(used.count_current + freed.count_current, 0);
    }

    #[test]
    fn a_sleep_a_timeout_and_an_interval_allocate_nothing() {
        const DELAY: Duration = Duration::from_secs(30);

        let (_clock, timer) = manual_with(|builder| builder.shards(1));
        let mut context = Context::from_waker(Waker::noop());
        let mut rounds = || {
            for _ in 0..1_000 {
                assert!(Pin::new(&mut timer.sleep(DELAY)).poll(&mut context).is_pending());
                let limited = pin!(timer.timeout(DELAY, pending::<()>()));
                assert!(limited.poll(&mut context).is_pending());
                let mut interval = timer.interval(DELAY, MissedTicks::Burst);
                assert!(interval.poll_tick(&mut context).is_ready());
                assert!(interval.poll_tick(&mut context).is_pending());
            }
        };
        rounds();
        assert_eq!(measure(&mut rounds), AllocationInfo::default());
        assert_eq!((timer.stats().pending, timer.stats().cancelled), (0, 6_000));
    }
}

/// A tick within the next 2^20, near ones as likely as far ones.
fn ahead(wheel: &TimingWheel<u64>, random: &mut fastrand::Rng) -> Tick {
    let power = random.u32(0..=20);
    Tick::new(wheel.now().get() + random.u64(0..1 << power))
}

/// Cancels and inserts, or resets, or lets time pass. Replaces expired timeouts.
fn churn(wheel: &mut TimingWheel<u64>, keys: &mut [Key], random: &mut fastrand::Rng) {
    let slot = random.usize(..keys.len());
    match random.u8(0..10) {
        0..5 => {
            let value = wheel.cancel(keys[slot]).unwrap();
            keys[slot] = wheel.insert(ahead(wheel, random), value).unwrap();
        }
        5..9 => {
            wheel.reset(keys[slot], ahead(wheel, random)).unwrap();
        }
        _ => pass(wheel, keys, random),
    }
}

fn pass(wheel: &mut TimingWheel<u64>, keys: &mut [Key], random: &mut fastrand::Rng) {
    let now = Tick::new(wheel.now().get() + random.u64(0..8));
    while let Some(expired) = wheel.advance(now).next() {
        let value = usize::try_from(expired.value).unwrap();
        keys[value] = wheel.insert(ahead(wheel, random), expired.value).unwrap();
    }
}
