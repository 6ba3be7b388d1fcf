//! The work of the bench `targets` on another program, in a PostgreSQL database of its own.
//!
//! Prints one line: jobs a second by 32 callers, in batches of 1,000 by one caller and by 16, and
//! delivered; lateness in milliseconds, median and p99, which is NaN if the times of the program
//! are too coarse.

mod apalis;
mod graphile;
mod rate;
mod underway;

use std::{
    error::Error,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::{Instant, sleep};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SPAN: Duration = Duration::from_secs(3);

/// Jobs that are due one by one.
const SOON: i64 = 1_000;

static DONE: AtomicU32 = AtomicU32::new(0);
static LATE: Mutex<Vec<f64>> = Mutex::new(Vec::new());

struct Figures {
    rates: [f64; 4],
    deliveries: f64,
    late: Vec<f64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, url] = &arguments[..] else { return Err("usage: peers NAME URL".into()) };
    let Figures { rates, deliveries, mut late } = match name.as_str() {
        "graphile_worker" => graphile::measure(url).await?,
        "apalis-postgres" => apalis::measure(url).await?,
        "underway" => underway::measure(url).await?,
        _ => return Err("unknown name".into()),
    };
    late.sort_unstable_by(f64::total_cmp);
    let at = |percent| late.get(late.len() * percent / 100).copied().unwrap_or(f64::NAN);
    let [_, callers, one, all] = rates;
    println!("{callers:.3} {one:.3} {all:.3} {deliveries:.3} {:.3} {:.3}", at(50), at(99));
    Ok(())
}

/// Waits until a number of jobs is done, and returns how many were in a second.
async fn rate_of_deliveries(count: u32) -> f64 {
    let start = Instant::now();
    while DONE.load(SeqCst) < count {
        sleep(Duration::from_millis(1)).await;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

fn delivered() {
    DONE.fetch_add(1, SeqCst);
}

/// Returns the times of the jobs whose lateness counts.
fn soon() -> impl Iterator<Item = DateTime<Utc>> {
    let first = Utc::now() + TimeDelta::seconds(3);
    (0..SOON).map(move |number| first + TimeDelta::milliseconds(4 * number))
}

fn note_lateness(due: DateTime<Utc>) {
    let late = (Utc::now() - due).to_std().unwrap_or_default();
    LATE.lock().expect("not poisoned").push(late.as_secs_f64() * 1_000.0);
}

/// Waits until all jobs of [`soon`] have run. Returns how late each was.
async fn lateness() -> Vec<f64> {
    loop {
        sleep(Duration::from_millis(20)).await;
        let late = LATE.lock().expect("not poisoned");
        if late.len() >= SOON as usize {
            return late.clone();
        }
    }
}

/// Returns a delay in seconds until after the end of the measurement, as in `targets`.
fn someday() -> u32 {
    fastrand::u32(3_600..365 * 86_400)
}
