//! Turns that are taken in a process of their own: threads that a contestant leaves behind are not
//! there when the next takes its turn, and an allocator that counts weighs on nothing else.

use std::{
    env,
    error::Error,
    path::Path,
    process::{Command, Stdio},
};

use delaywheel_compare::{
    Promises,
    shared::{SharedTimer, SharedVisitor, visit_all_shared},
    side_by_side::results::Measurement,
};
use lexopt::{Parser, ValueExt};

use super::{
    Measured, idle, lateness,
    record::{Demand, Record},
    threads,
};

/// What a child does.
pub(crate) struct Turn {
    pub(crate) workload: String,
    /// As the contestant calls itself.
    pub(crate) contestant: String,
    /// A number that the workload understands.
    pub(crate) n: u32,
    pub(crate) millis: u64,
    pub(crate) seed: u64,
}

impl Turn {
    /// Reads what follows on the command line.
    pub(crate) fn from_args(parser: &mut Parser) -> Result<Self, lexopt::Error> {
        Ok(Self {
            workload: parser.value()?.string()?,
            contestant: parser.value()?.string()?,
            n: parser.value()?.parse()?,
            millis: parser.value()?.parse()?,
            seed: parser.value()?.parse()?,
        })
    }

    fn args(&self) -> [String; 5] {
        let Self { workload, contestant, n, millis, seed } = self;
        [workload.clone(), contestant.clone(), n.to_string(), millis.to_string(), seed.to_string()]
    }

    /// Has a child take the turn, of a program that prints measurements.
    pub(crate) fn delegate(&self, program: &Path) -> Result<Vec<Measurement>, Box<dyn Error>> {
        let mut child = Command::new(program);
        child.arg("--turn").args(self.args()).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = child.output()?;
        if !output.status.success() {
            let (what, who) = (&self.workload, &self.contestant);
            return Err(format!("{what} by {who} failed: {}", output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Takes a turn as a child, and prints what was measured.
pub(crate) fn take_turn(turn: &Turn) -> Measured {
    let measure = match turn.workload.as_str() {
        "threads" => threads::take_turn,
        "idle" => idle::take_turn,
        "lateness" => lateness::take_turn,
        unknown => return Err(format!("no child does {unknown}").into()),
    };
    println!("{}", serde_json::to_string(&measure(turn))?);
    Ok(())
}

/// Has every contestant with threads of its own take a turn of which it is capable.
pub(crate) fn delegate_all(
    record: &mut Record,
    demand: &Demand,
    turn: impl Fn(&str) -> Turn,
) -> Measured {
    let program = env::current_exe()?;
    let mut everybody = Names::default();
    visit_all_shared(&mut everybody);
    for (name, promises) in everybody.0 {
        if record.admits(name, &promises, demand) {
            record.add_all(turn(name).delegate(&program)?);
            eprint!(".");
        }
    }
    Ok(())
}

#[derive(Default)]
struct Names(Vec<(&'static str, Promises)>);

impl SharedVisitor for Names {
    fn visit<S: SharedTimer>(&mut self, _: impl Fn() -> S) {
        self.0.push((S::NAME, S::PROMISES));
    }
}

/// Does something with the one contestant that has this name.
struct Only<'a, F> {
    name: &'a str,
    act: F,
    measurements: Vec<Measurement>,
}

/// Something that one contestant does.
pub(crate) trait Act {
    /// Does it.
    fn act<S: SharedTimer>(&self, make: impl Fn() -> S) -> Vec<Measurement>;
}

impl<F: Act> SharedVisitor for Only<'_, F> {
    fn visit<S: SharedTimer>(&mut self, make: impl Fn() -> S) {
        if S::NAME == self.name {
            self.measurements = self.act.act(make);
        }
    }
}

/// Has the contestant of this name do it.
pub(crate) fn act(name: &str, act: impl Act) -> Vec<Measurement> {
    let mut only = Only { name, act, measurements: Vec::new() };
    visit_all_shared(&mut only);
    only.measurements
}
