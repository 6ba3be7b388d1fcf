//! Tests of the futures, on the least executor and in virtual time.

mod bad_input;
mod cancel;
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
