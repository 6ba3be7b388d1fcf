//! Books: an entry for each timeout or operation in the hands of the library.
//!
//! The load opens an entry before it calls the library, and closes it when the timeout or operation
//! ends. A second end finds the entry closed, or opened again under the next generation. A lost
//! timeout leaves its entry open. Seats for entries are allocated in advance, so the books do not
//! grow.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    breaches::Breaches,
    clock::{FaultyClock, nanos},
};

/// A call from user code of the timer into the purgatory, or the reverse.
pub(crate) type Poke = Box<dyn Fn(&mut fastrand::Rng) + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    seat: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct Seat {
    generation: u32,
    is_open: bool,
    /// Whether the load completed it by its handle.
    is_forced: bool,
    /// The clock must show this time before it runs, in nanoseconds.
    due: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) taken: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) ran: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) returned: AtomicU64,
    /// Injected panics that the library counts.
    pub(crate) panicked: AtomicU64,
    pub(crate) reset: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Books {
    name: &'static str,
    clock: Arc<FaultyClock>,
    breaches: Breaches,
    seats: Vec<Mutex<Seat>>,
    free: Mutex<VecDeque<u32>>,
    pub(crate) counts: Counts,
    /// Whether no more entries may be opened.
    is_over: AtomicBool,
}

impl Books {
    pub(crate) fn new(
        name: &'static str,
        seats: u32,
        clock: &Arc<FaultyClock>,
        breaches: &Breaches,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            clock: clock.clone(),
            breaches: breaches.clone(),
            seats: (0..seats).map(|_| Mutex::default()).collect(),
            free: Mutex::new((0..seats).collect()),
            counts: Counts::default(),
            is_over: AtomicBool::new(false),
        })
    }

    pub(crate) fn clock(&self) -> &Arc<FaultyClock> {
        &self.clock
    }

    pub(crate) fn breaches(&self) -> &Breaches {
        &self.breaches
    }

    fn seat(&self, entry: Entry) -> MutexGuard<'_, Seat> {
        self.seats[entry.seat as usize].lock()
    }

    /// Opens an entry that is due at `due` nanoseconds. Returns `None` if all are open, or if the
    /// round is over.
    pub(crate) fn open(&self, due: u64) -> Option<Entry> {
        let seat = self.free.lock().pop_front().filter(|_| !self.is_over())?;
        let mut contents = self.seats[seat as usize].lock();
        let generation = contents.generation.wrapping_add(1);
        *contents = Seat { generation, is_open: true, is_forced: false, due };
        Some(Entry { seat, generation })
    }

    fn close(&self, entry: Entry, how: &str) -> Option<u64> {
        let mut seat = self.seat(entry);
        if seat.generation != entry.generation || !seat.is_open {
            self.breaches.add(|| format!("{}: {entry:?} ended twice, now {how}", self.name));
            return None;
        }
        seat.is_open = false;
        let due = seat.due;
        drop(seat);
        self.free.lock().push_back(entry.seat);
        Some(due)
    }

    pub(crate) fn run(&self, entry: Entry) {
        // Another thread may compare the counts as soon as the entry is closed.
        self.counts.ran.fetch_add(1, Relaxed);
        let Some(due) = self.close(entry, "run") else { return };
        // The library must have read a time at or after the deadline by now.
        let shown = self.clock.shown();
        self.breaches.unless(shown >= due, || {
            format!("{}: {entry:?} was {} ns early", self.name, due - shown)
        });
    }

    /// Counts an entry that the library accepted. It may have ended by now.
    pub(crate) fn take(&self) {
        self.counts.taken.fetch_add(1, Relaxed);
    }

    pub(crate) fn refuse(&self, entry: Entry) {
        self.counts.refused.fetch_add(1, Relaxed);
        self.close(entry, "refused");
    }

    pub(crate) fn cancel(&self, entry: Entry) {
        self.counts.cancelled.fetch_add(1, Relaxed);
        self.close(entry, "cancelled");
    }

    pub(crate) fn give_back(&self, entry: Entry) {
        self.counts.returned.fetch_add(1, Relaxed);
        self.close(entry, "returned");
    }

    pub(crate) fn end(&self, entry: Entry, how: &str) {
        self.close(entry, how);
    }

    /// Allows an entry to run from `due` on, before a reset to that deadline.
    pub(crate) fn lower(&self, entry: Entry, due: u64) {
        let mut seat = self.seat(entry);
        if seat.generation == entry.generation {
            seat.due = seat.due.min(due);
        }
    }

    /// Sets the only possible deadline of an entry, after a reset.
    pub(crate) fn set(&self, entry: Entry, due: u64) {
        let mut seat = self.seat(entry);
        if seat.generation == entry.generation && seat.is_open {
            seat.due = due;
        }
    }

    pub(crate) fn force(&self, entry: Entry) {
        let mut seat = self.seat(entry);
        seat.is_forced |= seat.generation == entry.generation;
    }

    pub(crate) fn is_forced(&self, entry: Entry) -> bool {
        self.seat(entry).is_forced
    }

    pub(crate) fn finish(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    pub(crate) fn open_count(&self) -> usize {
        self.seats.iter().filter(|seat| seat.lock().is_open).count()
    }

    pub(crate) fn due_count(&self, now: u64) -> usize {
        let is_due = |seat: &Seat| seat.is_open && seat.due <= now;
        self.seats.iter().filter(|seat| is_due(&seat.lock())).count()
    }

    pub(crate) fn due(&self, entry: Entry) -> Option<u64> {
        let seat = self.seat(entry);
        (seat.generation == entry.generation && seat.is_open).then_some(seat.due)
    }
}

pub(crate) fn after(look: u64, delay: Duration) -> u64 {
    look.saturating_add(nanos(delay))
}
