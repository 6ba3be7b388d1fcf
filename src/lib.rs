//! Timeouts at scale: hierarchical timing wheels for programs that hold millions of timeouts,
//! cancel most of them, and keep some for months.
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use std::time::Duration;
//! use delaywheel::Timer;
//!
//! let timer = Timer::new();
//! let request = timer.schedule(Duration::from_secs(30), || println!("the request timed out"))?;
//! assert!(request.cancel(), "the answer came first");
//! # }
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! In async code, with the feature `future`:
//!
//! ```
//! # #[cfg(feature = "future")]
//! # mod asynchronous {
//! use std::{io, time::Duration};
//!
//! async fn first_byte() -> io::Result<u8> {
//!     delaywheel::future::timeout(Duration::from_secs(5), read_byte()).await?
//! }
//! # async fn read_byte() -> io::Result<u8> { Ok(0) }
//! # }
//! ```
//!
//! | You have | Use |
//! |---|---|
//! | callbacks to run later | [`Timer`] |
//! | millions of plain values, such as request ids | [`ValueTimer`] |
//! | threads that receive due values | [`DelayQueue`] |
//! | a callback to repeat, or to run less often | [`Timer::repeat`], [`Debounce`], [`Throttle`] |
//! | timeouts by your own ids: sessions, a cache | [`time::DelayMap`], `future::SharedDelayMap` |
//! | a time limit for a chain of calls | [`time::Deadline`] |
//! | requests that wait for an event or a timeout | [`Purgatory`] |
//! | futures that sleep or have a time limit | [`future::sleep`], [`future::timeout`] |
//! | an event loop, no threads, or no `std` | [`wheel::TimingWheel`] |
//! | delays that include the time of a suspension | [`BootClock`] |
//! | a time of day | [`Timer::schedule_at_time`] |
//! | a test that must not sleep | [`ManualClock`] |
//!
//! The module [`guide`] has recipes, and the module [`contract`] the guarantees. The crate root
//! exports the types of timers, clocks and the purgatory. A bare wheel and its parts are in
//! [`wheel`], and futures in [`future`].
//!
//! # Features
//!
//! - `std` (default): timers, clocks and the purgatory. Without this feature, [`wheel`] and the
//!   types of ticks build on `core` and `alloc`.
//! - `future`: sleeps, timeouts, intervals, streams and purgatory waits for async programs.
//! - `tracing`: events when a timer starts or shuts down, when a callback or operation panics, and
//!   when timeouts are late.
//!
//! The packages `delaywheel-fastimer`, `delaywheel-hyper`, `delaywheel-metrics`, `delaywheel-quinn`
//! and `delaywheel-tower` connect timers to the crates `fastimer`, `hyper`, `metrics`, `quinn` and
//! `tower`.
//!
#![cfg_attr(
    not(feature = "future"),
    doc = "[`future`]: guide#async-programs\n[`future::sleep`]: guide#async-programs\n\
    [`future::timeout`]: guide#async-programs"
)]
//!
//! # How it works
//!
//! A timing wheel has levels of buckets. The reaper is a thread that sleeps until the first bucket
//! with timeouts is due. The [`guide`] explains this picture:
//!
#![doc = include_str!("../docs/figures/wheel.svg")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(feature = "std", not(target_has_atomic = "64")))]
compile_error!("the feature `std` of `delaywheel` needs a target with atomic integers of 64 bits");

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

#[cfg(feature = "std")]
mod clock;
/// Guarantees of the crate.
#[doc = include_str!("../docs/contract.md")]
pub mod contract {}
mod error;
#[cfg(feature = "std")]
pub mod guide;
#[cfg(feature = "std")]
mod histogram;
#[cfg(feature = "std")]
mod panics;
#[cfg(feature = "std")]
mod purgatory;
mod slab;
#[cfg(feature = "std")]
mod sync;
mod tick;
mod ticks;
#[cfg(feature = "std")]
pub mod time;
#[cfg(feature = "std")]
mod timer;
#[cfg(feature = "std")]
mod waker;
pub mod wheel;

// This module comes last, so that the rustdoc pages of `Timer`, `DelayMap` and `Purgatory` begin
// with their own methods.
#[cfg(feature = "future")]
pub mod future;

#[cfg(feature = "std")]
#[doc(inline)]
pub use self::{
    clock::{BootClock, Clock, Driven, JumpListener, ManualClock, SystemClock, watch_jumps},
    histogram::Histogram,
    purgatory::{
        Completion, Condition, DelayedOperation, OperationGuard, OperationKey, Overload, Purgatory,
        PurgatoryBuildError, PurgatoryBuilder, PurgatoryStats, Watch, WatchError, WatchErrorKind,
        Watched, Watches,
    },
    timer::{
        Debounce, DelayQueue, Executor, MissedTicks, Reaper, Refused, RepeatBuilder, Repeating,
        ScheduleError, ScheduleErrorKind, Task, Throttle, TimeoutGuard, TimeoutHandle, TimeoutKey,
        Timer, TimerBuildError, TimerBuilder, TimerStats, ValueTimer,
    },
};

#[doc(inline)]
pub use self::{
    error::{BuildError, InsertError},
    tick::Tick,
    ticks::Ticks,
};

#[cfg(all(doctest, feature = "future"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
