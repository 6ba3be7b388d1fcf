//! The time of a world: virtual, with optional faults.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use delaywheel::{Clock, Driven, ManualClock, Timer, TimerBuilder};

use crate::script::{Drive, Nanos, Setup};

/// The time at the beginning, late enough for steps back.
pub(crate) const BEGIN: u128 = 100 * 365 * 24 * 3_600 * 1_000_000_000;

/// Nanoseconds since the world's origin. 64 bits are too few, because a world may last longer.
pub(crate) type Time = u128;

pub(crate) fn span_of(time: Time) -> Duration {
    const SECOND: Time = 1_000_000_000;
    let seconds = u64::try_from(time / SECOND).expect("a world is shorter than 2^64 seconds");
    Duration::new(seconds, u32::try_from(time % SECOND).expect("it is less than a second"))
}

#[derive(Debug, Clone)]
pub(crate) struct WorldClock {
    manual: Option<ManualClock>,
    faulty: Arc<FaultyClock>,
    /// The one of these two that its timers have.
    source: Arc<dyn Clock>,
    grain: u128,
}

impl WorldClock {
    pub(crate) fn new(drive: Drive, grain: Nanos) -> Self {
        let faulty = Arc::<FaultyClock>::default();
        let manual = (drive == Drive::Manual).then(ManualClock::new);
        let grain = if manual.is_some() { 1 } else { u128::from(grain) };
        faulty.show(BEGIN / grain * grain);
        let source = || Some(Arc::new(manual.clone()?) as _);
        let source = source().unwrap_or_else(|| Arc::clone(&faulty) as _);
        Self { manual, faulty, source, grain }
    }

    /// Returns the builder of a timer on this clock, which drives the timer.
    pub(crate) fn builder(&self, setup: &Setup) -> TimerBuilder {
        let tick = Duration::from_nanos(setup.tick);
        let builder = Timer::builder().tick(tick).wheel_size(setup.wheel_size).shards(setup.shards);
        builder.clock(Arc::clone(&self.source))
    }

    pub(crate) fn now(&self) -> Time {
        match &self.manual {
            Some(manual) => BEGIN + manual.elapsed().as_nanos(),
            None => self.faulty.shown(),
        }
    }

    pub(crate) fn instant(&self) -> Instant {
        self.source.now()
    }

    pub(crate) fn wall(&self) -> SystemTime {
        self.source.system_time()
    }

    /// Moves the wall clock. Only a manual clock takes a turn.
    pub(crate) fn set_wall(&self, by: i64) {
        let (wall, span) = (self.wall(), Duration::from_nanos(by.unsigned_abs()));
        let wall = if by < 0 { wall - span } else { wall + span };
        match &self.manual {
            Some(manual) => manual.set_system_time(wall),
            None => *self.faulty.wall_origin.lock().unwrap() = wall - self.faulty.since(),
        }
    }

    /// Advances the time, and moves the wall clock in place of that. Beside a manual clock, it
    /// steps afterwards.
    pub(crate) fn set_both(&self, span: Nanos, by: i64) {
        if let Some(manual) = &self.manual {
            manual.advance(Duration::from_nanos(span));
            return self.set_wall(by.saturating_sub_unsigned(span));
        }
        let wall = self.wall();
        self.show_after(span);
        *self.faulty.wall_origin.lock().unwrap() = wall - self.faulty.since();
        self.set_wall(by);
        self.stand_still();
    }

    /// Returns whether the clock stops at each deadline.
    pub(crate) fn is_exact(&self) -> bool {
        self.manual.is_some()
    }

    /// Advances the time, rounded down to the grain.
    pub(crate) fn pass(&self, span: Nanos) {
        if let Some(manual) = &self.manual {
            manual.advance(Duration::from_nanos(span));
            return;
        }
        self.show_after(span);
        self.faulty.turn();
    }

    fn show_after(&self, span: Nanos) {
        let sum = self.now() + u128::from(span);
        self.faulty.show(sum / self.grain * self.grain);
    }

    pub(crate) fn pass_to_next(&self) {
        if let Some(manual) = &self.manual {
            manual.advance_to_next();
            manual.advance(Duration::ZERO);
            return;
        }
        if let Some(next) = self.faulty.next_turn() {
            // The grain may make the clock show a later time.
            let next = next.div_ceil(self.grain) * self.grain;
            self.faulty.show(next.max(self.now()));
        }
        self.faulty.turn();
    }

    /// Lets the timers read a clock that has not moved.
    pub(crate) fn stand_still(&self) {
        match &self.manual {
            Some(manual) => manual.advance(Duration::ZERO),
            None => self.faulty.turn(),
        }
    }

    /// Moves the time back if this clock can. Otherwise the time stays.
    pub(crate) fn step_back(&self, span: Nanos) {
        if self.manual.is_none() {
            let earlier = self.now().saturating_sub(u128::from(span));
            self.faulty.show(earlier / self.grain * self.grain);
        }
        self.stand_still();
    }
}

/// A clock that makes its timers take turns.
#[derive(Debug)]
struct FaultyClock {
    origin: Instant,
    shown: Mutex<Time>,
    /// The time of the wall clock at the origin, if it has not been set since.
    wall_origin: Mutex<SystemTime>,
    timers: Mutex<Vec<Weak<dyn Driven>>>,
}

impl Default for FaultyClock {
    fn default() -> Self {
        let (origin, wall_origin) = (Instant::now(), Mutex::new(UNIX_EPOCH));
        Self { origin, shown: Mutex::default(), wall_origin, timers: Mutex::default() }
    }
}

impl FaultyClock {
    fn shown(&self) -> Time {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since(&self) -> Duration {
        span_of(self.shown())
    }

    fn show(&self, time: Time) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }

    fn timers(&self) -> Vec<Arc<dyn Driven>> {
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        timers.retain(|timer| timer.strong_count() > 0);
        timers.iter().filter_map(Weak::upgrade).collect()
    }

    fn turn(&self) {
        self.timers().iter().for_each(|timer| timer.turn());
    }

    fn next_turn(&self) -> Option<Time> {
        let next = self.timers().iter().filter_map(|timer| timer.next_turn()).min()?;
        Some(next.saturating_duration_since(self.origin).as_nanos())
    }
}

impl Clock for FaultyClock {
    fn now(&self) -> Instant {
        self.origin + self.since()
    }

    fn system_time(&self) -> SystemTime {
        *self.wall_origin.lock().unwrap() + self.since()
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).push(timer);
        true
    }
}
