//! A request server in virtual time: every request has a timeout, and nearly all are answered
//! before it.
//!
//! ```text
//! cargo run --release --example wheel
//! ```
//!
//! A tick is a millisecond. 100,000 requests are in flight; 1000 are answered in each tick, and as
//! many are made. One request in a thousand gets no answer and times out after 2 seconds. 1000
//! reminders also wait, up to a year ahead. The server runs for 10 seconds. After that, the program
//! waits only for the reminders. The program counts inserted and ended timeouts, and fails if the
//! counts differ.

use std::time::{Duration, Instant};

use delaywheel::{
    Tick,
    wheel::{Expired, Key, TimingWheel},
};

const SECOND: u64 = 1_000;
const YEAR: u64 = 365 * 86_400 * SECOND;

/// How long the server runs.
const SECONDS: u64 = 10;

const IN_FLIGHT: u32 = 100_000;
const ANSWERS_PER_TICK: usize = 1_000;
const REQUEST_TIMEOUT: u64 = 2 * SECOND;
const REMINDERS: u32 = 1_000;

/// One request in this many gets no answer.
const LOST_OF: u32 = 1_000;

fn main() {
    let mut server = Server::new();
    println!("second      made  answered  timed out  in flight");
    for second in 1..=SECONDS {
        for _ in 0..SECOND {
            server.tick();
        }
        let Ledger { made, answered, timed_out, .. } = server.ledger;
        let in_flight = made - answered - timed_out;
        println!("{second:>6}{made:>10}{answered:>10}{timed_out:>11}{in_flight:>11}");
    }
    let (serving, spent) = (server.ledger, server.spent);
    server.stop();
    server.sleep_until_nothing_is_pending();
    server.ledger.check();
    report(&serving, &server.ledger, spent);
}

/// The purpose of a timeout.
#[derive(Debug, Clone, Copy)]
enum Waiting {
    /// The answer to the request with this number.
    Answer(u32),
    /// The time of a reminder.
    Reminder,
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Request {
    timeout: Key,
    /// Whether no answer will come.
    is_lost: bool,
}

#[derive(Debug)]
struct Server {
    wheel: TimingWheel<Waiting>,
    now: Tick,
    requests: Vec<Request>,
    random: fastrand::Rng,
    ledger: Ledger,
    /// Time that was spent on timeouts while serving.
    spent: Duration,
}

impl Server {
    /// Sets the reminders, and makes the first requests.
    fn new() -> Self {
        let mut server = Self {
            wheel: TimingWheel::new(Tick::ZERO),
            now: Tick::ZERO,
            requests: Vec::new(),
            random: fastrand::Rng::with_seed(1),
            ledger: Ledger::default(),
            spent: Duration::ZERO,
        };
        for _ in 0..REMINDERS {
            let deadline = Tick::new(log_uniform(&mut server.random, SECOND, YEAR));
            server.insert(deadline, Waiting::Reminder);
            server.ledger.reminders_set += 1;
        }
        for number in 0..IN_FLIGHT {
            let request = server.make(number, false);
            server.requests.push(request);
        }
        server
    }

    /// Lets a millisecond pass: answers come in, other requests are made, timeouts expire.
    fn tick(&mut self) {
        let answers = self.draw_answers();
        let begin = Instant::now();
        for (number, is_lost) in answers {
            self.cancel(number);
            self.ledger.answered += 1;
            self.requests[number as usize] = self.make(number, is_lost);
        }
        self.now = self.now.saturating_add(1);
        if self.wheel.next_expiration().is_some_and(|next| next <= self.now) {
            self.wake();
        }
        self.spent += begin.elapsed();
    }

    /// The requests that are answered in a tick, and whether those that replace them will be lost.
    fn draw_answers(&mut self) -> Vec<(u32, bool)> {
        let mut answers = Vec::with_capacity(ANSWERS_PER_TICK);
        while answers.len() < ANSWERS_PER_TICK {
            let number = self.random.u32(0..IN_FLIGHT);
            let request = &mut self.requests[number as usize];
            if !request.is_lost {
                // Whether its successor is lost; it may be drawn in the same tick.
                request.is_lost = self.random.u32(0..LOST_OF) == 0;
                answers.push((number, request.is_lost));
            }
        }
        answers
    }

