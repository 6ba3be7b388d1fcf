//! Random calls of databases that grow, against one store, in virtual time. The mover ends at any
//! call of a store, and callers come between any two of them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
};

use fastrand::Rng;
use pollster::FutureExt as _;

use super::*;
use crate::{ClaimRequest, Delivery, ManualClock, Missed, Settlement, SqliteStore, record::MOVED};

/// Called before each call of a store by the mover.
pub(super) type Hook = Box<dyn Fn() -> StoreResult<()> + Send>;

/// What the handlers of one side got, and what they have not ended.
#[derive(Default)]
struct Seen {
    log: Mutex<Vec<String>>,
    held: Mutex<BTreeMap<TimeoutId, Delivery>>,
}

/// Ends a delivery, or holds it. The payload and the attempt decide.
fn handle(seen: &Seen, delivery: Delivery) {
    let (due, attempt) = (delivery.due(), delivery.attempt());
    let text = format!("{} {due:?} {attempt} {:?}", delivery.id(), delivery.payload());
    seen.log.lock().push(text);
    match (u32::from(delivery.payload()[0]) + attempt) % 8 {
        0 => drop(seen.held.lock().insert(delivery.id().clone(), delivery)),
        1 | 2 => delivery.retry_at(due.saturating_add(150 * SECOND * attempt), "again"),
        3 => delivery.dead("why"),
        _ => delivery.acknowledge(),
    }
}

const IDS: u32 = 60;
const SECOND: Duration = Duration::from_secs(1);

struct Both {
    rng: Mutex<Rng>,
    clock: ManualClock,
    reference: DurableTimer,
    sharded: Sharded,
    /// The movers of two other processes.
    mover: Sharded,
    rival: Arc<Sharded>,
    seen: [Arc<Seen>; 2],
}

fn start(clock: &ManualClock, seen: &Arc<Seen>) -> DurableTimer {
    let (store, seen) = (SqliteStore::in_memory(), Arc::clone(seen));
    let builder =
        DurableTimer::builder(store).clock(clock.clone()).handler_limit(None).lease(300 * SECOND);
    let handler = Arc::clone(&seen);
    let queue = crate::Queue::with("q", move |delivery| handle(&handler, delivery));
    let builder = builder.queue(queue.handler_limit(None));
    builder.build_with(move |delivery| handle(&seen, delivery)).expect("start")
}

/// Returns all records of a database, in the order of ids.
fn records(timer: &DurableTimer) -> Vec<Record> {
    let all = Query::Prefix { prefix: String::new(), after: None };
    timer.list(&all, usize::MAX).wait().expect("memory")
}

macro_rules! same {
    ($both:expr, |$side:ident| $call:expr) => {{
        let expected = {
            let $side = &$both.reference;
            format!("{:?}", $call)
        };
        let answer = {
            let $side = &$both.sharded;
            format!("{:?}", $call)
        };
        assert_eq!(answer, expected);
    }};
}

impl Both {
    fn below(&self, end: u32) -> u32 {
        self.rng.lock().u32(..end)
    }

    fn new_timeout(&self, id: &str, due: WallTime) -> NewTimeout {
        use Conflict::{Keep, Refuse, Replace, ReplaceChanged};
        let new = NewTimeout::new(id, due, self.below(9).to_le_bytes()).expect("valid");
        let new = new.conflict([Replace, Refuse, Keep, ReplaceChanged][self.below(4) as usize]);
        let new = new.queue(if self.below(3) == 0 { "q" } else { "" }).expect("valid");
        if self.below(3) > 0 {
            return new;
        }
        let repeat = Repeat::every(SECOND * (180 + 60 * self.below(7)));
        new.repeat(repeat.expect("valid").missed(Missed::All))
    }

