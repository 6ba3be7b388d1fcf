//! The protocols of the timer under a model checker, which tries every interleaving.
//!
//! No wait times out here, so a lost wake-up shows as a deadlock. Canaries break the protocols in
//! the real code, and the models must fail. Where a caller can break a protocol, a test `broken_..`
//! does so, and must fail.

mod debounce;
mod driver;
mod finish;
mod reaper;
mod receivers;
mod sleeps;
mod wakeup;
mod wall;

use std::{
    num::NonZeroU64,
    string::String,
    sync::Arc,
    task::{Wake, Waker},
    time::{Duration, Instant},
    vec::Vec,
};

use loom::thread;

use super::{
    delivery::{Backlog, Delivery, Handler},
    error::{ScheduleError, ScheduleErrorKind},
    reaper::{Reaper, Turn},
    shards::{Shards, TimeoutKey, shard::Permits},
    stats::Events,
    value::{Owner, SharedTimer, Starter},
};
use crate::{
    clock::{Clock, Reading, TickClock},
    sync::{AtomicU64, Mutex, Ordering, Parker, explore},
    tick::Tick,
    ticks::Nanos,
    wheel::{Expired, TimingWheel, WheelBuilder},
};

/// The current tick of most models, so a deadline that is due.
const DUE: Tick = Tick::ZERO;

/// A deadline that is not due at [`DUE`].
const FAR: Tick = Tick::new(100);

struct UnparkWaker(Parker);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn waker(task: &Parker) -> Waker {
    Waker::from(Arc::new(UnparkWaker(task.clone())))
}

/// A clock that stands still at the start of tick 0.
#[derive(Debug)]
struct StoppedClock(Instant);

impl Clock for StoppedClock {
    fn now(&self) -> Instant {
        self.0
    }
}

/// Runs a model in every interleaving with at most three preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    explore(Some(3), model);
}

/// Like [`check`], with at most two preemptions, since models of three threads take minutes with
/// three. The variable `LOOM_MAX_PREEMPTIONS` asks for more.
fn check_of_three(model: impl Fn() + Sync + Send + 'static) {
    explore(Some(2), model);
}

/// Runs a function on a thread that shares a value.
pub(crate) fn beside<S: 'static, V: 'static>(
    shared: &Arc<S>,
    run: impl FnOnce(&S) -> V + 'static,
) -> thread::JoinHandle<V> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

pub(crate) fn join<V>(thread: thread::JoinHandle<V>) -> V {
    thread.join().expect("no thread panics")
}

/// Returns empty shards, and the parker of their reaper.
fn new_shards(count: usize, max_pending: Option<u64>) -> (Arc<Shards<TimingWheel<u32>>>, Parker) {
    let parker = Parker::new();
    let shards = shards_with(count, max_pending, stopped(), &parker);
    (shards, parker)
}

fn stopped() -> StoppedClock {
    StoppedClock(Instant::now())
}

fn shards_with<V: Send + 'static>(
    count: usize,
    max_pending: Option<u64>,
    clock: impl Clock,
    parker: &Parker,
) -> Arc<Shards<TimingWheel<V>>> {
    let wheel = WheelBuilder::new().size(2);
    let wheels: Vec<_> = (0..count).filter_map(|_| wheel.clone().build().ok()).collect();
    let clock = TickClock::new(Some(Arc::new(clock)), Duration::from_millis(1));
    let max_pending = max_pending.and_then(NonZeroU64::new);
    Shards::new(wheels.into_iter(), clock, parker.clone(), max_pending)
}

fn insert(
    shards: &Shards<TimingWheel<u32>>,
    index: usize,
    deadline: Tick,
    value: u32,
) -> TimeoutKey {
    let inserted = try_insert(shards, index, DUE, deadline, value);
    inserted.expect("the timer is neither full nor shut down")
}

fn try_insert<V: Send + 'static>(
    shards: &Shards<TimingWheel<V>>,
    index: usize,
    now: Tick,
    deadline: Tick,
    value: V,
) -> Result<TimeoutKey, ScheduleError<V>> {
    shards.lock(index).insert(now, deadline, value).map(|key| TimeoutKey { shard: index, key })
}

/// Appends due timeouts to `expired`, in one hold of each shard.
fn expire_due<V: Send + 'static>(
    shards: &Shards<TimingWheel<V>>,
    read: Reading,
    expired: &mut Vec<Expired<V>>,
) {
    for index in shards.due(read.now) {
        shards.lock(index).expire(read, 64, expired);
    }
}

