//! Checks that every store must pass.
//!
//! [`check`] runs all of them, each on a fresh store. The last one runs random operations on the
//! store and on a [`MemoryStore`], and compares every answer and every record.
//!
//! ```
//! use delaywheel_durable::{MemoryStore, conformance};
//!
//! conformance::check(MemoryStore::new, 300);
//! ```

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;

use crate::{
    memory::MemoryStore,
    record::{Claim, Record, State, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Cancelled, ClaimRequest, ClaimedBatch, Command, Conflict, Counts, NewTimeout,
        Query, Rescheduled, Scheduled, Settlement, Store, WorkerId,
    },
    time::WallTime,
};

const LEASE: Duration = Duration::from_secs(10);

/// Runs every check. `open` returns an empty store each time; `steps` is the length of the
/// comparison with the reference.
///
/// # Panics
///
/// Panics if a check fails.
pub fn check<S: Store>(open: impl Fn() -> S, steps: usize) {
    schedules_by_conflict_policy(&open());
    claims_the_earliest_of_a_window_once(&open());
    begins_only_what_is_due_and_held(&open());
    a_void_claim_settles_nothing(&open());
    a_lapsed_worker_loses_its_claims(&open());
    cancel_and_reschedule_report_a_delivery(&open());
    dead_records_are_listed_and_requeued(&open());
    lists_are_paged(&open());
    a_batch_is_applied_in_order(&open());
    limits_of_ids_payloads_and_times(&open());
    for seed in 0..3 {
        agrees_with_the_reference(&open(), seed, steps);
    }
}

fn at(micros: u64) -> WallTime {
    WallTime::from_micros(1_000_000_000_000_000 + micros).expect("in range")
}

fn id(name: &str) -> TimeoutId {
    TimeoutId::new(name).expect("valid")
}

fn new(name: &str, due: WallTime) -> NewTimeout {
    NewTimeout {
        id: id(name),
        due,
        payload: name.as_bytes().into(),
        repeat: None,
        conflict: Conflict::Replace,
    }
}

fn write(store: &dyn Store, command: Command) -> Answer {
    store.write(at(0), &[command]).expect("write")[0]
}

fn put(store: &dyn Store, name: &str, due: WallTime) -> Answer {
    write(store, Command::Schedule(new(name, due)))
}

fn window(now: WallTime, until: WallTime) -> ClaimRequest {
    ClaimRequest {
        now,
        from: WallTime::MIN,
        until,
        limit: 1_000,
        max_bytes: usize::MAX >> 1,
        begin: false,
    }
}

fn claim(store: &dyn Store, worker: WorkerId, request: ClaimRequest) -> ClaimedBatch {
    store.claim(worker, request).expect("claim").expect("the worker has its lease")
}

fn names(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.id.as_str()).collect()
}

fn state(store: &dyn Store, name: &str) -> Option<State> {
    store.get(&id(name)).expect("get").map(|record| record.state)
}

fn schedules_by_conflict_policy(store: &dyn Store) {
    assert_eq!(put(store, "a", at(1)), Answer::Scheduled(Scheduled::Created));
    assert_eq!(put(store, "a", at(2)), Answer::Scheduled(Scheduled::Replaced));
    for conflict in [Conflict::Keep, Conflict::Refuse] {
        let command = Command::Schedule(NewTimeout { conflict, ..new("a", at(3)) });
        assert_eq!(write(store, command), Answer::Scheduled(Scheduled::Kept));
    }
    let record = store.get(&id("a")).expect("get").expect("scheduled");
    assert_eq!((record.due, record.next, record.attempt), (at(2), at(2), 0));
    assert_eq!(&*record.payload, b"a");
    assert_eq!(store.count().expect("count"), Counts { live: 1, dead: 0 });
}

fn claims_the_earliest_of_a_window_once(store: &dyn Store) {
    for (name, due) in [("c", 30), ("a", 10), ("b", 20), ("d", 40)] {
        put(store, name, at(due));
    }
    let one = store.enter(at(0), LEASE).expect("enter");
    let two = store.enter(at(0), LEASE).expect("enter");
    let first = claim(store, one, ClaimRequest { limit: 2, ..window(at(0), at(40)) });
    assert_eq!(names(&first.records), ["a", "b"]);
    assert_eq!(first.next, Some(at(30)));
    let second = claim(store, two, window(at(0), at(40)));
    assert_eq!(names(&second.records), ["c"]);
    assert_eq!(second.next, Some(at(40)));
    assert_eq!(second.lapse, Some(at(0).saturating_add(LEASE)));
    assert_eq!(claim(store, one, window(at(0), at(40))).records, []);
    // A change by a user makes it free again, also below what has been claimed.
    put(store, "a", at(5));
    assert_eq!(names(&claim(store, two, window(at(0), at(40))).records), ["a"]);
    let bytes = ClaimRequest { max_bytes: 1, ..window(at(0), at(99)) };
    put(store, "e", at(41));
    assert_eq!(names(&claim(store, one, bytes).records), ["d"]);
    assert_eq!(claim(store, one, window(at(0), at(99))).next, None);
}

