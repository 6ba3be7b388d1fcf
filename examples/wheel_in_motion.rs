//! A timing wheel that fills, cascades and drains in virtual time: a film and a text.
//!
//! ```text
//! cargo run --release --example wheel_in_motion
//! ```
//!
//! The program runs a wheel of 8 buckets a level. After each step of the reaper, it prints where
//! the timeouts are. It also writes an animated picture of these steps to `docs/figures/wheel.svg`,
//! or to the file that its argument names.

#[path = "wheel_in_motion/film.rs"]
mod film;
#[path = "wheel_in_motion/picture.rs"]
mod picture;

use std::{env, error::Error, fs};

use delaywheel::wheel::WheelBuilder;

use crate::film::{Film, SIZE};

/// A year of milliseconds. A lap of three levels divides it, so the film ends where it begins.
const YEAR: u64 = 365 * 86_400 * 1_000;

/// Deadlines that show one case each, in the order of insertion.
const DEADLINES: [&[u64]; 9] = [
    &[3, 3, 5],                            // level 0
    &[10, 19, 19, 10, 21, 50, 50],         // level 1, few in a bucket
    &[25, 28, 31, 25, 31, 28, 25, 31, 28], // level 1, a crowded bucket
    &[31, 28, 31, 25, 31, 28, 25, 31, 28], //
    &[90, 330, 90, 330],                   // level 2, few in a bucket
    &[150, 140, 180, 155, 170, 133, 155],  // level 2, a crowded bucket
    &[130, 150, 140, 133, 180, 140, 150],  //
    &[150, 170, 140, 155, 170, 150, 130],  //
    &[43, 400, 44, 43, 410, 420, 44, 430], // cancelled
];
const CANCELLED: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut film = Film::new(WheelBuilder::new().size(SIZE).build()?);

    film.caption(
        "Insert",
        "A timeout goes into the bucket of its deadline: near ones inside, far ones outside.",
    );
    film.wait(0.1);
    film.insert(&[YEAR; 2], "inserts 2, due in a year", 0.8)?;
    for deadlines in DEADLINES {
        let list: Vec<_> = deadlines.iter().map(u64::to_string).collect();
        film.insert(deadlines, &format!("inserts {}", list.join(" ")), 0.45)?;
    }
    film.caption(
        "Cancel",
        "A cancelled timeout leaves at once. A bucket that empties leaves the queue, too.",
    );
    film.cancel_last(CANCELLED, 1.4);
    film.caption(
        "Sleep",
        "The reaper thread sleeps until the first bucket of the queue is due. Nothing ticks.",
    );
    film.run_to(5, 0.7, 0.6);
    film.caption(
        "Expire",
        "Few timeouts in a bucket expire from where they are. Empty buckets cost nothing.",
    );
    film.run_to(21, 0.4, 0.4);
    film.caption(
        "List",
        "A crowded bucket is due at the start of its range. On level 1, it is listed tick by tick.",
    );
    film.run_to(24, 0.8, 1.4);
    film.run_to(31, 0.2, 0.3);
    film.run_to(90, 0.3, 0.3);
    film.caption(
        "Cascade",
        "A crowded bucket of a higher level is due: its timeouts move to finer levels.",
    );
    film.run_to(128, 0.8, 1.9);
    film.caption(
        "Drain",
        "The levels are like the hands of a clock: one bucket outside is one whole turn inside.",
    );
    film.run_to(330, 0.14, 0.26);
    film.caption("A year ahead", "The reaper thread sleeps for a year, and wakes once.");
    film.run_to(YEAR, 1.0, 1.2);

    assert!(film.is_empty() && YEAR % picture::LAP == 0, "the film must end as it begins");
    let path = env::args().nth(1);
    let path =
        path.as_deref().unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/figures/wheel.svg"));
    let picture = picture::draw(&film.end());
    fs::write(path, &picture)?;
    println!("\n{} bytes of animation: {path}", picture.len());
    Ok(())
}
