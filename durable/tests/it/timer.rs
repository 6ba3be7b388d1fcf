//! The timer in virtual time, and a few tests on real threads.

#[cfg(feature = "tracing")]
use std::{cell::Cell, sync::Once};
use std::{
    sync::Weak,
    time::{SystemTime, UNIX_EPOCH},
};

use delaywheel_durable::{AttemptEnd, InputError, JumpListener, Missed};

use super::*;

const MICRO: Duration = Duration::from_micros(1);

/// Id, due time, time of delivery, attempt.
type Seen = (String, WallTime, WallTime, u32);

fn start(builder: DurableTimerBuilder, clock: &ManualClock) -> (DurableTimer, Receiver<Seen>) {
    let (sender, seen) = mpsc::channel();
    let time = clock.clone();
    let timer = builder
        .clock(clock.clone())
        .build_blocking(move |delivery| {
            let id = delivery.id().to_string();
            sender.send((id, delivery.due(), now(&time), delivery.attempt()))?;
            Ok(())
        })
        .expect("start");
    (timer, seen)
}

fn plain(clock: &ManualClock) -> (DurableTimer, Receiver<Seen>) {
    start(DurableTimer::builder(SqliteStore::in_memory()), clock)
}

fn ids(seen: &Receiver<Seen>) -> Vec<String> {
    seen.try_iter().map(|seen| seen.0).collect()
}

#[test]
fn keeps_at_most_its_capacity_in_memory_and_delivers_in_order() {
    let clock = ManualClock::new();
    let builder = DurableTimer::builder(SqliteStore::in_memory()).window_capacity(8, 100);
    let (timer, seen) = start(builder, &clock);
    let batch = (0..100_u64).rev().map(|number| {
        let due = timer.now().saturating_add(Duration::from_millis(number * 10));
        NewTimeout::new(format!("{number:02}"), due, [0; 30]).expect("valid")
    });
    timer.schedule_batch(batch.collect()).wait().expect("schedule");
    let mut most = 0;
    for _ in 0..100 {
        clock.advance(Duration::from_millis(10));
        most = most.max(timer.stats().window);
    }
    // Of 30 bytes each, the fourth one exceeds 100 bytes.
    assert_eq!(most, 4);
    assert_eq!(ids(&seen), (0..100).map(|number| format!("{number:02}")).collect::<Vec<_>>());
}

#[test]
fn keeps_at_most_its_capacity_of_a_backlog_in_memory() {
    for (count, bytes, expected) in [(8, 1_000, 8), (100, 100, 4)] {
        let (clock, store) = (ManualClock::new(), SqliteStore::in_memory());
        let builder = || DurableTimer::builder(store.clone());
        let timer = builder().clock(clock.clone()).build().expect("start");
        for id in 0..100 {
            timer.schedule(id.to_string(), SECOND, [0; 30]).wait().expect("schedule");
        }
        drop(timer);
        clock.advance(DAY);
        let (timer, seen) = held(builder().window_capacity(count, bytes).max_deliveries(1), &clock);
        let mut most = 0;
        for delivered in 0..100 {
            most = most.max(timer.stats().due);
            clock.advance(SECOND);
            seen.try_recv().unwrap_or_else(|_| panic!("{delivered} of 100")).acknowledge();
        }
        assert_eq!(most, expected);
    }
}

#[test]
fn a_failed_delivery_is_retried_with_backoff_and_dies() {
    let clock = ManualClock::new();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let backoff = Backoff::new(SECOND).jitter(0.0).max(3 * SECOND).attempts(4);
    let timer = DurableTimer::builder(SqliteStore::in_memory())
        .clock(clock.clone())
        .backoff(backoff)
        .build_blocking(move |delivery| {
            count.fetch_add(1, SeqCst);
            assert!(delivery.attempt() != 2, "no {}", delivery.id());
            // As the mark of a move between databases, of which no requeue makes a timeout.
            Err("\u{1}moved to another database".into())
        })
        .expect("start");
    timer.schedule("a", SECOND, b"").wait().expect("schedule");
    let mut seconds = Vec::new();
    for second in 0..20 {
        clock.advance(SECOND - MICRO);
        assert_eq!(attempts.load(SeqCst), seconds.len());
        clock.advance(MICRO);
        if attempts.load(SeqCst) > seconds.len() {
            seconds.push(second + 1);
        }
        if seconds.len() == 2 {
            let record = timer.get("a").wait().expect("get").expect("kept");
            assert_eq!(record.error.as_deref(), Some("the handler panicked: no a"));
        }
    }
    assert_eq!(seconds, [1, 2, 4, 7], "after 1, 2 and 3 seconds");
    let dead = timer.list(&Query::Dead { after: None }, 9).wait().expect("list");
    let error = Some("moved to another database");
    assert_eq!((dead[0].state, dead[0].error.as_deref()), (State::Dead, error));
    assert_eq!((timer.stats().retries, timer.stats().dead), (3, 1));
    assert_eq!(timer.reschedule("a", SECOND).wait().expect("move"), Rescheduled::NotFound);
}

