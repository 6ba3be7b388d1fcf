//! The driver: decides which records a worker claims, holds in its wheel and delivers, and when it
//! looks again.
//!
//! It reads no clock and starts no thread. [`step`](Driver::step) does all work that is due at a
//! time, and [`next_step`](Driver::next_step) returns the time of the next call. So a simulation
//! runs many drivers in virtual time.
//!
//! Two lanes claim records. The *window* lane claims records that are due from `boundary` until the
//! end of the window, ahead of time, and holds them in a wheel. The *backlog* lane claims records
//! that were due before `boundary`, oldest first, at a limited rate and with at most half of the
//! permits. So a long backlog does not delay records that are due now. The boundary moves up to the
//! present when the window lane itself falls behind.
//!
//! The caller carries out the claims, at most one for each lane at a time. On threads of their own,
//! claims do not delay the deliveries of held records. A driver that meanwhile became another
//! worker drops the records of the claim: the store has taken them from the old worker, or will.

use std::{collections::VecDeque, num::NonZeroU32, time::Duration};

use delaywheel::{Key, Tick, TimingWheel};
use rustc_hash::FxHashMap;

use super::{
    executor::contain,
    policy::{Backoff, CatchUp},
    stats::Counters,
};
use crate::{
    error::StoreError,
    record::{Claim, Record, State},
    store::{ClaimRequest, ClaimedBatch, Command, Settlement, Store, WorkerId},
    time::WallTime,
};

/// Most deliveries that begin in one call of the store.
const BATCH: usize = 1_024;

/// Most records of a claim of the backlog lane. Larger claims keep the processor longer from other
/// deliveries, and smaller ones deliver a backlog more slowly.
const BACKLOG: usize = 256;

/// The window lane has fallen behind if it claims records that are overdue by this.
const BEHIND: Duration = Duration::from_secs(1);

/// Time until the next claim if other transactions have locked all records of a claim.
const LOCKED: Duration = Duration::from_millis(10);

/// Longest delay after a failure of the store.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Settings of a driver.
#[derive(Debug, Clone)]
pub(crate) struct DriverSettings {
    pub(crate) window: Duration,
    pub(crate) window_capacity: usize,
    pub(crate) window_bytes: usize,
    pub(crate) max_deliveries: usize,
    pub(crate) lease: Duration,
    pub(crate) handler_limit: Option<Duration>,
    pub(crate) backoff: Backoff,
    pub(crate) catch_up: CatchUp,
    pub(crate) catch_up_rate: Option<NonZeroU32>,
    pub(crate) recheck: Option<Duration>,
}

impl Default for DriverSettings {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            window_capacity: 16_384,
            window_bytes: 64 << 20,
            max_deliveries: 1_024,
            lease: Duration::from_secs(30),
            handler_limit: Some(Duration::from_secs(15 * 60)),
            backoff: Backoff::default(),
            catch_up: CatchUp::All,
            catch_up_rate: None,
            recheck: None,
        }
    }
}

/// Which claims a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Window,
    Backlog,
}

/// The work that a step asks for.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Deliveries that have begun.
    pub(crate) begun: Vec<(Lane, Record)>,
    /// Commands to write.
    pub(crate) commands: Vec<Command>,
    /// Attempts that have failed.
    pub(crate) failed: Vec<FailedAttempt>,
    /// Claims to make.
    pub(crate) claims: Vec<LaneClaim>,
    /// Whether to step again at once.
    pub(crate) again: bool,
}

/// An attempt that failed without an answer of the handler.
#[derive(Debug)]
pub(crate) struct FailedAttempt {
    pub(crate) claim: Claim,
    pub(crate) attempt: u32,
    pub(crate) error: &'static str,
}

/// A claim for the caller to carry out. The next step takes its outcome.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneClaim {
    pub(crate) lane: Lane,
    pub(crate) worker: WorkerId,
    pub(crate) request: ClaimRequest,
}

/// The records of a claim; `None` if the worker has lost its lease.
pub(crate) type Claimed = Result<Option<ClaimedBatch>, StoreError>;

/// One step under way.
struct Turn<'a> {
    store: &'a dyn Store,
    now: WallTime,
    counters: &'a Counters,
    step: Step,
}

