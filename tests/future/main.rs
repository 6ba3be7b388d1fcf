//! Tests of the futures, on the least executor and in virtual time.

mod bad_input;
mod cancel;
#[expect(dead_code, reason = "the tests of timers use the rest")]
#[path = "../shared/clock.rs"]
mod clock;
mod driver;
mod ends;
mod interval;
mod map;
mod process;
mod queue;
mod sleep;
mod support;
mod timeout;
mod wait;
mod wakers;
