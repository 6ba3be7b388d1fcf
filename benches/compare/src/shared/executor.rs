//! One thread that runs tasks, for timers without a runtime.

use std::{pin::Pin, sync::Arc, thread};

use async_executor::{Executor as Tasks, Task};
use tokio::sync::oneshot::{self, Sender};

/// Runs tasks until the last of its clones is dropped.
#[derive(Debug, Clone)]
pub(super) struct Executor {
    tasks: Arc<Tasks<'static>>,
    /// Dropped with the last clone, which ends the thread.
    _end: Arc<Sender<()>>,
}

impl Executor {
    /// Starts a thread of this name, which blocks on the executor in this way.
    pub(super) fn start(
        name: &str,
        block_on: impl FnOnce(Pin<&mut (dyn Future<Output = ()> + '_)>) + Send + 'static,
    ) -> Self {
        let tasks = Arc::new(Tasks::new());
        let (sender, receiver) = oneshot::channel();
        let runner = Arc::clone(&tasks);
        let run = move || {
            let mut run = std::pin::pin!(runner.run(async move { drop(receiver.await) }));
            block_on(run.as_mut());
        };
        thread::Builder::new().name(name.into()).spawn(run).expect("a thread can be started");
        Self { tasks, _end: Arc::new(sender) }
    }

    /// Runs a task to its end.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Task::detach(self.tasks.spawn(task));
    }
}