fn expired(values: impl IntoIterator<Item = u32>) -> Vec<Expired<u32>> {
    let mut wheel = TimingWheel::new(DUE);
    for value in values {
        wheel.insert(DUE, value).expect("the wheel has room");
    }
    wheel.advance(DUE).collect()
}

/// Expires due timeouts and returns their values, sorted.
fn expire(shards: &Shards<TimingWheel<u32>>) -> Vec<u32> {
    let mut expired = Vec::new();
    expire_due(shards, Reading { elapsed: Nanos::ZERO, now: Tick::ZERO }, &mut expired);
    values(expired)
}

fn values(expired: Vec<Expired<u32>>) -> Vec<u32> {
    let mut values: Vec<_> = expired.into_iter().map(|expired| expired.value).collect();
    values.sort_unstable();
    values
}

#[test]
fn a_timeout_inserted_during_a_shutdown_is_refused_or_returned_or_expires() {
    check(|| {
        let (shards, _parker) = new_shards(1, Some(1));
        let inserter = beside(&shards, |shards| try_insert(shards, 0, DUE, DUE, 7).err());
        let reaper = beside(&shards, expire);
        let mut got = shards.close_and_drain();
        got.extend(join(reaper));
        got.extend(join(inserter).map(ScheduleError::into_value));
        assert_eq!(got, [7]);
        assert_eq!(shards.next_expiration(), Tick::MAX, "it is shut down");
        let refused = try_insert(&shards, 0, DUE, DUE, 8);
        let error = refused.expect_err("the timer is shut down");
        assert_eq!(error.kind(), ScheduleErrorKind::ShutDown, "no permit is free");
        shards.check_invariants();
    });
}

type Log = Arc<Mutex<Vec<u32>>>;

fn silent() -> Events {
    Events::new(String::new(), Duration::MAX)
}

/// Returns a timer without threads, its reaper, and the values that the handler gets.
fn new_timer(delivery: Delivery<u32>) -> (Arc<SharedTimer<TimingWheel<u32>>>, Reaper, Log) {
    let reaper = Reaper::new("");
    let (timer, log) = timer_of(&reaper, delivery);
    (timer, reaper, log)
}

/// Returns a timer of this reaper, and the values that the handler gets.
fn timer_of(reaper: &Reaper, delivery: Delivery<u32>) -> (Arc<SharedTimer<TimingWheel<u32>>>, Log) {
    let log = Log::new(Mutex::new(Vec::new()));
    let ran = Arc::clone(&log);
    (timer_with(reaper, delivery, move |expired| ran.lock().push(expired)), log)
}

fn timer_with<V: Send + 'static>(
    reaper: &Reaper,
    delivery: Delivery<V>,
    handle: impl Fn(V) + Send + Sync + 'static,
) -> Arc<SharedTimer<TimingWheel<V>>> {
    let shards = shards_with(1, None, stopped(), reaper.parker());
    timer_of_shards(reaper, shards, delivery, handle)
}

fn timer_of_shards<V: Send + 'static>(
    reaper: &Reaper,
    shards: Arc<Shards<TimingWheel<V>>>,
    delivery: Delivery<V>,
    handle: impl Fn(V) + Send + Sync + 'static,
) -> Arc<SharedTimer<TimingWheel<V>>> {
    let starter = Starter { reaper: reaper.clone(), executors: 0 };
    let handler = Handler::new(silent(), handle);
    SharedTimer::new(shards, handler, delivery, starter)
}

/// Makes the reaper serve a timer. Returns the thread of the reaper, unless it runs already.
fn serve(
    reaper: &Reaper,
    timer: &Arc<SharedTimer<TimingWheel<u32>>>,
) -> Option<thread::JoinHandle<()>> {
    let run = reaper.clone();
    serve_by(reaper, timer, move || run.run())
}

/// Like [`serve`], with a thread that runs `act` instead of the loop of the reaper.
fn serve_by<V: 'static>(
    reaper: &Reaper,
    timer: &Arc<SharedTimer<TimingWheel<u32>>>,
    act: impl FnOnce() -> V + 'static,
) -> Option<thread::JoinHandle<V>> {
    let mut started = None;
    let start = || {
        let thread = thread::spawn(act);
        let id = thread.thread().id();
        started = Some(thread);
        Ok(id)
    };
    let served = reaper.join(timer.client(), start);
    served.expect("the thread starts");
    timer.need_no_threads();
    started
}

