//! The protocols of the timer under a model checker, which tries every interleaving.
//!
//! A wait never times out in here, so that a lost wake-up shows as a deadlock. Each protocol has
//! twins that are broken on purpose, and must fail; they are written out by hand, because the real
//! one cannot be broken from outside.

mod backlog;
mod finish;
mod wakeup;

use std::{
    num::NonZeroU64,
    string::String,
    sync::Arc,
    time::{Duration, Instant},
    vec,
    vec::Vec,
};

use loom::thread;

use super::{
    backlog::Backlog,
    core::Core,
    engine::{Engine, Owner, Starter},
    error::{ScheduleError, ScheduleErrorKind},
    events::Events,
    executor::{Delivery, Handler, Passage},
    key::TimeoutKey,
    limit::Limit,
    ticks::TickClock,
};
use crate::{
    Clock, Expired, Tick, WheelBuilder,
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, Parker, explore},
};

/// What is due in all models, and the time that it is in them.
const DUE: Tick = Tick::ZERO;

/// What is not due in any model.
const FAR: Tick = Tick::new(100);

/// A clock that shows the start of tick 0 for ever.
#[derive(Debug)]
struct Still(Instant);

impl Clock for Still {
    fn now(&self) -> Instant {
        self.0
    }
}

/// Runs a model in every interleaving with at most three preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    explore(Some(3), model);
}

/// Shards without a timeout, and that with which their reaper sleeps.
fn core_of(shards: usize, max_pending: Option<u64>) -> (Arc<Core<u32>>, Parker) {
    let parker = Parker::new();
    let core = core_with(shards, max_pending, &parker);
    (Arc::new(core), parker)
}

fn core_with(shards: usize, max_pending: Option<u64>, parker: &Parker) -> Core<u32> {
    let wheel = WheelBuilder::new().size(2);
    let wheels: Vec<_> = (0..shards).filter_map(|_| wheel.clone().build().ok()).collect();
    let ticks = TickClock::new(Arc::new(Still(Instant::now())), Duration::from_millis(1));
    let places = max_pending.and_then(NonZeroU64::new);
    Core::new(wheels.into_iter(), ticks, parker.unparker().clone(), places)
}

fn insert(core: &Core<u32>, shard: usize, deadline: Tick, value: u32) -> TimeoutKey {
    core.insert_into(shard, DUE, deadline, value).expect("the timer is neither full nor shut down")
}

/// What is due, in the order of its values.
fn expire(core: &Core<u32>) -> Vec<u32> {
    let mut expired = Vec::new();
    core.expire(DUE, 64, &mut expired);
    values(expired)
}

fn values(expired: Vec<Expired<u32>>) -> Vec<u32> {
    let mut values: Vec<_> = expired.into_iter().map(|expired| expired.value).collect();
    values.sort_unstable();
    values
}

#[test]
fn either_cancel_or_expire_gets_the_value() {
    check(|| {
        let (core, _parker) = core_of(1, Some(1));
        let key = insert(&core, 0, DUE, 7);
        let canceller = Arc::clone(&core);
        let canceller = thread::spawn(move || canceller.cancel(key));
        let mut got = expire(&core);
        got.extend(canceller.join().expect("no thread panics"));
        assert_eq!(got, [7]);
        let (stats, pending) = core.stats();
        assert_eq!((stats.expired + stats.cancelled, pending), (1, 0));
    });
}

#[test]
#[should_panic(expected = "got twice")]
fn broken_a_cancel_that_checks_and_acts_in_two_holds_gets_what_expired() {
    check(|| {
        let slot = Arc::new(Mutex::new(Some(7)));
        let reaper = Arc::clone(&slot);
        let reaper = thread::spawn(move || reaper.lock().take().is_some());
        let value = *slot.lock();
        *slot.lock() = None;
        let is_expired = reaper.join().expect("no thread panics");
        assert!(value.is_none() || !is_expired, "got twice");
    });
}

#[test]
fn either_a_reset_puts_a_timeout_off_or_it_expires() {
    check(|| {
        let (core, _parker) = core_of(1, None);
        let key = insert(&core, 0, DUE, 7);
        let resetter = Arc::clone(&core);
        let resetter = thread::spawn(move || resetter.reset(key, Duration::from_millis(5)));
        let expired = expire(&core);
        let is_put_off = resetter.join().expect("no thread panics");
        assert_eq!(expired.len(), usize::from(!is_put_off), "put off, and expired all the same");
        let mut later = Vec::new();
        core.expire(Tick::new(4), 64, &mut later);
        assert!(later.is_empty(), "early");
        core.expire(Tick::new(5), 64, &mut later);
        assert_eq!(later.len(), usize::from(is_put_off));
    });
}

