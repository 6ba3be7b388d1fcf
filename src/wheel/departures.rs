//! Timeouts that have left their buckets and are yet to be counted out.
//!
//! Which bucket a cancelled timeout was in is known only when the timeout has come in from memory.
//! Were it counted out at once, that store, to an address not known yet, would keep the processor
//! from going ahead with what follows, and its misses from overlapping. So the count lags a few
//! departures behind, by which time the address has long arrived. See
//! `docs/decisions/0004-departures-are-counted-late.md`.

use core::mem;

use super::geometry::Place;

/// How many departures the count lags behind.
pub(super) const LAG: u32 = 8;

/// The latest departures, in a ring.
#[derive(Debug)]
pub(super) struct Departures {
    places: [Option<Place>; LAG as usize],
    next: usize,
    is_empty: bool,
}

impl Departures {
    pub(super) const fn new() -> Self {
        Self { places: [None; LAG as usize], next: 0, is_empty: true }
    }

    /// Notes a departure, and returns the one that is to be counted instead.
    #[inline]
    pub(super) fn exchange(&mut self, place: Place) -> Option<Place> {
        let due = self.places[self.next].replace(place);
        self.next = (self.next + 1) % LAG as usize;
        self.is_empty = false;
        due
    }

    /// Returns all that are to be counted, and forgets them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Place> + use<> {
        self.is_empty = true;
        mem::take(&mut self.places).into_iter().flatten()
    }

    /// Forgets the departures from a place, which has been counted out altogether.
    pub(super) fn forget(&mut self, place: Place) {
        for departed in &mut self.places {
            departed.take_if(|departed| *departed == place);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// How many departures from a place are yet to be counted.
    #[inline]
    pub(super) fn from(&self, place: Place) -> u32 {
        if self.is_empty {
            return 0;
        }
        self.places.iter().map(|&departed| u32::from(departed == Some(place))).sum()
    }
}