fn end(reaper: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    reaper.into_iter().for_each(join);
}

/// Shuts a timer with one due timeout down. Returns the values that the handler got and those that
/// the shutdown returned.
fn end_of_timer(delivery: Delivery<u32>) -> Vec<u32> {
    let (timer, reaper, log) = new_timer(delivery);
    let reaper = serve(&reaper, &timer);
    insert(&timer.shards, 0, DUE, 7);
    let mut got = timer.shut_down();
    end(reaper);
    assert_eq!(timer.shut_down(), [], "returned by the second shutdown");
    got.append(&mut log.lock());
    timer.check_invariants();
    got
}

#[test]
fn a_shutdown_returns_each_value_that_did_not_run_and_the_reaper_ends() {
    check(|| assert_eq!(end_of_timer(Delivery::Inline), [7]));
    // No executor has begun.
    check(|| {
        let delivery = Delivery::Backlog(Arc::new(Backlog::new(false)));
        assert_eq!(end_of_timer(delivery), [7]);
    });
}

/// A time at which a timeout that is due at [`DUE`] is late.
const LATE: Reading = Reading { elapsed: Nanos::new(9_000_000), now: Tick::new(9) };

/// A timer with executor threads and a timeout that is late, and a thread that inserts and helps.
fn late_timer() -> (Arc<SharedTimer<TimingWheel<u32>>>, Reaper, Log, thread::JoinHandle<Vec<u32>>) {
    let (timer, reaper, log) = new_timer(Delivery::Backlog(Arc::new(Backlog::new(false))));
    insert(&timer.shards, 0, DUE, 7);
    timer.shards.wakeup.set_late_after(DUE.saturating_add(1));
    let helper = beside(&timer, |timer| {
        let refused = try_insert(&timer.shards, 0, LATE.now, FAR, 8).err();
        timer.help_if_late(LATE);
        refused.into_iter().map(ScheduleError::into_value).collect()
    });
    (timer, reaper, log, helper)
}

#[test]
fn a_shutdown_beside_a_thread_that_helps_returns_each_value() {
    check(|| {
        let (timer, _reaper, _log, helper) = late_timer();
        let mut got = timer.shut_down();
        got.extend(join(helper));
        got.sort_unstable();
        assert_eq!(got, [7, 8], "lost");
        assert_eq!(timer.len(), 0);
        timer.check_invariants();
    });
}

#[test]
fn a_finish_beside_a_thread_that_helps_runs_the_due_value_and_waits_for_the_other() {
    check(|| {
        let (timer, _reaper, log, helper) = late_timer();
        let mut reaper = timer.client();
        timer.shards.begin_finish();
        let turn = reaper.turn();
        let refused = join(helper);
        let is_over = turn == Turn::Ended || reaper.turn() == Turn::Ended;
        assert_eq!(is_over, refused == [8], "a timeout is pending, or none");
        let pending = timer.shards.close_and_drain();
        assert_eq!(pending.len() + refused.len(), 1);
        if !is_over {
            timer.close_backlog();
        }
        timer.run_executor();
        assert_eq!(*log.lock(), [7], "it runs once");
    });
}

#[test]
fn the_drop_of_the_last_handle_ends_a_reaper_that_sleeps_without_a_deadline() {
    check(|| {
        let (timer, reaper, _log) = new_timer(Delivery::Inline);
        let reaper = serve(&reaper, &timer);
        drop(Owner(timer));
        end(reaper);
    });
}

#[test]
fn the_limit_is_exact() {
    check(|| {
        let shared = Arc::new((Permits::new(NonZeroU64::new(1)), AtomicU64::new(0)));
        let enter = |(permits, inside): &(Permits, AtomicU64)| {
            let is_acquired = permits.acquire();
            if is_acquired {
                assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "the limit was exceeded");
                inside.fetch_sub(1, Ordering::Relaxed);
                permits.release(1);
            }
            is_acquired
        };
        let other = beside(&shared, enter);
        let is_acquired = enter(&shared);
        assert!(is_acquired | join(other), "no thread got the permit");
        assert!(shared.0.acquire() && !shared.0.acquire(), "the limit has changed");
    });
}
