//! What the command line asks for: a check, a new baseline, or to be the child.

use std::process::ExitCode;

use lexopt::prelude::*;

use crate::{
    baseline::{Baseline, Verdict},
    child,
    tracer::Fault,
    workers::measure,
};

const USAGE: &str = "options: [--write]";

/// What is to be done.
enum Task {
    Check,
    Write,
    /// Performs a scenario, for the parent to trace.
    Perform(String),
}

pub(crate) fn main() -> ExitCode {
    if cfg!(debug_assertions) {
        eprintln!("only optimized code is worth counting: use --release");
        return ExitCode::FAILURE;
    }
    match task() {
        Ok(Task::Perform(scenario)) => child::perform(&scenario),
        Ok(Task::Check) => measure().map_or_else(report, |counts| check(&counts)),
        Ok(Task::Write) => measure().map_or_else(report, |counts| write(&counts)),
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn task() -> Result<Task, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let mut task = Task::Check;
    while let Some(argument) = parser.next()? {
        task = match argument {
            Long("write") => Task::Write,
            Long("perform") => Task::Perform(parser.value()?.string()?),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(task)
}

fn report(fault: Fault) -> ExitCode {
    match fault {
        Fault::NotPermitted(reason) => {
            println!("not checked: a child cannot be traced on this machine: {reason}");
            ExitCode::SUCCESS
        }
        Fault::Failed(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn check(counts: &[(&'static str, f64)]) -> ExitCode {
    let baseline = match Baseline::read() {
        Ok(baseline) => baseline,
        Err(error) => {
            eprintln!("{error}; --write makes a baseline");
            return ExitCode::FAILURE;
        }
    };
    let verdicts: Vec<_> = counts
        .iter()
        .map(|&(name, count)| {
            let (verdict, line) = baseline.compare(name, count);
            println!("{line}");
            verdict
        })
        .collect();
    let has = |verdict| verdicts.contains(&verdict);
    if has(Verdict::Below) {
        println!("fewer instructions than the baseline has: --write keeps it so");
    }
    let is_failed = has(Verdict::Above) || has(Verdict::Unknown);
    if !baseline.is_binding() {
        println!("not binding: the baseline is of {}", baseline.origin());
    }
    if is_failed && baseline.is_binding() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn write(counts: &[(&'static str, f64)]) -> ExitCode {
    match Baseline::write(counts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
