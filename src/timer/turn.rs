//! The turns of a reaper for one timer: expiration in bounded holds, hand-off, and the timer's part
//! of a sleep of the reaper.

use std::{
    boxed::Box,
    mem,
    sync::Arc,
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    delivery::{Delivery, block_len},
    reaper::{Client, Turn},
    shards::shard::{ShardGuard, ShardState, let_run},
    value::SharedTimer,
};
use crate::{
    clock::{Driven, Reading},
    sync::{Ordering, ThreadId},
    tick::Tick,
    ticks::Nanos,
    wheel::Expired,
};

/// Steps of one hold of a shard's lock if the reaper is on time. They take less time than to park
/// and wake a thread that waits for the lock.
const LEAST_STEPS: u64 = 64;

/// How often a hold doubles at most, to 4096 steps, however late the reaper is. This limit bounds
/// the wait of other threads.
const MOST_DOUBLINGS: u128 = 6;

/// Steps that the due shards of one turn share, each at least [`LEAST_STEPS`]. This limit bounds
/// how long the other timers of the reaper wait, and the first callback on its thread. Shards that
/// are not due get no share: each turn reads the expirations of all shards, which takes long beside
/// the short holds that would be left for a few due ones.
const MOST_STEPS: u64 = 1 << 16;

/// Returns how many steps the reaper takes in one hold if timeouts are this late: twice as many for
/// each millisecond.
fn steps_per_hold(lateness: Duration, due: usize) -> u64 {
    let steps = LEAST_STEPS << lateness.as_millis().min(MOST_DOUBLINGS);
    steps.min(MOST_STEPS / due.max(1) as u64).max(LEAST_STEPS)
}

/// Steps of a hold in which another thread helps a late reaper.
const HELP_STEPS: u64 = 32;

/// Lateness from which on a reaper counts as blocked by user code, not as waiting for a processor.
const BLOCKED: Duration = Duration::from_millis(16);

/// The time by which the reaper asks to wake before the end of a sleep, because the system wakes
/// threads late.
///
/// It grows by a step when the reaper wakes late, and shrinks by eight steps when the reaper wakes
/// early. So one wake-up in nine is too early, or more if the system wakes threads within a few
/// microseconds. After an early wake-up, the reaper sleeps the rest of the pause without a lead.
#[derive(Default)]
struct Lead {
    span: Duration,
    /// Whether the present sleep is shorter by the span.
    is_used: bool,
    /// Whether the previous sleep ended too early, so that the next sleep is not shortened.
    was_early: bool,
}

impl Lead {
    /// Longer ticks get no lead: the system wakes a thread in some 50 us, and early wake-ups cost
    /// more than they bring.
    const LONGEST_TICK: Duration = Duration::from_micros(20);
    const MOST: Duration = Duration::from_micros(100);
    const STEP: Duration = Duration::from_micros(1);

    /// Returns how long to sleep in a pause: the whole pause, or less by the lead.
    fn shorten(&mut self, pause: Duration, tick: Duration) -> Duration {
        let may_lead = tick <= Self::LONGEST_TICK && pause < Duration::MAX && !self.was_early;
        let shorter = pause.checked_sub(self.span).filter(|_| may_lead);
        self.is_used = shorter.is_some();
        shorter.unwrap_or(pause)
    }

    /// Adjusts the lead after a sleep that ended `missing` before the end of its pause.
    fn learn(&mut self, missing: impl FnOnce() -> Duration) {
        self.was_early = false;
        if !self.is_used {
            return;
        }
        let missing = missing();
        if missing.is_zero() {
            self.span = Self::MOST.min(self.span + Self::STEP);
        } else if missing <= self.span {
            // If more is missing, another thread has woken the reaper.
            self.span = self.span.saturating_sub(8 * Self::STEP);
            self.was_early = true;
        }
    }
}

/// Timeouts that have left the wheels, and have not all been handed off.
struct Batch<T> {
    /// Empty between two rounds.
    expired: Vec<Expired<T>>,
    /// The greatest lateness in the latest round that expired a timeout; `None` before such a
    /// round.
    lateness: Option<Duration>,
    /// Number of timeouts in the backlog for which this thread has yet to wake a receiver.
    handed: usize,
}

