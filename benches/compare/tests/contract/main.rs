//! Every contestant beside an oracle: timeouts expire once, in order and not early.

#![forbid(unsafe_code)]

mod scripts;
mod shared;
