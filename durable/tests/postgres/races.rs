//! `cancel`, `reschedule` and `requeue` race with deliveries on real threads. A model knows which
//! answers, deliveries and last state fit together.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Mutex};

use delaywheel_durable::{Rescheduled, SqliteStore};
use fastrand::Rng;

use super::*;

/// What became of a timeout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Outcome {
    cancel: Option<&'static str>,
    reschedule: Option<&'static str>,
    requeue: Option<bool>,
    /// For each delivery: whether its time is that of the reschedule, and whether the timeout was
    /// dead before.
    deliveries: Vec<(bool, bool)>,
    state: Option<&'static str>,
}

/// Follows every order in which the calls and the steps of deliveries can happen.
fn explore(now: &Outcome, is_moved: bool, dies: bool, found: &mut BTreeSet<Outcome>) {
    let is_requeued = now.requeue == Some(true);
    let mut go = |next: Outcome, is_moved: bool| explore(&next, is_moved, dies, found);
    match now.state {
        Some("pending") => {
            let mut next = Outcome { state: Some("delivering"), ..now.clone() };
            next.deliveries.push((is_moved, is_requeued));
            go(next, is_moved);
        }
        Some("delivering") => {
            let state = (dies && !is_requeued).then_some("dead");
            go(Outcome { state, ..now.clone() }, is_moved);
        }
        _ => (),
    }
    if now.cancel.is_none() {
        let cancel = match now.state {
            None => "not found",
            Some("delivering") => "delivering",
            Some(_) => "cancelled",
        };
        go(Outcome { cancel: Some(cancel), state: None, ..now.clone() }, is_moved);
    }
    if now.reschedule.is_none() {
        let reschedule = match now.state {
            Some("pending") => "rescheduled",
            Some("delivering") => "delivering",
            _ => "not found",
        };
        let next = Outcome { reschedule: Some(reschedule), ..now.clone() };
        go(next, is_moved || reschedule == "rescheduled");
    }
    if now.requeue.is_none() {
        let is_dead = now.state == Some("dead");
        let state = if is_dead { Some("pending") } else { now.state };
        go(Outcome { requeue: Some(is_dead), state, ..now.clone() }, is_moved);
    }
    let is_called = now.cancel.is_some() && now.reschedule.is_some() && now.requeue.is_some();
    if is_called && matches!(now.state, None | Some("dead")) {
        found.insert(now.clone());
    }
}

fn outcomes(dies: bool) -> BTreeSet<Outcome> {
    let start = Outcome {
        cancel: None,
        reschedule: None,
        requeue: None,
        deliveries: Vec::new(),
        state: Some("pending"),
    };
    let mut found = BTreeSet::new();
    explore(&start, false, dies, &mut found);
    found
}

const COUNT: usize = 99;

/// Half of the timeouts are dead after their first delivery.
fn name(number: usize) -> String {
    format!("{}/{number:03}", if number.is_multiple_of(2) { "lives" } else { "dies" })
}

/// Lets other threads go first, or not.
fn yield_sometimes(rng: &mut Rng) {
    for _ in 0..rng.u8(..40) {
        thread::yield_now();
    }
}

