//! The child, which performs a scenario and raises a signal where counting begins and ends.

use std::process::ExitCode;

use nix::sys::{
    ptrace,
    signal::{Signal, raise},
};

use crate::scenarios::SCENARIOS;

/// What is raised where counting begins, and where it ends.
pub(crate) const MARK: Signal = Signal::SIGUSR1;

/// The exit code of a child that must not be traced.
pub(crate) const NOT_PERMITTED: u8 = 77;

/// Operations that are counted; then twice as many are. The difference is what those take that are
/// more, without what is done only once.
pub(crate) const OPERATIONS: usize = 200;

/// Numbers of operations that are counted, in order.
pub(crate) const COUNTED: [usize; 2] = [OPERATIONS, 2 * OPERATIONS];

/// Performs a scenario under the eyes of the parent.
pub(crate) fn perform(name: &str) -> ExitCode {
    let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.name == name) else {
        eprintln!("there is no scenario {name}");
        return ExitCode::FAILURE;
    };
    let mut subject = (scenario.make)();
    // Memory that is needed once is taken, so that what is counted is a steady state.
    for _ in 0..3 {
        subject.prepare(2 * OPERATIONS);
        subject.run();
    }
    if let Err(error) = ptrace::traceme() {
        eprintln!("{error}");
        return ExitCode::from(NOT_PERMITTED);
    }
    for count in COUNTED {
        subject.prepare(count);
        raise(MARK).expect("a process may send itself a signal");
        subject.run();
        raise(MARK).expect("a process may send itself a signal");
    }
    ExitCode::SUCCESS
}
