//! The driver: decides which records a worker claims, holds in memory and begins, and when it looks
//! again.
//!
//! It reads no wall clock and starts no thread. [`step`](Driver::step) does all work that is due at
//! a time, and [`next_step`](Driver::next_step) returns the time of the next call. So a simulation
//! runs many drivers in virtual time.
//!
//! Two lanes claim records. The *window* lane claims records that are due from `boundary` on, which
//! is the start of the worker, ahead of time. The *backlog* lane claims records that were due
//! before that. Each lane begins its oldest record first, and the lanes take turns, so a long
//! backlog does not delay records that are due now.
//!
//! A delivery begins when a handler can run it. Records that wait are claimed, not begun. If
//! handlers take only a moment, more begin at once, and the claims of the backlog lane begin them
//! as well. These begin *ahead*: a kill may count an attempt that no handler has seen. So only a
//! first attempt begins ahead, and only if others may follow it. On a store that other processes
//! share, a worker holds only as many records as its handlers complete in a moment. It gives those
//! back that are due, and claims none, if no handler was free for a second.
//!
//! A driver serves one queue, as a worker of its own. Its records wait in [`Held`]. Those of a key
//! that has as many deliveries as may run at once are *parked* there, and claims pass over further
//! ones of that key.
//!
//! The caller carries out the claims, at most one for each lane at a time. A driver that meanwhile
//! became another worker drops the records of the claim: the store has taken them from the old
//! worker, or will.

use std::{
    mem,
    num::{NonZeroU32, NonZeroUsize},
    sync::{Arc, atomic::Ordering::SeqCst},
    task::Waker,
    time::Duration,
};

use delaywheel::{
    Tick,
    wheel::{Key, TimingWheel},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    delivery::{Lease, Run},
    executor::contain,
    held::{Held, Lane, Reason, Size, Waiting, rank, time},
    policy::{Backoff, LEFT},
    stats::Counters,
};
use crate::{
    error::{StoreError, StoreErrorReason, StoreResult},
    record::{Claim, Name, Record, State},
    repeat::Repeat,
    store::{Begun, ClaimRequest, ClaimedBatch, Settlement, Store, WorkerId, interval},
    time::WallTime,
};

/// Most deliveries that begin in one call of the store.
const BATCH: usize = 1_024;

/// The same if there is a limit for each key. PostgreSQL locks these keys, and has a limited number
/// of locks for all its users.
const KEYED: usize = 128;

/// Most records of a claim of the backlog lane, which keep the processor from other deliveries.
const BACKLOG: usize = 256;

/// A worker on a shared store holds as many records as its handlers complete in this time.
const MOMENT: Duration = Duration::from_millis(50);

/// As many deliveries begin at once as handlers complete in this time.
const QUICK: Duration = Duration::from_millis(5);

/// Most deliveries for each thread that begin at once.
const AHEAD: usize = 128;

/// Least time until the next try if other transactions have locked a record.
const LOCKED: Duration = Duration::from_millis(10);

/// A worker of a shared store leaves due records to others if no handler was free for this time.
const STALL: Duration = Duration::from_secs(1);

/// Least time between two times that a full window makes room for others.
const EVICT: Duration = Duration::from_millis(100);

/// Least time after a claim that filled the window until it makes room for a higher priority.
const PEEK: Duration = Duration::from_secs(1);

/// How long a permit lasts whose delivery did not begin. A store keeps permits as long.
const PERMIT: Duration = Duration::from_millis(100);

/// Least time until the next try if deliveries of other workers reach the limit of a key.
const BUSY: Duration = Duration::from_millis(100);

/// How often a worker of a shared store tells it what it holds.
const RECONCILE: Duration = Duration::from_secs(60);

/// Longest time between two looks of a worker of a shared store. Such a store need not tell of
/// timeouts that are due later than in an hour.
const RECHECK: Duration = Duration::from_secs(1_800);

const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// For how long a worker that left a cron timeout to others claims none from a shared store.
const CRON_PAUSE: Duration = Duration::from_secs(1);

/// Error of a timeout whose last attempt did not end. It stays after a requeue.
const UNENDED: &str = "the last attempt did not end";

#[derive(Debug, Clone)]
pub(crate) struct QueueSettings {
    pub(crate) name: Name,
    pub(crate) max_deliveries: usize,
    pub(crate) threads: usize,
    pub(crate) handler_limit: Option<Duration>,
    pub(crate) backoff: Backoff,
    pub(crate) rate: Option<NonZeroU32>,
    pub(crate) key_limit: Option<NonZeroUsize>,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            name: Name::default(),
            max_deliveries: 1_024,
            threads: 4,
            handler_limit: Some(Duration::from_secs(15 * 60)),
            backoff: Backoff::default(),
            rate: None,
            key_limit: None,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct DriverSettings {
    pub(crate) queue: QueueSettings,
    /// Number of the driver within its timer.
    pub(crate) number: usize,
    pub(crate) window: Duration,
    pub(crate) window_capacity: usize,
    pub(crate) window_bytes: usize,
    /// Threads that run the handler, if threads of the timer do.
    pub(crate) threads: Option<usize>,
    /// Other processes claim from the store as well.
    pub(crate) is_shared: bool,
    /// The clock is virtual: leases do not follow the monotonic clock.
    pub(crate) is_virtual: bool,
    pub(crate) worker: Option<String>,
    pub(crate) lease: Duration,
    pub(crate) skip_older_than: Option<Duration>,
    pub(crate) catch_up_rate: Option<NonZeroU32>,
    pub(crate) recheck: Option<Duration>,
}

impl Default for DriverSettings {
    fn default() -> Self {
        Self {
            queue: QueueSettings::default(),
            number: 0,
            window: Duration::from_secs(60),
            window_capacity: 16_384,
            window_bytes: 64 << 20,
            threads: None,
            is_shared: false,
            is_virtual: true,
            worker: None,
            lease: Duration::from_secs(30),
            skip_older_than: None,
            catch_up_rate: None,
            recheck: None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(super) begun: Vec<(Record, Arc<Run>)>,
    /// `true` if a policy skips the record.
    pub(super) settlements: Vec<(Claim, Settlement, bool)>,
    pub(crate) claims: Vec<LaneClaim>,
    /// Tasks that wait for the end of a delivery which has become void.
    pub(super) stopped: Vec<Arc<Waker>>,
    /// Deliveries that exceeded their limit, to be stopped after their settlements are queued: a
    /// handler that stops must not end them first.
    pub(super) overrun: Vec<Arc<Run>>,
    pub(crate) again: bool,
}

/// The end of a handler.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) token: u64,
    /// `None` if it has not started.
    pub(super) lasted: Option<Duration>,
    /// It could not be started: a spawner panics, or its runtime has ended.
    pub(super) is_released: bool,
}

/// A claim for the caller to carry out. The next step takes its outcome.
#[derive(Debug, Clone)]
pub(crate) struct LaneClaim {
    pub(crate) driver: usize,
    pub(crate) lane: Lane,
    pub(crate) worker: WorkerId,
    pub(crate) request: ClaimRequest,
}

/// The records of a claim; `None` if the worker has lost its lease.
pub(crate) type Claimed = StoreResult<Option<ClaimedBatch>>;

struct Turn<'a> {
    store: &'a dyn Store,
    now: WallTime,
    start: Duration,
    counters: &'a Counters,
    step: Step,
}

#[derive(Debug, Default)]
struct LaneState {
    is_claiming: bool,
    at: Option<WallTime>,
    /// No claim before this: others have locked the records, or the rate allows none.
    after: WallTime,
    /// A time before which no record of the lane is pending, as claims and notices told. A claim
    /// from its start would read what was delivered long ago, as long as an old transaction keeps
    /// the server from removing it.
    floor: WallTime,
}

impl LaneState {
    fn claim_at(&mut self, at: WallTime) {
        self.at = self.at.into_iter().chain([at]).min();
    }
}

#[derive(Debug)]
struct Delivering {
    run: Arc<Run>,
    limit: Option<Key>,
    /// The key of whose deliveries it is one.
    slot: Option<Name>,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(crate) struct Driver {
    settings: DriverSettings,
    worker: Option<WorkerId>,
    pub(super) lease: Arc<Lease>,
    held: Held,
    /// By the number of a [`Lane`].
    lanes: [LaneState; 2],
    /// Claims that have ended since the last step.
    pub(super) claimed: Vec<(LaneClaim, Claimed)>,
    permit_at: WallTime,
    /// Permits whose deliveries did not begin, and until when they last.
    permits: (usize, WallTime),
    /// Deliveries under way, by token.
    delivering: FxHashMap<u64, Delivering>,
    /// Tokens of settlements that the store has not written. The worker stays until then.
    settling: FxHashSet<u64>,
    /// Tokens of handlers that have not returned, and of deliveries that wait for one.
    running: FxHashSet<u64>,
    /// Those of them whose delivery is over: it exceeded its limit, or was given back.
    stale: usize,
    /// Most deliveries that the claim under way begins.
    reserved: usize,
    /// When due records go to others, unless a handler returns before that.
    stalls_at: Option<WallTime>,
    /// Mean time of the latest handlers.
    handling: Duration,
    /// When deliveries under way exceed the limit, by token, in the monotonic clock.
    limits: TimingWheel<u64>,
    boundary: Option<WallTime>,
    /// When the latest step began, by the wall clock.
    last: WallTime,
    /// The same by the monotonic clock.
    last_start: Duration,
    renew_at: WallTime,
    lapse_at: Option<WallTime>,
    recheck_at: Option<WallTime>,
    /// When to give back what only the store takes for held.
    reconcile_at: WallTime,
    /// A claim or begin of unknown outcome may have left some.
    is_doubtful: bool,
    /// The window is full, and more is pending in it.
    is_full: bool,
    /// When a record is due that was noticed while the window was full. Its priority may be high.
    evict_at: Option<WallTime>,
    evict_after: WallTime,
    must_check: bool,
    must_recall: bool,
    /// Until then, others claim cron timeouts: this worker has left one to them.
    cron_at: WallTime,
    /// After a failure: no call of the store before this.
    paused_until: Option<WallTime>,
    pause: Duration,
    /// No more claims. The driver gives the held records back.
    pub(super) is_closing: bool,
}

impl Driver {
    pub(crate) fn new(settings: DriverSettings) -> Self {
        let mut driver = Self { settings, handling: MOMENT, ..Self::default() };
        driver.claim_soon(WallTime::MIN);
        driver
    }

    /// Numbers of records in the window, due, and being delivered.
    pub(crate) fn held(&self) -> (usize, usize, usize) {
        let (window, due) = self.held.counts();
        (window, due, self.delivering.len())
    }

    pub(crate) fn is_idle(&self, now: WallTime) -> bool {
        let is_waiting = self.next_step().is_none_or(|next| next > now);
        // Others may have locked what is due.
        let [window, backlog] = &self.lanes;
        let has_due = backlog.at.is_some() || window.floor <= now;
        let has_due = has_due && !self.is_closing;
        let is_settling = !self.delivering.is_empty() || !self.settling.is_empty();
        let is_held = self.held().1 + self.occupied() > 0 || self.held.passes_over_keys();
        let is_busy = is_settling || self.is_claiming() || is_held;
        is_waiting && !has_due && !is_busy && !self.is_doubtful
    }

    /// Takes the news that a record may be due at this time: one of a queue, or of any. At
    /// [`WallTime::MIN`], the time is not known, and there may be several.
    pub(crate) fn notice(&mut self, queue: Option<&Name>, due: WallTime) {
        if queue.is_some_and(|queue| *queue != self.settings.queue.name) {
            return;
        }
        if due == WallTime::MIN {
            // One without a queue may stand for the lost one of a pause.
            self.must_check |= queue.is_none();
            self.must_recall = true;
            self.claim_soon(due);
            return;
        }
        if self.is_full {
            self.evict_at = self.evict_at.into_iter().chain([due.max(self.evict_after)]).min();
        }
        self.lanes.iter_mut().for_each(|lane| lane.floor = lane.floor.min(due));
        let (boundary, lead) = (self.boundary.unwrap_or(WallTime::MIN), self.lead());
        let [window, backlog] = &mut self.lanes;
        // This may be the earliest of many times, so the window lane looks in either case.
        window.claim_at(due.max(boundary).saturating_sub(lead));
        if due < boundary {
            backlog.claim_at(due);
        }
    }

    /// A handler has returned, or a delivery that waited for one is gone.
    pub(super) fn returned(&mut self, returned: &Returned) {
        if let Some(lasted) = returned.lasted {
            self.handling = (self.handling * 7 + lasted) / 8;
        }
        // Once for all that were given back together.
        if returned.is_released && self.paused_until.is_none_or(|until| until <= self.last) {
            self.rest(self.last);
        }
        let was_running = self.running.remove(&returned.token);
        if let Some(delivering) = self.delivering.get_mut(&returned.token) {
            // Its settlement may wait for a locked row.
            delivering.limit.take().and_then(|key| self.limits.cancel(key));
        } else {
            self.stale -= usize::from(was_running);
        }
        self.stalls_at = None;
    }

