//! Well-behaved timeouts and operations, one after the other, and their lateness during an attack.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation, Purgatory, Timer};

use parking_lot::Mutex;

/// Delay of each of them.
const DELAY: Duration = Duration::from_millis(2);

/// The key of the well-behaved operations. No attack uses it.
pub(crate) const QUIET: u32 = u32::MAX;

/// Schedules well-behaved timeouts, and measures their lateness.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    lateness: Arc<Mutex<Vec<Duration>>>,
    is_over: Arc<AtomicBool>,
}

impl Beside {
    pub(crate) fn new() -> Self {
        Self { lateness: Arc::default(), is_over: Arc::default() }
    }

    /// Schedules a timeout that schedules the next one, until [`finish`](Self::finish).
    pub(crate) fn follow(&self, timer: &Timer) {
        let (own, next, due) = (self.clone(), timer.clone(), Instant::now() + DELAY);
        // A timer that is full or shut down refuses the next one.
        let _ = timer.schedule(DELAY, move || {
            own.record(due);
            if !own.is_over.load(Relaxed) {
                own.follow(&next);
            }
        });
    }

    /// Starts an operation that starts the next one, until [`finish`](Self::finish).
    pub(crate) fn wait(&self, purgatory: &Purgatory<u32, Client>) {
        let behaved = (self.clone(), purgatory.clone(), Instant::now() + DELAY);
        let client = Client(Some(Box::new(behaved)));
        let _ = purgatory.try_complete_else_watch(client, [QUIET], DELAY);
    }

    fn record(&self, due: Instant) {
        self.lateness.lock().push(due.elapsed());
    }

    /// The 99th percentile and the maximum since the last call, in milliseconds.
    pub(crate) fn take(&self) -> [f64; 2] {
        let mut late = mem::take(&mut *self.lateness.lock());
        late.sort_unstable();
        let last = late.len().saturating_sub(1);
        [99, 100].map(|percent| {
            late.get(last * percent / 100).map_or(0.0, |late| late.as_secs_f64() * 1e3)
        })
    }

    pub(crate) fn finish(&self) {
        self.is_over.store(true, Relaxed);
    }
}

type Behaved = (Beside, Purgatory<u32, Client>, Instant);

/// An operation whose check never holds: hostile or well-behaved.
pub(crate) struct Client(Option<Box<Behaved>>);

impl Client {
    pub(crate) const fn hostile() -> Self {
        Self(None)
    }
}

impl DelayedOperation<u32> for Client {
    fn complete(self, completion: Completion) {
        if let (Some(behaved), Completion::Expired) = (self.0, completion) {
            let (beside, purgatory, due) = *behaved;
            beside.record(due);
            if !beside.is_over.load(Relaxed) {
                beside.wait(&purgatory);
            }
        }
    }
}
