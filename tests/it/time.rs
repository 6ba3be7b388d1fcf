//! The module `time`: a map whose entries expire, beside a sorted map, and deadlines.

use std::{
    cell::Cell,
    collections::BTreeMap,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, ManualClock, MissedTicks, Timer,
    time::{Deadline, DelayMap, format_grpc_timeout, parse_grpc_timeout},
};
use fastrand::Rng;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn map<K, V>(clock: &ManualClock) -> DelayMap<K, V> {
    DelayMap::on(&Timer::builder().clock(clock.clone()).build().unwrap())
}

/// The tick in which a time lies, and the first that begins at it or later.
fn ticks(time: Duration) -> (u128, u128) {
    (time.as_nanos() / MS.as_nanos(), time.as_nanos().div_ceil(MS.as_nanos()))
}

/// A clock that the test sets, also back.
#[derive(Debug, Clone)]
struct Stepping(Instant, Arc<Mutex<Duration>>);

impl Clock for Stepping {
    fn now(&self) -> Instant {
        self.0 + *self.1.lock().unwrap()
    }
}

/// A map of values and deadlines in ticks, and the same calls on a [`DelayMap`], while the clock
/// stands still, jumps ahead and steps back.
fn agrees_with_a_sorted_map(seed: u64) {
    let (mut rng, clock) = (Rng::with_seed(seed), Stepping(Instant::now(), Arc::default()));
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let (mut map, mut model) = (DelayMap::on(&timer), BTreeMap::new());
    let reach = [3, 300, 30_000, 3_000_000][rng.usize(..4)];
    // The start of the latest tick that the map has seen, to which the clock does not step back.
    let mut latest = Duration::ZERO;
    for step in 0..400 {
        let key = rng.u32(..40);
        let delay = Duration::from_micros(rng.u64(..reach));
        let time = *clock.1.lock().unwrap();
        let call = rng.u32(..10);
        let now = time.max(latest);
        if call < 8 && call != 5 || call == 9 {
            latest = MS * u32::try_from(ticks(now).0).unwrap();
        }
        let after = ticks(now + delay).1;
        // A deadline that has passed counts as the present, or as less while entries are due.
        let at = ticks(time + delay).1;
        let is_clamped = at < ticks(latest).1;
        let at = at.max(ticks(latest).1);
        let instant = clock.0 + time + delay;
        match call {
            0..=3 => {
                let old = model.insert(key, (step, after, false)).map(|(value, ..)| value);
                assert_eq!(map.insert(key, step, delay).unwrap(), old);
            }
            4 => {
                let old = model.insert(key, (step, at, is_clamped)).map(|(value, ..)| value);
                assert_eq!(map.insert_at(key, step, instant).unwrap(), old);
            }
            5 => assert_eq!(map.remove(&key), model.remove(&key).map(|(value, ..)| value)),
            6 => {
                let entry = model.get_mut(&key);
                let found = entry.map(|entry| *entry = (entry.0, after, false)).is_some();
                assert_eq!(map.reset(&key, delay), found);
            }
            7 => {
                let entry = model.get_mut(&key);
                let found = entry.map(|entry| *entry = (entry.0, at, is_clamped)).is_some();
                assert_eq!(map.reset_at(&key, instant), found);
            }
            8 if rng.bool() => *clock.1.lock().unwrap() = time.saturating_sub(delay),
            8 => *clock.1.lock().unwrap() = time + 2 * delay,
            _ => {
                let now = ticks(now).0;
                let mut last = 0;
                while let Some((key, value)) = map.pop_expired() {
                    let (expected, deadline, was_clamped) = model.remove(&key).expect("an entry");
                    assert_eq!(value, expected);
                    assert!(deadline <= now, "seed {seed}: {} ticks early", deadline - now);
                    assert!(was_clamped || last <= deadline, "seed {seed}: in order");
                    last = if was_clamped { last } else { deadline };
                }
                assert!(model.values().all(|&(_, deadline, _)| deadline > now), "none is left");
                let first = model.values().map(|&(_, deadline, _)| deadline).min();
                let next = map.next_expiration().map(|next| ticks(next - clock.0).0);
                assert!(next <= first && next.is_some() == first.is_some());
            }
        }
        assert_eq!(map.get(&key), model.get(&key).map(|(value, ..)| value));
        assert_eq!(map.len(), model.len());
    }
    let mut left: Vec<_> = map.iter().map(|(&key, &value)| (key, value)).collect();
    left.sort_unstable();
    let expected: Vec<_> = model.iter().map(|(&key, &(value, ..))| (key, value)).collect();
    assert_eq!(left, expected);
    map.shrink();
    assert!(expected.iter().all(|(key, value)| map.get_mut(key) == Some(&mut value.clone())));
    map.clear();
    assert_eq!((map.is_empty(), map.pop_expired(), map.get(&0)), (true, None, None));
}

