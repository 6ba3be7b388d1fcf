//! The cost of hostile use: time and memory of each hostile operation, and the lateness of
//! well-behaved timeouts beside it.
//!
//! Each attack has a timer or purgatory of its own. The time is that of the attacker. Live memory
//! is measured at the end of the attack, and again after all its timeouts are cancelled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{OperationKey, Purgatory, Timeout, Timer, Watch};

use crate::{
    beside::{Beside, Client},
    memory,
};

const MILLION: u32 = 1_000_000;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Time without an attack, and length of the attacks that have no end.
const WHILE: Duration = Duration::from_secs(1);

/// Bytes that may stay live after an attack.
const LEFT: usize = 4 << 20;

/// Measures every attack. Returns whether none left memory behind.
pub(crate) fn run() -> bool {
    println!(
        "| attack | operations | ns each | bytes each | MB left | late 99% / most (ms) | alone |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let timers = TIMERS.iter().map(|&(name, attack)| on_timer(name, attack));
    let purgatories = PURGATORIES.iter().map(|&(name, attack)| on_purgatory(name, attack));
    let faults = timers.chain(purgatories).filter(|is_clean| !is_clean).count();
    if faults > 0 {
        eprintln!("{faults} attacks left more than {LEFT} bytes behind");
    }
    faults == 0
}

type OnTimer = fn(&Timer) -> Held<Timeout>;
type OnPurgatory = fn(&Purgatory<u32, Client>) -> Held<OperationKey>;

const TIMERS: [(&str, OnTimer); 7] = [
    ("timeouts without end", |timer| {
        Held::new(MILLION, |_| timer.schedule(Duration::MAX, || ()).ok())
    }),
    ("a batch without end", |timer| {
        let batch = (0..MILLION).map(|_| (Duration::MAX, || ()));
        Held {
            operations: u64::from(MILLION),
            handles: timer.schedule_batch(batch).unwrap_or_default(),
        }
    }),
    ("timeouts for one moment, not far", |timer| {
        Held::new(MILLION, |_| timer.schedule(HOUR, || ()).ok())
    }),
    ("cancel storm", |timer| {
        Held::new(MILLION, |_| {
            drop(timer.schedule(MINUTE, || ()).map(Timeout::cancel_on_drop));
            None
        })
    }),
    ("reset storm, later", |timer| resets(timer, |number| 1000 + u64::from(number))),
    ("reset storm, earlier", |timer| {
        resets(timer, |number| 2 * u64::from(MILLION - number) + 9000)
    }),
    ("callbacks that reschedule at once", reschedule_all),
];

const PURGATORIES: [(&str, OnPurgatory); 6] = [
    ("waiters on one key", |purgatory| {
        Held::new(MILLION, |_| watch(purgatory, [0], Duration::MAX))
    }),
    ("waiters, each on its own key", |purgatory| {
        Held::new(MILLION, |number| watch(purgatory, [number], Duration::MAX))
    }),
    ("one operation on very many keys", |purgatory| {
        let handles = watch(purgatory, 0..MILLION, Duration::MAX).into_iter().collect();
        Held { operations: u64::from(MILLION), handles }
    }),
    ("thresholds that are never reached", |purgatory| {
        Held::new(MILLION, |number| {
            let watches = [Watch::Threshold(0, u64::MAX - u64::from(number))];
            purgatory.watch_all(Client::hostile(), watches, Duration::MAX).ok()?.key()
        })
    }),
    ("events on a key with 10,000 waiters", |purgatory| {
        let mut held = Held::new(10_000, |_| watch(purgatory, [0], Duration::MAX));
        // Each event has every one of them checked.
        for _ in 0..100 {
            purgatory.check_and_complete(&0);
        }
        held.operations = 100 * 10_000;
        held
    }),
    ("waits that are cancelled at once", |purgatory| {
        Held::new(MILLION, |number| {
            let key = watch(purgatory, [number % 100], MINUTE)?;
            purgatory.cancel(key);
            None
        })
    }),
];

/// Handles that an attack holds at its end.
struct Held<H> {
    operations: u64,
    handles: Vec<H>,
}

impl<H> Held<H> {
    fn new(operations: u32, mut attack: impl FnMut(u32) -> Option<H>) -> Self {
        let handles = (0..operations).filter_map(&mut attack).collect();
        Self { operations: u64::from(operations), handles }
    }
}

fn watch(
    purgatory: &Purgatory<u32, Client>,
    keys: impl IntoIterator<Item = u32>,
    delay: Duration,
) -> Option<OperationKey> {
    purgatory.try_complete_else_watch(Client::hostile(), keys, delay).ok()?.key()
}

/// Resets a hundred timeouts again and again, to a delay in milliseconds.
fn resets(timer: &Timer, delay: impl Fn(u32) -> u64) -> Held<Timeout> {
    let handles: Vec<_> = (0..100).filter_map(|_| timer.schedule(HOUR, || ()).ok()).collect();
    for number in 0..MILLION {
        handles[number as usize % handles.len()].reset(Duration::from_millis(delay(number)));
    }
    Held { operations: u64::from(MILLION), handles }
}

/// Runs callbacks that schedule themselves again at once, for [`WHILE`].
fn reschedule_all(timer: &Timer) -> Held<Timeout> {
    let (count, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    (0..4).for_each(|_| reschedule(timer, &count, &is_over));
    thread::sleep(WHILE);
    is_over.store(true, Relaxed);
    Held { operations: count.load(Relaxed).max(1), handles: Vec::new() }
}

fn reschedule(timer: &Timer, count: &Arc<AtomicU64>, is_over: &Arc<AtomicBool>) {
    let (own, next, end) = (timer.clone(), Arc::clone(count), Arc::clone(is_over));
    let _ = timer.schedule(Duration::ZERO, move || {
        next.fetch_add(1, Relaxed);
        if !end.load(Relaxed) {
            reschedule(&own, &next, &end);
        }
    });
}

fn on_timer(name: &str, attack: OnTimer) -> bool {
    let (timer, beside) = (Timer::new(), Beside::new());
    (0..10).for_each(|_| beside.follow(&timer));
    measure(
        name,
        &beside,
        || attack(&timer),
        |timeouts| {
            timer.cancel_batch(timeouts);
            timer.shrink();
        },
    )
}

fn on_purgatory(name: &str, attack: OnPurgatory) -> bool {
    let (purgatory, beside) = (Purgatory::new(), Beside::new());
    (0..10).for_each(|_| beside.wait(&purgatory));
    let is_clean = measure(
        name,
        &beside,
        || attack(&purgatory),
        |keys| {
            for key in keys {
                purgatory.cancel_with(key, ());
            }
            purgatory.shrink();
        },
    );
    drop(purgatory.shutdown());
    is_clean
}

/// Measures an attack, prints its row, and returns whether it left nothing behind.
fn measure<H>(
    name: &str,
    beside: &Beside,
    attack: impl FnOnce() -> Held<H>,
    cancel: impl FnOnce(Vec<H>),
) -> bool {
    thread::sleep(WHILE);
    let alone = beside.take();
    let (before, begun) = (memory::live(), Instant::now());
    let Held { operations, handles } = attack();
    let nanos = begun.elapsed().as_nanos() / u128::from(operations);
    let kept = handles.capacity() * size_of::<H>();
    let taken = memory::live().saturating_sub(before + kept);
    let during = beside.take();
    cancel(handles);
    beside.finish();
    let left = memory::live().saturating_sub(before);
    let bytes = taken as u64 / operations;
    println!(
        "| {name} | {operations} | {nanos} | {bytes} | {:.1} | {:.1} / {:.1} | {:.1} / {:.1} |",
        Duration::from_micros(left as u64).as_secs_f64(),
        during[0],
        during[1],
        alone[0],
        alone[1]
    );
    left <= LEFT
}
