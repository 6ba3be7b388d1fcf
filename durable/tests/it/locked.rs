//! Records that other transactions have locked, and a store that is closed.

use std::sync::{Mutex, atomic::AtomicBool};

use super::{
    simulation::{Call, RemoteStore},
    *,
};

const FAR: Duration = Duration::from_secs(600);

fn locked() -> StoreResult<()> {
    Err(StoreError::new(StoreErrorReason::Locked))
}

/// Keeps the thread that commits in a transaction, so that later commands become one group.
struct Gate {
    entered: mpsc::Receiver<()>,
    open: mpsc::Sender<()>,
    deliveries: mpsc::Receiver<Delivery>,
}

impl Gate {
    /// Submits commands while another group is written, so that they become one.
    fn group<R>(&self, timer: &DurableTimer, submit: impl FnOnce() -> R) -> R {
        let first = timer.schedule("gate", FAR, b"");
        self.entered.recv().expect("the commit waits");
        let submitted = submit();
        self.open.send(()).expect("the commit waits");
        first.wait().expect("schedule");
        submitted
    }
}

/// Returns a timer whose deliveries the test takes. `hook` sees commands but for those of the gate.
fn timer(
    store: &SqliteStore,
    hook: impl Fn(&[Command]) -> StoreResult<()> + Send + Sync + 'static,
) -> (DurableTimer, Gate) {
    let ((enter, entered), (open, opened)) = (mpsc::channel(), mpsc::channel());
    let opened = Mutex::new(opened);
    let hooked = RemoteStore::hooked(store, move |call| {
        let commands = match call {
            Call::Write(commands) => commands,
            // As while the table is locked.
            Call::Locked => return locked(),
            _ => return Ok(()),
        };
        if commands[0].id().as_str() != "gate" {
            return hook(commands);
        }
        enter.send(()).expect("the test waits");
        opened.lock().expect("not poisoned").recv().expect("the test goes on");
        Ok(())
    });
    let (sender, deliveries) = mpsc::channel();
    let handler = move |delivery| drop(sender.send(delivery));
    let timer = DurableTimer::builder(hooked).build_with(handler).expect("start");
    (timer, Gate { entered, open, deliveries })
}

/// The record is locked for one try.
#[test]
fn commands_of_one_timeout_keep_their_order_in_virtual_time() {
    let tries = AtomicUsize::new(0);
    let hooked = RemoteStore::hooked(&SqliteStore::in_memory(), move |call| match call {
        Call::Write(_) if tries.fetch_add(1, SeqCst) == 0 => locked(),
        _ => Ok(()),
    });
    let clock = ManualClock::new();
    let timer = acknowledging(hooked, &clock);
    let (old, new) = (timer.schedule("a", FAR, b"old"), timer.schedule("a", FAR, b"new"));
    clock.advance(Duration::ZERO);
    assert_eq!(old.wait().expect("schedule"), Scheduled::Created);
    assert_eq!(new.wait().expect("schedule"), Scheduled::Replaced);
}

/// The records are locked until the group and each half were tried.
#[test]
fn a_batch_keeps_its_place_when_commands_of_its_timeouts_wait_apart() {
    let (store, tries) = (SqliteStore::in_memory(), AtomicUsize::new(0));
    let (timer, gate) = timer(&store, move |_| match tries.fetch_add(1, SeqCst) {
        1..4 => locked(),
        _ => Ok(()),
    });
    timer.schedule("a", FAR, b"old").wait().expect("schedule");
    let (start, due) = (Instant::now(), timer.now().saturating_add(FAR));
    let new = |id| NewTimeout::new(id, due, b"new").expect("valid");
    let (cancel, old, batch) = gate.group(&timer, || {
        let batch = ["a", "b"].map(new).into();
        (timer.cancel("a"), timer.schedule("b", FAR, b"old"), timer.schedule_batch(batch))
    });
    assert_eq!(cancel.wait().expect("cancel"), Cancelled::Cancelled);
    old.wait().expect("schedule");
    batch.wait().expect("schedule");
    assert!(start.elapsed() >= Duration::from_millis(200), "it is tried again after a while");
    for id in ["a", "b"] {
        assert_eq!(&*timer.get(id).wait().expect("get").expect("kept").payload, b"new");
    }
}