    fn call(&self) {
        // Every second call is for a timeout that has to move.
        let unmoved = self.unmoved().filter(|_| self.below(2) == 0);
        let id = unmoved.unwrap_or_else(|| format!("id {}", self.below(IDS)));
        let due = self.reference.now().saturating_add(SECOND * self.below(1_200));
        match self.below(10) {
            0..5 => {
                let new = self.new_timeout(&id, due);
                same!(self, |side| side.schedule_new(new.clone()).wait());
            }
            5 => same!(self, |side| side.cancel(&id).wait()),
            6 => same!(self, |side| side.reschedule(&id, due).wait()),
            7 => same!(self, |side| side.requeue(&id, due).wait()),
            8 => self.release(&TimeoutId::new(&id).expect("valid")),
            _ => same!(self, |side| side.get(&id).wait().map(|found| plain(found.as_slice()))),
        }
    }

    /// Returns one of the ids that have to move.
    fn unmoved(&self) -> Option<String> {
        let old = self.sharded.timers[..self.sharded.old].iter().enumerate();
        let unmoved = old.flat_map(|(shard, timer)| {
            let records = records(timer).into_iter();
            records.filter(move |record| self.sharded.home(&record.id) != shard)
        });
        let unmoved: Vec<_> = unmoved.collect();
        self.rng.lock().choice(unmoved).map(|record| record.id.to_string())
    }

    fn release(&self, id: &TimeoutId) {
        let held = [&self.seen[0], &self.seen[1]].map(|seen| seen.held.lock().remove(id));
        let is_current = held.each_ref().map(|held| held.as_ref().map(Delivery::attempt));
        assert_eq!(is_current[0], is_current[1], "{id}");
        let is_retried = self.below(2) == 0;
        for delivery in held.into_iter().flatten() {
            let due = delivery.due();
            if is_retried { delivery.retry_at(due, "released") } else { delivery.acknowledge() }
        }
    }

    fn advance(&self, span: Duration) {
        self.clock.advance(span);
        let [expected, seen] = [0, 1].map(|side| {
            let mut log = std::mem::take(&mut *self.seen[side].log.lock());
            log.sort_unstable();
            log
        });
        assert_eq!(seen, expected);
    }

    fn compare(&self) {
        for number in 0..IDS {
            same!(self, |side| side
                .get(format!("id {number}"))
                .wait()
                .map(|found| plain(found.as_slice())));
        }
        let limit = 1 + self.below(11) as usize;
        let from = self.reference.now().saturating_add(SECOND * self.below(600));
        let after = Some((from, TimeoutId::new("id 3").expect("valid")));
        for query in [
            Query::Prefix { prefix: "id 1".to_owned(), after: None },
            Query::Prefix { prefix: String::new(), after: TimeoutId::new("id 3").ok() },
            Query::Times { from, until: WallTime::MAX, after: None },
            Query::Times { from: WallTime::MIN, until: PARKED, after: after.clone() },
            Query::Dead { after: None },
        ] {
            same!(self, |side| side.list(&query, limit).wait().map(|found| plain(&found)));
        }
        // A copy that a mover left stays while a worker of the old database claims its record.
        let copies = self.sharded.timers.iter().flat_map(records).filter(is_parked).count() as u64;
        let Counts { live, dead } = self.reference.count().wait().expect("memory");
        let expected = Counts { live: live + copies, dead };
        assert_eq!(self.sharded.count().wait().expect("memory"), expected);
        same!(self, |side| side.count_due().wait());
    }

    /// Runs the mover, with calls in between, until it dies at a call of a store. At last, another
    /// one recovers. Returns the number of deaths.
    fn sweep(self: &Arc<Self>) -> u32 {
        let mut deaths = 0;
        while self.below(4) > 0 {
            deaths += 1;
            let (left, both) = (AtomicU32::new(self.below(60)), Arc::clone(self));
            self.sweep_until(Some(Box::new(move || {
                match both.below(12) {
                    0..4 => both.call(),
                    // Its answer does not matter.
                    4 => drop(both.rival.move_now(3).block_on()),
                    _ => (),
                }
                let is_dead = left.fetch_sub(1, SeqCst).cast_signed() <= 0;
                if is_dead { Err(StoreError::new(StoreErrorReason::Unavailable)) } else { Ok(()) }
            })));
            (0..self.below(4)).for_each(|_| self.call());
            if self.below(4) == 0 {
                // The lease of the mover ends. What it has marked waits for the next one.
                self.clock.advance(SECOND * (40 + self.below(400)));
                break;
            }
        }
        let pairs = self.mover.old * (self.mover.timers.len() - self.mover.old);
        for pair in 0..pairs {
            *self.mover.hook.lock() = None;
            *self.mover.sweep.lock() = Sweep::default();
            self.mover.sweep.lock().pair = pair;
            self.mover.move_now(1).block_on().expect("memory");
        }
        self.advance(Duration::ZERO);
        deaths
    }

