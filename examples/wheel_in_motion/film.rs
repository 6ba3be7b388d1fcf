//! The film: the state of the wheel after each step, and how long to show it.

use std::collections::BTreeMap;

use delaywheel::{
    InsertError, Tick,
    wheel::{Key, TimingWheel},
};

/// Buckets of a level.
pub(crate) const SIZE: usize = 8;
/// Levels that the picture shows.
pub(crate) const LEVELS: usize = 3;

/// Where a timeout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Not inserted yet.
    Outside,
    /// In a bucket of a level that the picture does not show.
    Above,
    /// In this bucket of this level.
    Bucket(usize, usize),
    /// Taken from a crowded bucket, and listed by its tick.
    Listed(usize),
    Expired,
    Cancelled,
}

/// A bucket in the order in which the reaper visits them.
pub(crate) type Queued = (Tick, Lane, usize);

/// The entry of a bucket in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Listed,
    Level(usize),
    /// A level that the picture does not show.
    Above,
}

/// One state of the wheel.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// Seconds from the start of the film, and how long the change to this frame takes.
    pub(crate) at: f64,
    pub(crate) takes: f64,
    /// The tick, and the one to which the hands move.
    pub(crate) now: u64,
    pub(crate) until: u64,
    /// The actor: the reaper, or the program that owns the wheel.
    pub(crate) actor: &'static str,
    pub(crate) action: String,
    pub(crate) is_asleep: bool,
    pub(crate) caption: [&'static str; 2],
    /// Places of all timeouts so far, in the order of insertion.
    pub(crate) places: Vec<Place>,
    /// Non-empty buckets: the first of each level, and what else may be due, the earliest first.
    pub(crate) queue: Vec<Queued>,
    /// Timeouts pending, expired and cancelled, and wake-ups.
    pub(crate) counts: [usize; 4],
}

