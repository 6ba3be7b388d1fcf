//! The well-behaved: one timeout after the other, and how late they are while somebody attacks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation, Purgatory, Timer};
use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// The delay of each of them.
const DELAY: Duration = Duration::from_millis(2);

/// The key that the well-behaved wait on, which no attack touches.
pub(crate) const QUIET: u32 = u32::MAX;

/// Lateness of the well-behaved, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    lateness: Arc<Mutex<Histogram<u64>>>,
    is_over: Arc<AtomicBool>,
}

impl Beside {
    pub(crate) fn new() -> Self {
        let lateness = Histogram::new_with_max(60_000_000_000, 2).expect("they are valid");
        Self { lateness: Arc::new(Mutex::new(lateness)), is_over: Arc::default() }
    }

    /// Has timeouts follow each other, until it is over.
    pub(crate) fn follow(&self, timer: &Timer) {
        let (own, next, due) = (self.clone(), timer.clone(), Instant::now() + DELAY);
        // A timer that is full or has ended refuses; then none follows.
        let _ = timer.schedule(DELAY, move || {
            own.record(due);
            if !own.is_over.load(Relaxed) {
                own.follow(&next);
            }
        });
    }

    /// Has operations follow each other, until it is over.
    pub(crate) fn wait(&self, purgatory: &Purgatory<u32, Client>) {
        let behaved = (self.clone(), purgatory.clone(), Instant::now() + DELAY);
        let client = Client(Some(Box::new(behaved)));
        let _ = purgatory.try_complete_else_watch(client, [QUIET], DELAY);
    }

    fn record(&self, due: Instant) {
        let late = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.lateness.lock().saturating_record(late);
    }

    /// The 99th percentile and the greatest of what ran since the last call, in milliseconds.
    pub(crate) fn take(&self) -> [f64; 2] {
        let mut lateness = self.lateness.lock();
        let figures = [0.99, 1.0].map(|quantile| {
            Duration::from_nanos(lateness.value_at_quantile(quantile)).as_secs_f64() * 1e3
        });
        lateness.reset();
        figures
    }

    pub(crate) fn finish(&self) {
        self.is_over.store(true, Relaxed);
    }
}

type Behaved = (Beside, Purgatory<u32, Client>, Instant);

/// An operation that cannot complete by itself: of an attacker, or of the well-behaved.
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