    /// Runs a mover for all timeouts. Returns `false` if it has died.
    fn sweep_until(&self, hook: Option<Hook>) -> bool {
        *self.mover.hook.lock() = hook;
        *self.mover.sweep.lock() = Sweep::default();
        let limit = 1 + self.below(5) as usize;
        loop {
            match self.mover.move_now(limit).block_on() {
                Ok(false) => (),
                end => break end.is_ok(),
            }
        }
    }

    /// Moves all. Dead timeouts are cancelled for that.
    fn move_all(self: &Arc<Self>) {
        for _ in 0..80 {
            if self.sharded.count_unmoved().wait().expect("count") == 0 {
                return;
            }
            let held: Vec<_> = self.seen[0].held.lock().keys().cloned().collect();
            for id in &held {
                self.release(id);
            }
            self.advance(SECOND * self.below(300));
            for dead in self.reference.list(&Query::Dead { after: None }, 99).wait().expect("list")
            {
                same!(self, |side| side.cancel(&dead.id).wait());
            }
            self.sweep_until(None);
        }
        panic!("{} did not move", self.sharded.count_unmoved().wait().expect("count"));
    }
}

/// Returns records as callers see them: a claim says nothing about a timeout.
fn plain(records: &[Record]) -> Vec<Record> {
    let plain = |record: &Record| {
        let state = if record.state == State::Claimed { State::Pending } else { record.state };
        Record { token: 0, state, ..record.clone() }
    };
    records.iter().map(plain).collect()
}

#[test]
fn databases_that_grow_are_as_one_store() {
    let seeds = std::env::var("SIMULATION_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut deaths = 0;
    for seed in 0..seeds.unwrap_or(20) {
        println!("seed {seed}");
        let clock = ManualClock::new();
        let seen = [Arc::<Seen>::default(), Arc::default()];
        let (reference, mut timers) = (start(&clock, &seen[0]), vec![start(&clock, &seen[1])]);
        for added in [1, 1, 2] {
            let old = timers.len();
            timers.extend((0..added).map(|_| start(&clock, &seen[1])));
            let growing = || Sharded::growing(timers.clone(), old);
            let with = |sharded| Both {
                rng: Mutex::new(Rng::with_seed(seed * 100 + timers.len() as u64)),
                clock: clock.clone(),
                reference: reference.clone(),
                sharded,
                mover: growing(),
                rival: Arc::new(growing()),
                seen: seen.clone(),
            };
            let both = with(Sharded::new(timers[..old].to_vec()));
            (0..150).for_each(|_| both.call());
            both.advance(30 * SECOND);
            both.compare();
            let both = Arc::new(with(growing()));
            let (rival, rng) = (Arc::clone(&both.rival), Mutex::new(both.rng.lock().fork()));
            // A mover acts between two steps of a call.
            *both.sharded.hook.lock() = Some(Box::new(move || {
                if rng.lock().u8(..4) == 0 {
                    rival.move_now(2).block_on()?;
                }
                Ok(())
            }));
            for _ in 0..6 {
                (0..both.below(8)).for_each(|_| both.call());
                deaths += both.sweep();
                both.advance(SECOND * both.below(200));
                both.compare();
            }
            both.move_all();
        }
    }
    assert!(deaths > 100, "{deaths}");
}

/// Returns an old and a new database, a timeout that has to move, and the clock of all.
fn two() -> (Sharded, NewTimeout, ManualClock) {
    let (clock, seen) = (ManualClock::new(), Arc::default());
    let sharded = Sharded::growing(vec![start(&clock, &seen), start(&clock, &seen)], 1);
    let id = |number| TimeoutId::new(format!("{number}")).expect("valid");
    let id = (0..99).map(id).find(|id| sharded.home(id) == 1).expect("one of two");
    let due = sharded.timers[0].now().saturating_add(3_600 * SECOND);
    (sharded, NewTimeout::new(id, due, b"new").expect("valid"), clock)
}

fn write(sharded: &Sharded, shard: usize, due: WallTime, new: &NewTimeout) {
    let old = NewTimeout { due, payload: b"old".as_slice().into(), ..new.clone() };
    sharded.timers[shard].store().write(due, &[Command::Schedule(old)]).block_on().expect("write");
}

/// Lets a mover come to the end, and to the recovery of the next one.
fn move_all(sharded: &Sharded) {
    for _ in 0..9 {
        sharded.move_now(8).block_on().expect("memory");
    }
}

/// Such as those of midnight. Half of them have to move.
fn many_of_one_time() -> (Sharded, NewTimeout, ManualClock) {
    let (sharded, new, clock) = two();
    let ids = (0..400).map(|number| TimeoutId::new(format!("a{number}")).expect("valid"));
    for id in ids {
        write(&sharded, 0, new.due, &NewTimeout { id, ..new.clone() });
    }
    (sharded, new, clock)
}

#[test]
fn timeouts_of_one_time_are_not_claimed_again_and_again() {
    let (sharded, ..) = many_of_one_time();
    let all = Query::Prefix { prefix: String::new(), after: None };
    assert_eq!(sharded.list(&all, 999).wait().expect("list").len(), 400);
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    *sharded.hook.lock() = Some(Box::new(move || {
        count.fetch_add(1, SeqCst);
        Ok(())
    }));
    while !sharded.move_now(2).block_on().expect("memory") {}
    let calls = calls.load(SeqCst);
    assert!(calls < 100, "{calls} calls of the stores");
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 0);
}