fn begins_only_what_is_due_and_held(store: &dyn Store) {
    put(store, "a", at(10));
    let worker = store.enter(at(0), LEASE).expect("enter");
    let claims = [claim(store, worker, window(at(0), at(20))).records[0].claim()];
    assert_eq!(state(store, "a"), Some(State::Claimed));
    assert_eq!(store.begin(at(9), &claims).expect("begin"), [false]);
    assert_eq!(store.begin(at(10), &claims).expect("begin"), [true]);
    assert_eq!(store.begin(at(10), &claims).expect("begin"), [false]);
    let record = store.get(&id("a")).expect("get").expect("kept");
    assert_eq!((record.state, record.attempt), (State::Delivering, 1));
    put(store, "b", at(10));
    put(store, "c", at(11));
    let batch = claim(store, worker, ClaimRequest { begin: true, ..window(at(10), at(20)) });
    let states: Vec<_> =
        batch.records.iter().map(|record| (record.state, record.attempt)).collect();
    assert_eq!(states, [(State::Delivering, 1), (State::Claimed, 0)]);
}

fn a_void_claim_settles_nothing(store: &dyn Store) {
    put(store, "a", at(10));
    let worker = store.enter(at(0), LEASE).expect("enter");
    let claims = [claim(store, worker, window(at(10), at(20))).records[0].claim()];
    put(store, "a", at(12));
    assert_eq!(store.begin(at(15), &claims).expect("begin"), [false]);
    for settlement in [Settlement::Done, Settlement::Release, Settlement::Again(at(1))] {
        let command = Command::Settle(claims[0].clone(), settlement);
        assert_eq!(write(store, command), Answer::Settled(false));
    }
    let batch = claim(store, worker, ClaimRequest { begin: true, ..window(at(12), at(20)) });
    let done = Command::Settle(batch.records[0].claim(), Settlement::Done);
    assert_eq!(write(store, done.clone()), Answer::Settled(true));
    assert_eq!(write(store, done), Answer::Settled(false));
    assert_eq!(state(store, "a"), None);
}

fn a_lapsed_worker_loses_its_claims(store: &dyn Store) {
    put(store, "a", at(10));
    put(store, "b", at(11));
    let slow = store.enter(at(0), LEASE).expect("enter");
    let batch = claim(store, slow, ClaimRequest { begin: true, ..window(at(10), at(20)) });
    let quick = store.enter(at(0), LEASE).expect("enter");
    let end = at(0).saturating_add(LEASE);
    assert!(store.renew(quick, end, LEASE).expect("renew"));
    assert_eq!(claim(store, quick, window(end, end)).records, [], "the lease has not ended");
    let later = end.saturating_add(Duration::from_micros(1));
    assert!(store.renew(quick, later, LEASE).expect("renew"));
    let taken = claim(store, quick, ClaimRequest { begin: true, ..window(later, later) });
    assert_eq!(names(&taken.records), ["a", "b"]);
    assert_eq!(taken.records[0].attempt, 2, "the delivery that was lost counts");
    for record in &batch.records {
        let done = Command::Settle(record.claim(), Settlement::Done);
        assert_eq!(write(store, done), Answer::Settled(false), "the token is void");
    }
    assert!(!store.renew(slow, later, LEASE).expect("renew"));
    assert_eq!(store.claim(slow, window(later, later)).expect("claim"), None);
    store.leave(quick).expect("leave");
    assert_eq!(state(store, "a"), Some(State::Pending));
    let done = Command::Settle(taken.records[0].claim(), Settlement::Done);
    assert_eq!(write(store, done), Answer::Settled(false));
}

