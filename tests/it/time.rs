//! The module `time`. The simulation has a model of the map.

use std::{
    cell::Cell,
    hash::{Hash, Hasher},
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, ManualClock, MissedTicks, Timer,
    time::{Deadline, DelayMap, format_grpc_timeout, parse_grpc_timeout},
};

use crate::timer::support::{HOUR, MS};

fn map<K, V>(clock: &ManualClock) -> DelayMap<K, V> {
    DelayMap::on(&Timer::builder().clock(clock.clone()).build().unwrap())
}

#[test]
fn a_replaced_entry_keeps_its_key_and_takes_the_new_deadline() {
    let clock = ManualClock::new();
    let mut map = map(&clock);
    assert_eq!(map.insert(String::from("a"), 1, HOUR).unwrap(), None);
    assert_eq!(map.insert(String::from("a"), 2, 3 * HOUR).unwrap(), Some(1));
    clock.advance(2 * HOUR);
    assert_eq!((map.pop_expired(), map.get("a")), (None, Some(&2)));
    assert_eq!(map.deadline("a"), Some(clock.now() + HOUR));
    clock.advance(HOUR);
    assert_eq!(map.get("a"), Some(&2), "it stays until it is taken");
    assert_eq!((map.pop_expired(), map.get("a")), (Some(("a".into(), 2)), None));
    map.insert("b".into(), 3, Duration::MAX).unwrap();
    assert_eq!((map.deadline("b"), map.next_expiration()), (None, None));
    clock.advance(1000 * HOUR);
    map.get_mut("b").into_iter().for_each(|value| *value += 1);
    assert_eq!((map.pop_expired(), map.remove("b")), (None, Some(4)));
    map.insert("c".into(), 5, HOUR).unwrap();
    map.clear();
    assert_eq!((map.len(), map.get("c"), map.next_expiration()), (0, None, None));
}

#[derive(Debug, PartialEq, Eq)]
struct Fragile(u32, Rc<Cell<bool>>);

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert!(!self.1.get(), "by the hash");
        self.0.hash(state);
    }
}

#[test]
fn a_hash_that_panics_leaves_the_map_as_it_is() {
    let (clock, panics) = (ManualClock::new(), Rc::new(Cell::new(false)));
    let key = |number| Fragile(number, Rc::clone(&panics));
    let mut map = map(&clock);
    for number in 0..100 {
        map.insert(key(number), number, HOUR * (1 + number)).unwrap();
    }
    panics.set(true);
    let mut fails = |call: &mut dyn FnMut(&mut DelayMap<Fragile, u32>)| {
        assert!(catch_unwind(AssertUnwindSafe(|| call(&mut map))).is_err());
    };
    fails(&mut |map| drop(map.insert(key(100), 100, HOUR)));
    fails(&mut |map| assert_eq!(map.remove(&key(5)), None));
    clock.advance(HOUR);
    map.shrink();
    assert_eq!(map.pop_expired().map(|(_, value)| value), Some(0), "no key is hashed");
    panics.set(false);
    for number in 1..100 {
        assert_eq!(map.get(&key(number)), Some(&number));
    }
    clock.advance(HOUR * 100);
    let rest: Vec<_> = std::iter::from_fn(|| map.pop_expired()).map(|(_, value)| value).collect();
    assert_eq!(rest, (1..100).collect::<Vec<_>>());
}

#[derive(PartialEq, Eq, Hash)]
struct Brittle;

impl Drop for Brittle {
    fn drop(&mut self) {
        panic!("by the drop");
    }
}

#[test]
fn a_call_drops_its_result_if_the_drop_of_a_key_panics() {
    let (mut map, value) = (DelayMap::new(), Rc::new(()));
    let insert = |map: &mut DelayMap<_, _>| drop(map.insert(Brittle, Rc::clone(&value), HOUR));
    insert(&mut map);
    assert!(catch_unwind(AssertUnwindSafe(|| insert(&mut map))).is_err());
    assert_eq!((map.len(), Rc::strong_count(&value)), (1, 2), "it has replaced the value");
    let key = ManuallyDrop::new(Brittle);
    assert!(catch_unwind(AssertUnwindSafe(|| map.remove(&*key))).is_err());
    assert_eq!((map.len(), Rc::strong_count(&value)), (0, 1));
}

