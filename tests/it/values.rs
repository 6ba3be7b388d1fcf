//! Values: returned or dropped once, and dropped only while the wheel is consistent.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    rc::Rc,
};

use delaywheel::{
    InsertError, Tick,
    wheel::{Advance, Drain, Iter, Key, TimingWheel, WheelBuilder},
};

use crate::support::{drain_at, wheel_of};

#[test]
fn a_drain_drops_every_value_even_if_drops_panic() {
    let drain: fn(&mut TimingWheel<Fragile>) = |wheel| drop(wheel.drain());
    let partly_drain: fn(&mut TimingWheel<Fragile>) = |wheel| drop(wheel.drain().nth(10));
    for panicking in 1..=if cfg!(feature = "std") { 50 } else { 1 } {
        for empty in [drain, partly_drain] {
            let (mut wheel, drops) = fragile_wheel(panicking);
            let panic = panic::catch_unwind(AssertUnwindSafe(|| empty(&mut wheel))).unwrap_err();
            let number = panic.downcast_ref::<String>().expect("the panic is that of the value");
            assert_eq!(number, "the drop of 50 panics", "the first panic continues");
            assert_each_dropped_once(&drops);
            assert!(wheel.is_empty());
            wheel.check_invariants();
            wheel.insert(Tick::new(5), Fragile::new(0, 0, &drops)).unwrap();
            assert_eq!(drain_at(&mut wheel, 100).len(), 1, "the wheel works again");
        }
    }
}

#[cfg(feature = "std")]
#[test]
fn a_drain_dropped_during_a_panic_drops_every_value() {
    let (mut wheel, drops) = fragile_wheel(2);
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        let _drain = wheel.drain();
        panic!("while the drain exists");
    }));
    let panic = result.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"while the drain exists"));
    assert_each_dropped_once(&drops);
    assert!(wheel.is_empty());
    wheel.check_invariants();
}

#[test]
fn a_dropped_wheel_drops_every_value_even_if_one_drop_panics() {
    let (wheel, drops) = fragile_wheel(1);
    assert!(panic::catch_unwind(AssertUnwindSafe(|| drop(wheel))).is_err());
    assert_each_dropped_once(&drops);
}

/// The wheel and its iterators are `Send` and `Sync` if their values are.
const _: () = {
    is_send_and_sync::<TimingWheel<u64>>();
    is_send_and_sync::<Advance<'_, u64>>();
    is_send_and_sync::<Drain<'_, u64>>();
    is_send_and_sync::<Iter<'_, u64>>();
    is_send_and_sync::<(Key, Tick, WheelBuilder, InsertError<u64>)>();
    is_send::<TimingWheel<Cell<u64>>>();
};

const fn is_send_and_sync<T: Send + Sync>() {}

const fn is_send<T: Send>() {}

/// Logs its drop. The drop panics for `panicking` numbers from 50 on.
struct Fragile {
    number: usize,
    panicking: usize,
    drops: Rc<RefCell<Vec<usize>>>,
}

impl Fragile {
    fn new(number: usize, panicking: usize, drops: &Rc<RefCell<Vec<usize>>>) -> Self {
        Self { number, panicking, drops: Rc::clone(drops) }
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.drops.borrow_mut().push(self.number);
        let is_sound = !(50..50 + self.panicking).contains(&self.number);
        assert!(is_sound, "the drop of {} panics", self.number);
    }
}

fn fragile_wheel(panicking: usize) -> (TimingWheel<Fragile>, Rc<RefCell<Vec<usize>>>) {
    let drops = Rc::default();
    let mut wheel = wheel_of(4, 0);
    for number in 0..100 {
        let deadline = Tick::new(1 << (number % 30));
        wheel.insert(deadline, Fragile::new(number, panicking, &drops)).unwrap();
    }
    (wheel, drops)
}

fn assert_each_dropped_once(drops: &RefCell<Vec<usize>>) {
    let mut dropped = drops.borrow().clone();
    dropped.sort_unstable();
    assert!(dropped.into_iter().eq(0..100));
}
