//! The threads that run all worlds of this process, one world at a time.
//!
//! A thread gets the number that selects its shard when it first uses a timer with several shards.
//! New threads for each world would get others, and a script would not run the same way twice.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, LazyLock, Mutex, mpsc},
    thread,
    time::Duration,
};

use delaywheel::{ManualClock, Timer};

use crate::{
    script::{Script, THREADS},
    world::{World, Yield, be_thread, lock},
};

static WORKERS: LazyLock<Mutex<Vec<Worker>>> = LazyLock::new(|| {
    let workers = (0..THREADS).map(Worker::new).collect::<Vec<_>>();
    for worker in &workers {
        worker.run(|| {
            let builder = Timer::builder().clock(ManualClock::new()).shards(THREADS);
            let timer = builder.build().expect("the settings are in range");
            timer.schedule(Duration::ZERO, || ()).map(drop).expect("it has room");
        });
    }
    Mutex::new(workers)
});

type Task = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone)]
struct Worker(mpsc::Sender<Task>);

impl Worker {
    fn new(number: usize) -> Self {
        let (sender, tasks) = mpsc::channel::<Task>();
        thread::spawn(move || {
            be_thread(number);
            for task in tasks {
                task();
            }
        });
        Self(sender)
    }

    fn run<R: Send + 'static>(&self, task: impl FnOnce() -> R + Send + 'static) -> R {
        let (answer, answers) = mpsc::sync_channel(1);
        let task = move || {
            let result = catch_unwind(AssertUnwindSafe(task));
            answer.send(result).expect("the caller waits for the result");
        };
        self.0.send(Box::new(task)).expect("the thread lives as long as the process");
        let result = answers.recv().expect("the thread answers");
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }
}

/// Runs a script in a new world, each step on its thread.
pub(crate) fn run_script(script: &Script) -> Result<Yield, String> {
    let workers = lock(&WORKERS);
    let (script, others) = (script.clone(), workers[1..].to_vec());
    workers[0].run(move || {
        let world = World::new(script.setup);
        for (index, &(thread, step)) in script.steps.iter().enumerate() {
            let result = match thread.checked_sub(1) {
                None => world.take(step),
                Some(other) => {
                    let world = Arc::clone(&world);
                    others[other].run(move || world.take(step))
                }
            };
            result.map_err(|fault| format!("step {index}, {step:?}: {fault}"))?;
        }
        world.end()
    })
}