fn cancel_and_reschedule_report_a_delivery(store: &dyn Store) {
    for name in ["a", "b", "c"] {
        put(store, name, at(10));
    }
    assert_eq!(
        write(store, Command::Reschedule(id("a"), at(50))),
        Answer::Rescheduled(Rescheduled::Rescheduled)
    );
    let worker = store.enter(at(0), LEASE).expect("enter");
    let batch = claim(store, worker, window(at(10), at(20)));
    assert_eq!(names(&batch.records), ["b", "c"]);
    assert_eq!(
        write(store, Command::Cancel(id("b"))),
        Answer::Cancelled(Cancelled::Cancelled),
        "a claim is no delivery"
    );
    let claims: Vec<_> = batch.records.iter().map(Record::claim).collect();
    assert_eq!(store.begin(at(10), &claims).expect("begin"), [false, true]);
    let moved = write(store, Command::Reschedule(id("c"), at(50)));
    assert_eq!(moved, Answer::Rescheduled(Rescheduled::Delivering));
    assert_eq!(put(store, "c", at(60)), Answer::Scheduled(Scheduled::ReplacedDelivering));
    let batch = claim(store, worker, ClaimRequest { begin: true, ..window(at(60), at(61)) });
    assert_eq!(names(&batch.records), ["a", "c"]);
    let cancelled = write(store, Command::Cancel(id("c")));
    assert_eq!(cancelled, Answer::Cancelled(Cancelled::Delivering));
    for _ in 0..2 {
        let cancelled = write(store, Command::Cancel(id("b")));
        assert_eq!(cancelled, Answer::Cancelled(Cancelled::NotFound));
    }
    let moved = write(store, Command::Reschedule(id("b"), at(50)));
    assert_eq!(moved, Answer::Rescheduled(Rescheduled::NotFound));
}

fn dead_records_are_listed_and_requeued(store: &dyn Store) {
    let repeat = Some(Repeat::every(Duration::from_secs(1)).expect("valid"));
    write(store, Command::Schedule(NewTimeout { repeat: repeat.clone(), ..new("a", at(10)) }));
    let worker = store.enter(at(0), LEASE).expect("enter");
    let begin = |now| ClaimRequest { begin: true, ..window(now, now.saturating_add(LEASE)) };
    let first = claim(store, worker, begin(at(10))).records.remove(0);
    let error = || "no route".to_owned();
    let retry = Settlement::Retry { at: at(20), error: error() };
    assert_eq!(write(store, Command::Settle(first.claim(), retry)), Answer::Settled(true));
    let second = claim(store, worker, begin(at(20))).records.remove(0);
    assert_eq!((second.due, second.next, second.attempt), (at(10), at(20), 2));
    assert_eq!(second.error.as_deref(), Some("no route"));
    let dead = Settlement::Dead { error: error() };
    assert_eq!(write(store, Command::Settle(second.claim(), dead)), Answer::Settled(true));
    assert_eq!(store.count().expect("count"), Counts { live: 0, dead: 1 });
    assert_eq!(claim(store, worker, begin(at(90))), ClaimedBatch::default());
    let list = store.list(&Query::Dead { after: None }, 9).expect("list");
    assert_eq!((list[0].id.as_str(), list[0].attempt), ("a", 2));
    let moved = write(store, Command::Reschedule(id("a"), at(50)));
    assert_eq!(moved, Answer::Rescheduled(Rescheduled::NotFound));
    assert_eq!(write(store, Command::Requeue(id("a"), at(95))), Answer::Requeued(true));
    assert_eq!(write(store, Command::Requeue(id("a"), at(95))), Answer::Requeued(false));
    let third = claim(store, worker, begin(at(95))).records.remove(0);
    assert_eq!((third.attempt, &third.repeat), (1, &repeat));
    let again = Command::Settle(third.claim(), Settlement::Again(at(100)));
    assert_eq!(write(store, again), Answer::Settled(true));
    let record = store.get(&id("a")).expect("get").expect("kept");
    assert_eq!((record.due, record.next, record.attempt), (at(100), at(100), 0));
    assert_eq!((record.error, record.state), (None, State::Pending));
}

fn lists_are_paged(store: &dyn Store) {
    for (name, due) in [("job/2", 20), ("job/1", 20), ("jo", 5), ("job/3", 10), ("job0", 30)] {
        put(store, name, at(due));
    }
    let times = |after| Query::Times { from: at(10), until: at(30), after };
    let page = store.list(&times(None), 2).expect("list");
    assert_eq!(names(&page), ["job/3", "job/1"]);
    let page = store.list(&times(Some((at(20), id("job/1")))), 2).expect("list");
    assert_eq!(names(&page), ["job/2"]);
    let prefix = |after| Query::Prefix { prefix: "job/".to_owned(), after };
    assert_eq!(names(&store.list(&prefix(None), 2).expect("list")), ["job/1", "job/2"]);
    assert_eq!(names(&store.list(&prefix(Some(id("job/2"))), 2).expect("list")), ["job/3"]);
    let odd = Query::Prefix { prefix: "j_b".to_owned(), after: None };
    assert!(store.list(&odd, 9).expect("list").is_empty(), "a prefix is no pattern");
    let all = Query::Prefix { prefix: String::new(), after: None };
    assert_eq!(store.list(&all, 9).expect("list").len(), 5);
}

