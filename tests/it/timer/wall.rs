//! Deadlines by the wall clock: an oracle over random scripts, and the notice of a step.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{Clock, ManualClock, TimeoutHandle, Timer};

use super::{
    clock::Set,
    jumps::{HOUR, Jumping},
    support::{GENEROUS, Log, MS, YEAR, manual, manual_with},
};

/// The deadline of a timeout.
#[derive(Debug, Clone, Copy)]
enum Due {
    At(Instant),
    Time(SystemTime),
}

struct Entry {
    due: Due,
    handle: TimeoutHandle,
    has_ended: bool,
}

/// The timeouts that have run, with the clocks at that moment.
type Runs = Log<(usize, Instant, SystemTime)>;

struct World {
    clock: ManualClock,
    timer: Timer,
    entries: Vec<Entry>,
    runs: Runs,
    random: fastrand::Rng,
}

impl World {
    /// Returns a span from nanoseconds to a minute, short ones as often as long ones.
    fn span(&mut self) -> Duration {
        let most = 60_000_000_000 >> self.random.u32(..36);
        Duration::from_nanos(self.random.u64(..most))
    }

    fn time(&mut self) -> SystemTime {
        let (now, span) = (self.clock.system_time(), self.span());
        if self.random.u8(..8) == 0 { now - span } else { now + span }
    }

    fn schedule(&mut self) {
        let (number, runs, clock) = (self.entries.len(), self.runs.clone(), self.clock.clone());
        let run = move || runs.push((number, clock.now(), clock.system_time()));
        let (due, handle) = if self.random.u8(..4) == 0 {
            let span = self.span();
            (Due::At(self.clock.now() + span), self.timer.schedule(span, run))
        } else {
            let time = self.time();
            (Due::Time(time), self.timer.schedule_at_time(time, run))
        };
        self.entries.push(Entry { due, handle: handle.unwrap(), has_ended: false });
    }

    /// Moves or cancels a timeout, which may have ended.
    fn change(&mut self) {
        let (change, span, time) = (self.random.u8(..5), self.span(), self.time());
        self.take_runs();
        let now = self.clock.now();
        let Some(index) =
            (!self.entries.is_empty()).then(|| self.random.usize(..self.entries.len()))
        else {
            return;
        };
        let entry = &mut self.entries[index];
        let (due, was_pending) = match change {
            0 => (entry.due, entry.handle.cancel()),
            1 => (Due::At(now + span), entry.handle.reset(span)),
            2 => (Due::At(now + span), entry.handle.reset_at(now + span)),
            _ => (Due::Time(time), entry.handle.reset_at_time(time)),
        };
        assert_eq!(was_pending, !entry.has_ended, "{index}");
        entry.due = due;
        entry.has_ended |= change == 0;
    }

    /// Asserts that no timeout has run that the oracle forbids.
    fn take_runs(&mut self) {
        for (index, now, time) in self.runs.take() {
            let Entry { due, has_ended, .. } = &mut self.entries[index];
            assert!(!std::mem::replace(has_ended, true), "{index} ran twice, or was cancelled");
            match *due {
                Due::At(due) => assert!(due <= now, "{index} is early"),
                Due::Time(due) => assert!(due <= time, "{index} is early by the wall clock"),
            }
        }
    }

    /// Asserts that each timeout has run that the oracle demands.
    fn check(&mut self) {
        self.take_runs();
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| !entry.has_ended)
        {
            let is_late = match entry.due {
                Due::At(due) => due + MS <= self.clock.now(),
                // A step ahead by less than a tick may have no effect.
                Due::Time(due) => due + 2 * MS <= self.clock.system_time(),
            };
            assert!(!is_late, "{index} is late");
        }
        self.timer.check_invariants();
    }
}

#[test]
fn timeouts_by_the_wall_clock_agree_with_an_oracle_while_it_steps() {
    for seed in 0..100 {
        println!("seed {seed}");
        let (clock, timer) = manual_with(|builder| builder.shards(2));
        let random = fastrand::Rng::with_seed(seed);
        let mut world = World { clock, timer, entries: Vec::new(), runs: Log::new(), random };
        for _ in 0..100 {
            match world.random.u8(..8) {
                0..3 => world.schedule(),
                3..5 => world.change(),
                5..7 => {
                    let span = world.span();
                    world.clock.advance(span);
                }
                _ => {
                    let (now, span) = (world.clock.system_time(), world.span());
                    let time = if world.random.bool() { now + span } else { now - span };
                    world.clock.set_system_time(time);
                }
            }
            if world.random.bool() {
                world.clock.advance(Duration::ZERO);
                world.check();
            }
        }
    }
}

