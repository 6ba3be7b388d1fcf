//! Events of the process around a timer: it is stopped and continued, it exits, its threads
//! are torn down.
//!
//! These tests run this program again as a child process. A fork without an exec needs unsafe code,
//! so it is not tested. The documentation of the timer forbids it.

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    io::{self, BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};
#[cfg(feature = "future")]
use std::{
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Instant,
};

use delaywheel::{
    Clock, Completion, DelayedOperation, ScheduleErrorKind, SystemClock, TimeoutGuard, Timer,
    WatchErrorKind,
};
#[cfg(target_os = "linux")]
use {crate::timer::threads::has_threads, delaywheel::BootClock};

use crate::{
    purgatory::support::{Op, Shared},
    timer::support::{GENEROUS, HOUR, MS, wait_until},
};

/// Says which child this process is; none if it is not one.
const ROLE: &str = "DELAYWHEEL_CHILD";

fn child(role: &str, test: &str) -> Child {
    let mut command = command(role, test);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("the program can be run again")
}

fn command(role: &str, test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a test has a program"));
    let test = format!("{}::{test}", module_path!().split_once("::").expect("it is a module").1);
    command.args(["--exact", &test, "--nocapture"]).env(ROLE, role);
    command
}

/// Runs a test on the main thread of a process that cannot start another thread: its threads ask
/// for stacks that no machine has the memory for.
fn without_threads(role: &str, test: &str) {
    let mut command = command(role, test);
    // With one test thread, the harness then runs the test on the main thread.
    command.arg("--test-threads=1").env("RUST_MIN_STACK", (1_u64 << 60).to_string());
    succeeds(command.spawn().expect("the program can be run again"));
}

fn is_child(role: &str) -> bool {
    env::var(ROLE).is_ok_and(|own| own == role)
}

fn signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let status = Command::new("kill").args([signal, &id]).status();
    assert!(status.expect("there is a kill command").success());
}