impl<T> Batch<T> {
    const fn new() -> Self {
        Self { expired: Vec::new(), lateness: None, handed: 0 }
    }
}

impl<S: ShardState> SharedTimer<S> {
    /// Expires due timeouts and hands them off, in one hold of each due shard whose lock is free.
    /// If these holds expire no timeout, waits for the lock of another due shard. The length of a
    /// hold depends on the lateness in the round before. Returns whether no due timeout is left.
    ///
    /// It wakes threads and tasks once for all shards, or as soon as [`LEAST_STEPS`] timeouts wait
    /// for them. If cores are short, each wake-up stops another thread, which may hold a lock.
    fn expire_some(&self, batch: &mut Batch<S::Due>) -> bool {
        let read = self.shards.clock.read();
        self.shards.follow_wall_clock(read.now);
        let before = batch.lateness.take();
        let due = || self.shards.due(read.now).count();
        let steps = before.map_or(LEAST_STEPS, |lateness| steps_per_hold(lateness, due()));
        let (mut is_drained, mut locked) = (true, None);
        for index in self.shards.due(read.now) {
            match self.shards.try_lock(index) {
                Some(shard) => is_drained &= self.expire_shard(shard, read, steps, batch),
                None => locked = Some(index),
            }
        }
        is_drained &= locked.is_none();
        if let Some(index) = locked.filter(|_| batch.lateness.is_none()) {
            let shard = self.shards.wait_for(index);
            // The wait is a part of the lateness, so the system's clock is read again. A clock of
            // the user is not read under a lock. `now` stays: timeouts that are due later have not
            // been compared with the wall clock.
            let clock = &self.shards.clock;
            let elapsed = if clock.is_system { clock.elapsed() } else { read.elapsed };
            self.expire_shard(shard, Reading { elapsed, ..read }, steps, batch);
        }
        self.wake_receivers(batch);
        for expired in batch.expired.drain(..) {
            match self.delivery() {
                Delivery::Pool(pool) => {
                    let handler = Arc::clone(&self.handler);
                    self.handler.catch(|| pool.execute(Box::new(move || handler.call(expired))));
                }
                Delivery::Inline | Delivery::Backlog(_) => self.handler.call(expired),
            }
        }
        batch.lateness.inspect(|lateness| self.handler.events.expired(*lateness));
        batch.lateness = batch.lateness.or(before);
        is_drained
    }

    /// Expires due timeouts of a shard, in one hold. Puts them into the backlog if there is one,
    /// else into `batch`. Returns whether no due timeout is left.
    fn expire_shard(
        &self,
        mut shard: ShardGuard<'_, S>,
        read: Reading,
        steps: u64,
        batch: &mut Batch<S::Due>,
    ) -> bool {
        let Batch { expired, lateness, handed } = batch;
        let before = expired.len();
        let is_drained = shard.expire(read, steps, expired);
        *lateness = self.record_lateness(read.elapsed, &expired[before..]).max(*lateness);
        let backlog = self.delivery().backlog().filter(|_| !expired.is_empty());
        *handed += backlog.map_or(0, |backlog| backlog.put(expired));
        shard.unlock_fairly();
        if batch.handed as u64 >= LEAST_STEPS {
            self.wake_receivers(batch);
        }
        is_drained
    }

    /// Wakes threads and tasks that wait for timeouts.
    fn wake_receivers(&self, batch: &mut Batch<S::Due>) {
        if let Some(backlog) = self.delivery().backlog().filter(|_| batch.handed > 0) {
            backlog.wake(mem::take(&mut batch.handed), |task| self.handler.catch(|| task.wake()));
        }
    }

