//! Measures the memory that a timer takes for each pending timeout, and says which targets are met.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin timer_memory [-- --check]
//! ```
//!
//! A program of its own, since its allocator counts, which would weigh on what is timed. What is
//! counted is what was asked for; what the system's allocator adds to that is not known to it.

#![forbid(unsafe_code)]

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use delaywheel::{ManualClock, Timer, TimerBuilder};
use delaywheel_compare::{
    report::{
        self, Section,
        settings::Settings,
        table::{Row, count},
    },
    shared::{Closures, Load, SharedTimer, Sleeps, Typed},
};
use tokio::runtime;

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<System> = Cap::new(System, usize::MAX);

const PENDING: u32 = 1_000_000;

fn main() -> ExitCode {
    report::run(&[Section::new("memory", rows)])
}

/// Bytes for each pending timeout, and of its handle.
///
/// A timeout of tokio is its own handle: the `Sleep`, in a box.
fn rows(_: &Settings) -> Vec<Row> {
    let [typed, typed_key] = bytes(Typed::new(settings()));
    let [closures, closures_handle] = bytes(Closures::new(settings()));
    let runtime = runtime::Builder::new_current_thread().enable_time().build();
    let _entered = runtime.as_ref().expect("a runtime without I/O can be built").enter();
    let [sleeps, sleeps_box] = bytes(Sleeps);
    let row = |what, figures: [f64; 2]| {
        let name = format!("memory per pending timeout at {PENDING}: {what}");
        Row::new(name, "bytes", [("", figures[0]), (Sleeps::NAME, figures[1])])
    };
    vec![
        row("typed", [typed, sleeps + sleeps_box]).at_most(48.0),
        row("closures", [closures, sleeps + sleeps_box]).at_most(64.0),
        row("typed, key kept", [typed + typed_key, sleeps + sleeps_box]),
        row("closures, handle kept", [closures + closures_handle, sleeps + sleeps_box]),
    ]
}

/// Time stands still, so that none expires meanwhile.
fn settings() -> TimerBuilder {
    Timer::builder().clock(ManualClock::new())
}

/// Bytes that one timeout takes; and of its handle, in an array.
#[expect(clippy::needless_pass_by_value, reason = "a timer is dropped before the next is measured")]
fn bytes<S: SharedTimer>(timer: S) -> [f64; 2] {
    let delays = Load::new(1).delays(PENDING);
    let mut timeouts = Vec::with_capacity(delays.len());
    let before = LIVE.allocated();
    for &delay in &delays {
        timeouts.push(timer.schedule(delay));
    }
    let bytes = LIVE.allocated() - before;
    assert_eq!(timeouts.len(), timeouts.capacity(), "the array has grown");
    [count(bytes as u64) / f64::from(PENDING), count(size_of::<S::Timeout>() as u64)]
}
