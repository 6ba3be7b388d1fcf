//! Timeouts by your own keys, and deadlines for a whole chain of calls.
//!
//! | You have | Use |
//! |---|---|
//! | values with a time to live, such as sessions and caches | [`DelayMap`] |
//! | a time limit for a whole chain of calls | [`Deadline`] |
//! | the gRPC header `grpc-timeout` | [`parse_grpc_timeout`], [`format_grpc_timeout`] |

mod deadline;
mod map;

#[cfg(feature = "future")]
pub(crate) use self::map::Source;
pub use self::{
    deadline::{Deadline, ParseGrpcTimeoutError, format_grpc_timeout, parse_grpc_timeout},
    map::DelayMap,
};