    /// Hands off due timeouts of one shard in place of a reaper that is late, if executor threads
    /// take them. Otherwise lets the reaper run. No callback runs here.
    #[cold]
    pub(super) fn help(&self, read: Reading) {
        // A callback on the reaper's thread may be the inserter, and cannot let the reaper run. If
        // the clock panics, this thread does not help, and the inserter still gets its key.
        let follow = || self.handler.catch(|| self.shards.follow_wall_clock(read.now));
        if self.is_threadless() || self.callback_threads.is_reaper() || !follow() {
            return;
        }
        let mut due = self.shards.due(read.now).peekable();
        let is_due = due.peek().is_some();
        // A queue is left to the reaper: its receivers may be tasks, whose wakers are user code.
        if is_due && self.delivery().has_executors() {
            // A closed shard is left to the reaper: the backlog may be closed as well.
            let mut free = due.filter_map(|index| self.shards.try_lock(index));
            if let Some(shard) = free.find(|shard| !shard.is_closed()) {
                let mut batch = Batch::new();
                self.expire_shard(shard, read, HELP_STEPS, &mut batch);
                self.wake_receivers(&mut batch);
                batch.lateness.inspect(|lateness| self.handler.events.expired(*lateness));
            }
        } else {
            let due_since = self.shards.clock.ticks.until_start(self.shards.next_expiration());
            if !is_due || Duration::from(read.elapsed.saturating_sub(due_since)) > BLOCKED {
                self.shards.wakeup.set_late_after(read.now);
            }
        }
        // The holder of a due shard, the executor or the reaper may wait for this processor.
        if is_due {
            let_run();
        }
    }

    /// Records the lateness of a batch that is handed off `elapsed` after the start of the timer.
    /// Returns the greatest lateness; `None` if the batch is empty.
    fn record_lateness(&self, elapsed: Nanos, batch: &[Expired<S::Due>]) -> Option<Duration> {
        if batch.is_empty() {
            return None;
        }
        let (elapsed, mut greatest) = (Duration::from(elapsed), Duration::ZERO);
        let mut stats = self.shared_stats.lock();
        // Many timeouts have the same deadline, and these are equally late.
        for equal in batch.chunk_by(|one, next| one.deadline == next.deadline) {
            let deadline = self.shards.clock.ticks.start(equal[0].deadline);
            let lateness = elapsed.saturating_sub(deadline);
            stats.lateness.record(lateness, equal.len() as u64);
            greatest = greatest.max(lateness);
        }
        debug_assert!(greatest <= stats.lateness.max(), "a lateness was not recorded");
        Some(greatest)
    }

    /// Returns the client that a reaper serves.
    pub(crate) fn client(self: &Arc<Self>) -> Box<dyn Client> {
        debug_assert!(!self.is_threadless(), "a timer that its clock runs has no reaper");
        Box::new(TimerClient::new(self))
    }
}

/// A timer that a reaper or a driver serves, with the state between its turns.
pub(crate) struct TimerClient<S: ShardState> {
    pub(crate) shared: Arc<SharedTimer<S>>,
    /// A turn that drains resets the lateness.
    batch: Batch<S::Due>,
    /// The announced end of the last sleep.
    slept_until: Option<Tick>,
    lead: Lead,
}

impl<S: ShardState> TimerClient<S> {
    pub(crate) fn new(shared: &Arc<SharedTimer<S>>) -> Self {
        let (shared, batch) = (Arc::clone(shared), Batch::new());
        Self { shared, batch, slept_until: None, lead: Lead::default() }
    }

    /// Expires due timeouts, in one hold of each shard. Returns whether no due timeout is left.
    pub(crate) fn expire(&mut self) -> bool {
        let is_drained = self.shared.expire_some(&mut self.batch);
        if is_drained {
            self.batch.expired.shrink_to(block_len::<S::Due>());
            let clock = &self.shared.shards.clock;
            let has_expired = self.batch.lateness.take().is_some();
            // The reaper has slept, and nothing was due. If it slept for cancelled timeouts, the
            // published expirations still include them. A reaper that rechecks the clock wakes
            // before they are due. It raises the expirations too, or it would recheck until then.
            let has_woken = |until| until <= clock.latest() || clock.recheck().is_some();
            if self.slept_until.take().is_some_and(has_woken) && !has_expired {
                self.shared.shards.lock_each().for_each(|shard| shard.raise_published());
            }
        }
        is_drained
    }
}

