//! Timeouts at scale: hierarchical timing wheels for programs that hold very many timeouts, most of
//! which are cancelled, and some of which lie months ahead.
//!
//! [`TimingWheel`] is the heart: a plain value that is told the time. It inserts, cancels and
//! resets in constant time, steps through no empty bucket, and always knows when it wants to be
//! woken next. What it promises is the [contract](wheel#contract) of its module. The `timer` module
//! puts wheels behind locks, for threads: callbacks, plain values, repetition, a delay queue, and
//! virtual time for tests. The `purgatory` module holds requests that wait for events on keys or
//! for their delay, and completes each exactly once.
//!
//! ```
//! use delaywheel::{Tick, TimingWheel};
//!
//! let mut wheel = TimingWheel::new(Tick::ZERO);
//! let request = wheel.insert(Tick::new(2_000), "request")?;
//! wheel.insert(Tick::new(500), "heartbeat")?;
//!
//! assert_eq!(wheel.next_expiration(), Some(Tick::new(500)));
//! let due: Vec<_> = wheel.advance(Tick::new(500)).map(|expired| expired.value).collect();
//! assert_eq!(due, ["heartbeat"]);
//! assert_eq!(wheel.cancel(request), Some("request"));
//! assert_eq!(wheel.next_expiration(), None);
//! # Ok::<_, delaywheel::InsertError<&str>>(())
//! ```
//!
//! # Features
//!
//! - `std` (default): timers, clocks and the purgatory. Without it the wheel and its vocabulary
//!   remain, on `core` and `alloc`.
//! - `metrics`: `TimerMetrics`, which publishes what a timer counts to the facade of that name.
//! - `tracing`: a timer tells that its threads start, that it shuts down, that a callback panicked,
//!   and that timeouts are late.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

#[cfg(feature = "std")]
pub mod clock;
mod error;
#[cfg(feature = "std")]
mod histogram;
#[cfg(feature = "std")]
pub mod purgatory;
mod segments;
#[cfg(feature = "std")]
mod sync;
mod tick;
mod ticks;
#[cfg(feature = "std")]
pub mod timer;
pub mod wheel;

#[cfg(feature = "std")]
pub use self::{
    clock::{Clock, ManualClock, SystemClock},
    histogram::Histogram,
    purgatory::{
        Checks, Completion, DelayedOperation, OperationGuard, OperationKey, Overload, Purgatory,
        PurgatoryBuildError, PurgatoryBuilder, PurgatoryStats, Watch, WatchError, WatchErrorKind,
        Watched,
    },
    timer::{
        BatchError, Debounce, DelayQueue, Executor, MissedTicks, PartialBatch, RecvError,
        RecvTimeoutError, RepeatBuilder, Repeating, ScheduleError, ScheduleErrorKind, Task,
        Throttle, Timeout, TimeoutGuard, TimeoutKey, Timer, TimerBuildError, TimerBuilder,
        TimerStats, TryRecvError, ValueTimer,
    },
};

#[cfg(feature = "metrics")]
pub use self::timer::TimerMetrics;

pub use self::{
    error::{BuildError, InsertError},
    tick::{Tick, TickSpan},
    ticks::Ticks,
    wheel::{Advance, Drain, Expired, Iter, Key, TimingWheel, WheelBuilder},
};

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
