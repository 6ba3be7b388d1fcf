//! `underway`, with 16 tasks at once and ten polls a second.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use jiff::{Span, ToSpan};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Postgres, Transaction, postgres::PgPoolOptions};
use underway::{Queue, Task, Worker, task};

use crate::{
    Figures, Result, SPAN, delivered, lateness, note_lateness, rate::rates, rate_of_deliveries,
    someday, soon,
};

const DELIVERIES: u32 = 2_000;

/// A task with a payload, or one whose lateness counts.
#[derive(Serialize, Deserialize)]
enum Input {
    Payload(String),
    Due(DateTime<Utc>),
}

/// Runs a task after a delay in seconds.
struct Delayed(u32);

impl Task for Delayed {
    type Input = Input;
    type Output = ();

    async fn execute(&self, _: Transaction<'_, Postgres>, input: Input) -> task::Result<()> {
        match input {
            Input::Payload(_) => delivered(),
            Input::Due(due) => note_lateness(due),
        }
        Ok(())
    }

    fn delay(&self) -> Span {
        i64::from(self.0).seconds()
    }
}

fn payload() -> Input {
    Input::Payload("payload".to_owned())
}

async fn queue(pool: &PgPool, name: &str) -> Result<Queue<Delayed>> {
    Ok(Queue::builder().name(name).pool(pool.clone()).build().await?)
}

pub(crate) async fn measure(url: &str) -> Result<Figures> {
    let pool = PgPoolOptions::new().max_connections(32).connect(url).await?;
    underway::run_migrations(&pool).await?;
    let (later, now) = (queue(&pool, "later").await?, queue(&pool, "now").await?);
    let (caller, callers_pool) = (later.clone(), pool.clone());
    let callers = move || {
        let (queue, pool) = (caller.clone(), callers_pool.clone());
        async move {
            queue.enqueue(&pool, &Delayed(someday()), &payload()).await.expect("task");
        }
    };
    let inputs: Arc<Vec<_>> = Arc::new((0..1_000).map(|_| payload()).collect());
    let (batch, batches_pool) = (Arc::clone(&inputs), pool.clone());
    let batches = move || {
        let (queue, pool, inputs) = (later.clone(), batches_pool.clone(), Arc::clone(&batch));
        async move {
            queue.enqueue_multi(&pool, &Delayed(someday()), &inputs).await.expect("tasks");
        }
    };
    let rates = rates(SPAN, callers, batches).await;
    for _ in 0..DELIVERIES / 1_000 {
        now.enqueue_multi(&pool, &Delayed(0), &inputs).await?;
    }
    let mut worker = Worker::new(now.clone().into(), Delayed(0));
    worker.set_concurrency_limit(16);
    tokio::spawn(async move { worker.run_every(100.milliseconds()).await });
    let deliveries = rate_of_deliveries(DELIVERIES).await;
    for due in soon() {
        let delay = (due - Utc::now()).num_microseconds().unwrap_or_default().max(0);
        now.enqueue_after(&pool, &Delayed(0), &Input::Due(due), delay.microseconds()).await?;
    }
    Ok(Figures { rates, deliveries, late: lateness().await })
}
