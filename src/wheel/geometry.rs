//! The arithmetic of the levels: the bucket of a deadline, and the range of a bucket.
//!
//! Read ticks as numbers in base `size`. A deadline belongs to the level of the highest digit in
//! which it differs from the tick up to which timeouts have expired. That digit of the deadline is
//! its bucket. So one exclusive or gives level and bucket.

use crate::{error::BuildError, slab, tick::Tick};

/// The widths of all levels. A level has `2^bits` buckets, 2 to 65536.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Logarithm of the size, 1..=16.
    bits: u32,
    /// The size, less one.
    mask: u32,
    /// Indexed by the logarithm of a difference: the number of the level's first bucket, and in the
    /// lowest byte the shift of its digit.
    levels: [u32; u64::BITS as usize],
}

/// A bucket: its level, and its index there, as one number below 2^18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BucketId(u32);

impl BucketId {
    /// The root, which is above all levels.
    pub(super) const ROOT: Self = Self(1 << 18);

    pub(super) const fn new(number: u32) -> Self {
        Self(number)
    }

    #[inline]
    pub(super) const fn number(self) -> usize {
        self.0 as usize
    }

    /// Returns the number by which the newest chunk of this bucket names it. No chunk has it.
    #[inline]
    pub(super) const fn link(self) -> u32 {
        slab::END + self.0
    }

    /// Returns the bucket that a link names; `None` if the link is a chunk.
    #[inline]
    pub(super) fn of_link(link: u32) -> Option<Self> {
        link.checked_sub(slab::END).map(Self)
    }
}

impl Geometry {
    /// Makes levels with at least `size` buckets, rounded up to a power of two.
    pub(super) fn new(size: usize) -> Result<Self, BuildError> {
        if !(2..=1 << 16).contains(&size) {
            return Err(BuildError::SizeOutOfRange { size });
        }
        let bits = size.next_power_of_two().ilog2();
        let mut levels = [0; u64::BITS as usize];
        for (msb, entry) in (0..).zip(&mut levels) {
            let level = msb / bits;
            *entry = level << bits << 8 | (level * bits);
        }
        Ok(Self { bits, mask: (1 << bits) - 1, levels })
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
        let level = self.levels[difference.ilog2() as usize];
        // The shift looks only at the lowest six bits of its operand.
        #[expect(clippy::cast_possible_truncation, reason = "the mask takes the lowest digit")]
        let index = deadline.get().wrapping_shr(level) as u32 & self.mask;
        BucketId(level >> 8 | index)
    }

    /// Returns the level of a bucket.
    #[inline]
    pub(super) fn level(&self, id: BucketId) -> u32 {
        id.0 >> self.bits
    }

    /// Returns the level of a bucket and its index there.
    #[inline]
    pub(super) fn split(&self, id: BucketId) -> (u32, usize) {
        (self.level(id), id.number() & self.mask as usize)
    }

    /// Returns the bucket with this index.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a level has at most 65536 buckets")]
    pub(super) fn id(&self, level: u32, index: usize) -> BucketId {
        BucketId(level << self.bits | index as u32)
    }

    /// Returns the first tick of the range of a bucket, which contains `tick`.
    #[inline]
    pub(super) fn start(&self, id: BucketId, tick: Tick) -> Tick {
        let shift = self.level(id) * self.bits;
        Tick::new(tick.get().checked_shr(shift).map_or(0, |digits| digits << shift))
    }

    /// Returns whether a tick is in the range of a bucket, once timeouts have expired up to
    /// `expired_to`.
    pub(super) fn is_in_lap(&self, id: BucketId, tick: Tick, expired_to: Tick) -> bool {
        let (level, index) = self.split(id);
        let shift = level * self.bits;
        let above = |tick: Tick| tick.get() >> shift >> self.bits;
        let digit = tick.get() >> shift & u64::from(self.mask);
        digit == index as u64 && above(tick) == above(expired_to)
    }
}
