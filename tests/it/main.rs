//! Deterministic tests. Random ones draw from a seed; those of the wheel use no clock and no
//! thread.

// The limits are those of words of 64 bits.
#[cfg(target_pointer_width = "64")]
mod alloc;
mod bounds;
#[cfg(feature = "std")]
#[path = "../shared/clock.rs"]
mod clock;
mod corpus;
#[cfg(feature = "std")]
mod debounce;
#[cfg(feature = "std")]
mod edges;
mod enumerate;
#[cfg(feature = "std")]
mod errors;
#[cfg(feature = "tracing")]
mod events;
#[path = "../shared/inputs.rs"]
mod inputs;
mod layers;
mod machine;
mod marathon;
mod model;
mod oracle;
mod pages;
#[cfg(all(unix, target_pointer_width = "64", feature = "std"))]
mod process;
#[cfg(feature = "std")]
mod purgatory;
#[cfg(feature = "std")]
mod repeat;
mod script;
#[path = "../shared/shrink.rs"]
mod shrink;
mod sources;
#[cfg(feature = "std")]
mod starvation;
mod support;
#[cfg(feature = "std")]
mod throttle;
#[cfg(feature = "std")]
mod time;
#[cfg(feature = "std")]
mod timer;
mod values;
#[path = "../shared/variable.rs"]
mod variable;
