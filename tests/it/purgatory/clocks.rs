//! A clock that calls the purgatory, and the place of an expired operation in the timer.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{
    Completion, DelayedOperation, Purgatory, PurgatoryBuilder, Timer, purgatory::Overload,
};

use super::support::{HOUR, MS, Op, SECOND, must_return, wait_until};
use crate::timer::support::HookedClock;

#[test]
fn a_clock_may_register_an_operation_that_displaces_another() {
    must_return(|| {
        let clock = HookedClock::new();
        let timer = Timer::builder().clock(clock.clone()).shards(1);
        let builder = PurgatoryBuilder::new().timer(timer);
        let builder = builder.max_delayed(1, Overload::DisplaceOldest);
        let purgatory = builder.build::<u32, Op<()>, ()>().unwrap();
        let watch = |purgatory: &Purgatory<u32, Op<()>>| {
            purgatory.try_complete_else_watch(Op::new(), [1], HOUR).expect("it displaces another");
        };
        watch(&purgatory);
        let again = purgatory.clone();
        clock.set(move || watch(&again));
        watch(&purgatory);
        clock.set(|| ());
        purgatory.check_invariants();
        assert_eq!(purgatory.delayed(), 1);
    });
}

/// A key whose comparison waits while it is armed.
#[derive(Clone)]
struct Slow(u32, Arc<Gate>);

#[derive(Default)]
struct Gate {
    is_armed: AtomicBool,
    is_entered: AtomicBool,
}

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        if self.0 == 2 && other.0 == 2 && self.1.is_armed.load(Ordering::SeqCst) {
            self.1.is_entered.store(true, Ordering::SeqCst);
            wait_until("the gate opens", || !self.1.is_armed.load(Ordering::SeqCst));
        }
        self.0 == other.0
    }
}
impl Eq for Slow {}
impl Hash for Slow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A clock that jumps ahead by a second.
#[derive(Debug, Clone)]
struct Jump(Instant, Arc<AtomicBool>);

impl delaywheel::Clock for Jump {
    fn now(&self) -> Instant {
        self.0 + if self.1.load(Ordering::SeqCst) { SECOND } else { Duration::ZERO }
    }
}

struct Act {
    check: Box<dyn FnMut() -> bool + Send>,
    end: Box<dyn FnOnce(Completion) + Send>,
}
impl DelayedOperation<Slow> for Act {
    fn try_complete(&mut self) -> bool {
        (self.check)()
    }
    fn complete(self, completion: Completion) {
        (self.end)(completion);
    }
}
impl Act {
    fn idle() -> Self {
        Self { check: Box::new(|| false), end: Box::new(drop) }
    }
}

/// The first operation expires while it is checked, and while the reaper waits for another shard.
#[test]
fn the_place_in_the_timer_of_an_operation_is_free_when_it_completes() {
    must_return(|| {
        let clock = Jump(Instant::now(), Arc::default());
        let timer = Timer::builder().clock(clock.clone()).shards(2).max_pending(2).inline();
        let purgatory = PurgatoryBuilder::new().timer(timer).build::<Slow, Act, ()>().unwrap();
        let gate = Arc::new(Gate::default());
        let checks = Arc::new(AtomicU64::new(0));
        let go = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (started, start) = mpsc::channel();
        // One thread of each shard: the first registers and checks, the second only registers.
        let mut first = None;
        let mut has_second = false;
        while first.is_none() || !has_second {
            let (p, g) = (purgatory.clone(), gate.clone());
            let (check, go, again, tell) =
                (checks.clone(), go.clone(), purgatory.clone(), tell.clone());
            let key = Slow(2, gate.clone());
            let other = Slow(3, gate.clone());
            let (send, receive) = mpsc::channel::<bool>();
            let (place, places) = mpsc::channel();
            let started = started.clone();
            let thread = thread::spawn(move || {
                // Shows the shard of this thread.
                let probe =
                    p.try_complete_else_watch(Act::idle(), [], HOUR).unwrap().key().unwrap();
                p.cancel(probe);
                place.send(format!("{probe:?}").contains("shard: 0")).unwrap();
                if !receive.recv().unwrap() {
                    return;
                }
                let is_first = format!("{probe:?}").contains("shard: 0");
                if is_first {
                    let act = Act {
                        check: Box::new(move || {
                            if check.fetch_add(1, Ordering::SeqCst) == 2 {
                                wait_until("it goes on", || go.load(Ordering::SeqCst));
                            }
                            false
                        }),
                        end: Box::new(move |end| {
                            let more = again.try_complete_else_watch(Act::idle(), [other], HOUR);
                            tell.send((end, more.map_err(|error| error.kind()))).unwrap();
                        }),
                    };
                    p.try_complete_else_watch(act, [Slow(1, g.clone())], MS).unwrap();
                    started.send(()).unwrap();
                    p.check_and_complete(&Slow(1, g));
                } else {
                    p.try_complete_else_watch(Act::idle(), [key], MS).unwrap();
                    started.send(()).unwrap();
                }
            });
            let is_first = places.recv().unwrap();
            let is_wanted = if is_first { first.is_none() } else { !has_second };
            send.send(is_wanted).unwrap();
            if !is_wanted {
                thread.join().unwrap();
            } else if is_first {
                first = Some(thread);
                start.recv().unwrap();
            } else {
                has_second = true;
                start.recv().unwrap();
                thread.join().unwrap();
            }
        }
        wait_until("the check", || checks.load(Ordering::SeqCst) == 3);
        gate.is_armed.store(true, Ordering::SeqCst);
        let (p, g) = (purgatory.clone(), gate.clone());
        let holder = thread::spawn(move || p.check_and_complete(&Slow(2, g)));
        wait_until("the lock is held", || gate.is_entered.load(Ordering::SeqCst));
        clock.1.store(true, Ordering::SeqCst);
        purgatory.wake();
        // Only this shard can be looked at. The first operation has expired when its count has.
        thread::sleep(200 * MS);
        go.store(true, Ordering::SeqCst);
        let ended = told.recv();
        gate.is_armed.store(false, Ordering::SeqCst);
        holder.join().unwrap();
        first.unwrap().join().unwrap();
        let (end, more) = ended.unwrap();
        assert_eq!(end, Completion::Expired);
        assert!(more.is_ok(), "{more:?}, and only one operation waits");
    });
}
