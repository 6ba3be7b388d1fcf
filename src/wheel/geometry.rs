//! All arithmetic of the wheels: which level and bucket a deadline belongs to, and what a bucket
//! spans.
//!
//! Level `l` divides time into buckets of `size^l` ticks, and its clock is the wheel's clock in
//! those units. A deadline belongs to the lowest level whose clock sees it within its next `size`
//! buckets; that is the placement of Apache Kafka's overflow wheels. Level and bucket come out of
//! the same two absolute ticks by shift and mask, so they cannot disagree, and no loop looks for
//! the level.

use crate::{BuildError, Tick, TickSpan};

/// The widths of all levels; `size` is `2^bits` buckets a level, 2 to 65536.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Logarithm of the size, 1..=16.
    bits: u32,
    /// One less than the size.
    mask: u32,
    /// By the logarithm of a distance, the lowest level that may see so far.
    levels: [u8; u64::BITS as usize],
}

/// One bucket of one level: the level above the bucket's `bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(u32);

impl Place {
    /// All places are below this: four levels of 65536, or more of fewer.
    pub(super) const END: u32 = 4 << 16;

    #[inline]
    pub(super) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Counts through the buckets of all levels, finest first.
    #[inline]
    pub(super) const fn number(self) -> u32 {
        self.0
    }
}

impl Geometry {
    /// Takes a size in buckets and rounds it up to a power of two.
    pub(super) fn new(size: usize) -> Result<Self, BuildError> {
        if !(2..=1 << 16).contains(&size) {
            return Err(BuildError::SizeOutOfRange { size });
        }
        let bits = size.next_power_of_two().ilog2();
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 64 levels")]
        let levels = core::array::from_fn(|msb| (msb as u32 / bits) as u8);
        Ok(Self { bits, mask: (1 << bits) - 1, levels })
    }

    /// Number of buckets of a level.
    pub(super) fn size(&self) -> usize {
        1 << self.bits
    }

    /// Number of levels that reach every tick from every clock.
    #[cfg(test)]
    fn level_count(&self) -> u32 {
        u64::BITS.div_ceil(self.bits)
    }

    /// Where a timeout with this deadline belongs when the clock stands at `clock`.
    #[inline]
    pub(super) fn place(&self, clock: Tick, deadline: Tick) -> Place {
        debug_assert!(clock <= deadline, "{deadline:?} has passed at {clock:?}");
        let (clock, deadline) = (clock.get(), deadline.get());
        // The distance excludes all lower levels: seen from those it is `size` buckets or more.
        let level = u32::from(self.levels[((deadline - clock) | 1).ilog2() as usize]);
        // Seen from this level it may still be `size` buckets, if a carry lies in between; then,
        // and only then, it belongs one level up.
        let shift = level * self.bits;
        let carry = ((deadline >> shift) - (clock >> shift)) >> self.bits;
        debug_assert!(carry <= 1);
        #[expect(clippy::cast_possible_truncation, reason = "it is 0 or 1")]
        let level = level + carry as u32;
        let lap = deadline >> (level * self.bits);
        #[expect(clippy::cast_possible_truncation, reason = "a bucket is less than the size")]
        let bucket = lap as u32 & self.mask;
        Place(level << self.bits | bucket)
    }

    /// The level of a place.
    #[inline]
    pub(super) const fn level(&self, place: Place) -> u32 {
        place.0 >> self.bits
    }

    /// The first tick of the bucket at `place` in the lap that holds `tick`.
    pub(super) fn start(&self, place: Place, tick: Tick) -> Tick {
        let shift = self.level(place) * self.bits;
        Tick::new(tick.get() >> shift << shift)
    }

    /// Number of places up to and including the last of the level of `place`.
    pub(super) fn end_of_level(&self, place: Place) -> usize {
        (self.level(place) as usize + 1) << self.bits
    }

    /// Ticks that a bucket of `level` spans.
    pub(super) fn bucket_span(&self, level: u32) -> TickSpan {
        TickSpan::new(1 << (level * self.bits))
    }

    /// Index of the bucket of `level` that holds `tick`, counted from tick 0 and never wrapping.
    #[inline]
    pub(super) fn lap_index(&self, level: u32, tick: Tick) -> u64 {
        tick.get() >> (level * self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometries() -> impl Iterator<Item = Geometry> {
        (1..=16).map(|bits| Geometry::new(1 << bits).unwrap())
    }

    /// The definition, as a loop over the levels.
    fn lowest_level_that_sees(geometry: &Geometry, clock: Tick, deadline: Tick) -> u32 {
        (0..geometry.level_count())
            .find(|&level| {
                let shift = level * geometry.bits;
                (deadline.get() >> shift) - (clock.get() >> shift) < geometry.size() as u64
            })
            .unwrap()
    }

    #[test]
    fn place_is_the_lowest_level_that_sees_the_deadline() {
        let edges = |around: u64| (0..=4).map(move |i| around.wrapping_add(i).wrapping_sub(2));
        let clocks = (0..64).flat_map(|bit| edges(1 << bit)).chain(edges(0));
        for clock in clocks {
            let ahead = (0..64).flat_map(|bit| edges(1 << bit)).chain(edges(0));
            let borders = (0..64).flat_map(|bit| edges((clock >> bit).wrapping_add(1) << bit));
            let all = ahead.map(|span| clock.wrapping_add(span)).chain(borders);
            for deadline in all.filter(|&deadline| deadline >= clock) {
                let (clock, deadline) = (Tick::new(clock), Tick::new(deadline));
                for geometry in geometries() {
                    let place = geometry.place(clock, deadline);
                    let level = geometry.level(place);
                    assert_eq!(
                        level,
                        lowest_level_that_sees(&geometry, clock, deadline),
                        "{geometry:?}, {clock:?}, {deadline:?}"
                    );
                    let lap = geometry.lap_index(level, deadline);
                    let bucket = u64::from(place.number()) % geometry.size() as u64;
                    assert_eq!(bucket, lap % geometry.size() as u64);
                    assert!(place.number() < Place::END);
                }
            }
        }
    }

    #[test]
    fn the_bucket_that_holds_the_clock_receives_nothing_above_level_0() {
        for geometry in geometries() {
            for clock in [0, 1, 63, 64, 65, 4095, 4096, 1 << 40, u64::MAX - 70].map(Tick::new) {
                for ahead in (0..5000).map(crate::TickSpan::new) {
                    let deadline = clock.saturating_add(ahead);
                    let place = geometry.place(clock, deadline);
                    let level = geometry.level(place);
                    let [now, then] = [clock, deadline].map(|t| geometry.lap_index(level, t));
                    assert!(level == 0 || then > now);
                }
            }
        }
    }

    #[test]
    fn sizes_are_rounded_up_and_checked() {
        assert_eq!(Geometry::new(3).unwrap().size(), 4);
        assert_eq!(Geometry::new(65536).unwrap().size(), 65536);
        for size in [0, 1, 65537, usize::MAX] {
            assert_eq!(Geometry::new(size), Err(BuildError::SizeOutOfRange { size }));
        }
    }
}
