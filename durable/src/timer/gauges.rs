//! The gauges of the queues of a store, for the facade `metrics`.

use std::{mem, sync::Arc, time::Duration};

use rustc_hash::FxHashSet;

use super::{DurableTimer, Receipt};
use crate::{record::Name, store::QueueOverview, time::WallTime};

/// Most queues that are published.
const QUEUES: usize = 100;

/// Most timeouts of a queue that are counted for one number.
const COUNTED: usize = 10_000;

const NAMES: [&str; 6] = [
    "delaywheel_durable_queue_live",
    "delaywheel_durable_queue_due",
    "delaywheel_durable_queue_delivering",
    "delaywheel_durable_queue_dead",
    "delaywheel_durable_queue_paused",
    "delaywheel_durable_queue_oldest_waiting_seconds",
];

/// Counts of queues at a time.
type Queues = (WallTime, Vec<QueueOverview>);

#[derive(Debug, Default)]
pub(super) struct QueueGauges {
    /// The counts to be published next.
    asked: Option<Receipt<Queues>>,
    /// Queues of the counts that were published last.
    published: FxHashSet<Name>,
}

impl DurableTimer {
    /// Publishes [`stats`](Self::stats) through the facade `metrics`, under names that begin with
    /// `delaywheel_durable_`. Call it as often as they are collected. Does not wait for the store.
    ///
    /// The gauges that begin with `delaywheel_durable_queue_` have the label `queue`. They show the
    /// first 100 queues of the store by name, also those that other processes serve, as
    /// [`Store::overview`](crate::Store::overview) counts them, up to 10,000. A call asks the store
    /// in the background. The first call that finds the answer publishes it, and asks again. So
    /// these gauges are as old as the call before. A queue that is no longer one of the first, and
    /// every queue after the end, gets NaN. A question that fails counts among the
    /// [`store_errors`](crate::DurableStats::store_errors).
    ///
    /// The lateness and the latency of the store are also histograms, in seconds and to two digits.
    /// Each call adds the durations since the last one. Several timers of a process publish the
    /// same names: give each a recorder that adds a label, by `metrics::with_local_recorder`.
    pub fn publish_metrics(&self) {
        self.core.counters.publish();
        let Some(owner) = &self.owner else { return };
        let mut gauges = owner.queues.lock();
        let answer = gauges.asked.as_ref().map(|receipt| receipt.answer.try_recv());
        let queues = if self.core.check_open().is_err() {
            gauges.asked = None;
            Some(Queues::default())
        } else {
            if !matches!(answer, Some(Err(oneshot::TryRecvError::Empty))) {
                let (core, now) = (Arc::clone(&self.core), self.now());
                gauges.asked = Some(self.ask(async move {
                    let queues = core.store.overview(now, QUEUES, COUNTED).await;
                    let queues = queues.inspect_err(|_| core.counters.store_errors.add(1))?;
                    Ok((now, queues))
                }));
            }
            answer.and_then(Result::ok).and_then(Result::ok)
        };
        if let Some(queues) = queues {
            let names = queues.1.iter().map(|seen| seen.queue.name.clone()).collect();
            let before = mem::replace(&mut gauges.published, names);
            // A recorder may use the timer.
            drop(gauges);
            publish(&queues, before);
        }
    }
}

/// Publishes counts. Queues that were published before, and have no counts now, get NaN: the
/// maximum over several processes then ignores them.
fn publish((now, queues): &Queues, mut before: FxHashSet<Name>) {
    for seen in queues {
        let waits = seen.oldest_waiting.map_or(Duration::ZERO, |oldest| now.since(oldest));
        let is_paused = usize::from(seen.queue.is_paused);
        let [live, due, delivering, dead, paused] =
            [seen.live, seen.due, seen.delivering, seen.dead, is_paused].map(float);
        set(&seen.queue.name, [live, due, delivering, dead, paused, waits.as_secs_f64()]);
        before.remove(&seen.queue.name);
    }
    for queue in &before {
        set(queue, [f64::NAN; 6]);
    }
}

fn set(queue: &Name, values: [f64; 6]) {
    for (name, value) in NAMES.into_iter().zip(values) {
        metrics::gauge!(name, "queue" => queue.to_string()).set(value);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact past 2^53")]
pub(super) fn float(value: usize) -> f64 {
    value as f64
}
