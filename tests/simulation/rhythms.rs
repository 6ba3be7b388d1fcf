//! Repeating, debounced and throttled callbacks, on a separate timer.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use delaywheel::{Debounce, MissedTicks, Repeating, Throttle, Timer};

use crate::{
    books::{Books, Tick},
    clock::Time,
    fronts::panic_as_planned,
    script::{Action, Back, Delay, Nanos, Rhythm, THREADS},
    world::World,
};

/// The quiet time of the debounce, and the period of the throttle.
const QUIET: Nanos = 5_000_000_000;

/// The timer, and the model of its callbacks.
#[derive(Debug)]
pub(crate) struct Rhythms {
    timer: Timer,
    debounce: Debounce,
    throttle: Throttle,
    /// Converts times to ticks.
    books: Mutex<Books>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    repeats: Vec<Repeat>,
    /// The tick at which the debounced callback is due.
    quiet_at: Option<Tick>,
    /// Number of debounced callbacks that were due and handed off when another call came.
    late_quiets: u32,
    throttled_at: Option<Tick>,
    /// The time of the last throttled callback, in nanoseconds since the origin.
    last_throttled: Option<u128>,
    panicked: u64,
}

#[derive(Debug)]
struct Repeat {
    handle: Option<Repeating>,
    period: Nanos,
    rhythm: Rhythm,
    /// Start of the periods, in nanoseconds since the origin; of the latest, with a fixed delay.
    begin: u128,
    /// Number of the period at whose end the next occurrence is planned, from 1.
    number: u128,
    left: u32,
    is_over: bool,
}

