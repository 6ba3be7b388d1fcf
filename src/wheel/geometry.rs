//! The arithmetic of the wheels: the level and the bucket of a deadline, and the range of a bucket.
//!
//! Read ticks as numbers in base `size`. A deadline belongs to the level of the highest digit in
//! which it differs from the tick up to which timeouts have expired. That digit of the deadline is
//! its bucket. So one exclusive or gives level and bucket. Within a level the occupied buckets are
//! in time order. None is before the bucket of that tick. See
//! `docs/decisions/0013-due-buckets-are-sorted.md`.

use crate::{
    error::BuildError,
    tick::{Tick, TickSpan},
};

/// The widths of all levels. A level has `2^bits` buckets, 2 to 65536.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Logarithm of the size, 1..=16.
    bits: u32,
    /// One less than the size.
    mask: u16,
    /// Indexed by the logarithm of a difference: the level, and the shift of its digit.
    digits: [(u8, u8); u64::BITS as usize],
}

/// The level of a bucket, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BucketId {
    level: u8,
    index: u16,
}

impl BucketId {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "64 levels of 65536 buckets at most")]
    pub(super) const fn new(level: usize, index: usize) -> Self {
        debug_assert!(level < 1 << 6 && index < 1 << 16, "no wheel has this bucket");
        Self { level: level as u8, index: index as u16 }
    }

    #[inline]
    pub(super) fn level(self) -> usize {
        self.level.into()
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        self.index.into()
    }

    /// Returns the id as a number below 2^24.
    pub(super) fn number(self) -> u32 {
        u32::from(self.level) << 16 | u32::from(self.index)
    }

    /// Returns the id with this number.
    #[expect(clippy::cast_possible_truncation, reason = "the index is the lower half")]
    pub(super) const fn from_number(number: u32) -> Self {
        Self { level: (number >> 16) as u8, index: number as u16 }
    }
}

impl Geometry {
    /// Makes the geometry of a size in buckets, rounded up to a power of two.
    #[expect(clippy::cast_possible_truncation, reason = "levels and shifts are less than 64")]
    pub(super) fn new(size: usize) -> Result<Self, BuildError> {
        if !(2..=1 << 16).contains(&size) {
            return Err(BuildError::SizeOutOfRange { size });
        }
        let bits = size.next_power_of_two().ilog2();
        let digits = core::array::from_fn(|msb| {
            let level = msb as u32 / bits;
            (level as u8, (level * bits) as u8)
        });
        Ok(Self { bits, mask: ((1_u32 << bits) - 1) as u16, digits })
    }

    /// Returns the number of buckets of a level.
    pub(super) fn size(&self) -> usize {
        1 << self.bits
    }

    /// Returns the bucket of a timeout with this deadline once timeouts have expired up to
    /// `expired_to`.
    #[inline]
    pub(super) fn bucket(&self, expired_to: Tick, deadline: Tick) -> BucketId {
        debug_assert!(expired_to <= deadline, "{deadline:?} has passed at {expired_to:?}");
        let difference = (expired_to.get() ^ deadline.get()) | 1;
        let (level, shift) = self.digits[difference.ilog2() as usize];
        #[expect(clippy::cast_possible_truncation, reason = "the mask takes the lowest digit")]
        let index = (deadline.get() >> shift) as u16 & self.mask;
        BucketId { level, index }
    }

    /// Returns the logarithm of the number of ticks that a bucket of `level` spans.
    #[inline]
    pub(super) fn shift(&self, level: usize) -> u32 {
        debug_assert!(level < u64::BITS as usize, "there is no level {level}");
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 64 levels")]
        let level = level as u32;
        level * self.bits
    }

    /// Returns the first tick of the bucket of `level` that contains `tick`.
    pub(super) fn start(&self, level: usize, tick: Tick) -> Tick {
        let shift = self.shift(level);
        Tick::new(tick.get() >> shift << shift)
    }

    /// Returns the ticks that a bucket of `level` spans.
    pub(super) fn bucket_span(&self, level: usize) -> TickSpan {
        TickSpan::new(1 << self.shift(level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometries() -> impl Iterator<Item = Geometry> {
        (1..=16).map(|bits| Geometry::new(1 << bits).unwrap())
    }

    fn digit(geometry: &Geometry, level: usize, tick: Tick) -> u64 {
        (tick.get() >> geometry.shift(level)) % geometry.size() as u64
    }

    /// The definition, as a loop over the digits.
    fn highest_digit_that_differs(geometry: &Geometry, now: Tick, deadline: Tick) -> usize {
        let levels = u64::BITS.div_ceil(geometry.bits) as usize;
        let differs =
            |level: &usize| digit(geometry, *level, now) != digit(geometry, *level, deadline);
        (0..levels).rev().find(differs).unwrap_or(0)
    }

    #[test]
    fn the_bucket_is_the_highest_digit_in_which_deadline_and_now_differ() {
        let edges = |around: u64| (0..=4).map(move |i| around.wrapping_add(i).wrapping_sub(2));
        let starts = (0..64).flat_map(|bit| edges(1 << bit)).chain(edges(0));
        // Without optimization, all starts take seconds.
        for now in starts.step_by(if cfg!(debug_assertions) { 3 } else { 1 }) {
            let ahead = (0..64).flat_map(|bit| edges(1 << bit)).chain(edges(0));
            let borders = (0..64).flat_map(|bit| edges((now >> bit).wrapping_add(1) << bit));
            let all = ahead.map(|span| now.wrapping_add(span)).chain(borders);
            for deadline in all.filter(|&deadline| deadline >= now) {
                let (now, deadline) = (Tick::new(now), Tick::new(deadline));
                for geometry in geometries() {
                    let id = geometry.bucket(now, deadline);
                    let level = highest_digit_that_differs(&geometry, now, deadline);
                    assert_eq!(id.level(), level, "{geometry:?}, {now:?}, {deadline:?}");
                    assert_eq!(id.index() as u64, digit(&geometry, level, deadline));
                    assert_eq!(BucketId::from_number(id.number()), id);
                }
            }
        }
    }

    #[test]
    fn the_bucket_of_now_and_those_before_receive_nothing_above_level_0() {
        for geometry in geometries() {
            for now in [0, 1, 63, 64, 65, 4095, 4096, 1 << 40, u64::MAX - 70].map(Tick::new) {
                for ahead in (0..5000).map(crate::tick::TickSpan::new) {
                    let id = geometry.bucket(now, now.saturating_add(ahead));
                    let current = digit(&geometry, id.level(), now);
                    let index = id.index() as u64;
                    assert!(index > current || id.level() == 0 && index == current);
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
