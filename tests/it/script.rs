//! Scripts: sequences of operations on a wheel, decoded from bytes.
//!
//! Ticks are relative to the state of the wheel, so that an operation keeps its meaning when
//! earlier ones are removed. Bytes from a generator give random scripts, and bytes from a fuzzer
//! give fuzzed ones.

use std::fmt;

use delaywheel::Tick;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) setup: Setup,
    pub(crate) ops: Vec<Op>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) size: usize,
    pub(crate) start: u64,
    pub(crate) max_pending: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Inserts `count` timeouts at consecutive ticks.
    Insert {
        at: When,
        count: u8,
    },
    /// Inserts a timeout and cancels it, `count` times.
    Churn {
        at: When,
        count: u8,
    },
    Cancel(Pick),
    Reset(Pick, When),
    Look(Pick),
    Advance {
        to: When,
        limit: Option<u64>,
    },
    Clear,
    /// Takes this number of timeouts out of a drain, and leaks the drain.
    Drain(u8),
    Shrink,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) base: Base,
    pub(crate) offset: i128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Zero,
    Now,
    /// The next expiration, or now if there is none.
    Next,
    /// The first multiple of this power of two after now.
    Border(u32),
    Max,
}

/// The timeout of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// A pending one, counted from the oldest, modulo their number.
    Pending(usize),
    Newest,
    /// An ended one, counted from the latest, modulo their number.
    Dead(usize),
}

impl When {
    pub(crate) const fn now(offset: i128) -> Self {
        Self { base: Base::Now, offset }
    }

    pub(crate) const fn next(offset: i128) -> Self {
        Self { base: Base::Next, offset }
    }

    /// Returns the tick, limited to those that exist.
    pub(crate) fn resolve(self, now: Tick, next: Option<Tick>) -> Tick {
        let base = match self.base {
            Base::Zero => 0,
            Base::Now => i128::from(now.get()),
            Base::Next => i128::from(next.unwrap_or(now).get()),
            Base::Border(shift) => ((i128::from(now.get()) >> shift) + 1) << shift,
            Base::Max => i128::from(u64::MAX),
        };
        let tick = (base + self.offset).clamp(0, i128::from(u64::MAX));
        Tick::new(u64::try_from(tick).expect("it was clamped"))
    }
}

/// The operations of bytes, by mode. The count of a letter is the frequency of its operation.
const MODES: [&[u8; 32]; 4] = [
    b"IIIIIIIIIIICCCCCRRRRRRAAAAALLKKZ",
    b"IIIIIIIIGCCCRRRRRRRRRRRRRAAALLLZ",
    b"IIIIIIGCCCCUUURRRAAAAAAAALLLLLKZ",
    b"IIIIUUUUUCCCRRRRRRAAAAALLLLLLKZZ",
];

/// Sizes by byte. Most are small, as small wheels have many levels. 255 means the greatest size.
const SIZES: [usize; 8] = [2, 4, 64, 256, 16, 2, 4, 64];

impl Script {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut bytes = Bytes(bytes);
        let setup = bytes.setup();
        let mode = MODES[usize::from(bytes.byte() % 4)];
        let bits = setup.size.next_power_of_two().ilog2();
        let mut ops = Vec::new();
        while !bytes.0.is_empty() {
            ops.push(bytes.op(mode, bits));
        }
        Self { setup, ops }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        self.ops.iter().try_for_each(|op| writeln!(f, "{op:?}"))
    }
}

/// The remaining bytes, followed by zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, limit: u8) -> i128 {
        i128::from(self.byte() % limit)
    }

    fn setup(&mut self) -> Setup {
        let size = match self.byte() {
            u8::MAX => 1 << 16,
            byte => SIZES[usize::from(byte % 8)],
        };
        let power = 1_u64 << (self.byte() % 64);
        let start = match self.byte() % 4 {
            0 => power - 1,
            1 => power.wrapping_add(u64::from(self.byte() % 5)).wrapping_sub(2),
            2 => u64::MAX - u64::from(self.byte()),
            _ => u64::MAX - power,
        };
        let max_pending = Some(self.byte()).filter(|byte| *byte < 32).map_or(u32::MAX, u32::from);
        Setup { size, start, max_pending }
    }

    fn op(&mut self, mode: &[u8; 32], bits: u32) -> Op {
        match mode[usize::from(self.byte() % 32)] {
            b'I' => Op::Insert { at: self.deadline(bits), count: 1 },
            b'G' => Op::Insert { at: self.deadline(bits), count: self.byte() % 48 },
            b'U' => Op::Churn { at: self.deadline(bits), count: self.byte() % 96 },
            b'C' => Op::Cancel(self.pick()),
            b'R' => Op::Reset(self.pick(), self.deadline(bits)),
            b'A' => Op::Advance { to: self.target(bits), limit: None },
            b'L' => Op::Advance { to: self.target(bits), limit: Some(self.limit()) },
            b'K' => Op::Look(self.pick()),
            _ => match self.byte() {
                0..8 => Op::Clear,
                8..32 => Op::Drain(self.byte() % 32),
                _ => Op::Shrink,
            },
        }
    }

    /// A deadline, often at a border of a level.
    fn deadline(&mut self, bits: u32) -> When {
        match self.byte() % 16 {
            0..5 => When::now(self.below(8) - 2),
            5..8 => When::now(self.below(u8::MAX)),
            8..10 => When::now((1 << self.shift(bits, 64)) + self.below(5) - 2),
            10..12 => When { base: Base::Border(self.shift(bits, 64)), offset: self.below(5) - 2 },
            12 => When::next(self.below(5) - 2),
            13 => When::now(self.below(u8::MAX) << (self.byte() % 64)),
            14 => self.far_or_past(),
            _ => When::now(self.below(u8::MAX) << 8 | self.below(u8::MAX)),
        }
    }

    /// A tick to advance to, mostly near, as the clock cannot go back.
    fn target(&mut self, bits: u32) -> When {
        match self.byte() % 16 {
            0..6 => When::next(0),
            6 => When::next(self.below(3) - 1),
            7..10 => When::now(self.below(8)),
            10 | 11 => When::now(self.below(u8::MAX)),
            12 => When { base: Base::Border(self.shift(bits, 4)), offset: self.below(5) - 2 },
            13 => When::now((1 << self.shift(bits, 4)) + self.below(5) - 2),
            14 => When::now(-self.below(u8::MAX)),
            _ => match self.byte() {
                0..4 => self.far_or_past(),
                4..32 => When::now(self.below(u8::MAX) << (self.byte() % 64)),
                byte => When::now(byte.into()),
            },
        }
    }

    fn far_or_past(&mut self) -> When {
        match self.byte() {
            byte @ 0..128 => When { base: Base::Max, offset: -i128::from(byte % 3) },
            byte => When { base: Base::Zero, offset: byte.into() },
        }
    }

    /// Binary logarithm of the span of a bucket in one of the `lowest` levels.
    fn shift(&mut self, bits: u32, lowest: u32) -> u32 {
        bits * (u32::from(self.byte()) % lowest.min(63 / bits + 1))
    }

    fn pick(&mut self) -> Pick {
        match self.byte() {
            byte @ 0..24 => Pick::Dead(byte.into()),
            24..72 => Pick::Newest,
            byte => Pick::Pending(byte.into()),
        }
    }

    fn limit(&mut self) -> u64 {
        [1, 7, 0, 2, 3, 20, 64, 100][usize::from(self.byte() % 8)]
    }
}
