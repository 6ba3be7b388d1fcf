//! The records that a worker has claimed and whose deliveries have not begun.
//!
//! Each waits in one place, which decides when its delivery may begin:
//!
//! - *In a wheel* until a time: until it is due, or until its next try, if another transaction has
//!   locked it or other workers deliver as many timeouts of its key as may run at once.
//! - *For a reason*, once it is due: a handler, a delivery of its key, or a last attempt.

use std::{collections::BTreeMap, mem, num::NonZeroUsize, time::Duration};

use delaywheel::{Tick, wheel::TimingWheel};
use rustc_hash::FxHashMap;

use crate::{
    record::{Name, Priority, Record},
    time::WallTime,
};

/// Most due records that go back to the store if a full window must take another one.
const EVICTED: usize = 64;

/// Most of the times until the next try, and how long claims pass over a key of others.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// How long a last attempt runs before another one begins beside it.
pub(super) const ALONE: Duration = Duration::from_secs(1);

/// Which records a claim takes, and which of those that are due are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Window,
    Backlog,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    /// A handler, or a permit.
    Handler(Lane),
    /// The end of a delivery of this key. Records for which there is no room wait in the store.
    Key(Name),
    LastAttempt,
}

impl Reason {
    fn is_delivery(&self) -> bool {
        !matches!(self, Self::Handler(_))
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) record: Record,
    /// Its key, once it counts as a delivery of that.
    pub(super) slot: Option<Name>,
    /// Time until the next try, if there was one, and the least such time for its reason.
    delay: Duration,
    least: Duration,
}

impl Waiting {
    pub(super) fn new(record: Record) -> Self {
        Self { record, slot: None, delay: Duration::ZERO, least: Duration::ZERO }
    }

    /// Returns whether it was tried for long, for the reason with this least delay.
    pub(super) fn is_tried_for_long(&self, least: Duration) -> bool {
        self.least == least && self.delay >= MAX_DELAY / 2
    }
}

