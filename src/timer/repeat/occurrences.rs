//! The planned times of a repeated callback, on the clock of the timer.
//!
//! Each occurrence has a time on the grid, and starts at most the jitter after it. The next time
//! follows from this one and not from the start, so jitter does not add up.

use crate::ticks::Nanos;

/// Policy for occurrences that were due before the previous one ended.
///
/// # Examples
///
/// With a period of 10 ms, an occurrence planned for 20 ms ran until 47 ms. The next ones are
/// planned for:
///
/// | | | | |
/// |-|-|-|-|
/// | `Burst` | 30 ms | 40 ms | 50 ms |
/// | `Delay` | 57 ms | 67 ms | 77 ms |
/// | `Skip` | 50 ms | 60 ms | 70 ms |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissedTicks {
    /// Missed occurrences run at once, one after the other, until none is missing. In the long run
    /// there is one run per period.
    #[default]
    Burst,
    /// The next occurrence runs a period after the late one ended, where a new grid starts.
    Delay,
    /// Missed occurrences are left out. The next one runs at the next instant of the grid.
    Skip,
}

/// How the next time of the grid follows from the last.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rhythm {
    /// A period after the last time.
    Rate(MissedTicks),
    /// A period after the callback returned.
    Delay,
}

/// The occurrences of one callback, from the latest planned one on.
#[derive(Debug)]
pub(super) struct Occurrences {
    pub(super) rhythm: Rhythm,
    /// Not zero.
    period: Nanos,
    /// The most by which an occurrence starts after its time on the grid; at most the period.
    jitter: Nanos,
    /// State of the random generator.
    random: u64,
    /// The time of the latest planned occurrence, without jitter.
    on_grid: Nanos,
}

impl Occurrences {
    /// Starts the grid at `first`.
    pub(super) fn new(
        rhythm: Rhythm,
        period: Nanos,
        first: Nanos,
        jitter: Nanos,
        seed: u64,
    ) -> Self {
        debug_assert!(period > Nanos::ZERO, "occurrences have a distance");
        let jitter = jitter.min(period);
        Self { rhythm, period, jitter, random: seed, on_grid: first }
    }

    /// Returns when the planned occurrence starts. Draws its jitter, so once per occurrence.
    pub(super) fn start(&mut self) -> Nanos {
        self.on_grid.saturating_add(self.draw())
    }

    /// Plans the next occurrence when one has ended at `now`, and returns when it starts.
    pub(super) fn next_start(&mut self, now: Nanos) -> Nanos {
        let next = self.next_on_grid(now);
        debug_assert!(
            matches!(self.rhythm, Rhythm::Delay | Rhythm::Rate(MissedTicks::Delay))
                || next == Nanos::NEVER
                || next.saturating_sub(self.on_grid).rest_of(self.period) == Nanos::ZERO,
            "{next:?} is not on the grid of {self:?}",
        );
        self.on_grid = next;
        self.start()
    }

    fn next_on_grid(&self, now: Nanos) -> Nanos {
        let next = self.on_grid.saturating_add(self.period);
        // Jitter alone does not make an occurrence count as missed.
        let is_missed = next.saturating_add(self.jitter) < now;
        match self.rhythm {
            Rhythm::Delay => now.saturating_add(self.period),
            Rhythm::Rate(MissedTicks::Delay) if is_missed => now.saturating_add(self.period),
            Rhythm::Rate(MissedTicks::Skip) if is_missed => {
                let late = now.saturating_sub(next).rest_of(self.period);
                now.saturating_add(self.period.saturating_sub(late))
            }
            Rhythm::Rate(_) => next,
        }
    }

    /// Returns a span from zero to the jitter, by splitmix64.
    fn draw(&mut self) -> Nanos {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let jitter = u128::from(self.jitter.get());
        let scaled = (u128::from(mixed) * (jitter + 1)) >> 64;
        debug_assert!(scaled <= jitter, "{scaled} exceeds the jitter");
        Nanos::new(u64::try_from(scaled).expect("it is at most the jitter"))
    }
}
