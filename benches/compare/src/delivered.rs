//! What a handler was given and when: each timeout once, none early, and how late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::real::wait_until;

/// Takes down when timeouts were delivered; their value is when they are due.
///
/// All times are nanoseconds since the origin. Entries are written one after the other, so that
/// taking down costs no more than a look at the clock and a few nanoseconds.
#[derive(Debug)]
pub struct Delivered {
    origin: Instant,
    entries: Box<[Entry]>,
    /// Number of entries that are taken.
    taken: AtomicUsize,
}

#[derive(Debug, Default)]
struct Entry {
    due: AtomicU64,
    /// 0 until the entry is complete.
    at: AtomicU64,
}

impl Delivered {
    /// Makes room for as many, and sets the origin to the present.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Arc<Self> {
        let entries = (0..capacity).map(|_| Entry::default()).collect();
        Arc::new(Self { origin: Instant::now(), entries, taken: AtomicUsize::new(0) })
    }

    /// The instant that is so many nanoseconds after the origin.
    #[must_use]
    pub fn instant(&self, due: u64) -> Instant {
        self.origin + Duration::from_nanos(due)
    }

    /// Takes down that the timeout that was due then is delivered now.
    ///
    /// # Panics
    ///
    /// If there is no room.
    pub fn take_down(&self, due: u64) {
        let at = nanos(self.origin.elapsed());
        let entry = &self.entries[self.taken.fetch_add(1, Ordering::Relaxed)];
        entry.due.store(due, Ordering::Relaxed);
        entry.at.store(at.max(1), Ordering::Release);
    }

    /// Waits until as many have been delivered as there is room for; checks that they are those
    /// that were due at these times, each once and none early. Returns when each was due and how
    /// late it was.
    ///
    /// # Panics
    ///
    /// If one was lost, doubled or early.
    #[must_use]
    pub fn settle(&self, mut due: Vec<u64>) -> Vec<(u64, u64)> {
        wait_until("all are delivered", || {
            self.entries.last().is_none_or(|entry| entry.at.load(Ordering::Acquire) > 0)
        });
        let mut delivered: Vec<_> = self.entries.iter().map(Entry::settle).collect();
        delivered.sort_unstable();
        due.sort_unstable();
        assert!(delivered.iter().map(|&(due, _)| due).eq(due), "some were lost or doubled");
        delivered
    }
}

impl Entry {
    /// When the timeout was due, and how late it was.
    fn settle(&self) -> (u64, u64) {
        wait_until("an entry is complete", || self.at.load(Ordering::Acquire) > 0);
        let (due, at) = (self.due.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
        assert!(at >= due, "a timeout was {} ns early", due - at);
        (due, at - due)
    }
}

/// Draws when timeouts are due: uniformly in a span of time.
#[must_use]
pub fn draw(rng: &mut Rng, count: u32, start: Duration, span: Duration) -> Vec<u64> {
    let (start, end) = (nanos(start), nanos(start + span));
    (0..count).map(|_| rng.u64(start..end)).collect()
}

/// How often each lateness was seen, or each duration; in nanoseconds.
///
/// # Panics
///
/// Never: a histogram resizes itself.
pub fn histogram(nanos: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are precise enough");
    for nanos in nanos {
        histogram.record(nanos).expect("a histogram resizes itself");
    }
    histogram
}

/// A percentile in milliseconds.
#[must_use]
pub fn millis(histogram: &Histogram<u64>, percentile: f64) -> f64 {
    Duration::from_nanos(histogram.value_at_percentile(percentile)).as_secs_f64() * 1e3
}

/// A duration in nanoseconds.
///
/// # Panics
///
/// If it takes centuries.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("nothing here takes centuries")
}