/// The databases are slow, and other workers take what a worker without a lease has claimed.
#[test]
fn a_move_of_timeouts_of_one_time_may_take_longer_than_a_lease() {
    let (sharded, new, clock) = many_of_one_time();
    let (timers, start) = (sharded.timers.clone(), new.due.saturating_sub(3_600 * SECOND));
    let enter = |timer: &DurableTimer| timer.store().enter(start, 300 * SECOND, None).block_on();
    let others = [0, 1].map(|shard| enter(&timers[shard]).expect("enter"));
    *sharded.hook.lock() = Some(Box::new(move || {
        clock.advance(2 * SECOND);
        for (timer, other) in timers.iter().zip(others) {
            timer.store().renew(other, timer.now(), 300 * SECOND).block_on()?;
        }
        Ok(())
    }));
    assert!(!sharded.move_now(2).block_on().expect("memory"));
    assert!(sharded.move_now(2).block_on().expect("memory"));
    assert!(sharded.timers[0].now().since(start) > 60 * SECOND, "two leases");
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 0);
}

#[test]
fn a_move_of_many_timeouts_stops_at_a_shutdown() {
    let (sharded, ..) = many_of_one_time();
    sharded.timers[1].shutdown();
    (0..2).for_each(|_| assert!(!sharded.move_now(2).block_on().expect("memory")));
    assert!(sharded.count_unmoved().wait().expect("count") > 100);
}

/// Its delay was the longest one. A new one would be taken for a copy.
#[test]
fn an_attempt_at_the_end_of_time_is_no_move() {
    let (sharded, new, _) = two();
    let refused = sharded.schedule_new(NewTimeout { due: PARKED, ..new.clone() }).wait();
    assert!(matches!(refused, Err(DurableError::Input(_))), "{refused:?}");
    write(&sharded, 1, WallTime::MAX, &new);
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 0);
}