fn a_batch_is_applied_in_order(store: &dyn Store) {
    let commands = [
        Command::Schedule(new("a", at(1))),
        Command::Schedule(new("b", at(1))),
        Command::Cancel(id("a")),
        Command::Cancel(id("a")),
        Command::Schedule(new("a", at(2))),
        Command::Schedule(NewTimeout { conflict: Conflict::Keep, ..new("a", at(3)) }),
        Command::Reschedule(id("b"), at(4)),
    ];
    let answers = store.write(at(0), &commands).expect("write");
    let expected = [
        Answer::Scheduled(Scheduled::Created),
        Answer::Scheduled(Scheduled::Created),
        Answer::Cancelled(Cancelled::Cancelled),
        Answer::Cancelled(Cancelled::NotFound),
        Answer::Scheduled(Scheduled::Created),
        Answer::Scheduled(Scheduled::Kept),
        Answer::Rescheduled(Rescheduled::Rescheduled),
    ];
    assert_eq!(answers, expected);
    let all = Query::Prefix { prefix: String::new(), after: None };
    let dues: Vec<_> = store.list(&all, 9).expect("list").iter().map(|r| r.due).collect();
    assert_eq!(dues, [at(2), at(4)]);
    assert!(store.write(at(0), &[]).expect("write").is_empty());
}

fn limits_of_ids_payloads_and_times(store: &dyn Store) {
    let long = "\u{10ffff}".repeat(63) + "abc";
    assert_eq!(long.len(), TimeoutId::MAX_LEN);
    for (name, due) in
        [(long.as_str(), WallTime::MAX), ("\u{1}", WallTime::MIN), (" '\\\"%", at(0))]
    {
        let payload = vec![0xff; crate::record::MAX_PAYLOAD].into();
        let command = Command::Schedule(NewTimeout { payload, ..new(name, due) });
        assert_eq!(write(store, command), Answer::Scheduled(Scheduled::Created));
        let record = store.get(&id(name)).expect("get").expect("kept");
        assert_eq!((record.due, record.payload.len()), (due, crate::record::MAX_PAYLOAD));
    }
    let empty = NewTimeout { payload: [].into(), ..new("empty", at(0)) };
    write(store, Command::Schedule(empty));
    assert!(store.get(&id("empty")).expect("get").expect("kept").payload.is_empty());
}

/// Random operations on a store and on the reference.
struct Comparison<'a> {
    rng: Rng,
    store: &'a dyn Store,
    reference: MemoryStore,
    now: WallTime,
    workers: Vec<(WorkerId, WorkerId)>,
    /// Claims of the store, and of the reference.
    claims: Vec<(Claim, Claim)>,
}

fn agrees_with_the_reference(store: &dyn Store, seed: u64, steps: usize) {
    let mut comparison = Comparison {
        rng: Rng::with_seed(seed),
        store,
        reference: MemoryStore::new(),
        now: at(0),
        workers: Vec::new(),
        claims: Vec::new(),
    };
    for step in 0..steps {
        comparison.step();
        if step % 16 == 0 || step + 1 == steps {
            comparison.compare();
        }
    }
}

