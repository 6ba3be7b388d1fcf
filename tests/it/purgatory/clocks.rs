//! Clocks that call the purgatory.

use delaywheel::{Purgatory, PurgatoryBuilder, Timer, purgatory::Overload};

use super::support::{HOUR, Op, must_return};
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
