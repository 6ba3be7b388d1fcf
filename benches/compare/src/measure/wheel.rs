//! Operations of the contestants in virtual time.

use super::traffic::{Steady, Traffic};
use crate::prelude::*;
use crate::timers::{DelayQueue, Entrant, TimerQueue};

/// Runs something. Returns its time and its result.
pub fn timed<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let begin = Instant::now();
    let result = black_box(work());
    (begin.elapsed(), result)
}

/// Nanoseconds of each of `number`.
pub fn nanos_per(duration: Duration, number: u64) -> f64 {
    duration.as_secs_f64() * 1e9 / count(number)
}

/// Inserts timeouts whose payload is their deadline.
pub fn insert_all<T: Timers>(timers: &mut T, deadlines: &[u64]) -> Vec<T::Key> {
    deadlines.iter().map(|&deadline| timers.insert(deadline, deadline)).collect()
}

/// Expired timeouts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    pub expired: u64,
    pub sum: u64,
    /// How often the contestant was woken.
    pub wakeups: u64,
    /// The tick that was reached.
    pub now: u64,
    /// Whether the time was up before all had expired.
    pub is_cut_off: bool,
}

impl Drained {
    /// Asserts that exactly these timeouts expired, unless the time was up.
    fn check(&self, deadlines: &[u64], name: &str) {
        let sum = deadlines.iter().fold(0, |sum: u64, deadline| sum.wrapping_add(*deadline));
        let expected = (deadlines.len() as u64, sum);
        assert!(self.is_cut_off || (self.expired, self.sum) == expected, "{name} lost timeouts");
    }

    /// The factor from the part that was measured to the whole time until `end`.
    pub fn factor(&self, end: u64) -> f64 {
        if self.is_cut_off { count(end) / count(self.now.max(1)) } else { 1.0 }
    }

    pub fn note(&self) -> Option<String> {
        self.is_cut_off.then(|| format!("estimated from the first {} ticks", self.now))
    }
}

/// Sleeps until the next expiration in virtual time and expires due timeouts, until none is pending
/// or the real time is over.
pub fn drain<T: Timers>(timers: &mut T, patience: Duration) -> Drained {
    let start = Instant::now();
    let (mut drained, mut pause) = (Drained::default(), 0);
    // Some are woken even if nothing is pending.
    while !timers.is_empty() {
        let Some(next) = timers.next_expiration() else { break };
        // A contestant that asks for the same tick again, with nothing to do, is woken later.
        let now = next.max(drained.now + pause);
        drained.now = now;
        drained.wakeups += 1;
        let mut last = 0;
        let before = drained.expired;
        timers.advance(now, |deadline| {
            let is_in_time = deadline <= now + T::PROMISES.earliness;
            assert!(
                is_in_time && (!T::PROMISES.ordered || last <= deadline),
                "{deadline} at {now}"
            );
            last = deadline;
            drained.sum = drained.sum.wrapping_add(deadline);
            drained.expired += 1;
        });
        pause = u64::from(drained.expired == before);
        if drained.wakeups % 1_024 == 0 && start.elapsed() > patience {
            drained.is_cut_off = true;
            break;
        }
    }
    drained
}

/// Nanoseconds of one insert and of one expiry.
#[derive(Default)]
pub struct Filled {
    insert: f64,
    expire: f64,
    note: Option<String>,
}

/// Fills contestants and expires everything, for at least `long` or 200,000 timeouts.
pub fn fill_once<T: Timers>(make: fn() -> T, deadlines: &[u64], long: Duration) -> Filled {
    let (start, mut filled, mut done) = (Instant::now(), Filled::default(), 0);
    while done < 200_000 && (done == 0 || start.elapsed() < long) {
        let mut timers = make();
        let (inserting, keys) = timed(|| insert_all(&mut timers, deadlines));
        let (expiring, drained) = timed(|| drain(&mut timers, Duration::from_secs(10)));
        drop(keys);
        drained.check(deadlines, T::NAME);
        done += deadlines.len() as u64;
        filled.insert += inserting.as_secs_f64() * 1e9;
        filled.expire += expiring.as_secs_f64() * 1e9 * drained.factor(Spread::Minute.max());
        filled.note = drained.note();
    }
    filled.insert /= count(done);
    filled.expire /= count(done);
    filled
}