/// A mover that was slow may write a copy after the timeout has ended.
#[test]
fn a_copy_without_a_mark_is_no_timeout() {
    let (sharded, new, _) = two();
    write(&sharded, 1, PARKED, &new);
    assert_eq!(sharded.get(&new.id).wait().expect("get"), None);
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 1, "the next recovery removes it");
    assert_eq!(sharded.cancel(&new.id).wait().expect("cancel"), Cancelled::NotFound);
    let answer = sharded.reschedule(&new.id, SECOND).wait().expect("reschedule");
    assert_eq!(answer, Rescheduled::NotFound);
    let answer = sharded.schedule_new(new.clone().conflict(Conflict::Refuse)).wait();
    assert_eq!(answer.expect("schedule"), Scheduled::Created);
    assert_eq!(&*sharded.get(&new.id).wait().expect("get").expect("kept").payload, b"new");
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 0);
}

/// Any call of the mover fails, and somebody requeues the dead timeouts of the old database, which
/// keeps none claimed. The queue is paused.
#[test]
fn a_requeue_of_a_mark_makes_no_second_timeout() {
    let (mut marks, mut last) = (0, 0);
    loop {
        let (sharded, new, _) = two();
        write(&sharded, 0, new.due, &new);
        sharded.pause("").wait().expect("pause");
        let left = AtomicU32::new(last);
        *sharded.hook.lock() = Some(Box::new(move || match left.fetch_sub(1, SeqCst) {
            0 => Err(StoreError::new(StoreErrorReason::Unavailable)),
            _ => Ok(()),
        }));
        let is_done = sharded.move_now(8).block_on().is_ok();
        *sharded.hook.lock() = None;
        assert!(records(&sharded.timers[0]).iter().all(|old| old.state != State::Claimed));
        marks += u32::from(records(&sharded.timers[0]).iter().any(is_moved));
        let requeued = sharded.timers[0].requeue(&new.id, new.due).wait().expect("requeue");
        assert!(!requeued, "there is no dead timeout");
        move_all(&sharded);
        assert_eq!([0, 1].map(|shard| records(&sharded.timers[shard]).len()), [0, 1], "{last}");
        if is_done {
            break;
        }
        last += 1;
    }
    assert_eq!(marks, 2, "before and after the copy starts");
}

#[test]
fn a_queue_whose_pause_a_new_database_does_not_know_does_not_move() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let id = (0..99).map(|number| TimeoutId::new(format!("q{number}")).expect("valid"));
    let id = id.into_iter().find(|id| sharded.home(id) == 1).expect("one of two");
    let other = NewTimeout { id, ..new.clone() }.queue("q").expect("valid");
    write(&sharded, 0, new.due, &other);
    sharded.timers[0].pause("").wait().expect("pause");
    move_all(&sharded);
    assert_eq!(records(&sharded.timers[1]).len(), 1, "of the other queue");
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 1);
    sharded.pause("").wait().expect("pause");
    move_all(&sharded);
    assert_eq!(sharded.count_unmoved().wait().expect("count"), 0);
}

#[test]
fn a_mover_completes_a_replace_whose_caller_has_died() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    sharded.timers[1].schedule_new(new.clone()).wait().expect("schedule");
    move_all(&sharded);
    assert_eq!(records(&sharded.timers[0]), []);
    assert_eq!(&*sharded.get(&new.id).wait().expect("get").expect("kept").payload, b"new");
}

/// The mover claims the record, a cancel ends it, and the copy comes after all.
#[test]
fn a_late_copy_of_a_mover_is_not_kept() {
    use Conflict::{Keep, Refuse, Replace, ReplaceChanged};
    for conflict in [Keep, Refuse, Replace, ReplaceChanged] {
        let (sharded, new, _) = two();
        let (own, late) = (Sharded::growing(sharded.timers.to_vec(), 1), new.clone());
        before(&sharded, 2, move || write(&own, 1, PARKED, &late));
        let answer = sharded.schedule_new(new.clone().conflict(conflict)).wait();
        assert_eq!(answer.expect("schedule"), Scheduled::Created);
        move_all(&sharded);
        let found = sharded.get(&new.id).wait().expect("get").expect("it was created");
        assert_eq!(found.due, new.due);
    }
}

