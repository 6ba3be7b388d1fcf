//! `underway`, with ten polls a second. Its batches are of tasks that are due at once, in a queue
//! without a worker.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use jiff::Span;
use sqlx::{PgPool, Postgres, Transaction};
use underway::{Queue, Task, Worker, task::Result as TaskResult};

use crate::{
    Figures, Result, delivered, lateness, note_lateness, rate_of_batches, rate_of_callers,
    rate_of_deliveries, someday, soon,
};

const DELIVERIES: u32 = 1_000;

#[derive(Clone)]
struct Work;

impl Task for Work {
    /// The due time, if the lateness counts.
    type Input = Option<DateTime<Utc>>;
    type Output = ();

    async fn execute(&self, _: Transaction<'_, Postgres>, due: Self::Input) -> TaskResult<()> {
        due.map_or_else(delivered, note_lateness);
        Ok(())
    }
}

pub(crate) async fn measure(url: &str) -> Result<Figures> {
    let pool = PgPool::connect(url).await?;
    underway::run_migrations(&pool).await?;
    let queue =
        |name: &str| Queue::<Work>::builder().name(name.to_owned()).pool(pool.clone()).build();
    let (later, now) = (Arc::new(queue("later").await?), Arc::new(queue("now").await?));
    let (caller, connections) = (Arc::clone(&later), pool.clone());
    let callers = rate_of_callers(move || {
        let (queue, pool) = (Arc::clone(&caller), connections.clone());
        async move {
            let delay = Span::new().seconds(someday());
            queue.enqueue_after(&pool, &Work, &None, delay).await.expect("task");
        }
    });
    let callers = callers.await?;
    let inputs = vec![None; 1_000];
    let batches = rate_of_batches(async || {
        later.enqueue_multi(&pool, &Work, &inputs).await?;
        Ok(())
    });
    let batches = batches.await?;
    for _ in 0..DELIVERIES / 1_000 {
        now.enqueue_multi(&pool, &Work, &inputs).await?;
    }
    let mut worker = Worker::new(Arc::clone(&now), Work);
    worker.set_concurrency_limit(16);
    tokio::spawn(async move { worker.run_every(Span::new().milliseconds(100)).await });
    let deliveries = rate_of_deliveries(DELIVERIES).await;
    let mut transaction = pool.begin().await?;
    // The server counts delays from the begin of the transaction.
    let now_sql = "SELECT (extract(epoch FROM now()) * 1000)::bigint";
    let start: i64 = sqlx::query_scalar(now_sql).fetch_one(&mut *transaction).await?;
    for due in soon() {
        let delay = Span::new().milliseconds(due.timestamp_millis() - start);
        now.enqueue_after(&mut *transaction, &Work, &Some(due), delay).await?;
    }
    transaction.commit().await?;
    Ok(Figures { callers, batches, deliveries, late: lateness().await })
}