/// Insert into an empty contestant, and expire all.
pub(crate) fn fill(bench: &mut Bench) -> Done {
    const SIZES: [u32; 6] = [100, 1_000, 10_000, 100_000, 1_000_000, TEN_MILLION];
    let long = bench.millis(10, 150);
    for &pending in bench.full(&SIZES[..2], &SIZES) {
        let rows = ["insert", "expire"].map(|row| format!("wheel/{row}/{}", size(pending)));
        if !rows.iter().any(|row| bench.is_asked(row)) {
            continue;
        }
        let deadlines = Spread::Minute.delays(&mut Rng::with_seed(bench.options.seed), pending);
        // Others take minutes with ten million.
        let is_for_all = pending < TEN_MILLION || bench.pick(true, false, true);
        for _ in 0..bench.rounds_at(pending) {
            bench.tell(&format!("insert and expire {pending}"));
            for one in timers::all() {
                if one.promises.admits(pending, Spread::Minute.max())
                    && bench.admits("wheel/insert", one.name())
                    && (is_for_all || FEW.contains(&one.name()))
                {
                    let (time, filled) = timed(|| (one.fill)(&deadlines, long));
                    bench.took("wheel/insert", one.name(), time);
                    bench.add(&rows[0], one.name(), filled.insert);
                    bench.add_noted(&rows[1], one.name(), filled.expire, filled.note);
                }
            }
        }
    }
    Ok(())
}

const TEN_MILLION: u32 = 10_000_000;

/// Contestants with ten million timeouts.
const FEW: [&str; 2] = [Wheel::NAME, LazyHeap::NAME];

/// Contestants of the rows in the fresh state.
const FRESH: [&str; 5] =
    [Wheel::NAME, LazyHeap::NAME, BTree::NAME, DelayQueue::NAME, TimerQueue::NAME];

/// Moves every timeout to a later deadline. Returns nanoseconds of one move.
pub fn reset_once<T: Timers + Default>(deadlines: &[u64], moves: &[Pair]) -> f64 {
    let mut timers = T::default();
    let later: Vec<_> = deadlines.iter().map(|deadline| deadline + Spread::Minute.max()).collect();
    let insert = |(&deadline, &later)| timers.insert(deadline, later);
    let mut keys: Vec<_> = deadlines.iter().zip(&later).map(insert).collect();
    let (time, ()) = timed(|| {
        for turn in moves {
            let key = &mut keys[turn.victim as usize];
            *key = timers.reset(*key, turn.delay).expect("a victim was not pending");
        }
    });
    drain(&mut timers, Duration::from_secs(20)).check(&later, T::NAME);
    nanos_per(time, moves.len() as u64)
}

/// Cancel and insert, and reset, from a fresh fill.
pub(crate) fn fresh(bench: &mut Bench) -> Done {
    for &pending in bench.full(&[1_000][..], &[1_000, 100_000, 1_000_000]) {
        for spread in [Spread::Minute, Spread::Month] {
            fresh_at(bench, spread, pending);
        }
    }
    Ok(())
}

fn fresh_at(bench: &mut Bench, spread: Spread, pending: u32) {
    let name = format!("{}/{}", spread.name(), size(pending));
    let traffic = Traffic::fresh(spread, pending, bench.options.seed);
    steady(bench, "wheel/churn_fresh", &format!("/{name}"), pending, &traffic);
    let row = format!("wheel/reset_fresh/{name}");
    if !bench.is_asked(&row) {
        return;
    }
    let mut rng = Rng::with_seed(bench.options.seed);
    let deadlines = spread.delays(&mut rng, pending);
    let mut order: Vec<_> = (0..pending).collect();
    rng.shuffle(&mut order);
    let later = |victim| Pair { victim, delay: deadlines[victim as usize] + Spread::Minute.max() };
    let moves: Vec<_> = order.into_iter().map(later).collect();
    for _ in 0..bench.rounds_at(pending) {
        for one in timers::all().iter().filter(|one| FRESH.contains(&one.name())) {
            bench.add(&row, one.name(), (one.reset)(&deadlines, &moves));
        }
    }
}