#[test]
#[should_panic(expected = "put off, and expired all the same")]
fn broken_a_reset_that_checks_and_acts_in_two_holds_puts_off_what_expired() {
    check(|| {
        let slot = Arc::new(Mutex::new(Some(0)));
        let reaper = Arc::clone(&slot);
        let reaper = thread::spawn(move || reaper.lock().take_if(|deadline| *deadline == 0));
        let is_put_off = slot.lock().is_some();
        slot.lock().iter_mut().for_each(|deadline| *deadline = 5);
        let is_expired = reaper.join().expect("no thread panics").is_some();
        assert!(is_put_off != is_expired, "put off, and expired all the same");
    });
}

#[test]
fn what_is_scheduled_while_the_timer_closes_is_refused_or_returned_or_expires() {
    check(|| {
        let (core, _parker) = core_of(1, Some(1));
        let (inserter, reaper) = (Arc::clone(&core), Arc::clone(&core));
        let inserter = thread::spawn(move || inserter.schedule(Duration::ZERO, 7).err());
        let reaper = thread::spawn(move || expire(&reaper));
        let mut got = core.close();
        got.extend(reaper.join().expect("no thread panics"));
        let refused = inserter.join().expect("no thread panics");
        got.extend(refused.map(ScheduleError::into_value));
        assert_eq!(got, [7]);
        assert!(core.next_expiration() == Tick::MAX, "a closed timer wants a turn");
        let refused = core.schedule(Duration::ZERO, 8);
        let error = refused.expect_err("the timer is closed");
        assert_eq!(error.kind(), ScheduleErrorKind::ShutDown, "the place was not given back");
    });
}

#[test]
fn a_batch_that_is_scheduled_while_the_timer_closes_is_refused_or_returned_one_by_one() {
    check(|| {
        let (core, _parker) = core_of(1, Some(2));
        let inserter = Arc::clone(&core);
        let batch = vec![(Duration::ZERO, 7), (Duration::ZERO, 8), (Duration::ZERO, 9)];
        let inserter = thread::spawn(move || inserter.schedule_batch(batch));
        let mut got = core.close();
        let (keys, rest) = inserter.join().expect("no thread panics");
        assert_eq!(got.len(), keys.len());
        let rest = rest.expect("there is room for two").into_value();
        got.extend(rest.into_iter().map(|(_, value)| value));
        got.sort_unstable();
        assert_eq!(got, [7, 8, 9]);
    });
}

#[test]
#[should_panic(expected = "lost")]
fn broken_a_close_that_drains_before_it_closes_loses_what_comes_between() {
    check(|| {
        let shard = Arc::new((Mutex::new(Vec::new()), Mutex::new(false)));
        let inserter = Arc::clone(&shard);
        let inserter = thread::spawn(move || {
            let (pending, is_closed) = &*inserter;
            let is_closed = *is_closed.lock();
            if !is_closed {
                pending.lock().push(7);
            }
            is_closed
        });
        let returned = std::mem::take(&mut *shard.0.lock());
        *shard.1.lock() = true;
        let is_refused = inserter.join().expect("no thread panics");
        assert!(is_refused || returned == [7], "lost");
    });
}

/// A reaper with nothing to do, and a shutdown. The order of the two stores of the latter is a
/// parameter.
fn stop_against_sleep(is_flag_first: bool) {
    let (core, parker) = core_of(1, None);
    let is_stopped = Arc::new(AtomicBool::new(false));
    let (closer, flag) = (Arc::clone(&core), Arc::clone(&is_stopped));
    let closer = thread::spawn(move || {
        if is_flag_first {
            flag.store(true, Ordering::Release);
        }
        closer.close();
        flag.store(true, Ordering::Release);
    });
    while !is_stopped.load(Ordering::Acquire) {
        if core.fall_asleep(DUE).is_some() && !is_stopped.load(Ordering::Acquire) {
            parker.park();
        }
        core.wake_up();
    }
    closer.join().expect("no thread panics");
}