impl<S: ShardState> Driven for SharedTimer<S> {
    fn turn(&self) {
        // A timer of sleeps is configured as inline. A poll of a sleep sees the time that is read
        // here, or this turn sees the sleep.
        if matches!(self.configured, Delivery::Inline) {
            self.shards.clock.read();
            self.shards.lock_each().for_each(drop);
        }
        let mut batch = Batch::new();
        while !self.shards.is_shut_down() && !self.expire_some(&mut batch) {}
    }

    fn next_turn(&self) -> Option<Instant> {
        self.shards.clock.instant(self.shards.next_turn()?)
    }

    fn next_elapsed(&self) -> Option<Duration> {
        self.shards.clock.since_manual(self.shards.next_turn()?)
    }
}

impl<S: ShardState> Client for TimerClient<S> {
    fn begin(&mut self, thread: ThreadId) {
        // Without executors, callbacks run on this thread, or a pool may run them on it.
        self.shared.callback_threads.set_reaper(thread, !self.shared.delivery().has_executors());
    }

    fn turn(&mut self) -> Turn {
        if self.shared.shards.is_shut_down() {
            return Turn::Ended;
        }
        if !self.expire() {
            return Turn::Again;
        }
        if self.shared.shards.has_finished() {
            self.shared.close_backlog();
            return Turn::Ended;
        }
        Turn::Drained
    }

    fn until_next(&self) -> Duration {
        let shards = &self.shared.shards;
        shards.clock.pause_until(shards.next_expiration())
    }

    fn fall_asleep(&mut self, within: Duration) -> Option<Duration> {
        let clock = &self.shared.shards.clock;
        let after = || clock.ticks.ceil(clock.elapsed_after(within));
        let latest = if within == Duration::MAX { Tick::MAX } else { after() };
        // If the clock has stepped back, the latest tick that a thread saw before still counts.
        let until = self.shared.shards.fall_asleep(clock.latest(), latest)?;
        self.slept_until = Some(until);
        Some(self.lead.shorten(clock.pause_until(until), clock.ticks.tick()))
    }

    fn wake_up(&mut self, has_slept: bool) {
        self.shared.shards.wakeup.stay_awake();
        if has_slept {
            self.shared.shared_stats.lock().wakeups += 1;
        }
        if let Some(until) = self.slept_until.filter(|_| has_slept) {
            self.lead.learn(|| self.shared.shards.clock.pause_until(until));
        }
    }

    fn end_after_panic(&mut self) {
        let shared = &self.shared;
        shared.shards.begin_finish();
        // A thread that sees this flag finds the shards closed.
        shared.is_reaper_dead.store(true, Ordering::Release);
        shared.close_backlog();
        shared.on_clock_panic.get().inspect(|on_clock_panic| on_clock_panic());
    }
}