/// The mover ends the replace before its caller does.
#[test]
fn a_replace_answers_that_it_has_replaced_what_the_mover_removed() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let own = Sharded::growing(sharded.timers.to_vec(), 1);
    before(&sharded, 2, move || move_all(&own));
    assert_eq!(sharded.schedule_new(new).wait().expect("schedule"), Scheduled::Replaced);
}

#[test]
fn a_reschedule_does_not_turn_the_copy_of_a_cancelled_timeout_into_a_timeout() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let (own, late) = (Sharded::growing(sharded.timers.to_vec(), 1), new.clone());
    before(&sharded, 1, move || {
        let cancelled = own.timers[0].cancel(&late.id).wait();
        assert_eq!(cancelled.expect("cancel"), Cancelled::Cancelled);
        write(&own, 1, PARKED, &late);
    });
    let later = new.due.saturating_add(SECOND);
    let answer = sharded.reschedule(&new.id, later).wait();
    assert_eq!(answer.expect("reschedule"), Rescheduled::NotFound);
    move_all(&sharded);
    assert_eq!(sharded.get(&new.id).wait().expect("get"), None);
}

/// A worker has died with it.
#[test]
fn a_timeout_that_waits_for_a_second_attempt_does_not_move() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let (store, request) = (sharded.timers[0].store(), ClaimRequest::new(new.due, WallTime::MAX));
    let worker = store.enter(new.due, SECOND, None).block_on().expect("enter");
    let batch = store.claim(worker, &request).block_on().expect("claim").expect("lease");
    store.begin(new.due, &[batch.records[0].claim()], None).block_on().expect("begin");
    store.leave(worker).block_on().expect("leave");
    move_all(&sharded);
    assert_eq!(sharded.get(&new.id).wait().expect("get").map(|kept| kept.attempt), Some(1));
}

/// Another worker takes its claims before any of its calls.
#[test]
fn a_mover_that_loses_its_lease_moves_each_timeout_once() {
    for (shard, number) in
        [0, 1].into_iter().flat_map(|shard| (0..18).map(move |number| (shard, number)))
    {
        let (sharded, new, _) = two();
        write(&sharded, 0, new.due, &new);
        let timer = sharded.timers[shard].clone();
        before(&sharded, number, move || {
            let (store, late) = (timer.store(), timer.now().saturating_add(60 * SECOND));
            let other = store.enter(late, 300 * SECOND, None).block_on().expect("enter");
            assert!(store.renew(other, late, 300 * SECOND).block_on().expect("renew"));
        });
        let sweep = || while !sharded.move_now(8).block_on().expect("memory") {};
        sweep();
        if shard == 1 {
            // The next sweep ends the moves of copies that the mover lost.
            sweep();
        }
        assert_eq!([0, 1].map(|shard| records(&sharded.timers[shard]).len()), [0, 1], "{number}");
        assert_eq!(sharded.get(&new.id).wait().expect("get").map(|new| new.due), Some(new.due));
    }
}

/// A lock has delayed a write of a mover, and the next one could not take its claim: a mark in the
/// old database, or the end of a copy in the new one.
#[test]
fn a_late_write_of_a_mover_loses_no_timeout() {
    let mark = Settlement::Dead { error: MOVED.to_owned() };
    for (shard, settlement) in [(0, mark), (1, Settlement::Done)] {
        let (sharded, new, _) = two();
        write(&sharded, 0, new.due, &new);
        write(&sharded, 1, PARKED, &new);
        let timer = &sharded.timers[shard];
        let (store, now) = (timer.store(), timer.now());
        let worker = store.enter(now, 300 * SECOND, None).block_on().expect("enter");
        let claimed = store.claim(worker, &ClaimRequest::new(now, WallTime::MAX)).block_on();
        let claim = claimed.expect("claim").expect("lease").records[0].claim();
        move_all(&sharded);
        let answers = store.write(now, &[Command::Settle(claim, settlement)]).block_on();
        assert_eq!(answers.expect("write"), [Answer::Settled(true)]);
        move_all(&sharded);
        assert_eq!([0, 1].map(|shard| records(&sharded.timers[shard]).len()), [0, 1]);
    }
}