    pub(crate) fn ended(&mut self, token: u64) {
        self.settling.remove(&token);
        self.held.end_last(token);
        let Some(delivering) = self.delivering.remove(&token) else { return };
        self.stale += usize::from(self.running.contains(&token));
        if let Some(key) = delivering.limit {
            self.limits.cancel(key);
        }
        self.free_slot(delivering.slot.as_ref());
    }

    pub(crate) fn leave(&mut self) -> Option<WorkerId> {
        self.worker.take()
    }

    /// Does all work that is due at `now`. `start`, of the monotonic clock, was read before that.
    /// In virtual time, that clock is virtual too.
    pub(crate) fn step(
        &mut self,
        store: &dyn Store,
        start: Duration,
        now: WallTime,
        counters: &Counters,
    ) -> Step {
        let mut turn = Turn { store, now, start, counters, step: Step::default() };
        self.follow_clock(now, counters);
        self.last_start = start;
        for (claim, claimed) in mem::take(&mut self.claimed) {
            self.end_claim(&claim, claimed, &mut turn);
        }
        if self.is_closing {
            self.give_all_back(&mut turn);
            self.recall_waiting(&mut turn);
        }
        self.end_overruns(&mut turn);
        if !self.lease.is_valid() {
            self.stop_deliveries(&mut turn);
        }
        if self.paused_until.is_none_or(|until| until <= now) {
            self.paused_until = None;
            match self.call_store(&mut turn) {
                // A claim that is under way may fail.
                Ok(()) if self.is_claiming() => (),
                Ok(()) => self.pause = Duration::ZERO,
                Err(error) => self.pause_after(&error, now, counters),
            }
        }
        let stalls_at = self.stalls_at.unwrap_or(now.saturating_add(STALL));
        self.stalls_at = (self.settings.is_shared && self.idle() == 0).then_some(stalls_at);
        turn.step
    }

    pub(crate) fn next_step(&self) -> Option<WallTime> {
        // Without a step, both clocks run alike.
        let left = |limit| time(limit).since(time(span_tick(self.last_start)));
        let limit = self.limits.next_expiration().map(|at| self.last.saturating_add(left(at)));
        if let Some(until) = self.paused_until {
            return Some(limit.map_or(until, |limit| limit.min(until)));
        }
        let permit_at = if self.permits.0 > 0 { self.last } else { self.permit_at };
        let due = self.held.next_begin(self.last).filter(|_| self.free() > 0);
        let due = due.map(|due| due.max(permit_at));
        let renew = (self.worker.is_some() && self.has_held()).then_some(self.renew_at);
        let claims = [
            self.next_claim(Lane::Window),
            self.next_claim(Lane::Backlog),
            self.evict_at.filter(|_| self.is_full && self.held.in_lane(Lane::Window) > 0),
            self.lapse_at,
            self.recheck_at,
        ];
        let claims = claims.into_iter().flatten().filter(|_| self.may_claim());
        let stalls_at = self.stalls_at.filter(|at| *at > self.last);
        let reconciles = self.is_doubtful && !self.is_claiming() && !self.is_closing;
        let reconcile = reconciles.then_some(self.reconcile_at);
        let others = [limit, due, renew, stalls_at, self.held.next_expiration(), reconcile];
        others.into_iter().flatten().chain(claims).min()
    }

    /// Notices that the clock has stepped back: records that were due may not be due any more.
    fn follow_clock(&mut self, now: WallTime, counters: &Counters) {
        if now < self.last {
            counters.clock_steps.add(usize::from(self.settings.number == 0));
            (self.permit_at, self.permits.0) = (WallTime::MIN, 0);
            (self.cron_at, self.evict_at, self.evict_after) = Default::default();
            self.stalls_at = None;
            self.held.step_back();
            self.boundary = self.boundary.map(|boundary| boundary.min(now));
            self.lanes.iter_mut().for_each(|lane| lane.after = WallTime::MIN);
            self.paused_until = None;
            self.claim_soon(now);
            self.renew_at = now;
            self.reconcile_at = now;
        }
        self.last = now;
    }

    /// Makes both lanes claim, and renews the lease, at once.
    pub(crate) fn claim_soon(&mut self, now: WallTime) {
        for lane in &mut self.lanes {
            (lane.at, lane.floor) = (Some(now), WallTime::MIN);
        }
        // The claims may have to wait for room, and set the next times when they are made.
        (self.lapse_at, self.recheck_at) = (None, None);
    }

    /// Calls nothing for a moment: the handler cannot be started.
    pub(crate) fn rest(&mut self, now: WallTime) {
        // After an outage, other workers wait a tenth of a lease for this one to renew its own.
        let most = MAX_PAUSE.min(self.settings.lease / 20).max(MIN_PAUSE);
        self.pause = (self.pause * 2).clamp(MIN_PAUSE, most);
        self.paused_until = Some(now.saturating_add(self.pause));
    }

    /// Counts deliveries that take too long as failed, and gives those back whose handlers did not
    /// start in that time. The limit counts from the start of the handler, which may be later than
    /// the begin, by the monotonic clock: a step of the wall clock is no time of a handler.
    fn end_overruns(&mut self, turn: &mut Turn<'_>) {
        let expired: Vec<_> =
            self.limits.advance(span_tick(turn.start)).map(|expired| expired.value).collect();
        for token in expired {
            let Some(Delivering { run, .. }) = self.delivering.get(&token) else { continue };
            let run = Arc::clone(run);
            if self.recall(&run, turn) {
                continue;
            }
            // Another thread has recalled the run, and then reports its end.
            let Some(start) = run.started() else { continue };
            if self.limit_of(start) > Some(span_tick(turn.start)) {
                self.watch(token, start);
                continue;
            }
            self.ended(token);
            turn.counters.overruns.add(1);
            self.fail(run.claim.clone(), run.attempt, "the handler exceeded its limit", turn);
            turn.step.overrun.push(run);
        }
    }

    fn call_store(&mut self, turn: &mut Turn<'_>) -> StoreResult<()> {
        let lapsed = self.lapse_at.is_some_and(|lapse| lapse <= turn.now);
        if lapsed && self.worker.is_none() {
            self.enter(turn)?;
        }
        // The monotonic clock also runs while the wall clock stands still or steps back.
        let is_over = self.worker.is_some() && !self.lease.is_valid();
        if (self.has_held() && (is_over || self.renew_at <= turn.now)) || lapsed {
            self.renew(turn)?;
        }
        // A claim under way may bring deliveries that began before the notice.
        if self.must_check {
            self.check(turn)?;
            self.must_check = self.reserved > 0;
        }
        if self.must_recall {
            self.recall_if_paused(turn)?;
            self.must_recall = self.reserved > 0;
        }
        if lapsed || self.recheck_at.is_some_and(|recheck| recheck <= turn.now) {
            self.claim_soon(turn.now);
        }
        if self.held.expire(turn.now) {
            self.claim_soon(turn.now);
        }
        if self.is_stalled() {
            let held = self.held.take_lanes();
            self.release(&held, turn);
            self.recall_waiting(turn);
        }
        if self.waiting() > self.ended_soon() {
            // Handlers have become slow, and what began ahead of them would delay others.
            self.recall_waiting(turn);
        }
        if self.evict_at.take_if(|at| *at <= turn.now).is_some() && self.is_full {
            self.evict_after = turn.now.saturating_add(EVICT);
            let evicted = self.held.evict();
            self.is_full = evicted.is_empty();
            self.release(&evicted, turn);
        }
        if self.must_reconcile() && !self.is_claiming() {
            self.reconcile(turn)?;
        }
        self.claim_in(Lane::Window, turn)?;
        self.begin_due(turn)?;
        self.claim_in(Lane::Backlog, turn)?;
        turn.step.again = self.next_step().is_some_and(|next| next <= turn.now);
        Ok(())
    }

    /// A delivery of a key has ended. After the last parked record of the key, claims do not pass
    /// over it any more.
    fn free_slot(&mut self, slot: Option<&Name>) {
        if self.held.free(slot) {
            self.claim_soon(self.last);
        }
    }

    fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.delivering.values().map(|delivering| &delivering.run)
    }

    fn pause_after(&mut self, error: &StoreError, now: WallTime, counters: &Counters) {
        counters.store_errors.add(1);
        emit!(warn, error = error as &dyn std::error::Error, "store failed");
        let _ = error;
        self.rest(now);
    }

    fn settle(&mut self, claim: Claim, settlement: Settlement, turn: &mut Turn<'_>) {
        self.settling.insert(claim.token);
        turn.step.settlements.push((claim, settlement, false));
    }

    fn release(&mut self, records: &[Record], turn: &mut Turn<'_>) {
        for record in records {
            self.settle(record.claim(), Settlement::Release, turn);
        }
    }

    fn give_all_back(&mut self, turn: &mut Turn<'_>) {
        let held = self.held.take_all();
        self.release(&held, turn);
    }

    /// An attempt failed without an answer of the handler.
    fn fail(&mut self, claim: Claim, attempt: u32, error: &str, turn: &mut Turn<'_>) {
        let backoff = self.settings.queue.backoff;
        self.settle(claim, backoff.settle(attempt, error.to_owned(), turn.now, None), turn);
    }

    fn stop_deliveries(&self, turn: &mut Turn<'_>) {
        turn.step.stopped.extend(self.runs().flat_map(|run| run.stop()));
    }

    /// Gives back the records that only the store takes for held: it carried out a claim or begin
    /// that seemed to fail, or a failover or crash of its server lost what ended their deliveries.
    /// No claim is under way.
    fn reconcile(&mut self, turn: &Turn<'_>) -> StoreResult<()> {
        if let Some(worker) = self.worker {
            let others = self.delivering.keys().chain(&self.settling).copied();
            let tokens: Vec<_> = self.held.tokens().chain(others).collect();
            match contain(|| turn.store.keep_only(worker, &tokens)) {
                // The claim of unknown outcome is under way still. It keeps no others.
                Err(error) if error.reason() == StoreErrorReason::Locked => {
                    self.reconcile_at = turn.now.saturating_add(MAX_PAUSE);
                    return Ok(());
                }
                kept => {
                    // The notification may be late or lost, and the timer seem idle.
                    if kept? > 0 {
                        self.claim_soon(turn.now);
                    }
                }
            }
        }
        let next = turn.now.saturating_add(RECONCILE);
        self.reconcile_at = if self.settings.is_shared { next } else { WallTime::MAX };
        self.is_doubtful = false;
        Ok(())
    }

    /// Notes that this worker may hold records that it does not know, unless a claim or begin has
    /// certainly changed nothing. Returns whether it may.
    fn doubt(&mut self, error: &StoreError, now: WallTime) -> bool {
        let is_certain =
            matches!(error.reason(), StoreErrorReason::Locked | StoreErrorReason::Unavailable);
        if !is_certain {
            (self.reconcile_at, self.is_doubtful) = (now, true);
        }
        !is_certain
    }

    fn check(&mut self, turn: &mut Turn<'_>) -> StoreResult<()> {
        // The record of one that its handler has acknowledged is gone.
        // One that a lapsed lease has stopped is a delivery of its key until another call ends it.
        let is_open = |delivering: &&Delivering| {
            let Delivering { run, slot, .. } = delivering;
            (!run.is_stopped() || slot.is_some()) && !run.is_acknowledged.load(SeqCst)
        };
        let open = self.delivering.values().filter(is_open);
        let runs: Vec<_> = open.map(|delivering| Arc::clone(&delivering.run)).collect();
        let claims: Vec<_> = runs.iter().map(|run| run.claim.clone()).collect();
        if claims.is_empty() {
            return Ok(());
        }
        let current = contain(|| turn.store.are_current(&claims))?;
        for (run, _) in runs.iter().zip(current).filter(|(_, is_current)| !is_current) {
            turn.step.stopped.extend(run.stop());
            let token = run.claim.token;
            let slot = self.delivering.get_mut(&token).and_then(|void| void.slot.take());
            self.free_slot(slot.as_ref());
            if run.recall() {
                self.ended(token);
            }
        }
        Ok(())
    }

    /// Gives deliveries back that wait for a thread or a task if the queue is paused.
    fn recall_if_paused(&mut self, turn: &mut Turn<'_>) -> StoreResult<()> {
        if self.runs().any(|run| run.started().is_none()) {
            let name = &self.settings.queue.name;
            let queues = contain(|| turn.store.queues())?;
            if queues.iter().any(|queue| queue.is_paused && queue.name == *name) {
                self.recall_waiting(turn);
            }
        }
        Ok(())
    }

    fn recall_waiting(&mut self, turn: &mut Turn<'_>) {
        let waiting = self.runs().filter(|run| run.started().is_none());
        for run in waiting.cloned().collect::<Vec<_>>() {
            self.recall(&run, turn);
        }
    }

