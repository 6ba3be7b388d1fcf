//! What is done to them: one operation, so many times, and what has to be done before.
//!
//! All is drawn from a seed, and nothing is concurrent, so that runs hardly differ. They do a
//! little where the present instant comes in, from which a manual clock counts. A thousand other
//! timeouts are pending, a minute ahead at most; none where all expire.

use fastrand::Rng;

use crate::{
    child::OPERATIONS,
    subjects::{Subject, Timer, Wheel},
    waits::{AdvanceNone, CheckNone, CheckWaiting, WatchComplete},
};

/// Something that is counted.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) make: fn() -> Box<dyn Scenario>,
}

pub(crate) const SCENARIOS: &[Entry] = &[
    Entry { name: "wheel/insert", make: || Box::new(Insert::<Wheel>::new()) },
    Entry { name: "wheel/cancel", make: || Box::new(Cancel::<Wheel>::new()) },
    Entry { name: "wheel/reset_later", make: || Box::new(ResetLater::<Wheel>::new()) },
    Entry { name: "wheel/expire", make: || Box::new(Expire::<Wheel>::new()) },
    Entry { name: "timer/schedule", make: || Box::new(Insert::<Timer>::new()) },
    Entry { name: "timer/cancel", make: || Box::new(Cancel::<Timer>::new()) },
    Entry { name: "timer/reset_later", make: || Box::new(ResetLater::<Timer>::new()) },
    Entry { name: "timer/expire", make: || Box::new(Expire::<Timer>::new()) },
    Entry { name: "purgatory/watch+complete", make: || Box::new(WatchComplete::new()) },
    Entry { name: "purgatory/check-none", make: || Box::new(CheckNone::new()) },
    Entry { name: "purgatory/check-waiting", make: || Box::new(CheckWaiting::new()) },
    Entry { name: "purgatory/advance-none", make: || Box::new(AdvanceNone::new()) },
];

/// An operation, so many times.
pub(crate) trait Scenario {
    /// Brings about the state in which the next [`run`](Self::run) does the operation as often.
    fn prepare(&mut self, count: usize);

    /// What is counted.
    fn run(&mut self);
}

/// The most milliseconds that a delay takes.
const MINUTE: u64 = 60_000;

/// Milliseconds within which all expire that are to: some in each.
const SHORT: u64 = 100;

/// Timeouts that are pending besides.
const OTHERS: usize = 1_000;

/// A subject that holds some timeouts, and what is drawn for the next run.
struct Setting<S: Subject> {
    subject: S,
    rng: Rng,
    keys: Vec<S::Key>,
    delays: Vec<u64>,
}

impl<S: Subject> Setting<S> {
    fn new(others: usize) -> Self {
        let mut rng = Rng::with_seed(1);
        let mut subject = S::new();
        for _ in 0..others {
            subject.insert(rng.u64(1..=MINUTE));
        }
        let (keys, delays) =
            (Vec::with_capacity(2 * OPERATIONS), Vec::with_capacity(2 * OPERATIONS));
        Self { subject, rng, keys, delays }
    }

    /// Draws as many delays.
    fn draw(&mut self, count: usize, longest: u64) {
        let Self { rng, delays, .. } = self;
        delays.clear();
        delays.extend((0..count).map(|_| rng.u64(1..=longest)));
    }

    #[inline]
    fn insert_all(&mut self) {
        for &delay in &self.delays {
            self.keys.push(self.subject.insert(delay));
        }
    }

    #[inline]
    fn cancel_all(&mut self) {
        for key in self.keys.drain(..) {
            assert!(self.subject.cancel(key), "a timeout was not pending");
        }
    }
}

/// Inserts into the vacant places of others.
struct Insert<S: Subject>(Setting<S>);

impl<S: Subject> Insert<S> {
    fn new() -> Self {
        Self(Setting::new(OTHERS))
    }
}

impl<S: Subject> Scenario for Insert<S> {
    fn prepare(&mut self, count: usize) {
        self.0.cancel_all();
        self.0.draw(count, MINUTE);
    }

    #[inline(never)]
    fn run(&mut self) {
        self.0.insert_all();
    }
}

/// Cancels in random order.
struct Cancel<S: Subject>(Setting<S>);

impl<S: Subject> Cancel<S> {
    fn new() -> Self {
        Self(Setting::new(OTHERS))
    }
}

impl<S: Subject> Scenario for Cancel<S> {
    fn prepare(&mut self, count: usize) {
        self.0.draw(count, MINUTE);
        self.0.insert_all();
        self.0.rng.shuffle(&mut self.0.keys);
    }

    #[inline(never)]
    fn run(&mut self) {
        self.0.cancel_all();
    }
}

/// Puts off by a minute, in random order.
struct ResetLater<S: Subject>(Setting<S>);

impl<S: Subject> ResetLater<S> {
    fn new() -> Self {
        Self(Setting::new(OTHERS))
    }
}

impl<S: Subject> Scenario for ResetLater<S> {
    fn prepare(&mut self, count: usize) {
        let setting = &mut self.0;
        setting.cancel_all();
        setting.draw(count, MINUTE);
        setting.insert_all();
        let mut timeouts: Vec<_> = setting.keys.drain(..).zip(setting.delays.drain(..)).collect();
        setting.rng.shuffle(&mut timeouts);
        setting.keys.extend(timeouts.iter().map(|(key, _)| key));
        setting.delays.extend(timeouts.iter().map(|(_, delay)| delay + MINUTE));
    }

    #[inline(never)]
    fn run(&mut self) {
        let Setting { subject, keys, delays, .. } = &mut self.0;
        for (&key, &delay) in keys.iter().zip(&*delays) {
            assert!(subject.reset(key, delay), "a timeout was not pending");
        }
    }
}

/// Expires all of a crowd that is due soon, some in each tick; nothing else is pending.
struct Expire<S: Subject>(Setting<S>);

impl<S: Subject> Expire<S> {
    fn new() -> Self {
        Self(Setting::new(0))
    }
}

impl<S: Subject> Scenario for Expire<S> {
    fn prepare(&mut self, count: usize) {
        assert_eq!(self.0.subject.pending(), 0, "a timeout did not expire");
        self.0.draw(count, SHORT);
        self.0.insert_all();
        self.0.keys.clear();
    }

    #[inline(never)]
    fn run(&mut self) {
        self.0.subject.pass(SHORT);
    }
}