impl Rhythms {
    pub(crate) fn new(world: &World, timer: Timer, this: &std::sync::Weak<World>) -> Self {
        let quiet = Duration::from_nanos(QUIET);
        let (debounced, throttled) = (this.clone(), this.clone());
        let debounced = move || {
            if let Some(world) = debounced.upgrade() {
                world.rhythms().run_quiet(&world);
            }
        };
        let throttled = move || {
            if let Some(world) = throttled.upgrade() {
                world.rhythms().run_throttled(&world);
            }
        };
        Self {
            debounce: Debounce::new(&timer, quiet, debounced),
            throttle: Throttle::new(&timer, quiet, throttled),
            books: Mutex::new(Books::new(world.now(), world.setup.tick, None, THREADS)),
            state: Mutex::default(),
            timer,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current tick.
    fn tick(&self, now: Time) -> Tick {
        self.books().now(now)
    }

    /// Returns the current time in nanoseconds since the origin. If the clock has stepped back,
    /// this is the latest time seen.
    fn latest(&self, now: Time) -> u128 {
        self.books().since(now).into()
    }

    /// Returns the tick in which the next occurrence is due.
    fn due(&self, repeat: &Repeat) -> Tick {
        self.books().at_nanos(repeat.planned())
    }

    pub(crate) fn repeat(
        &self,
        world: &Arc<World>,
        period: Nanos,
        rhythm: Rhythm,
        (times, action): (u32, Action),
    ) {
        let period = period.max(1);
        let index = {
            let mut state = self.state();
            let begin = self.latest(world.now());
            let repeat = Repeat {
                handle: None,
                period,
                rhythm,
                begin,
                number: 1,
                left: times,
                is_over: false,
            };
            state.repeats.push(repeat);
            state.repeats.len() - 1
        };
        let weak = Arc::downgrade(world);
        let callback = move |handle: &Repeating| {
            if let Some(world) = weak.upgrade() {
                world.rhythms().run_repeat(&world, index, handle, action);
            }
        };
        let span = Duration::from_nanos(period);
        let repeating = match rhythm {
            Rhythm::Rate(missed) => self.timer.schedule_at_fixed_rate(span, missed, callback),
            Rhythm::Delay => self.timer.schedule_with_fixed_delay(span, callback),
        };
        match repeating {
            Ok(handle) => self.state().repeats[index].handle = Some(handle),
            Err(error) => world.fault(format!("a repetition was refused: {error}")),
        }
    }

    /// Runs an occurrence: checks that it is on time, and predicts the next one.
    fn run_repeat(&self, world: &Arc<World>, index: usize, handle: &Repeating, action: Action) {
        let now = world.now();
        world.note(("repetition", index));
        let (due, is_last, is_over) = {
            let mut state = self.state();
            let repeat = &mut state.repeats[index];
            repeat.left -= 1;
            (self.due(repeat), repeat.left == 0, repeat.is_over)
        };
        if is_over {
            world.fault(format!("repetition {index} ran after its end"));
        }
        let tick = self.tick(now);
        if tick < due {
            world.fault(format!("repetition {index} is early: due at {due}, runs at {tick}"));
        }
        let panics = world.act(action, None);
        if is_last && !panics && !handle.stop() {
            // Its own action may have stopped it.
            let is_over = self.state().repeats[index].is_over;
            if !is_over {
                world.fault(format!("repetition {index} had stopped by itself"));
            }
        }
        let end = self.latest(world.now());
        let mut state = self.state();
        state.panicked += u64::from(panics);
        let repeat = &mut state.repeats[index];
        repeat.is_over |= is_last || panics;
        repeat.end_at(end);
        drop(state);
        if panics {
            panic_as_planned();
        }
    }

    pub(crate) fn stop(&self, world: &World, back: Back) {
        let (index, handle, was_over) = {
            let state = self.state();
            let Some(index) = state.repeats.len().checked_sub(back % 4 + 1) else { return };
            let repeat = &state.repeats[index];
            let Some(handle) = repeat.handle.clone() else { return };
            (index, handle, repeat.is_over)
        };
        let was_running = handle.stop();
        self.state().repeats[index].is_over = true;
        if was_running == was_over && !world.is_in_turn() {
            world.fault(format!("`stop` of repetition {index} returned {was_running}"));
        }
        if handle.is_running() {
            world.fault(format!("repetition {index} is running after its end"));
        }
    }

    pub(crate) fn call_debounce(&self, world: &World) {
        let now = world.now();
        let due = self.books().after(now, Delay::Nanos(QUIET));
        let scheduled = self.timer.stats().scheduled;
        // A due callback may already be handed off. This call then schedules another one.
        if let Err(error) = self.debounce.call() {
            world.fault(format!("a debounced call was refused: {error}"));
        }
        let is_new = self.timer.stats().scheduled > scheduled;
        let mut state = self.state();
        let before = state.quiet_at.replace(due);
        if is_new && before.is_some() {
            state.late_quiets += 1;
        }
        drop(state);
        let was_due = before.is_some_and(|before| world.is_in_turn() && before <= self.tick(now));
        if is_new != before.is_none() && !was_due {
            world.fault(format!("a debounced call scheduled a run: {is_new}, after {before:?}"));
        }
    }

    fn run_quiet(&self, world: &World) {
        let tick = self.tick(world.now());
        world.note("debounce");
        let mut state = self.state();
        if state.late_quiets > 0 {
            state.late_quiets -= 1;
        } else if state.quiet_at.take().is_none_or(|due| due > tick) {
            drop(state);
            world.fault(format!("the debounced callback ran too early, at {tick}"));
        }
    }

    pub(crate) fn end_debounce(&self, world: &World) {
        let was_waiting = self.debounce.cancel();
        let tick = self.tick(world.now());
        end(world, "debounce", &mut self.state().quiet_at, tick, was_waiting);
    }

    pub(crate) fn call_throttle(&self, world: &World) {
        {
            let mut state = self.state();
            if state.throttled_at.is_none() {
                let free = state.last_throttled.map_or(0, |last| last + u128::from(QUIET));
                state.throttled_at = Some(self.books().at_nanos(free));
            }
        }
        if let Err(error) = self.throttle.call() {
            world.fault(format!("a throttled call was refused: {error}"));
        }
    }

    fn run_throttled(&self, world: &World) {
        let now = world.now();
        let tick = self.tick(now);
        world.note("throttle");
        let mut state = self.state();
        let due = state.throttled_at.take();
        state.last_throttled = Some(self.latest(now));
        drop(state);
        if due.is_none_or(|due| due > tick) {
            world.fault(format!("the throttled callback ran too often: {due:?} at {tick}"));
        }
    }

    pub(crate) fn end_throttle(&self, world: &World) {
        let was_waiting = self.throttle.cancel();
        let tick = self.tick(world.now());
        end(world, "throttle", &mut self.state().throttled_at, tick, was_waiting);
    }

    /// Checks, after a turn, that no callback is overdue and that the timer's counts match the
    /// model.
    pub(crate) fn compare(&self, world: &World) {
        let now = world.now();
        self.books().see(now);
        let tick = self.tick(now);
        let mut state = self.state();
        if state.late_quiets > 0 {
            world.fault(format!("{} debounced callbacks did not run", state.late_quiets));
            state.late_quiets = 0;
        }
        let mut pending = 0;
        for (index, repeat) in state.repeats.iter().enumerate() {
            let is_running = repeat.handle.as_ref().is_some_and(Repeating::is_running);
            if is_running == repeat.is_over {
                world.fault(format!("repetition {index} is running: {is_running}"));
            }
            pending += u64::from(is_running);
        }
        let singles = [state.quiet_at, state.throttled_at];
        pending += singles.iter().flatten().count() as u64;
        let reported = self.timer.stats();
        let sum = reported.pending + reported.expired + reported.cancelled + reported.returned;
        if reported.pending != pending
            || reported.scheduled != sum
            || reported.panicked != state.panicked
        {
            world.fault(format!(
                "rhythms: {pending} pending, {} panics: {reported:?}",
                state.panicked
            ));
        }
        drop(state);
        if world.is_swept() && self.is_behind(world) {
            world.fault(format!("a due callback did not run at {tick}: {:?}", self.state()));
        }
    }

    /// Returns whether a turn would run a callback.
    pub(crate) fn is_behind(&self, world: &World) -> bool {
        self.books().see(world.now());
        let tick = self.tick(world.now());
        let state = self.state();
        let planned = state.repeats.iter().filter(|repeat| !repeat.is_over);
        let planned = planned.map(|repeat| self.due(repeat));
        let singles = [state.quiet_at, state.throttled_at];
        planned.chain(singles.into_iter().flatten()).any(|due| due <= tick)
    }

    /// Returns the number of timeouts scheduled so far.
    pub(crate) fn operations(&self) -> u64 {
        self.timer.stats().scheduled
    }

    pub(crate) fn shut_down(&self) {
        drop(self.timer.shutdown());
        self.state().repeats.clear();
    }
}

/// Compares the answer of a cancel with the expected run. A run that is due in this turn may
/// already be handed off, and then stays expected.
fn end(world: &World, rhythm: &str, expected: &mut Option<Tick>, tick: Tick, was_waiting: bool) {
    let is_open = world.is_in_turn() && expected.is_some_and(|due| due <= tick);
    if was_waiting != expected.is_some() && !is_open {
        world.fault(format!(
            "`cancel` of a {rhythm} returned {was_waiting}, with {expected:?} expected"
        ));
    }
    if was_waiting || !is_open {
        *expected = None;
    }
}

impl Repeat {
    /// Returns the planned time of the next occurrence, in nanoseconds since the origin.
    fn planned(&self) -> u128 {
        self.begin + self.number * u128::from(self.period)
    }

    /// Records the end of an occurrence. A rate continues with the next period. If that period has
    /// ended as well, `Skip` continues with the current period, and `Delay` begins a new one. A
    /// fixed delay always begins a new one.
    fn end_at(&mut self, end: u128) {
        self.number += 1;
        let is_missed = self.planned() < end;
        match self.rhythm {
            Rhythm::Rate(MissedTicks::Skip) if is_missed => {
                self.number = (end - self.begin) / u128::from(self.period) + 1;
            }
            Rhythm::Rate(MissedTicks::Delay) if !is_missed => {}
            Rhythm::Rate(MissedTicks::Delay) | Rhythm::Delay => {
                (self.begin, self.number) = (end, 1);
            }
            Rhythm::Rate(_) => {}
        }
    }
}
