//! Errors in the programs of users: `?`, the text, the cause, and the refused value.

use std::{
    cell::Cell,
    error::Error,
    io,
    panic::{RefUnwindSafe, UnwindSafe},
    time::Duration,
};

use delaywheel::{
    Completion, Debounce, DelayQueue, DelayedOperation, ManualClock, Overload, Purgatory,
    Repeating, ScheduleErrorKind, Throttle, Tick, TimeoutGuard, TimeoutHandle, TimeoutKey, Timer,
    TimerBuilder, ValueTimer, WatchErrorKind, wheel::WheelBuilder,
};

type BoxError = Box<dyn Error + Send + Sync>;

const HOUR: Duration = Duration::from_secs(3600);

/// `Send`, but not `Sync`, as a boxed `FnOnce` is.
type Value = Cell<u32>;

fn full_timer() -> (Timer, ValueTimer<Value>) {
    let timer = Timer::builder().max_pending(1).build().unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    let values = Timer::builder().max_pending(1).build_with(|_: Value| ()).unwrap();
    values.schedule(HOUR, Cell::new(1)).unwrap();
    (timer, values)
}

#[test]
fn a_refused_timeout_passes_through_a_question_mark_as_a_boxed_error() {
    fn schedule() -> Result<(), BoxError> {
        let (timer, _values) = full_timer();
        timer.schedule(HOUR, || ())?;
        Ok(())
    }
    fn schedule_value() -> Result<(), BoxError> {
        let (_timer, values) = full_timer();
        values.schedule(HOUR, Cell::new(2))?;
        Ok(())
    }
    fn insert() -> Result<(), BoxError> {
        let mut wheel = WheelBuilder::new().max_pending(0).build()?;
        wheel.insert(Tick::ZERO, Cell::new(2))?;
        Ok(())
    }
    assert_eq!(schedule().unwrap_err().to_string(), "timer is full");
    assert_eq!(schedule_value().unwrap_err().to_string(), "timer is full");
    assert_eq!(insert().unwrap_err().to_string(), "wheel is full");
}

#[test]
fn a_refused_timeout_passes_through_a_question_mark_as_an_io_error() {
    fn schedule(timer: &Timer) -> io::Result<()> {
        timer.schedule(HOUR, || ())?;
        Ok(())
    }
    fn build(builder: TimerBuilder) -> io::Result<Timer> {
        Ok(builder.build()?)
    }
    fn insert() -> io::Result<()> {
        let mut wheel = WheelBuilder::new().max_pending(0).build()?;
        wheel.insert(Tick::ZERO, Cell::new(2))?;
        Ok(())
    }
    let (timer, _values) = full_timer();
    assert_eq!(schedule(&timer).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    timer.shutdown();
    let error = schedule(&timer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(error.to_string(), "timer is shut down");
    let error = build(Timer::builder().shards(0)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(insert().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
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

/// An operation that is not `Sync`.
struct Waits(Value);

impl DelayedOperation<u32> for Waits {
    fn complete(self, _: Completion) {}
}

#[test]
fn a_refused_operation_passes_through_a_question_mark() {
    fn wait(purgatory: &Purgatory<u32, Waits>, key: u32) -> Result<(), BoxError> {
        let _ = purgatory.watch(Waits(Cell::new(key)), [key], HOUR)?;
        Ok(())
    }
    fn wait_io(purgatory: &Purgatory<u32, Waits>, key: u32) -> io::Result<()> {
        let _ = purgatory.watch(Waits(Cell::new(key)), [key], HOUR)?;
        Ok(())
    }
    let builder = Purgatory::builder()
        .max_delayed(2, Overload::Refuse)
        .max_delayed_per_key(1, Overload::Refuse);
    let purgatory = builder.build().unwrap();
    wait(&purgatory, 1).unwrap();
    let text = "too many operations wait on a key";
    assert_eq!(wait(&purgatory, 1).unwrap_err().to_string(), text);
    wait_io(&purgatory, 2).unwrap();
    let error = wait_io(&purgatory, 3).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    assert_eq!(error.to_string(), "purgatory is full");
    drop(purgatory.shutdown());
    assert_eq!(wait_io(&purgatory, 3).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let refused = purgatory.watch(Waits(Cell::new(9)), [9], HOUR).unwrap_err();
    assert_eq!(refused.kind(), WatchErrorKind::ShutDown);
    assert_eq!(refused.into_value().0.get(), 9);
}

#[test]
fn handles_can_be_moved_and_shared_across_threads_and_panics() {
    const fn is_safe<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    is_safe::<Timer>();
    is_safe::<ValueTimer<Value>>();
    is_safe::<DelayQueue<Value>>();
    is_safe::<ManualClock>();
    is_safe::<TimeoutHandle>();
    is_safe::<TimeoutKey>();
    is_safe::<TimeoutGuard>();
    is_safe::<Repeating>();
    is_safe::<Debounce>();
    is_safe::<Throttle>();
}

#[test]
fn a_clone_of_a_builder_makes_a_timer_of_the_same_settings() {
    let builder = Timer::builder().clock(ManualClock::new()).max_pending(1);
    for timer in [builder.clone().build().unwrap(), builder.build().unwrap()] {
        timer.schedule(HOUR, || ()).unwrap();
        assert_eq!(timer.schedule(HOUR, || ()).unwrap_err().kind(), ScheduleErrorKind::Full);
    }
}
