//! Random scripts in virtual time, beside a small model. Counts and invariants are checked after
//! every step.

use std::{collections::BTreeMap, time::Duration};

use delaywheel::{ManualClock, ScheduleErrorKind, TimeoutKey, TimerStats, ValueTimer};

use super::support::{Log, MS, skewed};

/// Milliseconds, which are the ticks here.
type Millis = u64;

const MAX_PENDING: u64 = 30;

/// A timer and its model.
struct Books {
    clock: ManualClock,
    timer: ValueTimer<u64>,
    random: fastrand::Rng,
    ran: Log<u64>,
    now: Millis,
    /// The pending timeouts of the model, by value.
    pending: BTreeMap<u64, (TimeoutKey, Millis)>,
    /// All keys, also of ended timeouts.
    keys: Vec<(TimeoutKey, u64)>,
    expired: u64,
    cancelled: u64,
    refused: u64,
    returned: u64,
}

impl Books {
    fn new(seed: u64) -> Self {
        let (clock, ran) = (ManualClock::new(), Log::new());
        let log = ran.clone();
        let builder = ValueTimer::builder().clock(clock.clone()).shards(2).wheel_size(4);
        let timer = builder.max_pending(MAX_PENDING).build_with(move |value| log.push(value));
        Self {
            clock,
            timer: timer.unwrap(),
            random: fastrand::Rng::with_seed(seed),
            ran,
            now: 0,
            pending: BTreeMap::new(),
            keys: Vec::new(),
            expired: 0,
            cancelled: 0,
            refused: 0,
            returned: 0,
        }
    }

    fn step(&mut self) {
        match self.random.u32(..100) {
            0..45 => self.schedule(),
            45..60 => self.cancel(),
            60..75 => self.reset(),
            _ => self.advance(),
        }
        self.check();
    }

    fn delay(&mut self) -> Millis {
        skewed(&mut self.random, 20)
    }

    fn schedule(&mut self) {
        let (value, delay) = (self.keys.len() as u64 + self.refused, self.delay());
        match self.timer.schedule(Duration::from_millis(delay), value) {
            Ok(key) => {
                self.pending.insert(value, (key, self.now + delay));
                self.keys.push((key, value));
            }
            Err(refused) => {
                assert_eq!(
                    (refused.kind(), refused.into_value()),
                    (ScheduleErrorKind::Full, value)
                );
                assert_eq!(self.pending.len() as u64, MAX_PENDING);
                self.refused += 1;
            }
        }
    }

    /// Returns a random key, more often a recent one.
    fn key(&mut self) -> Option<(TimeoutKey, u64)> {
        let back = skewed(&mut self.random, 10);
        self.keys.iter().rev().nth(usize::try_from(back).unwrap()).copied()
    }

    fn cancel(&mut self) {
        let Some((key, value)) = self.key() else { return };
        let is_pending = self.pending.remove(&value).is_some();
        assert_eq!(self.timer.cancel(key), is_pending.then_some(value));
        self.cancelled += u64::from(is_pending);
    }

    fn reset(&mut self) {
        let Some((key, value)) = self.key() else { return };
        let deadline = self.now + self.delay();
        let entry = self.pending.get_mut(&value);
        let delay = Duration::from_millis(deadline - self.now);
        assert_eq!(self.timer.reset(key, delay), entry.is_some());
        if let Some(entry) = entry {
            entry.1 = deadline;
        }
    }

    fn advance(&mut self) {
        let end = self.now + skewed(&mut self.random, 13);
        self.clock.advance(Duration::from_millis(end - self.now));
        self.now = end;
        let mut due: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, (_, deadline))| *deadline <= end)
            .map(|(value, entry)| (*value, *entry))
            .collect();
        self.pending.retain(|_, (_, deadline)| *deadline > end);
        self.expired += due.len() as u64;
        due.sort_by_key(|(value, (_, deadline))| (*deadline, *value));
        let deadlines: BTreeMap<_, _> =
            due.iter().map(|(value, (_, deadline))| (*value, *deadline)).collect();
        let mut ran = self.ran.take();
        assert!(ran.is_sorted_by_key(|value| deadlines[value]), "callbacks ran out of order");
        ran.sort_by_key(|value| (deadlines[value], *value));
        assert!(ran.into_iter().eq(due.into_iter().map(|(value, _)| value)));
    }

    fn check(&self) {
        self.timer.check_invariants();
        let stats = self.timer.stats();
        assert!(is_balanced(&stats), "{stats:?}");
        assert_eq!(stats.pending, self.pending.len() as u64);
        assert_eq!(stats.scheduled, self.keys.len() as u64);
        assert_eq!((stats.expired, stats.cancelled), (self.expired, self.cancelled));
        assert_eq!((stats.rejected, stats.returned), (self.refused, self.returned));
        for (key, _) in self.pending.values() {
            assert!(self.timer.is_pending(*key));
        }
    }

    fn shut_down(&mut self) {
        let mut values = self.timer.shutdown();
        values.sort_unstable();
        assert!(values.iter().eq(self.pending.keys()));
        self.returned = values.len() as u64;
        self.pending.clear();
        self.check();
        let refused = self.timer.schedule(MS, 0).unwrap_err();
        assert_eq!((refused.kind(), refused.into_value()), (ScheduleErrorKind::ShutDown, 0));
        self.refused += 1;
        for (key, _) in &self.keys {
            assert_eq!(self.timer.cancel(*key), None);
        }
        self.advance();
        self.check();
    }
}

fn is_balanced(stats: &TimerStats) -> bool {
    stats.scheduled == stats.pending + stats.expired + stats.cancelled + stats.returned
}

#[test]
fn every_timeout_is_accounted_for_after_every_step() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut books = Books::new(seed);
        for _ in 0..1_000 {
            books.step();
        }
        assert!(
            books.expired > 50 && books.cancelled > 20 && books.refused > 0,
            "{} {} {}",
            books.expired,
            books.cancelled,
            books.refused
        );
        books.shut_down();
    }
}
