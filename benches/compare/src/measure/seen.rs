//! Behaviour in virtual time: how early and how late timeouts expire, in which order, and whether
//! all do.

use crate::prelude::*;

/// Wake-ups after the last deadline, before a timeout counts as lost.
const LATEST: u32 = 100_000;

/// A tick that is round in no base, within the range of every contestant.
const LONE: u64 = 54_321;

/// Behaviour of a contestant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// The most by which a timeout was early, in milliseconds.
    pub early: f64,
    /// The most by which a timeout was late, in milliseconds.
    pub late: f64,
    /// Timeouts that one call handed out behind one with a later deadline.
    pub unordered: u64,
    /// Timeouts that never expired.
    pub lost: u64,
    /// Of 100 cancelled timeouts, how many never expired.
    pub cancelled: u64,
    /// Wake-ups without work while one timeout waits.
    pub wakeups_one: u64,
    /// Wake-ups after that timeout was cancelled.
    pub wakeups_none: u64,
}

impl Seen {
    /// The rows below `seen`.
    fn rows(&self) -> [(&'static str, f64); 7] {
        [
            ("early", self.early),
            ("late", self.late),
            ("unordered", count(self.unordered)),
            ("lost", count(self.lost)),
            ("cancelled", count(self.cancelled)),
            ("wakeups_one", count(self.wakeups_one)),
            ("wakeups_none", count(self.wakeups_none)),
        ]
    }

    fn add(&mut self, other: Self) {
        self.early = self.early.max(other.early);
        self.late = self.late.max(other.late);
        self.unordered += other.unordered;
        self.lost += other.lost;
    }
}

/// Measures the behaviour of all contestants.
pub(crate) fn run(bench: &mut Bench) -> Done {
    for one in timers::all() {
        let seen = (one.seen)(bench.full(200, 2_000), bench.options.seed);
        for (row, value) in seen.rows() {
            bench.add(&format!("seen/{row}"), one.name(), value);
        }
    }
    Ok(())
}

/// Measures the behaviour of one contestant.
///
/// Delays are up to a minute, and up to a month. A contestant that ticks, or that does not accept a
/// month, gets shorter ones. Deadlines in tenths of a tick show how it rounds.
pub fn look<T: Timers + Default>(pending: u32, random: u64) -> Seen {
    let draw = |spread: Spread| spread.delays(&mut Rng::with_seed(random), pending);
    let longest = T::PROMISES.max_delay.unwrap_or(u64::MAX);
    let mut near = draw(Spread::Minute);
    if longest < Spread::Minute.max() {
        near.iter_mut().for_each(|deadline| *deadline = 1 + *deadline % longest);
    }
    let mut seen = observe(&mut T::default(), &near, 1.0, random);
    if longest >= Spread::Month.max() && !matches!(T::PROMISES.wakes, Wakes::Every(_)) {
        seen.add(observe(&mut T::default(), &draw(Spread::Month), 1.0, random));
    }
    let between = observe(&mut T::in_tenths(), &draw(Spread::Minute), 10.0, random);
    // Deadlines within one tick have no order.
    seen.add(Seen { unordered: 0, ..between });
    seen.cancelled = cancel_half(&mut T::default(), random);
    let mut one = T::default();
    one.insert(LONE, LONE);
    seen.wakeups_one = wake(&mut one);
    let mut none = T::default();
    let key = none.insert(LONE, LONE);
    none.cancel(key);
    seen.wakeups_none = wake(&mut none);
    seen
}

/// Inserts every second timeout at once and the others some time before they are due. Stops just
/// before each deadline, at it and just after it, and whenever the contestant asks to be woken.
fn observe<T: Timers>(timers: &mut T, deadlines: &[u64], parts: f64, seed: u64) -> Seen {
    let mut rng = Rng::with_seed(seed);
    // The deadlines to insert at each stop.
    let mut stops = BTreeMap::<u64, Vec<u64>>::new();
    for (nth, &deadline) in deadlines.iter().enumerate() {
        let at = if nth % 2 == 0 { 0 } else { rng.u64(0..deadline) };
        stops.entry(at).or_default().push(deadline);
        for stop in [deadline.saturating_sub(1), deadline, deadline + 1] {
            stops.entry(stop).or_default();
        }
    }
    let (mut early, mut late, mut unordered, mut expired) = (0, 0, 0, 0);
    let mut advance = |timers: &mut T, now: u64| {
        let mut last = 0;
        timers.advance(now, |deadline| {
            expired += 1;
            early = early.max(deadline.saturating_sub(now));
            late = late.max(now.saturating_sub(deadline));
            unordered += u64::from(deadline < last);
            last = deadline;
        });
    };
    let mut latest = 0;
    for (stop, inserted) in stops {
        while let Some(now) =
            timers.next_expiration().filter(|next| (latest + 1..stop).contains(next))
        {
            advance(timers, now);
            latest = now;
        }
        advance(timers, stop);
        latest = stop;
        for deadline in inserted {
            timers.insert(deadline, deadline);
        }
    }
    for _ in 0..LATEST {
        let next = timers.next_expiration().filter(|_| !timers.is_empty());
        let Some(next) = next else { break };
        latest = next.max(latest + 1);
        advance(timers, latest);
    }
    let lost = (deadlines.len() as u64).saturating_sub(expired);
    Seen {
        early: count(early) / parts,
        late: count(late) / parts,
        unordered,
        lost,
        ..Seen::default()
    }
}

/// Inserts 200 timeouts and cancels every second one. Returns how many of these never expired.
fn cancel_half<T: Timers>(timers: &mut T, seed: u64) -> u64 {
    let deadlines = Spread::Minute.delays(&mut Rng::with_seed(seed), 200);
    let insert = |(&deadline, payload)| timers.insert(deadline, payload);
    let keys: Vec<_> = deadlines.iter().zip(0..).map(insert).collect();
    let mut gone: u64 =
        keys.iter().step_by(2).map(|&key| u64::from(timers.cancel(key).is_some())).sum();
    let mut now = 0;
    for _ in 0..LATEST {
        let next = timers.next_expiration().filter(|_| !timers.is_empty());
        let Some(next) = next else { break };
        now = next.max(now + 1);
        timers.advance(now, |payload| gone -= u64::from(payload % 2 == 0));
    }
    gone
}

/// Wakes a contestant as it asks, until it hands something out or asks no more. Returns the
/// wake-ups before.
fn wake<T: Timers>(timers: &mut T) -> u64 {
    let mut now = 0;
    for wakeups in 0..LATEST {
        let Some(next) = timers.next_expiration() else { return wakeups.into() };
        now = next.max(now + 1);
        let pending = timers.len();
        timers.advance(now, |_| ());
        if timers.len() < pending {
            return wakeups.into();
        }
    }
    LATEST.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    #[test]
    fn one_timeout_that_is_lost_or_early_fails_the_comparison() {
        let ours = look::<Wheel>(200, 1);
        let missed = |seen: Seen| {
            let figure = |(row, value)| Figure::new(format!("seen/{row}"), Wheel::NAME, value);
            let figures = seen.rows().map(figure).into();
            report::missed(&Results { figures, ..Results::default() })
        };
        assert_eq!(missed(ours), 0);
        assert_eq!(missed(Seen { lost: 1, ..ours }), 1);
        assert_eq!(missed(Seen { early: 0.1, ..ours }), 1);
    }
}