pub(crate) fn held(
    builder: DurableTimerBuilder,
    clock: &ManualClock,
) -> (DurableTimer, Receiver<Delivery>) {
    let (sender, deliveries) = mpsc::channel();
    let builder = builder.clock(clock.clone());
    let timer = builder.build_with(move |delivery| drop(sender.send(delivery)));
    (timer.expect("start"), deliveries)
}

/// A policy for old timeouts counts from the next attempt, and holds for each queue. The limit of
/// attempts is that of the queue.
#[test]
fn a_handler_says_whether_and_when_its_timeout_is_tried_again() {
    use AttemptEnd::{Acknowledged, Dead, Failed};
    let (clock, (sender, deliveries)) = (ManualClock::new(), mpsc::channel());
    let queue = Queue::with("", move |delivery| drop(sender.send(delivery)));
    let builder = DurableTimer::builder(SqliteStore::in_memory()).clock(clock.clone());
    let builder = builder.skip_older_than(SECOND).history(DAY).queue(Queue::with("other", drop));
    let timer = builder.queue(queue.backoff(Backoff::new(9 * SECOND).attempts(2))).build();
    let timer = timer.expect("start");
    let deliver = |delay: Duration, attempt| {
        clock.advance(delay - MICRO);
        assert!(deliveries.try_recv().is_err(), "it is early");
        clock.advance(MICRO);
        let delivery = deliveries.try_recv().expect("delivery");
        assert_eq!((delivery.attempt(), timer.count_due().wait().expect("count")), (attempt, 1));
        delivery
    };
    let new = |due| NewTimeout::new("a", due, b"").expect("valid").conflict(Conflict::Refuse);
    let refused = || {
        let new = new(timer.now());
        assert!(matches!(timer.schedule_new(new.clone()).wait(), Err(DurableError::Exists)));
        timer.schedule_batch(vec![new]).wait().expect("schedule")[0]
    };
    for age in [SECOND, SECOND + MICRO] {
        timer.schedule_new(new(timer.now().saturating_sub(age))).wait().expect("schedule");
        clock.advance(Duration::ZERO);
        deliveries.try_iter().for_each(Delivery::acknowledge);
    }
    assert_eq!((timer.stats().acknowledged, timer.stats().skipped), (1, 1));
    timer.schedule_new(new(timer.now().saturating_add(SECOND))).wait().expect("it was skipped");
    assert_eq!(refused(), Scheduled::Kept);
    for delay in [1, 5, 5, 10, 20, 40, 80, 160, 320, 600] {
        deliver(delay * SECOND, 1).leave("not here");
    }
    deliver(600 * SECOND, 1).retry_at(60 * SECOND, "\u{e9}\0".repeat(2_000));
    let record = timer.get("a").wait().expect("get").expect("kept");
    assert_eq!(record.error, Some("\u{e9}".repeat(1_000)));
    deliver(60 * SECOND, 2).retry_at(60 * SECOND, "the last attempt");
    assert_eq!(refused(), Scheduled::KeptDead);
    assert!(timer.requeue("a", SECOND).wait().expect("requeue"));
    deliver(SECOND, 1).dead("for good");
    assert_eq!(refused(), Scheduled::KeptDead);
    let history = |id: TimeoutId, before| timer.history(Some(&id), before, 9).wait().expect("read");
    let attempts = history(record.id.clone(), None);
    let ends: Vec<_> = attempts.iter().map(|attempt| attempt.end).collect();
    assert_eq!(ends, [Dead, Dead, Failed, Acknowledged]);
    assert_eq!(history(record.id, Some(attempts[0].number)), attempts[1..]);
    assert_eq!(history("b".parse().expect("valid"), None), []);
}