/// One worker's view of its store.
#[derive(Debug)]
pub(crate) struct Driver {
    settings: DriverSettings,
    worker: Option<WorkerId>,
    /// Claimed, and not due.
    wheel: TimingWheel<Record>,
    /// Claimed and due; the delivery has not begun.
    due: VecDeque<Record>,
    /// Payload of both.
    bytes: usize,
    /// Deliveries under way, by token.
    delivering: FxHashMap<u64, Option<Key>>,
    /// When deliveries under way, with their attempts, exceed the limit.
    limits: TimingWheel<(Claim, u32)>,
    boundary: Option<WallTime>,
    last: WallTime,
    renew_at: WallTime,
    lapse_at: Option<WallTime>,
    recheck_at: Option<WallTime>,
    /// For each lane whose claim is under way: deliveries that may begin with it.
    window_claim: Option<usize>,
    backlog_claim: Option<usize>,
    /// When each lane claims next.
    window_at: Option<WallTime>,
    backlog_at: Option<WallTime>,
    /// No claim of a lane before this: others have locked its records, or the rate of the backlog
    /// allows none.
    window_after: WallTime,
    backlog_after: WallTime,
    /// The window is full: more is pending in it.
    is_full: bool,
    /// After a failure: no call of the store before this.
    paused_until: Option<WallTime>,
    pause: Duration,
    /// Earlier workers of this driver, from before it lost contact with the store.
    abandoned: Vec<WorkerId>,
    /// No more claims. The driver gives the held records back.
    is_closing: bool,
}

impl Driver {
    pub(crate) fn new(settings: DriverSettings) -> Self {
        Self {
            settings,
            worker: None,
            wheel: TimingWheel::new(Tick::ZERO),
            due: VecDeque::new(),
            bytes: 0,
            delivering: FxHashMap::default(),
            limits: TimingWheel::new(Tick::ZERO),
            boundary: None,
            last: WallTime::MIN,
            renew_at: WallTime::MIN,
            lapse_at: None,
            recheck_at: None,
            window_claim: None,
            backlog_claim: None,
            window_at: Some(WallTime::MIN),
            backlog_at: Some(WallTime::MIN),
            window_after: WallTime::MIN,
            backlog_after: WallTime::MIN,
            is_full: false,
            paused_until: None,
            pause: Duration::ZERO,
            abandoned: Vec::new(),
            is_closing: false,
        }
    }

    /// Numbers of records in the window, due, and being delivered.
    pub(crate) fn held(&self) -> (usize, usize, usize) {
        (self.wheel.len(), self.due.len(), self.delivering.len())
    }

    /// Returns whether nothing is due or being delivered.
    pub(crate) fn is_idle(&self, now: WallTime) -> bool {
        let is_waiting = self.next_step().is_none_or(|next| next > now);
        let has_backlog = self.backlog_at.is_some() && !self.is_closing;
        let is_delivering = !self.due.is_empty() || !self.delivering.is_empty();
        is_waiting && !has_backlog && !is_delivering && !self.is_claiming()
    }

    /// A record may have become due at this time; at [`WallTime::MIN`], any records.
    pub(crate) fn notice(&mut self, due: WallTime) {
        if due == WallTime::MIN {
            self.claim_soon(due);
            return;
        }
        let boundary = self.boundary.unwrap_or(WallTime::MIN);
        let lead = self.lead();
        let (lane, at) = if due < boundary {
            (&mut self.backlog_at, due.max(self.backlog_after))
        } else {
            (&mut self.window_at, due.saturating_sub(lead))
        };
        *lane = Some(lane.map_or(at, |old| old.min(at)));
    }

    /// A delivery has ended.
    pub(crate) fn ended(&mut self, token: u64) {
        if let Some(Some(key)) = self.delivering.remove(&token) {
            self.limits.cancel(key);
        }
    }

    /// Claims no more. Returns commands that give back the held records that are not being
    /// delivered.
    pub(crate) fn close(&mut self) -> Vec<Command> {
        self.is_closing = true;
        self.bytes = 0;
        let held: Vec<_> = self.wheel.drain().map(|(_, _, record)| record).collect();
        let held = held.into_iter().chain(self.due.drain(..));
        held.map(|record| Command::Settle(record.claim(), Settlement::Release)).collect()
    }

    /// Returns the worker and the earlier ones, to be removed from the store once no delivery is
    /// under way.
    pub(crate) fn leave(&mut self) -> Vec<WorkerId> {
        self.abandoned.drain(..).chain(self.worker.take()).collect()
    }