#[test]
fn a_delay_map_agrees_with_a_sorted_map() {
    for seed in 0..200 {
        agrees_with_a_sorted_map(seed);
    }
}

#[test]
fn a_replaced_entry_keeps_its_key_and_takes_the_new_deadline() {
    let clock = ManualClock::new();
    let mut map = map(&clock);
    assert_eq!(map.insert(String::from("a"), 1, HOUR).unwrap(), None);
    assert_eq!(map.insert(String::from("a"), 2, 3 * HOUR).unwrap(), Some(1));
    clock.advance(2 * HOUR);
    assert_eq!((map.pop_expired(), map.get("a")), (None, Some(&2)));
    clock.advance(HOUR);
    assert_eq!(map.get("a"), Some(&2), "it stays until it is taken");
    assert_eq!((map.pop_expired(), map.get("a")), (Some(("a".into(), 2)), None));
    map.insert("b".into(), 3, Duration::MAX).unwrap();
    assert_eq!((map.deadline("b"), map.next_expiration()), (None, None));
    clock.advance(1000 * HOUR);
    assert_eq!((map.pop_expired(), map.remove("b")), (None, Some(3)));
}

/// A key whose hash panics when it is told to.
#[derive(Debug, PartialEq, Eq)]
struct Fragile(u32, Rc<Cell<bool>>);

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert!(!self.1.get(), "by the hash");
        self.0.hash(state);
    }
}

#[test]
fn a_hash_that_panics_leaves_the_other_entries_as_they_are() {
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
    fails(&mut |map| drop(map.pop_expired()));
    panics.set(false);
    for number in 1..100 {
        assert_eq!(map.get(&key(number)), Some(&number));
    }
    clock.advance(HOUR * 100);
    let rest: Vec<_> = std::iter::from_fn(|| map.pop_expired()).map(|(_, value)| value).collect();
    assert_eq!(rest, (1..100).collect::<Vec<_>>(), "the one in the caller's hands is gone");
}

#[cfg(feature = "future")]
#[test]
fn a_task_waits_for_the_entries_of_a_map() {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    let clock = ManualClock::new();
    let mut map = map(&clock);
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(pollster::block_on(map.next()).unwrap(), None, "it is empty");
    map.insert('a', 1, 2 * HOUR).unwrap();
    assert!(pin!(map.next()).poll(&mut context).is_pending());
    map.insert('b', 2, HOUR).unwrap();
    {
        let mut next = pin!(map.next());
        assert!(next.as_mut().poll(&mut context).is_pending());
        clock.advance(HOUR);
        assert_eq!(next.poll(&mut context).map(Result::unwrap), Poll::Ready(Some(('b', 2))));
    }
    clock.advance(HOUR);
    assert_eq!(pollster::block_on(map.next()).unwrap(), Some(('a', 1)));
    map.insert('c', 3, Duration::MAX).unwrap();
    assert!(pin!(map.next()).poll(&mut context).is_pending());
}

#[test]
fn a_timeout_of_grpc_is_written_rounded_down_in_eight_digits() {
    for shift in 0..64 {
        for nanos in [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
            let limit = Duration::from_nanos(nanos);
            let header = format_grpc_timeout(limit);
            assert!(header.len() <= 9, "{header}");
            let read = parse_grpc_timeout(&header).unwrap();
            assert!(
                read <= limit && limit.saturating_sub(read) <= limit / 90_000,
                "{header} for {limit:?}"
            );
        }
    }
    assert_eq!(format_grpc_timeout(Duration::from_nanos(99_999_999)), "99999999n");
    assert_eq!(format_grpc_timeout(Duration::from_nanos(100_000_999)), "100000u");
    assert_eq!(parse_grpc_timeout("99999999H"), Ok(99_999_999 * HOUR));
}

#[test]
fn a_malformed_timeout_of_grpc_is_handed_back() {
    for value in ["", "S", "5", "5s", "+5S", "-5S", " 5S", "5 S", "123456789n", "5é"] {
        let error = parse_grpc_timeout(value).unwrap_err();
        assert!(error.to_string().contains(&format!("{value:?}")));
        assert_eq!(error.into_value(), value);
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
        assert!(
            (delay..=delay + slack).contains(&ran.saturating_sub(*scheduled)),
            "{scheduled:?} {ran:?}"
        );
    }

    // No tick begins in these windows, so they count as their beginnings.
    let (none, backwards) = (delay + MS / 1000, delay / 2);
    for window in [none..=none, delay..=backwards] {
        schedule(window);
        clock.advance(60_000 * MS);
        let (scheduled, ran) = runs.lock().unwrap().pop().unwrap();
        assert!((delay..delay + 2 * tick).contains(&ran.saturating_sub(scheduled)));
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
