//! The parent, which lets a child take one instruction after the other and counts them.

use std::{
    env, io,
    process::{Child, Command},
};

use delaywheel_compare::report::table;
use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::child::{COUNTED, MARK, NOT_PERMITTED, OPERATIONS};

/// Why nothing was counted.
pub(crate) enum Fault {
    /// Tracing is not allowed here, or not supported.
    NotPermitted(String),
    Failed(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        match error {
            Errno::EPERM | Errno::EIO | Errno::ENOSYS => Self::NotPermitted(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Instructions per operation of a scenario.
pub(crate) fn count(scenario: &str) -> Result<f64, Fault> {
    let mut child = Command::new(env::current_exe()?).args(["--perform", scenario]).spawn()?;
    let traced = trace(&child);
    // A child that is still being traced would wait for ever.
    if traced.is_err() {
        let _ = child.kill();
    }
    // One that has been seen to end cannot be waited for again.
    let status = child.wait();
    let [once, twice] = traced?;
    if !status?.success() {
        return Err(Fault::Failed(format!("the child for {scenario} failed")));
    }
    let difference = twice.checked_sub(once);
    let difference = difference.ok_or_else(|| Fault::Failed("fewer for more".to_owned()))?;
    Ok(table::count(difference) / table::count(OPERATIONS as u64))
}

/// Instructions between the marks of each pair, after which the child goes its way.
fn trace(child: &Child) -> Result<[u64; COUNTED.len()], Fault> {
    let id = i32::try_from(child.id()).map_err(|error| Fault::Failed(error.to_string()))?;
    let pid = Pid::from_raw(id);
    let mut counts = [0; COUNTED.len()];
    for (index, count) in counts.iter_mut().enumerate() {
        if index > 0 {
            ptrace::cont(pid, None)?;
        }
        let signal = stop(pid)?;
        if signal != MARK {
            return Err(Fault::Failed(format!("the child received {signal}")));
        }
        *count = steps_to_mark(pid)?;
    }
    ptrace::detach(pid, None)?;
    Ok(counts)
}

/// Lets the child take single steps until it raises the mark. Returns how many.
fn steps_to_mark(pid: Pid) -> Result<u64, Fault> {
    let mut steps = 0;
    loop {
        ptrace::step(pid, None)?;
        match stop(pid)? {
            Signal::SIGTRAP => steps += 1,
            MARK => return Ok(steps),
            signal => return Err(Fault::Failed(format!("the child received {signal}"))),
        }
    }
}

/// Waits until the child stops. Returns the signal that it was about to receive.
fn stop(pid: Pid) -> Result<Signal, Fault> {
    match waitpid(pid, None)? {
        WaitStatus::Stopped(_, signal) => Ok(signal),
        WaitStatus::Exited(_, code) if code == i32::from(NOT_PERMITTED) => {
            Err(Fault::NotPermitted("it must not be".to_owned()))
        }
        status => Err(Fault::Failed(format!("the child ended: {status:?}"))),
    }
}
