//! Checks that every store must pass.
//!
//! [`check`] runs random operations on the store and on a [`SqliteStore`] in memory, and compares
//! every answer and every record. Each run has a fresh store. Tests and simulations of the timer
//! show that a `SqliteStore` answers as the documentation of [`Store`] promises.
//!
//! ```
//! use delaywheel_durable::{SqliteStore, conformance};
//!
//! conformance::check(SqliteStore::in_memory, 300);
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use parking_lot::Mutex;
use pollster::FutureExt as _;

use crate::{
    error::StoreResult,
    record::{Attempt, Claim, MOVED, Name, Priority, Record, State, TimeoutId},
    repeat::Repeat,
    sqlite::SqliteStore,
    store::{
        Answer, Begun, Cancelled, ClaimRequest, Command, Conflict, NewTimeout, Query,
        QueueOverview, QueueState, Scheduled, Settlement, Store, WorkerId, WorkerLease,
    },
    time::WallTime,
};

/// Runs every check. `open` returns an empty store each time; `steps` is the length of the
/// comparison with the reference.
///
/// # Panics
///
/// Panics if a check fails.
pub fn check<S: Store>(open: impl Fn() -> S, steps: usize) {
    limits_of_ids_payloads_and_times(&open());
    limits_of_deliveries_by_key(&open());
    attempts_after_a_step_back_of_the_clock(&open());
    clocks_that_differ_or_step_back(&open());
    schedules_that_change_something_or_nothing(&open());
    a_dead_timeout_is_kept_until_it_is_requeued_or_replaced(&open());
    a_void_claim_beside_a_valid_one(&open());
    a_late_renewal_takes_nothing(&open());
    what_moves_between_databases(&open());
    old_attempts_are_removed(&open());
    changes_are_noticed_before_their_calls_return(&open());
    for seed in 0..4 {
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
    NewTimeout::new(name, due, name).expect("valid")
}

fn write(store: &dyn Store, command: Command) -> Answer {
    store.write(at(0), &[command]).block_on().expect("write")[0]
}

fn enter(store: &dyn Store) -> WorkerId {
    let lease = Duration::MAX;
    let worker = store.enter(at(0), lease, Some("worker")).block_on().expect("enter");
    assert!(store.renew(worker, at(0), lease).block_on().expect("renew"));
    worker
}

/// Claims what is due at the start.
fn claim(store: &dyn Store, worker: WorkerId) -> Vec<Claim> {
    let batch = store.claim(worker, &ClaimRequest::new(at(0), at(1))).block_on().expect("claim");
    batch.expect("lease").records.iter().map(Record::claim).collect()
}

fn begin(store: &dyn Store, claims: &[Claim]) -> Vec<Begun> {
    store.begin(at(0), claims, NonZeroUsize::new(2)).block_on().expect("begin")
}

fn limits_of_ids_payloads_and_times(store: &dyn Store) {
    let long = "\u{10ffff}".repeat(63) + "abc";
    assert_eq!(long.len(), TimeoutId::MAX_LEN);
    for (name, due) in
        [(long.as_str(), WallTime::MAX), ("\u{1}", WallTime::MIN), (" '\\\"%", at(0))]
    {
        let payload = vec![0xff; crate::record::MAX_PAYLOAD].into();
        let queue = Name::new("\u{10ffff}".repeat(16)).expect("valid");
        let key = Some(queue.clone());
        let command = Command::Schedule(NewTimeout { payload, queue, key, ..new(name, due) });
        assert_eq!(write(store, command), Answer::Scheduled(Scheduled::Created));
        let record = store.get(&id(name)).block_on().expect("get").expect("kept");
        assert_eq!((record.due, record.payload.len()), (due, crate::record::MAX_PAYLOAD));
        let (from, until) = (due, due.saturating_add(Duration::from_micros(1)));
        let listed = store.list(&Query::Times { from, until, after: None }, 9).block_on();
        assert!(listed.expect("list") == [record], "at {due:?}");
        let count = store.count_live(from, until, 9).block_on().expect("count");
        assert_eq!(count, 1, "at {due:?}");
    }
    let empty = NewTimeout { payload: [].into(), ..new("empty", at(0)) };
    write(store, Command::Schedule(empty));
    assert!(store.get(&id("empty")).block_on().expect("get").expect("kept").payload.is_empty());
}

/// The comparison with the reference hardly ever has so many deliveries of one key.
fn limits_of_deliveries_by_key(store: &dyn Store) {
    for name in ["a", "b", "c"] {
        write(store, Command::Schedule(new(name, at(0)).key("k").expect("valid")));
    }
    let claims = claim(store, enter(store));
    assert_eq!(begin(store, &claims), [Begun::Begun, Begun::Begun, Begun::Busy]);
    assert_eq!(begin(store, &claims[2..]), [Begun::Busy]);
    write(store, Command::Settle(claims[0].clone(), Settlement::Done));
    assert_eq!(begin(store, &claims[2..]), [Begun::Begun]);
}

/// Another attempt is not early. If a requeue made the first one early, that time counts.
fn attempts_after_a_step_back_of_the_clock(store: &dyn Store) {
    let worker = enter(store);
    let (due, requeued) = (at(0), at(0).saturating_sub(Duration::from_secs(9)));
    let retry = Settlement::Retry { at: WallTime::MIN, error: String::new() };
    let settle = |how| {
        let [claim] = &claim(store, worker)[..] else { panic!("one is pending") };
        write(store, Command::Settle(claim.clone(), how));
        store.get(&id("a")).block_on().expect("get").expect("kept")
    };
    write(store, Command::Schedule(new("a", due)));
    assert_eq!(settle(retry.clone()).next, due);
    settle(Settlement::Dead { error: String::new() });
    write(store, Command::Requeue(id("a"), requeued));
    assert_eq!(settle(retry).next, requeued);
    assert_eq!(settle(Settlement::Again(due)).error, None);
}

/// The time does not count, and each other part does.
fn schedules_that_change_something_or_nothing(store: &dyn Store) {
    let mut new = NewTimeout { conflict: Conflict::ReplaceChanged, ..new("a", at(0)) };
    let changes: [fn(&mut NewTimeout); 6] = [
        |_| (),
        |new| new.payload = [1].into(),
        |new| new.repeat = Repeat::every(Duration::from_secs(1)).ok(),
        |new| new.queue = Name::new("q").expect("valid"),
        |new| new.priority = Priority::High,
        |new| new.key = Name::new("k").ok(),
    ];
    let mut answer = Scheduled::Created;
    for change in changes {
        change(&mut new);
        for answer in [answer, Scheduled::Kept] {
            new.due = new.due.saturating_add(Duration::from_micros(1));
            let command = Command::Schedule(new.clone());
            assert_eq!(write(store, command), Answer::Scheduled(answer), "{new:?}");
        }
        answer = Scheduled::Replaced;
    }
}

/// A program that starts schedules its recurring timeouts again, also with a new rule.
fn a_dead_timeout_is_kept_until_it_is_requeued_or_replaced(store: &dyn Store) {
    let worker = enter(store);
    let hourly = Repeat::every(Duration::from_secs(3_600)).expect("valid");
    for name in ["a", "b"] {
        write(store, Command::Schedule(new(name, at(0)).repeat(hourly.clone())));
        let dead = Settlement::Dead { error: "why".to_owned() };
        write(store, Command::Settle(claim(store, worker).remove(0), dead));
        let record = store.get(&id(name)).block_on().expect("get");
        for conflict in [Conflict::ReplaceChanged, Conflict::Keep, Conflict::Refuse] {
            for again in [new(name, at(9)).repeat(hourly.clone()), new(name, at(9))] {
                let again = [new("c", at(9)), again].map(|new| new.conflict(conflict));
                let answers = store.write(at(0), &again.map(Command::Schedule)).block_on();
                let kept = Answer::Scheduled(Scheduled::KeptDead);
                assert_eq!(answers.expect("write")[1], kept, "{conflict:?}");
                assert_eq!(store.get(&id(name)).block_on().expect("get"), record);
            }
        }
        assert_eq!(write(store, Command::Requeue(id(name), at(9))), Answer::Requeued(true));
        let changed = new(name, at(9)).conflict(Conflict::ReplaceChanged);
        let replaced = Answer::Scheduled(Scheduled::Replaced);
        assert_eq!(write(store, Command::Schedule(changed)), replaced);
    }
}

/// A worker claims a timeout that was moved, and still holds the claim from before. One that is
/// pending gives no claim, also not for later.
fn a_void_claim_beside_a_valid_one(store: &dyn Store) {
    write(store, Command::Schedule(new("a", at(0))));
    let worker = enter(store);
    let proof = store.get(&id("a")).block_on().expect("get").expect("kept").claim();
    let is_void = || {
        let settle = |end| Command::Settle(proof.clone(), end);
        for commands in [
            vec![settle(Settlement::Done)],
            vec![settle(Settlement::Done), Command::Cancel(id("b"))],
            vec![settle(Settlement::Release)],
        ] {
            let answers = store.write(at(0), &commands).block_on().expect("write");
            assert_eq!(answers[0], Answer::Settled(false));
        }
        assert_eq!(begin(store, std::slice::from_ref(&proof)), [Begun::Void]);
    };
    is_void();
    let mut claims = claim(store, worker);
    is_void();
    write(store, Command::Reschedule(id("a"), at(0)));
    claims.extend(claim(store, worker));
    let early = at(0).saturating_sub(Duration::from_micros(1));
    let begun = store.begin(early, &claims, None).block_on().expect("begin");
    assert_eq!(begun, [Begun::Void; 2], "it is not due");
    assert_eq!(begin(store, &claims), [Begun::Void, Begun::Begun]);
    assert_eq!(begin(store, &claims), [Begun::Void; 2], "it has begun");
    assert_eq!(store.are_current(&claims).block_on().expect("current"), [false, true]);
}

/// Workers whose clocks differ a little keep to a rate, and a late call shortens no lease. After a
/// step back by an hour, permits and leases follow the new time.
fn clocks_that_differ_or_step_back(store: &dyn Store) {
    const SECOND: Duration = Duration::from_secs(1);
    let now = at(0).saturating_add(9_000 * SECOND);
    let back = now.saturating_sub(3_600 * SECOND);
    let rate = NonZeroU32::new(1_000).expect("positive");
    let permits =
        |now| store.permits(&Name::default(), now, rate, 10_000).block_on().expect("permits").0;
    let behind = now.saturating_sub(SECOND / 50);
    let given: usize = (0..20).map(|_| permits(now) + permits(behind)).sum();
    assert_eq!(given, 100, "a tenth of the rate, in one moment");
    assert_eq!([back, back.saturating_add(SECOND / 10)].map(permits), [0, 100]);
    let (queue, rate) =
        (Name::new("fast").expect("valid"), NonZeroU32::new(7_000).expect("positive"));
    let given = (0..=100).map(|number| {
        let now = now.saturating_add(SECOND / 100 * number);
        store.permits(&queue, now, rate, 10_000).block_on().expect("permits").0
    });
    assert!(given.sum::<usize>() <= 7_700, "of a second, and the tenth before it");
    assert_eq!(store.queues().block_on().expect("queues").len(), 1, "a permit adds no queue");
    let lease = 30 * SECOND;
    let worker = store.enter(now, lease, None).block_on().expect("enter");
    for (now, until) in [(now.saturating_sub(20 * SECOND), 50), (back, 30)] {
        assert!(store.renew(worker, now, lease).block_on().expect("renew"));
        if let Some(workers) = store.workers(1).block_on().expect("workers") {
            assert_eq!(workers[0].until.since(now), until * SECOND);
        }
    }
}

/// Two workers could not reach the store for longer than their leases.
fn a_late_renewal_takes_nothing(store: &dyn Store) {
    const SECOND: Duration = Duration::from_secs(1);
    let lease = 30 * SECOND;
    write(store, Command::Schedule(new("a", at(0))));
    let workers = [0, 20].map(|seconds| {
        let now = at(0).saturating_add(SECOND * seconds);
        store.enter(now, lease, None).block_on().expect("enter")
    });
    let claims = claim(store, workers[0]);
    let renew = |seconds: u32| {
        let now = at(0).saturating_add(SECOND * seconds);
        assert!(store.renew(workers[1], now, lease).block_on().expect("renew"));
    };
    renew(36);
    assert_eq!(begin(store, &claims), [Begun::Begun]);
    renew(37);
    let settle = Command::Settle(claims[0].clone(), Settlement::Done);
    assert_eq!(write(store, settle), Answer::Settled(false));
    assert!(!store.renew(workers[0], at(0), lease).block_on().expect("renew"));
}

/// A mark in an old database is no dead timeout, and a pause keeps nothing from a move.
fn what_moves_between_databases(store: &dyn Store) {
    write(store, Command::Schedule(new("a", at(0))));
    store.pause(&Name::default(), true).block_on().expect("pause");
    let worker = enter(store);
    assert_eq!(claim(store, worker), []);
    let request = ClaimRequest { paused: true, ..ClaimRequest::new(at(0), at(1)) };
    let batch = store.claim(worker, &request).block_on().expect("claim").expect("lease");
    let claim = batch.records[0].claim();
    assert_eq!(begin(store, std::slice::from_ref(&claim)), [Begun::Paused]);
    let mark = Settlement::Dead { error: MOVED.to_owned() };
    assert_eq!(write(store, Command::Settle(claim, mark)), Answer::Settled(true));
    assert_eq!(write(store, Command::Requeue(id("a"), at(0))), Answer::Requeued(false));
    let kept = Answer::Cancelled(Cancelled::NotFound);
    assert_eq!(write(store, Command::Purge(id("a"))), kept);
}

/// Reads the history as of an earlier time, which shows each attempt that was not removed.
fn old_attempts_are_removed(store: &dyn Store) {
    store.keep_history(Duration::from_micros(10));
    for (name, now) in [("a", at(0)), ("b", at(1_000))] {
        let schedules =
            (0..32).map(|number| Command::Schedule(new(&format!("{name}{number}"), at(0))));
        store.write(now, &schedules.collect::<Vec<_>>()).block_on().expect("write");
        let claims = claim(store, enter(store));
        store.begin(now, &claims, None).block_on().expect("begin");
        let settles = claims.into_iter().map(|claim| Command::Settle(claim, Settlement::Done));
        store.write(now, &settles.collect::<Vec<_>>()).block_on().expect("write");
    }
    let left = store.history(at(0), None, None, 99).block_on().expect("history");
    assert!(left.len() == 32 && left.iter().all(|left| left.id.as_str().starts_with('b')));
}

/// A timer hears of its own changes in no other way.
fn changes_are_noticed_before_their_calls_return(store: &dyn Store) {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&notices);
    let notice = Arc::new(move |_: Option<&Name>, due| told.lock().push(due));
    let weak = Arc::downgrade(&notice);
    store.listen(weak);
    let heard = |due| notices.lock().drain(..).any(|told| told <= due);
    let worker = enter(store);
    for call in ["retry", "release", "cancel", "keep_only", "resume", "leave"] {
        write(store, Command::Schedule(new("a", at(0))));
        assert!(heard(at(0)), "no notice of a schedule");
        let claims = claim(store, worker);
        begin(store, &claims);
        let settle = |how| write(store, Command::Settle(claims[0].clone(), how));
        let mut due = WallTime::MIN;
        heard(due);
        match call {
            "retry" => {
                due = at(0);
                settle(Settlement::Retry { at: due, error: String::new() });
            }
            "release" => _ = settle(Settlement::Release),
            "cancel" => _ = write(store, Command::Cancel(id("a"))),
            "keep_only" => _ = store.keep_only(worker, &[]).block_on().expect("keep"),
            "resume" => store.pause(&Name::default(), false).block_on().expect("resume"),
            _ => store.leave(worker).block_on().expect("leave"),
        }
        assert!(heard(due), "no notice of a {call}");
    }
}