impl<S: ShardState> Drop for TimerClient<S> {
    fn drop(&mut self) {
        self.shared.callback_threads.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{thread, time::SystemTime};

    use super::*;
    use crate::{
        clock::{Clock as _, ManualClock, TickClock},
        timer::{
            TimeoutKey, Timer, ValueTimer,
            reaper::{Clients, fall_asleep, round, wake_up},
        },
    };

    /// Returns two timers in virtual time, of ticks of 1 ms and of 3 ms, as clients of a reaper.
    fn two_timers() -> ([ValueTimer<u32>; 2], Clients) {
        let clock = ManualClock::new();
        let timers = [1, 3].map(|tick| {
            let settings = Timer::builder().clock(clock.clone()).shards(1).inline();
            let timer = settings.tick(Duration::from_millis(tick)).build_with(drop);
            timer.expect("the settings are valid")
        });
        let client = |timer: &ValueTimer<u32>| Box::new(TimerClient::new(timer.shared())) as _;
        let clients = timers.iter().map(client).collect();
        (timers, clients)
    }

    /// Returns whether the reaper has announced a sleep, and no thread has woken it.
    fn is_asleep(timer: &ValueTimer<u32>) -> bool {
        timer.shared().shards.wakeup.asleep_until() > Tick::ZERO
    }

    #[test]
    fn an_insert_wakes_the_reaper_only_if_it_is_the_earliest_of_all_timers() {
        for early in [0, 1] {
            let (timers, mut clients) = two_timers();
            let (early, late) = (&timers[early], &timers[1 - early]);
            let schedule = |timer: &ValueTimer<u32>, ms| {
                timer.schedule(Duration::from_millis(ms), 0).expect("the timer runs");
            };
            schedule(early, 9000);
            schedule(late, 60_000);
            assert!(round(&mut clients));
            assert_eq!(fall_asleep(&mut clients), Some(Duration::from_secs(9)));
            for ms in [59_999, 9001, 9000] {
                schedule(late, ms);
                assert!(is_asleep(late), "woken for a timeout after {ms} ms");
            }
            schedule(late, 8997);
            assert!(!is_asleep(late), "not woken");
            assert!(is_asleep(early));
            for client in &mut clients {
                client.wake_up(true);
            }
            assert_eq!(fall_asleep(&mut clients), Some(Duration::from_millis(8997)));
        }
    }

    #[test]
    fn a_timeout_that_becomes_the_earliest_wakes_the_reaper() {
        type Call = fn(&ValueTimer<u32>, TimeoutKey, SystemTime, Duration) -> bool;
        let calls: [Call; 4] = [
            |timer, _, _, delay| timer.schedule(delay, 1).is_ok(),
            |timer, _, now, delay| timer.schedule_at_time(now + delay, 1).is_ok(),
            |timer, key, _, delay| timer.reset(key, delay),
            |timer, key, now, delay| timer.reset_at_time(key, now + delay),
        ];
        for (call, is_by_wall) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
            let ([timer, _], mut clients) = two_timers();
            let now = timer.shared().shards.clock.source.system_time();
            let later = Duration::from_secs(9);
            let scheduled = if is_by_wall {
                timer.schedule_at_time(now + later, 0)
            } else {
                timer.schedule(later, 0)
            };
            assert!(round(&mut clients) && fall_asleep(&mut clients).is_some());
            assert!(is_asleep(&timer));
            assert!(call(&timer, scheduled.expect("the timer runs"), now, later / 2));
            assert!(!is_asleep(&timer), "not woken");
        }
    }

    /// A clock that stands still. The test sets its wall clock, without a notice.
    #[derive(Debug, Clone)]
    struct WallSet(std::time::Instant, Arc<crate::sync::Mutex<Duration>>);

    impl crate::clock::Clock for WallSet {
        fn now(&self) -> std::time::Instant {
            self.0
        }

        fn system_time(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + *self.1.lock()
        }

        fn watch(&self, _: std::sync::Weak<dyn crate::clock::JumpListener>) -> Option<Duration> {
            None
        }
    }

