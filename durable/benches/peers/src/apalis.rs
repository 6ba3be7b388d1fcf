//! `apalis-postgres`, with batches of 500 and ten polls a second. Its times are whole seconds.

use std::time::Duration;

use apalis_core::{
    backend::{TaskSink, ext::BackendExt},
    error::BoxDynError,
    task::{Task, builder::TaskBuilder},
    worker::{builder::WorkerBuilder, ext::parallelize::ParallelizeExt},
};
use apalis_postgres::{Config, PgPool, PostgresStorage};
use futures::stream;

use crate::{Figures, Result, SPAN, delivered, rate::rates, rate_of_deliveries, someday};

const DELIVERIES: u32 = 5_000;

fn storage(pool: &PgPool, queue: &str) -> PostgresStorage<String> {
    PostgresStorage::new(pool).with_config(Config::default().queue(queue).batch_size(500))
}

fn later() -> Task<String> {
    let delay = Duration::from_secs(someday().into());
    TaskBuilder::new("payload".to_owned()).run_after(delay).build()
}

async fn run(_: String) -> std::result::Result<(), BoxDynError> {
    delivered();
    Ok(())
}

pub(crate) async fn measure(url: &str) -> Result<Figures> {
    let pool = PgPool::connect(url).await?;
    PostgresStorage::setup(&pool).await?;
    let (caller, batcher) = (storage(&pool, "later"), storage(&pool, "later"));
    let callers = move || {
        let mut storage = caller.clone();
        async move { storage.push_task(later()).await.expect("task") }
    };
    let batches = move || {
        let mut storage = batcher.clone();
        let tasks: Vec<_> = (0..1_000).map(|_| later()).collect();
        async move { storage.push_all(stream::iter(tasks)).await.expect("tasks") }
    };
    let rates = rates(SPAN, callers, batches).await;
    let mut now = storage(&pool, "now");
    for _ in 0..DELIVERIES / 1_000 {
        now.push_bulk(vec!["payload".to_owned(); 1_000]).await?;
    }
    let worker = WorkerBuilder::new("worker")
        .backend(now.poll_with_interval(Duration::from_millis(100)))
        .parallelize(tokio::spawn)
        .build(run);
    tokio::spawn(worker.run());
    let deliveries = rate_of_deliveries(DELIVERIES).await;
    Ok(Figures { rates, deliveries, late: Vec::new() })
}