/// A wheel, and the frames so far.
pub(crate) struct Film {
    /// The values are the numbers of the timeouts.
    wheel: TimingWheel<usize>,
    keys: Vec<(Key, u64)>,
    cancelled: Vec<usize>,
    wake_ups: usize,
    caption: [&'static str; 2],
    frames: Vec<Frame>,
    seconds: f64,
}

impl Film {
    pub(crate) fn new(wheel: TimingWheel<usize>) -> Self {
        Self {
            wheel,
            keys: Vec::new(),
            cancelled: Vec::new(),
            wake_ups: 0,
            caption: [""; 2],
            frames: Vec::new(),
            seconds: 0.0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wheel.is_empty()
    }

    pub(crate) fn caption(&mut self, title: &'static str, text: &'static str) {
        println!("\n{title}. {text}");
        self.caption = [title, text];
    }

    pub(crate) fn wait(&mut self, seconds: f64) {
        self.shoot("", false, seconds);
    }

    pub(crate) fn insert(
        &mut self,
        deadlines: &[u64],
        action: &str,
        takes: f64,
    ) -> Result<(), InsertError<usize>> {
        for &deadline in deadlines {
            let key = self.wheel.insert(Tick::new(deadline), self.keys.len())?;
            self.keys.push((key, deadline));
        }
        self.shoot(action, false, takes);
        Ok(())
    }

    pub(crate) fn cancel_last(&mut self, count: usize, takes: f64) {
        for number in self.keys.len() - count..self.keys.len() {
            self.cancelled.extend(self.wheel.cancel(self.keys[number].0));
        }
        self.shoot(&format!("cancels {count} timeouts"), false, takes);
    }

    /// Runs the reaper up to a tick. Each wake-up takes `sleep` and `work` seconds.
    pub(crate) fn run_to(&mut self, end: u64, sleep: f64, work: f64) {
        while let Some(next) = self.wheel.next_expiration().filter(|next| next.get() <= end) {
            let until = if next.get() > 1 << 20 { "in a year".into() } else { next.to_string() };
            self.shoot(&format!("sleeps until {until}"), true, sleep);
            // The hands move while the reaper sleeps.
            self.frames.last_mut().expect("it slept").until = next.get();
            self.wake_ups += 1;
            let before = self.wheel.len();
            let expired = self.wheel.advance(next).count();
            let action = match (expired, self.listed().len()) {
                (0, 0) => "cascades a crowded bucket".into(),
                (0, listed) => format!("lists {listed} timeouts by tick"),
                (1, _) => "expires 1 timeout".into(),
                _ => format!("expires {expired} timeouts"),
            };
            assert_eq!(before - expired, self.wheel.len(), "a timeout went missing");
            self.shoot(&action, false, work);
        }
    }

    /// Returns the frames, and the length of the film.
    pub(crate) fn end(self) -> (Vec<Frame>, f64) {
        (self.frames, self.seconds)
    }

    /// Returns the numbers of the timeouts that are in no bucket.
    fn listed(&self) -> Vec<usize> {
        let in_buckets: Vec<Key> = self.wheel.buckets().flat_map(|(_, _, _, keys)| keys).collect();
        let pending = self.wheel.iter().filter(|(key, ..)| !in_buckets.contains(key));
        pending.map(|(_, _, &number)| number).collect()
    }

    /// Adds a frame of the present state, and prints it.
    fn shoot(&mut self, action: &str, is_asleep: bool, takes: f64) {
        let mut places = vec![Place::Expired; self.keys.len()];
        for &number in &self.cancelled {
            places[number] = Place::Cancelled;
        }
        let mut lanes = BTreeMap::new();
        let mut rows = vec![[0; SIZE]; LEVELS];
        for (level, index, expiration, keys) in self.wheel.buckets() {
            let level = level as usize;
            let (lane, place) = match rows.get_mut(level) {
                None => (Lane::Above, Place::Above),
                Some(row) => {
                    row[index] = keys.len();
                    (Lane::Level(level), Place::Bucket(level, index))
                }
            };
            // The buckets of a level come in order, so the first one stands in the queue.
            lanes.entry(lane).or_insert((expiration, index));
            for key in keys {
                places[*self.wheel.get(key).expect("it is pending")] = place;
            }
        }
        for number in self.listed() {
            let deadline = self.keys[number].1;
            let tick = usize::try_from(deadline % SIZE as u64).expect("it is below 8");
            places[number] = Place::Listed(tick);
            let first = lanes.entry(Lane::Listed).or_insert((Tick::new(deadline), tick));
            *first = (*first).min((Tick::new(deadline), tick));
        }
        let mut queue: Vec<_> =
            lanes.into_iter().map(|(lane, (due, index))| (due, lane, index)).collect();
        queue.sort_unstable();
        let expired = self.keys.len() - self.wheel.len() - self.cancelled.len();
        let now = self.wheel.now().get();
        if !is_asleep && !action.is_empty() {
            print(now, action, &rows, &places);
        }
        self.frames.push(Frame {
            at: self.seconds,
            takes,
            now,
            until: now,
            actor: if self.wake_ups == 0 && !is_asleep { "Program" } else { "Reaper" },
            action: action.into(),
            is_asleep,
            caption: self.caption,
            places,
            queue,
            counts: [self.wheel.len(), expired, self.cancelled.len(), self.wake_ups],
        });
        self.seconds += takes;
    }
}

/// Prints how many timeouts each bucket has.
fn print(now: u64, action: &str, rows: &[[usize; SIZE]], places: &[Place]) {
    let count = |wanted: fn(&Place) -> bool| places.iter().filter(|place| wanted(place)).count();
    let show = |&count: &usize| match count {
        0 => " .".to_owned(),
        _ => format!("{count:2}"),
    };
    let rows: Vec<_> =
        rows.iter().map(|row| row.iter().map(show).collect::<Vec<_>>().join(" ")).collect();
    println!(
        "{now:>12}  [{}]  listed {:2}  above {:2}  {action}",
        rows.join(" | "),
        count(|place| matches!(place, Place::Listed(_))),
        count(|place| *place == Place::Above),
    );
}
