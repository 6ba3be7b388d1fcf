//! The script of a seed: the settings of a world, and its steps.
//!
//! A step refers to its subject by a number that is valid in any world: an index from the end. So a
//! shrinker can remove steps, and the others keep a meaning.

use std::ops::Range;

use delaywheel::{MissedTicks, Overload};

pub(crate) type Nanos = u64;

pub(crate) const KEYS: u32 = 6;

/// Number of threads that take steps. Each has its own shard if there are enough shards.
pub(crate) const THREADS: usize = 3;

/// Maximum number of steps decoded from bytes. Further bytes are ignored.
const MOST_DECODED: usize = 150;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;
const YEAR: Nanos = 365 * 24 * 3_600 * SECOND;

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) setup: Setup,
    pub(crate) steps: Vec<(usize, Step)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) drive: Drive,
    pub(crate) tick: Nanos,
    pub(crate) wheel_size: usize,
    pub(crate) shards: usize,
    pub(crate) max_pending: Option<u64>,
    pub(crate) max_delayed: Option<(u64, Overload)>,
    pub(crate) max_per_key: Option<(u64, Overload)>,
    pub(crate) max_delay: Option<Nanos>,
    pub(crate) grain: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drive {
    /// A `ManualClock`, which stops at each deadline.
    Manual,
    /// A clock with faults, which makes its timers take a turn after each move.
    Faulty,
}

/// One of the three timers: of closures, of values, or behind a `DelayQueue`.
pub(crate) type Front = usize;

/// An index from the end.
pub(crate) type Back = usize;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Schedule(Front, When, Action),
    Reset(Front, Back, When),
    Guard(Delay, Action),
    /// A call that user code may also make.
    Act(Action),
    Receive(u32),
    Shrink(Front),
    ShutDown(Front),
    Drain(Front, Nanos),
    Renew(Front),
    Pass(Nanos),
    PassToNext,
    /// Turns while the clock stands still.
    Still(u32),
    GoBack(Nanos),
    /// Time passes, and the wall clock moves by this instead. If no time passes, the timers notice
    /// it in their next turn.
    SetWall(Nanos, i64),
    Repeat(Repeat),
    StopRepeat(Back),
    Map(OnMap),
    Wait(Wait),
    Announce(Announce),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) kind: Kind,
    /// Bits: keys whose events are watched.
    pub(crate) events: u32,
    /// Bits: keys with a threshold, which is the current value plus `growth`, less 5.
    pub(crate) values: u32,
    pub(crate) growth: u64,
    pub(crate) delay: Delay,
    pub(crate) is_ready: bool,
    /// The number of the check that runs an action, and the action.
    pub(crate) on_check: (u32, Action),
    pub(crate) on_end: Action,
    pub(crate) is_guarded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Any,
    All,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Announce {
    /// An operation becomes ready, and an event is announced on all of its keys.
    Ready(Back),
    Shrink,
    ShutDown,
    Close,
    Renew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    Nanos(Nanos),
    Endless,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    After(Delay),
    /// By an instant, 50 ms before the end of the delay. So a short delay gives a past one.
    At(Delay),
    /// The same by the wall clock.
    AtTime(Delay),
    /// Within a window that begins after the delay.
    Within(Delay, Nanos),
}

impl When {
    pub(crate) fn delay(self) -> Delay {
        let (Self::After(delay) | Self::At(delay) | Self::AtTime(delay) | Self::Within(delay, _)) =
            self;
        delay
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeat {
    pub(crate) period: Nanos,
    pub(crate) jitter: Nanos,
    /// The first occurrence; `None` if it is anywhere within a period.
    pub(crate) first: Option<When>,
    /// The policy of a fixed rate; `None` with a fixed delay.
    pub(crate) missed: Option<MissedTicks>,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum OnMap {
    Insert(u32, When),
    Reset(u32, When),
    Remove(u32),
    Shrink,
    /// Takes due entries, up to this number.
    Pop(u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Nothing,
    Panic,
    Schedule(Front, Delay),
    ScheduleAndPanic(Front, Delay),
    Cancel(Front, Back),
    CancelSelf,
    Reset(Front, Back, Delay),
    Query(Front, Back),
    Wait(u32, Delay),
    Check(u32),
    Grow(u32, u64),
    Complete(Back),
    CancelOperation(Back),
    CancelKey(u32),
    Pass(Nanos),
    ShutDown(Front),
    Drain(Front),
    ShutDownPurgatory,
}

impl Script {
    pub(crate) fn generate(seed: u64) -> Self {
        let mut random = Dice::new(seed);
        let setup = random.setup();
        let count = random.0.usize(20..250);
        let is_wild = random.0.u32(0..4) == 0;
        let steps = (0..count).map(|_| (random.thread(), random.step(is_wild))).collect();
        Self { setup, steps }
    }

    /// Makes a script from the bytes of a fuzzer, for a purgatory and its clock. All steps are on
    /// one thread, and no result depends on its speed.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut random = Dice(Source::Bytes(bytes));
        let setup = random.setup();
        let mut steps = Vec::new();
        while !random.0.is_empty() && steps.len() < MOST_DECODED {
            steps.push((0, random.purgatory_step()));
        }
        Self { setup, steps }
    }
}

/// The source of decisions: a random generator, or the bytes of a fuzzer.
enum Source<'a> {
    Seed(fastrand::Rng),
    Bytes(&'a [u8]),
}

impl Source<'_> {
    fn u64(&mut self, range: Range<u64>) -> u64 {
        match self {
            Self::Seed(random) => random.u64(range),
            Self::Bytes(bytes) => {
                let span = range.end - range.start;
                let width = match span {
                    0..=0x100 => 1,
                    0x101..=0x1_0000 => 2,
                    _ => 8,
                };
                let (taken, rest) = bytes.split_at(width.min(bytes.len()));
                *bytes = rest;
                let number = taken.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
                range.start + number % span
            }
        }
    }

    fn u32(&mut self, range: Range<u32>) -> u32 {
        let number = self.u64(range.start.into()..range.end.into());
        u32::try_from(number).expect("it is less than the end")
    }

    fn usize(&mut self, range: Range<usize>) -> usize {
        let number = self.u64(range.start as u64..range.end as u64);
        usize::try_from(number).expect("it is less than the end")
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Bytes([]))
    }
}

struct Dice<'a>(pub(crate) Source<'a>);

