//! The state that the handles, threads and deliveries of a timer share.
//!
//! Locks: `drivers` is held while the store is called, except for claims, so only the thread of the
//! driver waits for it without a limit. `inbox`, `postponed` and `phase` are held only for a
//! moment. A thread that holds `drivers` may take `inbox`, `phase` and those of the store, and
//! never the other way round. No lock is held while a handler runs.

use std::{
    mem,
    sync::{Arc, Weak, atomic::Ordering::SeqCst},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delaywheel::{Clock, Driven, JumpListener};
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use super::{
    commit::{CommitQueue, Failed, Job, Reply, drop_jobs, locked, tell, write_group},
    delivery::{Delivery, Lease, Run, Verdict},
    driver::{Claimed, Driver, DriverSettings, LaneClaim, Returned, Step, following},
    executor::{CallThread, Handler, contain, run_contained},
    stats::Counters,
};
use crate::{
    error::DurableError,
    record::{Claim, Name, Record},
    store::{Calls, Command, Settlement, Store},
    time::WallTime,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Open,
    /// Refuses new timeouts, and delivers.
    Finishing,
    /// Claims no more, and waits for the deliveries under way.
    Closing,
    Ended,
}

#[derive(Debug, Default)]
struct Inbox {
    /// The timer was shut down.
    is_closing: bool,
    /// The clock of this machine was set, or a suspension has ended. The clock of a store takes no
    /// part in either, and learns the time from a claim.
    has_stepped: bool,
    /// With the number of the driver.
    returned: Vec<(usize, Returned)>,
    ended: Vec<u64>,
    /// Earliest due times of queues; without a name, of any queue.
    due: FxHashMap<(Option<Name>, bool), WallTime>,
    claimed: Vec<(LaneClaim, Claimed)>,
}

impl Inbox {
    fn has_news(&self) -> bool {
        let is_empty = self.returned.is_empty() && self.ended.is_empty() && self.claimed.is_empty();
        !is_empty || !self.due.is_empty() || self.is_closing || self.has_stepped
    }
}

/// The news for the driver. A listener keeps only this alive, and not the store.
#[derive(Default)]
struct Post {
    inbox: Mutex<Inbox>,
    /// Something was put into the inbox.
    news: Condvar,
}

impl Post {
    fn put(&self, add: impl FnOnce(&mut Inbox)) {
        add(&mut self.inbox.lock());
        self.news.notify_one();
    }

    fn notice(&self, queue: Option<&Name>, due: WallTime) {
        self.put(|inbox| {
            let is_known = due > WallTime::MIN;
            let earliest = inbox.due.entry((queue.cloned(), is_known)).or_insert(due);
            *earliest = due.min(*earliest);
        });
    }
}

impl JumpListener for Post {
    fn clock_has_jumped(&self) {
        self.put(|inbox| inbox.has_stepped = true);
    }
}

pub(super) struct Served {
    pub(super) settings: DriverSettings,
    /// `None` after the end: the last call may drop the rest on the thread of a store.
    pub(super) handler: Mutex<Option<Handler>>,
}

type Told = dyn Fn(Option<&Name>, WallTime) + Send + Sync;

pub(super) struct Core {
    pub(super) store: Box<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    /// When the timer was made.
    origin: Instant,
    pub(super) counters: Counters,
    /// There are no threads but those of the callers.
    pub(super) is_virtual: bool,
    pub(super) commits: CommitQueue,
    pub(super) calls: CallThread,
    /// For the claims of each lane.
    claims: [CallThread; 2],
    /// Each call of [`Sharded`](crate::Sharded) under way that changes something has a clone.
    pub(crate) changes: Arc<()>,
    queues: Vec<Served>,
    drivers: Mutex<Vec<Driver>>,
    post: Arc<Post>,
    /// To be written again, in virtual time.
    postponed: Mutex<Vec<Job>>,
    phase: Mutex<Phase>,
    /// Threads that use the store.
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    itself: Weak<Self>,
    /// What the store calls.
    pub(super) told: Arc<Told>,
}

impl Core {
    pub(super) fn new(
        store: Box<dyn Store>,
        clock: Arc<dyn Clock>,
        is_virtual: bool,
        queues: Vec<Served>,
    ) -> Arc<Self> {
        let drivers = queues.iter().map(|queue| Driver::new(queue.settings.clone())).collect();
        let post = Arc::<Post>::default();
        let told = Arc::clone(&post);
        Arc::new_cyclic(|itself| Self {
            store,
            origin: clock.now(),
            clock,
            counters: Counters::default(),
            is_virtual,
            commits: CommitQueue::default(),
            calls: CallThread::default(),
            claims: Default::default(),
            changes: Arc::default(),
            queues,
            drivers: Mutex::new(drivers),
            post,
            postponed: Mutex::default(),
            phase: Mutex::new(Phase::Open),
            threads: Mutex::default(),
            itself: itself.clone(),
            told: Arc::new(move |queue, due| told.notice(queue, due)),
        })
    }

    pub(super) fn now(&self) -> WallTime {
        WallTime::now(&*self.clock)
    }

    /// Returns the time of the monotonic clock, which is that of the leases unless it is virtual.
    fn elapsed(&self) -> Duration {
        if self.queues.iter().any(|queue| queue.settings.is_virtual) {
            self.clock.now().saturating_duration_since(self.origin)
        } else {
            Lease::now()
        }
    }

    pub(super) fn check_open(&self) -> Result<(), DurableError> {
        if *self.phase.lock() == Phase::Open { Ok(()) } else { Err(DurableError::ShutDown) }
    }

    /// Queues a job; in virtual time, writes it at once, unless an earlier one of its id waits for
    /// a locked record. After the end, the job is dropped.
    pub(super) fn commit(&self, job: Job) {
        if self.is_virtual {
            if *self.phase.lock() == Phase::Ended {
                return drop_jobs([job]);
            }
            let mut postponed = self.postponed.lock();
            // It may pass a settlement, which no other thread would write while its caller waits.
            let is_held = |earlier: &Job| !earlier.is_settlement() && earlier.shares_id(&job);
            if postponed.iter().any(is_held) {
                postponed.push(job);
                return;
            }
            drop(postponed);
            let failed = self.write(vec![job]);
            self.postponed.lock().extend(failed.jobs);
        } else {
            self.commits.push(job);
        }
    }

    fn settle(&self, claim: Claim, settlement: Settlement, is_skipped: bool) {
        let reply = Reply::Settled(claim.token, is_skipped);
        self.commit(Job::new(vec![Command::Settle(claim, settlement)], reply));
    }

    fn write(&self, mut group: Vec<Job>) -> Failed {
        if let Some(Job { reply: Reply::Paused(..), .. }) = group.first()
            && let Some(Job { reply: Reply::Paused(queue, is_paused, caller), .. }) = group.pop()
        {
            let paused = contain(|| self.store.pause(&queue, is_paused));
            tell(caller, paused.map(|()| &[][..]));
            return Failed::default();
        }
        let mut ended = Vec::new();
        let now = self.now();
        let failed = write_group(&*self.store, now, group, &self.counters, &mut ended);
        self.take_in(ended);
        failed
    }

    pub(super) fn run_commits(&self, thread: usize) {
        self.commits.run(thread, |group| self.write(group));
    }

    pub(super) fn run_locked(&self) {
        self.commits.run_aside(|group| self.write(group), |ids| locked(&*self.store, ids));
    }

    fn take_in(&self, ended: Vec<u64>) {
        if !ended.is_empty() {
            self.post.put(|inbox| inbox.ended.extend(ended));
        }
    }

    /// Runs steps until no driver has work now. Returns when to go on. `claim` carries out claims,
    /// or has another thread do it.
    fn run_turn(&self, claim: &dyn Fn(LaneClaim)) -> Option<WallTime> {
        let postponed = mem::take(&mut *self.postponed.lock());
        for job in postponed {
            self.commit(job);
        }
        loop {
            let (steps, next) = {
                let mut drivers = self.drivers.lock();
                let news = mem::take(&mut *self.post.inbox.lock());
                // A shutdown sets the phase before it tells.
                let is_closing = *self.phase.lock() >= Phase::Closing;
                let Inbox { has_stepped, returned, ended, mut due, claimed, .. } = news;
                if has_stepped {
                    self.counters.clock_steps.add(1);
                    emit!(info, "wall clock was set");
                    due.insert((None, false), WallTime::MIN);
                }
                for (driver, returned) in returned {
                    drivers[driver].returned(&returned);
                }
                for (claim, claimed) in claimed {
                    drivers[claim.driver].claimed.push((claim, claimed));
                }
                let steps = drivers.iter_mut().map(|driver| {
                    driver.is_closing |= is_closing;
                    for &token in &ended {
                        driver.ended(token);
                    }
                    for ((queue, _), due) in &due {
                        driver.notice(queue.as_ref(), *due);
                    }
                    // In this order, or a stop between them makes the lease here the longer one.
                    let (start, now) = (self.elapsed(), self.now());
                    driver.step(&*self.store, start, now, &self.counters)
                });
                let steps: Vec<_> = steps.collect();
                self.counters.hold(held(&drivers));
                (steps, drivers.iter().filter_map(Driver::next_step).min())
            };
            let again = steps.iter().any(|step| step.again);
            for (queue, step) in self.queues.iter().zip(steps) {
                self.carry_out(queue, step, claim);
            }
            if !again && !self.post.inbox.lock().has_news() {
                return next;
            }
        }
    }

    fn carry_out(&self, queue: &Served, step: Step, claim: &dyn Fn(LaneClaim)) {
        step.claims.into_iter().for_each(claim);
        for (claim, settlement, is_skipped) in step.settlements {
            self.settle(claim, settlement, is_skipped);
        }
        let overrun = step.overrun.iter().flat_map(|run| run.stop());
        // A waker may panic, also when it is dropped, and may use the timer.
        step.stopped
            .into_iter()
            .chain(overrun)
            .for_each(|task| run_contained(move || task.wake_by_ref()));
        let Some(handler) = queue.handler.lock().clone() else { return };
        for (record, run) in step.begun {
            let Some(core) = self.itself.upgrade() else { continue };
            let delivery = Delivery::new(record, run, core);
            run_contained(|| handler(delivery));
        }
    }

    fn claim(&self, claim: LaneClaim) {
        let claimed = contain(|| self.store.claim(claim.worker, &claim.request));
        self.post.put(|inbox| inbox.claimed.push((claim, claimed)));
    }

    /// Runs turns until the timer has been closed and no delivery is under way, with a thread for
    /// the claims of each lane. Runs on a thread.
    pub(super) fn run_driver(&self) {
        // After a panic, calls fail as after a shutdown, and the lease goes to others.
        run_contained(|| {
            self.run_turns(&|claim| {
                // This thread has the timer.
                if let Some(core) = self.itself.upgrade() {
                    let lane = &self.claims[claim.lane as usize];
                    self.call_on(lane, Box::pin(async move { core.claim(claim) }));
                }
            });
        });
        self.claims.iter().for_each(CallThread::close);
        self.commits.close();
        for queue in &self.queues {
            let handler = queue.handler.lock().take();
            run_contained(|| drop(handler));
        }
        *self.phase.lock() = Phase::Ended;
    }

    fn run_turns(&self, claim: &dyn Fn(LaneClaim)) {
        let post = Arc::downgrade(&self.post);
        let recheck = self.clock.watch(post);
        loop {
            let next = self.run_turn(claim);
            if *self.phase.lock() >= Phase::Closing && self.close() {
                return;
            }
            let limit = next.map(|next| {
                let span = next.since(self.now());
                recheck.map_or(span, |recheck| span.min(recheck))
            });
            let mut inbox = self.post.inbox.lock();
            match limit {
                _ if inbox.has_news() => (),
                None => self.post.news.wait(&mut inbox),
                Some(limit) => drop(self.post.news.wait_for(&mut inbox, limit)),
            }
        }
    }

    /// Ends the workers once a turn has given the held records back. Returns whether no delivery or
    /// claim is under way.
    fn close(&self) -> bool {
        let mut drivers = self.drivers.lock();
        // A claim under way locks its worker.
        if drivers.iter().any(Driver::is_busy) {
            return false;
        }
        for worker in drivers.iter_mut().filter_map(Driver::leave) {
            // If this fails, the lease ends by itself.
            let _ = contain(|| self.store.leave(worker));
        }
        true
    }

    /// Makes calls on a thread, for which [`join`](Self::join) waits.
    pub(super) fn call_on(&self, thread: &CallThread, calls: Calls) {
        let started = thread.push(calls);
        self.threads.lock().extend(started);
    }

    pub(super) fn shut_down(&self) {
        let mut phase = self.phase.lock();
        *phase = Phase::Closing.max(*phase);
        drop(phase);
        self.post.put(|inbox| inbox.is_closing = true);
        if self.is_virtual {
            self.turn();
        }
    }

    /// Returns whether a clock still drives the timer: not after its end, nor at [`WallTime::MAX`].
    fn has_turns(&self) -> bool {
        self.now() < WallTime::MAX && *self.phase.lock() < Phase::Ended
    }

    /// Ends a timer in virtual time once nothing is under way after a shutdown.
    fn end_if_closed(&self) {
        if *self.phase.lock() >= Phase::Closing && self.close() {
            *self.phase.lock() = Phase::Ended;
            // The timer has ended and does not try these again.
            let left = mem::take(&mut *self.postponed.lock());
            drop_jobs(left);
        }
    }

    pub(super) fn refuse(&self) {
        let mut phase = self.phase.lock();
        *phase = Phase::Finishing.max(*phase);
    }

    /// Delivers what is due, and shuts down. Blocks until a time at the latest.
    pub(super) fn finish(&self, deadline: Option<Instant>) -> bool {
        let in_time = if self.is_virtual {
            self.turn();
            true
        } else {
            wait_until(deadline, || {
                Arc::strong_count(&self.changes) == 1
                    && (*self.phase.lock() >= Phase::Closing || self.is_idle())
            })
        };
        self.shut_down();
        if !self.is_virtual {
            wait_until(deadline, || *self.phase.lock() == Phase::Ended);
        }
        in_time && *self.phase.lock() == Phase::Ended && self.join(deadline)
    }

    /// Waits for the threads and their calls, so that only the handles of the timer hold the store.
    /// Returns whether they have ended. A later read has a thread of its own, which may run on.
    fn join(&self, deadline: Option<Instant>) -> bool {
        let awaited: Vec<_> =
            self.threads.lock().iter().map(|thread| thread.thread().id()).collect();
        self.calls.close();
        let runs = |thread: &JoinHandle<()>| {
            !thread.is_finished() && awaited.contains(&thread.thread().id())
        };
        let has_ended = wait_until(deadline, || !self.threads.lock().iter().any(runs));
        self.threads.lock().retain(|thread| !thread.is_finished());
        has_ended
    }

    /// Returns whether nothing is due or being delivered, and no command or news waits.
    fn is_idle(&self) -> bool {
        // The driver takes the news under its own lock, so none is on the way to it. It may be
        // waiting for the store.
        let Some(drivers) = self.drivers.try_lock() else { return false };
        let now = self.now();
        // A command that was written has left its news.
        self.commits.is_idle()
            && !self.post.inbox.lock().has_news()
            && drivers.iter().all(|driver| driver.is_idle(now))
    }

    pub(super) fn start(&self) -> Option<Duration> {
        (*self.phase.lock() < Phase::Closing).then(|| self.elapsed())
    }

    pub(super) fn end(&self, record: Record, run: &Run, verdict: Verdict) {
        let (driver, now) = (run.driver, self.now());
        // A thread is free before the settlement is durable.
        let lasted = run.started().map(|start| self.elapsed().saturating_sub(start));
        let token = record.token;
        let returned = Returned { token, lasted, is_released: verdict == Verdict::Released };
        self.post.put(|inbox| inbox.returned.push((driver, returned)));
        let mut settlement = match verdict {
            Verdict::Recalled => return,
            _ if run.is_acknowledged.load(SeqCst) => {
                self.counters.acknowledged.add(1);
                // The next occurrence is not earlier, whatever the transaction knew of missed ones.
                let next =
                    record.repeat.and_then(|rule| rule.after(record.due, record.due).ok()?);
                if let Some(next) = next {
                    self.post.notice(Some(&record.queue), next);
                }
                return self.take_in(vec![token]);
            }
            Verdict::Done => following(&record, now),
            Verdict::Dead(error) => Settlement::Dead { error },
            Verdict::Released => {
                emit!(warn, "a delivery was not started: no task, no lease, or a shutdown");
                Settlement::Release
            }
            Verdict::Left(error) => {
                let at = self.counters.left.next(&record, now);
                Settlement::Leave { at, error }
            }
            Verdict::Failed(error, when) => {
                let backoff = self.queues[driver].settings.queue.backoff;
                backoff.settle(record.attempt, error, now, when)
            }
        };
        if let Settlement::Retry { error, .. }
        | Settlement::Dead { error }
        | Settlement::Leave { error, .. } = &mut settlement
        {
            // No store takes NUL, and the other one is the first of `MOVED`.
            let is_kept = |character: &char| !['\0', '\u{1}'].contains(character);
            *error = error.chars().filter(is_kept).take(MAX_ERROR).collect();
        }
        self.settle(record.claim(), settlement, false);
    }
}

/// Returns whether a condition was met in time. Nothing tells of the end of a thread, so this looks
/// each millisecond.
fn wait_until(deadline: Option<Instant>, is_met: impl Fn() -> bool) -> bool {
    while !is_met() {
        if deadline.is_some_and(|at| at <= Instant::now()) {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn held(drivers: &[Driver]) -> (usize, usize, usize) {
    let held = drivers.iter().map(Driver::held);
    held.fold((0, 0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1, sum.2 + held.2))
}

/// Characters of an error that a record keeps.
const MAX_ERROR: usize = 1_000;

impl Driven for Core {
    fn turn(&self) {
        if self.has_turns() {
            self.run_turn(&|claim| self.claim(claim));
            self.end_if_closed();
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        if !self.has_turns() {
            return None;
        }
        let next = self.drivers.lock().iter().filter_map(Driver::next_step).min()?;
        // In this order, or time that passes between them delays the turn.
        let (now, time) = (self.clock.now(), self.clock.system_time());
        let span = next.to_system_time().duration_since(time).unwrap_or_default();
        // A turn that is overdue was refused just now; one microsecond on, it may not be.
        now.checked_add(span.max(Duration::from_micros(1)))
    }

    /// A clock takes the instant in its place.
    fn next_elapsed(&self) -> Option<Duration> {
        None
    }
}

opaque!(Core, store: store);

#[cfg(test)]
mod tests {
    use std::{
        sync::{OnceLock, mpsc},
        time::SystemTime,
    };

    use pollster::FutureExt as _;

    use super::{super::held::Lane, *};
    use crate::{
        Answer, Cancelled, ManualClock, NewTimeout, Repeat, SqliteStore, State, StoreError,
        StoreErrorReason,
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// The parts of a timer on real threads whose latest handlers took no time, without the
    /// threads: the test runs the turns. The timer hears of no change that another makes.
    struct Bench {
        store: SqliteStore,
        clock: ManualClock,
        core: Arc<Core>,
        deliveries: mpsc::Receiver<Delivery>,
    }

    impl Bench {
        fn new(set: impl FnOnce(&mut DriverSettings)) -> Self {
            let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
            let (sender, deliveries) = mpsc::channel();
            let handler: Handler = Arc::new(move |delivery| drop(sender.send(delivery)));
            let mut settings = DriverSettings::default();
            set(&mut settings);
            let handler = Mutex::new(Some(handler));
            let queues = vec![Served { settings, handler }];
            let (boxed, shared) = (Box::new(store.clone()), Arc::new(clock.clone()));
            let core = Core::new(boxed, shared, false, queues);
            for _ in 0..60 {
                let (token, lasted) = (0, Some(Duration::ZERO));
                let returned = Returned { token, lasted, is_released: false };
                core.drivers.lock()[0].returned(&returned);
            }
            Self { store, clock, core, deliveries }
        }

        /// Creates one with a delivery that has begun, with its claim or later, and not started.
        fn waiting(begins: bool, set: impl FnOnce(&mut DriverSettings)) -> (Self, Delivery) {
            let bench = Self::new(set);
            bench.schedule(u32::from(begins), None);
            bench.core.run_turn(&|claim| {
                assert_eq!(claim.request.begins, claim.lane == Lane::Backlog);
                bench.core.claim(claim);
            });
            let delivery = bench.deliveries.try_recv().expect("delivery");
            (bench, delivery)
        }

        /// Another process schedules a timeout, which was due so many seconds ago.
        fn schedule(&self, ago: u32, repeat: Option<Repeat>) {
            let now = self.core.now();
            let new = NewTimeout::new("a", now.saturating_sub(SECOND * ago), b"").expect("valid");
            self.write(Command::Schedule(NewTimeout { repeat, ..new }));
        }

        fn write(&self, command: Command) -> Answer {
            self.store.write(self.core.now(), &[command]).block_on().expect("write")[0]
        }

        fn turn(&self) -> Option<WallTime> {
            self.core.run_turn(&|claim| self.core.claim(claim))
        }

        fn pass(&self, time: Duration) {
            self.clock.advance(time);
            self.turn();
        }

        fn start_delivery(&self) -> Delivery {
            let delivery = self.deliveries.try_recv().expect("delivery");
            delivery.start().expect("the timer is open")
        }

        fn pause(&self, is_paused: bool, notice: Option<&Name>) {
            self.store.pause(&Name::default(), is_paused).block_on().expect("pause");
            self.core.post.notice(notice, WallTime::MIN);
        }

        fn cancel(&self) {
            let answer = self.write(Command::Cancel("a".parse().expect("valid")));
            assert_eq!(answer, Answer::Cancelled(Cancelled::Delivering));
            self.core.post.notice(None, WallTime::MIN);
        }

        fn commit(&self) {
            self.core.commits.close();
            self.core.run_commits(0);
        }

        /// Writes what waits. Returns the state of the record, if any, and its number of attempts.
        fn settled(&self) -> Option<(State, u32)> {
            self.commit();
            self.store.records().pop().map(|record| (record.state, record.attempt))
        }
    }

    const NOT_RUN: Option<(State, u32)> = Some((State::Pending, 0));

    /// `finish` also delivers due timeouts of which the driver has not heard yet.
    #[test]
    fn a_timer_is_not_idle_before_its_driver_knows_of_a_due_timeout() {
        let bench = Bench::new(|_| ());
        let is_idle = || bench.core.is_idle();
        bench.turn();
        assert!(is_idle());
        let cancel = Command::Cancel("none".parse().expect("valid"));
        let reply = Reply::Caller(Box::new(|_| ()));
        bench.core.commit(Job::new(vec![cancel], reply));
        assert!(!is_idle(), "a command is not written");
        bench.commit();
        assert!(is_idle());
        bench.schedule(0, None);
        bench.core.post.notice(None, bench.core.now());
        assert!(!is_idle(), "the driver has not taken the notice");
        bench.turn();
        assert!(!is_idle(), "it is being delivered");
        bench.start_delivery().acknowledged_in_transaction();
        assert!(!is_idle(), "the driver has not taken the end");
        bench.turn();
        assert!(is_idle());
    }

    /// The last read before the end is slow.
    #[test]
    fn a_read_after_the_end_of_a_timer_does_not_delay_the_end() {
        let bench = Bench::new(|_| ());
        let core = &bench.core;
        let (end, ended) = mpsc::channel::<()>();
        let read = |calls: Calls| core.calls.push(calls);
        let slow = Box::pin(async move {
            let _ = ended.recv();
        });
        core.threads.lock().push(read(slow).expect("the first"));
        thread::scope(|scope| {
            let limit = Instant::now() + 10 * SECOND;
            let joined = scope.spawn(move || core.join(Some(limit)));
            // It has closed the first thread.
            let late = loop {
                if let Some(started) = read(Box::pin(async {})) {
                    break started;
                }
                thread::yield_now();
            };
            core.threads.lock().push(late);
            drop(end);
            assert!(joined.join().expect("join"));
        });
    }

    /// The claims are under way when the caller shuts the timer down. A store may refuse to remove
    /// a worker that has one. The replies may be lost: then the driver knows of no record, and
    /// leaves as the worker that has them.
    #[test]
    fn a_claim_that_ends_after_the_shutdown_gives_its_records_back() {
        for is_lost in [false, true] {
            let bench = Bench::new(|_| ());
            bench.schedule(0, None);
            let claims = Mutex::new(Vec::new());
            bench.core.run_turn(&|claim| claims.lock().push(claim));
            bench.core.shut_down();
            bench.turn();
            assert!(!bench.core.close(), "its claims have not ended");
            for claim in claims.into_inner() {
                if is_lost {
                    drop(bench.store.claim(claim.worker, &claim.request).block_on());
                    let lost = Err(StoreError::new(StoreErrorReason::OutcomeUnknown));
                    bench.core.post.put(|inbox| inbox.claimed.push((claim, lost)));
                } else {
                    bench.core.claim(claim);
                }
            }
            bench.turn();
            assert!(bench.deliveries.try_recv().is_err(), "a shutdown begins no delivery");
            assert_eq!(bench.core.close(), is_lost, "otherwise, the release is not written");
            bench.commit();
            bench.turn();
            assert!(bench.core.close(), "no delivery is under way");
            assert_eq!(bench.settled(), NOT_RUN);
        }
    }

    /// A blocking handler, such as one that returns an error of a later step, has only a reference.
    #[test]
    fn a_delivery_that_a_transaction_has_acknowledged_ends_as_acknowledged_in_any_way() {
        let ends: [fn(Delivery); 3] =
            [Delivery::acknowledge, |delivery| delivery.retry("too late"), drop];
        for end in ends {
            let bench = Bench::new(|_| ());
            bench.schedule(0, None);
            bench.turn();
            let delivery = bench.start_delivery();
            bench.write(Command::Settle(delivery.record().claim(), Settlement::Done));
            delivery.acknowledged_in_transaction();
            bench.core.post.notice(None, WallTime::MIN);
            bench.turn();
            assert!(delivery.is_current(), "its own acknowledgement does not stop it");
            end(delivery);
            assert_eq!(bench.settled(), None);
            bench.turn();
            let stats = bench.core.counters.read();
            assert_eq!((stats.acknowledged, stats.fenced, stats.retries), (1, 0, 0));
            assert!(bench.core.is_idle());
        }
    }

    /// A transaction of the handler has scheduled the next occurrence. The delivered one was due
    /// while no timer ran, and the next one is not.
    #[test]
    fn a_timer_looks_for_the_next_occurrence_of_one_that_was_overdue() {
        let bench = Bench::new(|_| ());
        bench.schedule(900, Repeat::every(SECOND).ok());
        bench.turn();
        let delivery = bench.start_delivery();
        let next = bench.core.now().saturating_add(SECOND);
        bench.write(Command::Settle(delivery.record().claim(), Settlement::Again(next)));
        delivery.acknowledged_in_transaction();
        drop(delivery);
        let asks = bench.core.post.inbox.lock().due.values().any(|due| *due == WallTime::MIN);
        assert!(!asks, "it asks the store for its queues without need");
        assert_eq!(bench.turn(), Some(next));
    }

    /// If an overdue turn were due now, `ManualClock::advance` would never return.
    #[test]
    fn an_overdue_turn_is_a_microsecond_away_and_a_later_one_at_its_time() {
        let bench = Bench::new(|_| ());
        bench.schedule(0, None);
        bench.core.post.notice(None, bench.core.now());
        let next = bench.turn().expect("the lease is renewed").since(bench.core.now());
        let at = Some(bench.clock.now() + next);
        assert_eq!(bench.core.next_turn(), at);
        bench.clock.advance(Duration::from_nanos(1_500));
        assert_eq!(bench.core.next_turn(), at);
        bench.clock.advance(next);
        let soon = bench.clock.now() + Duration::from_micros(1);
        assert_eq!(bench.core.next_turn(), Some(soon));
    }

    /// The clock of the store stood still during the suspension.
    #[test]
    fn a_timer_looks_at_its_store_after_a_suspension() {
        let bench = Bench::new(|_| ());
        bench.turn();
        bench.schedule(0, None);
        bench.turn();
        assert!(bench.deliveries.try_recv().is_err(), "it has not heard of the timeout");
        bench.core.post.clock_has_jumped();
        assert!(bench.core.post.inbox.lock().has_news(), "the driver sleeps on");
        bench.turn();
        assert!(bench.deliveries.try_recv().is_ok());
        assert_eq!(bench.core.counters.read().clock_steps, 1);
    }

    /// It waits for a thread or task, or its claim has begun it and is on its way.
    #[test]
    fn a_delivery_that_waits_is_not_run_after_these_events_and_is_no_attempt() {
        let events: [(_, fn(&Bench), _); 6] = [
            ("nothing", |bench| bench.pause(false, None), Some((State::Pending, 1))),
            ("pause", |bench| bench.pause(true, Some(&Name::default())), NOT_RUN),
            ("pause whose notice is lost", |bench| bench.pause(true, None), NOT_RUN),
            ("cancel", Bench::cancel, None),
            ("shutdown", |bench| bench.core.shut_down(), NOT_RUN),
            // The process stops, for longer than its lease.
            ("lapse", |bench| while bench.core.drivers.lock()[0].lease.is_valid() {}, NOT_RUN),
        ];
        for (name, event, expected) in events {
            for (begins, is_on_its_way) in [(false, false), (true, false), (true, true)] {
                let bench = Bench::new(|settings| {
                    if name == "lapse" {
                        (settings.is_virtual, settings.lease) = (false, SECOND / 30);
                    }
                });
                bench.schedule(u32::from(begins), None);
                let claims = Mutex::new(Vec::new());
                bench.core.run_turn(&|claim| {
                    let claimed = bench.store.claim(claim.worker, &claim.request).block_on();
                    claims.lock().push((claim, claimed));
                });
                let arrive = || {
                    bench.core.post.put(|inbox| inbox.claimed.append(&mut claims.lock()));
                    bench.turn();
                };
                if !is_on_its_way {
                    arrive();
                }
                event(&bench);
                if !["lapse", "shutdown"].contains(&name) {
                    bench.turn();
                }
                if is_on_its_way {
                    arrive();
                }
                let delivery = bench.deliveries.try_recv().ok();
                let started = delivery.and_then(Delivery::start);
                assert_eq!(started.is_some(), name == "nothing", "{name}");
                drop(started);
                assert_eq!(bench.settled(), expected, "{name}; a drop is a failure");
                assert_eq!(bench.core.counters.read().fenced, 0, "{name}");
            }
        }
    }

    /// The notice of it is lost.
    #[test]
    fn the_next_renewal_of_the_lease_stops_a_delivery_that_was_cancelled() {
        let bench = Bench::new(|_| ());
        bench.schedule(0, None);
        bench.turn();
        let delivery = bench.start_delivery();
        bench.write(Command::Cancel("a".parse().expect("valid")));
        thread::scope(|scope| {
            let waits = scope.spawn(|| delivery.stop_token().wait(300 * SECOND));
            bench.pass(10 * SECOND);
            assert!(waits.join().expect("join"));
        });
    }

    /// A clock whose first reading is old when it arrives.
    #[derive(Debug, Default)]
    struct Slow(OnceLock<Duration>);

    impl Clock for Slow {
        fn now(&self) -> Instant {
            Instant::now()
        }

        fn system_time(&self) -> SystemTime {
            let now = SystemTime::now();
            let read = *self.0.get_or_init(Lease::now);
            while Lease::now() < read + SECOND / 100 {}
            now
        }
    }

    #[test]
    fn a_lease_does_not_count_from_later_than_the_time_that_the_store_gets() {
        let (settings, clock) = (DriverSettings::default(), Arc::new(Slow::default()));
        let (lease, handler) = (settings.lease, Mutex::default());
        let settings = DriverSettings { is_virtual: false, ..settings };
        let queues = vec![Served { settings, handler }];
        let core = Core::new(Box::new(SqliteStore::in_memory()), clock.clone(), true, queues);
        core.run_turn(&|claim| core.claim(claim));
        let (drivers, now) = (core.drivers.lock(), Lease::now());
        let end = now + drivers[0].lease.remaining().expect("real time");
        assert!(end <= *clock.0.get().expect("it was read") + lease / 10 * 9);
    }

    #[test]
    fn the_limit_of_a_delivery_starts_with_its_handler() {
        let limit = |settings: &mut DriverSettings| {
            settings.queue.handler_limit = Some(60 * SECOND);
            settings.lease = 600 * SECOND;
        };
        for begins in [false, true] {
            let (bench, delivery) = Bench::waiting(begins, limit);
            bench.pass(60 * SECOND);
            assert!(delivery.start().is_none(), "it waits too long");
            assert_eq!(bench.settled(), NOT_RUN);
            let (bench, delivery) = Bench::waiting(begins, limit);
            bench.pass(50 * SECOND);
            let delivery = delivery.start().expect("within the limit");
            bench.pass(50 * SECOND);
            assert!(delivery.is_current());
            bench.pass(10 * SECOND);
            assert!(!delivery.is_current());
            assert_eq!(bench.core.counters.read().overruns, 1);
            // Its handler has returned, and the acknowledgement is not written.
            let (bench, delivery) = Bench::waiting(begins, limit);
            delivery.start().expect("within the limit").acknowledge();
            bench.pass(60 * SECOND);
            assert_eq!(bench.settled(), None);
            let stats = bench.core.counters.read();
            assert_eq!((stats.overruns, stats.fenced), (0, 0));
        }
    }

    /// All handlers hang, and a timeout is cancelled and scheduled again and again.
    #[test]
    fn deliveries_that_were_given_back_do_not_pile_up_before_handlers() {
        for (threads, most) in [(Some(2), 2), (None, 8)] {
            let bench = Bench::new(|settings| {
                (settings.threads, settings.queue.max_deliveries) = (threads, 4);
            });
            let begin = || {
                bench.schedule(0, None);
                bench.core.post.notice(None, bench.core.now());
                bench.turn();
                bench.deliveries.try_iter().collect::<Vec<_>>()
            };
            let mut waiting = Vec::new();
            for _ in 0..20 {
                waiting.extend(begin());
                bench.write(Command::Cancel("a".parse().expect("valid")));
                bench.core.post.notice(None, WallTime::MIN);
                bench.turn();
            }
            assert_eq!(waiting.len(), most);
            drop(waiting);
            assert_eq!(begin().len(), 1);
        }
    }
}
