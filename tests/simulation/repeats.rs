//! The repetitions of a world, beside a model of their grids.

use std::sync::{Arc, Mutex, MutexGuard};

use delaywheel::{MissedTicks, Repeating, Timer};

use crate::{
    books::{Books, Tick},
    clock::{Time, WorldClock, span_of},
    script::{Back, Nanos, Repeat, Setup, When},
    world::{World, lock},
};

/// The number of runs after which a callback stops its repetition.
const MOST_RUNS: u32 = 20;

pub(crate) struct Repeats {
    timer: Timer,
    /// The clock of the timer.
    books: Mutex<Books>,
    /// The latest time at which a repetition was planned or ran.
    latest: Mutex<Time>,
    all: Mutex<Vec<(Repeating, Arc<Mutex<Plan>>)>>,
}

#[derive(Debug)]
struct Plan {
    /// The point of the grid to which the next occurrence belongs.
    point: Time,
    /// The tick in which the occurrence was planned.
    since: Tick,
    period: Nanos,
    jitter: Nanos,
    missed: Option<MissedTicks>,
    runs: u32,
    is_running: bool,
}

impl Repeats {
    pub(crate) fn new(setup: &Setup, clock: &WorldClock) -> Self {
        let timer = clock.builder(setup).build().expect("the settings are in range");
        let books = Mutex::new(Books::new(clock, setup.tick, None, 1));
        Self { timer, books, latest: Mutex::default(), all: Mutex::default() }
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    fn now(&self, world: &World) -> (Time, Tick) {
        let (mut books, now) = (self.books(), world.now());
        books.see(now);
        // A timer's clock stops before the deadline that never comes.
        let since = Time::from(books.since(now).min(u64::MAX - 1));
        let (time, mut latest) = (books.begin_of(0).unwrap_or(0) + since, lock(&self.latest));
        *latest = latest.max(time);
        (time, books.now(now))
    }

    /// Returns whether a time comes. It does not if the clock showed it before it stepped back.
    fn is_ahead(&self, time: Time) -> bool {
        *lock(&self.latest) < time
    }

    pub(crate) fn start(&self, world: &Arc<World>, script: Repeat) {
        let Repeat { jitter, first, missed, seed, .. } = script;
        let period = script.period.max(world.setup.tick);
        let (now, since) = self.now(world);
        let values = first.map(|first| (first, world.values_of(first)));
        let point = match values {
            Some((When::At(delay), _)) => world.time_for(delay),
            Some((_, (delay, ..))) => now + delay.as_nanos(),
            None => now,
        };
        let (most, runs, is_running) = (jitter.min(period), 0, true);
        let plan = Plan { point, since, period, jitter: most, missed, runs, is_running };
        let plan = Arc::new(Mutex::new(plan));
        let repeat = self.timer.repeat(span_of(script.period.into()));
        let repeat = match values {
            Some((When::At(_), (_, instant, _))) => repeat.first_at(instant),
            Some((_, (delay, ..))) => repeat.first(delay),
            None => repeat.spread(),
        };
        let repeat = repeat.jitter(span_of(jitter.into())).seed(seed);
        let (shown, own) = (Arc::downgrade(world), Arc::clone(&plan));
        let run = move |itself: &Repeating| {
            lock(&own).run(&shown.upgrade().expect("it turns"), itself);
        };
        let handle = match missed {
            Some(missed) => repeat.at_fixed_rate(missed, run),
            None => repeat.with_fixed_delay(run),
        };
        let handle = handle.expect("it has room");
        if first.is_none() {
            let run = handle.next_run().expect("it is planned");
            let ahead = run.saturating_duration_since(world.instant_of(now)).as_nanos();
            lock(&plan).point += ahead.min(period.into());
        }
        lock(&self.all).push((handle, plan));
    }

    pub(crate) fn stop(&self, world: &World, back: Back) {
        if let Some((handle, plan)) = lock(&self.all).iter().rev().nth(back) {
            let was_running = std::mem::take(&mut lock(plan).is_running);
            if handle.stop() != was_running || handle.is_running() {
                world.fault(format!("stopped, was running: {was_running}, {plan:?}"));
            }
        }
    }

    pub(crate) fn is_behind(&self, world: &World) -> bool {
        let tick = self.now(world).1;
        let is_overdue = |plan: &Plan| plan.is_running && plan.latest(&self.books()) <= tick;
        lock(&self.all).iter().any(|(_, plan)| is_overdue(&lock(plan)))
    }

    pub(crate) fn compare(&self, world: &World) {
        if world.is_swept() && self.is_behind(world) {
            world.fault(String::from("a repetition is held"));
        }
        for (handle, plan) in &*lock(&self.all) {
            let (plan, run) = (lock(plan), handle.next_run());
            let [first, last] = [0, plan.jitter.into()].map(|by| world.instant_of(plan.point + by));
            if run.is_some_and(|run| run < first || last < run) || run.is_some() != plan.is_running
            {
                world.fault(format!("next run {run:?}, {first:?} and {last:?} of {plan:?}"));
            }
        }
    }

    pub(crate) fn end(&self, world: &World) {
        let returned = self.timer.shutdown().len();
        let all = std::mem::take(&mut *lock(&self.all));
        let running = all.iter().filter(|(_, plan)| lock(plan).is_running).count();
        if returned != running || all.iter().any(|(handle, _)| handle.is_running()) {
            world.fault(format!("{returned} repetitions were returned, not {running}"));
        }
    }
}

impl Plan {
    /// Returns the last tick in which the next occurrence may run.
    fn latest(&self, books: &Books) -> Tick {
        books.ceil(books.elapsed(self.point + Time::from(self.jitter)))
    }

    /// Runs an occurrence, which ends within its tick, and plans the next one.
    fn run(&mut self, world: &World, itself: &Repeating) {
        let (now, tick) = world.repeats().now(world);
        let latest = self.latest(&world.repeats().books()).max(self.since);
        let is_early = world.repeats().is_ahead(self.point);
        if is_early || (world.clock.is_exact() && tick > latest) || !self.is_running {
            world.fault(format!("a run at {now}, tick {tick}, {self:?}"));
        }
        world.note((self.point, self.runs));
        let period = Time::from(self.period);
        (self.runs, self.since, self.point) = (self.runs + 1, tick, self.point + period);
        let late = now.saturating_sub(self.point);
        match self.missed {
            Some(_) if late <= self.jitter.into() => {}
            None | Some(MissedTicks::Delay) => self.point = now + period,
            Some(MissedTicks::Skip) => self.point = now + (period - late % period) % period,
            Some(_) => {}
        }
        if self.runs == MOST_RUNS {
            self.is_running = false;
            itself.stop();
        }
    }
}