    /// Does all work that is due at `now`.
    pub(crate) fn step(
        &mut self,
        store: &dyn Store,
        now: WallTime,
        counters: &Counters,
        claimed: Vec<(LaneClaim, Claimed)>,
    ) -> Step {
        let mut turn = Turn { store, now, counters, step: Step::default() };
        self.follow_clock(now, counters);
        for (claim, claimed) in claimed {
            self.end_claim(&claim, claimed, &mut turn);
        }
        self.end_overruns(&mut turn);
        if self.paused_until.is_some_and(|until| now < until) {
            return turn.step;
        }
        self.paused_until = None;
        match self.call_store(&mut turn) {
            // A claim that is under way may fail.
            Ok(()) if self.is_claiming() => (),
            Ok(()) => self.pause = Duration::ZERO,
            Err(error) => self.pause_after(&error, now, counters),
        }
        turn.step
    }

    /// Returns when to step next; `None` if only a notice or the end of a delivery is a reason to.
    pub(crate) fn next_step(&self) -> Option<WallTime> {
        let time = |tick: Tick| WallTime::from_micros(tick.get()).unwrap_or(WallTime::MAX);
        let limit = self.limits.next_expiration().map(time);
        if let Some(until) = self.paused_until {
            return Some(limit.map_or(until, |limit| limit.min(until)));
        }
        let due = (!self.due.is_empty() && self.permits() > 0).then_some(self.last);
        let renew = (self.worker.is_some() && self.has_held()).then_some(self.renew_at);
        let window_at = self.window_at.map(|at| at.max(self.window_after));
        let claims = [
            window_at.filter(|_| self.window_claim.is_none() && self.has_room(self.last)),
            self.backlog_at.filter(|_| self.backlog_claim.is_none() && self.backlog_permits() > 0),
            self.lapse_at,
            self.recheck_at,
        ];
        let claims = claims.into_iter().flatten().filter(|_| !self.is_closing);
        let others = [limit, due, renew, self.wheel.next_expiration().map(time)];
        others.into_iter().flatten().chain(claims).min()
    }

    /// Notices that the clock has stepped back: records that were due may not be due any more.
    fn follow_clock(&mut self, now: WallTime, counters: &Counters) {
        if now < self.last {
            counters.clock_steps.add(1);
            let held = self.wheel.drain().map(|(_, _, record)| record);
            let held: Vec<_> = held.chain(self.due.drain(..)).collect();
            self.bytes = 0;
            self.wheel = TimingWheel::new(tick(now));
            for record in held {
                self.hold(record);
            }
            let limits: Vec<_> = self.limits.drain().map(|(_, _, claim)| claim).collect();
            self.limits = TimingWheel::new(tick(now));
            for (claim, attempt) in limits {
                self.watch(claim, attempt, now);
            }
            self.boundary = self.boundary.map(|boundary| boundary.min(now));
            self.window_after = WallTime::MIN;
            self.backlog_after = WallTime::MIN;
            self.paused_until = None;
            self.claim_soon(now);
            self.renew_at = now;
        }
        self.last = now;
    }

    /// Makes both lanes claim, and renews the lease, at once.
    pub(crate) fn claim_soon(&mut self, now: WallTime) {
        self.window_at = Some(now);
        self.backlog_at = Some(now.max(self.backlog_after));
        self.lapse_at = None;
    }

    /// Counts deliveries that take too long as failed, so that they no longer hold a permit.
    fn end_overruns(&mut self, turn: &mut Turn<'_>) {
        for expired in self.limits.advance(tick(turn.now)) {
            let (claim, attempt) = expired.value;
            self.delivering.remove(&claim.token);
            turn.counters.overruns.add(1);
            let error = "the handler exceeded its limit";
            turn.step.failed.push(FailedAttempt { claim, attempt, error });
        }
    }

    fn call_store(&mut self, turn: &mut Turn<'_>) -> Result<(), StoreError> {
        while let Some(&worker) = self.abandoned.last() {
            contain(|| turn.store.leave(worker))?;
            self.abandoned.pop();
        }
        let lapsed = self.lapse_at.is_some_and(|lapse| lapse <= turn.now);
        if lapsed && self.worker.is_none() {
            self.enter(turn)?;
        }
        if (self.has_held() && self.renew_at <= turn.now) || lapsed {
            self.renew(turn)?;
        }
        if lapsed || self.recheck_at.is_some_and(|recheck| recheck <= turn.now) {
            // The claims may have to wait for room, and set the next time when they are made.
            self.recheck_at = None;
            self.claim_soon(turn.now);
        }
        self.expire(turn.now);
        if !self.is_closing {
            self.claim_window(turn)?;
        }
        self.begin_due(turn)?;
        if !self.is_closing {
            self.claim_backlog(turn)?;
        }
        turn.step.again = self.next_step().is_some_and(|next| next <= turn.now);
        Ok(())
    }

