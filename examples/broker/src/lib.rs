//! A small Kafka broker of one node, whose requests wait in purgatories.
//!
//! Unmodified clients can produce to it and poll it. It is an example of how a broker uses
//! [`delaywheel::Purgatory`], not a product: `docs/broker.md` lists what it leaves out.
#![forbid(unsafe_code)]

pub mod broker;
#[doc(hidden)]
pub mod client;
pub mod prelude;
