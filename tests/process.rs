//! What may befall the process that a timer lives in: it is stopped and goes on, it exits, its threads
//! are torn down.
//!
//! A binary of its own, as it runs itself as a child. A fork without an exec is not tested: it takes
//! unsafe code, and is told in the documentation of the timer not to be done.

#![cfg(unix)]

use std::{
    env, io,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation, Purgatory, TimeoutGuard, Timer};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// For waits on what comes soon unless something is wrong.
const GENEROUS: Duration = Duration::from_secs(60);

/// Says which child this process is; none if it is not one.
const ROLE: &str = "DELAYWHEEL_CHILD";

/// Runs one of these tests in a process of its own.
fn child(role: &str, test: &str) -> Child {
    let program = env::current_exe().expect("a test has a program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
    command.stdout(Stdio::piped()).spawn().expect("the program can be run again")
}

fn is_child(role: &str) -> bool {
    env::var(ROLE).is_ok_and(|own| own == role)
}

fn signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let status = Command::new("kill").args([signal, &id]).status();
    assert!(status.expect("there is a kill command").success());
}

/// Waits for a child, which fails if it is not there in time.
fn succeeds(mut child: Child) {
    let end = Instant::now() + GENEROUS;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            assert!(status.success(), "{status}");
            return;
        }
        assert!(Instant::now() < end, "the child does not end");
        thread::yield_now();
    }
}

#[test]
fn a_process_that_was_stopped_runs_what_came_due_each_once_and_none_early() {
    if is_child("stopped") {
        return be_stopped();
    }
    let mut child =
        child("stopped", "a_process_that_was_stopped_runs_what_came_due_each_once_and_none_early");
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut lines = lines.map(|line| line.expect("the child writes text"));
    assert!(lines.any(|line| line.ends_with("begun")));
    signal(&child, "-STOP");
    // Being stopped for a while is what is tested.
    thread::sleep(500 * MS);
    signal(&child, "-CONT");
    assert!(lines.any(|line| line.ends_with("done")));
    succeeds(child);
}

fn be_stopped() {
    const COUNT: u32 = 200;
    let timer = Timer::new();
    let runs: Arc<Vec<AtomicU32>> = Arc::new((0..COUNT).map(|_| AtomicU32::new(0)).collect());
    let (ran, events) = mpsc::channel();
    for number in 0..COUNT {
        let (runs, ran) = (Arc::clone(&runs), ran.clone());
        let due = Instant::now() + number * 5 * MS;
        let run = move || {
            runs[number as usize].fetch_add(1, SeqCst);
            ran.send(Instant::now() >= due).unwrap();
        };
        timer.schedule(number * 5 * MS, run).unwrap();
    }
    println!("\nbegun");
    io::stdout().flush().unwrap();
    for _ in 0..COUNT {
        assert!(events.recv_timeout(GENEROUS).expect("all run"), "one was early");
    }
    assert!(timer.shutdown().is_empty());
    assert!(runs.iter().all(|count| count.load(SeqCst) == 1));
    println!("\ndone");
}

struct Waiting;

impl DelayedOperation<u32> for Waiting {
    fn complete(self, _: Completion) {}
}

#[test]
fn a_process_exits_while_its_timers_run() {
    static TIMER: LazyLock<Timer> = LazyLock::new(Timer::new);
    if is_child("exiting") {
        let purgatory = Purgatory::new();
        let _ = purgatory.try_complete_else_watch(Waiting, [1], HOUR).unwrap();
        // One callback runs for ever, others are on their way, and all is left as it is.
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
    assert_eq!(Arc::strong_count(&held), 1, "what was pending is dropped with the timer");
}
