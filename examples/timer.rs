//! A small broker on one timer: what the timer can do, in real time, in about two seconds.
//!
//! ```text
//! cargo run --release --example timer
//! ```
//!
//! Every section prints its events with the time since it began, and fails if an expected event is
//! missing.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{
    Debounce, DelayQueue, MissedTicks, ScheduleErrorKind, Throttle, Timer, TimerStats,
};

const MS: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    requests()?;
    sessions()?;
    limit()?;
    repetition()?;
    debounce_and_throttle()?;
    retries()?;
    drain()?;
    Ok(())
}

/// Prints lines of one section, with the time since it began.
#[derive(Clone, Copy)]
struct Section(Instant);

impl Section {
    fn new(title: &str) -> Self {
        println!("\n{title}");
        Self(Instant::now())
    }

    fn say(self, text: &str) {
        println!("{:>8.1} ms  {text}", self.0.elapsed().as_secs_f64() * 1e3);
    }
}

/// Plain values, without an allocation for each: request ids, of which most are answered.
fn requests() -> Result<(), Box<dyn Error>> {
    let section = Section::new("requests: a typed timer, and many threads");
    let (expired, timed_out) = mpsc::channel();
    let timer = Timer::builder()
        .tick(MS)
        .shards(4)
        .max_pending(1_000_000)
        .name("requests")
        .build_with(move |request: u32| expired.send(request).expect("main waits for it"))?;
    thread::scope(|scope| {
        for thread in 0..4 {
            let timer = &timer;
            scope.spawn(move || {
                for request in (thread * 50_000..).take(50_000) {
                    let key = timer.schedule(50 * MS, request).expect("there is room");
                    // One in ten thousand gets no answer in time.
                    if request % 10_000 > 0 {
                        timer.cancel(key);
                    }
                }
            });
        }
    });
    let made = timer.stats().scheduled;
    section.say(&format!("{made} requests made, {} of them answered", timer.stats().cancelled));
    let late: Vec<_> = timed_out.iter().take(20).collect();
    section.say(&format!("{} timed out", late.len()));
    report(&timer.stats());
    Ok(())
}

/// Handles: inspect a timeout, postpone it, cancel it at the end of a scope.
fn sessions() -> Result<(), Box<dyn Error>> {
    let section = Section::new("a session: a handle that is reset, and a guard");
    let timer = Timer::new();
    let (ended, end) = mpsc::channel();
    let session = timer.schedule(30 * MS, move || ended.send(()).expect("main waits for it"))?;
    for _ in 0..3 {
        thread::sleep(10 * MS); // The client is busy elsewhere.
        assert!(session.reset(30 * MS), "a heartbeat puts the end off");
    }
    section.say("three heartbeats");
    end.recv()?;
    section.say("no heartbeat for 30 ms: the session has ended");
    assert!(!session.is_pending() && !session.cancel() && session.deadline().is_none());

    let lock = timer.schedule(30 * MS, || panic!("it was cancelled"))?.cancel_on_drop();
    drop(lock);
    timer.schedule_at(Instant::now() + 5 * MS, || ())?;
    section.say("a guard was dropped, and its timeout with it");
    Ok(())
}

/// Many at once, up to a limit; the timer hands the others back.
fn limit() -> Result<(), Box<dyn Error>> {
    let section = Section::new("a limit: 100,000 pending timeouts");
    let timer = Timer::builder().max_pending(100_000).build_with(|_: u32| ())?;
    let keys: Vec<_> =
        (0..100_000).flat_map(|id| timer.schedule(Duration::from_secs(60), id)).collect();
    let refused = timer.schedule(Duration::from_secs(60), 100_000).unwrap_err();
    assert_eq!(refused.kind(), ScheduleErrorKind::Full);
    section.say(&format!("{} taken in, {} handed back", keys.len(), refused.into_value()));
    let cancelled = keys.into_iter().filter_map(|key| timer.cancel(key)).count();
    timer.shrink();
    section.say(&format!("{cancelled} cancelled, and their memory given back"));
    Ok(())
}