/// The clock of the timer stops, jumps and steps back, and so does the wall clock.
#[test]
fn a_timeout_follows_the_wall_clock_whatever_the_clock_of_the_timer_does() {
    for seed in 0..100 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (clock, log) = (Set::new(), Log::new());
        let timer = Timer::builder().clock(clock.clone()).shards(2).build().unwrap();
        let (mut due, mut since) = (BTreeMap::new(), YEAR);
        for number in 0..100 {
            let [ahead, passed, stepped] = [(); 3].map(|()| {
                let most = 60_000 >> random.u8(..16);
                Duration::from_millis(random.u64(..=most))
            });
            match random.u8(..6) {
                0 | 1 => {
                    let time = clock.system_time() + ahead;
                    let (log, shown) = (log.clone(), clock.clone());
                    let run = move || log.push((number, shown.system_time()));
                    timer.schedule_at_time(time, run).unwrap();
                    due.insert(number, time);
                }
                2 => since += passed,
                3 => since -= passed,
                4 => *clock.0.wall.lock().unwrap() += stepped,
                _ => *clock.0.wall.lock().unwrap() -= stepped,
            }
            clock.show(since);
            for (number, shown) in log.take() {
                let time = due.remove(&number).expect("it runs once");
                assert!(time <= shown, "{number} is early");
            }
            let is_late = |time: &&SystemTime| **time + 2 * MS <= clock.system_time();
            assert_eq!(due.values().find(is_late), None, "one is late");
            timer.check_invariants();
        }
    }
}

#[test]
fn a_step_of_the_wall_clock_is_noticed_without_an_insert() {
    for recheck in [None, Some(MS)] {
        let clock = Jumping::new(false, recheck);
        let (ran, runs) = mpsc::channel();
        let timer = Timer::builder().clock(clock.clone()).inline();
        let timer = timer.build_with(move |hour| ran.send(hour).unwrap()).unwrap();
        let start = clock.system_time();
        timer.schedule(HOUR, 9).unwrap();
        assert_eq!(clock.listeners(), 0, "a timer without deadlines by the wall clock listens");
        for hour in [3, 1, 2] {
            timer.schedule_at_time(start + hour * HOUR, hour).unwrap();
        }
        assert_eq!(clock.listeners(), usize::from(recheck.is_none()));
        clock.step(2 * HOUR);
        let ran: BTreeSet<_> = (0..2).map(|_| runs.recv_timeout(GENEROUS).unwrap()).collect();
        assert_eq!(ran, BTreeSet::from([1, 2]), "{recheck:?}");
        assert_eq!(timer.stats().pending, 2, "a timeout by the other clock stays");
        timer.shutdown();
    }
}

#[test]
fn a_timeout_by_the_clock_of_the_system_is_not_early() {
    let (timer, (ran, runs)) = (Timer::new(), mpsc::channel());
    let due = SystemTime::now() + 5 * MS;
    timer.schedule_at_time(due, move || ran.send(SystemTime::now()).unwrap()).unwrap();
    assert!(runs.recv_timeout(GENEROUS).unwrap() >= due);
}

#[test]
fn a_time_of_jiff_is_a_time_of_the_wall_clock() {
    let (clock, timer) = manual();
    let log = Log::new();
    let time = jiff::Timestamp::from_second(946_684_801).unwrap();
    timer.schedule_at_time(time, log.note("timestamp")).unwrap();
    timer.schedule_at_time(time.to_zoned(jiff::tz::TimeZone::UTC), log.note("zoned")).unwrap();
    clock.advance(999 * MS);
    assert_eq!(log.take(), [""; 0]);
    clock.advance(MS);
    assert_eq!(log.take().len(), 2);
}