#[test]
fn a_timeout_of_grpc_is_written_rounded_down_in_eight_digits() {
    for shift in 0..64 {
        for nanos in [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
            let limit = Duration::from_nanos(nanos);
            let header = format_grpc_timeout(limit);
            assert!(header.len() <= 9, "{header}");
            let read = parse_grpc_timeout(&header).unwrap();
            let lost = limit.checked_sub(read).expect("it is rounded down");
            assert!(lost <= limit / 90_000, "{header} for {limit:?}");
        }
    }
    assert_eq!(format_grpc_timeout(Duration::from_nanos(99_999_999)), "99999999n");
    assert_eq!(format_grpc_timeout(Duration::from_nanos(100_000_999)), "100000u");
    assert_eq!(parse_grpc_timeout("99999999H"), Ok(99_999_999 * HOUR));
}

#[test]
fn a_malformed_timeout_of_grpc_is_named() {
    for value in ["", "S", "5", "5s", "+5S", "-5S", " 5S", "5 S", "123456789n", "5é"] {
        let error = parse_grpc_timeout(value).unwrap_err();
        assert!(error.to_string().contains(&format!("{value:?}")));
    }
}

#[test]
fn a_deadline_is_the_least_of_a_chain_and_never_early() {
    let now = Instant::now();
    let (soon, late) = (Deadline::at(now + MS), Deadline::at(now + HOUR));
    for (one, two) in [(soon, late), (late, soon), (soon, Deadline::NEVER)] {
        assert_eq!((one.min(two), two.min(one)), (soon, soon));
    }
    assert_eq!((soon.remaining_at(now), soon.remaining_at(now + HOUR)), (MS, Duration::ZERO));
    assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
    assert_eq!((Deadline::NEVER.remaining(), Deadline::NEVER.instant()), (Duration::MAX, None));
    assert!(Deadline::after(HOUR).remaining() > HOUR / 2);
}

/// Runs of callbacks: when each was scheduled, and when it ran.
type Runs = Arc<Mutex<Vec<(Duration, Duration)>>>;

#[test]
fn timeouts_with_a_window_share_wake_ups_and_stay_within_it() {
    let (clock, runs) = (ManualClock::new(), Runs::default());
    let tick = Duration::from_micros(700);
    let timer = Timer::builder().clock(clock.clone()).tick(tick).build().unwrap();
    let (delay, slack) = (30_000 * MS, 1_000 * MS);
    let schedule = |window| {
        let (shown, runs, scheduled) = (clock.clone(), Arc::clone(&runs), clock.elapsed());
        let run = move || runs.lock().unwrap().push((scheduled, shown.elapsed()));
        timer.schedule_within(window, run).unwrap();
    };
    for _ in 0..10_000 {
        schedule(delay..=delay + slack);
        clock.advance(MS);
    }
    assert!(runs.lock().unwrap().is_empty(), "the first window opens later");
    let wake_ups = std::iter::from_fn(|| clock.advance_to_next()).count();
    assert!(wake_ups <= 10_000 / 20, "{wake_ups} wake-ups");
    let taken = std::mem::take(&mut *runs.lock().unwrap());
    assert_eq!(taken.len(), 10_000);
    for (scheduled, ran) in &taken {
        let after = ran.saturating_sub(*scheduled);
        assert!((delay..=delay + slack).contains(&after), "{scheduled:?} {ran:?}");
        // The window has more than 1024 ticks.
        assert_eq!(ran.as_micros() % (1024 * tick).as_micros(), 0);
    }
}

#[test]
fn repetitions_that_begin_together_are_spread_over_the_period() {
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let (start, period) = (timer.now(), 10_000 * MS);
    let mut starts = [0; 10];
    for seed in 0..1000 {
        let repeat = timer.repeat(period).spread().seed(seed);
        let repeating = repeat.at_fixed_rate(MissedTicks::Skip, |_| ()).unwrap();
        let first = repeating.next_run().unwrap() - start;
        assert!(first <= period);
        starts[usize::try_from(first.as_millis()).unwrap().min(9_999) / 1000] += 1;
    }
    assert!(starts.iter().all(|count| (60..140).contains(count)), "{starts:?}");
}