/// On a grid, which is kept when a run takes too long.
fn repetition() -> Result<(), Box<dyn Error>> {
    let section = Section::new("repetition: every 20 ms, one run of which takes 50");
    let timer = Timer::new();
    let (beat, beats) = mpsc::channel();
    let mut count = 0;
    let heartbeat = timer.repeat(20 * MS).at_fixed_rate(MissedTicks::Skip, move |itself| {
        count += 1;
        section.say(&format!("run {count}"));
        match count {
            2 => thread::sleep(50 * MS),
            5 => assert!(itself.stop()),
            _ => {}
        }
        beat.send(()).expect("main waits for it");
    })?;
    assert_eq!(beats.iter().take(5).count(), 5);
    assert!(!heartbeat.is_running());
    let (done, runs) = mpsc::channel();
    let cleaner = timer.repeat(5 * MS).with_fixed_delay(move |_| {
        // Stopped when the last counter is dropped.
        let _ = done.send(());
    })?;
    assert_eq!(runs.iter().take(3).count(), 3);
    cleaner.stop();
    section.say("and three times 5 ms after the end of the last");
    Ok(())
}

/// Calls that come too often.
fn debounce_and_throttle() -> Result<(), Box<dyn Error>> {
    let section = Section::new("debounce and throttle: 40 changes, one every 5 ms");
    let timer = Timer::new();
    let counts = Arc::new(Mutex::new(HashMap::new()));
    let count = |what| {
        let counts = Arc::clone(&counts);
        move || *counts.lock().expect("no holder panics").entry(what).or_insert(0) += 1
    };
    let save = Debounce::new(&timer, 30 * MS, count("saved, once the changes ceased"));
    let draw = Throttle::new(&timer, 50 * MS, count("drawn, at most every 50 ms"));
    for _ in 0..40 {
        save.call()?;
        draw.call()?;
        thread::sleep(5 * MS);
    }
    timer.finish(Duration::from_secs(5));
    for (what, count) in &*counts.lock().expect("no holder panics") {
        section.say(&format!("{count:>2} x {what}"));
    }
    Ok(())
}

/// A queue to receive from: failed messages are tried again, with a longer delay each time.
fn retries() -> Result<(), Box<dyn Error>> {
    let section = Section::new("a delay queue: retries, each after twice the delay");
    let queue = DelayQueue::new();
    queue.insert(10 * MS, 1)?;
    while let Ok(attempt) = queue.recv_timeout(Duration::from_secs(5)) {
        section.say(&format!("attempt {attempt}"));
        if attempt == 4 {
            break;
        }
        queue.insert(10 * MS * 2_u32.pow(attempt), attempt + 1)?;
    }
    assert!(queue.shutdown().is_empty());
    Ok(())
}

/// The end: timeouts that are due soon still run, the others are returned.
fn drain() -> Result<(), Box<dyn Error>> {
    let section = Section::new("the end: drain for 100 ms");
    let timer = Timer::builder().executor_threads(2).build()?;
    timer.schedule(20 * MS, move || section.say("flushed, as it came due"))?;
    timer.schedule(Duration::from_secs(3600), || println!("    a task of the last hour"))?;
    let left = timer.finish(100 * MS);
    section.say(&format!("drained; {} never ran, so run it now:", left.len()));
    for task in left {
        task.run();
    }
    let error = timer.schedule(MS, || ()).unwrap_err();
    assert_eq!(error.kind(), ScheduleErrorKind::ShutDown);
    Ok(())
}

fn report(stats: &TimerStats) {
    println!(
        "             {} scheduled, {} cancelled, {} expired; {} wake-ups",
        stats.scheduled, stats.cancelled, stats.expired, stats.wakeups,
    );
    let (median, worst) = (stats.lateness.percentile(50.0), stats.lateness.max());
    println!(
        "             late by {median:?} in the median, by {worst:?} at worst, in whole ticks"
    );
}
