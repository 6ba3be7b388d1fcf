//! A map that tasks share: no due entry waits while a task waits for it.

use std::{
    collections::BTreeMap,
    pin::{Pin, pin},
    sync::{Arc, mpsc},
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, ManualClock,
    future::{SharedDelayMap, SleepError},
    time::DelayMap,
};
use fastrand::Rng;
use pollster::block_on;

use crate::support::{SECOND, Set, Wakes, poll, poll_with, timer, timer_on};

type Next<'a> = Pin<Box<dyn Future<Output = Result<(u32, u32), SleepError>> + 'a>>;

/// A task that runs only after a wake-up.
struct Task<'a> {
    next: Next<'a>,
    woken: (Arc<Wakes>, Waker),
    /// The number of wake-ups before the last poll.
    seen: Option<u64>,
}

impl<'a> Task<'a> {
    fn new(map: &'a SharedDelayMap<u32, u32>) -> Self {
        Self { next: Box::pin(map.next()), woken: Wakes::new(), seen: None }
    }

    /// Polls until the task waits without a wake-up. Returns the entries.
    fn run(&mut self, map: &'a SharedDelayMap<u32, u32>) -> Vec<(u32, u32)> {
        let (mut entries, (woken, waker)) = (Vec::new(), &self.woken);
        while self.seen.replace(woken.count()) != Some(woken.count()) {
            while let Poll::Ready(entry) = poll_with(&mut self.next, waker) {
                entries.push(entry.expect("the timer runs"));
                self.next = Box::pin(map.next());
            }
        }
        entries
    }
}

#[test]
fn no_due_entry_waits_while_tasks_wait_and_run_only_when_woken() {
    for seed in 0..300 {
        let (mut rng, (timer, clock)) = (Rng::with_seed(seed), timer());
        let map = SharedDelayMap::on(&timer);
        let mut model: BTreeMap<u32, (u32, Duration)> = BTreeMap::new();
        let mut tasks: Vec<_> = (0..rng.usize(1..4)).map(|_| Task::new(&map)).collect();
        for step in 0..200 {
            let (key, delay) = (rng.u32(..8), SECOND * rng.u32(..20));
            let deadline = clock.elapsed() + delay;
            match rng.u32(..6) {
                0 | 1 => {
                    let old = model.insert(key, (step, deadline)).map(|(value, _)| value);
                    assert_eq!(map.lock().insert(key, step, delay).unwrap(), old, "seed {seed}");
                }
                2 => {
                    let found = model.get_mut(&key).map(|entry| entry.1 = deadline).is_some();
                    assert_eq!(map.lock().reset(&key, delay), found);
                }
                3 => {
                    let old = model.remove(&key).map(|(value, _)| value);
                    assert_eq!(map.lock().remove(&key), old);
                }
                // A task that may have been woken, or about to be, is dropped.
                4 if tasks.len() > 1 => drop(tasks.swap_remove(rng.usize(..tasks.len()))),
                4 => tasks.push(Task::new(&map)),
                _ => clock.advance(delay / 4),
            }
            rng.shuffle(&mut tasks);
            for (key, value) in tasks.iter_mut().flat_map(|task| task.run(&map)) {
                let (expected, deadline) = model.remove(&key).expect("it was in the map");
                assert_eq!(value, expected, "seed {seed}");
                assert!(deadline <= clock.elapsed(), "seed {seed}: early");
            }
            let late = model.values().find(|(_, deadline)| *deadline <= clock.elapsed());
            assert_eq!(late, None, "seed {seed}, step {step}: a due entry waits");
        }
    }
}

#[test]
fn only_an_earlier_deadline_wakes_the_tasks_of_a_map() {
    let (timer, _clock) = timer();
    let map = SharedDelayMap::on(&timer);
    let (woken, waker) = Wakes::new();
    let mut next: Next<'_> = Box::pin(map.next());
    let mut poll_next = || assert!(poll_with(&mut next, &waker).is_pending());
    let mut after = |seconds: u32, count| {
        poll_next();
        map.lock().insert(seconds, 0, SECOND * seconds).unwrap();
        assert_eq!(woken.count(), count, "after an insert at {seconds} s");
    };
    after(60, 1);
    after(90, 1);
    after(30, 2);
    after(30, 2);
    poll_next();
    map.lock().remove(&30);
    map.lock().insert(45, 0, SECOND * 45).unwrap();
    assert_eq!(woken.count(), 2, "the task woken up before that");
    assert!(format!("{map:?}").contains("45"));
    drop(next);
    assert_eq!(Arc::strong_count(&woken), 2, "a dropped future leaves its waker");
}

