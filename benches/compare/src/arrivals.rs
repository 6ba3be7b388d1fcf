//! Notes when timeouts run: each once, how early or how late.

use crate::prelude::*;

/// Notes when each timeout ran. A timeout is known by its deadline, in nanoseconds after the
/// origin.
///
/// Entries are written one behind the other, so a note costs one look at the clock and a few
/// nanoseconds.
pub struct Arrivals {
    origin: Instant,
    entries: Box<[Entry]>,
    len: AtomicUsize,
}

#[derive(Default)]
struct Entry {
    due: AtomicU64,
    /// 0 until the entry is complete.
    at: AtomicU64,
}

impl Arrivals {
    /// Makes room for this many timeouts, and as many that run twice. Sets the origin to the
    /// present.
    pub fn new(capacity: usize) -> Arc<Self> {
        let entries = (0..2 * capacity).map(|_| Entry::default()).collect();
        Arc::new(Self { origin: Instant::now(), entries, len: AtomicUsize::new(0) })
    }

    /// The instant that is `due` nanoseconds after the origin.
    pub fn instant(&self, due: u64) -> Instant {
        self.origin + Duration::from_nanos(due)
    }

    /// Returns the deadline of a timeout that is scheduled at once with this delay.
    pub fn due_in(&self, delay: Duration) -> u64 {
        nanos(self.origin.elapsed() + delay)
    }

    /// Notes that the timeout with this deadline runs now.
    pub fn note(&self, due: u64) {
        let at = nanos(self.origin.elapsed());
        let entry = &self.entries[self.len.fetch_add(1, Ordering::Relaxed)];
        entry.due.store(due, Ordering::Relaxed);
        entry.at.store(at.max(1), Ordering::Release);
    }

    /// Waits until as many have run as were due, or until `patience` after the last deadline.
    pub fn settle(&self, mut due: Vec<u64>, patience: Duration) -> Outcome {
        due.sort_unstable();
        let end = self.instant(due.last().copied().unwrap_or(0)) + patience;
        while self.len.load(Ordering::Acquire) < due.len() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let len = self.len.load(Ordering::Acquire);
        let mut arrived: Vec<_> = self.entries[..len].iter().map(Entry::settle).collect();
        arrived.sort_unstable();
        let mut outcome = Outcome { arrived: Vec::with_capacity(due.len()), faults: 0 };
        let mut rest = arrived.into_iter().peekable();
        for due in due {
            while rest.next_if(|&(other, _)| other < due).is_some() {
                outcome.faults += 1;
            }
            match rest.next_if(|&(other, _)| other == due) {
                Some(arrival) => outcome.arrived.push(arrival),
                None => outcome.faults += 1,
            }
        }
        outcome.faults += rest.count();
        outcome
    }

    /// The same for timers that must run every timeout once and never early.
    pub fn settle_strictly(&self, due: Vec<u64>) -> Outcome {
        let outcome = self.settle(due, Duration::from_mins(1));
        assert_eq!(outcome.faults, 0, "timeouts that were lost or ran twice");
        assert!(outcome.arrived.iter().all(|(due, at)| due <= at), "a timeout ran early");
        outcome
    }
}

impl Entry {
    fn settle(&self) -> (u64, u64) {
        wait_until("an entry is complete", || self.at.load(Ordering::Acquire) > 0);
        (self.due.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed))
    }
}

/// When timeouts ran.
pub struct Outcome {
    /// Deadline, and when the timeout ran, in nanoseconds; only timeouts that ran once.
    pub arrived: Vec<(u64, u64)>,
    /// Timeouts that were lost or ran more than once.
    pub faults: usize,
}

impl Outcome {
    /// Distribution of lateness of the timeouts that were due in a range, in nanoseconds.
    pub fn lateness(&self, due: std::ops::Range<u64>) -> Histogram<u64> {
        let within = self.arrived.iter().filter(|(deadline, _)| due.contains(deadline));
        histogram(within.map(|(due, at)| at.saturating_sub(*due)))
    }
}

pub fn histogram(nanos: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are a valid precision");
    for nanos in nanos {
        histogram.record(nanos).expect("the histogram resizes itself");
    }
    histogram
}

/// A percentile by its name: `p99.9`, or `max`.
pub fn percentile(histogram: &Histogram<u64>, name: &str) -> u64 {
    let number = |number: &str| number.parse().expect("the name has a number");
    histogram.value_at_percentile(name.strip_prefix('p').map_or(100.0, number))
}