impl Dice<'_> {
    fn new(seed: u64) -> Self {
        Self(Source::Seed(fastrand::Rng::with_seed(seed)))
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.0.u32(0..count) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.usize(0..from.len())]
    }

    /// Returns a number with a random count of bits, so small numbers are as frequent as large
    /// ones.
    fn skewed(&mut self, bits: u32) -> u64 {
        let end = 1 << self.0.u32(0..bits);
        self.0.u64(0..end)
    }

    fn setup(&mut self) -> Setup {
        let tick =
            self.pick(&[1_000, 250_000, MS, MS, MS, 10 * MS, 7_777_777, SECOND, 86_400 * SECOND]);
        let overload = [Overload::Refuse, Overload::DisplaceOldest];
        Setup {
            drive: if self.0.u32(0..5) < 2 { Drive::Manual } else { Drive::Faulty },
            tick,
            wheel_size: self.pick(&[2, 4, 16, 64, 256]),
            shards: self.0.usize(1..THREADS + 1),
            max_pending: self.one_in(2).then(|| self.0.u64(1..20)),
            max_delayed: self.one_in(3).then(|| (self.0.u64(1..8), self.pick(&overload))),
            max_per_key: self.one_in(3).then(|| (self.0.u64(1..5), self.pick(&overload))),
            max_delay: self.one_in(4).then(|| self.skewed(60)),
            grain: self.pick(&[1, 1, 1, MS, tick / 2, tick, tick * 3 + 1]).max(1),
        }
    }

    fn thread(&mut self) -> usize {
        if self.one_in(4) { self.0.usize(0..THREADS) } else { 0 }
    }

    fn front(&mut self) -> Front {
        self.0.usize(0..3)
    }

    fn back(&mut self) -> Back {
        usize::try_from(self.skewed(7)).unwrap_or(0)
    }

    fn delay(&mut self) -> Delay {
        match self.0.u32(0..20) {
            0..2 => Delay::Nanos(0),
            2..6 => Delay::Nanos(self.0.u64(0..100) * MS),
            6 => Delay::Nanos(u64::MAX - self.skewed(63)),
            7 => Delay::Endless,
            8 => Delay::Nanos(self.0.u64(1..5) * 100 * YEAR),
            _ => Delay::Nanos(self.skewed(63)),
        }
    }

    fn key(&mut self) -> u32 {
        self.0.u32(0..KEYS)
    }

    fn keys(&mut self) -> u32 {
        let some = self.0.u32(0..1 << KEYS);
        some & self.0.u32(0..1 << KEYS)
    }

    pub(crate) fn growth(&mut self) -> u64 {
        self.0.u64(1..10)
    }

    fn action(&mut self, is_wild: bool) -> Action {
        let (front, back, delay) = (self.front(), self.back(), self.delay());
        match self.0.u32(0..if is_wild { 48 } else { 44 }) {
            0..16 => Action::Nothing,
            16..19 => Action::Panic,
            19..23 => Action::Schedule(front, delay),
            23 => Action::ScheduleAndPanic(front, delay),
            24..26 => Action::Cancel(front, back),
            26 => Action::CancelSelf,
            27..29 => Action::Reset(front, back, delay),
            29..33 => Action::Query(front, back),
            33..36 => Action::Wait(self.keys(), delay),
            36 => Action::Check(self.key()),
            37..39 => Action::Grow(self.key(), self.growth()),
            39 => Action::Complete(back),
            40 => Action::CancelOperation(back),
            41..43 => Action::CancelKey(self.key()),
            43 => Action::Pass(self.skewed(50)),
            44..46 => Action::ShutDown(front),
            46 => Action::Drain(front),
            _ => Action::ShutDownPurgatory,
        }
    }

    fn step(&mut self, is_wild: bool) -> Step {
        let (front, back) = (self.front(), self.back());
        let (delay, action) = (self.delay(), self.action(is_wild));
        match self.0.u32(0..120) {
            0..24 => Step::Schedule(front, self.when(front, delay), action),
            100..104 if front < 2 => {
                Step::Reset(front, back, self.pick(&[When::At(delay), When::AtTime(delay)]))
            }
            100..108 => self.set_wall(),
            108..110 => Step::Repeat(self.repeat()),
            110 => Step::StopRepeat(back),
            111..120 => Step::Map(self.on_map()),
            24..26 => Step::Guard(delay, action),
            26..34 => Step::Act(Action::Cancel(front, back)),
            34..41 => Step::Act(Action::Reset(front, back, delay)),
            41..43 => Step::Act(Action::Query(front, back)),
            43..45 => Step::Receive(self.0.u32(0..10)),
            45 => Step::Shrink(front),
            46 if self.one_in(4) => Step::ShutDown(front),
            46 if self.one_in(3) => Step::Drain(front, self.skewed(60)),
            46 => Step::Renew(front),
            47..60 => Step::Pass(self.skewed(60)),
            60..68 => Step::PassToNext,
            68 => Step::Still(self.0.u32(0..4)),
            69 => Step::GoBack(self.skewed(58)),
            70 => Step::Pass(YEAR),
            71..87 => Step::Wait(self.wait(is_wild)),
            _ => self.announce(),
        }
    }

    fn when(&mut self, front: Front, delay: Delay) -> When {
        match self.0.u32(0..12) {
            0..3 if front < 2 => When::AtTime(delay),
            3..6 if front < 2 => When::Within(delay, self.skewed(60)),
            6 => When::At(delay),
            _ => When::After(delay),
        }
    }

    fn set_wall(&mut self) -> Step {
        let step = i64::try_from(self.skewed(58)).unwrap_or(0);
        let passes = if self.one_in(2) { 0 } else { self.skewed(58) };
        Step::SetWall(passes, self.pick(&[step, -step, 0]))
    }

    fn repeat(&mut self) -> Repeat {
        let first = Delay::Nanos(self.skewed(60));
        let first = self.pick(&[None, Some(When::After(first)), Some(When::At(first))]);
        let policies = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip].map(Some);
        Repeat {
            period: self.skewed(60),
            // A grid that begins anywhere is known only without jitter.
            jitter: if first.is_none() || self.one_in(2) { 0 } else { self.skewed(60) },
            first,
            missed: if self.one_in(4) { None } else { self.pick(&policies) },
            seed: self.0.u64(0..u64::MAX),
        }
    }

    fn on_map(&mut self) -> OnMap {
        let (key, delay) = (self.key(), self.delay());
        let when = self.pick(&[When::After(delay), When::At(delay)]);
        match self.0.u32(0..11) {
            10 => OnMap::Shrink,
            0..4 => OnMap::Insert(key, when),
            4..7 => OnMap::Reset(key, when),
            7 => OnMap::Remove(key),
            _ => OnMap::Pop(self.0.u32(1..10)),
        }
    }

    fn purgatory_step(&mut self) -> Step {
        match self.0.u32(0..16) {
            0..6 => Step::Wait(self.wait(true)),
            6..12 => self.announce(),
            12 => Step::Pass(self.skewed(60)),
            13 => Step::PassToNext,
            14 => Step::Still(1),
            _ => Step::GoBack(self.skewed(58)),
        }
    }

    fn wait(&mut self, is_wild: bool) -> Wait {
        Wait {
            kind: self.pick(&[Kind::Plain, Kind::Any, Kind::All]),
            events: self.keys(),
            values: self.keys(),
            growth: self.0.u64(0..30),
            delay: self.delay(),
            is_ready: self.one_in(10),
            on_check: (self.0.u32(1..6), self.action(is_wild)),
            on_end: self.action(is_wild),
            is_guarded: self.one_in(10),
        }
    }

    fn announce(&mut self) -> Step {
        let back = self.back();
        Step::Announce(match self.0.u32(0..40) {
            0..14 => Announce::Ready(back),
            14..18 => return Step::Act(Action::Check(self.key())),
            18..30 => return Step::Act(Action::Grow(self.key(), self.growth())),
            30..32 => return Step::Act(Action::Complete(back)),
            32..34 => return Step::Act(Action::CancelOperation(back)),
            34..36 => return Step::Act(Action::CancelKey(self.key())),
            36 => Announce::Shrink,
            37 if self.one_in(3) => Announce::ShutDown,
            37 if self.one_in(2) => Announce::Close,
            _ => Announce::Renew,
        })
    }
}