/// A mover stands still before it writes a copy, and another one moves the timeout, which a caller
/// cancels before the copy starts.
#[test]
fn a_late_copy_of_a_mover_does_not_revive_a_timeout_that_was_cancelled() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let join = || Sharded::growing(sharded.timers.to_vec(), 1);
    let (other, caller, timers) = (join(), join(), sharded.timers.clone());
    let (id, own) = (new.id.clone(), sharded.timers.clone());
    let cancelled = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&cancelled);
    *other.hook.lock() = Some(Box::new(move || {
        if records(&timers[0]).iter().any(is_moved) && records(&timers[1]).iter().any(is_parked) {
            let answer = caller.cancel(&id).wait().expect("cancel");
            count.fetch_add(u32::from(answer == Cancelled::Cancelled), SeqCst);
        }
        Ok(())
    }));
    *sharded.hook.lock() = Some(Box::new(move || {
        let is_claimed = |record: &Record| record.state == State::Claimed;
        if records(&own[0]).iter().any(is_claimed) && records(&own[1]).is_empty() {
            while !other.move_now(8).block_on().expect("memory") {}
        }
        Ok(())
    }));
    move_all(&sharded);
    assert_eq!(cancelled.load(SeqCst), 1);
    assert_eq!(sharded.get(&new.id).wait().expect("get"), None);
    assert_eq!([0, 1].map(|shard| records(&sharded.timers[shard]).len()), [0, 0]);
}

/// A mover of each pair has died once its mark was there. The next one begins with another pair.
#[test]
fn a_mover_leaves_what_other_pairs_of_databases_have_not_ended() {
    let (clock, seen) = (ManualClock::new(), Arc::default());
    let sharded = Sharded::growing((0..4).map(|_| start(&clock, &seen)).collect(), 2);
    let due = sharded.timers[0].now().saturating_add(3_600 * SECOND);
    let id = |number| TimeoutId::new(format!("{number}")).expect("valid");
    let pairs = [(0, 2), (1, 2), (0, 3), (1, 3)];
    let ids = pairs.map(|pair| (0..99).map(id).find(|id| sharded.homes(id) == pair).expect("one"));
    for ((old, _), id) in pairs.into_iter().zip(&ids) {
        write(&sharded, old, due, &NewTimeout::new(id, due, b"").expect("valid"));
    }
    let (timers, known) = (sharded.timers.clone(), AtomicUsize::new(0));
    *sharded.hook.lock() = Some(Box::new(move || {
        let marks = timers[..2].iter().flat_map(records).filter(is_moved).count();
        let is_new = known.swap(marks, SeqCst) < marks;
        if is_new { Err(StoreError::new(StoreErrorReason::Unavailable)) } else { Ok(()) }
    }));
    (0..4).for_each(|_| drop(sharded.move_now(8).block_on().expect_err("it dies")));
    *sharded.hook.lock() = None;
    (0..4).for_each(|_| move_all(&sharded));
    assert_eq!([0, 1, 2, 3].map(|shard| records(&sharded.timers[shard]).len()), [0, 0, 2, 2]);
    for id in &ids {
        assert_eq!(sharded.get(id).wait().expect("get").map(|found| found.due), Some(due));
    }
}

/// Calls a function before a call of a store, which is the third one of a replace.
fn before(sharded: &Sharded, number: u32, call: impl Fn() + Send + 'static) {
    let calls = AtomicU32::new(0);
    *sharded.hook.lock() = Some(Box::new(move || {
        if calls.fetch_add(1, SeqCst) == number {
            call();
        }
        Ok(())
    }));
}

fn is_unknown<T>(answer: Result<T, DurableError>) -> bool {
    matches!(answer, Err(DurableError::Store(error))
        if error.reason() == StoreErrorReason::OutcomeUnknown)
}