    /// Moves records from the wheel to those that are due.
    fn expire(&mut self, now: WallTime) {
        for expired in self.wheel.advance(tick(now)) {
            self.due.push_back(expired.value);
        }
        debug_assert!(self.due.iter().all(|record| record.next <= now), "a record is early");
    }

    fn pause_after(&mut self, error: &StoreError, now: WallTime, counters: &Counters) {
        counters.store_errors.add(1);
        #[cfg(feature = "tracing")]
        tracing::warn!(error = error as &dyn std::error::Error, "store failed");
        let _ = error;
        self.pause = (self.pause * 2).clamp(Duration::from_millis(50), MAX_PAUSE);
        self.paused_until = Some(now.saturating_add(self.pause));
    }

    fn renew(&mut self, turn: &Turn<'_>) -> Result<(), StoreError> {
        if let Some(worker) = self.worker {
            if contain(|| turn.store.renew(worker, turn.now, self.settings.lease))? {
                self.renew_at = turn.now.saturating_add(self.settings.lease / 3);
            } else {
                self.lose_lease(turn.now, turn.counters);
            }
        }
        Ok(())
    }

    fn enter(&mut self, turn: &Turn<'_>) -> Result<WorkerId, StoreError> {
        let worker = contain(|| turn.store.enter(turn.now, self.settings.lease))?;
        self.renew_at = turn.now.saturating_add(self.settings.lease / 3);
        Ok(*self.worker.insert(worker))
    }

    /// Drops everything that the worker held: the tokens are void.
    fn lose_lease(&mut self, now: WallTime, counters: &Counters) {
        counters.lost_leases.add(1);
        #[cfg(feature = "tracing")]
        tracing::warn!("lease was lost");
        self.worker = None;
        self.drop_held(now);
    }

    /// Becomes another worker after a claim or begin that failed. The store may have carried it
    /// out, so this worker may hold records that it does not know.
    fn abandon(&mut self, now: WallTime) {
        self.abandoned.extend(self.worker.take());
        self.drop_held(now);
    }

    fn drop_held(&mut self, now: WallTime) {
        self.wheel.clear();
        self.due.clear();
        self.bytes = 0;
        self.claim_soon(now);
    }

    /// Asks the caller for a claim. Before that, renews a lease that may be about to end.
    fn claim(
        &mut self,
        lane: Lane,
        request: ClaimRequest,
        turn: &mut Turn<'_>,
    ) -> Result<(), StoreError> {
        // A lease that was not needed was not renewed, and may be about to end.
        if self.renew_at <= turn.now {
            self.renew(turn)?;
        }
        let worker = match self.worker {
            Some(worker) => worker,
            None => self.enter(turn)?,
        };
        let permits = if request.begin { request.limit } else { 0 };
        match lane {
            Lane::Window => (self.window_claim, self.window_at) = (Some(permits), None),
            Lane::Backlog => (self.backlog_claim, self.backlog_at) = (Some(permits), None),
        }
        turn.step.claims.push(LaneClaim { lane, worker, request });
        Ok(())
    }

    /// Takes in the records of a claim.
    fn end_claim(&mut self, claim: &LaneClaim, claimed: Claimed, turn: &mut Turn<'_>) {
        match claim.lane {
            Lane::Window => self.window_claim = None,
            Lane::Backlog => self.backlog_claim = None,
        }
        if self.worker != Some(claim.worker) {
            return;
        }
        turn.counters.claims.add(1);
        let batch = match claimed {
            Ok(Some(batch)) => batch,
            Ok(None) => return self.lose_lease(turn.now, turn.counters),
            Err(error) => {
                self.abandon(turn.now);
                return self.pause_after(&error, turn.now, turn.counters);
            }
        };
        if self.is_closing {
            for record in &batch.records {
                // Their attempts do not count, so the worker stays until that is written.
                self.delivering.insert(record.token, None);
                turn.step.commands.push(Command::Settle(record.claim(), Settlement::Release));
            }
            return;
        }
        self.pause = Duration::ZERO;
        turn.counters.empty_claims.add(usize::from(batch.records.is_empty()));
        // A lease that seems to have ended just now may be renewed this moment.
        let soon = turn.now.saturating_add(self.settings.lease / 10);
        let lapse = batch.lapse.map(|lapse| lapse.max(soon));
        self.lapse_at = lapse.map(|at| at.saturating_add(Duration::from_micros(1)));
        self.recheck_at = self.settings.recheck.map(|recheck| turn.now.saturating_add(recheck));
        match claim.lane {
            Lane::Window => self.plan_window(&claim.request, &batch, turn.now),
            Lane::Backlog => self.plan_backlog(&claim.request, &batch, turn.now),
        }
        for record in batch.records {
            debug_assert!(record.state != State::Delivering || record.next <= claim.request.now);
            self.take_claimed(claim.lane, record, turn);
        }
    }