#[test]
fn a_timeout_that_was_moved_off_the_wall_clock_does_not_follow_it() {
    let moves: [fn(&TimeoutHandle) -> bool; 2] =
        [|timeout| timeout.reset(2 * HOUR), |timeout| timeout.postpone(2 * HOUR)];
    for move_off in moves {
        let (clock, timer) = manual();
        let log = Log::new();
        let start = clock.system_time();
        let timeout = timer.schedule_at_time(start + HOUR, log.note("moved")).unwrap();
        let noon = timer.schedule_at_time(start + HOUR, log.note("noon")).unwrap();
        assert!(noon.postpone(MS), "it is pending, but does not move");
        assert!(move_off(&timeout));
        clock.set_system_time(start + HOUR);
        assert_eq!(log.take(), ["noon"]);
        assert!(timeout.reset_at_time(start + 3 * HOUR));
        clock.set_system_time(start + 3 * HOUR);
        assert_eq!(log.take(), ["moved"]);
        clock.set_system_time(start);
        clock.advance(9 * HOUR);
        assert_eq!(log.take(), [""; 0], "the time comes twice, and the timeout once");
    }
}

#[test]
fn times_that_no_clock_shows_are_due_at_once_or_never() {
    let (clock, timer) = manual();
    let log = Log::new();
    let start = clock.system_time();
    for (name, time) in [
        ("past", SystemTime::UNIX_EPOCH - 100 * 365 * 24 * HOUR),
        ("never", start + 600 * 365 * 24 * HOUR),
    ] {
        timer.schedule_at_time(time, log.note(name)).unwrap();
    }
    clock.advance(Duration::ZERO);
    assert_eq!(log.take(), ["past"]);
    assert!(clock.run_until_idle(99) && log.take().is_empty());
}

/// Both clocks step back, that of the timer to before the latest look, and stand still.
#[test]
fn a_time_is_not_early_after_both_clocks_have_stepped_back() {
    let (clock, log) = (Set::new(), Log::new());
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    clock.show(MS / 2);
    timer.schedule_at_time(clock.system_time() + HOUR, log.note("noon")).unwrap();
    clock.show(Duration::ZERO);
    *clock.0.wall.lock().unwrap() -= 2 * HOUR;
    timer.schedule_at_time(clock.system_time() + HOUR, log.note("morning")).unwrap();
    clock.turn();
    assert_eq!(log.take(), [""; 0], "it is early");
    *clock.0.wall.lock().unwrap() += HOUR;
    clock.turn();
    assert_eq!(log.take(), ["morning"]);
}

/// A clock without notices, at whose next reading but some the test does something.
#[derive(Clone)]
struct Interrupted(Set, Arc<Mutex<(usize, Option<Interrupt>)>>);

type Interrupt = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Clock for Interrupted {
    fn now(&self) -> Instant {
        let mut next = self.1.lock().unwrap();
        let due = if next.0 == 0 { next.1.take() } else { None };
        next.0 = next.0.saturating_sub(1);
        drop(next);
        if let Some(interrupt) = due {
            interrupt();
        }
        self.0.now()
    }

    fn system_time(&self) -> SystemTime {
        self.0.system_time()
    }
}

/// The thread that schedules stops after it has looked at the clocks. Meanwhile the wall clock is
/// set back, another thread notices that, and the place of the timeout passes.
#[test]
fn a_step_back_while_a_timeout_is_scheduled_does_not_make_it_early() {
    for readings in 0..4 {
        let clock = Interrupted(Set::new(), Arc::default());
        let timer = Timer::builder().clock(clock.clone()).shards(1).build().unwrap();
        let (ran, runs) = mpsc::channel();
        timer.schedule(HOUR, move || ran.send(()).unwrap()).unwrap();
        let ended = timer.schedule(9 * HOUR, || ()).unwrap();
        ended.cancel();
        let (set, shown) = (clock.0.clone(), clock.system_time());
        let interrupt = move || {
            *set.0.wall.lock().unwrap() -= HOUR;
            set.show(2 * HOUR);
            // It looks at the clocks, and wakes no thread.
            assert!(!ended.reset_at_time(shown));
        };
        *clock.1.lock().unwrap() = (readings, Some(Box::new(interrupt)));
        let late = timer.schedule_at_time(shown + HOUR + HOUR / 2, || ()).unwrap();
        runs.recv_timeout(GENEROUS).unwrap();
        assert!(late.is_pending(), "it is early if interrupted after {readings} readings");
    }
}