/// Records that are due, by priority and oldest first.
type Due = BTreeMap<(Priority, WallTime, u64), Waiting>;

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Size {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Size {
    fn add(&mut self, waiting: &Waiting) {
        self.count += 1;
        self.bytes += waiting.record.payload.len();
    }

    fn subtract(&mut self, waiting: &Waiting) {
        self.count -= 1;
        self.bytes -= waiting.record.payload.len();
    }
}

#[derive(Debug, Default)]
pub(super) struct Held {
    wheel: TimingWheel<Waiting>,
    /// Number of those in the wheel that are due, and tried again at their times there.
    tries: usize,
    /// When those of them are tried that were tried for long.
    next_try: WallTime,
    waits: FxHashMap<Reason, Due>,
    is_turn_of_window: bool,
    slots: FxHashMap<Name, usize>,
    /// Keys that other workers deliver, and until when claims pass over them.
    passed: FxHashMap<Name, WallTime>,
    /// The latest of these ends, which further keys share: a claim follows each.
    passes_until: WallTime,
    /// The latest last attempt, by token, and until when no other one begins beside it.
    last: Option<(u64, WallTime)>,
    /// Of all records, and of those that wait for a delivery.
    pub(super) size: Size,
    parked: Size,
}

impl Held {
    pub(super) fn counts(&self) -> (usize, usize) {
        let window = self.wheel.len() - self.tries;
        (window, self.size.count - window)
    }

    pub(super) fn count(&self, reason: &Reason) -> usize {
        self.waits.get(reason).map_or(0, Due::len)
    }

    pub(super) fn in_lane(&self, lane: Lane) -> usize {
        self.count(&Reason::Handler(lane))
    }

    /// Returns the number of records of the window that are not due or wait for a handler.
    pub(super) fn in_window(&self) -> usize {
        self.wheel.len() - self.tries + self.in_lane(Lane::Window)
    }

    pub(super) fn in_lanes(&self) -> usize {
        self.in_lane(Lane::Window) + self.in_lane(Lane::Backlog)
    }

    /// Returns the keys of which records wait for a delivery, or did until there was no room or
    /// other workers had delivered the key for long.
    pub(super) fn parked_keys(&self) -> Vec<Name> {
        let key = |reason: &Reason| match reason {
            Reason::Key(key) => Some(key.clone()),
            _ => None,
        };
        self.waits.keys().filter_map(key).chain(self.passed.keys().cloned()).collect()
    }

    pub(super) fn passes_over_keys(&self) -> bool {
        !self.passed.is_empty()
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = u64> {
        let timed = self.wheel.iter().map(|(_, _, waiting)| waiting);
        let due = self.waits.values().flat_map(Due::values);
        timed.chain(due).map(|waiting| waiting.record.token)
    }

    pub(super) fn next_expiration(&self) -> Option<WallTime> {
        self.wheel
            .next_expiration()
            .map(time)
            .into_iter()
            .chain(self.passed.values().copied())
            .min()
    }

    /// Returns the first time from `now` on at which a record waits only for a handler.
    pub(super) fn next_begin(&self, now: WallTime) -> Option<WallTime> {
        let behind = self.last.map_or(now, |(_, until)| until.max(now));
        let behind = (self.count(&Reason::LastAttempt) > 0).then_some(behind);
        (self.in_lanes() > 0).then_some(now).or(behind)
    }

    pub(super) fn hold(&mut self, record: Record) {
        self.insert(record.next, Waiting::new(record));
    }

    /// Adds a record that could not begin. The time until the next try about doubles from `least`
    /// on, which stands for the reason: another reason starts anew. A part of the time is random,
    /// or the tries could keep step with deliveries of others. Records that were tried for long
    /// share the next try, so that those of many keys go back at once.
    pub(super) fn retry(&mut self, mut waiting: Waiting, least: Duration, now: WallTime) {
        let part = 1.0 - fastrand::f64() / 4.0;
        if mem::replace(&mut waiting.least, least) != least {
            waiting.delay = Duration::ZERO;
        }
        waiting.delay = waiting.delay.mul_f64(2.0 * part).clamp(least, MAX_DELAY.mul_f64(part));
        self.tries += 1;
        let mut until = now.saturating_add(waiting.delay);
        if waiting.is_tried_for_long(least) {
            if self.next_try <= now {
                self.next_try = until;
            }
            until = self.next_try;
        }
        self.insert(until, waiting);
    }

    fn insert(&mut self, until: WallTime, waiting: Waiting) {
        self.size.add(&waiting);
        if let Err(error) = self.wheel.insert(tick(until), waiting) {
            // The capacity of the window is far below the wheel's.
            unreachable!("the wheel is full: {error}");
        }
    }

    pub(super) fn wait(&mut self, reason: Reason, waiting: Waiting) {
        self.size.add(&waiting);
        if reason.is_delivery() {
            self.parked.add(&waiting);
        }
        add(&mut self.waits, reason, waiting);
    }

    /// Returns whether claims do not pass over a key any more.
    pub(super) fn expire(&mut self, now: WallTime) -> bool {
        for waiting in self.wheel.advance(tick(now)).map(|expired| expired.value) {
            debug_assert!(waiting.record.next <= now, "a record is early");
            self.tries -= usize::from(!waiting.delay.is_zero());
            add(&mut self.waits, Reason::Handler(Lane::Window), waiting);
        }
        let passed = self.passed.len();
        self.passed.retain(|_, until| *until > now);
        self.passed.len() < passed
    }

    /// Takes out a record of a key that other workers deliver without a pause, and the records that
    /// wait for it: so the other workers begin the oldest one next.
    pub(super) fn pass_over(&mut self, waiting: Waiting, now: WallTime) -> Vec<Record> {
        let mut all = vec![waiting.record];
        let Some(key) = waiting.slot else { return all };
        let behind = self.waits.remove(&Reason::Key(key.clone()));
        for waiting in behind.into_iter().flat_map(Due::into_values) {
            self.parked.subtract(&waiting);
            self.size.subtract(&waiting);
            all.push(waiting.record);
        }
        self.free(Some(&key));
        if self.passes_until.since(now) <= MAX_DELAY / 2 {
            self.passes_until = now.saturating_add(MAX_DELAY);
        }
        self.passed.insert(key, self.passes_until);
        all
    }

    fn resume(&mut self, reason: &Reason) -> Option<()> {
        let (_, waiting) = self.waits.get_mut(reason)?.pop_first()?;
        self.parked.subtract(&waiting);
        add(&mut self.waits, Reason::Handler(Lane::Window), waiting);
        Some(())
    }

    fn next(&self) -> Option<(Lane, &Record)> {
        let first = |lane| {
            let (_, waiting) = self.waits.get(&Reason::Handler(lane))?.first_key_value()?;
            Some((lane, &waiting.record))
        };
        match (first(Lane::Backlog), first(Lane::Window)) {
            (Some(old), Some(new)) => {
                let order = old.1.priority.cmp(&new.1.priority);
                let takes_new = order.is_gt() || order.is_eq() && self.is_turn_of_window;
                Some(if takes_new { new } else { old })
            }
            (old, new) => old.or(new),
        }
    }

    /// Returns whether the next record that begins was attempted before.
    pub(super) fn is_next_repeated(&self) -> bool {
        self.next().is_some_and(|(_, record)| record.attempt > 0)
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let (lane, _) = self.next()?;
        let (_, waiting) = self.waits.get_mut(&Reason::Handler(lane))?.pop_first()?;
        self.is_turn_of_window = lane == Lane::Backlog;
        self.size.subtract(&waiting);
        Some(waiting)
    }

    /// Counts a record as a delivery of its key and returns it, or has it wait if as many of these
    /// are under way as may run at once.
    pub(super) fn admit(
        &mut self,
        mut waiting: Waiting,
        limit: Option<NonZeroUsize>,
    ) -> Option<Waiting> {
        if let (None, Some(limit), Some(key)) = (&waiting.slot, limit, &waiting.record.key) {
            let key = key.clone();
            let taken = self.slots.entry(key.clone()).or_default();
            if *taken >= limit.get() {
                self.wait(Reason::Key(key), waiting);
                return None;
            }
            *taken += 1;
            waiting.slot = Some(key);
        }
        Some(waiting)
    }

    /// A record is no delivery of its key any more, so the next one of the key is due. Returns
    /// whether none is left: claims need not pass over the key.
    pub(super) fn free(&mut self, slot: Option<&Name>) -> bool {
        let Some(key) = slot else { return false };
        if let Some(count) = self.slots.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.slots.remove(key);
            }
        }
        self.resume_key(key)
    }

    fn resume_key(&mut self, key: &Name) -> bool {
        let reason = Reason::Key(key.clone());
        self.resume(&reason);
        self.count(&reason) == 0 && self.waits.remove(&reason).is_some()
    }

    /// Takes out records that wait for deliveries, so that no more than `most` do: each time one of
    /// the key with most of them, or of the last attempts. Claims pass over that key still.
    pub(super) fn trim(&mut self, most: Size) -> Vec<Record> {
        let mut trimmed = Vec::new();
        while self.parked.count > most.count || self.parked.bytes > most.bytes {
            let parked = self.waits.iter_mut().filter(|(reason, _)| reason.is_delivery());
            let longest = parked.map(|(_, due)| due).max_by_key(|due| due.len());
            let Some((_, waiting)) = longest.and_then(Due::pop_last) else { break };
            self.parked.subtract(&waiting);
            self.size.subtract(&waiting);
            trimmed.push(waiting.record);
        }
        trimmed
    }

    /// Returns whether a last attempt runs, and has not run for long.
    pub(super) fn has_last(&self, now: WallTime) -> bool {
        self.last.is_some_and(|(_, until)| now < until)
    }

    pub(super) fn begin_last(&mut self, token: u64, now: WallTime) {
        self.last = Some((token, now.saturating_add(ALONE)));
    }

    pub(super) fn end_last(&mut self, token: u64) {
        self.last.take_if(|(last, _)| *last == token);
    }

    /// Ends the wait for a last attempt that runs no more, or has run for long, for one record.
    pub(super) fn resume_last(&mut self, now: WallTime) {
        if !self.has_last(now) {
            self.resume(&Reason::LastAttempt);
        }
    }

    pub(super) fn evict(&mut self) -> Vec<Record> {
        let count = EVICTED.min(self.in_lane(Lane::Window).div_ceil(2));
        let lane = self.waits.entry(Reason::Handler(Lane::Window)).or_default();
        let last: Vec<_> = (0..count).filter_map(|_| lane.pop_last()).collect();
        let taken = last.into_iter().map(|(_, waiting)| {
            self.size.subtract(&waiting);
            self.free_of(waiting)
        });
        taken.collect()
    }

    /// Takes out the records that are due and wait for a handler or a last attempt.
    pub(super) fn take_lanes(&mut self) -> Vec<Record> {
        while self.resume(&Reason::LastAttempt).is_some() {}
        let mut all = Vec::new();
        while let Some(waiting) = self.pop() {
            all.push(self.free_of(waiting));
        }
        all
    }

    /// Takes out all records. None counts as a delivery of its key any more.
    pub(super) fn take_all(&mut self) -> Vec<Record> {
        let (slots, last) = (mem::take(&mut self.slots), self.last);
        let mut all = mem::replace(self, Self { slots, last, ..Self::default() });
        let timed = all.wheel.drain().map(|(_, _, waiting)| waiting);
        let due = all.waits.into_values().flat_map(Due::into_values);
        timed.chain(due).map(|one| self.free_of(one)).collect()
    }

    /// Returns the record of one that was taken out, which is no delivery of its key any more.
    fn free_of(&mut self, waiting: Waiting) -> Record {
        match (&waiting.slot, &waiting.record.key) {
            // It was the next one of its key, and no delivery will resume those behind it.
            (None, Some(key)) if !self.slots.contains_key(key) => self.resume_key(key),
            (slot, _) => self.free(slot.as_ref()),
        };
        waiting.record
    }

    /// The clock has stepped back: records that were due may not be due any more.
    pub(super) fn step_back(&mut self) {
        self.last = None;
        self.take_all().into_iter().for_each(|record| self.hold(record));
    }
}