    #[test]
    fn a_call_that_finds_the_wall_clock_set_wakes_the_reaper_for_what_is_due() {
        let clock = WallSet(std::time::Instant::now(), Arc::default());
        let settings = Timer::builder().clock(clock.clone()).shards(2).inline();
        let timer: ValueTimer<u32> = settings.build_with(drop).expect("the settings are valid");
        let client: Box<dyn Client> = Box::new(TimerClient::new(timer.shared()));
        let mut clients = Clients::from([client]);
        let put = |shard, hour: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hour);
            let insert = |shard: &mut ShardGuard<'_, _>, now, tick| shard.insert(now, tick, 0);
            let shards = &timer.shared().shards;
            let put = shards.put_at_time(shard, shards.clock.read().now, time, insert);
            assert!(put.is_ok());
        };
        put(0, 1);
        assert!(round(&mut clients) && fall_asleep(&mut clients).is_some());
        *clock.1.lock() = Duration::from_secs(2 * 3600);
        assert!(is_asleep(&timer));
        put(1, 9);
        assert!(!is_asleep(&timer), "not woken");
        assert!(round(&mut clients));
        assert_eq!(timer.stats().expired, 1);
    }

    /// A clock that runs. The test sets its wall clock, without a notice.
    #[derive(Debug, Clone)]
    struct WallRuns(std::time::Instant, Arc<crate::sync::Mutex<Duration>>);

    impl crate::clock::Clock for WallRuns {
        fn now(&self) -> std::time::Instant {
            std::time::Instant::now()
        }

        fn system_time(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + *self.1.lock() + self.0.elapsed()
        }

        fn watch(&self, _: std::sync::Weak<dyn crate::clock::JumpListener>) -> Option<Duration> {
            None
        }
    }

    /// During the wait, a timeout by the wall clock would become due, but that clock is set back.
    #[test]
    fn a_turn_that_waits_for_a_lock_is_late_by_the_wait_and_expires_nothing_early() {
        // On a busy machine, the deadline of that timeout may pass before the turn waits.
        while !waits_in_time() {}
    }

    fn waits_in_time() -> bool {
        let hour = Duration::from_secs(3600);
        let wall = WallRuns(std::time::Instant::now(), Arc::new(crate::sync::Mutex::new(hour)));
        let mut clock = TickClock::new(None, Duration::from_millis(1));
        clock.source = Arc::new(wall.clone());
        let timer = Timer::builder().shards(1).inline();
        let timer = timer.build_with_state(Some(clock), |wheel, _, _| wheel, drop::<u32>);
        let timer = ValueTimer::from_shared(timer.expect("the settings are valid"));
        let shards = &timer.shared().shards;
        let time = wall.system_time() + Duration::from_millis(10);
        let insert = |shard: &mut ShardGuard<'_, _>, now, tick| shard.insert(now, tick, 1);
        assert!(shards.put_at_time(0, shards.clock.read().now, time, insert).is_ok());
        let due = shards.clock.read().now;
        let mut shard = shards.lock(0);
        shard.insert(due, due, 0).expect("the timer runs");
        thread::scope(|scope| {
            let turn = scope.spawn(|| timer.shared().expire_some(&mut Batch::new()));
            while !shards.wakeup.is_waiting.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let is_in_time = wall.system_time() < time;
            *wall.1.lock() = Duration::ZERO;
            let end = shards.clock.elapsed_after(Duration::from_millis(20));
            while shards.clock.elapsed() < end {
                thread::yield_now();
            }
            drop(shard);
            let is_drained = turn.join().expect("a turn does not panic");
            if is_in_time {
                let stats = timer.stats();
                assert_eq!((is_drained, stats.expired, stats.pending), (false, 1, 1));
                assert!(stats.lateness.max() >= Duration::from_millis(20));
            }
            is_in_time
        })
    }

    #[test]
    fn a_timer_with_many_due_timeouts_leaves_the_others_their_turn() {
        let (timers, mut clients) = two_timers();
        (0..10_000).for_each(|value| drop(timers[0].schedule(Duration::ZERO, value)));
        timers[1].schedule(Duration::ZERO, 0).expect("the timer runs");
        assert!(!round(&mut clients), "all expired in one round");
        assert!(timers[0].stats().expired <= 64);
        assert_eq!(timers[1].stats().expired, 1);
    }

    /// A clock that the test sets, with a reaper.
    #[derive(Debug, Clone)]
    struct Set(std::time::Instant, Arc<crate::sync::Mutex<Duration>>);

    impl crate::clock::Clock for Set {
        fn now(&self) -> std::time::Instant {
            self.0 + *self.1.lock()
        }
    }

    #[test]
    fn a_hold_expires_as_many_timeouts_as_the_lateness_allows() {
        let clock = Set(std::time::Instant::now(), Arc::new(crate::sync::Mutex::default()));
        let settings = Timer::builder().clock(clock.clone()).shards(1).inline();
        let timer: ValueTimer<u32> = settings.build_with(drop).expect("the settings are valid");
        for value in 0..20_000 {
            let inserted = timer.shared().shards.lock(0).insert(Tick::ZERO, Tick::new(1), value);
            inserted.expect("the wheel has room");
        }
        let mut client = TimerClient::new(timer.shared());
        // The length of a hold follows from the lateness of the hold before.
        for (late, steps) in [(0, 64), (3, 64), (3, 512), (900, 512), (900, 4096), (900, 4096)] {
            *clock.1.lock() = Duration::from_millis(1 + late);
            let before = timer.stats().expired;
            assert!(!client.expire(), "all expired in one hold");
            let expired = timer.stats().expired - before;
            assert!((steps / 2..=steps).contains(&expired), "{expired} in {steps} steps");
        }
        while !client.expire() {}
        let room = client.batch.expired.capacity();
        assert!(room <= 1024, "it keeps room for {room} timeouts");
    }

    #[test]
    fn an_inserter_makes_way_for_a_late_reaper_but_once_a_tick_if_a_callback_may_block_it() {
        let clock = Set(std::time::Instant::now(), Arc::new(crate::sync::Mutex::default()));
        let settings = Timer::builder().clock(clock.clone()).shards(1).inline();
        let timer: ValueTimer<u32> = settings.build_with(drop).expect("the settings are valid");
        let inserted = timer.shared().shards.lock(0).insert(Tick::ZERO, Tick::new(1), 0);
        inserted.expect("the wheel has room");
        let (shared, wakeup) = (timer.shared(), &timer.shared().shards.wakeup);
        let are_late_after_help = |now| {
            *clock.1.lock() = Duration::from_millis(now);
            wakeup.set_late_after(Tick::new(2));
            shared.help_if_late(timer.shared().shards.clock.read());
            [now, now + 1].map(|tick| wakeup.is_late(Tick::new(tick)))
        };
        let other = std::thread::spawn(crate::sync::this_thread).join();
        shared.callback_threads.set_reaper(other.expect("the thread returns its id"), true);
        assert_eq!([17, 18].map(are_late_after_help), [[true; 2], [false, true]]);
        shared.callback_threads.set_reaper(crate::sync::this_thread(), true);
        assert_eq!(are_late_after_help(18), [true; 2], "a callback makes way for its own thread");
        assert_eq!(timer.stats().expired, 0, "the reaper runs the callback");
    }

    #[test]
    fn a_reaper_with_short_ticks_asks_to_wake_earlier_the_later_it_wakes() {
        for (micros, expected) in [(10, [0, 1, 2]), (20, [0, 1, 2]), (21, [0; 3])] {
            let clock = Set(std::time::Instant::now(), Arc::new(crate::sync::Mutex::default()));
            let settings = Timer::builder().clock(clock.clone()).shards(1).inline();
            let settings = settings.tick(Duration::from_micros(micros));
            let timer: ValueTimer<u32> = settings.build_with(drop).expect("the settings are valid");
            let mut client = TimerClient::new(timer.shared());
            let leads = [(); 3].map(|()| {
                // Not through the timer, which would start a reaper of its own.
                let shards = &timer.shared().shards;
                let read = shards.clock.read();
                let deadline = shards.clock.deadline(read, Duration::from_secs(9));
                shards.lock(0).insert(read.now, deadline, 0).expect("the wheel has room");
                let pause = client.until_next();
                let asked = client.fall_asleep(Duration::MAX).expect("no timeout is due");
                *clock.1.lock() += pause;
                client.wake_up(true);
                assert!(client.expire());
                pause.saturating_sub(asked).as_micros()
            });
            assert_eq!(leads, expected, "with ticks of {micros} us");
        }
    }

    /// With short ticks, the reaper reads the clock when it wakes.
    #[test]
    fn a_clock_that_panics_at_a_wake_up_ends_its_timer_only() {
        #[derive(Debug)]
        struct Deadly(Arc<std::sync::OnceLock<()>>);
        impl crate::clock::Clock for Deadly {
            fn now(&self) -> std::time::Instant {
                assert!(self.0.get().is_none(), "the clock panics");
                std::time::Instant::now()
            }
        }
        let end = Arc::new(std::sync::OnceLock::new());
        let settings = Timer::builder().tick(Duration::from_micros(20));
        let mortal = settings.clone().clock(Deadly(Arc::clone(&end)));
        let timers = [mortal, settings].map(|settings| settings.build_with(|_: u32| ()).unwrap());
        let mut clients: Clients = timers.iter().map(|timer| timer.shared().client()).collect();
        for timer in &timers {
            let far = timer.shared().shards.lock(0).insert(Tick::ZERO, Tick::new(1 << 40), 0);
            far.expect("the wheel has room");
        }
        assert!(fall_asleep(&mut clients).is_some());
        end.set(()).unwrap();
        wake_up(&mut clients, true);
        assert_eq!(clients.len(), 1);
        assert_eq!(timers.map(|timer| timer.is_reaper_dead()), [true, false]);
    }

    #[test]
    fn one_wake_up_in_nine_is_too_early() {
        let (mut lead, mut early) = (Lead::default(), 0);
        let [tick, pause] = [10, 1000].map(Duration::from_micros);
        for sleep in 0..1000 {
            // The system wakes a thread 40 to 60 us late.
            let late = Duration::from_micros(40 + sleep * 8 % 21);
            let missing = pause.saturating_sub(lead.shorten(pause, tick) + late);
            early += u32::from(sleep >= 100 && !missing.is_zero());
            lead.learn(|| missing);
            if !missing.is_zero() {
                assert_eq!(lead.shorten(missing, tick), missing, "twice too early");
                lead.learn(|| Duration::ZERO);
            }
        }
        assert!((95..=105).contains(&early), "{early} of 900");
        let span = lead.span;
        lead.is_used = true;
        lead.learn(|| span + tick);
        assert_eq!(lead.span, span, "another thread has woken the reaper");
        for (pause, reason) in [(tick, "shorter than the lead"), (Duration::MAX, "without an end")]
        {
            assert_eq!(lead.shorten(pause, tick), pause, "a pause {reason}");
            assert!(!lead.is_used);
        }
    }

    #[test]
    fn after_a_wake_up_that_is_too_early_the_reaper_sleeps_to_the_end() {
        let [tick, late] = [10, 3].map(Duration::from_micros);
        let mut lead = Lead { span: Lead::MOST, ..Lead::default() };
        for _ in 0..2 {
            let mut pause = Duration::from_millis(1);
            let mut sleeps = 0;
            while !pause.is_zero() {
                // Another timer of the reaper has kept the reaper awake once.
                lead.shorten(pause, tick);
                pause = pause.saturating_sub(lead.shorten(pause, tick) + late);
                lead.learn(|| pause);
                sleeps += 1;
            }
            assert_eq!(sleeps, 2, "more than every second wake-up is too early");
        }
    }

    #[test]
    fn a_hold_grows_with_the_lateness_and_ends() {
        let steps = [0, 1, 2, 5, 6, 25, 26, 27, 1000].map(|late| {
            assert!(steps_per_hold(Duration::from_micros(late * 1000 + 999), 1) >= 64);
            steps_per_hold(Duration::from_millis(late), 8)
        });
        assert_eq!(steps, [64, 128, 256, 2048, 4096, 4096, 4096, 4096, 4096]);
        let most = [1, 16, 17, 64, 1 << 16].map(|shards| steps_per_hold(Duration::MAX, shards));
        assert_eq!(most, [4096, 4096, 3855, 1024, 64]);
    }

    #[test]
    fn shards_that_are_not_due_shorten_no_hold() {
        let settings = Timer::builder().clock(ManualClock::new()).shards(1024).inline();
        let timer = settings.build_with(drop::<u32>).expect("the settings are valid");
        for value in 0..4000 {
            timer.schedule(Duration::ZERO, value).expect("the timer runs");
        }
        let mut batch = Batch { lateness: Some(BLOCKED), ..Batch::new() };
        assert!(timer.shared().expire_some(&mut batch), "{} are left", timer.stats().pending);
    }
}
