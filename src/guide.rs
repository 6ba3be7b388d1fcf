//! Recipes: how to do common things with this crate.
//!
//! # How the wheel works
//!
//! A timing wheel has levels of buckets: 8 a level in this picture, and 256 in a timer.
//!
#![doc = include_str!("../docs/figures/wheel.svg")]
//!
//! - The wheel reads ticks as numbers in base 8, or 256 in a timer. The highest digit in which a
//!   deadline differs from the present gives level and bucket. So an insert costs the same for each
//!   deadline.
//! - A queue holds the first non-empty bucket of each level. The reaper sleeps until the earliest
//!   of these buckets is due. It never visits empty buckets.
//! - The timeouts of a bucket with at most 16 expire directly from the bucket, even after a year. A
//!   bucket with more timeouts is *crowded*: it is due at the start of its range, and its timeouts
//!   *cascade* to finer levels. The wheel lists the timeouts of a crowded bucket of level 1 by tick
//!   instead.
//!
//! In the repository, `cargo run --release --example wheel_in_motion` makes this picture, and
//! prints its steps as text.
//!
//! # Where callbacks run
//!
//! A timer has one reaper thread, which sleeps until a timeout is due, and executor threads, which
//! run callbacks. The default is one executor thread. Callbacks may also run on the reaper itself
//! or on a pool of yours. With dozens of timers or purgatories, let one [`Reaper`](crate::Reaper)
//! serve them all. The sleeps of a timer have a reaper thread of their own, which starts with the
//! first sleep.
//!
//! ```
//! use std::{sync::LazyLock, thread, time::Duration};
//! use delaywheel::Timer;
//!
//! let timer = Timer::builder()
//!     .tick(Duration::from_micros(100)) // 1 ms by default
//!     .shards(4) // wheels, each with its own lock; by default four for each core, at most 64
//!     .max_pending(1_000_000) // above it, `ScheduleError` hands the callback back
//!     .executor_threads(2) // named "requests-0" and "requests-1"
//!     .name("requests")
//!     .build()?;
//! Timer::builder().inline().build()?; // runs short callbacks on the reaper
//! // Or on a pool of yours, such as `rayon::spawn(task)`:
//! Timer::builder().executor(|task| drop(thread::spawn(task))).build()?;
//!
//! // One timer for the whole program:
//! static TIMER: LazyLock<Timer> = LazyLock::new(Timer::new);
//! assert_eq!(TIMER.stats().pending, 0);
//! # Ok::<_, delaywheel::TimerBuildError>(())
//! ```
//!
//! A callback returns `()`. If it ends with a call that returns a `Result`, write
//! `move || { let _ = sender.send(()); }`.
//!
//! `schedule` never runs a callback on the calling thread, not even with a delay of zero. So you
//! may call it while you hold a lock that the callback takes.
//!
//! # Handles and guards
//!
//! [`Timer::schedule`](crate::Timer::schedule) returns a handle. Dropping the handle leaves the
//! timeout pending. Dropping a guard cancels it. A guard has all methods of a handle.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use delaywheel::Timer;
//!
//! let timer = Timer::new();
//! let hour = Duration::from_secs(3600);
//! let session = timer.schedule(hour, || println!("the session has ended"))?;
//! assert!(session.reset(2 * hour) && session.is_pending());
//! assert!(session.deadline().unwrap() >= Instant::now() + hour);
//! assert!(session.cancel() && !session.cancel());
//! let guard = timer.schedule_at(Instant::now() + hour, || ())?.cancel_on_drop();
//! drop(guard); // or `guard.disarm()`
//!
//! timer.shrink(); // returns memory after a burst
//! assert_eq!(timer.stats().cancelled, 2);
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Idle timeouts of connections
//!
//! One timeout per connection shuts the socket down, which ends a blocking `read`. Each message
//! resets the timeout. `reset` returns `false` once the timeout has expired.
//!
//! ```
//! use std::{
//!     io::{self, Read, Write}, net::{Shutdown, TcpListener, TcpStream}, thread, time::Duration,
//! };
//! use delaywheel::{ManualClock, Timer};
//!
//! const IDLE: Duration = Duration::from_secs(60);
//!
//! fn serve(timer: &Timer, mut stream: TcpStream) -> io::Result<()> {
//!     let socket = stream.try_clone()?;
//!     let timeout = timer.schedule(IDLE, move || drop(socket.shutdown(Shutdown::Both)))?;
//!     let timeout = timeout.cancel_on_drop(); // when the client leaves first
//!     let mut buffer = [0; 4096];
//!     loop {
//!         let length = stream.read(&mut buffer)?; // 0 after the shutdown
//!         if length == 0 || !timeout.reset(IDLE) {
//!             return Ok(());
//!         }
//!         stream.write_all(&buffer[..length])?;
//!     }
//! }
//!
//! let clock = ManualClock::new(); // a server uses `Timer::new()`
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut client = TcpStream::connect(listener.local_addr()?)?;
//! let (stream, _) = listener.accept()?;
//! let server = thread::spawn(move || serve(&timer, stream));
//!
//! let mut echo = [0; 4];
//! client.write_all(b"ping")?;
//! client.read_exact(&mut echo)?;
//! clock.advance(IDLE);
//! assert_eq!(client.read(&mut echo)?, 0, "the server has closed the connection");
//! server.join().unwrap()?;
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Async programs
//!
//! With the feature `future`, tasks can sleep, and limit the time of other futures. In this server,
//! each connection has one sleep, and each message moves the deadline of that sleep:
//!
//! ```ignore
//! use std::{io, time::Duration};
//!
//! use delaywheel::Timer;
//! use tokio::{io::{AsyncReadExt, AsyncWriteExt}, net::TcpStream};
//!
//! const IDLE: Duration = Duration::from_secs(60);
//! const SEND: Duration = Duration::from_secs(5);
//!
//! async fn serve(timer: Timer, mut stream: TcpStream) -> io::Result<()> {
//!     let mut idle = timer.sleep(IDLE);
//!     let mut buffer = [0; 4096];
//!     loop {
//!         let length = tokio::select! {
//!             length = stream.read(&mut buffer) => length?,
//!             elapsed = &mut idle => return Ok(elapsed?), // an error if the timer was shut down
//!         };
//!         if length == 0 {
//!             return Ok(());
//!         }
//!         timer.timeout(SEND, stream.write_all(&buffer[..length])).await??;
//!         idle.reset(IDLE);
//!     }
//! }
//! ```
//!
//! The whole program is `examples/async_server.rs` of the repository.
//!
//! A request that passes through several servers has one [`Deadline`](crate::time::Deadline). Each
//! server reads the time limit from a header, and sends the remaining time to the next server:
//!
//! ```
//! # #[cfg(feature = "future")] {
//! use std::time::Duration;
//! use delaywheel::{future::default_timer, time};
//!
//! async fn answer(header: &str) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
//!     let deadline = time::Deadline::after(time::parse_grpc_timeout(header)?);
//!     let next = deadline.min(time::Deadline::after(Duration::from_secs(1)));
//!     let header = time::format_grpc_timeout(next.remaining());
//!     Ok(next.timeout(default_timer(), ask_next(header)).await?)
//! }
//!
//! async fn ask_next(header: String) -> u8 {
//!     if header.ends_with('H') { 0 } else { 42 }
//! }
//! # assert_eq!(pollster::block_on(answer("5S")).unwrap(), 42);
//! # }
//! ```
//!
//! `examples/deadlines.rs` in the repository does this with three HTTP servers.
//!
//! Pass callbacks that block to the blocking pool of tokio:
//!
//! ```ignore
//! use delaywheel::Timer;
//!
//! let handle = tokio::runtime::Handle::current();
//! let timer = Timer::builder()
//!     .executor(move |task: Box<dyn FnOnce() + Send>| drop(handle.spawn_blocking(task)))
//!     .build()?;
//! ```
//!
//! # Millions of plain values
//!
//! [`ValueTimer`](crate::ValueTimer) passes values to one handler. It allocates nothing for each
//! timeout, and a key is plain data.
//!
//! ```
//! use std::time::Duration;
//! use delaywheel::{ScheduleErrorKind, Timer};
//!
//! let builder = Timer::builder().max_pending(2);
//! let timer = builder.build_with(|request: u64| println!("{request}"))?;
//! let second = Duration::from_secs(1);
//! let key = timer.schedule(second, 17)?;
//! assert_eq!(timer.cancel(key), Some(17));
//! // An error holds the refused value.
//! timer.schedule(second, 1)?;
//! timer.schedule(second, 2)?;
//! let error = timer.schedule(second, 3).unwrap_err();
//! assert_eq!((error.kind(), error.into_value()), (ScheduleErrorKind::Full, 3));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # A cache
//!
//! A [`DelayMap`](crate::time::DelayMap) has timeouts by your own keys. Its owner takes the entries
//! that have expired, so an old timeout never removes a new entry.
//!
//! ```
//! use std::time::Duration;
//! use delaywheel::{ManualClock, Timer, time::DelayMap};
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let live = Duration::from_secs(60);
//! let mut cache = DelayMap::on(&timer); // or `DelayMap::new()`, in real time
//!
//! cache.insert("user-7", "Ann", live)?;
//! clock.advance(Duration::from_secs(40));
//! assert_eq!(cache.insert("user-7", "Anna", live)?, Some("Ann"));
//! clock.advance(Duration::from_secs(40));
//! assert_eq!((cache.pop_expired(), cache.get("user-7")), (None, Some(&"Anna")));
//! clock.advance(Duration::from_secs(20));
//! assert_eq!(cache.pop_expired(), Some(("user-7", "Anna")));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Several threads can share a `DelayMap` behind a `Mutex`. With the feature `future`, a task waits
//! for the next due entry: `map.next().await`.
//!
//! A [`ValueTimer`](crate::ValueTimer) can also expire the entries of a map of your own. Store a
//! version in each entry, and schedule `(key, version)` as the value. The handler then removes the
//! entry, unless the map has a newer version.
//!
//! # Errors
//!
//! Every error works with `?` into `io::Error`, `anyhow::Error` and `Box<dyn Error + Send + Sync>`,
//! even if the refused value is not `Sync`. `kind` returns the reason, and `into_value` the refused
//! value.
//!
//! ```
//! use std::{io, time::Duration};
//! use delaywheel::{ScheduleErrorKind, Timer};
//!
//! fn remind(timer: &Timer) -> io::Result<()> {
//!     timer.schedule(Duration::from_secs(60), || println!("a minute has passed"))?;
//!     Ok(())
//! }
//!
//! let timer = Timer::builder().max_pending(1).build()?;
//! remind(&timer)?;
//! assert_eq!(remind(&timer).unwrap_err().to_string(), "timer is full");
//! let error = timer.schedule(Duration::ZERO, || println!("run elsewhere")).unwrap_err();
//! match error.kind() {
//!     ScheduleErrorKind::Full => error.into_value().run(), // the callback, on this thread
//!     _ => return Err(error.into()),
//! }
//! # Ok::<_, io::Error>(())
//! ```
//!
//! # Repeat, debounce and throttle
//!
//! The runs of one repeated callback never overlap. [`MissedTicks`](crate::MissedTicks) decides
//! what happens to occurrences that a slow callback delayed.
//!
//! ```
//! use std::time::Duration;
//! use delaywheel::{Debounce, ManualClock, MissedTicks, Throttle, Timer};
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let second = Duration::from_secs(1);
//! // `Burst` runs missed occurrences at once, `Skip` drops them, `Delay` moves the schedule.
//! let beat = timer.repeat(second).at_fixed_rate(MissedTicks::Skip, |_| println!("beat"))?;
//! // The delay starts when the callback returns. The callback receives its own handle.
//! timer.repeat(second).with_fixed_delay(|itself| assert!(itself.stop(), "once is enough"))?;
//! let save = Debounce::new(&timer, second, || println!("no change for a second: saved"));
//! let draw = Throttle::new(&timer, second, || println!("drawn, at most once a second"));
//! save.call()?;
//! draw.call()?;
//!
//! assert_eq!(clock.advance_to_next(), Some(Duration::ZERO)); // `draw` runs at once
//! clock.advance(second);
//! assert!(beat.stop() && clock.run_until_idle(100), "nothing is left");
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! `Debounce` and `Throttle` carry no value. The calls store the latest value in shared state, from
//! which the callback reads it:
//!
//! ```
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use delaywheel::{Debounce, ManualClock, Timer};
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let (text, saved) = (Arc::new(Mutex::new("")), Arc::new(Mutex::new(Vec::new())));
//! let (latest, file) = (Arc::clone(&text), Arc::clone(&saved));
//! let save = Debounce::new(&timer, Duration::from_secs(1), move || {
//!     file.lock().unwrap().push(*latest.lock().unwrap());
//! });
//! for typed in ["w", "wh", "wheel"] {
//!     *text.lock().unwrap() = typed;
//!     save.call()?;
//! }
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(*saved.lock().unwrap(), ["wheel"]);
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Retry with backoff
//!
//! A [`Deadline`](crate::time::Deadline) limits all attempts together. The delay between attempts
//! doubles. With the feature `future`:
//!
//! ```
//! # #[cfg(feature = "future")] {
//! use std::{io, pin::pin, task::{Context, Poll, Waker}, time::Duration};
//! use delaywheel::{Clock, ManualClock, Timer, time::Deadline};
//!
//! async fn retry<T>(
//!     timer: &Timer,
//!     deadline: Deadline,
//!     mut attempt: impl AsyncFnMut() -> io::Result<T>,
//! ) -> io::Result<T> {
//!     let mut delay = Duration::from_millis(50);
//!     loop {
//!         match deadline.timeout(timer, attempt()).await? {
//!             Err(_) if delay < deadline.remaining_at(timer.now()) => timer.sleep(delay).await?,
//!             result => return result,
//!         }
//!         delay = (2 * delay).min(Duration::from_secs(5)); // or a random part of it
//!     }
//! }
//!
//! // A test in virtual time needs no runtime. While the task waits, let time pass to its
//! // deadline.
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let mut attempts = 0;
//! let fails = async || {
//!     attempts += 1;
//!     if attempts < 4 { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok("connected") }
//! };
//! let deadline = Deadline::at(clock.now() + Duration::from_secs(60));
//! {
//!     let mut task = pin!(retry(&timer, deadline, fails));
//!     let mut context = Context::from_waker(Waker::noop());
//!     let result = loop {
//!         match task.as_mut().poll(&mut context) {
//!             Poll::Ready(result) => break result,
//!             Poll::Pending => clock.advance_to_next().expect("it waits for a sleep"),
//!         };
//!     };
//!     assert_eq!(result?, "connected");
//! }
//! assert_eq!((attempts, clock.elapsed()), (4, Duration::from_millis(50 + 100 + 200)));
//! # }
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Receive values
//!
//! [`DelayQueue`](crate::DelayQueue) works like `java.util.concurrent.DelayQueue`: threads receive
//! each value once its delay is over.
//!
//! ```
//! use std::{sync::mpsc::TryRecvError, time::Duration};
//! use delaywheel::DelayQueue;
//!
//! let queue = DelayQueue::new();
//! let key = queue.insert(Duration::from_secs(3600), "in an hour")?;
//! assert_eq!((queue.try_recv(), queue.len()), (Err(TryRecvError::Empty), 1));
//! queue.insert(Duration::from_millis(2), "retry")?;
//! assert_eq!(queue.recv()?, "retry");
//! assert!(queue.reset(key, Duration::from_millis(1)));
//! // The queue refuses new values. Values that become due within a minute can still be received.
//! assert!(queue.finish(Duration::from_secs(60)).is_empty());
//! assert_eq!((queue.recv()?, queue.recv().is_err()), ("in an hour", true));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Long polls
//!
//! [`Purgatory`](crate::Purgatory) holds requests until an event or a timeout. The example of this
//! type shows a fetch.
//!
//! - `complete` receives the operation by value. Let it read the state again, and answer for every
//!   [`Completion`](crate::Completion): a fetch that expired returns the records that exist.
//! - `complete` runs on the thread that announced the event or, after an expiration, where
//!   callbacks of the timer run. Let it pass long work to another thread.
//! - To announce an event, change the state, release its lock, and then call `check_and_complete`.
//!   This call runs `try_complete`, which takes the lock of the state again.
//! - If an operation holds an `Arc` of the struct that owns the purgatory, both live until the
//!   operation ends. Give the operation only the state that it reads.
//!
//! # A machine that sleeps, and times of day
//!
//! By default, on Linux, the clock stops while a laptop or a virtual machine is suspended. A
//! [`BootClock`](crate::BootClock) continues: callbacks that are due run right after the resume.
//!
//! ```
//! use std::time::Duration;
//! use delaywheel::{BootClock, MissedTicks, Timer};
//!
//! let timer = Timer::builder().clock(BootClock).build()?;
//! let hour = Duration::from_secs(3600);
//! timer.schedule(hour, || println!("the session has ended"))?;
//! // After a night, one report and not eight.
//! timer.repeat(hour).at_fixed_rate(MissedTicks::Skip, |_| println!("a report"))?;
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! A test simulates a suspension with [`ManualClock::jump`](crate::ManualClock::jump), which has an
//! example.
//!
//! For a time of day, schedule by the wall clock. If the wall clock is set, the timer follows it. A
//! crate such as `jiff` computes the next time in a time zone, as a type that converts into
//! `SystemTime`. In this example, each day has 24 hours:
//!
//! ```
//! use std::{sync::mpsc::{self, Sender}, time::{Duration, SystemTime}};
//! use delaywheel::{Clock, ManualClock, ScheduleError, Task, TimeoutHandle, Timer};
//!
//! const HOUR: Duration = Duration::from_secs(3600);
//!
//! /// Sends `time`, and the same time of each later day. The callback keeps the timer until its
//! /// shutdown.
//! fn daily(
//!     timer: &Timer,
//!     time: SystemTime,
//!     ran: Sender<SystemTime>,
//! ) -> Result<TimeoutHandle, ScheduleError<Task>> {
//!     let again = timer.clone();
//!     timer.schedule_at_time(time, move || {
//!         let _ = ran.send(time);
//!         let _ = daily(&again, time + 24 * HOUR, ran);
//!     })
//! }
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let nine = clock.system_time() + 9 * HOUR;
//! let (ran, runs) = mpsc::channel();
//! daily(&timer, nine, ran)?;
//!
//! clock.advance(9 * HOUR);
//! clock.set_system_time(nine - HOUR); // back, after the run: not again
//! clock.advance(24 * HOUR);
//! assert_eq!(runs.try_iter().collect::<Vec<_>>(), [nine]);
//! clock.set_system_time(nine + 48 * HOUR); // forward: at once, for each day
//! assert_eq!(runs.try_iter().collect::<Vec<_>>(), [nine + 24 * HOUR, nine + 48 * HOUR]);
//! timer.shutdown();
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! After a step of the wall clock over several days, the callback runs once for each missed day. To
//! skip missed days, compute the next time from the later of `time` and the wall clock.
//!
//! # Test in virtual time
//!
//! Pass the timer to the code under test. The test builds the timer on a
//! [`ManualClock`](crate::ManualClock), whose clones show the same time. The section on
//! [retries](#retry-with-backoff) tests a task.
//!
//! ```
//! use std::{sync::{Arc, atomic::{AtomicBool, Ordering}}, time::Duration};
//! use delaywheel::{ManualClock, ScheduleError, Task, TimeoutHandle, Timer};
//!
//! struct Session { expired: Arc<AtomicBool>, timeout: TimeoutHandle }
//!
//! impl Session {
//!     const IDLE: Duration = Duration::from_secs(1800);
//!
//!     fn new(timer: &Timer) -> Result<Self, ScheduleError<Task>> {
//!         let expired = Arc::new(AtomicBool::new(false));
//!         let flag = Arc::clone(&expired);
//!         let timeout = timer.schedule(Self::IDLE, move || flag.store(true, Ordering::Release))?;
//!         Ok(Self { expired, timeout })
//!     }
//! }
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let session = Session::new(&timer)?;
//! clock.advance(Session::IDLE - Duration::from_millis(1));
//! assert!(session.timeout.reset(Session::IDLE));
//! clock.advance(Session::IDLE - Duration::from_millis(1));
//! assert!(!session.expired.load(Ordering::Acquire));
//! clock.advance(Duration::from_millis(1)); // runs the callback on this thread
//! assert!(session.expired.load(Ordering::Acquire));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Shut down
//!
//! A timer shuts down when its last clone is dropped, and drops the pending callbacks. `shutdown`
//! hands them back instead. `finish` first waits for callbacks that are due soon.
//!
//! ```
//! use std::time::Duration;
//! use delaywheel::Timer;
//!
//! let timer = Timer::new();
//! timer.schedule(Duration::from_millis(1), || println!("soon"))?;
//! timer.schedule(Duration::from_secs(3600), || println!("in an hour"))?;
//! // Refuses new callbacks and runs those that become due within 20 ms.
//! let left = timer.finish(Duration::from_millis(20));
//! assert!(!left.is_empty(), "an hour has not passed");
//! left.into_iter().for_each(|task| task.run());
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # A wheel without a timer
//!
//! [`TimingWheel`](crate::wheel::TimingWheel) reads no clock and starts no thread. The owner passes
//! the time to the wheel, and asks it for the next expiration. The wheel needs no `std`: with
//! `default-features = false`, the crate builds on `core` and `alloc`.
//!
//! ```
//! use delaywheel::{Tick, wheel::TimingWheel};
//!
//! let mut wheel = TimingWheel::new(Tick::ZERO);
//! let request = wheel.insert(Tick::new(2_000), "request")?;
//! wheel.insert(Tick::new(500), "heartbeat")?;
//! wheel.insert(Tick::new(31_536_000_000), "licence")?; // in a year of milliseconds
//!
//! assert_eq!(wheel.next_expiration(), Some(Tick::new(500)));
//! let due: Vec<_> = wheel.advance(Tick::new(500)).map(|expired| expired.value).collect();
//! assert_eq!(due, ["heartbeat"]);
//!
//! // The answer came. The cancelled timeout leaves no wake-up behind.
//! assert_eq!(wheel.cancel(request), Some("request"));
//! assert_eq!(wheel.next_expiration(), Some(Tick::new(31_536_000_000)));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! The owner decides how long a tick is. [`Ticks`](crate::Ticks) rounds so that no timeout is
//! early: it rounds *now* down, and deadlines and waits up.
//!
//! ```
//! use core::time::Duration;
//! use delaywheel::{Ticks, wheel::TimingWheel};
//!
//! let ticks = Ticks::new(Duration::ZERO, Duration::from_millis(1));
//! let mut clock = Duration::from_micros(700);
//! let mut wheel = TimingWheel::new(ticks.now(clock));
//! wheel.insert(ticks.deadline(clock + Duration::from_millis(1)), "a millisecond")?;
//! wheel.insert(ticks.deadline(Duration::MAX), "never")?;
//!
//! clock = Duration::from_micros(1_999);
//! assert_eq!(wheel.advance(ticks.now(clock)).count(), 0, "1.7 ms rounds up to tick 2");
//! clock = Duration::from_micros(2_000);
//! // At most 256 steps in one call, so that other events do not wait. The rest stays due.
//! let mut due = wheel.advance(ticks.now(clock)).limit(256);
//! assert_eq!(due.next().unwrap().value, "a millisecond");
//! assert!(due.is_drained());
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! `max_pending` limits the pending timeouts:
//!
//! ```
//! use delaywheel::{Tick, wheel::WheelBuilder};
//!
//! let mut wheel = WheelBuilder::new().max_pending(1).build()?;
//! wheel.insert(Tick::new(5), "first")?;
//! let error = wheel.insert(Tick::new(5), "second").unwrap_err();
//! assert_eq!((error.to_string(), error.into_value()), ("wheel is full".into(), "second"));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # An event loop
//!
//! A program that waits in `epoll`, `kqueue` or `mio` needs no timer thread and no lock.
//! `next_expiration` gives the timeout of the poll. After the poll, the program advances the wheel.
//!
//! ```
//! use std::{sync::mpsc, thread, time::{Duration, Instant}};
//! use delaywheel::{Ticks, wheel::TimingWheel};
//!
//! /// Stands in for `mio::Poll`: waits for an event, at most for `timeout`.
//! fn poll(events: &mpsc::Receiver<u64>, timeout: Option<Duration>) -> Option<u64> {
//!     match timeout {
//!         Some(timeout) => events.recv_timeout(timeout).ok(),
//!         None => events.recv().ok(),
//!     }
//! }
//!
//! let start = Instant::now();
//! let ticks = Ticks::new(Duration::ZERO, Duration::from_millis(1));
//! let mut wheel = TimingWheel::new(ticks.now(start.elapsed()));
//! let (socket, events) = mpsc::channel();
//! thread::spawn(move || socket.send(7)); // request 7 is answered, request 8 is not
//!
//! let deadline = ticks.deadline(start.elapsed() + Duration::from_millis(5));
//! let waiting = [(7, wheel.insert(deadline, 7)?), (8, wheel.insert(deadline, 8)?)];
//! let mut timed_out = Vec::new();
//! while !wheel.is_empty() {
//!     let timeout = wheel.next_expiration().map(|next| ticks.wait(start.elapsed(), next));
//!     if let Some(answer) = poll(&events, timeout) {
//!         let (_, key) = waiting[answer as usize - 7];
//!         wheel.cancel(key);
//!     }
//!     // The limit lets events through while a million timeouts are due.
//!     let now = ticks.now(start.elapsed());
//!     timed_out.extend(wheel.advance(now).limit(1024).map(|expired| expired.value));
//! }
//! assert!(timed_out.contains(&8));
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! `mio::Poll::poll` takes this timeout as it is. If a poll takes whole milliseconds, as
//! `epoll_wait` does, pass `timeout.as_nanos().div_ceil(1_000_000)`, at most `i32::MAX`. With a
//! timeout that is rounded down, the loop would spin during the last millisecond.
//!
//! # When another crate is the better choice
//!
//! The page `docs/compare.md` lists the cases with their reasons. The most frequent ones:
//!
//! - You hold fewer than about 100,000 timeouts on one thread, and pauses of milliseconds do no
//!   harm: use a `BinaryHeap` and skip cancelled entries.
//! - You need ranges, iteration in the order of deadlines, or the order of insertion for equal
//!   deadlines: use a `BTreeMap` whose key has the deadline and a sequence number.
//! - Your async program has few timeouts: use `tokio::time`, which needs no thread of its own.
//! - Timeouts must survive a restart: use the package `delaywheel-durable`.
