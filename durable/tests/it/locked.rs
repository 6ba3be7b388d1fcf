//! Records that other transactions have locked, and a store that is closed.

use std::sync::Mutex;

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
}

/// Returns a timer without a handler. `hook` sees commands but for those of the gate.
fn timer(
    store: &MemoryStore,
    hook: impl Fn(&[Command]) -> StoreResult<()> + Send + Sync + 'static,
) -> (DurableTimer, Gate) {
    let ((enter, entered), (open, opened)) = (mpsc::channel(), mpsc::channel());
    let opened = Mutex::new(opened);
    let hooked = RemoteStore::hooked(store, move |call| {
        let Call::Write(commands) = call else { return Ok(()) };
        if commands[0].id().as_str() != "gate" {
            return hook(commands);
        }
        enter.send(()).expect("the test waits");
        opened.lock().expect("not poisoned").recv().expect("the test goes on");
        Ok(())
    });
    (DurableTimer::builder(hooked).build_with(drop).expect("start"), Gate { entered, open })
}

/// The record is locked until the group was tried, and the cancel alone.
#[test]
fn commands_of_one_timeout_keep_their_order_when_their_group_is_split() {
    let (store, tries) = (MemoryStore::new(), AtomicUsize::new(0));
    let (timer, gate) = timer(&store, move |_| match tries.fetch_add(1, SeqCst) {
        1 | 2 => locked(),
        _ => Ok(()),
    });
    timer.schedule("a", FAR, b"old").wait().expect("schedule");
    let other = timer.schedule("gate", FAR, b"");
    gate.entered.recv().expect("the commit waits");
    let (cancel, schedule) = (timer.cancel("a"), timer.schedule("a", FAR, b"new"));
    gate.open.send(()).expect("the commit waits");
    other.wait().expect("schedule");
    assert_eq!(cancel.wait().expect("cancel"), Cancelled::Cancelled);
    assert_eq!(schedule.wait().expect("schedule"), Scheduled::Created);
    assert_eq!(&*timer.get("a").wait().expect("get").expect("kept").payload, b"new");
}

/// The server refuses three tries of a call because of a lock, or does not answer.
#[test]
fn a_claim_or_begin_that_fails_voids_no_delivery() {
    use StoreErrorReason::{Locked, OutcomeUnknown, Unavailable};
    let reasons = [Locked, Unavailable, OutcomeUnknown];
    for (reason, fails_at_begin) in reasons.into_iter().flat_map(|r| [(r, false), (r, true)]) {
        let (store, clock) = (MemoryStore::new(), ManualWallClock::new());
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
    let hooked = RemoteStore::hooked(&MemoryStore::new(), |call| match call {
        Call::Write([Command::Settle(..)]) => Err(StoreError::new(StoreErrorReason::Closed)),
        _ => Ok(()),
    });
    let clock = ManualWallClock::new();
    let (timer, deliveries) = crate::timer::held(DurableTimer::builder(hooked), &clock);
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    deliveries.try_recv().expect("delivery").acknowledge();
    assert!(timer.finish(Duration::ZERO));
}

/// One command is being tried when the timer ends, and another one waits behind it.
#[test]
fn commands_of_locked_records_are_answered_when_their_timer_ends() {
    let (sender, tries) = mpsc::channel();
    let (timer, _gate) = timer(&MemoryStore::new(), move |_| {
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
    assert!(timer.finish(FAR));
    // In virtual time, they wait for the next turn.
    let hooked = RemoteStore::hooked(&MemoryStore::new(), |call| match call {
        Call::Write(_) => locked(),
        _ => Ok(()),
    });
    let timer = acknowledging(hooked, &ManualWallClock::new());
    let cancel = timer.cancel("a");
    timer.shutdown();
    assert!(is_end(cancel.wait()));
}