fn race(store: impl Store) {
    let deliveries = Arc::new(Mutex::new(BTreeMap::<String, Vec<_>>::new()));
    let noted = Arc::clone(&deliveries);
    let handle = move |delivery: Delivery| {
        let (id, was_dead) = (delivery.id().to_string(), delivery.record().error.is_some());
        let is_moved = delivery.due().as_micros() % 2 == 1;
        let dies = id.starts_with("dies") && !was_dead;
        noted.lock().expect("not poisoned").entry(id).or_default().push((is_moved, was_dead));
        if dies { delivery.dead("the first time") } else { delivery.acknowledge() }
    };
    let timer = DurableTimer::builder(store).lease(10 * LONG).build_with(handle).expect("start");
    // The times of a schedule are even, and those of a reschedule are odd.
    let time = |rng: &mut Rng, odd| {
        let micros = timer.now().as_micros() / 2 * 2 + rng.u64(..1_000) * 2 + odd;
        WallTime::from_micros(micros).expect("in range")
    };
    let cancel = |id: &str| match timer.cancel(id).wait().expect("cancel") {
        Cancelled::Cancelled => "cancelled",
        Cancelled::Delivering => "delivering",
        _ => "not found",
    };
    let reschedule = |id: &str, due| match timer.reschedule(id, due).wait().expect("reschedule") {
        Rescheduled::Rescheduled => "rescheduled",
        Rescheduled::Delivering => "delivering",
        _ => "not found",
    };
    let mut rng = Rng::with_seed(1);
    let mut answers = BTreeMap::new();
    for number in 0..COUNT {
        let id = name(number);
        timer.schedule(&id, time(&mut rng, 0), b"").wait().expect("schedule");
        let (mut canceller, mut mover) = (rng.fork(), rng.fork());
        let is_late = number.is_multiple_of(3);
        let all = thread::scope(|scope| {
            let cancel = scope.spawn(|| {
                yield_sometimes(&mut canceller);
                (!is_late).then(|| cancel(&id))
            });
            let reschedule = scope.spawn(|| {
                yield_sometimes(&mut mover);
                reschedule(&id, time(&mut mover, 1))
            });
            // A call that finds no dead timeout changes nothing.
            let requeue = (0..3).any(|_| timer.requeue(&id, timer.now()).wait().expect("requeue"));
            (cancel.join().expect("cancel"), reschedule.join().expect("reschedule"), requeue)
        });
        answers.insert(id, all);
    }
    until(|| timer.count().wait().expect("count").live == 0);
    for (id, (answer, _, _)) in &mut answers {
        answer.get_or_insert_with(|| cancel(id));
    }
    let left = timer.list(&Query::Dead { after: None }, COUNT).wait().expect("list");
    let left: BTreeSet<_> = left.iter().map(|record| record.id.as_str()).collect();
    assert!(timer.finish(LONG).wait().expect("finish"));
    let deliveries = deliveries.lock().expect("not poisoned");
    let mut seen = BTreeSet::new();
    for (id, (cancel, reschedule, requeue)) in answers {
        let outcome = Outcome {
            cancel,
            reschedule: Some(reschedule),
            requeue: Some(requeue),
            deliveries: deliveries.get(&id).cloned().unwrap_or_default(),
            state: left.contains(id.as_str()).then_some("dead"),
        };
        assert!(outcomes(id.starts_with("dies")).contains(&outcome), "{id}: {outcome:?}");
        seen.insert(outcome);
    }
    println!("{} outcomes", seen.len());
}

#[test]
fn calls_that_race_with_deliveries_get_true_answers() {
    let folder = tempfile::tempdir().expect("folder");
    race(SqliteStore::open(folder.path().join("timeouts.db")).expect("open"));
    let Some(server) = Server::start() else { return };
    race(connect(&server));
}

/// The server runs the statement that begins a delivery, and has not locked its row yet, when the
/// reschedule commits.
#[test]
fn a_delivery_does_not_begin_after_its_timeout_was_moved() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let a = put(&store, "a", now);
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let later = now.saturating_add(LONG);
    let claims = claim(&store, worker, now);
    client.batch_execute(STALL).expect("stall");
    let call = || store.begin(now, &claims, None).block_on().expect("begin");
    let begun = during(&mut client, call, |_| {
        let answers = store.write(now, &[Command::Reschedule(a.clone(), later)]).block_on();
        assert_eq!(answers.expect("write"), [Answer::Rescheduled(Rescheduled::Rescheduled)]);
    });
    assert_ne!(begun, [Begun::Begun]);
    let record = store.get(&a).block_on().expect("get").expect("a record");
    assert_eq!((record.state, record.next), (State::Pending, later));
    assert_eq!(call(), [Begun::Void]);
}

/// Two processes begin deliveries of two queues. Each queue and its key make the same text. Another
/// schema of the database has one of them as well, and only a third process begins the same one.
#[test]
fn a_begin_makes_no_key_of_another_queue_or_schema_busy() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let schema = open(&server.parameters(), "other");
    let stores = [
        (store, "a", "", "b c"),
        (connect(&server), "b", " b", "c"),
        (connect(&server), "c", "", "b c"),
        (schema, "a", "", "b c"),
    ];
    let begins = stores.map(|(store, id, queue, key)| {
        let queue = Name::new(queue).expect("valid");
        let new = NewTimeout::new(id, now, b"").and_then(|new| new.key(key)).expect("valid");
        let new = new.queue(queue.as_str()).expect("valid");
        store.write(now, &[Command::Schedule(new)]).block_on().expect("write");
        let worker = store.enter(now, LONG, None).block_on().expect("enter");
        let mut request = ClaimRequest::new(now, now.saturating_add(SECOND));
        request.queue = queue;
        let batch = store.claim(worker, &request).block_on().expect("claim").expect("lease");
        let claim = batch.records[0].claim();
        move || store.begin(now, &[claim], NonZeroUsize::new(1)).block_on().expect("begin")
    });
    client.batch_execute(STALL).expect("stall");
    thread::scope(|scope| {
        let [first, second, same, other_schema] = begins;
        let begins = [first, second, same].into_iter().zip(1..).map(|(begin, number)| {
            let begin = scope.spawn(begin);
            until(|| integer(&mut client, STALLED) == number);
            begin
        });
        let begins: Vec<_> = begins.collect();
        assert_eq!(other_schema(), [Begun::Begun]);
        client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
        let answers = begins.into_iter().map(|begin| begin.join().expect("no panic"));
        let expected = [Begun::Begun, Begun::Begun, Begun::Busy].map(|answer| vec![answer]);
        assert_eq!(answers.collect::<Vec<_>>(), expected);
    });
}

