//! Memory of the purgatory: ended operations leave none behind.

use allocation_counter::measure;
use delaywheel::{
    Completion, Condition, DelayedOperation, ManualClock, OperationKey, Overload, Purgatory,
    PurgatoryBuilder, Timer, Watch,
};

use super::support::{HOUR, MS};

/// A million, or fewer without optimization.
const MANY: u64 = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };

struct Request(Box<u64>);

impl DelayedOperation<u64> for Request {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn complete(self, _: Completion) {
        assert!(*self.0 <= 2 * MANY);
    }
}

type Requests = Purgatory<u64, Request>;

fn purgatory() -> (ManualClock, Requests) {
    purgatory_with(|builder| builder)
}

fn purgatory_with(
    change: impl FnOnce(PurgatoryBuilder<u64, Request>) -> PurgatoryBuilder<u64, Request>,
) -> (ManualClock, Requests) {
    let clock = ManualClock::new();
    let builder = Purgatory::builder().timer(Timer::builder().clock(clock.clone()).shards(2));
    (clock, change(builder).build().expect("the settings are in range"))
}

/// Makes a number of operations wait on three keys, the last of which is never checked or advanced.
/// Ends each of them soon, in one of several ways.
fn churn(clock: &ManualClock, purgatory: &Requests, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let request = Request(Box::new(number));
        let watched = if number % 2 == 0 {
            purgatory.watch(request, [1, 2, 3], HOUR)
        } else {
            let watches = [
                Condition::Events(1),
                Condition::Threshold(2, number),
                Condition::Threshold(3, number),
            ];
            purgatory.watch(request, Watch::any(watches), HOUR)
        };
        let key = watched.expect("there is room").key().expect("it cannot complete at once");
        match number % 32 {
            0..20 => assert!(purgatory.complete(key)),
            20 => assert_eq!(purgatory.cancel_for_key(&1).len(), 1),
            30 => assert!(purgatory.advance(&2, number) > 0),
            31 if number % 4096 == 4095 => clock.advance(HOUR),
            31 => assert!(!purgatory.cancel_for_key(&1).is_empty()),
            _ => {}
        }
    }
    drop(purgatory.cancel_for_key(&1));
    let stats = purgatory.stats();
    assert_eq!((stats.delayed, stats.watched, stats.keys, stats.timer.pending), (0, 0, 0, 0));
}

#[test]
fn very_many_operations_on_three_keys_leave_the_memory_as_it_was() {
    let (clock, purgatory) = purgatory_with(|one| one.max_delayed_per_key(99, Overload::Refuse));
    churn(&clock, &purgatory, 0..10_000);
    // A level of the wheel grows up to the bucket that a timeout needs. So time passes once round
    // all levels that an hour needs: 49 days and more.
    for hour in 0..1_500 {
        churn(&clock, &purgatory, hour * 32..(hour + 1) * 32);
        clock.advance(HOUR);
    }
    let count = if cfg!(debug_assertions) { MANY / 4 } else { MANY };
    let used = measure(|| churn(&clock, &purgatory, 50_000..50_000 + count));
    assert_eq!((used.bytes_current, used.count_current), (0, 0), "{used:?}");
    assert!(used.bytes_max <= 16 << 10, "{} bytes at the peak", used.bytes_max);
}

/// Makes very many operations wait, ends all of them, and checks the memory. Dead keys stay dead.
fn check_a_crowd(end_all: impl FnOnce(&ManualClock, &Requests, &mut [OperationKey])) {
    const CROWD: u64 = if cfg!(debug_assertions) { 10_000 } else { MANY / 10 };
    let (clock, purgatory) = purgatory();
    churn(&ManualClock::new(), &purgatory, 0..16);
    let mut keys = Vec::with_capacity(usize::try_from(CROWD).unwrap());
    let used = measure(|| {
        keys.extend((0..CROWD).map(|number| {
            let watches = [
                Condition::Events(number % 1000),
                Condition::Events(number + 1000),
                Condition::Threshold(number % 7, number + 1),
            ];
            let request = Request(Box::new(number));
            purgatory.watch(request, Watch::any(watches), HOUR).unwrap().key().unwrap()
        }));
        end_all(&clock, &purgatory, &mut keys);
    });
    let bytes = used.bytes_max / CROWD;
    assert!((200..=316).contains(&bytes), "{bytes} bytes for an operation");
    assert!(used.bytes_current < 3 << 10, "{} bytes are kept", used.bytes_current);
    purgatory.check_invariants();
    for number in 0..CROWD {
        let watched = purgatory.watch(Request(Box::new(0)), [number], HOUR);
        assert!(watched.is_ok());
    }
    assert!(keys.iter().all(|&key| !purgatory.is_waiting(key)), "a dead key lives");
    purgatory.check_invariants();
}

