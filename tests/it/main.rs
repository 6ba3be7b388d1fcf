//! Deterministic tests, without randomness but from a seed; those of the wheel without a clock or a
//! thread as well.

mod bounds;
mod churn;
mod corpus;
#[cfg(feature = "std")]
mod edges;
mod enumerate;
mod expiry;
#[cfg(feature = "std")]
mod hostile;
mod layers;
mod machine;
mod model;
mod oracle;
#[cfg(feature = "std")]
mod purgatory;
#[cfg(feature = "std")]
mod queue;
#[cfg(feature = "std")]
mod repeat;
mod scenarios;
mod script;
mod support;
#[cfg(feature = "std")]
mod timer;
mod tokens;
mod values;
