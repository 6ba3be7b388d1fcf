//! Operations of [`TimingWheel`](delaywheel::wheel::TimingWheel), in virtual time: a tick is a
//! millisecond.
//!
//! ```text
//! cargo bench --bench wheel                       # all
//! cargo bench --bench wheel -- wheel/insert/1e6   # one
//! ```
//!
//! A path is `wheel/OPERATION/PENDING`. Deadlines lie 1 ms to 60 s ahead, and a minute more for
//! pairs of cancel and insert.

#![forbid(unsafe_code)]

mod shared;
#[path = "shared/timeouts.rs"]
mod timeouts;

use timeouts::{run, subject};

fn main() {
    let mut criterion = shared::criterion();
    run::<subject::Wheel>(&mut criterion, "wheel", "cancel_insert", "");
    criterion.final_summary();
}