/// The server runs the statement that begins a delivery when SQL of the user changes its payload.
#[test]
fn a_delivery_whose_payload_changes_meanwhile_begins_then_or_at_the_next_try() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    put(&store, "a", now);
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let claims = claim(&store, worker, now);
    client.batch_execute(STALL).expect("stall");
    let call = || store.begin(now, &claims, None).block_on().expect("begin");
    let mut begun = during(&mut client, call, |client| {
        client.batch_execute("UPDATE delaywheel.timeouts SET payload = 'x'").expect("update");
    });
    if begun == [Begun::Locked] {
        begun = call();
    }
    assert_eq!(begun, [Begun::Begun]);
}

/// The server runs the claim, and has read no row yet, when the reschedule commits.
#[test]
fn a_claim_or_the_next_one_has_a_timeout_that_moves_meanwhile_at_its_new_time() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let a = put(&store, "a", now);
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let (moved, later) = (now.saturating_add(SECOND), now.saturating_add(LONG));
    let claim = || {
        let batch = store.claim(worker, &ClaimRequest::new(now, later)).block_on().expect("claim");
        batch.expect("lease").records
    };
    client.batch_execute(STALL).expect("stall");
    let mut claimed = during(&mut client, claim, |_| {
        let answers = store.write(now, &[Command::Reschedule(a.clone(), moved)]).block_on();
        assert_eq!(answers.expect("write"), [Answer::Rescheduled(Rescheduled::Rescheduled)]);
    });
    claimed.extend(claim());
    assert_eq!(claimed.iter().map(|record| record.next).collect::<Vec<_>>(), [moved]);
}

/// There is a timeout of the id at every moment.
#[test]
fn a_call_of_sql_finds_a_timeout_that_another_transaction_replaces() {
    let Some((server, store, _, _)) = stored() else { return };
    for call in ["cancel('a')", "reschedule('a', now())"] {
        let (mut user, mut other, mut watcher) =
            (client(&server), client(&server), client(&server));
        let schedule = "SELECT delaywheel.schedule('a', now() + interval '1 hour', '')";
        user.batch_execute(schedule).expect("schedule");
        let mut replace = other.transaction().expect("begin");
        replace.batch_execute("DELETE FROM delaywheel.timeouts").expect("acknowledge");
        replace.batch_execute(schedule).expect("schedule");
        let answer = thread::scope(|scope| {
            let call = scope.spawn(|| {
                let row = user.query_one(&format!("SELECT delaywheel.{call}"), &[]);
                row.expect("call").get::<_, String>(0)
            });
            wait_for(&mut watcher, WAITS);
            replace.commit().expect("commit");
            call.join().expect("no panic")
        });
        assert!(["cancelled", "rescheduled"].contains(&&*answer), "{answer}");
    }
    let record =
        store.get(&"a".parse().expect("valid")).block_on().expect("get").expect("a record");
    assert!(record.due <= store.now());
}

/// The server has begun the statement, and has changed no row yet, when a transaction replaces both
/// timeouts.
#[test]
fn commands_find_a_timeout_that_another_transaction_replaces() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let schedule = "
        SELECT delaywheel.schedule(id, now() + interval '1 hour', '') FROM unnest('{a,b}'::text[]) id;";
    let stall = "
        CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(1);
            RETURN NULL;
        END $$;
        CREATE TRIGGER stall BEFORE INSERT ON delaywheel.timeouts
            WHEN (current_setting('application_name') = 'delaywheel') EXECUTE FUNCTION stall();
        SELECT pg_advisory_lock(1);";
    client.batch_execute(&format!("{schedule} {stall}")).expect("stall");
    let id = |id: &str| TimeoutId::new(id).expect("valid");
    let commands = [Command::Cancel(id("a")), Command::Reschedule(id("b"), now)];
    let write = || store.write(now, &commands).block_on().expect("write");
    let answers = during(&mut client, write, |client| {
        let replace = format!("BEGIN; DELETE FROM delaywheel.timeouts; {schedule} COMMIT;");
        client.batch_execute(&replace).expect("replace");
    });
    let cancelled = Answer::Cancelled(Cancelled::Cancelled);
    assert_eq!(answers, [cancelled, Answer::Rescheduled(Rescheduled::Rescheduled)]);
    assert_eq!(store.get(&id("a")).block_on().expect("get"), None);
    assert_eq!(store.get(&id("b")).block_on().expect("get").expect("kept").next, now);
}