/// However many they are. Refused ones are answered, and no try of theirs is left. Each try of a
/// locked one takes as long as the store waits for a lock.
#[test]
fn commands_of_a_group_that_fail_delay_its_others_for_a_few_tries() {
    use StoreErrorReason::{Locked, Refused};
    for (reason, bad, most) in [(Refused, 9, 50), (Locked, 64, 16)] {
        let (is_over, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&tries));
        let (timer, gate) = timer(&SqliteStore::in_memory(), move |commands| {
            // It tries locked ones that were set aside.
            let is_aside = thread::current().name() == Some("delaywheel-locked");
            count.fetch_add(usize::from(reason == Refused || !is_aside), SeqCst);
            let is_bad = commands.iter().any(|command| command.id().as_str().starts_with("bad"));
            if is_bad && !over.load(SeqCst) { Err(StoreError::new(reason)) } else { Ok(()) }
        });
        let good = (0..100).map(|number| format!("good{number}"));
        let ids = (0..bad).map(|number| format!("bad{number}")).chain(good);
        let mut bad_ones =
            gate.group(&timer, || ids.map(|id| timer.schedule(id, FAR, b"")).collect::<Vec<_>>());
        for good in bad_ones.split_off(bad) {
            good.wait().expect("schedule");
        }
        assert!(tries.load(SeqCst) < most, "{tries:?} tries, {reason:?}");
        is_over.store(true, SeqCst);
        for bad in bad_ones {
            assert_eq!(bad.wait().is_ok(), reason == Locked);
        }
    }
}

/// The page of a row is damaged, or a trigger of the user fails.
#[test]
fn a_settlement_that_fails_for_its_record_fails_and_stops_no_other_command() {
    for reason in [StoreErrorReason::Other, StoreErrorReason::Corrupt] {
        let is_bad = Arc::new(AtomicBool::new(true));
        let bad = Arc::clone(&is_bad);
        let (timer, gate) = timer(&SqliteStore::in_memory(), move |commands| {
            let is_meant = |command: &Command| matches!(command, Command::Settle(claim, _) if claim.id.as_str() == "bad");
            let fails = bad.load(SeqCst) && commands.iter().any(is_meant);
            if fails { Err(StoreError::new(reason)) } else { Ok(()) }
        });
        for id in ["bad", "good"] {
            timer.schedule(id, Duration::ZERO, b"").wait().expect("schedule");
        }
        let deliveries: Vec<_> = gate.deliveries.iter().take(2).collect();
        let other = gate.group(&timer, || {
            deliveries.into_iter().for_each(Delivery::acknowledge);
            timer.schedule("other", FAR, b"")
        });
        other.wait().expect("schedule");
        while timer.get("good").wait().expect("get").is_some() {
            thread::yield_now();
        }
        // The settlement is tried again and again.
        let errors = timer.stats().store_errors;
        while timer.stats().store_errors < errors + 2 {
            timer.schedule("c", FAR, b"").wait().expect("schedule");
        }
        is_bad.store(false, SeqCst);
        assert!(timer.finish(FAR).wait().expect("finish"));
    }
}

/// Such as a lock of their table, or a statement that must be prepared again. Alone, they would be
/// written long after it.
#[test]
fn settlements_are_written_together_again_after_an_error_of_none_of_them() {
    use StoreErrorReason::{Locked, Other, Unavailable};
    for (reason, expected) in [(Locked, 3), (Other, 3), (Unavailable, 2)] {
        let writes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&writes);
        let (timer, gate) = timer(&SqliteStore::in_memory(), move |commands| match commands {
            [Command::Settle(..), _, ..] => {
                let is_first = count.fetch_add(1, SeqCst) == 0;
                if is_first { Err(StoreError::new(reason)) } else { Ok(()) }
            }
            [Command::Settle(..)] => panic!("it is alone"),
            _ => Ok(()),
        });
        let now = timer.now();
        let new = |id: u32| NewTimeout::new(id.to_string(), now, b"").expect("valid");
        timer.schedule_batch((0..64).map(new).collect()).wait().expect("schedule");
        let deliveries: Vec<_> = gate.deliveries.iter().take(64).collect();
        gate.group(&timer, || deliveries.into_iter().for_each(Delivery::acknowledge));
        while timer.count().wait().expect("count").live > 1 {
            thread::yield_now();
        }
        assert_eq!(writes.load(SeqCst), expected, "{reason:?}");
    }
}