    fn claim_window(&mut self, turn: &mut Turn<'_>) -> Result<(), StoreError> {
        let is_early =
            self.window_at.is_none_or(|at| at > turn.now) || self.window_after > turn.now;
        if self.window_claim.is_some() || is_early || !self.has_room(turn.now) {
            return Ok(());
        }
        let from = *self.boundary.get_or_insert(turn.now);
        // One microsecond more: a record that is due at that time is the reason for this claim.
        let window = self.settings.window.saturating_add(Duration::from_micros(1));
        let room = self.settings.window_capacity - self.wheel.len() - self.due.len();
        // Deliveries that are due already begin with the claim. Held records that become due during
        // the claim need permits as well.
        let begin = self.is_overdue(turn.now) && self.due.is_empty();
        let request = ClaimRequest {
            now: turn.now,
            from,
            until: turn.now.max(from).saturating_add(window),
            limit: if begin { room.min(self.permits().div_ceil(4)) } else { room },
            max_bytes: self.settings.window_bytes - self.bytes,
            begin,
        };
        self.claim(Lane::Window, request, turn)
    }

    /// Sets when the window lane claims again. A notice during the claim may have set an earlier
    /// time.
    fn plan_window(&mut self, request: &ClaimRequest, batch: &ClaimedBatch, now: WallTime) {
        let has_more = batch.next.is_some_and(|next| next < request.until);
        self.is_full = has_more && self.is_filled_by(&batch.records);
        self.window_after = now.saturating_add(pause_after_claim(batch, has_more));
        let next = batch.next.map(|next| next.saturating_sub(self.lead()));
        self.window_at = self.window_at.into_iter().chain(next).min();
        let last = batch.records.last();
        if has_more && last.is_some_and(|last| now.since(last.next) > BEHIND) {
            self.boundary = Some(now);
            self.claim_soon(now);
        }
    }

    /// Returns whether the window is full with these records. It does not hold those whose delivery
    /// has begun.
    fn is_filled_by(&self, records: &[Record]) -> bool {
        let new = || records.iter().filter(|record| record.state != State::Delivering);
        let held = self.wheel.len() + self.due.len() + new().count();
        let bytes = self.bytes + new().map(|record| record.payload.len()).sum::<usize>();
        held >= self.settings.window_capacity || bytes >= self.settings.window_bytes
    }

    /// Delivers a record whose delivery has begun, or puts it into the wheel. A record without an
    /// attempt left is dead: the process of its last attempt ended before the attempt.
    fn take_claimed(&mut self, lane: Lane, record: Record, turn: &mut Turn<'_>) {
        let attempt = record.attempt - u32::from(record.state == State::Delivering);
        if self.settings.backoff.is_last(attempt) {
            let error = "the last attempt did not end";
            turn.step.failed.push(FailedAttempt { claim: record.claim(), attempt, error });
        } else if record.state != State::Delivering {
            self.hold(record);
        } else if let Some(settlement) = skipped(&record, turn.now, self.settings.catch_up) {
            turn.counters.skipped.add(1);
            turn.step.commands.push(Command::Settle(record.claim(), settlement));
        } else {
            self.deliver(lane, record, turn);
        }
    }

    /// Puts a claimed record into the wheel.
    fn hold(&mut self, record: Record) {
        let deadline = tick(record.next);
        self.bytes += record.payload.len();
        if let Err(error) = self.wheel.insert(deadline, record) {
            // The capacity of the window is far below the wheel's.
            unreachable!("the wheel is full: {error}");
        }
    }

