//! A world: a clock, timers and a purgatory on this clock, and the threads that use them.
//!
//! One thread acts at a time, so a script always runs the same way, including the order of all
//! ends. A fault is recorded and does not panic: callbacks find most faults, and a timer catches
//! their panics.

// The fuzz target names this file by its path, and looks for the module beside it.
#[path = "world/steps.rs"]
mod steps;

use std::{
    cell::Cell,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use crate::{
    books::Number,
    clock::{Time, WorldClock, span_of},
    fronts::{Facade, Front, Planned, Token, duration},
    map::Map,
    repeats::Repeats,
    script::{Action, Delay, Front as Place, Setup, Step, When},
    waits::Waits,
};

/// The time by which an instant for a delay is too early, and that in place of one without end.
const BACK: Time = 50_000_000;
const FAR: Time = 1_000_000 * 365 * 24 * 3_600 * 1_000_000_000;

const DEEPEST: u32 = 6;

/// Maximum number of turns for callbacks that schedule each other without a delay.
const MOST_TURNS: u32 = 500;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

std::thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(0) };
    static IS_RETURNING: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn this_thread() -> usize {
    THREAD.get()
}

pub(crate) fn be_thread(number: usize) {
    THREAD.set(number);
}

/// Returns whether a shutdown returned the callbacks that run now.
pub(crate) fn is_returning() -> bool {
    IS_RETURNING.get()
}