fn add(waits: &mut FxHashMap<Reason, Due>, reason: Reason, waiting: Waiting) {
    waits.entry(reason).or_default().insert(rank(&waiting.record), waiting);
}

pub(super) fn rank(record: &Record) -> (Priority, WallTime, u64) {
    (record.priority, record.next, record.token)
}

/// One tick of the wheels is a microsecond.
fn tick(time: WallTime) -> Tick {
    Tick::new(time.as_micros())
}

pub(super) fn time(tick: Tick) -> WallTime {
    WallTime::from_micros(tick.get()).unwrap_or(WallTime::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{store::NewTimeout, transition::pending_record};

    /// Others may deliver its key at each of the same moments, such as the start of each second.
    #[test]
    fn tries_do_not_keep_step_with_a_period() {
        let (mut held, mut now) = (Held::default(), WallTime::MIN);
        let new = NewTimeout::new("a", now, b"").expect("valid");
        let mut waiting = Waiting::new(pending_record(&new, 1));
        let mut tries = Vec::new();
        while tries.len() < 20 {
            held.retry(waiting, Duration::from_millis(100), now);
            waiting = loop {
                now = held.next_expiration().expect("it is tried again");
                held.expire(now);
                if let Some(waiting) = held.pop() {
                    break waiting;
                }
            };
            tries.push(now.as_micros());
        }
        assert!(tries.iter().any(|time| time % 100_000 != 0), "{tries:?}");
        assert!(tries[19] <= 19 * 2_000_000, "{tries:?}");
        assert!(waiting.is_tried_for_long(Duration::from_millis(100)), "for that reason");
        let least = Duration::from_millis(10);
        assert!(!waiting.is_tried_for_long(least), "not for another one");
        held.retry(waiting, least, now);
        let (_, next, _) = held.wheel.iter().next().expect("it is tried again");
        assert_eq!(time(next), now.saturating_add(least));
    }

    #[test]
    fn records_of_a_key_that_goes_to_others_take_no_room() {
        let mut held = Held::default();
        let [first, second] = [1, 2].map(|token| {
            let new = NewTimeout::new(format!("{token}"), WallTime::MIN, b"1");
            let new = new.and_then(|new| new.key("key")).expect("valid");
            held.admit(Waiting::new(pending_record(&new, token)), NonZeroUsize::new(1))
        });
        assert!(second.is_none(), "it waits for the first");
        assert_eq!(held.pass_over(first.expect("no other runs"), WallTime::MIN).len(), 2);
        for size in [held.size, held.parked] {
            assert_eq!((size.count, size.bytes), (0, 0));
        }
    }

    #[test]
    fn the_next_record_of_a_key_leaves_none_behind_that_no_delivery_resumes() {
        for (evicts, expected) in [(false, (2, 0)), (true, (1, 1))] {
            let mut held = Held::default();
            let [first, second, third] = [1, 2, 3].map(|token| {
                let new = NewTimeout::new(format!("{token}"), WallTime::MIN, b"");
                let new = new.and_then(|new| new.key("key")).expect("valid");
                held.admit(Waiting::new(pending_record(&new, token)), NonZeroUsize::new(1))
            });
            assert!(second.is_none() && third.is_none(), "they wait for the first");
            held.free(first.expect("no other runs").slot.as_ref());
            let taken = if evicts { held.evict() } else { held.take_lanes() };
            assert_eq!((taken.len(), held.in_lane(Lane::Window)), expected);
            assert_eq!(held.size.count, expected.1);
            assert_eq!(held.parked_keys(), []);
        }
    }

    /// What has the lowest rank gives way in a full window, and the newest of the key with most.
    #[test]
    fn the_last_records_give_way() {
        let record = |(token, key): (u64, Option<&str>)| {
            let due = WallTime::from_micros(token).expect("valid");
            let mut new = NewTimeout::new(format!("{token}"), due, b"").expect("valid");
            new.key = key.map(|key| key.parse().expect("valid"));
            Waiting::new(pending_record(&new, token))
        };
        let tokens = |records: Vec<Record>| records.iter().map(|one| one.token).collect::<Vec<_>>();
        let mut held = Held::default();
        for token in [3, 1, 4, 2] {
            held.wait(Reason::Handler(Lane::Window), record((token, None)));
        }
        assert_eq!(tokens(held.evict()), [4, 3]);
        for waiting in [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "b")] {
            held.admit(record((waiting.0, Some(waiting.1))), NonZeroUsize::new(1));
        }
        assert_eq!(tokens(held.trim(Size { count: 2, bytes: 0 })), [5]);
    }
}
