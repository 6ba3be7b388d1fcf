//! The timer with its own threads and the system's clock.
//!
//! No test assumes that a wait is short. Each waits for a condition, with a generous limit.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use delaywheel::Timer;

use super::support::{GENEROUS, HOUR, MS, block, wait_until};

/// Returns whether `count` threads of this process have names that begin with `name`, of at most 15
/// bytes. Only Linux lists its threads. On another system, the answer is always `true`.
pub(crate) fn has_threads(name: &str, count: usize) -> bool {
    if cfg!(not(target_os = "linux")) {
        return true;
    }
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists them").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count() == count
}

fn channel<T: Send + 'static>() -> (impl Fn(T) + Clone + Send + 'static, Receiver<T>) {
    let (sender, receiver): (Sender<T>, _) = mpsc::channel();
    // The test may have ended without waiting for the others.
    (move |value| drop(sender.send(value)), receiver)
}

#[test]
fn the_reaper_notices_an_insert_before_its_next_wakeup() {
    let timer = Timer::new();
    let (send, received) = channel();
    timer.schedule(HOUR, || ()).unwrap();
    for delay in [5, 0, 1] {
        let send = send.clone();
        timer.schedule(delay * MS, move || send(delay)).unwrap();
        assert_eq!(received.recv_timeout(GENEROUS), Ok(delay));
    }
    let put_off = timer.schedule(HOUR, move || send(9)).unwrap();
    assert!(put_off.reset(MS), "the reaper notices a reset as well");
    assert_eq!(received.recv_timeout(GENEROUS), Ok(9));
}

#[test]
fn no_thread_is_started_before_the_first_timeout_and_none_is_left_after_the_end() {
    let ends: [fn(Timer); 3] = [
        |timer| drop(timer),
        |timer| assert_eq!(timer.shutdown().len(), 9),
        |timer| assert_eq!(timer.finish(Duration::ZERO).len(), 9),
    ];
    for (name, end) in ["dw-dropped", "dw-shut", "dw-finished"].into_iter().zip(ends) {
        let timer = Timer::builder().name(name).executor_threads(2).build().unwrap();
        assert!(timer.stats().pending == 0 && has_threads(name, 0));
        // They start it at once.
        thread::scope(|scope| {
            (0..8).for_each(|_| _ = scope.spawn(|| drop(timer.schedule(HOUR, || ()).unwrap())));
        });
        wait_until("a reaper and two executors", || has_threads(name, 3));
        timer.schedule(HOUR, || ()).unwrap();
        assert!(has_threads(name, 3), "a further timeout starts no thread");
        end(timer);
        wait_until("no threads", || has_threads(name, 0));
    }
}

#[test]
fn the_threads_end_when_a_callback_drops_the_last_handle() {
    for (name, is_inline) in [("dw-self-i", true), ("dw-self-t", false)] {
        let builder = Timer::builder().name(name);
        let timer = if is_inline { builder.inline() } else { builder }.build().unwrap();
        let own = Arc::new(Mutex::new(None));
        let last = Arc::clone(&own);
        let (send, received) = channel();
        let mut slot = own.lock().unwrap();
        let drop_last = move || send(last.lock().unwrap().take().is_some());
        timer.schedule(Duration::ZERO, drop_last).unwrap();
        *slot = Some(timer);
        drop(slot);
        assert_eq!(received.recv_timeout(GENEROUS), Ok(true));
        wait_until("no threads", || has_threads(name, 0));
    }
}

#[test]
fn a_slow_callback_delays_none_that_another_executor_can_take() {
    let timer = Timer::builder().executor_threads(2).build().unwrap();
    let (release, (send, received)) = (block(&timer), channel());
    for value in 0..100 {
        let send = send.clone();
        timer.schedule(value % 3 * MS, move || send(value)).unwrap();
    }
    let mut ran: Vec<_> = (0..100).map(|_| received.recv_timeout(GENEROUS).unwrap()).collect();
    ran.sort_unstable();
    assert!(ran.into_iter().eq(0..100), "every callback but the slow one");
    let second = block(&timer);
    (0..3).for_each(|_| drop(timer.schedule(Duration::ZERO, || ())));
    wait_until("all but those that run wait", || timer.stats().waiting == 3);
    drop((release, second));
    wait_until("all have run", || timer.stats().waiting == 0);
}

#[test]
fn a_pool_that_panics_is_counted_and_stops_nothing() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    let pool = move |task: Box<dyn FnOnce() + Send>| {
        assert!(!broken.load(Ordering::Relaxed), "the pool is broken");
        task();
    };
    let timer = Timer::builder().executor(pool).build().unwrap();
    let (send, received) = channel();
    let lost = send.clone();
    timer.schedule(Duration::ZERO, move || lost("lost")).unwrap();
    wait_until("the pool has panicked", || timer.stats().panicked == 1);
    is_broken.store(false, Ordering::Relaxed);
    timer.schedule(Duration::ZERO, move || send("ran")).unwrap();
    assert_eq!(received.recv_timeout(GENEROUS), Ok("ran"));
}

#[test]
fn timeouts_with_far_deadlines_that_come_and_go_wake_no_thread() {
    let timer = Timer::new();
    let (send, received) = channel();
    timer.schedule(HOUR, || ()).unwrap();
    timer.schedule(Duration::ZERO, move || send(())).unwrap();
    received.recv_timeout(GENEROUS).unwrap();
    let before = timer.stats().wakeups;
    for _ in 0..100_000 {
        assert!(timer.schedule(HOUR, || ()).unwrap().cancel());
    }
    let stats = timer.stats();
    assert_eq!((stats.cancelled, stats.pending), (100_000, 1));
    let woken = stats.wakeups - before;
    assert!(woken <= 1, "{woken} wake-ups; one may be left from the start");
}