/// Limit of the time in which a contestant reaches its steady state, besides the inserts.
const WARM_UP: Duration = Duration::from_secs(8);

/// Measures a contestant at work over so many operations, but no longer than a limit. Returns the
/// nanoseconds of one, and a caveat.
pub type AtWork<'a> = Box<dyn FnMut(u64, Duration) -> (f64, Option<String>) + 'a>;

/// Starts a contestant and brings it into its steady state.
pub fn at_work<T: Timers + Default + 'static>(traffic: &Traffic, limit: Duration) -> AtWork<'_> {
    let mut steady = Steady::new(T::default(), traffic);
    steady.ramp_up();
    let is_steady = steady.warm_up(limit);
    Box::new(move |operations, limit| {
        let value = steady.measure(operations, limit);
        let not_steady = || (!is_steady).then(|| "not steady: too slow".to_owned());
        (value, steady.fault().or_else(not_steady))
    })
}

fn steady(bench: &mut Bench, row: &str, parameter: &str, pending: u32, traffic: &Traffic) {
    let path = format!("{row}{parameter}");
    if !bench.is_asked(&path) {
        return;
    }
    let limit = bench.full(Duration::from_millis(50), WARM_UP);
    bench.tell(&path);
    let mut turns = Vec::new();
    for one in timers::all() {
        if one.promises.admits(pending, traffic.max_delay)
            && bench.admits(row, one.name())
            && (!traffic.is_fresh || FRESH.contains(&one.name()))
        {
            let (time, at_work) = timed(|| (one.at_work)(traffic, limit));
            // The limit itself does not make a contestant slow.
            bench.took(row, one.name(), time.saturating_sub(limit / 2));
            eprint!("-");
            turns.push((one.name(), at_work));
        }
    }
    // A heap with lazy cancel does its work once in as many operations as timeouts are pending.
    let whole = if traffic.is_fresh { u64::from(pending) } else { 0 };
    let operations = bench.pick(20_000, 500_000, 1_000_000).max(whole);
    let limit = bench.millis(50, if traffic.is_fresh { 2_000 } else { 500 });
    for _ in 0..bench.rounds_at(pending) {
        for (name, at_work) in &mut turns {
            let (value, note) = at_work(operations, limit);
            bench.add_noted(&path, name, value, note);
        }
    }
}

/// Cancel and insert in the steady state.
pub(crate) fn churn(bench: &mut Bench) -> Done {
    let all = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    for spread in [Spread::Minute, Spread::Month] {
        let usual = if spread == Spread::Minute { &all[..5] } else { &all[1..4] };
        let long = if spread == Spread::Minute { &all[..] } else { &all[..5] };
        for &pending in bench.pick(&all[..2], usual, long) {
            let traffic = Traffic::churn(spread, pending, bench.options.seed);
            let parameter = format!("/{}/{}", spread.name(), size(pending));
            steady(bench, "wheel/churn", &parameter, pending, &traffic);
        }
    }
    Ok(())
}

/// A request server, answered in two orders, and connections that are kept alive.
pub(crate) fn server(bench: &mut Bench) -> Done {
    let (pending, seed) = (bench.full(1_000, 100_000), bench.options.seed);
    for (row, traffic) in [
        ("wheel/server/random", Traffic::requests(pending, seed)),
        ("wheel/server/oldest", Traffic::requests_in_order(pending, seed)),
        ("wheel/keep_alive", Traffic::connections(pending, seed)),
    ] {
        steady(bench, row, "", pending, &traffic);
    }
    Ok(())
}

/// Fills a contestant and expires everything. Returns the time of the latter.
pub fn drain_once<T: Timers>(
    make: fn() -> T,
    deadlines: &[u64],
    patience: Duration,
) -> (Duration, Drained) {
    let mut timers = make();
    insert_all(&mut timers, deadlines);
    let (time, drained) = timed(|| drain(&mut timers, patience));
    drained.check(deadlines, T::NAME);
    (time, drained)
}

