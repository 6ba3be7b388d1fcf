//! Futures: sleeps, timeouts, intervals, streams and purgatory waits, on any runtime.
//!
//! ```
//! use std::{io, time::Duration};
//!
//! use delaywheel::future::timeout;
//!
//! async fn read() -> io::Result<usize> {
//!     Ok(512)
//! }
//!
//! async fn serve() -> io::Result<usize> {
//!     timeout(Duration::from_secs(5), read()).await?
//! }
//! # assert_eq!(pollster::block_on(serve()).unwrap(), 512);
//! ```
//!
//! A sleep holds a handle to a timer, and the key of its timeout in the wheel. The value of the
//! timeout is the waker of the task that polled the sleep last. The timer needs no runtime: its
//! *reaper*, one thread, wakes the tasks. The same future works on `tokio`, `smol` and every other
//! executor. A [`Driver`] expires the sleeps on a task of your runtime, in place of the thread. A
//! timer with both callbacks and sleeps has two reapers, so that neither delays the other. With a
//! [`Reaper`](crate::Reaper), one thread serves both.
//!
//! The feature `future` is not on by default, because it adds the crates `futures-core` and
//! `pin-project-lite`.
//!
//! | You want | Use |
//! |---|---|
//! | to wait | [`sleep()`], [`sleep_until`]; [`Timer::sleep`] |
//! | to limit how long a future takes | [`timeout()`]; [`Timer::timeout`] |
//! | to do something regularly | [`interval()`], [`interval_at`]; [`Timer::interval`] |
//! | values when they are due | [`DelayQueue::recv_async`], [`DelayQueue::stream`] |
//! | to wait for an event | [`AsyncPurgatory`] |
//!
//! The free functions use a [default timer](default_timer()) for the whole process.
//!
//! # Promises
//!
//! - *Never early*, by the clock of the timer. A sleep ends at or after its deadline, and less than
//!   a tick plus scheduling delay later.
//! - *No lost wake-up.* The timer wakes the task that polled a future last. A poll by the same task
//!   clones no waker, takes no lock, and does not read the clock. A reset to a later deadline takes
//!   no lock either.
//! - *No lock over user code.* The crate clones, wakes and drops wakers without a lock. A waker may
//!   poll, drop and reset other futures. The timer catches and counts the panic of a waker, and
//!   continues. A waker that blocks delays the other sleeps of its timer, but no callback. Under a
//!   [`Driver`] it blocks a worker of your runtime.
//! - *Nothing lingers.* A dropped future leaves the wheel at once. A sleep takes no lock before its
//!   first poll, nor in its drop if it was never polled or has ended.
//! - *No silence.* If the timer is full or shut down, its sleeps end with an error.
//!
//! # Cancel safety
//!
//! You can drop any future at any time without the loss of a tick or of a value of a queue. The
//! details are in the section *Cancel safety* of each function.
//!
//! # Tests
//!
//! On a [`ManualClock`](crate::ManualClock), sleeps end when the test advances the clock, on every
//! runtime. This also works inside of `tokio::time::pause`.
//!
//! ```
//! use std::time::Duration;
//!
//! use delaywheel::{ManualClock, Timer};
//! use pollster::block_on;
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let sleep = timer.sleep(Duration::from_secs(3600));
//! clock.advance(Duration::from_secs(3600));
//! block_on(sleep)?;
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! [`Timer::sleep`]: crate::Timer::sleep
//! [`Timer::timeout`]: crate::Timer::timeout
//! [`Timer::interval`]: crate::Timer::interval
//! [`DelayQueue::recv_async`]: crate::DelayQueue::recv_async
//! [`DelayQueue::stream`]: crate::DelayQueue::stream

mod default_timer;
mod driver;
mod interval;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod sleep;
mod timeout;
mod wait;

pub use self::{
    default_timer::{
        DefaultTimerError, default_timer, interval, interval_at, set_default_timer, sleep,
        sleep_until, timeout, timeout_at,
    },
    driver::Driver,
    interval::Interval,
    queue::{QueueStream, RecvAsync},
    sleep::{Sleep, SleepError},
    timeout::{Timeout, TimeoutError},
    wait::{AsyncPurgatory, Wait, Waiting},
};
