//! The books: every timeout and operation that the library was given, and whether it has ended.
//!
//! A place is taken when something is handed to the library, and given back when it has ended. What
//! ends twice finds its place given back, or taken by another; what is lost never gives it back.
//! Places are few and allocated beforehand, so that the books do not grow with what they count.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    breaches::Breaches,
    clock::{FaultyClock, nanos},
};

/// What user code of a timer does to a purgatory, or the other way round.
pub(crate) type Poke = Box<dyn Fn(&mut fastrand::Rng) + Send + Sync>;

/// Lateness is counted up to a minute, in nanoseconds.
const LATEST: u64 = 60_000_000_000;

/// The place of something that was given to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    place: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    is_open: bool,
    /// Whether it was ended by hand, without its condition.
    is_forced: bool,
    /// Not to be run before the clock shows this.
    due: u64,
    /// How often the clock had gone wrong when the deadline was set.
    faults: u64,
}

/// Counts of what the load has done, to be compared with those of the library.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Handed to the library, and not refused.
    pub(crate) taken: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) ran: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    /// Handed back at the end.
    pub(crate) returned: AtomicU64,
    /// Panics that were injected where the library counts them.
    pub(crate) panicked: AtomicU64,
    pub(crate) reset: AtomicU64,
}

/// Books of one timer or purgatory.
#[derive(Debug)]
pub(crate) struct Books {
    name: &'static str,
    clock: FaultyClock,
    breaches: Breaches,
    places: Vec<Mutex<Place>>,
    free: ArrayQueue<u32>,
    /// Lateness in nanoseconds of what ran since the last look, if the clock went right meanwhile.
    lateness: Mutex<Histogram<u64>>,
    pub(crate) counts: Counts,
    /// Nothing more is to be handed to the library.
    is_over: AtomicBool,
}

impl Books {
    pub(crate) fn new(
        name: &'static str,
        places: u32,
        clock: &FaultyClock,
        breaches: &Breaches,
    ) -> Arc<Self> {
        let free = ArrayQueue::new(places as usize);
        (0..places).for_each(|place| assert!(free.push(place).is_ok()));
        Arc::new(Self {
            name,
            clock: clock.clone(),
            breaches: breaches.clone(),
            places: (0..places).map(|_| Mutex::default()).collect(),
            free,
            lateness: Mutex::new(Histogram::new_with_max(LATEST, 2).expect("they are valid")),
            counts: Counts::default(),
            is_over: AtomicBool::new(false),
        })
    }

    pub(crate) fn clock(&self) -> &FaultyClock {
        &self.clock
    }

    pub(crate) fn breaches(&self) -> &Breaches {
        &self.breaches
    }

    fn place(&self, entry: Entry) -> MutexGuard<'_, Place> {
        self.places[entry.place as usize].lock()
    }

    /// Takes a place for what is due at so many nanoseconds; `None` if all are taken, or all is
    /// over.
    pub(crate) fn open(&self, due: u64) -> Option<Entry> {
        let place = self.free.pop().filter(|_| !self.is_over())?;
        let mut contents = self.places[place as usize].lock();
        let generation = contents.generation.wrapping_add(1);
        let faults = self.clock.faults();
        *contents = Place { generation, is_open: true, is_forced: false, due, faults };
        Some(Entry { place, generation })
    }

    /// Gives a place back.
    fn close(&self, entry: Entry, how: &str) -> Option<(u64, u64)> {
        let mut place = self.place(entry);
        if place.generation != entry.generation || !place.is_open {
            self.breaches.add(|| format!("{}: {entry:?} ended twice, now {how}", self.name));
            return None;
        }
        place.is_open = false;
        let end = (place.due, place.faults);
        drop(place);
        assert!(self.free.push(entry.place).is_ok(), "there is room for every place");
        Some(end)
    }

    /// Notes that something is run because it is due.
    pub(crate) fn run(&self, entry: Entry) {
        let Some((due, faults)) = self.close(entry, "run") else { return };
        // The due time was noted before, so nothing that is shown from now on can excuse it.
        let shown = self.clock.shown();
        self.breaches.unless(shown >= due, || {
            format!("{}: {entry:?} was {} ns early", self.name, due - shown)
        });
        if faults == self.clock.faults() {
            let late = self.clock.look().saturating_sub(due);
            self.lateness.lock().saturating_record(late);
        }
        self.counts.ran.fetch_add(1, Relaxed);
    }

    /// Notes that the library took something in, which may have ended meanwhile.
    pub(crate) fn take(&self) {
        self.counts.taken.fetch_add(1, Relaxed);
    }

    pub(crate) fn refuse(&self, entry: Entry) {
        self.close(entry, "refused");
        self.counts.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn cancel(&self, entry: Entry) {
        self.close(entry, "cancelled");
        self.counts.cancelled.fetch_add(1, Relaxed);
    }

    pub(crate) fn give_back(&self, entry: Entry) {
        self.close(entry, "returned");
        self.counts.returned.fetch_add(1, Relaxed);
    }

    /// Notes an end of another kind.
    pub(crate) fn end(&self, entry: Entry, how: &str) {
        self.close(entry, how);
    }

    /// Lets something run from an earlier time on, if it is to be reset to that.
    pub(crate) fn lower(&self, entry: Entry, due: u64) {
        let mut place = self.place(entry);
        if place.generation == entry.generation {
            place.due = place.due.min(due);
            // From which deadline on it is late is not known any more.
            place.faults = u64::MAX;
        }
    }

    /// Notes the only deadline that something has, after a reset.
    pub(crate) fn set(&self, entry: Entry, due: u64) {
        let mut place = self.place(entry);
        if place.generation == entry.generation && place.is_open {
            place.due = due;
        }
    }

    /// Notes that something is ended by hand.
    pub(crate) fn force(&self, entry: Entry) {
        let mut place = self.place(entry);
        place.is_forced |= place.generation == entry.generation;
    }

    pub(crate) fn is_forced(&self, entry: Entry) -> bool {
        self.place(entry).is_forced
    }

    /// Hands out no more places.
    pub(crate) fn finish(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// How many have not ended.
    pub(crate) fn open_count(&self) -> usize {
        self.places.iter().filter(|place| place.lock().is_open).count()
    }

    /// Lateness since the last call: the median, the 99th percentile and the greatest.
    pub(crate) fn lateness(&self) -> [Duration; 3] {
        let mut lateness = self.lateness.lock();
        let figures = [0.5, 0.99, 1.0].map(|quantile| lateness.value_at_quantile(quantile));
        lateness.reset();
        figures.map(Duration::from_nanos)
    }
}

/// So long after a look at the clock.
pub(crate) fn after(look: u64, delay: Duration) -> u64 {
    look.saturating_add(nanos(delay))
}
