//! A Kafka broker of one node, small but honest, whose requests wait in purgatories.
//!
//! Unmodified clients can produce to it and poll it. It is an example of how a broker uses
//! [`delaywheel::Purgatory`], not a product: what it leaves out is listed in `docs/broker.md`.
#![forbid(unsafe_code)]

pub mod broker;