/// Runs returned callbacks, which only record that they were returned.
pub(crate) fn while_returning(run: impl FnOnce()) {
    let before = IS_RETURNING.replace(true);
    run();
    IS_RETURNING.set(before);
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) clock: WorldClock,
    this: Weak<Self>,
    fronts: Mutex<Vec<Arc<Front>>>,
    former: Mutex<Vec<Arc<Front>>>,
    waits: Mutex<Option<Arc<Waits>>>,
    former_waits: Mutex<Vec<Arc<Waits>>>,
    repeats: Repeats,
    map: Map,
    faults: Mutex<Vec<String>>,
    /// A digest of all ends so far, in order.
    digest: Mutex<DefaultHasher>,
    turn: AtomicU64,
    /// The first turn of this step.
    first_turn: AtomicU64,
    turns: AtomicU32,
    /// Nesting of user code.
    acts: AtomicU32,
    /// Whether a callback has moved the clock in a turn, and no turn has followed.
    is_ahead: AtomicBool,
    /// Whether all due timeouts were handed off, because the last action was a turn.
    is_swept: Mutex<bool>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("setup", &self.setup).finish_non_exhaustive()
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Yield {
    pub(crate) nanos: u128,
    pub(crate) operations: u64,
    /// Differs if an end, or the order of the ends, differs.
    pub(crate) digest: u64,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Arc<Self> {
        let clock = WorldClock::new(setup.drive, setup.grain);
        let world = Arc::new_cyclic(|this| Self {
            setup,
            this: this.clone(),
            fronts: Mutex::default(),
            former: Mutex::default(),
            waits: Mutex::default(),
            former_waits: Mutex::default(),
            repeats: Repeats::new(&setup, &clock),
            map: Map::new(&setup, &clock),
            faults: Mutex::default(),
            digest: Mutex::default(),
            turn: AtomicU64::new(1),
            first_turn: AtomicU64::new(1),
            turns: AtomicU32::new(0),
            acts: AtomicU32::new(0),
            is_ahead: AtomicBool::new(false),
            is_swept: Mutex::new(true),
            clock,
        });
        *lock(&world.fronts) = (0..3).map(|place| world.front_for(place)).collect();
        *lock(&world.waits) = Some(Waits::new(&world));
        world
    }

    fn front_for(&self, place: Place) -> Arc<Front> {
        let mut builder = self.clock.builder(&self.setup);
        if let Some(max) = self.setup.max_pending {
            builder = builder.max_pending(max);
        }
        let timer = match place {
            0 => builder.build().map(Facade::Closures),
            1 => builder.build_with(Token::run).map(Facade::Values),
            _ => builder.build_queue().map(Facade::Queue),
        };
        Front::new(self, timer.expect("the settings are in range"))
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn instant_of(&self, time: Time) -> Instant {
        let now = self.clock.instant();
        match time.checked_sub(self.now()) {
            Some(ahead) => now + span_of(ahead),
            None => now.checked_sub(span_of(self.now() - time)).expect("it is after the origin"),
        }
    }

    /// Returns a time 50 ms before the end of the delay.
    pub(crate) fn time_for(&self, delay: Delay) -> Time {
        (self.now() + duration(delay).as_nanos().min(FAR)).saturating_sub(BACK)
    }

    /// Returns a deadline as a delay, as an instant and as a time of the wall clock.
    pub(crate) fn values_of(&self, when: When) -> (Duration, Instant, SystemTime) {
        let delay = when.delay();
        let instant = self.instant_of(self.time_for(delay));
        let ahead = span_of(duration(delay).as_nanos().min(FAR));
        let wall = self.clock.wall();
        // On Windows, no time is after the year 30828.
        let time = wall.checked_add(ahead).unwrap_or(wall + span_of(FAR / 50));
        (duration(delay), instant, time - span_of(BACK))
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Relaxed)
    }

    /// Returns the turn in which the timeouts of this step are handed off.
    pub(crate) fn first_turn(&self) -> u64 {
        self.first_turn.load(Relaxed)
    }

    pub(crate) fn is_in_turn(&self) -> bool {
        self.turns.load(Relaxed) > 0
    }

    pub(crate) fn is_acting(&self) -> bool {
        self.acts.load(Relaxed) > 0
    }

    /// Returns whether the script itself acts, outside of user code and turns.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_in_turn() && !self.is_acting()
    }

    pub(crate) fn is_swept(&self) -> bool {
        *lock(&self.is_swept)
    }

    pub(crate) fn fault(&self, fault: String) {
        lock(&self.faults).push(fault);
    }

    pub(crate) fn note(&self, end: impl Hash) {
        (end, self.now()).hash(&mut *lock(&self.digest));
    }

    /// Records an error. Returns whether there was none.
    pub(crate) fn demand(&self, result: Result<(), String>) -> bool {
        result.map_err(|fault| self.fault(fault)).is_ok()
    }

    fn front(&self, place: Place) -> Arc<Front> {
        Arc::clone(&lock(&self.fronts)[place])
    }

    fn fronts(&self) -> Vec<Arc<Front>> {
        lock(&self.fronts).clone()
    }

    fn waits(&self) -> Arc<Waits> {
        lock(&self.waits).clone().expect("there is one until the end")
    }

    pub(crate) fn repeats(&self) -> &Repeats {
        &self.repeats
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a caller holds it")
    }

    /// Runs a function in which timers hand off due timeouts.
    pub(crate) fn in_turn(&self, run: impl FnOnce()) {
        self.turn.fetch_add(1, Relaxed);
        self.turns.fetch_add(1, Relaxed);
        let fronts = self.fronts();
        for front in &fronts {
            front.books().see(self.now());
        }
        self.waits().see(self);
        self.repeats.books().see(self.now());
        self.map.see(self);
        run();
        self.turns.fetch_sub(1, Relaxed);
        for front in &fronts {
            front.books().see(self.now());
        }
        // Timeouts of an outer turn run after those of this turn, so a new order begins.
        for front in &fronts {
            front.books().forget_order();
        }
    }

    /// Moves the clock, and takes turns until all due timeouts are handed off.
    fn pass(&self, run: impl FnOnce()) {
        let turn = self.turn();
        self.in_turn(run);
        let fronts = self.fronts();
        for front in &fronts {
            front.check_held(self, turn);
        }
        // Timeouts that callbacks schedule without a delay are due in the next turn.
        for turns in 0..MOST_TURNS {
            if turns > 0
                && !fronts.iter().any(|front| front.is_behind(self))
                && !self.waits().is_behind(self)
                && !self.repeats.is_behind(self)
            {
                break;
            }
            self.in_turn(|| self.clock.stand_still());
        }
        for front in fronts {
            front.settle(self);
        }
        self.is_ahead.store(false, Relaxed);
        *lock(&self.is_swept) = true;
    }

    /// Runs the action of user code. Returns whether the user code must panic.
    pub(crate) fn act(&self, action: Action, own: Option<(Arc<Front>, Number)>) -> bool {
        let depth = self.acts.fetch_add(1, Relaxed);
        let panics = depth < DEEPEST && self.act_now(action, own);
        self.acts.fetch_sub(1, Relaxed);
        panics
    }

    /// Sets whether the clock stops at each deadline. It does not if a callback moves it.
    fn exactness(&self, is_exact: bool) {
        for front in self.fronts() {
            let is_exact = is_exact && !matches!(front.timer, Facade::Queue(_));
            front.books().is_exact = is_exact && self.clock.is_exact();
        }
    }

    fn guarded<R: Default>(&self, run: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
            if !payload.is::<Planned>() {
                self.fault(format!("a panic reached the caller: {payload:?}"));
            }
            R::default()
        })
    }

    pub(crate) fn take(&self, step: Step) -> Result<(), String> {
        *lock(&self.is_swept) = false;
        self.first_turn.store(self.turn() + 1, Relaxed);
        self.guarded(|| self.step(step));
        if self.is_ahead.load(Relaxed) {
            // The turn was that of a `finish`, which runs one timer only.
            self.guarded(|| self.pass(|| self.clock.stand_still()));
        }
        self.compare();
        self.exactness(true);
        let faults = std::mem::take(&mut *lock(&self.faults));
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }

    fn compare(&self) {
        self.fronts().iter().for_each(|front| {
            self.guarded(|| front.check_invariants());
            front.compare(self);
        });
        self.guarded(|| self.waits().check_invariants());
        self.waits().compare(self);
        self.repeats.compare(self);
    }

    fn renew(&self, place: Place) {
        let front = self.front(place);
        if place == 2 {
            front.receive(self, u32::MAX);
        }
        front.shut_down(self);
        self.compare();
        let new = self.front_for(place);
        let old = std::mem::replace(&mut lock(&self.fronts)[place], new);
        lock(&self.former).push(old);
    }

    pub(crate) fn renew_waits(&self) {
        let waits = self.waits();
        waits.shut_down();
        waits.compare(self);
        let new = Waits::new(self);
        let old = lock(&self.waits).replace(new);
        lock(&self.former_waits).extend(old);
    }

    /// Ends the world, checks for leftovers, and returns the result.
    pub(crate) fn end(&self) -> Result<Yield, String> {
        *lock(&self.is_swept) = false;
        // The end of a timeout may schedule a new one. The second round ends that.
        for _ in 0..2 {
            self.guarded(|| self.renew_waits());
            (0..3).for_each(|place| self.guarded(|| self.renew(place)));
        }
        self.repeats.end(self);
        let mut operations = 0;
        for front in lock(&self.former).drain(..) {
            front.check_dropped(self);
            operations += front.books().entries.len() as u64;
        }
        for waits in lock(&self.former_waits).drain(..) {
            waits.check_dropped(self);
            operations += waits.operations();
        }
        lock(&self.fronts).clear();
        lock(&self.waits).take();
        let faults = std::mem::take(&mut *lock(&self.faults));
        if !faults.is_empty() {
            return Err(faults.join("\n"));
        }
        let nanos = self.now().saturating_sub(crate::clock::BEGIN);
        Ok(Yield { nanos, operations, digest: lock(&self.digest).finish() })
    }
}