/// In virtual time, calls under way are carried out after a shutdown.
#[test]
fn a_shutdown_between_two_databases_leaves_the_outcome_unknown() {
    let new = two().1;
    let timer = |_| DurableTimer::builder(SqliteStore::in_memory()).build().expect("start");
    let sharded = Sharded::growing([0, 1].map(timer).to_vec(), 1);
    write(&sharded, 0, new.due, &new);
    let old = sharded.timers[0].clone();
    before(&sharded, 2, move || {
        old.shutdown();
        // It takes a pause until its end.
        while old.pause("").wait().is_ok() {}
    });
    assert!(is_unknown(sharded.schedule_new(new).wait()));
    assert!(is_unknown(sharded.pause("").wait()), "the other one is open");
    assert!(sharded.finish(300 * SECOND).wait().expect("finish"));
    assert!(matches!(sharded.pause("").wait(), Err(DurableError::ShutDown)));
}

/// The record ends before the call that would cancel it in the old database.
#[test]
fn a_cancel_that_changed_no_database_has_a_known_outcome() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let (calls, old, id) = (AtomicU32::new(0), sharded.timers[0].clone(), new.id.clone());
    *sharded.hook.lock() = Some(Box::new(move || match calls.fetch_add(1, SeqCst) {
        1 => {
            old.cancel(&id).wait().expect("cancel");
            Ok(())
        }
        2 => Err(StoreError::new(StoreErrorReason::Unavailable)),
        _ => Ok(()),
    }));
    let answer = sharded.cancel(&new.id).wait();
    assert!(matches!(answer, Err(DurableError::Store(error))
        if error.reason() == StoreErrorReason::Unavailable));
}

#[test]
fn a_cancel_that_changed_one_database_has_an_unknown_outcome() {
    let (sharded, new, _) = two();
    write(&sharded, 0, new.due, &new);
    let calls = AtomicU32::new(0);
    *sharded.hook.lock() = Some(Box::new(move || match calls.fetch_add(1, SeqCst) {
        2 => Err(StoreError::new(StoreErrorReason::Unavailable)),
        _ => Ok(()),
    }));
    assert!(is_unknown(sharded.cancel(&new.id).wait()));
    assert_eq!(records(&sharded.timers[0]), []);
}

/// The mover writes the copy while the call is under way, and dies before it removes the mark.
#[test]
fn a_replace_or_cancel_answers_that_the_delivery_of_a_copy_had_begun() {
    let start = || {
        let (sharded, new, clock) = two();
        write(&sharded, 0, new.due, &new);
        let timers = sharded.timers.clone();
        let mover = Sharded::growing(timers.to_vec(), 1);
        *mover.hook.lock() = Some(Box::new(move || {
            let (old, new) = (records(&timers[0]), records(&timers[1]));
            if old.iter().any(is_moved) && !new.iter().all(is_parked) {
                return Err(StoreError::new(StoreErrorReason::Unavailable));
            }
            Ok(())
        }));
        before(&sharded, 1, move || {
            mover.move_now(8).block_on().expect_err("it dies");
            clock.advance(3_600 * SECOND);
        });
        (sharded, new)
    };
    let (sharded, new) = start();
    let answer = sharded.schedule_new(new).wait();
    assert_eq!(answer.expect("schedule"), Scheduled::ReplacedDelivering);
    let (sharded, new) = start();
    assert_eq!(sharded.cancel(&new.id).wait().expect("cancel"), Cancelled::Delivering);
}

#[test]
fn the_database_of_an_id_is_fixed_and_a_new_one_takes_its_part() {
    let id = |number: usize| TimeoutId::new(format!("invoice/{number}")).expect("valid");
    let homes: [usize; 8] = std::array::from_fn(|number| jump(&id(number), 5));
    assert_eq!(homes, [0, 3, 3, 3, 3, 0, 3, 2]);
    for count in 1..9 {
        let changed = |number: &usize| jump(&id(*number), count) != jump(&id(*number), count + 1);
        let moved: Vec<_> = (0..1_000).filter(changed).collect();
        assert!(moved.iter().all(|number| jump(&id(*number), count + 1) == count));
        let part = 1_000 / (count + 1);
        assert!((part * 2 / 3..part * 3 / 2).contains(&moved.len()), "{count}: {}", moved.len());
    }
}