    fn make(&mut self, number: u32, is_lost: bool) -> Request {
        self.ledger.made += 1;
        let deadline = self.now.saturating_add(REQUEST_TIMEOUT);
        Request { timeout: self.insert(deadline, Waiting::Answer(number)), is_lost }
    }

    fn insert(&mut self, deadline: Tick, waiting: Waiting) -> Key {
        self.wheel.insert(deadline, waiting).expect("the wheel takes 2^32 timeouts")
    }

    fn cancel(&mut self, number: u32) {
        let cancelled = self.wheel.cancel(self.requests[number as usize].timeout);
        assert!(
            matches!(cancelled, Some(Waiting::Answer(found)) if found == number),
            "the timeout of request {number} was {cancelled:?}"
        );
    }

    /// Handles expired timeouts. A request that timed out is sent again.
    fn wake(&mut self) {
        self.ledger.wake_ups += 1;
        let mut timed_out = Vec::new();
        for expired in self.wheel.advance(self.now) {
            self.ledger.expire(&expired, self.now);
            if let Waiting::Answer(number) = expired.value {
                timed_out.push(number);
            }
        }
        for number in timed_out {
            self.requests[number as usize] = self.make(number, false);
        }
    }

    /// Cancels all requests in flight, and makes no others.
    fn stop(&mut self) {
        for number in 0..IN_FLIGHT {
            self.cancel(number);
            self.ledger.called_off += 1;
        }
    }

    /// Sleeps until the next expiration of the wheel, until no timeout is pending.
    fn sleep_until_nothing_is_pending(&mut self) {
        while let Some(next) = self.wheel.next_expiration() {
            self.now = next;
            self.wake();
        }
    }
}

/// Inserted and ended timeouts.
#[derive(Debug, Clone, Copy, Default)]
struct Ledger {
    made: u64,
    answered: u64,
    timed_out: u64,
    called_off: u64,
    reminders_set: u64,
    reminded: u64,
    wake_ups: u64,
    /// The deadline that expired last.
    last: Tick,
}

impl Ledger {
    fn expire(&mut self, expired: &Expired<Waiting>, now: Tick) {
        let deadline = expired.deadline;
        assert!(self.last <= deadline, "{deadline} expired after {}", self.last);
        // Time moved by one tick, or to the next expiration, so no timeout may be late.
        assert_eq!(deadline, now, "early or late");
        self.last = deadline;
        match expired.value {
            Waiting::Answer(_) => self.timed_out += 1,
            Waiting::Reminder => self.reminded += 1,
        }
    }

    fn expired(&self) -> u64 {
        self.timed_out + self.reminded
    }

    /// Panics unless every timeout ended once.
    fn check(&self) {
        let ended = self.answered + self.timed_out + self.called_off;
        assert_eq!(self.made, ended, "requests went missing");
        assert_eq!(self.reminders_set, self.reminded, "reminders went missing");
        assert!(self.timed_out > 0 && self.reminded > 0, "nothing expired");
    }
}

fn report(serving: &Ledger, all: &Ledger, spent: Duration) {
    let requests = serving.made - u64::from(IN_FLIGHT);
    println!("\nall accounted for:");
    println!(
        "  {} requests: {} answered, {} timed out, {} called off at the end",
        all.made, all.answered, all.timed_out, all.called_off
    );
    println!(
        "  {} reminders, the last on day {}",
        all.reminded,
        all.last.get() / (86_400 * SECOND)
    );
    println!("  {} timeouts expired in order, each in the tick of its deadline", all.expired());
    println!(
        "  {:.2} wake-ups per expired timeout while serving, {:.2} while only reminders were left",
        ratio(serving.wake_ups, serving.expired()),
        ratio(all.wake_ups - serving.wake_ups, all.expired() - serving.expired())
    );
    println!(
        "  {:.0} ns per request: a cancel, an insert, and its share of the passing of time",
        spent.as_secs_f64() * 1e9 / ratio(requests, 1)
    );
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// A number whose logarithm is uniform.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "between 1 and a year of ticks, which f64 counts exactly"
)]
fn log_uniform(random: &mut fastrand::Rng, least: u64, greatest: u64) -> u64 {
    let (least, greatest) = ((least as f64).ln(), (greatest as f64).ln());
    (least + random.f64() * (greatest - least)).exp() as u64
}