#[test]
fn a_reaper_that_goes_to_sleep_sees_the_shutdown() {
    check(|| stop_against_sleep(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_shutdown_that_wakes_the_reaper_first_leaves_it_asleep() {
    check(|| stop_against_sleep(false));
}

type Log = Arc<Mutex<Vec<u32>>>;

fn silent() -> Events {
    Events::new("", Duration::MAX)
}

/// A whole timer without its threads, what its reaper sleeps with, and what has been run.
fn engine_of(delivery: Delivery<u32>) -> (Arc<Engine<u32>>, Parker, Log) {
    let parker = Parker::new();
    let core = core_with(1, None, &parker);
    let log = Log::new(Mutex::new(Vec::new()));
    let ran = Arc::clone(&log);
    let handler =
        Handler::new(silent(), move |expired: Expired<u32>| ran.lock().push(expired.value));
    let starter = Starter { parker: Parker::new(), executors: 0, name: String::new() };
    (Engine::new(core, handler, delivery, starter), parker, log)
}

/// One timeout, due at once, of a timer that ends; returns what was run, and what the last handle
/// gave back.
fn end_of_timer(delivery: Delivery<u32>) -> Vec<u32> {
    let (engine, parker, log) = engine_of(delivery);
    let sleeper = Arc::clone(&engine);
    let reaper = thread::spawn(move || sleeper.reap(&parker, None));
    assert!(engine.core.schedule(Duration::ZERO, 7).is_ok());
    let mut got = engine.shut_down();
    reaper.join().expect("no thread panics");
    assert_eq!(engine.shut_down(), [], "returned by the second shutdown");
    got.append(&mut log.lock());
    got
}

#[test]
fn an_inline_timer_that_ends_has_run_or_returned_everything_and_its_reaper_ends() {
    check(|| assert_eq!(end_of_timer(Delivery::Inline), [7]));
}

#[test]
fn a_timer_that_ends_before_its_executors_begin_returns_everything_and_its_reaper_ends() {
    check(|| {
        let delivery = Delivery::Threads(Passage::new(Arc::new(Backlog::new())));
        assert_eq!(end_of_timer(delivery), [7]);
    });
}

#[test]
#[should_panic(expected = "lost")]
fn broken_a_batch_that_is_on_its_way_when_the_timer_ends_is_lost() {
    check(|| {
        let shared = Arc::new((Mutex::new(vec![7]), Mutex::new(Vec::new())));
        let reaper = Arc::clone(&shared);
        let reaper = thread::spawn(move || {
            let mut batch = std::mem::take(&mut *reaper.0.lock());
            reaper.1.lock().append(&mut batch);
        });
        let mut got = std::mem::take(&mut *shared.0.lock());
        got.append(&mut shared.1.lock());
        reaper.join().expect("no thread panics");
        assert_eq!(got, [7], "lost");
    });
}

#[test]
fn the_drop_of_the_last_handle_ends_a_reaper_that_sleeps_for_good() {
    check(|| {
        let (engine, parker, _log) = engine_of(Delivery::Inline);
        let owner = Owner(Arc::clone(&engine));
        let reaper = thread::spawn(move || engine.reap(&parker, None));
        drop(owner);
        reaper.join().expect("no thread panics");
    });
}

/// Two threads that each take a place of one, and give it back.
fn one_place<P: Send + Sync + 'static>(places: P, admit: fn(&P) -> bool, release: fn(&P)) {
    let shared = Arc::new((places, AtomicU64::new(0)));
    let enter = move |(places, inside): &(P, AtomicU64)| {
        let is_admitted = admit(places);
        if is_admitted {
            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "the limit was exceeded");
            inside.fetch_sub(1, Ordering::Relaxed);
            release(places);
        }
        is_admitted
    };
    let other = Arc::clone(&shared);
    let other = thread::spawn(move || enter(&other));
    let is_admitted = enter(&shared);
    assert!(is_admitted | other.join().expect("no thread panics"), "nobody was admitted");
    assert!(admit(&shared.0) && !admit(&shared.0), "the limit has changed");
}

#[test]
fn the_limit_is_exact() {
    check(|| one_place(Limit::new(NonZeroU64::new(1)), Limit::admit, |limit| limit.release(1)));
}

#[test]
#[should_panic(expected = "the limit")]
fn broken_a_limit_that_looks_and_then_takes_admits_too_many() {
    let admit = |free: &AtomicU64| {
        let places = free.load(Ordering::Relaxed);
        free.store(places.saturating_sub(1), Ordering::Relaxed);
        places > 0
    };
    let release = |free: &AtomicU64| {
        free.fetch_add(1, Ordering::Relaxed);
    };
    check(move || one_place(AtomicU64::new(1), admit, release));
}

#[test]
fn of_two_inserts_for_one_place_one_is_refused_with_its_value() {
    check(|| {
        let (core, _parker) = core_of(1, Some(1));
        let other = Arc::clone(&core);
        let other = thread::spawn(move || other.insert(DUE, FAR, 1).err());
        let refused = core.insert(DUE, FAR, 2).err();
        let refused = [refused, other.join().expect("no thread panics")];
        let refused: Vec<_> =
            refused.into_iter().flatten().map(|error| (error.kind(), error.into_value())).collect();
        let full = |value| [(ScheduleErrorKind::Full, value)];
        assert!(refused == full(1) || refused == full(2), "{refused:?}");
        assert_eq!(core.stats().1, 1);
    });
}