impl Comparison<'_> {
    fn step(&mut self) {
        if self.rng.u8(..4) == 0 {
            self.now = self.now.saturating_add(Duration::from_micros(self.rng.u64(..400)));
        }
        match self.rng.u8(..12) {
            0..6 => self.write(),
            6 | 7 => self.claim(),
            8 | 9 => self.begin(),
            10 => self.work(),
            _ => self.list(),
        }
    }

    fn time(&mut self) -> WallTime {
        let span = Duration::from_micros(self.rng.u64(..1_000));
        self.now.saturating_add(span).saturating_sub(Duration::from_micros(300))
    }

    fn id(&mut self) -> TimeoutId {
        id(&format!("{}/{}", self.rng.char('a'..='c'), self.rng.u8(..12)))
    }

    fn write(&mut self) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.rng.usize(1..=6) {
            let (our, their) = self.command();
            ours.push(our);
            theirs.push(their);
        }
        let answers = self.store.write(self.now, &ours).expect("write");
        let expected = self.reference.write(self.now, &theirs).expect("write");
        assert_eq!(answers, expected, "{ours:?}");
    }

    fn command(&mut self) -> (Command, Command) {
        let (id, time) = (self.id(), self.time());
        let command = match self.rng.u8(..10) {
            0..4 => {
                let conflict = [Conflict::Replace, Conflict::Refuse, Conflict::Keep];
                let payload = vec![7; self.rng.usize(..20)].into();
                let conflict = conflict[self.rng.usize(..3)];
                Command::Schedule(NewTimeout { id, due: time, payload, repeat: None, conflict })
            }
            4 => Command::Cancel(id),
            5 => Command::Reschedule(id, time),
            6 => Command::Requeue(id, time),
            _ if self.claims.is_empty() => Command::Cancel(id),
            _ => {
                let (our, their) = self.claims[self.rng.usize(..self.claims.len())].clone();
                let error = format!("error {}", self.rng.u8(..));
                let settlement = match self.rng.u8(..6) {
                    0 => Settlement::Retry { at: time, error },
                    1 => Settlement::Dead { error },
                    2 => Settlement::Again(time),
                    3 => Settlement::Release,
                    _ => Settlement::Done,
                };
                return (
                    Command::Settle(our, settlement.clone()),
                    Command::Settle(their, settlement),
                );
            }
        };
        (command.clone(), command)
    }

    fn claim(&mut self) {
        let Some(&(our, their)) = self.rng.choice(&self.workers) else { return };
        let from = if self.rng.bool() { WallTime::MIN } else { self.now };
        let request = ClaimRequest {
            now: self.now,
            from,
            until: self.time(),
            limit: self.rng.usize(1..6),
            max_bytes: self.rng.usize(1..60),
            begin: self.rng.bool(),
        };
        let batch = self.store.claim(our, request).expect("claim");
        let expected = self.reference.claim(their, request).expect("claim");
        assert_eq!(batch.is_some(), expected.is_some(), "{request:?}");
        let (Some(batch), Some(expected)) = (batch, expected) else { return };
        assert_eq!(without_tokens(&batch.records), without_tokens(&expected.records));
        assert_eq!((batch.next, batch.lapse), (expected.next, expected.lapse), "{request:?}");
        let ours = batch.records.iter().map(Record::claim);
        self.claims.extend(ours.zip(expected.records.iter().map(Record::claim)));
        let old = self.claims.len().saturating_sub(30);
        self.claims.drain(..old);
    }

    fn begin(&mut self) {
        let mut pairs = BTreeMap::new();
        for _ in 0..self.rng.usize(..5) {
            if let Some((our, their)) = self.rng.choice(&self.claims) {
                pairs.insert(our.id.clone(), (our.clone(), their.clone()));
            }
        }
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_values().unzip();
        let begun = self.store.begin(self.now, &ours).expect("begin");
        assert_eq!(begun, self.reference.begin(self.now, &theirs).expect("begin"), "{ours:?}");
    }

    fn work(&mut self) {
        let lease = Duration::from_micros(self.rng.u64(..2_000));
        match self.rng.u8(..4) {
            0 => {
                let our = self.store.enter(self.now, lease).expect("enter");
                self.workers.push((our, self.reference.enter(self.now, lease).expect("enter")));
            }
            1 if self.workers.len() > 2 => {
                let (our, their) = self.workers.remove(self.rng.usize(..self.workers.len()));
                self.store.leave(our).expect("leave");
                self.reference.leave(their).expect("leave");
            }
            _ => {
                let Some(&(our, their)) = self.rng.choice(&self.workers) else { return };
                let known = self.store.renew(our, self.now, lease).expect("renew");
                let expected = self.reference.renew(their, self.now, lease).expect("renew");
                assert_eq!(known, expected);
            }
        }
    }

    fn list(&mut self) {
        let (from, until) = (self.time(), self.time());
        let after = Some((self.time(), self.id()));
        let query = match self.rng.u8(..3) {
            0 => Query::Times { from, until, after: after.filter(|_| self.rng.bool()) },
            1 => Query::Prefix { prefix: "b/".to_owned(), after: after.map(|after| after.1) },
            _ => Query::Dead { after: after.filter(|_| self.rng.bool()) },
        };
        let list = self.store.list(&query, 5).expect("list");
        let expected = self.reference.list(&query, 5).expect("list");
        assert_eq!(without_tokens(&list), without_tokens(&expected), "{query:?}");
    }

    fn compare(&mut self) {
        let all = Query::Prefix { prefix: String::new(), after: None };
        let records = self.store.list(&all, usize::MAX >> 1).expect("list");
        assert_eq!(without_tokens(&records), without_tokens(&self.reference.records()));
        assert_eq!(self.store.count().expect("count"), self.reference.count().expect("count"));
    }
}

fn without_tokens(records: &[Record]) -> Vec<Record> {
    records.iter().map(|record| Record { token: 0, ..record.clone() }).collect()
}