/// Bytes that a purgatory keeps for each of a random tenth of a crowd, each operation on a key of
/// `keys`: before and after `shrink`.
fn left(key: impl Fn(u64) -> u64) -> [u64; 2] {
    let (clock, purgatory) = purgatory();
    let mut random = fastrand::Rng::with_seed(3);
    let mut keys = Vec::with_capacity(usize::try_from(MANY).expect("it is small"));
    let mut shrunk = 0;
    let used = measure(|| {
        keys.extend((0..MANY).map(|number| {
            let (never, key) = (Request(Box::new(0)), [key(number)]);
            let delay = random.u32(1..60_000) * MS;
            purgatory.watch(never, key, delay).unwrap().key().unwrap()
        }));
        random.shuffle(&mut keys);
        assert!(keys.drain(keys.len() / 10..).all(|key| purgatory.complete(key)));
        shrunk = -measure(|| purgatory.shrink()).bytes_current;
    });
    purgatory.check_invariants();
    assert!(keys.iter().all(|&key| purgatory.is_waiting(key)));
    clock.advance(HOUR);
    assert_eq!(purgatory.stats().expired, keys.len() as u64);
    let each = |bytes: i64| u64::try_from(bytes).expect("something is left") / keys.len() as u64;
    [each(used.bytes_current + shrunk), each(used.bytes_current)]
}

#[test]
fn a_random_tenth_of_a_crowd_keeps_little_memory_and_less_after_shrink() {
    let (own, shared) = (left(|number| number), left(|number| number % 100));
    for (keys, [before, after], most) in [("own", own, 450), ("shared", shared, 380)] {
        assert!(before <= most && after <= 286, "{keys} keys: {before} and {after} bytes");
    }
}

#[test]
fn a_crowd_gives_back_its_memory_when_its_last_operation_has_ended() {
    check_a_crowd(|_, purgatory, keys| {
        fastrand::Rng::with_seed(1).shuffle(keys);
        assert!(keys.iter().all(|&key| purgatory.complete(key)));
    });
    check_a_crowd(|clock, purgatory, keys| {
        assert!(keys.iter().step_by(2).all(|&key| purgatory.complete(key)));
        clock.advance(HOUR);
        assert_eq!(purgatory.stats().delayed, 0);
    });
}

/// A call adds a segment of slots to each of three tables at most.
#[test]
fn no_call_makes_room_for_a_number_of_keys_that_grows() {
    let (_, purgatory) = purgatory_with(|one| one.max_delayed_per_key(9, Overload::DisplaceOldest));
    let most = (0..MANY).map(|key| {
        let request = Request(Box::new(0));
        measure(|| assert!(purgatory.watch(request, [key], HOUR).is_ok())).bytes_max
    });
    let most = most.max().expect("there are keys");
    assert!(most < 384 << 10, "{most} bytes in a call");
}

/// The future and the operation share one allocation. The keys and the purgatory are in the future.
#[cfg(feature = "future")]
#[test]
fn a_pending_wait_allocates_once() {
    use std::task::{Context, Waker};

    const WAITS: u64 = 1_000;

    let timer = Timer::builder().clock(ManualClock::new()).shards(1);
    let builder = Purgatory::builder().timer(timer);
    let purgatory: delaywheel::future::AsyncPurgatory<u64> =
        builder.build().expect("they are in range");
    let run = || {
        for _ in 0..WAITS {
            let mut wait = purgatory.wait([1, 2], HOUR);
            let pending =
                std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop()));
            assert!(pending.is_pending());
        }
    };
    run();
    assert_eq!(measure(run).count_total, WAITS);
}