/// Random operations on a store and on the reference.
struct Comparison<'a> {
    rng: Rng,
    store: &'a dyn Store,
    reference: SqliteStore,
    now: WallTime,
    workers: Vec<(WorkerId, WorkerId)>,
    /// Claims of the store, and of the reference.
    claims: Vec<(Claim, Claim)>,
}

fn agrees_with_the_reference(store: &dyn Store, seed: u64, steps: usize) {
    let mut comparison = Comparison {
        rng: Rng::with_seed(seed),
        store,
        reference: SqliteStore::in_memory(),
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
    /// Makes a call to both stores, and compares the answers.
    #[track_caller]
    fn same<R: PartialEq + fmt::Debug>(&self, call: impl Fn(&dyn Store) -> StoreResult<R>) -> R {
        self.same_of((), (), |store, ()| call(store))
    }

    /// The same with what is another value in each store, such as tokens.
    #[track_caller]
    fn same_of<T: Clone + fmt::Debug, R: PartialEq + fmt::Debug>(
        &self,
        ours: T,
        theirs: T,
        call: impl Fn(&dyn Store, T) -> StoreResult<R>,
    ) -> R {
        let answer = call(self.store, ours.clone()).expect("the store answers");
        assert_eq!(answer, call(&self.reference, theirs).expect("memory"), "{ours:?}");
        answer
    }

    fn step(&mut self) {
        if self.rng.u8(..4) == 0 {
            self.now = self.now.saturating_add(self.span(8));
        }
        match self.rng.u8(..13) {
            0..6 => self.write(),
            6 | 7 => self.claim(),
            8 | 9 => self.begin(),
            10 => self.work(),
            11 => self.manage(),
            _ => self.list(),
        }
    }

    fn time(&mut self) -> WallTime {
        self.now.saturating_add(self.span(20)).saturating_sub(Duration::from_micros(300))
    }

    /// Few lengths, so that times are often equal, or differ by a microsecond.
    fn span(&mut self, lengths: u64) -> Duration {
        let more = u64::from(self.rng.u8(..4) == 0);
        Duration::from_micros(50 * self.rng.u64(..lengths) + more)
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
        self.same_of(ours, theirs, |store, commands| store.write(self.now, &commands).block_on());
    }

    fn command(&mut self) -> (Command, Command) {
        let (id, time) = (self.id(), self.time());
        let command = match self.rng.u8(..11) {
            0..4 => {
                let payload = vec![7; [0, 19, self.rng.usize(..20)][self.rng.usize(..3)]].into();
                let conflict =
                    [Conflict::Replace, Conflict::Refuse, Conflict::Keep, Conflict::ReplaceChanged]
                        [self.rng.usize(..4)];
                let second = Repeat::every(Duration::from_secs(1)).ok();
                let repeat = second.filter(|_| self.rng.u8(..4) == 0);
                let (queue, key) = (self.queue(), self.key());
                let priority = Priority::ALL[self.rng.usize(..3)];
                let new =
                    NewTimeout { id, due: time, payload, repeat, conflict, queue, priority, key };
                Command::Schedule(new)
            }
            4 => Command::Cancel(id),
            5 => Command::Reschedule(id, time),
            6 => Command::Requeue(id, time),
            7 => Command::Purge(id),
            _ if self.claims.is_empty() => Command::Cancel(id),
            _ => {
                let (our, their) = self.claims[self.rng.usize(..self.claims.len())].clone();
                let error = format!("error {}", self.rng.u8(..));
                let settlement = match self.rng.u8(..7) {
                    0 => Settlement::Retry { at: time, error },
                    1 => Settlement::Dead { error },
                    2 => Settlement::Again(time),
                    3 => Settlement::Release,
                    4 => Settlement::Leave { at: time, error },
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
        let (limit, max_bytes) = (self.rng.usize(1..6), self.rng.usize(1..60));
        let request = ClaimRequest::new(self.now, self.time());
        let (queue, busy) = (self.queue(), self.key().into_iter().collect());
        let (begins, lapse, cron) = (self.rng.bool(), self.rng.bool(), self.rng.bool());
        let request =
            ClaimRequest { from, limit, max_bytes, cron, queue, busy, begins, lapse, ..request };
        let batch = self.store.claim(our, &request).block_on().expect("claim");
        let expected = self.reference.claim(their, &request).block_on().expect("claim");
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
        let limit = NonZeroUsize::new(self.rng.usize(..3));
        self.same_of(ours.clone(), theirs.clone(), |store, claims| {
            store.are_current(&claims).block_on()
        });
        self.same_of(ours, theirs, |store, claims| {
            store.begin(self.now, &claims, limit).block_on()
        });
    }

    fn queue(&mut self) -> Name {
        Name::new(["", "q"][self.rng.usize(..2)]).expect("valid")
    }

    fn key(&mut self) -> Option<Name> {
        let key = ["k", "l"][self.rng.usize(..2)];
        Name::new(key).ok().filter(|_| self.rng.bool())
    }

    fn manage(&mut self) {
        let (queue, rate) = (self.queue(), NonZeroU32::MIN.saturating_add(self.rng.u32(..9_000)));
        if self.rng.u8(..4) == 0 {
            let is_paused = self.rng.u8(..4) == 0;
            self.same(|store| store.pause(&queue, is_paused).block_on());
        }
        let (now, most) = (self.now, self.rng.usize(..9));
        self.same(|store| store.permits(&queue, now, rate, most).block_on());
        if self.rng.u8(..4) == 0 {
            let keep = Duration::from_micros([0, 400, 2_000][self.rng.usize(..3)]);
            self.store.keep_history(keep);
            self.reference.keep_history(keep);
        }
        let (id, limit) = (self.id(), self.rng.usize(..9));
        for id in [None, Some(&id)] {
            let attempts = |store: &dyn Store| store.history(now, id, None, 9_999).block_on();
            self.same(|store| attempts(store).map(|history| without_numbers(&history)));
            let history = attempts(self.store).expect("history");
            assert!(history.is_sorted_by(|a, b| a.number > b.number));
            let before = history.first().map(|first| first.number);
            let rest = self.store.history(now, id, before, limit).block_on().expect("history");
            assert!(rest.iter().eq(history.iter().skip(1).take(limit)), "{rest:?}");
        }
        self.same(|store| store.queues().block_on());
    }

    fn work(&mut self) {
        let lease = self.span(40);
        match self.rng.u8(..5) {
            0 => {
                let name = [None, None, Some("one"), Some("two")][self.rng.usize(..4)];
                let our = self.store.enter(self.now, lease, name).block_on().expect("enter");
                self.workers.push((
                    our,
                    self.reference.enter(self.now, lease, name).block_on().expect("enter"),
                ));
            }
            1 if self.workers.len() > 2 => {
                let (our, their) = self.workers.remove(self.rng.usize(..self.workers.len()));
                self.same_of(our, their, |store, worker| store.leave(worker).block_on());
            }
            2 => {
                let Some(&(our, their)) = self.rng.choice(&self.workers) else { return };
                let kept = self.rng.usize(..=self.claims.len());
                let tokens =
                    self.claims[kept..].iter().map(|(our, their)| (our.token, their.token));
                let (ours, theirs): (Vec<_>, Vec<_>) = tokens.unzip();
                let keep = |store: &dyn Store, (worker, tokens): (_, Vec<_>)| {
                    store.keep_only(worker, &tokens).block_on()
                };
                self.same_of((our, ours), (their, theirs), keep);
            }
            _ => {
                let Some(&(our, their)) = self.rng.choice(&self.workers) else { return };
                self.same_of(our, their, |store, worker| {
                    store.renew(worker, self.now, lease).block_on()
                });
            }
        }
    }

    fn list(&mut self) {
        let (from, until) = (self.time(), self.time());
        let after = Some((self.time(), self.id()));
        let query = match self.rng.u8(..3) {
            0 => Query::Times { from, until, after: after.filter(|_| self.rng.bool()) },
            1 => {
                // `_` and `%` stand for themselves: a prefix is no pattern.
                let prefixes = ["", "b/", "b/1", "b", "_/", "%"];
                let prefix = prefixes[self.rng.usize(..prefixes.len())].to_owned();
                let after = after.map(|after| after.1).filter(|_| self.rng.bool());
                Query::Prefix { prefix, after }
            }
            _ => Query::Dead { after: after.filter(|_| self.rng.bool()) },
        };
        self.same(|store| store.list(&query, 5).block_on().map(|list| without_tokens(&list)));
        let id = self.id();
        self.same(|store| store.get(&id).block_on().map(|found| without_tokens(found.as_slice())));
    }

    fn compare(&mut self) {
        let all = Query::Prefix { prefix: String::new(), after: None };
        let list = |store: &dyn Store| store.list(&all, usize::MAX >> 1).block_on();
        self.same(|store| list(store).map(|list| without_tokens(&list)));
        self.same(|store| store.count().block_on());
        let mut range = (self.time(), self.time());
        if self.rng.bool() {
            range = (WallTime::MIN, WallTime::MAX);
        }
        let (queues, limit) = (self.rng.usize(..3), self.rng.usize(..40));
        for limit in [usize::MAX, limit] {
            self.same(|store| store.count_live(range.0, range.1, limit).block_on());
        }
        let (states, records) =
            (self.same(|store| store.queues().block_on()), list(self.store).expect("list"));
        for (queues, limit) in [(usize::MAX, usize::MAX), (queues, limit.max(1))] {
            let seen = self.same(|store| store.overview(self.now, queues, limit).block_on());
            let states = states.iter().take(queues).cloned();
            let count = |queue| overview_of(queue, &records, self.now, limit);
            assert_eq!(seen, states.map(count).collect::<Vec<_>>());
        }
        let workers = |store: &dyn Store| store.workers(9).block_on().expect("workers");
        let leases = |workers: Vec<WorkerLease>| {
            let lease = |other: WorkerLease| WorkerLease { worker: WorkerId(0), ..other };
            workers.into_iter().map(lease).collect::<Vec<_>>()
        };
        if let (Some(ours), Some(theirs)) = (workers(self.store), workers(&self.reference)) {
            assert_eq!(leases(ours), leases(theirs));
        }
    }
}

fn overview_of(queue: QueueState, all: &[Record], now: WallTime, limit: usize) -> QueueOverview {
    let records = all.iter().filter(|record| record.queue == queue.name);
    let count = |fits: &dyn Fn(&Record) -> bool| {
        records.clone().filter(|record| fits(record)).count().min(limit)
    };
    let is_due = |record: &Record| record.state != State::Dead && record.next <= now;
    let waits = |record: &&Record| is_due(record) && record.state != State::Delivering;
    QueueOverview {
        live: count(&|record| record.state != State::Dead),
        due: count(&is_due),
        delivering: count(&|record| record.state == State::Delivering),
        dead: count(&|record| record.state == State::Dead),
        oldest_waiting: records.clone().filter(waits).map(|record| record.next).min(),
        queue,
    }
}

/// Commands of one transaction may end in any order.
fn without_numbers(attempts: &[Attempt]) -> Vec<String> {
    let text = |attempt: &Attempt| format!("{:?}", Attempt { number: 0, ..attempt.clone() });
    let mut texts: Vec<_> = attempts.iter().map(text).collect();
    texts.sort_unstable();
    texts
}

fn without_tokens(records: &[Record]) -> Vec<Record> {
    records.iter().map(|record| Record { token: 0, ..record.clone() }).collect()
}
