//! Bytes for each pending timeout, as another program counts them.

use std::{
    env,
    error::Error,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use delaywheel_compare::{
    Promises, Timers,
    shared::{SharedTimer, SharedVisitor, visit_all_shared},
    side_by_side::{
        names::{MEMORY_PEAK, MEMORY_PENDING},
        traffic::Traffic,
    },
    timers::{Visitor, visit_all},
    workload::SECOND,
};

use super::{
    Measured,
    child::Turn,
    record::{Demand, Record},
};

/// The program whose allocator counts. It is not this one, so that counting weighs on nothing that
/// is timed.
const PROGRAM: &str = "compare_memory";

/// Ticks of a request server, in which its peak is seen: twice as long as a request has.
const PEAK: u64 = 2 * Traffic::REQUEST;

pub(crate) fn run(record: &mut Record) -> Measured {
    record.tell("memory");
    let program = build()?;
    let pending = record.scope.pick(1_000_000, 10_000);
    let in_flight = record.scope.pick(100_000, 1_000);
    let ticks = record.scope.pick(PEAK, PEAK / 10);
    let mut turns = Turns::default();
    visit_all(&mut turns);
    visit_all_shared(&mut turns);
    for (name, promises, kind) in turns.0 {
        let pending_demand = Demand {
            workload: MEMORY_PENDING,
            pending,
            max_delay: 60 * SECOND,
            must_cancel: false,
        };
        let peak_demand = Demand {
            workload: MEMORY_PEAK,
            pending: in_flight,
            max_delay: Traffic::REQUEST,
            must_cancel: true,
        };
        for (demand, what) in [(pending_demand, "pending"), (peak_demand, "peak")] {
            if !record.admits(name, &promises, &demand) {
                continue;
            }
            let turn = Turn {
                workload: format!("{kind}-{what}"),
                contestant: name.to_owned(),
                n: demand.pending,
                millis: ticks,
                seed: record.scope.seed,
            };
            record.add_all(turn.delegate(&program)?);
            eprint!(".");
        }
    }
    Ok(())
}

#[derive(Default)]
struct Turns(Vec<(&'static str, Promises, &'static str)>);

impl Visitor for Turns {
    fn visit<T: Timers + Default>(&mut self) {
        self.0.push((T::NAME, T::PROMISES, "told"));
    }
}

impl SharedVisitor for Turns {
    fn visit<S: SharedTimer>(&mut self, _: impl Fn() -> S) {
        self.0.push((S::NAME, S::PROMISES, "shared"));
    }
}

/// Has cargo build the program, beside this one and in the same way. Returns where it is.
fn build() -> Result<PathBuf, Box<dyn Error>> {
    let own = env::current_exe()?;
    let folder = own.parent().ok_or("a program is in a folder")?;
    let program = folder.join(PROGRAM).with_extension(env::consts::EXE_EXTENSION);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--bin", PROGRAM]);
    build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    build.arg("--target-dir").arg(folder.parent().ok_or("a profile is in a folder")?);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let status = build.stdin(Stdio::null()).status()?;
    if !status.success() || !Path::new(&program).exists() {
        return Err(format!("{} was not built", program.display()).into());
    }
    Ok(program)
}