/// One half of a group cannot be written because the store cannot be reached for a moment.
#[test]
fn a_command_does_not_pass_a_settlement_of_its_timeout_that_is_tried_again() {
    let tries = AtomicUsize::new(0);
    let (timer, gate) = timer(&SqliteStore::in_memory(), move |commands| {
        if !matches!(commands, [_, _, ..]) {
            return Ok(());
        }
        match tries.fetch_add(1, SeqCst) {
            0 => Err(StoreError::new(StoreErrorReason::Refused)),
            1 => Err(StoreError::new(StoreErrorReason::Unavailable)),
            _ => Ok(()),
        }
    });
    for id in ["a", "b"] {
        timer.schedule(id, Duration::ZERO, b"").wait().expect("schedule");
    }
    let deliveries: Vec<_> = gate.deliveries.iter().take(2).collect();
    let new = NewTimeout::new("a", timer.now().saturating_add(FAR), b"").expect("valid");
    let (again, other) = gate.group(&timer, || {
        deliveries.into_iter().for_each(Delivery::acknowledge);
        (timer.schedule_new(new.conflict(Conflict::Refuse)), timer.cancel("none"))
    });
    assert_eq!(again.wait().expect("schedule"), Scheduled::Created);
    other.wait().expect("cancel");
}

/// The server refuses three tries of a call because of a lock, or does not answer.
#[test]
fn a_claim_or_begin_that_fails_voids_no_delivery() {
    use StoreErrorReason::{Locked, OutcomeUnknown, Unavailable};
    let reasons = [Locked, Unavailable, OutcomeUnknown];
    for (reason, fails_at_begin) in reasons.into_iter().flat_map(|r| [(r, false), (r, true)]) {
        let (store, clock) = (SqliteStore::in_memory(), ManualClock::new());
        let failures = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&failures);
        let hooked = RemoteStore::hooked(&store, move |call| {
            let is_meant =
                matches!((call, fails_at_begin), (Call::Claim, false) | (Call::Begin, true));
            let fails = |left: usize| left.checked_sub(1).filter(|_| is_meant);
            let failed = left.fetch_update(SeqCst, SeqCst, fails);
            failed.map_or(Ok(()), |_| Err(StoreError::new(reason)))
        });
        let (timer, deliveries) = crate::timer::held(DurableTimer::builder(hooked), &clock);
        timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
        clock.advance(Duration::ZERO);
        let first = deliveries.try_recv().expect("delivery");
        failures.store(3, SeqCst);
        timer.schedule("b", Duration::ZERO, b"").wait().expect("schedule");
        clock.advance(Duration::from_secs(2));
        let second = deliveries.try_recv().expect("delivery");
        assert_eq!((second.id().as_str(), second.attempt()), ("b", 1));
        assert!(first.is_current() && deliveries.try_recv().is_err(), "both leases are valid");
        assert_eq!((failures.load(SeqCst), timer.stats().store_errors), (0, 3));
    }
}

/// Such as one whose pool of connections its owner has closed.
#[test]
fn a_timer_on_a_closed_store_ends_though_its_deliveries_cannot_be_settled() {
    let hooked = RemoteStore::hooked(&SqliteStore::in_memory(), |call| match call {
        Call::Write([Command::Settle(..)]) => Err(StoreError::new(StoreErrorReason::Closed)),
        _ => Ok(()),
    });
    let clock = ManualClock::new();
    let (timer, deliveries) = crate::timer::held(DurableTimer::builder(hooked), &clock);
    for (id, delay) in [("a", Duration::ZERO), ("held", Duration::from_secs(9))] {
        timer.schedule(id, delay, b"").wait().expect("schedule");
    }
    clock.advance(Duration::ZERO);
    let delivery = deliveries.try_recv().expect("delivery");
    assert!(!timer.finish(Duration::ZERO).wait().expect("finish"), "it is under way");
    delivery.acknowledge();
    assert!(timer.finish(Duration::ZERO).wait().expect("finish"));
}

/// One command is being tried when the timer ends, and another one waits behind it.
#[test]
fn commands_of_locked_records_are_answered_when_their_timer_ends() {
    let (sender, tries) = mpsc::channel();
    let (timer, _gate) = timer(&SqliteStore::in_memory(), move |_| {
        // The test has seen enough of them.
        let _ = sender.send(());
        locked()
    });
    let first = timer.cancel("a");
    for _ in 0..2 {
        tries.recv().expect("a try");
    }
    let second = timer.cancel("a");
    timer.shutdown();
    let is_end = |answer| matches!(answer, Err(DurableError::ShutDown));
    assert!(is_end(first.wait()) && is_end(second.wait()));
    assert!(timer.finish(FAR).wait().expect("finish"));
    // In virtual time, they wait for the next turn.
    let hooked = RemoteStore::hooked(&SqliteStore::in_memory(), |call| match call {
        Call::Write(_) => locked(),
        _ => Ok(()),
    });
    let timer = acknowledging(hooked, &ManualClock::new());
    let cancel = timer.cancel("a");
    timer.shutdown();
    assert!(is_end(cancel.wait()));
}