#[test]
fn a_map_whose_timer_is_shut_down_keeps_its_entries() {
    let (timer, clock) = timer();
    let map = SharedDelayMap::on(&timer);
    map.lock().insert(1, 1, SECOND).unwrap();
    let mut next: Next<'_> = Box::pin(map.next());
    assert!(poll(&mut next).is_pending());
    timer.shutdown();
    assert!(matches!(poll(&mut next), Poll::Ready(Err(_))));
    clock.advance(SECOND);
    assert_eq!(map.lock().pop_expired(), Some((1, 1)));
}

#[test]
fn a_task_waits_for_the_entries_of_a_map() {
    let (timer, clock) = timer();
    let mut map = DelayMap::on(&timer);
    assert_eq!(block_on(map.next()).unwrap(), None, "it is empty");
    map.insert('a', 1, 2 * SECOND).unwrap();
    assert!(poll(&mut pin!(map.next())).is_pending());
    map.insert('b', 2, SECOND).unwrap();
    {
        let mut next = pin!(map.next());
        assert!(poll(&mut next).is_pending());
        clock.advance(SECOND);
        assert_eq!(poll(&mut next).map(Result::unwrap), Poll::Ready(Some(('b', 2))));
    }
    clock.advance(SECOND);
    assert_eq!(block_on(map.next()).unwrap(), Some(('a', 1)));
    map.insert('c', 3, Duration::MAX).unwrap();
    assert!(poll(&mut pin!(map.next())).is_pending());
}

/// The timer has seen the deadline, and the map has not.
#[test]
fn a_task_gets_an_entry_whose_time_was_seen_before_the_clock_stepped_back() {
    for is_shared in [false, true] {
        let (clock, timer) = timer_on(Set::reporting(false, None), |builder| builder);
        let (map, mut own) = (SharedDelayMap::on(&timer), DelayMap::on(&timer));
        map.lock().insert(1, 2, 8 * SECOND).unwrap();
        own.insert(1, 2, 8 * SECOND).unwrap();
        clock.show(10 * SECOND);
        drop(timer.sleep(SECOND));
        clock.show(5 * SECOND);
        let (taken, entries) = mpsc::channel();
        thread::spawn(move || {
            let entry =
                if is_shared { block_on(map.next()).ok() } else { block_on(own.next()).unwrap() };
            taken.send(entry)
        });
        assert_eq!(entries.recv_timeout(60 * SECOND), Ok(Some((1, 2))), "shared: {is_shared}");
    }
}

/// Two of these clocks have one origin, so their instants can be equal.
#[derive(Debug, Clone)]
struct Since(Instant, ManualClock);

impl Clock for Since {
    fn now(&self) -> Instant {
        self.0 + self.1.elapsed()
    }
}

#[test]
fn a_map_that_replaces_that_of_another_timer_and_its_timer_are_not_early() {
    let (start, clocks) = (Instant::now(), [(); 2].map(|()| ManualClock::new()));
    let timers = clocks.clone().map(|clock| timer_on(Since(start, clock), |builder| builder).1);
    let due = start + SECOND;
    let map = SharedDelayMap::on(&timers[0]);
    map.lock().insert_at(1, 1, due).unwrap();
    let mut next: Next<'_> = Box::pin(map.next());
    assert!(poll(&mut next).is_pending());
    clocks[0].advance(SECOND);
    assert_eq!(timers[0].now(), due, "the sleep of the task is over");
    let mut other = DelayMap::on(&timers[1]);
    other.insert_at(2, 2, due).unwrap();
    *map.lock() = other;
    assert!(poll(&mut next).is_pending());
    assert!(poll(&mut timers[1].sleep_until(due)).is_pending());
    assert_eq!(timers[1].now(), start);
    clocks[1].advance(SECOND);
    assert_eq!(poll(&mut next).map(Result::unwrap), Poll::Ready((2, 2)));
}
