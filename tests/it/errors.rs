//! Errors in the programs of users: `?`, the text, the cause, and the refused value.

use std::{
    cell::Cell,
    error::Error,
    io,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::mpsc,
};

use delaywheel::{
    BuildError, Completion, Debounce, DelayQueue, DelayedOperation, InsertError, ManualClock,
    Overload, Purgatory, Repeating, ScheduleError, ScheduleErrorKind, Task, Throttle, Tick,
    TimeoutGuard, TimeoutHandle, TimeoutKey, Timer, ValueTimer, WatchError, WatchErrorKind,
    time::DelayMap, wheel::WheelBuilder,
};

use crate::purgatory::support::{HOUR, Op, Shared};

type BoxError = Box<dyn Error + Send + Sync>;

/// `Send`, but not `Sync`, as a boxed `FnOnce` is.
type Value = Cell<u32>;

fn full_timer() -> (Timer, ValueTimer<Value>) {
    let timer = Timer::builder().max_pending(1).build().unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    let values = Timer::builder().max_pending(1).build_with(|_: Value| ()).unwrap();
    values.schedule(HOUR, Cell::new(1)).unwrap();
    (timer, values)
}

/// Schedules with a question mark, for each type of error.
fn schedule<E: From<ScheduleError<Task>>>(timer: &Timer) -> Result<(), E> {
    timer.schedule(HOUR, || ())?;
    Ok(())
}

fn insert<E: From<BuildError> + From<InsertError<Value>>>() -> Result<(), E> {
    let mut wheel = WheelBuilder::new().max_pending(0).build()?;
    wheel.insert(Tick::ZERO, Cell::new(2))?;
    Ok(())
}

#[test]
fn a_refused_timeout_passes_through_a_question_mark() {
    let (timer, values) = full_timer();
    assert_eq!(schedule::<BoxError>(&timer).unwrap_err().to_string(), "timer is full");
    let refused: BoxError = values.schedule(HOUR, Cell::new(2)).unwrap_err().into();
    assert_eq!(refused.to_string(), "timer is full");
    assert_eq!(insert::<BoxError>().unwrap_err().to_string(), "wheel is full");
    assert_eq!(insert::<io::Error>().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    assert_eq!(schedule::<io::Error>(&timer).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    timer.shutdown();
    let error = schedule::<io::Error>(&timer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(error.to_string(), "timer is shut down");
    let error = io::Error::from(Timer::builder().shards(0).build().unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn an_error_returns_the_reason_and_the_value() {
    let (timer, values) = full_timer();
    let error = values.schedule(HOUR, Cell::new(7)).unwrap_err();
    assert_eq!(error.kind(), ScheduleErrorKind::Full);
    assert!(error.source().is_none());
    assert_eq!(error.into_value().get(), 7);
    let ran = std::sync::Arc::new(());
    let held = std::sync::Arc::clone(&ran);
    let error = timer.schedule(HOUR, move || drop(held)).unwrap_err();
    assert_eq!(format!("{error:?}"), "Refused { kind: Full, cause: None, .. }");
    error.into_value().run();
    assert_eq!(std::sync::Arc::strong_count(&ran), 1);
}

#[test]
fn a_refused_operation_passes_through_a_question_mark() {
    // An operation is not `Sync`.
    fn wait<E: From<WatchError<Op>>>(purgatory: &Shared, key: u32) -> Result<(), E> {
        let _ = purgatory.watch(Op::new(), [key], HOUR)?;
        Ok(())
    }
    let builder = Purgatory::builder()
        .max_delayed(2, Overload::Refuse)
        .max_delayed_per_key(1, Overload::Refuse);
    let purgatory = builder.build().unwrap();
    wait::<BoxError>(&purgatory, 1).unwrap();
    let text = "too many operations wait on a key";
    assert_eq!(wait::<BoxError>(&purgatory, 1).unwrap_err().to_string(), text);
    wait::<io::Error>(&purgatory, 2).unwrap();
    let error = wait::<io::Error>(&purgatory, 3).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    assert_eq!(error.to_string(), "purgatory is full");
    drop(purgatory.shutdown());
    assert_eq!(wait::<io::Error>(&purgatory, 3).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let (told, telling) = mpsc::channel();
    let refused = purgatory.watch(Op::new().end(move |_| told.send(9).unwrap()), [9], HOUR);
    let refused = refused.expect_err("it is shut down");
    assert_eq!(refused.kind(), WatchErrorKind::ShutDown);
    refused.into_value().complete(Completion::Cancelled);
    assert_eq!(telling.try_recv(), Ok(9));
}

/// Handles can be moved and shared across threads and panics.
const _: () = {
    const fn is_safe<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    is_safe::<(Timer, ValueTimer<Value>, DelayQueue<Value>, ManualClock, Repeating)>();
    is_safe::<(TimeoutHandle, TimeoutKey, TimeoutGuard, Debounce, Throttle)>();
    is_safe::<DelayMap<u32, u32>>();
};
