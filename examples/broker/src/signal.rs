//! The signals that end the program.

use std::{future::Future, io};

use tokio::signal::unix::{SignalKind, signal};

/// Listens for Ctrl-C and SIGTERM from now on. The future ends with the first of them.
///
/// # Errors
///
/// Those of the system.
pub(crate) fn ended() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