    fn begin_due(&mut self, turn: &mut Turn<'_>) -> Result<(), StoreError> {
        self.skip(turn);
        let count = self.permits().min(BATCH).min(self.due.len());
        if count == 0 {
            return Ok(());
        }
        let claims: Vec<_> = self.due.iter().take(count).map(Record::claim).collect();
        let begun = contain(|| turn.store.begin(turn.now, &claims));
        let begun = begun.inspect_err(|_| self.abandon(turn.now))?;
        let records: Vec<_> = self.due.drain(..count).collect();
        self.bytes -= records.iter().map(|record| record.payload.len()).sum::<usize>();
        for (mut record, begun) in records.into_iter().zip(begun) {
            if begun {
                debug_assert!(record.next <= turn.now, "a delivery is early");
                record.attempt += 1;
                self.deliver(Lane::Window, record, turn);
            } else {
                turn.counters.fenced.add(1);
            }
        }
        Ok(())
    }

    /// Takes out due records whose policy says so.
    fn skip(&mut self, turn: &mut Turn<'_>) {
        let catch_up = self.settings.catch_up;
        let bytes = &mut self.bytes;
        self.due.retain(|record| match skipped(record, turn.now, catch_up) {
            None => true,
            Some(settlement) => {
                turn.counters.skipped.add(1);
                *bytes -= record.payload.len();
                turn.step.commands.push(Command::Settle(record.claim(), settlement));
                false
            }
        });
    }

    fn claim_backlog(&mut self, turn: &mut Turn<'_>) -> Result<(), StoreError> {
        let Some(boundary) = self.boundary else { return Ok(()) };
        let limit = self.backlog_permits().min(BACKLOG);
        let is_claiming = self.backlog_claim.is_some();
        if is_claiming || limit == 0 || self.backlog_at.is_none_or(|at| at > turn.now) {
            return Ok(());
        }
        // At a limited rate, no more than a hundredth of a second's worth at once.
        let rate = self.settings.catch_up_rate.map(NonZeroU32::get);
        let limit = rate.map_or(limit, |rate| limit.min((rate as usize / 100).max(1)));
        let request = ClaimRequest {
            now: turn.now,
            from: WallTime::MIN,
            until: boundary,
            limit,
            max_bytes: self.settings.window_bytes,
            begin: true,
        };
        self.claim(Lane::Backlog, request, turn)
    }

    /// Sets when the backlog lane claims again.
    fn plan_backlog(&mut self, request: &ClaimRequest, batch: &ClaimedBatch, now: WallTime) {
        let has_more = batch.next.is_some_and(|next| next < request.until);
        let count = u32::try_from(batch.records.len()).unwrap_or(u32::MAX).max(1);
        let pause =
            self.settings.catch_up_rate.map(|rate| Duration::from_secs(1) * count / rate.get());
        let pause = pause.unwrap_or_default().max(pause_after_claim(batch, has_more));
        self.backlog_after = now.saturating_add(pause);
        if has_more || self.backlog_at.is_some() {
            self.backlog_at = Some(self.backlog_after);
        }
    }

    fn deliver(&mut self, lane: Lane, record: Record, turn: &mut Turn<'_>) {
        turn.counters.deliveries.add(1);
        turn.counters.lateness.record(turn.now.since(record.next));
        self.delivering.insert(record.token, None);
        self.watch(record.claim(), record.attempt, turn.now);
        turn.step.begun.push((lane, record));
    }

    fn watch(&mut self, claim: Claim, attempt: u32, now: WallTime) {
        if let Some(limit) = self.settings.handler_limit {
            let token = claim.token;
            let limit = tick(now.saturating_add(limit));
            let key = self.limits.insert(limit, (claim, attempt)).ok();
            self.delivering.insert(token, key);
        }
    }

    fn permits(&self) -> usize {
        self.settings.max_deliveries.saturating_sub(self.begun())
    }

    fn backlog_permits(&self) -> usize {
        self.settings.max_deliveries.div_ceil(2).saturating_sub(self.begun())
    }

    /// Returns the number of deliveries under way, and of those that claims may begin.
    fn begun(&self) -> usize {
        let claims = self.window_claim.unwrap_or(0) + self.backlog_claim.unwrap_or(0);
        self.delivering.len() + claims
    }

    /// Returns the time before the next due time at which the window lane claims. The claim takes
    /// the records of the whole window, so no other claim follows for the rest of it. If each
    /// record caused a claim as it entered the window, many workers would claim for each record.
    fn lead(&self) -> Duration {
        self.settings.window / 2
    }

    fn is_claiming(&self) -> bool {
        self.window_claim.is_some() || self.backlog_claim.is_some()
    }

    /// Returns whether the window lane would claim records that are already due.
    fn is_overdue(&self, now: WallTime) -> bool {
        self.window_at.is_some_and(|at| at.saturating_add(self.lead()) <= now)
    }

