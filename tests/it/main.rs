//! Deterministic tests of the wheel: no clock, no thread, and no randomness without a seed.

mod bounds;
mod churn;
mod corpus;
mod enumerate;
mod expiry;
mod layers;
mod machine;
mod model;
mod oracle;
mod queue;
mod repeat;
mod scenarios;
mod script;
mod support;
mod tokens;
mod values;
