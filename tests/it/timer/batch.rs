//! Batches: no timeout is lost, the caller's code runs without a lock, and the reaper wakes in
//! time.

use std::{sync::Arc, time::Duration};

use delaywheel::{
    ManualClock, ScheduleErrorKind, Timer, TimerBuilder, ValueTimer, timer::PartialBatch,
};

use super::support::{GENEROUS, Log, MS, SECOND, YEAR, manual, must_return, wait_until};

/// More than two holds of a shard's lock.
const MANY: u32 = 700;

fn timer_with(
    change: impl FnOnce(TimerBuilder) -> TimerBuilder,
) -> (ManualClock, ValueTimer<u32>, Log<u32>) {
    let (clock, log) = (ManualClock::new(), Log::new());
    let builder = change(ValueTimer::builder().clock(clock.clone()));
    let ran = log.clone();
    (clock, builder.build_with(move |value| ran.push(value)).unwrap(), log)
}

/// The refused values, in order.
fn refused<K>(partial: PartialBatch<K, u32>) -> Vec<u32> {
    partial.refused.into_iter().map(|(_, value)| value).collect()
}

#[test]
fn a_full_timer_accepts_the_start_of_a_batch_and_returns_the_rest() {
    for places in [1, 255, 256, 257, 600] {
        let (clock, timer, log) = timer_with(|builder| builder.max_pending(places));
        let batch = (0..MANY).map(|value| (SECOND, value));
        let error = timer.schedule_batch(batch).unwrap_err();
        assert_eq!(error.kind(), ScheduleErrorKind::Full);
        let partial = error.into_value();
        assert_eq!(partial.scheduled.len() as u64, places);
        let text = format!("{partial:?}");
        let rest = refused(partial);
        assert!(text.contains(&format!("refused: {}", rest.len())), "{text}");
        let places = u32::try_from(places).unwrap();
        assert!(rest.into_iter().eq(places..MANY));
        let stats = timer.stats();
        assert_eq!((stats.scheduled, stats.rejected), (places.into(), (MANY - places).into()));
        clock.advance(SECOND);
        // The order of equal deadlines is not promised.
        let mut ran = log.take();
        ran.sort_unstable();
        assert!(ran.into_iter().eq(0..places));
        assert!(timer.schedule_batch((0..places).map(|value| (SECOND, value))).is_ok());
    }
}

#[test]
fn an_empty_batch_starts_no_thread_and_one_with_timeouts_does() {
    let timer = Timer::builder().name("dw-batch").build().unwrap();
    assert_eq!(timer.schedule_batch(std::iter::empty::<(_, fn())>()).unwrap().len(), 0);
    assert_eq!(super::threads::threads("dw-batch"), 0);
    timer.schedule_batch([(YEAR, || ())]).unwrap();
    wait_until("threads", || super::threads::threads("dw-batch") == 2);
}

#[test]
fn a_cancelled_batch_returns_its_values_in_the_order_of_the_keys() {
    let (clock, timer, log) = timer_with(|builder| builder.shards(3));
    // Threads have shards of their own, so the keys of one batch are of all of them.
    let timer = Arc::new(timer);
    let mut keys = Vec::new();
    for start in [0, 1000, 2000, 3000] {
        let timer = Arc::clone(&timer);
        let batch = move || (start..start + MANY).map(|value| (SECOND, value));
        let scheduled = std::thread::spawn(move || timer.schedule_batch(batch()).unwrap());
        keys.extend((start..).zip(scheduled.join().unwrap()));
    }
    fastrand::Rng::with_seed(1).shuffle(&mut keys);
    let gone: Vec<_> = keys.iter().step_by(5).copied().collect();
    for (value, key) in &gone {
        assert_eq!(timer.cancel(*key), Some(*value));
    }
    let kept = keys.split_off(2000);
    let values = timer.cancel_batch(keys.iter().map(|(_, key)| *key));
    for (index, ((expected, _), value)) in keys.iter().zip(values).enumerate() {
        assert_eq!(value, (index % 5 > 0).then_some(*expected));
    }
    let again = timer.cancel_batch(keys.iter().map(|(_, key)| *key));
    assert!(again.iter().all(Option::is_none), "every key is dead");
    clock.advance(SECOND);
    assert_eq!(
        log.take().len(),
        kept.len() - kept.iter().filter(|kept| gone.contains(kept)).count()
    );
}

#[test]
fn a_batch_of_handles_may_be_of_several_timers() {
    let ((_, one), (_, other)) = (manual(), manual());
    let mut timeouts = one.schedule_batch([SECOND, SECOND].map(|delay| (delay, || ()))).unwrap();
    timeouts.push(other.schedule(SECOND, || ()).unwrap());
    timeouts[0].cancel();
    assert_eq!(one.cancel_batch(&timeouts), 2);
    assert_eq!((one.stats().pending, other.stats().pending), (0, 0));
    assert_eq!(one.cancel_batch(timeouts), 0);
}

#[test]
fn the_iterator_and_the_drops_of_a_batch_may_use_the_timer() {
    /// Uses its timer when it is dropped.
    struct Meddler(Timer);

    impl Drop for Meddler {
        fn drop(&mut self) {
            self.0.schedule(SECOND, || ()).unwrap().cancel();
        }
    }

    let stats = must_return(|| {
        let (_clock, timer) = manual();
        let batch = (0..MANY).map(|_| {
            timer.schedule(SECOND, || ()).unwrap().cancel();
            let meddler = Meddler(timer.clone());
            (SECOND, move || drop(meddler))
        });
        let timeouts = timer.schedule_batch(batch).unwrap();
        let handles = timeouts.iter().inspect(|timeout| assert!(timeout.is_pending()));
        assert_eq!(timer.cancel_batch(handles), MANY as usize);
        timer.stats()
    });
    assert_eq!((stats.pending, stats.cancelled), (0, 3 * u64::from(MANY)));
}

#[test]
fn a_batch_wakes_the_reaper_at_most_once_and_not_at_all_if_it_is_far_ahead() {
    let (sender, received) = std::sync::mpsc::channel();
    let handler = move |value: u32| sender.send(value).unwrap();
    let timer = ValueTimer::builder().shards(1).build_with(handler).unwrap();
    timer.schedule(YEAR, 0).unwrap();
    timer.schedule(Duration::ZERO, 1).unwrap();
    assert_eq!(received.recv_timeout(GENEROUS), Ok(1));
    let before = timer.stats().wakeups;
    timer.schedule_batch((0..100_000).map(|value| (2 * YEAR, value))).unwrap();
    let far = timer.stats().wakeups;
    assert!(far - before <= 1, "{} wake-ups; one may be left from the start", far - before);
    let hour = SECOND * 3600;
    timer.schedule_batch((0..100_000).map(|value| (hour + value * MS, value))).unwrap();
    let woken = timer.stats().wakeups - far;
    assert!(woken <= 2, "{woken} wake-ups; one may be left from before");
}