    /// Returns whether the window lane may claim: a full window must first be half empty, and
    /// records that are already due need permits.
    fn has_room(&self, now: WallTime) -> bool {
        if self.is_overdue(now) && self.permits() == 0 {
            return false;
        }
        let held = self.wheel.len() + self.due.len();
        let (capacity, bytes) = (self.settings.window_capacity, self.settings.window_bytes);
        if self.is_full {
            held <= capacity / 2 && self.bytes <= bytes / 2
        } else {
            held < capacity && self.bytes < bytes
        }
    }

    fn has_held(&self) -> bool {
        !(self.wheel.is_empty() && self.due.is_empty() && self.delivering.is_empty())
    }
}

/// Returns how long to wait after a claim that found all records locked by other transactions.
/// Without a pause, claims would keep the server busy until these locks end.
fn pause_after_claim(batch: &ClaimedBatch, has_more: bool) -> Duration {
    if has_more && batch.records.is_empty() { LOCKED } else { Duration::ZERO }
}

/// Returns how to settle a record that a policy skips.
fn skipped(record: &Record, now: WallTime, catch_up: CatchUp) -> Option<Settlement> {
    let too_old = match catch_up {
        CatchUp::All => false,
        CatchUp::SkipOlderThan(age) => now.since(record.next) > age,
    };
    let repeat = record.repeat.as_ref();
    let is_skipped = too_old || repeat.is_some_and(|repeat| repeat.is_skipped(record.due, now));
    is_skipped.then(|| following(record, now))
}

/// Returns how to settle an occurrence that is over.
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