    /// Gives a delivery back unless its handler has started. It was no attempt.
    fn recall(&mut self, run: &Run, turn: &mut Turn<'_>) -> bool {
        let is_recalled = run.recall();
        if is_recalled {
            self.ended(run.claim.token);
            self.settle(run.claim.clone(), Settlement::Release, turn);
        }
        is_recalled
    }

    fn renew(&mut self, turn: &mut Turn<'_>) -> StoreResult<()> {
        if let Some(worker) = self.worker {
            if contain(|| turn.store.renew(worker, turn.now, self.settings.lease))? {
                self.extend_lease(turn);
                self.check(turn)?;
            } else {
                self.lose_lease(turn);
            }
        }
        Ok(())
    }

    fn enter(&mut self, turn: &mut Turn<'_>) -> StoreResult<WorkerId> {
        // Each queue of a timer has a worker of its own. No two pairs of names have one in common.
        let queue = &self.settings.queue.name;
        let name = self.settings.worker.as_ref().map(|name| {
            let name = name.replace('%', "%25").replace('/', "%2F");
            if *queue == Name::default() { name } else { format!("{name}/{queue}") }
        });
        let lease = self.settings.lease;
        let worker = contain(|| turn.store.enter(turn.now, lease, name.as_deref()))?;
        self.extend_lease(turn);
        Ok(*self.worker.insert(worker))
    }

    /// The store has extended the lease. Deliveries from before a lease that had ended stay void,
    /// though it has not given their records away.
    fn extend_lease(&mut self, turn: &mut Turn<'_>) {
        self.renew_at = turn.now.saturating_add(self.settings.lease / 3);
        // The store counts from the time of the step, or from a time that is earlier by the delay
        // of a message.
        let until = turn.start.saturating_add(self.settings.lease / 10 * 9);
        let until = if self.settings.is_virtual { Duration::MAX } else { until };
        if !self.lease.extend(until) {
            self.stop_deliveries(turn);
            self.lease = Arc::default();
            self.lease.set(until);
        }
    }

    fn lose_lease(&mut self, turn: &mut Turn<'_>) {
        // A worker that holds nothing does not renew its lease, and loses nothing.
        if self.has_held() {
            turn.counters.lost_leases.add(1);
            emit!(warn, "lease was lost");
        }
        self.worker = None;
        self.lease.set(Duration::ZERO);
        self.stop_deliveries(turn);
        drop(self.held.take_all());
        for slot in self.delivering.values_mut().filter_map(|void| void.slot.take()) {
            self.held.free(Some(&slot));
        }
        self.is_full = false;
        self.claim_soon(turn.now);
    }

    fn end_claim(&mut self, claim: &LaneClaim, claimed: Claimed, turn: &mut Turn<'_>) {
        self.lanes[claim.lane as usize].is_claiming = false;
        if claim.request.begins {
            self.reserved = 0;
        }
        if self.worker != Some(claim.worker) {
            return;
        }
        turn.counters.claims.add(1);
        let mut batch = match claimed {
            Ok(Some(batch)) => batch,
            Ok(None) => return self.lose_lease(turn),
            Err(error) => {
                self.doubt(&error, turn.now);
                self.claim_soon(turn.now);
                return self.pause_after(&error, turn.now, turn.counters);
            }
        };
        self.pause = Duration::ZERO;
        turn.counters.empty_claims.add(usize::from(batch.records.is_empty()));
        // A lease that seems to have ended just now may be renewed this moment.
        let soon = turn.now.saturating_add(self.settings.lease / 10);
        let lapse = batch.lapse.map(|lapse| lapse.max(soon));
        if claim.request.lapse {
            self.lapse_at = lapse.map(|at| at.saturating_add(Duration::from_micros(1)));
        }
        let shared = self.settings.is_shared.then_some(RECHECK);
        let recheck = self.settings.recheck.into_iter().chain(shared).min();
        let recheck = recheck.map(|recheck| turn.now.saturating_add(recheck));
        let leaves_cron = cfg!(feature = "cron") && !claim.request.cron;
        let cron = leaves_cron.then_some(self.cron_at);
        // Claims of one lane do not put off those of the other.
        self.recheck_at = recheck.into_iter().chain(cron).chain(self.recheck_at).min();
        self.plan(claim, &batch, turn.now);
        batch.records.sort_unstable_by_key(rank);
        for record in batch.records {
            self.take_claimed(claim.lane, record, turn);
        }
    }

    /// Returns when a lane claims, as far as it is known.
    fn next_claim(&self, lane: Lane) -> Option<WallTime> {
        let state = &self.lanes[lane as usize];
        let at = state.at.filter(|_| !state.is_claiming)?.max(state.after);
        match lane {
            Lane::Backlog => (self.backlog_room().0 > 0).then_some(at),
            Lane::Window if self.has_room() => Some(at),
            Lane::Window if self.held.in_lane(lane) > 0 || self.reach() == 0 => None,
            // Beside a full window in which nothing is due, what is due in the store.
            Lane::Window => Some(at.max(state.floor)),
        }
    }

    /// Asks the caller for a claim if one of a lane is due.
    fn claim_in(&mut self, lane: Lane, turn: &mut Turn<'_>) -> StoreResult<()> {
        let at = self.next_claim(lane).filter(|_| self.may_claim());
        if at.is_none_or(|at| at > turn.now) {
            return Ok(());
        }
        let boundary = *self.boundary.get_or_insert(turn.now);
        // A lease that was not needed was not renewed, and may be about to end.
        if self.renew_at <= turn.now {
            self.renew(turn)?;
        }
        let worker = match self.worker {
            Some(worker) => worker,
            None => self.enter(turn)?,
        };
        let request = match lane {
            Lane::Window => self.window_request(boundary, turn.now),
            Lane::Backlog => self.backlog_request(boundary, turn.now),
        };
        if request.begins {
            self.reserved = request.limit;
        }
        // Notices during the claim set the floor anew, and its end sets it as well.
        let state = &mut self.lanes[lane as usize];
        (state.is_claiming, state.at, state.floor) = (true, None, WallTime::MAX);
        let driver = self.settings.number;
        turn.step.claims.push(LaneClaim { driver, lane, worker, request });
        Ok(())
    }

    fn window_request(&mut self, boundary: WallTime, now: WallTime) -> ClaimRequest {
        let has_room = self.has_room();
        self.is_full &= !has_room;
        let from = self.start_of(boundary, self.lanes[Lane::Window as usize].floor);
        // One microsecond more: a record that is due at that time is the reason for this claim.
        let window = self.settings.window.saturating_add(Duration::from_micros(1));
        let (window, limit) = if has_room {
            (window, self.capacity().saturating_sub(self.held.in_window()))
        } else {
            (Duration::from_micros(1), self.reach().min(BACKLOG))
        };
        let until = now.max(from).saturating_add(window);
        ClaimRequest { from, until, limit, ..self.request(now) }
    }

    fn backlog_request(&self, boundary: WallTime, now: WallTime) -> ClaimRequest {
        let (limit, begins) = self.backlog_room();
        let floor = self.lanes[Lane::Backlog as usize].floor;
        let from = self.start_of(WallTime::MIN, floor).min(boundary);
        ClaimRequest { from, until: boundary, limit, begins, ..self.request(now) }
    }

    fn request(&self, now: WallTime) -> ClaimRequest {
        ClaimRequest {
            max_bytes: self.settings.window_bytes.saturating_sub(self.held.size.bytes).max(1),
            cron: cfg!(feature = "cron") && self.cron_at <= now,
            queue: self.settings.queue.name.clone(),
            busy: self.held.parked_keys(),
            lapse: self.lapse_at.is_none(),
            ..ClaimRequest::new(now, WallTime::MAX)
        }
    }

    /// Sets when to claim again. A notice during the claim may have set an earlier time.
    fn plan(&mut self, claim: &LaneClaim, batch: &ClaimedBatch, now: WallTime) {
        let has_more = batch.next.is_some_and(|next| next < claim.request.until);
        // Others have locked all records. Without a pause, claims would keep the server busy until
        // these locks end.
        let are_locked = has_more && batch.records.is_empty();
        let mut pause = if are_locked { LOCKED } else { Duration::ZERO };
        let is_window = claim.lane == Lane::Window;
        if is_window {
            let held = self.held.in_window() + batch.records.len();
            let bytes: usize = batch.records.iter().map(|record| record.payload.len()).sum();
            let bytes = bytes + self.held.size.bytes;
            let is_full = held >= self.capacity() || bytes >= self.settings.window_bytes;
            self.is_full = is_full && (has_more || self.is_full);
            if self.is_full && !self.settings.is_shared {
                // A record that becomes due may go before those in memory.
                let next = batch.next.unwrap_or(now).max(now.saturating_add(PEEK));
                self.evict_at = self.evict_at.into_iter().chain([next]).min();
            }
        } else if let Some(rate) = self.settings.catch_up_rate {
            // Those that are skipped are no deliveries.
            let age = self.settings.skip_older_than;
            let delivered = batch.records.iter().filter(|one| !is_skipped(one, now, age));
            let count = u32::try_from(delivered.count()).unwrap_or(u32::MAX);
            pause = pause.max(Duration::from_secs(1) * count / rate.get());
        }
        let lead = self.lead();
        let lane = &mut self.lanes[claim.lane as usize];
        lane.floor = lane.floor.min(batch.next.unwrap_or(WallTime::MAX));
        lane.after = now.saturating_add(pause);
        // No claim brings what is due at the end of time, and another one would follow at once.
        let next = batch.next.filter(|&next| next < WallTime::MAX && (has_more || is_window));
        if let Some(next) = next {
            lane.claim_at(next.saturating_sub(lead));
        }
    }

    /// Holds a claimed record, or delivers it if the claim has begun that. One without an attempt
    /// left is dead: the process of its last attempt ended before the attempt.
    fn take_claimed(&mut self, lane: Lane, record: Record, turn: &mut Turn<'_>) {
        if record.state == State::Delivering {
            return self.deliver(record, None, turn);
        }
        if self.settings.queue.backoff.is_last(record.attempt) {
            // The limit may have been higher, and the error that of the last attempt.
            let error = record.error.as_deref().unwrap_or(UNENDED);
            return self.fail(record.claim(), record.attempt, error, turn);
        }
        if lane == Lane::Backlog || record.next <= turn.now {
            self.held.wait(Reason::Handler(lane), Waiting::new(record));
        } else {
            self.held.hold(record);
        }
    }

    fn take_due(&mut self, count: usize, turn: &mut Turn<'_>) -> Vec<Waiting> {
        let key_limit = self.settings.queue.key_limit;
        let (idle, mut taken) = (self.idle(), Vec::new());
        while taken.len() < count && (taken.len() < idle || !self.held.is_next_repeated()) {
            let Some(waiting) = self.held.pop() else { break };
            let Some(mut waiting) = self.held.admit(waiting, key_limit) else {
                self.trim(turn);
                continue;
            };
            let record = &waiting.record;
            let is_last = self.is_last_attempt(record);
            let is_skipped = is_skipped(record, turn.now, self.settings.skip_older_than);
            // One that does not begin is no delivery of its key.
            let slot = if lacks_zone(record) {
                self.pass_to_others(record, turn);
                waiting.slot
            } else if is_skipped {
                self.settling.insert(record.token);
                turn.step.settlements.push((record.claim(), following(record, turn.now), true));
                waiting.slot
            } else if is_last && self.held.has_last(turn.now) {
                let slot = waiting.slot.take();
                self.held.wait(Reason::LastAttempt, waiting);
                self.trim(turn);
                slot
            } else {
                if is_last {
                    self.held.begin_last(record.token, turn.now);
                }
                taken.push(waiting);
                continue;
            };
            self.free_slot(slot.as_ref());
        }
        taken
    }

    /// Keeps half of the window free of records behind deliveries. Last attempts are postponed, so
    /// that claims bring others first.
    fn trim(&mut self, turn: &mut Turn<'_>) {
        let DriverSettings { window_capacity, window_bytes, .. } = self.settings;
        let most = Size { count: window_capacity / 2, bytes: window_bytes / 2 };
        let at = turn.now.saturating_add(LEFT);
        for record in self.held.trim(most) {
            let how = if self.is_last_attempt(&record) {
                Settlement::Leave { at, error: UNENDED.to_owned() }
            } else {
                Settlement::Release
            };
            self.settle(record.claim(), how, turn);
        }
    }

