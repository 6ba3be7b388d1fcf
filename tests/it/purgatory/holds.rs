//! A thread holds the lock for the ends of at most 32 operations. The purgatory drops keys between
//! two holds, and these drops count the ended operations.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use delaywheel::{
    Completion,
    Condition::{self, Events, Threshold},
    DelayedOperation, ManualClock, Purgatory, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, must_return};

const OPERATIONS: u64 = 1000;

/// Operations that end in one hold.
const BATCH: u64 = 32;

/// The action of the drop of a key.
#[derive(Default)]
struct Hook {
    is_set: AtomicBool,
    purgatory: Mutex<Option<Purgatory<Key, Idle>>>,
    /// Number of waiting operations at each drop of a key.
    seen: Mutex<Vec<u64>>,
}

#[derive(Clone)]
struct Key(u64, Arc<Hook>);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if self.1.is_set.load(Ordering::Relaxed) {
            let purgatory = self.1.purgatory.lock().unwrap().clone();
            self.1.seen.lock().unwrap().push(purgatory.expect("it is there").delayed());
        }
    }
}

struct Idle;

impl<K> DelayedOperation<K> for Idle {
    fn complete(self, _: Completion) {}
}

/// Registers operations, each on its own key and on key 0. Ends all of them with `call`, and checks
/// that at most [`BATCH`] of them leave in one hold.
fn ends_in_short_holds(
    common: impl Fn(Key, u64) -> Condition<Key> + Send + 'static,
    call: impl FnOnce(&Purgatory<Key, Idle>, Key) + Send + 'static,
) {
    must_return(move || {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let purgatory = Purgatory::builder().timer(timer).build().unwrap();
        let hook = Arc::new(Hook::default());
        for number in 1..=OPERATIONS {
            let own = Events(Key(number, Arc::clone(&hook)));
            let common = common(Key(0, Arc::clone(&hook)), number);
            assert!(purgatory.watch(Idle, Watch::any([own, common]), HOUR).is_ok());
        }
        *hook.purgatory.lock().unwrap() = Some(purgatory.clone());
        let key = Key(0, Arc::clone(&hook));
        hook.is_set.store(true, Ordering::Relaxed);
        call(&purgatory, key);
        hook.is_set.store(false, Ordering::Relaxed);
        assert_eq!(purgatory.delayed(), 0);
        let seen = std::mem::take(&mut *hook.seen.lock().unwrap());
        assert!(seen.len() as u64 >= OPERATIONS, "each has a key of its own");
        let mut before = OPERATIONS;
        for now in seen {
            assert!(before - now <= BATCH, "{} ended in one hold", before - now);
            before = now;
        }
        *hook.purgatory.lock().unwrap() = None;
    });
}

#[test]
fn an_advance_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(Threshold, |purgatory, key| {
        assert_eq!(purgatory.advance(&key, OPERATIONS) as u64, OPERATIONS);
    });
}

#[test]
fn a_shutdown_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(Threshold, |purgatory, _| {
        assert_eq!(purgatory.shutdown().len() as u64, OPERATIONS);
    });
}

#[test]
fn a_cancel_by_key_ends_a_bounded_number_in_one_hold() {
    ends_in_short_holds(Threshold, |purgatory, key| {
        assert_eq!(purgatory.cancel_on(&key) as u64, OPERATIONS);
    });
    ends_in_short_holds(
        |key, _| Events(key),
        |purgatory, key| {
            assert_eq!(purgatory.cancel_on(&key) as u64, OPERATIONS);
        },
    );
}

/// A key whose comparison, which is under the lock of a shard, waits until it is released.
struct Slow(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        let take = |key: &Self| key.0.lock().unwrap().take();
        if let Some((entered, released)) = take(self).or_else(|| take(other)) {
            entered.send(()).unwrap();
            let released = released.recv_timeout(Duration::from_secs(60));
            assert_eq!(released, Err(RecvTimeoutError::Disconnected), "it waits for this lock");
        }
        true
    }
}

impl Eq for Slow {}

impl Hash for Slow {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[test]
fn an_operation_does_not_wait_for_a_lock_if_another_shard_is_free() {
    must_return(|| {
        let timer = Timer::builder().clock(ManualClock::new()).shards(2);
        let purgatory = Purgatory::builder().timer(timer).build().unwrap();
        let watch = || {
            purgatory.watch(Idle, [Slow(Mutex::new(None))], HOUR).unwrap();
        };
        watch();
        let (entered, has_entered) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let event = Slow(Mutex::new(Some((entered, released))));
        thread::scope(|scope| {
            let event = scope.spawn(|| purgatory.check_and_complete(&event));
            has_entered.recv().unwrap();
            watch();
            drop(release);
            assert_eq!(event.join().unwrap(), 0);
        });
        assert_eq!(purgatory.cancel_on(&Slow(Mutex::new(None))), 2);
    });
}