/// One tick of the wheels is a microsecond.
fn tick(time: WallTime) -> Tick {
    Tick::new(time.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, NewTimeout, StoreErrorReason};

    const SECOND: Duration = Duration::from_secs(1);

    fn driver(max_deliveries: usize) -> Driver {
        Driver::new(DriverSettings { max_deliveries, ..DriverSettings::default() })
    }

    /// Returns a store with timeouts that are due, one second apart and the last one at `now`.
    fn store(now: WallTime, count: u32) -> MemoryStore {
        let store = MemoryStore::new();
        let new = |number| {
            let due = now.saturating_sub(SECOND * number);
            Command::Schedule(NewTimeout::new(format!("{number}"), due, b"").expect("valid"))
        };
        store.write(now, &(0..count).map(new).collect::<Vec<_>>()).expect("write");
        store
    }

    #[test]
    fn records_that_were_claimed_for_an_earlier_worker_are_dropped() {
        let now = WallTime::MIN.saturating_add(1_000 * SECOND);
        let (store, counters, mut driver) = (store(now, 3), Counters::default(), driver(8));
        let step = driver.step(&store, now, &counters, Vec::new());
        let [window, backlog] = step.claims[..] else { panic!("{:?}", step.claims) };
        let records = store.claim(window.worker, window.request);
        assert_eq!(records.as_ref().expect("claim").as_ref().expect("lease").records.len(), 1);
        // Another worker takes the records while the window's are on their way.
        store.leave(window.worker).expect("leave");
        let lost = store.claim(backlog.worker, backlog.request);
        let step = driver.step(&store, now, &counters, vec![(backlog, lost)]);
        let [again] = step.claims[..] else { panic!("{:?}", step.claims) };
        assert_ne!(again.worker, window.worker);
        let step = driver.step(&store, now, &counters, vec![(window, records)]);
        assert!(step.begun.is_empty());
        assert_eq!(driver.held(), (0, 0, 0));
        assert_eq!(step.claims[0].worker, again.worker);
    }

    /// The store carries a claim out, the reply is lost, and the timer shuts down before it tries
    /// again.
    #[test]
    fn a_closed_driver_leaves_as_the_worker_of_a_claim_that_failed() {
        let now = WallTime::MIN.saturating_add(1_000 * SECOND);
        let (store, counters, mut driver) = (store(now, 3), Counters::default(), driver(8));
        let step = driver.step(&store, now, &counters, Vec::new());
        let claimed = step.claims.iter().map(|claim| {
            drop(store.claim(claim.worker, claim.request));
            (*claim, Err(StoreError::new(StoreErrorReason::OutcomeUnknown)))
        });
        let claimed = claimed.collect();
        driver.step(&store, now, &counters, claimed);
        assert!(store.records().iter().any(|record| record.state != State::Pending));
        assert!(driver.close().is_empty(), "it knows of no record");
        for worker in driver.leave() {
            store.leave(worker).expect("leave");
        }
        assert!(store.records().iter().all(|record| record.state == State::Pending));
    }

    #[test]
    fn notices_of_overdue_records_do_not_raise_the_rate_of_a_backlog() {
        let now = WallTime::MIN.saturating_add(1_000 * SECOND);
        let (store, counters, mut driver) = (store(now, 100), Counters::default(), driver(8));
        driver.settings.catch_up_rate = NonZeroU32::new(100);
        let (mut begun, mut claimed) = (0, Vec::new());
        for _ in 0..50 {
            let step = driver.step(&store, now, &counters, std::mem::take(&mut claimed));
            for (lane, record) in step.begun {
                begun += u32::from(lane == Lane::Backlog);
                driver.ended(record.token);
            }
            let carry_out = |claim: LaneClaim| (claim, store.claim(claim.worker, claim.request));
            claimed = step.claims.into_iter().map(carry_out).collect();
            driver.notice(now.saturating_sub(SECOND));
        }
        assert_eq!(begun, 1, "one in ten milliseconds, and no time has passed");
        assert!(!driver.is_idle(now), "more are due");
        let later = now.saturating_add(Duration::from_millis(10));
        assert_eq!(driver.next_step(), Some(later));
    }

    #[test]
    fn a_window_that_is_more_than_half_full_does_not_delay_a_burst() {
        let now = WallTime::MIN.saturating_add(1_000 * SECOND);
        let (store, counters, mut driver) = (store(now, 0), Counters::default(), driver(8));
        driver.settings.window_capacity = 100;
        let schedule = |name: &str, count: u32, due| {
            let new = |number| NewTimeout::new(format!("{name}{number}"), due, b"").expect("valid");
            let commands = (0..count).map(|number| Command::Schedule(new(number)));
            store.write(now, &commands.collect::<Vec<_>>()).expect("write");
        };
        schedule("far", 60, now.saturating_add(40 * SECOND));
        let (mut begun, mut claimed) = (0, Vec::new());
        for step in 0..30 {
            if step == 2 {
                driver.claim_soon(now);
            } else if step == 5 {
                assert_eq!(driver.held(), (60, 0, 0));
                schedule("burst", 10, now);
                driver.notice(now);
            }
            let step = driver.step(&store, now, &counters, std::mem::take(&mut claimed));
            for (_, record) in step.begun {
                begun += 1;
                driver.ended(record.token);
            }
            let carry_out = |claim: LaneClaim| (claim, store.claim(claim.worker, claim.request));
            claimed = step.claims.into_iter().map(carry_out).collect();
        }
        assert_eq!(begun, 10, "the others wait for room that they do not need");
    }

    /// Another transaction has locked the records, and may hold them for long.
    #[test]
    fn a_claim_that_finds_all_records_locked_is_repeated_after_a_pause() {
        let now = WallTime::MIN.saturating_add(1_000 * SECOND);
        let (store, counters, mut driver) = (store(now, 3), Counters::default(), driver(8));
        let step = driver.step(&store, now, &counters, Vec::new());
        let locked = |claim: LaneClaim| {
            let next = claim.request.from.max(now.saturating_sub(SECOND));
            (claim, Ok(Some(ClaimedBatch { next: Some(next), ..ClaimedBatch::default() })))
        };
        let claimed: Vec<_> = step.claims.into_iter().map(locked).collect();
        assert_eq!(claimed.len(), 2);
        let step = driver.step(&store, now, &counters, claimed);
        assert!(step.claims.is_empty() && !step.again, "{:?}", step.claims);
        let later = now.saturating_add(LOCKED);
        assert_eq!(driver.next_step(), Some(later));
        assert_eq!(driver.step(&store, later, &counters, Vec::new()).claims.len(), 2);
    }

    #[test]
    fn claims_under_way_have_the_permits_of_the_deliveries_that_they_begin() {
        let now = WallTime::MIN.saturating_add(1_000 * SECOND);
        let (store, counters, mut driver) = (store(now, 9), Counters::default(), driver(1));
        let step = driver.step(&store, now, &counters, Vec::new());
        let [claim] = step.claims[..] else { panic!("{:?}", step.claims) };
        assert!(claim.request.begin && claim.request.limit == 1);
        assert!(driver.step(&store, now, &counters, Vec::new()).claims.is_empty());
        assert!(!driver.is_idle(now));
    }
}