/// A thousand timeouts within a year.
pub(crate) fn sparse(bench: &mut Bench) -> Done {
    const COUNT: u32 = 1_000;
    let patience = bench.millis(30, 500);
    let draw = |seed| Spread::Year.delays(&mut Rng::with_seed(seed), COUNT);
    let first = 20 * bench.options.seed;
    let workloads: Vec<_> = (first..first + 20).map(draw).collect();
    for _ in 0..bench.rounds() {
        bench.tell("sparse year");
        for one in timers::all() {
            if one.promises.admits(COUNT, Spread::Year.max()) {
                sparse_turn(bench, one, &workloads, patience);
            }
        }
    }
    Ok(())
}

fn sparse_turn(bench: &mut Bench, one: Entrant, workloads: &[Vec<u64>], patience: Duration) {
    let (mut micros, mut wakeups, mut note) = (Vec::new(), Vec::new(), None);
    for deadlines in workloads {
        let (time, drained) = (one.drain)(deadlines, patience);
        let factor = drained.factor(deadlines.iter().copied().max().unwrap_or(1));
        micros.push(time.as_secs_f64() * 1e6 * factor);
        wakeups.push(count(drained.wakeups) * factor / count(deadlines.len() as u64));
        note = drained.note();
        // More seeds would take as long each.
        if drained.is_cut_off {
            break;
        }
    }
    let mean = |figures: &[f64]| figures.iter().sum::<f64>() / count(figures.len() as u64);
    let worst = wakeups.iter().copied().fold(0.0, f64::max);
    for (row, value) in [("time", mean(&micros)), ("wakeups", mean(&wakeups)), ("worst", worst)] {
        bench.add_noted(&format!("wheel/sparse/{row}"), one.name(), value, note.clone());
    }
}

/// Wheels of other sizes beside the default.
pub(crate) fn sizes(bench: &mut Bench) -> Done {
    const WHEELS: [(&str, fn() -> Wheel); 8] = [
        ("delaywheel default", Wheel::default),
        ("delaywheel 16", || Wheel::with_size(16)),
        ("delaywheel 32", || Wheel::with_size(32)),
        ("delaywheel 64", || Wheel::with_size(64)),
        ("delaywheel 128", || Wheel::with_size(128)),
        ("delaywheel 256", || Wheel::with_size(256)),
        ("delaywheel 512", || Wheel::with_size(512)),
        ("delaywheel 1024", || Wheel::with_size(1_024)),
    ];
    let long = bench.millis(10, 150);
    for pending in [1_000, bench.full(10_000, 1_000_000)] {
        for spread in [Spread::Minute, Spread::Month] {
            let name = format!("{}/{}", spread.name(), size(pending));
            let deadlines = spread.delays(&mut Rng::with_seed(bench.options.seed), pending);
            let traffic = Traffic::fresh(spread, pending, bench.options.seed);
            for _ in 0..bench.rounds() {
                bench.tell(&format!("sizes, {name}"));
                for (wheel, make) in WHEELS {
                    let filled = fill_once(make, &deadlines, long);
                    bench.add(&format!("wheel/size/insert/{name}"), wheel, filled.insert);
                    bench.add(&format!("wheel/size/expire/{name}"), wheel, filled.expire);
                    let mut steady = Steady::new(make(), &traffic);
                    steady.ramp_up();
                    let value = steady.measure(4 * u64::from(pending.max(100_000)), WARM_UP);
                    bench.add(&format!("wheel/size/churn/{name}"), wheel, value);
                }
            }
        }
    }
    let deadlines = Spread::Year.delays(&mut Rng::with_seed(bench.options.seed), 1_000);
    for _ in 0..bench.rounds() {
        for (wheel, make) in WHEELS {
            let (time, drained) = drain_once(make, &deadlines, Duration::from_secs(1));
            bench.add("wheel/size/sparse", wheel, nanos_per(time, 1_000));
            bench.add("wheel/size/sparse_wakeups", wheel, count(drained.wakeups) / 1e3);
        }
    }
    Ok(())
}