fn succeeds(mut child: Child) {
    let mut status = None;
    wait_until("the child ends", || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[test]
fn a_stopped_process_runs_each_timeout_that_came_due_once_and_none_early() {
    if is_child("stopped") {
        return be_stopped();
    }
    let test = "a_stopped_process_runs_each_timeout_that_came_due_once_and_none_early";
    let mut child = child("stopped", test);
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    assert!(lines.any(|line| line.expect("the child writes text").ends_with("begun")));
    signal(&child, "-STOP");
    wait_until("the child stops", || state(&child) == "T");
    // Pending timeouts of the child become due while it is stopped.
    let (own, (over, events)) = (Timer::new(), mpsc::channel());
    own.schedule(STOPPED, move || over.send(()).unwrap()).unwrap();
    events.recv_timeout(GENEROUS).expect("time passes");
    signal(&child, "-CONT");
    writeln!(child.stdin.take().expect("it is piped"), "end").expect("the child reads");
    lines.for_each(drop);
    succeeds(child);
}

/// The state of a process, as the system reports it; `T` if it is stopped.
fn state(child: &Child) -> String {
    let id = child.id().to_string();
    let told = Command::new("ps").args(["-o", "state=", "-p", &id]).output();
    String::from_utf8_lossy(&told.expect("there is a ps command").stdout).trim().to_owned()
}

const STOPPED: Duration = Duration::from_millis(400);

/// Has a timeout due in each millisecond, until the parent asks for the end.
fn be_stopped() {
    const COUNT: usize = 60_000;
    let timer = Timer::new();
    let (ran, runs) = mpsc::channel();
    let mut due = SystemClock.now();
    for _ in 0..COUNT {
        due += MS;
        let ran = ran.clone();
        timer.schedule_at(due, move || ran.send((due, SystemClock.now())).unwrap()).unwrap();
    }
    drop(ran);
    println!("\nbegun");
    io::stdout().flush().unwrap();
    // Continues to read after the child is continued.
    io::stdin().read_line(&mut String::new()).unwrap();
    let mut all = Vec::new();
    while all.last().is_none_or(|&(due, at)| at < due + STOPPED / 2) {
        all.push(runs.recv_timeout(GENEROUS).expect("one was pending in the stopped process"));
    }
    let left = timer.shutdown().len();
    all.extend(&runs);
    assert!(all.iter().all(|(due, at)| at >= due), "one was early");
    let numbers: BTreeSet<_> = all.iter().map(|(due, _)| *due).collect();
    assert_eq!((numbers.len() + left, all.len() + left), (COUNT, COUNT), "each ran once");
}

#[test]
fn a_process_exits_while_its_timers_run() {
    static TIMER: LazyLock<Timer> = LazyLock::new(Timer::new);
    if is_child("exiting") {
        let purgatory = Shared::new();
        let _ = purgatory.watch(Op::new(), [1], HOUR).unwrap();
        // One callback never returns, others are due, and the process exits.
        let (begun, events) = mpsc::channel();
        let endless = move || {
            begun.send(()).unwrap();
            loop {
                thread::park();
            }
        };
        TIMER.schedule(Duration::ZERO, endless).unwrap();
        for _ in 0..1_000 {
            TIMER.schedule(MS, || ()).unwrap();
        }
        events.recv().unwrap();
        std::process::exit(0);
    }
    succeeds(child("exiting", "a_process_exits_while_its_timers_run"));
}

/// Schedules on a timer when its thread is torn down.
struct Last {
    timer: Timer,
    ran: mpsc::Sender<&'static str>,
    guard: Option<TimeoutGuard>,
}

impl Drop for Last {
    fn drop(&mut self) {
        let ran = self.ran.clone();
        self.timer.schedule(Duration::ZERO, move || ran.send("last").unwrap()).unwrap();
        drop(self.guard.take());
    }
}

#[test]
fn a_thread_that_is_torn_down_may_schedule_and_cancel_from_its_local_data() {
    thread_local!(static LAST: Mutex<Option<Last>> = const { Mutex::new(None) });
    let timer = Timer::builder().shards(4).build().unwrap();
    let (ran, events) = mpsc::channel();
    for is_first in [true, false] {
        let (timer, ran) = (timer.clone(), ran.clone());
        // The thread's data of the library is made, and so torn down, before or after that of the
        // test.
        let life = move || {
            let guard = is_first.then(|| timer.schedule(HOUR, || ()).unwrap().cancel_on_drop());
            let last = Last { timer: timer.clone(), ran, guard };
            LAST.with(|slot| *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(last));
            timer.schedule(HOUR, || ()).unwrap();
        };
        thread::spawn(life).join().unwrap();
        assert_eq!(events.recv_timeout(GENEROUS), Ok("last"));
    }
    let stats = timer.stats();
    assert_eq!((stats.pending, stats.cancelled), (2, 1));
}

#[test]
fn the_last_handle_may_go_with_the_local_data_of_a_thread() {
    thread_local!(static LAST: Mutex<Option<Timer>> = const { Mutex::new(None) });
    let held = Arc::new(());
    let capture = Arc::clone(&held);
    let life = move || {
        let timer = Timer::new();
        timer.schedule(HOUR, move || drop(capture)).unwrap();
        LAST.with(|slot| *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(timer));
    };
    thread::spawn(life).join().unwrap();
    assert_eq!(Arc::strong_count(&held), 1, "pending callbacks are dropped with the timer");
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_use_starts_one_thread_that_waits_for_steps() {
    const TEST: &str = "the_first_use_starts_one_thread_that_waits_for_steps";
    if !is_child("watching") {
        return succeeds(child("watching", TEST));
    }
    let (own, boot) = (Timer::new(), || Timer::builder().clock(BootClock).build().unwrap());
    let timers = [boot(), boot()];
    own.schedule(HOUR, || ()).unwrap();
    assert!(has_threads("clock-jumps", 0), "without use");
    for timer in &timers {
        timer.schedule(HOUR, || ()).unwrap();
        // The thread names itself when it begins.
        wait_until("a thread waits", || !has_threads("clock-jumps", 0));
    }
    own.schedule_at_time(std::time::SystemTime::now() + HOUR, || ()).unwrap();
    assert!(has_threads("clock-jumps", 1), "for all timers");
}

/// The kernel moves its boot-time clock for a process that enters another time namespace. Only a
/// process with one thread may enter one.
#[cfg(all(target_os = "linux", feature = "future"))]
mod namespace {
    use std::{fs::File, os::fd::AsFd, pin::pin, sync::Weak, task::Context};

    use delaywheel::{JumpListener, future::Sleep};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    const TEST: &str = "namespace::a_sleep_ends_when_the_time_of_the_machine_has_jumped";

    /// A clock whose jumps the test reports, so the process starts no thread for them.
    #[derive(Debug)]
    struct Untold;

    static LISTENER: Mutex<Option<Weak<dyn JumpListener>>> = Mutex::new(None);

    impl Clock for Untold {
        fn now(&self) -> Instant {
            BootClock.now()
        }

        fn may_jump(&self) -> bool {
            BootClock.may_jump()
        }

        fn watch(&self, listener: Weak<dyn JumpListener>) -> Option<Duration> {
            *LISTENER.lock().unwrap() = Some(listener);
            None
        }
    }

    struct Woken(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    #[test]
    fn a_sleep_ends_when_the_time_of_the_machine_has_jumped() {
        if is_child("in a namespace") {
            return jump();
        }
        without_threads("in a namespace", TEST);
    }

    /// Starts a process in a time namespace that is two hours ahead; `None` if that is impossible.
    fn start_ahead() -> Option<(Child, File)> {
        let mut command = Command::new("unshare");
        command.args(["--time", "--boottime", "7200", "sh", "-c", "echo begun; read line"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut ahead = command.spawn().ok()?;
        let begun = BufReader::new(ahead.stdout.take()?).lines().next();
        let namespace = File::open(format!("/proc/{}/ns/time", ahead.id()));
        let namespace = namespace.ok().filter(|_| begun.is_some_and(|line| line.is_ok()));
        if namespace.is_none() {
            drop(ahead.stdin.take());
            ahead.wait().expect("it has ended");
        }
        Some((ahead, namespace?))
    }

    fn jump() {
        let (system, boot) = (Instant::now(), BootClock.now());
        let Some((mut ahead, namespace)) = start_ahead() else {
            return eprintln!("not tested: this process cannot make a time namespace");
        };
        let no_sleep = |_| std::future::pending::<()>();
        let (timer, driver) = Timer::builder().clock(Untold).build_with_driver(no_sleep).unwrap();
        let mut driver = pin!(driver);
        let mut sleeps = [HOUR, 3 * HOUR].map(|delay| timer.sleep(delay));
        let woken = Arc::new(Woken(false.into()));
        let waker = Arc::clone(&woken).into();
        let mut turn = || driver.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let is_over = |sleep: &mut Sleep| {
            let mut context = Context::from_waker(std::task::Waker::noop());
            pin!(sleep).poll(&mut context).is_ready()
        };
        assert!(turn() && sleeps.iter_mut().all(|sleep| !is_over(sleep)));
        assert!(turn());
        woken.0.store(false, std::sync::atomic::Ordering::SeqCst);

        let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Time));
        drop(ahead.stdin.take());
        ahead.wait().expect("it ends");
        if let Err(error) = entered {
            return eprintln!("not tested: this process cannot enter a time namespace: {error}");
        }
        assert!(BootClock.now() - boot >= 2 * HOUR, "the clock has not jumped");
        assert!(system.elapsed() < HOUR);
        let listener = LISTENER.lock().unwrap().as_ref().and_then(Weak::upgrade);
        listener.expect("the timer listens").clock_has_jumped();
        assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst), "the driver is not woken");
        assert!(turn());
        assert_eq!(sleeps.each_mut().map(is_over), [true, false]);
        eprintln!("tested in a time namespace");
    }
}

/// A clock that panics, then sleeps on the timer that reads it, and then is a good clock.
#[cfg(feature = "future")]
#[derive(Debug, Clone, Default)]
struct Odd(Arc<AtomicU32>);

#[cfg(feature = "future")]
impl delaywheel::Clock for Odd {
    fn now(&self) -> Instant {
        let faults = self.0.load(SeqCst);
        self.0.store(faults.saturating_sub(1), SeqCst);
        assert!(faults < 2, "the clock panics");
        if faults == 1 {
            drop(delaywheel::future::sleep(HOUR));
        }
        Instant::now()
    }
}

/// Only this test uses the default timer of this process.
#[cfg(feature = "future")]
#[test]
fn the_clock_of_the_default_timer_may_panic_and_may_sleep_at_its_first_use() {
    use delaywheel::future::{set_default_timer, sleep};
    use pollster::block_on;

    use crate::timer::support::timer_on;

    let (clock, timer) = timer_on(Odd::default(), |builder| builder);
    set_default_timer(timer).expect("no test has used it");
    clock.0.store(2, SeqCst);
    assert!(std::panic::catch_unwind(|| drop(sleep(HOUR))).is_err(), "the clock was read");
    drop(sleep(HOUR));
    assert_eq!(clock.0.load(SeqCst), 0);
    block_on(sleep(MS)).expect("the timer works");
}

#[test]
fn without_a_thread_the_value_and_the_cause_are_handed_back() {
    const TEST: &str = "without_a_thread_the_value_and_the_cause_are_handed_back";
    if !is_child("without threads") {
        return without_threads("without threads", TEST);
    }
    for builder in [Timer::builder(), Timer::builder().inline()] {
        let timer = builder.build_with(|_: u32| ()).expect("the settings are valid");
        for value in [1, 2] {
            let error = timer.schedule(HOUR, value).expect_err("no thread starts");
            assert_eq!(error.kind(), ScheduleErrorKind::NoThread);
            let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
            let kind = cause.expect("the cause is of the operating system").kind();
            assert_eq!(error.into_value(), value);
            let error = timer.schedule(HOUR, value).expect_err("no thread starts");
            assert_eq!(io::Error::from(error).kind(), kind);
        }
        assert_eq!((timer.stats().pending, timer.shutdown()), (0, Vec::new()));
    }
    let (purgatory, (told, telling)) = (Shared::new(), mpsc::channel());
    let refused = purgatory.watch(Op::new().end(move |_| told.send(5).unwrap()), [1], HOUR);
    let error = refused.expect_err("no thread starts");
    assert_eq!(error.kind(), WatchErrorKind::NoThread);
    assert!(error.source().is_some_and(<dyn Error>::is::<io::Error>));
    error.into_value().complete(Completion::Cancelled);
    assert_eq!((telling.try_recv(), purgatory.stats().delayed), (Ok(5), 0));
    #[cfg(feature = "future")]
    futures_end_without_a_thread();
}

/// Each future that needs a thread ends with the error, at each poll.
#[cfg(feature = "future")]
fn futures_end_without_a_thread() {
    use delaywheel::{
        DelayQueue,
        future::{AsyncPurgatory, TimeoutError},
    };
    use pollster::block_on;

    let timer = Timer::new();
    let mut sleep = timer.sleep(HOUR);
    for _ in 0..2 {
        let error = block_on(&mut sleep).expect_err("no thread starts");
        assert_eq!(error.kind(), ScheduleErrorKind::NoThread);
        assert!(error.source().is_some_and(<dyn Error>::is::<io::Error>));
    }
    let refused = block_on(timer.sleep_until_time(std::time::SystemTime::now() + HOUR));
    assert_eq!(refused.expect_err("no thread starts").kind(), ScheduleErrorKind::NoThread);
    let limited = block_on(timer.timeout(HOUR, std::future::pending::<()>()));
    assert!(matches!(limited, Err(TimeoutError::Sleep(_))), "it has not elapsed");
    block_on(timer.timeout(HOUR, async {})).expect("it needs no thread");
    let wait = block_on(AsyncPurgatory::<u32>::new().wait([1], HOUR));
    assert!(wait.is_err_and(|error| error.kind() == WatchErrorKind::NoThread));
    let queue = DelayQueue::new();
    assert_eq!(queue.insert(HOUR, 7).unwrap_err().kind(), ScheduleErrorKind::NoThread);
    queue.shutdown();
    assert!(block_on(queue.recv_async()).is_err());
    let stats = timer.stats();
    assert_eq!((stats.pending, stats.scheduled), (0, 0));
}
