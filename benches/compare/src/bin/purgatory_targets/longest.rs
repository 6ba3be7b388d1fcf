//! The longest of very many calls, each of which brings a request on keys of its own.

use std::time::Instant;

use delaywheel_compare::{
    delivered::nanos,
    purgatory::{Answer, Demand, Request, Requests, demands_apart, settle},
    report::{
        settings::Settings,
        table::{Row, count},
    },
};

/// Microseconds of the longest call.
///
/// The least over the rounds is taken for each call, and then the longest of them: what remains is
/// work, not preemption.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let waiting = if settings.is_quick { 100_000 } else { 1_000_000 };
    let demands = demands_apart(1, waiting);
    let mut least = vec![u64::MAX; waiting];
    for _ in 0..settings.rounds.clamp(2, 5) {
        measure(&demands, &mut least);
        eprint!(".");
    }
    eprintln!();
    let longest = count(least.into_iter().max().unwrap_or(0)) / 1e3;
    let name = format!("one watch on keys of its own, up to {waiting}: longest");
    vec![Row::new(name, "us", [("ours", longest)])]
}

/// Has requests wait, and notes for each call how long it took, unless it took less before.
fn measure(demands: &[Demand<3>], least: &mut [u64]) {
    let purgatory = Requests::new();
    let answers = Answer::leak(demands.len());
    let mut before = Instant::now();
    for ((answer, demand), least) in answers.iter().zip(demands).zip(least) {
        let watched =
            purgatory.try_complete_else_watch(Request(answer), demand.keys, demand.delay());
        assert!(!watched.expect("there is room").is_completed());
        let now = Instant::now();
        *least = nanos(now - before).min(*least);
        before = now;
    }
    settle(&purgatory, 0, demands.len() as u64);
}
