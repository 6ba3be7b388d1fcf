//! Records that other transactions have locked.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use delaywheel_durable::{
    Cancelled, Command, DurableTimer, MemoryStore, Scheduled, StoreError, StoreErrorReason,
    StoreResult,
};

use crate::hooked::{Call, Hooked};

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
) -> (DurableTimer<Hooked>, Gate) {
    let ((enter, entered), (open, opened)) = (mpsc::channel(), mpsc::channel());
    let opened = Mutex::new(opened);
    let hooked = Hooked::new(store, move |call| {
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
    assert_eq!(&*timer.get("a").expect("get").expect("kept").payload, b"new");
}