/// A rolling upgrade: the first process that gets the timeout does not know its payload. It is
/// overdue, was dead for a day, and was tried before.
#[test]
fn a_timeout_that_is_left_for_the_first_times_comes_back_after_seconds() {
    let clock = ManualClock::new();
    let (timer, deliveries) = held(DurableTimer::builder(SqliteStore::in_memory()), &clock);
    let deliver = |delay| {
        clock.advance(delay);
        deliveries.try_recv().expect("delivery")
    };
    let new = NewTimeout::new("a", timer.now().saturating_sub(3_600 * SECOND), b"");
    timer.schedule_new(new.expect("valid")).wait().expect("schedule");
    deliver(Duration::ZERO).dead("a fault of the handler");
    clock.advance(DAY);
    assert!(timer.requeue("a", Duration::ZERO).wait().expect("requeue"));
    deliver(Duration::ZERO).retry_at(3_600 * SECOND, "no route");
    deliver(3_600 * SECOND).leave("an old process");
    deliver(5 * SECOND).leave("an old process");
    deliver(5 * SECOND).acknowledge();
}

#[test]
fn a_nearer_time_is_noticed_a_farther_one_and_each_of_a_batch() {
    let clock = ManualClock::new();
    let (timer, seen) = plain(&clock);
    timer.schedule("a", DAY, b"").wait().expect("schedule");
    timer.schedule("b", SECOND, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    assert_eq!(timer.reschedule("a", SECOND).wait().expect("move"), Rescheduled::Rescheduled);
    assert_eq!(timer.reschedule("b", DAY).wait().expect("move"), Rescheduled::Rescheduled);
    assert_eq!(timer.reschedule("c", DAY).wait().expect("move"), Rescheduled::NotFound);
    clock.advance(SECOND);
    assert_eq!(ids(&seen), ["a"]);
    clock.advance(DAY);
    assert_eq!(ids(&seen), ["b"]);
    let new = |id, due| NewTimeout::new(id, due, b"").expect("valid");
    // The first one was due before the timer started, so another lane delivers it.
    let dues = [timer.now().saturating_sub(3 * DAY), timer.now().saturating_add(DAY)];
    timer.schedule_batch(vec![new("d", dues[1]), new("c", dues[0])]).wait().expect("schedule");
    clock.advance(DAY);
    assert_eq!(ids(&seen), ["c", "d"]);
}

#[test]
fn bad_input_is_a_typed_error() {
    let clock = ManualClock::new();
    let (timer, _seen) = plain(&clock);
    let last: SystemTime = WallTime::MAX.to_system_time();
    let before = UNIX_EPOCH - Duration::from_nanos(if cfg!(windows) { 100 } else { 1 });
    // The fields of a timeout are public.
    let new = NewTimeout::new("b", timer.now(), vec![0; 1 << 20]).expect("valid");
    let large = NewTimeout { payload: vec![0; (1 << 20) + 1].into(), ..new.clone() };
    let too_large = InputError::LargePayload(1_048_577);
    for (receipt, expected) in [
        (timer.schedule("", SECOND, b""), InputError::EmptyId),
        (timer.schedule("a\0", SECOND, b""), InputError::NulInId),
        (timer.schedule("x".repeat(256), SECOND, b""), InputError::LongId(256)),
        (timer.schedule("a", SECOND, &large.payload), too_large),
        (timer.schedule("a", before, b""), InputError::Before1970),
        (timer.schedule("a", Duration::MAX, b""), InputError::AfterYear9999),
        (timer.schedule("a", last + MICRO, b""), InputError::AfterYear9999),
        (timer.schedule_new(large.clone()), too_large),
    ] {
        let refused = receipt.wait();
        assert!(
            matches!(&refused, Err(DurableError::Input(error)) if *error == expected),
            "{refused:?}"
        );
    }
    assert_eq!(Repeat::every(Duration::ZERO), Err(InputError::ShortPeriod));
    assert!(Repeat::every(SECOND / 1_000).is_ok() && Repeat::every(4_000_000 * DAY).is_err());
    assert_eq!(timer.schedule("a", last, b"").wait().expect("schedule"), Scheduled::Created);
    let batch = timer.schedule_batch(vec![new, large]).wait();
    assert!(matches!(batch, Err(DurableError::Input(error)) if error == too_large));
    assert_eq!(timer.count().wait().expect("count").live, 1, "none of the batch");
    clock.set_system_time(last);
    clock.advance(SECOND);
    assert!(clock.advance_to_next().is_none(), "the clock of a timer ends with that year");
}

/// A failed attempt is repeated when the fourth occurrence is due, and a pause ends with the
/// seventh. Each is seen at a second, with that of its occurrence and its attempt.
#[test]
fn occurrences_that_were_missed_follow_the_policy_and_a_new_payload_takes_effect() {
    let first = [(60, 60, 1), (110, 60, 2), (120, 120, 1)];
    let late = [(240, 120, 2), (240, 180, 1), (240, 240, 1), (300, 300, 1)];
    let later = [(420, 360, 1), (420, 420, 1), (480, 480, 1)];
    let all = [&late[..], &later].concat();
    let once = vec![late[0], late[3], later[0], later[2]];
    let skip = vec![late[2], late[3], later[1], later[2]];
    for (policy, later) in [(Missed::All, all), (Missed::Once, once), (Missed::Skip, skip)] {
        let clock = ManualClock::new();
        let (timer, deliveries) = held(DurableTimer::builder(SqliteStore::in_memory()), &clock);
        let (start, rule) =
            (timer.now(), Repeat::every(60 * SECOND).expect("valid").missed(policy));
        let schedule = |payload| timer.schedule_repeat("a", rule.clone(), payload).wait();
        let answers = [b"old", b"old", b"new"].map(|payload| schedule(payload).expect("schedule"));
        assert_eq!(answers, [Scheduled::Created, Scheduled::Kept, Scheduled::Replaced]);
        let mut seen = Vec::new();
        for second in 1..=480 {
            clock.advance(SECOND);
            match second {
                301 => timer.pause("").wait().expect("pause"),
                420 => timer.resume("").wait().expect("resume"),
                _ => (),
            }
            clock.advance(Duration::ZERO);
            while let Ok(delivery) = deliveries.try_recv() {
                let due = delivery.due().since(start).as_secs();
                seen.push((second, due, delivery.attempt()));
                match (second, due) {
                    (60, _) => delivery.retry_at(50 * SECOND, "busy"),
                    (120, _) => delivery.retry_at(120 * SECOND, "busy"),
                    _ => delivery.acknowledge(),
                }
                clock.advance(Duration::ZERO);
            }
        }
        assert_eq!(seen, [&first[..], &later].concat());
    }
}

#[test]
fn a_backlog_is_spread_over_the_rate_and_delays_nothing_else() {
    let clock = ManualClock::new();
    let store = SqliteStore::in_memory();
    let (timer, _seen) = start(DurableTimer::builder(store.clone()), &clock);
    let batch = (0..1_000_u64).map(|number| {
        let due = timer.now().saturating_add(Duration::from_millis(number));
        NewTimeout::new(format!("old/{number:03}"), due, b"").expect("valid")
    });
    timer.schedule_batch(batch.collect()).wait().expect("schedule");
    drop(timer);
    clock.advance(DAY);
    let rate = NonZeroU32::new(100).expect("not zero");
    let (timer, seen) = start(DurableTimer::builder(store).catch_up_rate(rate), &clock);
    let began = timer.now();
    for second in 0..10 {
        timer.schedule(format!("new/{second}"), SECOND, b"").wait().expect("schedule");
        for _ in 0..200 {
            // Gives notice of a time that is overdue, and changes nothing.
            timer.reschedule("none", timer.now().saturating_sub(DAY)).wait().expect("reschedule");
            clock.advance(SECOND / 200);
        }
    }
    let all: Vec<_> = seen.try_iter().collect();
    let (new, old): (Vec<_>, Vec<_>) = all.into_iter().partition(|seen| seen.0.starts_with("new"));
    assert_eq!(new.len(), 10);
    assert!(new.iter().all(|(_, due, at, _)| due == at), "what is due now is on time");
    assert!(old.is_sorted(), "oldest first");
    assert_eq!(old.len(), 1_000);
    for (number, (_, _, at, _)) in old.iter().enumerate() {
        let since = at.since(began).as_millis();
        assert_eq!(since, number as u128 * 10, "one in ten milliseconds");
    }
}

/// Its only handler took long.
#[test]
fn a_backlog_keeps_to_its_rate_after_a_wait_for_a_handler() {
    let (clock, store) = (ManualClock::new(), SqliteStore::in_memory());
    let builder = || DurableTimer::builder(store.clone());
    let timer = builder().clock(clock.clone()).build().expect("start");
    for id in 0..100 {
        timer.schedule(id.to_string(), SECOND, b"").wait().expect("schedule");
    }
    drop(timer);
    clock.advance(DAY);
    let rate = NonZeroU32::new(10).expect("not zero");
    let (_timer, deliveries) = held(builder().max_deliveries(1).catch_up_rate(rate), &clock);
    clock.advance(60 * SECOND);
    let mut begun = 0;
    for _ in 0..1_000 {
        begun += deliveries.try_iter().map(Delivery::acknowledge).count();
        clock.advance(SECOND / 1_000);
    }
    assert!((9..=12).contains(&begun), "{begun} in a second");
}

#[test]
fn a_timeout_that_is_too_old_uses_no_rate() {
    let (clock, store) = (ManualClock::new(), SqliteStore::in_memory());
    let builder = || DurableTimer::builder(store.clone());
    let timer = builder().clock(clock.clone()).build().expect("start");
    for (id, seconds) in (0..100).map(|id| (id, 0)).chain((100..103).map(|id| (id, 100))) {
        timer.schedule(id.to_string(), SECOND * seconds, b"").wait().expect("schedule");
    }
    drop(timer);
    clock.advance(101 * SECOND);
    let rate = NonZeroU32::new(1).expect("not zero");
    let builder = builder().skip_older_than(5 * SECOND).catch_up_rate(rate);
    let (timer, seen) = start(builder, &clock);
    clock.advance(3 * SECOND);
    assert_eq!(ids(&seen).len(), 3, "the recent ones");
    assert_eq!(timer.stats().skipped, 100);
}

#[test]
fn a_clock_that_steps_delivers_nothing_early_or_twice_and_skips_nothing() {
    let clock = ManualClock::new();
    let (timer, seen) = plain(&clock);
    let start_time = timer.now();
    let daily = Repeat::every(60 * SECOND).expect("valid");
    let first = start_time.saturating_add(60 * SECOND);
    let new = NewTimeout::new("minutely", first, b"").expect("valid").repeat(daily);
    timer.schedule_new(new).wait().expect("schedule");
    timer.schedule("once", 90 * SECOND, b"").wait().expect("schedule");
    clock.advance(70 * SECOND);
    assert_eq!(ids(&seen), ["minutely"]);
    clock.set_system_time(start_time.to_system_time());
    timer.schedule("soon", 30 * SECOND, b"").wait().expect("schedule");
    clock.advance(30 * SECOND - MICRO);
    assert!(ids(&seen).is_empty(), "it is early");
    clock.advance(60 * SECOND);
    assert_eq!(ids(&seen), ["soon"], "the first minute is not delivered again");
    clock.advance(MICRO);
    assert_eq!(ids(&seen), ["once"]);
    clock.advance(30 * SECOND);
    assert_eq!(ids(&seen), ["minutely"]);
    assert_eq!(timer.stats().clock_steps, 1);
    timer.cancel("minutely").wait().expect("cancel");
    for day in 0..5_u32 {
        timer.schedule(format!("{day}"), DAY * day + 30 * SECOND, b"").wait().expect("schedule");
    }
    clock.set_system_time(clock.system_time() + 3 * DAY);
    assert_eq!(ids(&seen), ["0", "1", "2"]);
    clock.advance(2 * DAY);
    assert_eq!(ids(&seen), ["3", "4"]);
}

/// A clock that the test sets, and whose listeners it calls.
#[derive(Debug)]
struct Watched(ManualClock, mpsc::Sender<Weak<dyn JumpListener>>);

impl Clock for Watched {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn system_time(&self) -> SystemTime {
        self.0.system_time()
    }

    fn watch(&self, listener: Weak<dyn JumpListener>) -> Option<Duration> {
        self.1.send(listener).expect("the test waits");
        None
    }
}

#[test]
fn a_timer_sleeps_until_its_clock_reports_a_step() {
    let (clock, (sender, listeners)) = (ManualClock::new(), mpsc::channel());
    let (delivered, deliveries) = mpsc::channel();
    let timer = DurableTimer::builder(SqliteStore::in_memory())
        .clock(Watched(clock.clone(), sender))
        .build_blocking(move |_| Ok(delivered.send(())?))
        .expect("start");
    timer.schedule("a", DAY, b"").wait().expect("schedule");
    let listener = listeners.recv().expect("the timer watches").upgrade();
    clock.set_system_time(clock.system_time() + DAY);
    listener.expect("it runs").clock_has_jumped();
    deliveries.recv_timeout(300 * SECOND).expect("it was woken");
}

/// The work takes 3 s, and each delivery may take 2 s. A timer that has too much to do is late with
/// all timeouts alike.
#[test]
fn timeouts_that_wait_for_a_thread_use_no_attempt_and_begin_in_order() {
    let (sender, begun) = mpsc::channel();
    let builder = DurableTimer::builder(SqliteStore::in_memory()).threads(1);
    let builder = builder.handler_limit(Some(2 * SECOND));
    let builder = builder.backoff(Backoff::new(SECOND / 1_000).attempts(4));
    let timer = builder.build_blocking(move |delivery| {
        assert_eq!(delivery.attempt(), 1);
        sender.send(delivery.due())?;
        thread::sleep(SECOND / 33);
        Ok(())
    });
    let timer = timer.expect("start");
    // What is due before its start is another lane.
    timer.schedule("first", Duration::ZERO, b"").wait().expect("schedule");
    begun.recv_timeout(300 * SECOND).expect("delivery");
    for number in 0..100 {
        timer.schedule(format!("{number}"), Duration::ZERO, b"").wait().expect("schedule");
    }
    assert!(timer.finish(300 * SECOND).wait().expect("finish"));
    let order: Vec<_> = begun.try_iter().collect();
    assert!(order.is_sorted() && order.len() == 100, "{order:?}");
    let stats = timer.stats();
    assert_eq!((stats.deliveries, stats.acknowledged), (101, 101));
    assert_eq!((stats.overruns, stats.retries, stats.dead), (0, 0, 0));
}

#[test]
fn a_handler_that_never_returns_loses_its_permit_backs_off_and_its_timeout_dies() {
    let clock = ManualClock::new();
    let builder = DurableTimer::builder(SqliteStore::in_memory())
        .max_deliveries(1)
        .handler_limit(Some(60 * SECOND))
        .backoff(Backoff::new(4 * SECOND).jitter(0.0).attempts(2));
    let (timer, deliveries) = held(builder, &clock);
    timer.schedule("stuck", Duration::ZERO, b"").wait().expect("schedule");
    timer.schedule("next", SECOND, b"").wait().expect("schedule");
    clock.advance(59 * SECOND);
    let stuck = deliveries.recv().expect("delivery");
    assert!(deliveries.try_recv().is_err(), "one permit");
    clock.advance(SECOND);
    let next = deliveries.try_recv().expect("the permit is free");
    assert_eq!(next.id().as_str(), "next");
    next.acknowledge();
    clock.advance(4 * SECOND - MICRO);
    assert!(deliveries.try_recv().is_err(), "the policy has it wait");
    clock.advance(MICRO);
    let again = deliveries.try_recv().expect("it is tried again");
    assert_eq!((again.id().as_str(), again.attempt()), ("stuck", 2));
    stuck.acknowledge();
    assert!(timer.get("stuck").wait().expect("get").is_some(), "the first attempt is void");
    clock.advance(120 * SECOND);
    assert!(deliveries.try_recv().is_err(), "that was the last attempt");
    let record = timer.get("stuck").wait().expect("get").expect("kept");
    assert_eq!(record.state, State::Dead);
    assert_eq!(record.error.as_deref(), Some("the handler exceeded its limit"));
    let stats = timer.stats();
    assert_eq!((stats.overruns, stats.retries, stats.dead, stats.fenced), (2, 1, 1, 1));
}

#[test]
fn another_worker_takes_over_from_one_that_stopped() {
    let (clock, stopped) = (ManualClock::new(), ManualClock::new());
    let store = SqliteStore::in_memory();
    let builder = || DurableTimer::builder(store.clone()).lease(30 * SECOND);
    let (paused, paused_deliveries) = held(builder(), &stopped);
    paused.schedule("a", SECOND, b"").wait().expect("schedule");
    paused.schedule("b", 10 * SECOND, b"").wait().expect("schedule");
    stopped.advance(SECOND);
    let late = paused_deliveries.try_recv().expect("delivery");
    let (timer, seen) = start(builder(), &clock);
    // The lease was taken at 0 s, and not needed before.
    clock.advance(30 * SECOND);
    assert!(ids(&seen).is_empty(), "both are claimed by the other worker");
    // At the first look, its own lease has ended as well. So it looks again.
    clock.advance(4 * SECOND);
    assert_eq!(ids(&seen), ["a", "b"]);
    late.acknowledge();
    #[cfg(feature = "tracing")]
    assert_eq!(warnings(|| stopped.advance(40 * SECOND)), 1);
    #[cfg(not(feature = "tracing"))]
    stopped.advance(40 * SECOND);
    assert!(paused_deliveries.try_recv().is_err());
    assert_eq!(paused.stats().fenced, 1);
    assert_eq!((paused.stats().lost_leases, timer.stats().acknowledged), (1, 2));
}

#[test]
fn workers_that_wait_for_the_same_timeouts_claim_rarely() {
    let (clock, store) = (ManualClock::new(), SqliteStore::in_memory());
    let builder = || DurableTimer::builder(store.clone());
    let timers: Vec<_> = (0..4).map(|_| start(builder(), &clock)).collect();
    let batch = (0..600_u32).map(|number| {
        let due = timers[0].0.now().saturating_add(SECOND * number);
        NewTimeout::new(number.to_string(), due, b"").expect("valid")
    });
    timers[0].0.schedule_batch(batch.collect()).wait().expect("schedule");
    clock.advance(600 * SECOND);
    assert!(records(&store).is_empty());
    let stats: Vec<_> = timers.iter().map(|(timer, _)| timer.stats()).collect();
    let claims: u64 = stats.iter().map(|stats| stats.claims).sum();
    let empty: u64 = stats.iter().map(|stats| stats.empty_claims).sum();
    // Each looks once in half a minute, and when the lease of another one may have ended. If each
    // timeout woke all of them, there were 2,400.
    assert!(claims <= 4 * 50 && empty < claims, "{claims} claims, {empty} of them empty");
}

/// No other worker of the store knows more, so it is not passed over in silence.
#[cfg(not(feature = "cron"))]
#[test]
fn a_build_without_cron_says_why_it_does_not_deliver_a_timeout() {
    let clock = ManualClock::new();
    let builder = DurableTimer::builder(SqliteStore::in_memory()).clock(clock.clone());
    let timer = builder.build_blocking(|_| panic!("it is not delivered")).expect("start");
    let rule = Repeat::from_text("once cron UTC 0 9 * * *").expect("text");
    let new = NewTimeout::new("a", timer.now(), b"").expect("valid").repeat(rule);
    timer.schedule_new(new).wait().expect("schedule");
    clock.advance(Duration::from_secs(60));
    let record = timer.get("a").wait().expect("get").expect("kept");
    assert!(record.attempt == 0 && record.error.is_some_and(|error| error.contains("time zone")));
}

#[cfg(feature = "cron")]
#[test]
fn cron_follows_its_time_zone() {
    let summer: jiff::Timestamp = "2025-03-29T12:00:00Z".parse().expect("time");
    let clock = ManualClock::new();
    clock.set_system_time(summer.into());
    let (daily, seen) = plain(&clock);
    let at_nine = Repeat::cron("0 9 * * *", "Europe/Vienna").expect("valid");
    assert!(at_nine.is_cron());
    let first = at_nine.after(daily.now(), daily.now()).expect("zone").expect("occurrence");
    let new = NewTimeout::new("nine", first, b"").expect("valid").repeat(at_nine);
    daily.schedule_new(new).wait().expect("schedule");
    clock.advance(3 * DAY);
    let times: Vec<_> = seen
        .try_iter()
        .map(|seen| jiff::Timestamp::try_from(seen.2.to_system_time()))
        .map(|time| time.expect("in range").to_string())
        .collect();
    // Summer time began on the 30th.
    assert_eq!(times, ["2025-03-30T07:00:00Z", "2025-03-31T07:00:00Z", "2025-04-01T07:00:00Z"]);
    let after = |rule: &str, zone, time: &str| {
        let time = time.parse::<jiff::Timestamp>().expect("time").try_into().expect("in range");
        let next = Repeat::cron(rule, zone).expect("valid").after(time, time).expect("zone");
        next.map(|next| next.to_string())
    };
    // The zone skipped the 30th.
    let next = after("0 9 * * *", "Pacific/Apia", "2011-12-29T19:00:00Z");
    assert_eq!(next.as_deref(), Some("2011-12-30T19:00:00Z"));
    assert_eq!(after("0 9 30 2 *", "Pacific/Apia", "2011-12-29T19:00:00Z"), None);
    assert_eq!(Repeat::cron("nonsense", "UTC"), Err(InputError::Cron));
    assert_eq!(Repeat::cron("0 9 * * *", "Mars/Olympus"), Err(InputError::Zone));
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    type Builder = DurableTimerBuilder;
    type Setting = fn(Builder) -> Builder;
    let wrong: [(&str, Setting); 14] = [
        ("window", |builder| builder.window(Duration::from_micros(999))),
        ("window_capacity", |builder| builder.window_capacity(0, 1)),
        ("window_capacity", |builder| builder.window_capacity(1, 0)),
        ("window_capacity", |builder| builder.window_capacity((1 << 24) + 1, 1)),
        ("max_deliveries", |builder| builder.max_deliveries(0)),
        ("lease", |builder| builder.lease(Duration::from_micros(2_999))),
        ("worker", |builder| builder.worker("")),
        ("worker", |builder| builder.worker("node\0")),
        ("worker", |builder| builder.worker("a".repeat(256))),
        ("recheck", |builder| builder.recheck(Some(Duration::ZERO))),
        ("handler_limit", |builder| builder.handler_limit(Some(Duration::ZERO))),
        ("threads", |builder| builder.threads(0)),
        ("queue", |builder| builder.queue(Queue::with("a".repeat(65), drop))),
        ("queue", |builder| {
            ["a", "a"].map(|name| Queue::with(name, drop)).into_iter().fold(builder, Builder::queue)
        }),
    ];
    for (name, set) in wrong {
        let builder = || set(DurableTimer::builder(SqliteStore::in_memory()));
        for refused in [builder().build_blocking(|_| Ok(())), builder().build_with(drop)] {
            let error = refused.map(drop).expect_err(name);
            assert!(matches!(error, BuildError::Setting(wrong) if wrong == name), "{error}");
        }
    }
}

#[cfg(feature = "tracing")]
thread_local! {
    static WARNINGS: Cell<usize> = const { Cell::new(0) };
}

/// Returns how many warnings a call emits on this thread. On threads of timers, the subscriber
/// panics. It is a global one: while there is only a scoped one, a thread without it that reaches
/// an event first turns it off for every thread.
#[cfg(feature = "tracing")]
pub(crate) fn warnings(call: impl FnOnce()) -> usize {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing::subscriber::set_global_default(Counts).expect("the only one"));
    WARNINGS.set(0);
    call();
    WARNINGS.get()
}

#[cfg(feature = "tracing")]
struct Counts;

#[cfg(feature = "tracing")]
impl tracing::Subscriber for Counts {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let thread = std::thread::current();
        if thread.name().is_some_and(|name| name.starts_with("delaywheel-")) {
            // Without a message on standard error.
            std::panic::resume_unwind(Box::new("the subscriber fails"));
        }
        let is_warning = *event.metadata().level() == tracing::Level::WARN;
        WARNINGS.set(WARNINGS.get() + usize::from(is_warning));
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}