    fn begin_due(&mut self, turn: &mut Turn<'_>) -> StoreResult<()> {
        if self.free() > 0 {
            self.held.resume_last(turn.now);
        }
        let QueueSettings { name, rate, key_limit, .. } = self.settings.queue.clone();
        let mut count = self.free().min(key_limit.map_or(BATCH, |_| KEYED));
        if let Some(rate) = rate {
            // Permits of records that do not begin must not add up.
            count = count.min(self.held.in_lanes()).min(interval(rate).1 as usize);
            let kept = if turn.now < self.permits.1 { self.permits.0 } else { 0 };
            self.permits.0 = kept;
            if kept < count && self.permit_at <= turn.now {
                let (more, next) =
                    contain(|| turn.store.permits(&name, turn.now, rate, count - kept))?;
                self.permit_at = next;
                self.permits = (kept + more, turn.now.saturating_add(PERMIT));
            }
            count = count.min(self.permits.0);
        }
        let taken = self.take_due(count, turn);
        if taken.is_empty() {
            return Ok(());
        }
        let claims: Vec<_> = taken.iter().map(|waiting| waiting.record.claim()).collect();
        let begun = match contain(|| turn.store.begin(turn.now, &claims, key_limit)) {
            Ok(begun) => begun,
            Err(error) => {
                let is_doubtful = self.doubt(&error, turn.now);
                if is_doubtful {
                    self.permits.0 = 0;
                }
                for mut waiting in taken {
                    self.held.end_last(waiting.record.token);
                    self.free_slot(waiting.slot.take().as_ref());
                    if !is_doubtful {
                        self.held.wait(Reason::Handler(Lane::Window), waiting);
                    }
                }
                return Err(error);
            }
        };
        for (mut waiting, begun) in taken.into_iter().zip(begun) {
            if begun != Begun::Begun {
                self.held.end_last(waiting.record.token);
            }
            // One of a busy key is the next delivery of the key, and those behind it wait.
            if !matches!(begun, Begun::Begun | Begun::Busy) {
                self.free_slot(waiting.slot.take().as_ref());
            }
            match begun {
                Begun::Begun => {
                    self.permits.0 = self.permits.0.saturating_sub(1);
                    debug_assert!(waiting.record.next <= turn.now, "a delivery is early");
                    waiting.record.attempt += 1;
                    self.deliver(waiting.record, waiting.slot, turn);
                }
                Begun::Void => turn.counters.fenced.add(1),
                Begun::Locked => self.held.retry(waiting, LOCKED, turn.now),
                Begun::Busy if waiting.is_tried_for_long(BUSY) => {
                    let given = self.held.pass_over(waiting, turn.now);
                    self.release(&given, turn);
                }
                Begun::Busy => self.held.retry(waiting, BUSY, turn.now),
                Begun::Paused => {
                    // All of them go back, and the next notice of the queue makes the worker claim.
                    self.release(&[waiting.record], turn);
                    self.give_all_back(turn);
                    self.must_recall = true;
                    self.is_full = false;
                }
            }
        }
        Ok(())
    }

    /// Returns whether this is the last attempt of a record, and none has ended. Either it ends its
    /// process, or one beside it does.
    fn is_last_attempt(&self, record: &Record) -> bool {
        let has_ended = record.error.as_ref().is_some_and(|error| error != UNENDED);
        let backoff = self.settings.queue.backoff;
        record.attempt > 0 && !has_ended && backoff.is_last(record.attempt + 1)
    }

    /// Leaves a timeout to workers that know its time zone, for longer if it was left before.
    fn pass_to_others(&mut self, record: &Record, turn: &mut Turn<'_>) {
        emit!(warn, id = record.id.as_str(), "the time zone of a timeout is unknown here");
        self.cron_at = turn.now.saturating_add(CRON_PAUSE);
        let rule = record.repeat.as_ref().map(Repeat::to_text).unwrap_or_default();
        let error = format!("a worker does not know the time zone of: {rule}");
        let at = turn.counters.left.next(record, turn.now);
        self.settle(record.claim(), Settlement::Leave { at, error }, turn);
    }

    fn deliver(&mut self, record: Record, slot: Option<Name>, turn: &mut Turn<'_>) {
        turn.counters.deliveries.add(1);
        turn.counters.lateness.record(turn.now.since(record.next));
        let run = Arc::new(Run::new(Arc::clone(&self.lease), self.settings.number, &record));
        let delivering = Delivering { run: Arc::clone(&run), limit: None, slot };
        self.delivering.insert(record.token, delivering);
        self.running.insert(record.token);
        self.watch(record.token, turn.start);
        turn.step.begun.push((record, run));
    }

    fn watch(&mut self, token: u64, start: Duration) {
        if let Some(limit) = self.limit_of(start)
            && let Some(delivering) = self.delivering.get_mut(&token)
        {
            delivering.limit = self.limits.insert(limit, token).ok();
        }
    }

    fn limit_of(&self, start: Duration) -> Option<Tick> {
        let limit = self.settings.queue.handler_limit?;
        Some(span_tick(start.saturating_add(limit)))
    }

    /// Returns how many deliveries can begin: a handler runs each at once, or within a moment.
    fn free(&self) -> usize {
        let free = self.free_of(self.settings.queue.max_deliveries);
        if self.held.is_next_repeated() {
            return free.min(self.idle());
        }
        let due = self.held.in_lanes();
        // Quick handlers begin in batches, as large as the threads have room for.
        let (total, handlers) = (self.total(), self.handlers());
        let room = total.saturating_sub(self.occupied());
        let is_batch = self.settings.threads.is_none() || 2 * room > total - handlers;
        if is_batch || due <= free { free } else { 0 }
    }

    /// Returns how many more deliveries may be under way, of at most so many. Those that a claim
    /// will bring delay no others: they may exceed the number that waits for threads.
    fn free_of(&self, most: usize) -> usize {
        let permits = most.saturating_sub(self.delivering.len() + self.reserved);
        self.total().saturating_sub(self.occupied()).min(permits)
    }

    fn handlers(&self) -> usize {
        let most = self.settings.queue.max_deliveries;
        self.settings.threads.map_or(most, |threads| threads.min(most))
    }

    fn idle(&self) -> usize {
        self.handlers().saturating_sub(self.occupied())
    }

    /// Returns how many handlers keep others from starting. Tasks whose deliveries are over make
    /// room for as many others as may run, and no more.
    fn occupied(&self) -> usize {
        let QueueSettings { max_deliveries, .. } = self.settings.queue;
        let are_tasks = self.settings.threads.is_none();
        self.running.len() - if are_tasks { self.stale.min(max_deliveries) } else { 0 }
    }

    /// Returns how many deliveries may wait for a handler or run.
    fn total(&self) -> usize {
        let has_threads = self.settings.threads.is_some() && !self.settings.is_virtual;
        let all_hang = self.stale >= self.handlers();
        let ahead = if has_threads && self.may_begin_ahead() && !all_hang {
            self.rounds(QUICK).clamp(1, AHEAD)
        } else {
            1
        };
        self.handlers() * ahead
    }

    /// Returns whether an attempt may count that no handler sees.
    fn may_begin_ahead(&self) -> bool {
        !self.settings.queue.backoff.is_last(1)
    }

    fn rounds(&self, span: Duration) -> usize {
        let rounds = span.as_micros() / self.handling.as_micros().max(1);
        usize::try_from(rounds).unwrap_or(usize::MAX)
    }

    /// Returns how many deliveries all handlers end within a [`STALL`].
    fn ended_soon(&self) -> usize {
        let all = u32::try_from(self.handlers()).unwrap_or(u32::MAX);
        self.rounds(STALL.saturating_mul(all))
    }

    /// Returns how many deliveries have begun ahead of the handlers.
    fn waiting(&self) -> usize {
        (self.running.len() - self.stale).saturating_sub(self.handlers())
    }

    /// Returns the most records to hold on a shared store: those that keep all handlers busy, and
    /// that do not go back before slow ones can begin them.
    fn reach(&self) -> usize {
        let handlers = self.handlers();
        let soon = self.idle().saturating_add(self.ended_soon());
        let busy = handlers.saturating_mul(self.rounds(MOMENT).max(2));
        busy.min(soon).min(self.settings.window_capacity)
    }

    fn capacity(&self) -> usize {
        let capacity = self.settings.window_capacity;
        if self.settings.is_shared { self.reach().max(self.held.in_window()) } else { capacity }
    }

    /// Returns how many records the backlog lane may claim, and whether the claim begins their
    /// deliveries. None until half of the last ones went.
    fn backlog_room(&self) -> (usize, bool) {
        let DriverSettings { window_capacity, window_bytes, catch_up_rate, .. } = self.settings;
        // At a limited rate, a hundredth of a second's worth: no more may wait for a handler, or
        // begin at once.
        let rate = catch_up_rate.map_or(BACKLOG, |rate| (rate.get() as usize / 100).max(1));
        let limit = BACKLOG.min(window_capacity).min(rate);
        if self.may_begin_at_claim() {
            let most = self.most_of_backlog();
            let free = self.free_of(most).min(limit);
            if 2 * free >= self.total().min(limit).min(most) {
                return (free, true);
            }
            // Threads soon return.
            if self.settings.threads.is_some() {
                return (0, false);
            }
        }
        let most = if self.settings.is_shared { self.reach().min(limit) } else { limit };
        let held = self.held.in_lane(Lane::Backlog);
        let has_room = held <= most / 2 && (held == 0 || self.held.size.bytes < window_bytes);
        (if has_room { most - held } else { 0 }, false)
    }

    /// Returns how many deliveries may be under way when a claim begins others: a record that is
    /// due now must not wait until a commit ends deliveries of the backlog.
    fn most_of_backlog(&self) -> usize {
        let most = self.settings.queue.max_deliveries;
        most - most / 8
    }

    fn may_begin_at_claim(&self) -> bool {
        let DriverSettings { queue, skip_older_than, threads, .. } = &self.settings;
        let is_quick = self.rounds(QUICK) > 1 && self.may_begin_ahead();
        let is_plain = queue.rate.is_none() && skip_older_than.is_none();
        // Half of a batch is then free, even if no other handler returns.
        let has_room = threads.is_none_or(|threads| self.most_of_backlog() >= 2 * threads);
        // A repeated record that waits for a thread comes first.
        let is_free = self.held.in_lane(Lane::Backlog) == 0 && !self.held.is_next_repeated();
        is_quick && is_plain && has_room && is_free
    }

    /// Returns the time before the next due time at which the window lane claims. The claim takes
    /// the records of the whole window, so no other claim follows for the rest of it. If each
    /// record caused a claim as it entered the window, many workers would claim for each record.
    fn lead(&self) -> Duration {
        self.settings.window / 2
    }

    /// Returns where a claim starts to read. A store of one process remembers that by itself.
    fn start_of(&self, lane: WallTime, floor: WallTime) -> WallTime {
        if self.settings.is_shared { floor.max(lane) } else { lane }
    }

    fn must_reconcile(&self) -> bool {
        self.reconcile_at <= self.last && !self.is_closing
    }

    /// Returns whether the lanes may claim. Before the worker tells what it holds, claims under way
    /// have to end.
    fn may_claim(&self) -> bool {
        // Records that were skipped are in memory until a commit says so.
        let most = self.settings.window_capacity.max(BACKLOG);
        let must_wait = self.is_claiming() && self.must_reconcile() || self.settling.len() > most;
        let has_reach = !self.settings.is_shared || self.reach() > 0;
        has_reach && !(self.is_closing || must_wait || self.is_stalled())
    }

    fn is_stalled(&self) -> bool {
        self.idle() == 0 && self.stalls_at.is_some_and(|at| at <= self.last)
    }

    fn is_claiming(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_claiming)
    }

    /// Returns whether the window lane may claim: a full window must first be half empty.
    fn has_room(&self) -> bool {
        let (held, bytes) = (self.held.in_window(), self.held.size.bytes);
        let (capacity, most) = (self.capacity(), self.settings.window_bytes);
        if self.is_full {
            held <= capacity / 2 && bytes <= most / 2
        } else {
            held < capacity && bytes < most
        }
    }

    fn has_held(&self) -> bool {
        self.held() != (0, 0, 0) || !self.settling.is_empty()
    }

    /// Returns whether a record is held, a claim is under way, or the end of one is not written.
    pub(crate) fn is_busy(&self) -> bool {
        self.has_held() || self.is_claiming()
    }
}

/// Returns a time of the monotonic clock as a tick of a microsecond.
fn span_tick(span: Duration) -> Tick {
    Tick::new(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

fn lacks_zone(record: &Record) -> bool {
    record.repeat.as_ref().is_some_and(|repeat| repeat.after(record.due, record.due).is_err())
}

fn is_skipped(record: &Record, now: WallTime, limit: Option<Duration>) -> bool {
    let too_old = limit.is_some_and(|limit| now.since(record.next) > limit);
    let repeat = record.repeat.as_ref();
    too_old || repeat.is_some_and(|repeat| repeat.is_skipped(record.due, now))
}

pub(crate) fn following(record: &Record, now: WallTime) -> Settlement {
    match &record.repeat {
        None => Settlement::Done,
        Some(repeat) => match repeat.follow(record.due, now) {
            Ok(Some(next)) => Settlement::Again(next),
            Ok(None) => Settlement::Done,
            Err(error) => Settlement::Dead { error: error.to_string() },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pollster::FutureExt as _;

    use super::*;
    use crate::{
        Command, NewTimeout, Priority, SqliteStore, TimeoutId,
        timer::{delivery::StopToken, held::ALONE},
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// A driver on a store in memory. Time passes only if a test says so.
    struct Bench {
        now: WallTime,
        start: Duration,
        store: SqliteStore,
        counters: Counters,
        driver: Driver,
    }

    impl Bench {
        /// Creates one with timeouts that are due, one second apart and the last one now.
        fn new(count: u32) -> Self {
            let now = WallTime::MIN.saturating_add(9_000 * SECOND);
            let bench = Self::on(&SqliteStore::in_memory(), now);
            let one = |number: u32| new(number.to_string(), now.saturating_sub(SECOND * number));
            bench.schedule((0..count).map(one));
            bench
        }

        fn on(store: &SqliteStore, now: WallTime) -> Self {
            let queue = QueueSettings { max_deliveries: 8, ..QueueSettings::default() };
            let driver = Driver::new(DriverSettings { queue, ..DriverSettings::default() });
            let (store, counters) = (store.clone(), Counters::default());
            // The process has run for longer than any wait of these tests.
            let start = Lease::now() + 90_000 * SECOND;
            Self { now, start, store, counters, driver }
        }

        /// Makes it one of four threads whose latest handlers took no time.
        fn quick(mut self) -> Self {
            self.driver.settings.queue.max_deliveries = 1_024;
            (self.driver.settings.threads, self.driver.settings.is_virtual) = (Some(4), false);
            self.driver.handling = Duration::ZERO;
            self
        }

        fn schedule(&self, new: impl IntoIterator<Item = NewTimeout>) {
            let commands: Vec<_> = new.into_iter().map(Command::Schedule).collect();
            self.store.write(self.now, &commands).block_on().expect("write");
        }

        fn pass(&mut self, time: Duration) {
            self.now = self.now.saturating_add(time);
            self.start += time;
        }

        fn step(&mut self) -> Step {
            self.driver.step(&self.store, self.start, self.now, &self.counters)
        }

        fn carry_out(&mut self, claims: Vec<LaneClaim>) {
            self.driver.claimed.extend(claims.into_iter().map(|claim| {
                let claimed = self.store.claim(claim.worker, &claim.request).block_on();
                (claim, claimed)
            }));
        }

        fn steps(&mut self, count: u32) -> Vec<Record> {
            let mut begun = Vec::new();
            for _ in 0..count {
                let step = self.step();
                step.settlements.into_iter().for_each(|(claim, how, _)| self.settle(claim, how));
                begun.extend(step.begun.into_iter().map(|(record, _)| record));
                self.carry_out(step.claims);
            }
            begun
        }

        fn deliver(&mut self, steps: u32) -> Vec<Record> {
            let mut all = Vec::new();
            for _ in 0..steps {
                let begun = self.steps(1);
                for record in begun {
                    self.acknowledge(&record);
                    all.push(record);
                }
            }
            all
        }

        fn settle(&mut self, claim: Claim, settlement: Settlement) {
            let (token, settle) = (claim.token, Command::Settle(claim, settlement));
            self.store.write(self.now, std::slice::from_ref(&settle)).block_on().expect("write");
            self.driver.ended(token);
            settle.due().into_iter().for_each(|due| self.driver.notice(None, due));
        }

        /// The handler has returned, after this time if it had started.
        fn returned(&mut self, token: u64, lasted: Option<Duration>) {
            self.driver.returned(&Returned { token, lasted, is_released: false });
        }

        fn acknowledge(&mut self, record: &Record) {
            self.returned(record.token, None);
            self.settle(record.claim(), Settlement::Done);
        }

        fn leave(&mut self) {
            self.store.leave(self.driver.leave().expect("entered")).block_on().expect("leave");
        }
    }

    fn new(id: impl Into<String>, due: WallTime) -> NewTimeout {
        NewTimeout::new(id.into(), due, b"").expect("valid")
    }

    fn ids(records: &[Record]) -> Vec<&str> {
        records.iter().map(|record| record.id.as_str()).collect()
    }

    #[test]
    fn few_deliveries_begin_at_once_if_there_is_a_limit_for_each_key() {
        let mut bench = Bench::new(0);
        let settings = &mut bench.driver.settings.queue;
        (settings.max_deliveries, settings.key_limit) = (1_024, NonZeroUsize::new(1));
        let ids = (0..300).map(|number| number.to_string());
        bench.schedule(ids.map(|id| new(&id, bench.now).key(&id).expect("valid")));
        let begun: Vec<_> = (0..9).map(|_| bench.steps(1).len()).collect();
        assert_eq!((begun.iter().sum(), begun.into_iter().max()), (300, Some(KEYED)));
    }

    /// Its zone has a typing error, so no worker knows it.
    #[cfg(feature = "cron")]
    #[test]
    fn a_rule_that_no_worker_can_read_delays_no_other_rule_for_long() {
        let mut bench = Bench::new(0);
        bench.driver.settings.is_shared = true;
        let rules = ["once cron Europe/Wien 0 9 * * *", "once cron UTC * * * * *"];
        let [bad, good] = rules.map(|rule| Repeat::from_text(rule).expect("text"));
        bench.schedule([new("bad", bench.now).repeat(bad)]);
        assert_eq!(bench.steps(5), []);
        bench.schedule([new("good", bench.now).repeat(good)]);
        bench.driver.notice(None, bench.now);
        assert_eq!(bench.steps(5), [], "others claim it first");
        let (start, mut begun, mut left) = (bench.now, Vec::new(), Vec::new());
        while bench.now < start.saturating_add(3_600 * SECOND) {
            begun.extend(bench.deliver(5));
            left.push(bench.store.records()[0].token);
            bench.now = bench.driver.next_step().expect("one is pending").max(bench.now);
        }
        assert_eq!(ids(&begun), ["good"]);
        left.dedup();
        assert!((13..40).contains(&left.len()), "left {} times in an hour", left.len());
    }

    #[test]
    fn no_claim_waits_for_the_end_of_time() {
        let mut bench = Bench::on(&SqliteStore::in_memory(), WallTime::MAX.before());
        bench.schedule([new("last", bench.now), new("never", WallTime::MAX)]);
        assert_eq!(ids(&bench.deliver(5)), ["last"]);
        let step = bench.step();
        assert_eq!((step.claims.len(), bench.driver.next_step()), (0, None));
    }

    #[test]
    fn records_that_were_claimed_for_an_earlier_worker_are_dropped() {
        let mut bench = Bench::new(3).quick();
        let step = bench.step();
        let [window, backlog] = &step.claims[..] else { panic!("{:?}", step.claims) };
        let claimed = bench.store.claim(backlog.worker, &backlog.request).block_on();
        let records = &claimed.as_ref().expect("claim").as_ref().expect("lease").records;
        assert!(records.len() == 2 && records[0].state == State::Delivering, "{records:?}");
        // Another worker takes the records before the answer, in which these have begun, arrives.
        bench.store.leave(backlog.worker).block_on().expect("leave");
        bench.carry_out(vec![window.clone()]);
        let step = bench.step();
        let [again] = &step.claims[..] else { panic!("{:?}", step.claims) };
        assert_ne!(again.worker, backlog.worker);
        bench.driver.claimed.push((backlog.clone(), claimed));
        let step = bench.step();
        assert!(step.begun.is_empty(), "the lease under which they began has ended");
        assert_eq!(bench.driver.held(), (0, 0, 0));
        assert_eq!(step.claims[0].worker, again.worker);
    }

    #[test]
    fn records_of_a_claim_whose_answer_is_lost_are_claimed_again() {
        let mut bench = Bench::new(2);
        let claims = bench.step().claims;
        bench.carry_out(claims);
        let lost = StoreError::new(StoreErrorReason::OutcomeUnknown);
        bench.driver.claimed.iter_mut().for_each(|claimed| claimed.1 = Err(lost.clone()));
        assert_eq!(bench.steps(2), []);
        bench.pass(MAX_PAUSE);
        assert_eq!(bench.steps(5).len(), 2);
    }

    /// A begin of unknown outcome leaves the records to the store, which takes them for held.
    #[test]
    fn a_worker_is_not_idle_before_it_knows_that_it_holds_nothing() {
        let mut bench = Bench::new(2);
        let claims = bench.step().claims;
        bench.carry_out(claims);
        for (_, claimed) in &mut bench.driver.claimed {
            *claimed = Ok(Some(ClaimedBatch::default()));
        }
        assert_eq!(bench.steps(2), []);
        bench.driver.doubt(&StoreError::new(StoreErrorReason::OutcomeUnknown), bench.now);
        bench.driver.rest(bench.now);
        assert!(!bench.driver.is_idle(bench.now), "two are due");
        bench.pass(MAX_PAUSE);
        assert_eq!(bench.deliver(5).len(), 2);
        assert!(bench.driver.is_idle(bench.now));
    }

    /// It was claimed before the pause.
    #[test]
    fn a_timeout_that_is_due_during_a_pause_is_delivered_after_it() {
        let mut bench = Bench::new(0);
        let (store, queue) = (bench.store.clone(), Name::default());
        let pause = |is_paused| store.pause(&queue, is_paused).block_on().expect("pause");
        bench.schedule([new("a", bench.now.saturating_add(SECOND))]);
        assert_eq!(bench.steps(3), []);
        pause(true);
        bench.pass(SECOND);
        assert_eq!(bench.steps(5), []);
        pause(false);
        bench.driver.notice(None, WallTime::MIN);
        assert_eq!(ids(&bench.steps(5)), ["a"]);
    }

    #[test]
    fn a_worker_tries_again_before_others_take_what_it_holds() {
        for lease in [SECOND / 300, 2 * SECOND, 5 * SECOND, 30 * SECOND] {
            let mut driver = Bench::new(0).driver;
            driver.settings.lease = lease;
            (0..9).for_each(|_| driver.rest(WallTime::MIN));
            assert!(driver.pause < (lease / 10).max(2 * MIN_PAUSE), "{:?}", driver.pause);
        }
    }

    fn several(name: &str, count: u32, due: WallTime) -> impl Iterator<Item = NewTimeout> {
        (0..count).map(move |number| new(format!("{name}{number}"), due))
    }

    /// Other transactions have locked the oldest records, and may hold them for long.
    #[test]
    fn a_locked_record_takes_no_permits_from_others() {
        for (count, locked, is_quick) in [(6, 1, false), (6, 1, true), (9, 4, false), (9, 4, true)]
        {
            let bench = Bench::new(count);
            let mut bench = if is_quick { bench.quick() } else { bench };
            bench.driver.settings.queue.rate = NonZeroU32::new(10);
            assert!(!bench.driver.may_begin_at_claim(), "a claim takes no permits");
            let oldest = (count - locked..count).map(|number| format!("{number}"));
            bench.store.lock(oldest.map(|id| TimeoutId::new(id).expect("valid")));
            let (end, mut steps, mut begun) = (bench.now.saturating_add(2 * SECOND), 0, 0);
            while bench.now < end {
                begun += bench.deliver(4).len();
                steps += 1;
                assert!(steps < 100, "{steps} times");
                bench.now = bench.driver.next_step().expect("one is locked").max(bench.now);
            }
            assert_eq!((begun, bench.driver.held().1), (5, locked as usize), "these are locked");
            bench.store.lock([]);
            bench.pass(2 * SECOND);
            assert_eq!(bench.deliver(9).len(), 1, "no more permits than without");
        }
    }

    /// More timeouts of busy keys are due than the window has room for.
    #[test]
    fn timeouts_of_busy_keys_do_not_stop_others() {
        for (limit, window_bytes) in [(1, 64 << 20), (1, 40), (2, 64 << 20)] {
            let mut bench = Bench::new(0);
            let settings = &mut bench.driver.settings;
            (settings.window_capacity, settings.window_bytes) = (4, window_bytes);
            settings.queue.key_limit = NonZeroUsize::new(limit);
            let now = bench.now;
            let new = |id: String| NewTimeout::new(id, now, [0; 10]).expect("valid");
            let of = |key: &'static str| {
                (1..=8).map(move |number| new(format!("{key}{number}")).key(key).expect("valid"))
            };
            bench.schedule(of("a").chain(of("b")).chain([new("z".to_owned())]));
            let mut begun = bench.steps(30);
            let mut first = ids(&begun);
            first.sort_unstable();
            let expected = if limit == 1 { "a1 b1 z" } else { "a1 a2 b1 b2 z" };
            assert_eq!(first.join(" "), expected);
            let claims = bench.counters.read().claims;
            assert_eq!(bench.steps(30), []);
            assert_eq!(bench.counters.read().claims, claims, "it does not claim in vain");
            assert!(bench.driver.held().1 <= 2, "half of the window stays free");
            let mut ends = Vec::new();
            while let Some(record) = begun.pop() {
                bench.acknowledge(&record);
                ends.push(record.id.to_string());
                begun.extend(bench.steps(10));
            }
            assert_eq!(ends.len(), 17);
            for key in ["a", "b"].into_iter().filter(|_| limit == 1) {
                assert!(ends.iter().filter(|id| id.starts_with(key)).is_sorted(), "{ends:?}");
            }
        }
    }

    /// Another worker delivers timeouts of the key without a pause, as many as may run at once.
    /// This one has some that are older, and it may deliver one for long.
    #[test]
    fn old_timeouts_of_a_key_with_a_higher_limit_go_to_the_other_worker() {
        for (limit, long) in [(1, 0), (2, 0), (4, 0), (2, 1), (4, 1)] {
            let mut bench = Bench::new(0);
            let mut other = Bench::on(&bench.store, bench.now);
            for bench in [&mut bench, &mut other] {
                bench.driver.settings.queue.key_limit = NonZeroUsize::new(limit);
            }
            let of_key = |id: String, due| new(id, due).key("key").expect("valid");
            let several =
                |id, count, due| (0..count).map(move |n| of_key(format!("{id} {n}"), due));
            bench.schedule(several("long", long, bench.now));
            assert_eq!(bench.steps(3).len(), long);
            other.schedule(several("first", limit - long, other.now));
            let mut begun = other.steps(3);
            assert_eq!(begun.len(), limit - long);
            bench.schedule(several("old", 40, bench.now));
            bench.driver.notice(None, WallTime::MIN);
            assert_eq!(bench.steps(3), [], "the key is busy");
            for number in 0..300 {
                if !begun.is_empty() {
                    other.acknowledge(&begun.remove(0));
                }
                other.schedule([of_key(format!("new {number}"), other.now)]);
                other.driver.notice(None, WallTime::MIN);
                begun.extend(other.steps(3));
                bench.pass(SECOND / 10);
                other.pass(SECOND / 10);
                bench.deliver(3);
            }
            let left = bench.store.records();
            let left = left.iter().filter(|record| record.id.as_str().starts_with("old")).count();
            // This worker may try some again.
            assert!(left < 4, "{left} of 40 are left, with a limit of {limit} and {long} long");
        }
    }

    /// No notice tells this worker that the key is free.
    #[test]
    fn a_key_of_others_is_passed_over_for_a_time_that_ends() {
        for steps_back in [false, true] {
            let mut bench = Bench::new(0);
            let mut other = Bench::on(&bench.store, bench.now);
            for bench in [&mut bench, &mut other] {
                bench.driver.settings.queue.key_limit = NonZeroUsize::new(1);
            }
            let of_key = |id: &str| new(id, bench.now).key("key").expect("valid");
            other.schedule([of_key("first")]);
            let begun = other.steps(3);
            bench.schedule([of_key("old"), of_key("older")]);
            let start = bench.now;
            loop {
                assert_eq!(bench.steps(3), [], "the key is busy");
                if bench.driver.held.passes_over_keys() {
                    break;
                }
                let next = bench.driver.next_step().expect("it tries again");
                bench.pass(next.since(bench.now));
            }
            assert!(bench.now.since(start) >= SECOND, "it tries for a time");
            other.acknowledge(&begun[0]);
            bench.steps(3);
            let claims = bench.counters.read().claims;
            bench.steps(5);
            assert_eq!(bench.counters.read().claims, claims, "it passes over the key");
            assert!(!bench.driver.is_idle(bench.now), "timeouts of the key may be due");
            if steps_back {
                bench.now = bench.now.saturating_sub(SECOND / 10);
            } else {
                let next = bench.driver.next_step().expect("the time ends");
                assert!(next.since(bench.now) <= 2 * SECOND);
                bench.pass(next.since(bench.now));
            }
            assert_eq!(bench.deliver(5).len(), 2, "steps back: {steps_back}");
        }
    }

    /// Handlers of another worker have each key for long, and it can take no more.
    #[test]
    fn many_keys_that_others_have_for_long_cause_few_claims() {
        let mut bench = Bench::new(0);
        let mut other = Bench::on(&bench.store, bench.now);
        for bench in [&mut bench, &mut other] {
            bench.driver.settings.is_shared = true;
            bench.driver.settings.queue.key_limit = NonZeroUsize::new(1);
            bench.driver.settings.queue.max_deliveries = 300;
        }
        let of_key = |number: u32| {
            new(format!("{number}"), bench.now).key(format!("key {}", number % 300)).expect("valid")
        };
        other.schedule((0..300).map(of_key));
        let mut begun = 0;
        while begun < 300 {
            begun += other.steps(1).len();
        }
        bench.schedule((300..600).map(of_key));
        bench.driver.notice(None, WallTime::MIN);
        let start = bench.now;
        while bench.now.since(start) < 24 * SECOND {
            assert_eq!(bench.steps(1), [], "the keys are busy");
            // It tries again, unless a claim is under way.
            let next = bench.driver.next_step().unwrap_or(bench.now);
            bench.pass(next.since(bench.now));
        }
        let claims = bench.counters.read().claims;
        assert!((10..120).contains(&claims), "{claims} claims in less than a lease");
    }

    /// Their handlers run on. The lease may have ended before a cancel, though the store has not
    /// given the timeout away, and renews the lease.
    #[test]
    fn deliveries_that_are_void_do_not_count_for_their_key() {
        for event in ["cancel", "loss", "lapse and cancel"] {
            let mut bench = Bench::new(0);
            bench.driver.settings.queue.key_limit = NonZeroUsize::new(1);
            let new = |id| new(id, bench.now).key("key").expect("valid");
            bench.schedule([new("a"), new("b")]);
            let begun = bench.steps(5);
            assert_eq!(begun.len(), 1);
            assert!(bench.driver.runs().all(|run| run.start(bench.start)));
            if event == "loss" {
                bench.store.leave(bench.driver.worker.expect("entered")).block_on().expect("leave");
                bench.driver.renew_at = bench.now;
            } else {
                if event != "cancel" {
                    bench.driver.lease.set(Duration::ZERO);
                    bench.steps(5);
                    assert!(bench.driver.lease.is_valid(), "it is renewed");
                    assert!(bench.driver.runs().all(|run| run.is_stopped()));
                }
                let cancel = Command::Cancel(begun[0].id.clone());
                bench.store.write(bench.now, &[cancel]).block_on().expect("write");
                bench.driver.notice(None, WallTime::MIN);
            }
            assert_eq!(bench.steps(9).len(), 1, "after a {event}");
        }
    }

    /// Another transaction has locked the records, and may hold them for long.
    #[test]
    fn a_claim_that_finds_all_records_locked_is_repeated_after_a_pause() {
        let mut bench = Bench::new(3);
        for claim in bench.step().claims {
            let next = claim.request.from.max(bench.now.saturating_sub(SECOND));
            let batch = ClaimedBatch { next: Some(next), ..ClaimedBatch::default() };
            bench.driver.claimed.push((claim, Ok(Some(batch))));
        }
        assert_eq!(bench.driver.claimed.len(), 2);
        let step = bench.step();
        assert!(step.claims.is_empty() && !step.again, "{:?}", step.claims);
        let backlog_at = bench.driver.lanes[1].at.take();
        assert!(!bench.driver.is_idle(bench.now), "one is due that is not of the backlog");
        bench.driver.lanes[1].at = backlog_at;
        bench.pass(LOCKED);
        assert_eq!(bench.driver.next_step(), Some(bench.now));
        assert_eq!(bench.step().claims.len(), 2);
    }

    /// A failover loses the transaction in which a handler acknowledged. Two other handlers exceed
    /// their limit, and the settlement of one is refused.
    #[test]
    fn what_only_the_store_takes_for_held_becomes_pending_each_minute() {
        let mut bench = Bench::new(3);
        let (start, store) = (bench.now, bench.store.clone());
        bench.driver.settings.is_shared = true;
        bench.driver.settings.queue.handler_limit = Some(30 * SECOND);
        bench.schedule([new("far", start.saturating_add(70 * SECOND))]);
        let step_at = |bench: &mut Bench, seconds: u32| {
            bench.pass(start.saturating_add(SECOND * seconds).since(bench.now));
            bench.step()
        };
        let claims = bench.step().claims;
        bench.carry_out(claims);
        let begun = bench.step().begun;
        let tokens: Vec<_> = begun.iter().map(|(record, _)| record.token).collect();
        let is_kept = |&token: &u64| store.records().iter().any(|record| record.token == token);
        let kept = || tokens.iter().map(is_kept).collect::<Vec<_>>();
        assert_eq!(kept(), [true; 3]);
        assert!(begun.iter().all(|(_, run)| run.start(bench.start)));
        bench.driver.ended(tokens[0]);
        assert_eq!(step_at(&mut bench, 30).settlements.len(), 2, "not written yet");
        bench.driver.ended(tokens[1]);
        bench.driver.claim_soon(start);
        let mut claims = step_at(&mut bench, 59).claims;
        let backlog = claims.split_off(1);
        bench.carry_out(claims);
        let next = step_at(&mut bench, 60);
        assert!(next.claims.is_empty() && !next.again, "the other claim must end first");
        assert_eq!(kept(), [true; 3]);
        bench.carry_out(backlog);
        bench.step();
        assert_eq!(kept(), [false, false, true]);
        let claimed = |record: &Record| record.state == State::Claimed;
        assert_eq!(store.records().iter().position(claimed), Some(3), "the one that is due later");
    }

    /// The store takes long for a commit.
    #[test]
    fn a_backlog_leaves_deliveries_to_records_that_are_due_now() {
        let mut bench = Bench::new(2_000).quick();
        // Handlers return, and their ends are not written.
        let step = |bench: &mut Bench| {
            let begun = bench.steps(1);
            for record in &begun {
                bench.returned(record.token, None);
            }
            begun
        };
        for _ in 0..9 {
            step(&mut bench);
        }
        assert!(bench.driver.claimed.is_empty(), "the backlog waits");
        assert!(bench.driver.held().2 < 1_024, "the others are free");
        bench.schedule([new("new", bench.now)]);
        bench.driver.notice(None, bench.now);
        step(&mut bench);
        assert_eq!(ids(&step(&mut bench))[0], "new");
    }

    /// Some threads run handlers that never return, or none.
    #[test]
    fn quick_deliveries_never_stop_however_few_may_be_under_way() {
        for max in [1, 2, 4, 7, 8, 10, 127, 128, 145, 1_024] {
            for (threads, stuck) in [(1, 0_u8), (4, 0), (64, 0), (4, 3)] {
                if usize::from(stuck) >= max {
                    continue;
                }
                let mut bench = Bench::new(stuck.into()).quick();
                let settings = &mut bench.driver.settings;
                (settings.queue.max_deliveries, settings.threads) = (max, Some(threads));
                let mut begun = 0;
                while begun < usize::from(stuck) {
                    begun += bench.steps(2).len();
                }
                for due in [bench.now.saturating_sub(SECOND), bench.now] {
                    bench.schedule(several(&format!("{due:?}"), 300, due));
                    bench.driver.notice(None, due);
                    let begun = bench.deliver(700).len();
                    assert_eq!(begun, 300, "{max} at {threads} threads, {stuck} of them stuck");
                }
                assert_eq!(bench.driver.is_idle(bench.now), stuck == 0);
            }
        }
    }

    #[test]
    fn a_repeated_delivery_does_not_wait_for_the_end_of_a_backlog() {
        let mut bench = Bench::new(5_000).quick();
        let mut other = Bench::on(&bench.store, bench.now);
        other.driver.settings.queue.max_deliveries = 1;
        let again = other.steps(4).remove(0);
        let retry = Settlement::Retry { at: bench.now, error: "again".to_owned() };
        other.settle(again.claim(), retry);
        other.leave();
        let mut running = Vec::new();
        let repeated = (0..50).position(|_| {
            let begun = bench.steps(1);
            let is_begun = begun.iter().any(|record| record.id == again.id);
            running.extend(begun);
            for record in running.drain(..running.len().div_ceil(2)) {
                bench.returned(record.token, Some(Duration::ZERO));
                bench.acknowledge(&record);
            }
            is_begun
        });
        assert!(repeated.is_some_and(|steps| steps < 20), "{repeated:?}");
        let left = bench.store.count().block_on().expect("count").live;
        assert!(left > 1_000, "the backlog is not over");
    }

    /// A worker is killed again and again, before its handlers start.
    #[test]
    fn only_the_first_of_several_attempts_begins_before_a_thread_is_free() {
        // One last attempt begins at a time, if none before has ended.
        for (attempts, begun_in_turn) in
            [(1, vec![4]), (2, vec![BACKLOG, 1]), (3, vec![BACKLOG, 4, 4])]
        {
            let Bench { now, store, .. } = Bench::new(300);
            let mut begun = Vec::new();
            for _ in &begun_in_turn {
                let mut bench = Bench::on(&store, now).quick();
                bench.driver.settings.queue.backoff = Backoff::default().attempts(attempts);
                let mut claims = bench.step().claims;
                bench.carry_out(claims.split_off(1));
                let step = bench.step();
                assert!(!step.again, "it waits for a thread");
                begun.push(step.begun.len());
                bench.leave();
            }
            assert_eq!(begun, begun_in_turn);
            assert!(store.records().iter().all(|record| record.attempt <= attempts));
        }
    }

    /// A timeout of eight that begin at once ends the process, again and again.
    #[test]
    fn a_timeout_that_ends_its_process_dies_alone() {
        let first = Bench::new(8);
        for key_limit in [None, NonZeroUsize::new(8)] {
            let mut done = Vec::new();
            for _ in 0..9 {
                let mut bench = Bench::on(&first.store, first.now);
                bench.driver.settings.queue.backoff = Backoff::default().attempts(3);
                bench.driver.settings.queue.key_limit = key_limit;
                let is_killed = (0..30).any(|_| {
                    let begun = bench.steps(1);
                    let is_killed = ids(&begun).contains(&"4");
                    for record in begun.into_iter().filter(|_| !is_killed) {
                        bench.acknowledge(&record);
                        done.push(record.id);
                    }
                    is_killed
                });
                bench.leave();
                if !is_killed {
                    break;
                }
            }
            done.sort_unstable();
            assert_eq!(done.iter().map(TimeoutId::as_str).collect::<Vec<_>>().concat(), "0123567");
            let dead = first.store.records().remove(0);
            assert_eq!((dead.id.as_str(), dead.state), ("4", State::Dead));
            // It is requeued, beside new ones.
            let requeue = [Command::Requeue(dead.id, first.now)];
            first.store.write(first.now, &requeue).block_on().expect("write");
            first.schedule(done.iter().map(|id| new(id.as_str(), first.now)));
        }
    }

    /// Two timeouts of a killed process have their last attempts, beside a new timeout.
    #[test]
    fn a_last_attempt_waits_for_another_one_only_and_not_for_long() {
        for (is_ended, is_locked) in [(true, false), (false, false), (false, true)] {
            let first = Bench::new(2);
            let limited = || {
                let mut bench = Bench::on(&first.store, first.now);
                bench.driver.settings.queue.backoff = Backoff::default().attempts(2);
                bench
            };
            let mut killed = limited();
            assert_eq!(killed.steps(4).len(), 2);
            killed.leave();
            first.schedule([new("new", first.now)]);
            first.store.lock(is_locked.then(|| TimeoutId::new("1").expect("valid")));
            let mut bench = limited();
            let begun = bench.steps(4);
            let is_last = |record: &&Record| record.attempt == 2;
            let last = begun.iter().find(is_last).expect("one of them").token;
            assert_eq!((begun.len(), begun.iter().filter(is_last).count()), (2, 1));
            assert_eq!(bench.driver.held().1, 1, "one waits");
            if is_ended {
                bench.driver.ended(last);
            } else {
                bench.pass(if is_locked { LOCKED } else { ALONE });
                assert_eq!(bench.driver.next_step(), Some(bench.now));
            }
            bench.store.lock(None);
            bench.pass(if is_locked { ALONE } else { Duration::ZERO });
            assert_eq!(bench.steps(4).len(), 1);
        }
    }

    /// A handler took so long that the next timeouts of its key are not delivered any more.
    #[test]
    fn timeouts_of_a_key_that_are_skipped_hold_no_others_back() {
        let mut bench = Bench::new(0);
        bench.driver.settings.queue.key_limit = NonZeroUsize::new(1);
        bench.driver.settings.skip_older_than = Some(10 * SECOND);
        bench.schedule(["a", "b", "c"].map(|id| new(id, bench.now).key("key").expect("valid")));
        let begun = bench.steps(2).remove(0);
        bench.acknowledge(&begun);
        bench.pass(20 * SECOND);
        assert_eq!(bench.deliver(9), []);
        assert_eq!(bench.store.records(), []);
        // Nor does a claim begin those that are too old.
        let mut bench = Bench::new(30).quick();
        bench.driver.settings.skip_older_than = Some(10 * SECOND);
        assert_eq!(bench.deliver(9).len(), 11);
    }

    /// The store takes long for a commit.
    #[test]
    fn no_more_timeouts_than_the_window_holds_are_skipped_at_once() {
        for is_backlog in [true, false] {
            let mut bench = Bench::new(0);
            let settings = &mut bench.driver.settings;
            (settings.window_capacity, settings.skip_older_than) = (300, Some(SECOND));
            if !is_backlog {
                bench.steps(3);
            }
            bench.schedule(several("old", 2_000, bench.now));
            bench.driver.notice(None, bench.now);
            bench.pass(10 * SECOND);
            let mut skipped = Vec::new();
            for _ in 0..50 {
                let step = bench.step();
                bench.carry_out(step.claims);
                skipped.extend(step.settlements);
            }
            assert!(skipped.len() <= 600, "{} of 2000", skipped.len());
            for (claim, how, _) in skipped {
                bench.settle(claim, how);
            }
            assert_eq!((bench.steps(50).len(), bench.store.records().len()), (0, 0));
        }
    }

    #[test]
    fn a_claim_starts_where_the_last_one_of_its_lane_ended_or_at_what_was_noticed() {
        let mut bench = Bench::new(300).quick();
        (bench.driver.settings.is_shared, bench.driver.settings.threads) = (true, Some(1));
        let claims = bench.step().claims;
        assert_eq!([bench.now, WallTime::MIN], [claims[0].request.from, claims[1].request.from]);
        bench.carry_out(claims);
        let batch = bench.driver.claimed[1].1.as_ref().expect("claim").as_ref().expect("lease");
        let next = batch.next.expect("more are pending");
        assert_eq!(next, bench.now.saturating_sub(171 * SECOND), "128 of 299 were claimed");
        let begun = bench.step().begun;
        let (earlier, earliest) = (next.saturating_sub(SECOND), next.saturating_sub(2 * SECOND));
        for expected in [next, earlier, earliest, WallTime::MIN] {
            for (record, _) in &begun {
                bench.returned(record.token, None);
                bench.driver.ended(record.token);
            }
            let claims = bench.step().claims;
            let claim = claims.into_iter().find(|claim| claim.lane == Lane::Backlog);
            let claim = claim.expect("it has room");
            assert_eq!(claim.request.from, expected);
            match expected {
                _ if expected == next => bench.driver.notice(None, earlier),
                _ if expected == earlier => bench.driver.notice(None, earliest),
                // A claim of unknown outcome.
                _ => {
                    let error = StoreError::new(StoreErrorReason::Locked);
                    bench.driver.claimed.push((claim, Err(error)));
                    bench.step();
                    bench.driver.paused_until = None;
                    continue;
                }
            }
            bench.driver.claimed.push((claim, Ok(Some(ClaimedBatch::default()))));
        }
    }

    #[test]
    fn a_worker_of_a_shared_store_may_have_any_number_of_deliveries() {
        let mut bench = Bench::new(3);
        bench.driver.settings.is_shared = true;
        bench.driver.settings.queue.max_deliveries = usize::MAX;
        assert_eq!(bench.steps(4).len(), 3);
    }

    #[test]
    fn a_worker_of_a_shared_store_looks_again_though_no_timeout_is_known() {
        let mut bench = Bench::new(0);
        bench.driver.settings.is_shared = true;
        assert_eq!(bench.steps(3), []);
        assert_eq!(bench.driver.next_step(), Some(bench.now.saturating_add(RECHECK)));
    }

    /// A long backlog causes a claim each second, and notifications of other timeouts are lost.
    #[test]
    fn claims_of_one_lane_do_not_put_off_the_recheck_of_the_other() {
        let mut bench = Bench::new(100);
        let settings = &mut bench.driver.settings;
        (settings.catch_up_rate, settings.recheck) = (NonZeroU32::new(1), Some(5 * SECOND));
        bench.deliver(5);
        bench.schedule([new("lost", bench.now)]);
        let is_lost = |record: &Record| record.id.as_str() == "lost";
        let is_seen = |bench: &mut Bench| {
            bench.pass(SECOND);
            bench.deliver(5).iter().any(is_lost)
        };
        assert!((0..6).any(|_| is_seen(&mut bench)));
        // Nor does a step back of the clock.
        bench.now = bench.now.saturating_sub(3_600 * SECOND);
        bench.deliver(5);
        bench.schedule([new("lost", bench.now)]);
        assert!((0..6).any(|_| is_seen(&mut bench)));
    }

    struct Task;

    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// The answer of the store came so late that the lease had ended.
    #[test]
    fn tasks_hear_of_the_end_of_a_lease_that_a_late_renewal_follows() {
        let mut bench = Bench::new(1);
        let begun = bench.steps(4).remove(0);
        let run = Arc::clone(&bench.driver.delivering[&begun.token].run);
        let mut stopped = std::pin::pin!(StopToken(Arc::clone(&run)).stopped());
        // The task moves to another waker.
        let waker = Waker::from(Arc::new(Task));
        for waker in [Waker::noop(), &waker] {
            let mut context = std::task::Context::from_waker(waker);
            assert!(stopped.as_mut().poll(&mut context).is_pending());
        }
        let lease = Arc::clone(&bench.driver.lease);
        // A thread that waits sees by itself that the lease has ended.
        lease.set(Lease::now() + SECOND / 50);
        let limit = Lease::now() + 60 * SECOND;
        assert!(StopToken(run).wait(60 * SECOND) && Lease::now() < limit);
        lease.set(Lease::now() + 900 * SECOND);
        bench.pass(10 * SECOND);
        bench.steps(1);
        assert_eq!(lease.remaining(), None, "one in time extends it");
        lease.set(Duration::ZERO);
        let Bench { driver, store, counters, now, .. } = &mut bench;
        let (start, step) = (Lease::now(), Step::default());
        let mut turn = Turn { store, now: *now, start, counters, step };
        driver.renew(&mut turn).expect("renew");
        assert!(turn.step.stopped.len() == 1 && turn.step.stopped[0].will_wake(&waker));
        assert!(stopped.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_ready());
        // The wall clock stands still meanwhile.
        bench.driver.lease.set(Duration::ZERO);
        bench.step();
        assert!(bench.driver.lease.is_valid(), "it is renewed");
    }

    #[test]
    fn tasks_hear_of_the_end_of_a_lease_while_the_store_fails() {
        let mut bench = Bench::new(1);
        let begun = bench.steps(4).remove(0);
        let token = StopToken(Arc::clone(&bench.driver.delivering[&begun.token].run));
        let mut stopped = std::pin::pin!(token.stopped());
        let mut context = std::task::Context::from_waker(Waker::noop());
        assert!(stopped.as_mut().poll(&mut context).is_pending());
        bench.driver.paused_until = Some(WallTime::MAX);
        bench.driver.lease.set(Duration::ZERO);
        assert_eq!(bench.step().stopped.len(), 1, "no call renews it");
    }

    #[test]
    fn a_worker_whose_handlers_hang_leaves_due_timeouts_to_others() {
        let mut stuck = Bench::new(0);
        (stuck.driver.settings.is_shared, stuck.driver.settings.threads) = (true, Some(4));
        let mut idle = Bench::on(&stuck.store, stuck.now);
        idle.driver.settings = stuck.driver.settings.clone();
        stuck.schedule(several("", 9, stuck.now));
        let mut begun = stuck.steps(6);
        assert_eq!((begun.len(), stuck.driver.held().1), (4, 5));
        assert_eq!(idle.steps(6), []);
        stuck.pass(SECOND / 2);
        stuck.acknowledge(&begun.remove(0));
        assert_eq!(stuck.steps(6).len(), 1);
        assert!(stuck.driver.runs().all(|run| run.start(stuck.start)));
        stuck.pass(SECOND / 2);
        assert_eq!((stuck.steps(6).len(), stuck.driver.held().1), (0, 4), "one has returned");
        stuck.pass(SECOND / 2);
        assert_eq!(stuck.driver.next_step(), Some(stuck.now));
        assert_eq!(stuck.steps(6), []);
        assert_eq!(stuck.driver.held().1, 0);
        idle.driver.notice(None, WallTime::MIN);
        assert_eq!(idle.steps(6).len(), 4);
        // It claims nothing before a handler returns.
        let claims = stuck.counters.read().claims;
        stuck.schedule([new("9", stuck.now)]);
        stuck.driver.notice(None, stuck.now);
        assert_eq!(stuck.steps(6), []);
        assert_eq!(stuck.counters.read().claims, claims);
        stuck.returned(begun[0].token, None);
        assert_eq!(ids(&stuck.steps(6)), ["9"]);
    }

    /// Otherwise, it gives the rest back after a second.
    #[test]
    fn a_worker_claims_little_more_than_slow_handlers_begin_soon() {
        for (threads, most_claims, most_released) in [(4, 150, 40), (64, 300, 0)] {
            let mut bench = Bench::new(0);
            (bench.driver.settings.is_shared, bench.driver.settings.threads) =
                (true, Some(threads));
            bench.driver.settings.queue.max_deliveries = threads;
            bench.schedule(several("", 2_000, bench.now.saturating_sub(SECOND)));
            let (start, lasts) = (bench.now, 5 * SECOND);
            let (count, all) = (25 * threads, u32::try_from(threads).expect("few"));
            // The handlers return one by one.
            let (mut running, mut begun, mut done, mut released) = (BTreeMap::new(), 0, 0, 0);
            while done < count {
                for _ in 0..4 {
                    let step = bench.step();
                    released += step.settlements.len();
                    step.settlements
                        .into_iter()
                        .for_each(|(claim, how, _)| bench.settle(claim, how));
                    bench.carry_out(step.claims);
                    for (record, run) in step.begun {
                        assert!(run.start(bench.start));
                        begun += 1;
                        let end = bench.now.saturating_add(lasts * begun.min(all) / all);
                        running.insert((end, begun), record);
                    }
                }
                let next =
                    running.keys().map(|(end, _)| *end).chain(bench.driver.next_step()).min();
                bench.pass(next.expect("some run").since(bench.now));
                let later = running.split_off(&(bench.now, u32::MAX));
                for record in mem::replace(&mut running, later).into_values() {
                    bench.returned(record.token, Some(lasts));
                    bench.settle(record.claim(), Settlement::Done);
                    done += 1;
                }
            }
            assert_eq!(bench.now.since(start), 25 * lasts, "no handler waits");
            let claims = bench.counters.read().claims;
            assert!(
                claims <= most_claims && released <= most_released,
                "{claims} claims, {released} given back, for {count} deliveries"
            );
        }
    }

    /// The others were due before the worker started, or are due now.
    #[test]
    fn a_timeout_that_is_due_now_goes_before_a_backlog_by_its_priority_or_in_turn() {
        let mut bench = Bench::new(3);
        bench.driver.settings.queue.max_deliveries = 1;
        let new = |id, priority| new(id, bench.now).priority(priority);
        bench.schedule([new("low", Priority::Low), new("high", Priority::High)]);
        assert_eq!(ids(&bench.deliver(9)), ["high", "2", "0", "1", "low"]);
    }

    #[test]
    fn priority_goes_before_time_and_waits_for_no_full_window() {
        let mut bench = Bench::new(0);
        bench.driver.settings.window_capacity = 1_000;
        assert_eq!(bench.steps(3), []);
        bench.pass(SECOND);
        let low = several("", 2_000, bench.now).map(|new| new.priority(Priority::Low));
        bench.schedule(low);
        bench.driver.notice(None, bench.now);
        let running = bench.steps(4);
        assert_eq!(running.len(), 8);
        bench.pass(SECOND);
        let claims = bench.counters.read().claims;
        for _ in 0..50 {
            bench.driver.notice(None, bench.now);
            assert_eq!(bench.steps(1), []);
        }
        assert!(bench.counters.read().claims < claims + 5, "it claims rarely");
        bench.pass(SECOND);
        bench.schedule(several("normal", 2, bench.now));
        bench.schedule([new("high", bench.now).priority(Priority::High)]);
        bench.driver.notice(None, bench.now);
        for record in &running {
            bench.acknowledge(record);
        }
        let mut begun = bench.deliver(4);
        begun.retain(|record| record.priority != Priority::Low);
        assert_eq!(ids(&begun), ["high", "normal0", "normal1"]);
    }

    /// Records that are due much later fill the window. Other workers shut down, and have claimed
    /// some timeouts ahead of time.
    #[test]
    fn a_full_window_delays_neither_a_burst_nor_timeouts_that_are_given_back() {
        for (far, is_shared) in [(110, false), (150, false), (150, true)] {
            let mut bench = Bench::new(0);
            let settings = &mut bench.driver.settings;
            (settings.window_capacity, settings.is_shared) = (100, is_shared);
            bench.schedule(several("far", far, bench.now.saturating_add(40 * SECOND)));
            assert_eq!(bench.deliver(5), []);
            bench.schedule(several("burst", 10, bench.now));
            bench.driver.notice(None, bench.now);
            assert_eq!(bench.deliver(30).len(), 10, "the others wait for room");
            let soon = bench.now.saturating_add(5 * SECOND);
            bench.schedule(several("due", 80, bench.now).chain(several("soon", 80, soon)));
            let mut other = Bench::on(&bench.store, bench.now);
            other.driver.settings.queue.max_deliveries = 1;
            assert_eq!(other.steps(3).len(), 1);
            other.leave();
            bench.driver.notice(None, WallTime::MIN);
            assert_eq!(bench.deliver(99).len(), 80);
            assert_eq!(bench.driver.next_step(), Some(soon));
            bench.now = soon;
            assert_eq!(bench.deliver(99).len(), 80);
        }
    }

    /// All handlers take long, and a timeout is due beside a window of those that are due later.
    #[test]
    fn a_full_window_claims_nothing_that_no_handler_begins_soon() {
        let mut bench = Bench::new(8);
        bench.driver.settings.window_capacity = 9;
        bench.driver.handling = 60 * SECOND;
        bench.schedule(several("far", 20, bench.now.saturating_add(40 * SECOND)));
        assert_eq!(bench.steps(9).len(), 8);
        bench.schedule([new("due", bench.now)]);
        bench.driver.notice(None, bench.now);
        let claims = bench.counters.read().claims;
        bench.steps(3);
        bench.pass(LOCKED);
        bench.steps(3);
        assert_eq!(bench.counters.read().claims, claims);
        assert!(bench.driver.next_step() > Some(bench.now.saturating_add(SECOND)));
    }

    /// A process was killed beside so many deliveries that the window has no room for them.
    #[test]
    fn many_last_attempts_that_wait_do_not_stop_others() {
        for (capacity, bytes) in [(16_384, 100), (4, 1 << 20)] {
            let mut bench = Bench::new(0);
            let settings = &mut bench.driver.settings;
            (settings.window_capacity, settings.window_bytes) = (capacity, bytes);
            settings.queue.backoff = Backoff::default().attempts(2);
            settings.queue.max_deliveries = 64;
            assert_eq!(bench.steps(3), []);
            bench.pass(SECOND);
            let new = |id: u32, due| NewTimeout::new(format!("{id}"), due, [0; 10]).expect("valid");
            bench.schedule((0..40).map(|id| new(id, bench.now)));
            let mut killed = Bench::on(&bench.store, bench.now);
            killed.driver.settings.queue.max_deliveries = 64;
            assert_eq!(killed.steps(4).len(), 40);
            killed.leave();
            bench.driver.notice(None, WallTime::MIN);
            bench.pass(SECOND / 2);
            assert_eq!(bench.steps(60).len(), 1, "one last attempt");
            assert!(bench.driver.held().1 <= 5, "half of the window stays free");
            bench.schedule((40..43).map(|id| new(id, bench.now)));
            bench.driver.notice(None, bench.now);
            assert_eq!(ids(&bench.steps(60)), ["40", "41", "42"]);
            // Each of the others has its turn.
            let mut begun = 1;
            for _ in 0..200 {
                bench.pass(SECOND);
                begun += bench.deliver(9).len();
            }
            assert_eq!(begun, 40);
        }
    }

    /// All threads hang, and quick deliveries have begun ahead of them.
    #[test]
    fn nothing_begins_ahead_of_threads_that_exceed_their_limit() {
        let mut bench = Bench::new(300).quick();
        bench.driver.settings.queue.handler_limit = Some(SECOND);
        let begun = bench.steps(4);
        assert!(begun.len() > 100, "{} began ahead", begun.len());
        for record in &begun[..4] {
            assert!(bench.driver.delivering[&record.token].run.start(bench.start));
        }
        for _ in 0..9 {
            bench.pass(SECOND);
            assert_eq!(bench.steps(9), []);
        }
        assert_eq!(bench.counters.read().overruns, 4);
        // One thread returns, and passes over the deliveries that were given back.
        for record in begun[4..].iter().chain(&begun[..1]) {
            bench.returned(record.token, None);
        }
        assert!(!bench.steps(9).is_empty());
    }

    #[test]
    fn what_began_ahead_of_threads_that_become_slow_delays_no_other_for_long() {
        let mut bench = Bench::new(300).quick();
        let begun = bench.steps(4);
        assert!(begun.len() > 100, "{} began ahead", begun.len());
        for record in &begun[..4] {
            assert!(bench.driver.delivering[&record.token].run.start(bench.start));
        }
        bench.schedule([new("high", bench.now).priority(Priority::High)]);
        bench.driver.notice(None, bench.now);
        bench.pass(SECOND);
        bench.returned(begun[0].token, Some(SECOND));
        bench.settle(begun[0].claim(), Settlement::Done);
        assert_eq!((bench.steps(3), bench.driver.held().2), (vec![], 3));
        // The thread passes over the deliveries that were given back.
        for record in &begun[4..] {
            bench.returned(record.token, None);
        }
        assert_eq!(ids(&bench.steps(3)), ["high"]);
    }

    #[test]
    fn what_waits_for_threads_that_hang_goes_back_after_a_second_or_at_a_shutdown() {
        for is_closing in [false, true] {
            let mut bench = Bench::new(300).quick();
            bench.driver.settings.is_shared = true;
            let begun = bench.steps(4);
            assert!(begun.len() > 100, "{} began ahead", begun.len());
            for record in &begun[..4] {
                assert!(bench.driver.delivering[&record.token].run.start(bench.start));
            }
            if is_closing {
                bench.driver.is_closing = true;
            } else {
                bench.pass(STALL);
                assert_eq!(bench.driver.next_step(), Some(bench.now));
            }
            assert_eq!(bench.steps(3), []);
            assert_eq!(bench.driver.held(), (0, 0, 4));
            assert!(bench.driver.next_step() > Some(bench.now));
            let records = bench.store.records();
            let is_free = |record: &&Record| (record.state, record.attempt) == (State::Pending, 0);
            assert_eq!(records.iter().filter(is_free).count(), 296, "it was no attempt");
        }
    }

    #[test]
    fn a_step_of_the_clock_is_no_time_of_a_handler() {
        for is_forward in [true, false] {
            let mut bench = Bench::new(2);
            let begun = bench.steps(4);
            let [run, waiting] =
                [0, 1].map(|at| Arc::clone(&bench.driver.delivering[&begun[at].token].run));
            assert!(run.start(bench.start));
            // Nor does it extend the limit.
            bench.pass(450 * SECOND);
            bench.steps(4);
            // The store has failed just now, and a last attempt has begun.
            bench.driver.rest(bench.now);
            bench.driver.held.begin_last(0, bench.now);
            let (back, forward) = (
                bench.now.saturating_sub(3_600 * SECOND),
                bench.now.saturating_add(3_600 * SECOND),
            );
            bench.now = if is_forward { forward } else { back };
            bench.steps(4);
            assert_eq!(bench.counters.read().overruns, 0);
            assert_eq!(bench.driver.renew_at, bench.now.saturating_add(10 * SECOND));
            assert_eq!(waiting.started(), None);
            assert!(!bench.driver.held.has_last(bench.now), "none waits for it");
            assert!(bench.driver.next_step() > Some(bench.now));
            bench.pass(450 * SECOND);
            bench.steps(4);
            assert_eq!(bench.counters.read().overruns, 1, "forward: {is_forward}");
        }
    }

    /// Beside a rate of the queue, and a backlog with one of its own.
    #[test]
    fn a_step_back_of_the_clock_delays_no_delivery_that_is_due_after_it() {
        let mut bench = Bench::new(9);
        let settings = &mut bench.driver.settings;
        (settings.queue.rate, settings.catch_up_rate) = (NonZeroU32::new(30), NonZeroU32::new(1));
        assert!(!bench.deliver(9).is_empty());
        bench.now = bench.now.saturating_sub(3_600 * SECOND);
        let old = new("old", bench.now.saturating_sub(SECOND));
        bench.schedule(several("new", 2, bench.now).chain([old]));
        bench.steps(3);
        bench.pass(SECOND / 9);
        assert_eq!(ids(&bench.deliver(9)), ["old", "new0", "new1"]);
    }

    /// The end of a delivery that its thread has dropped comes a moment later.
    #[test]
    fn a_delivery_that_was_dropped_exceeds_no_limit() {
        let mut bench = Bench::new(1);
        let begun = bench.steps(4).remove(0);
        assert!(bench.driver.delivering[&begun.token].run.recall());
        bench.pass(900 * SECOND);
        bench.steps(4);
        assert_eq!(bench.counters.read().overruns, 0);
    }

    #[test]
    fn a_lower_limit_of_attempts_keeps_the_error_of_the_last_one() {
        let mut bench = Bench::new(1);
        for _ in 0..3 {
            let begun = bench.steps(4).remove(0);
            bench.returned(begun.token, None);
            let retry = Settlement::Retry { at: bench.now, error: "card declined".to_owned() };
            bench.settle(begun.claim(), retry);
        }
        bench.driver.settings.queue.backoff = Backoff::default().attempts(3);
        assert_eq!(bench.steps(4), []);
        let dead = bench.store.records().remove(0);
        assert_eq!((dead.state, dead.error.as_deref()), (State::Dead, Some("card declined")));
    }
}
