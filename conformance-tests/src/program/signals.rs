//! Ending in order when a signal asks for it.

use super::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `work`; a Ctrl-C, `SIGTERM` or `SIGHUP` drops it where it is and answers [`Failure::Interrupted`], so that the caller can still tidy up.
pub(crate) async fn until_signal<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let listen =
        |kind: SignalKind| signal(kind).map_err(|e| Failure::CouldNotRun(format!("cannot listen for signals: {e}")));
    let (mut interrupt, mut terminate, mut hang_up) =
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    tokio::select! {
        done = work => Ok(done),
        _ = interrupt.recv() => Err(Failure::Interrupted(2)),
        _ = terminate.recv() => Err(Failure::Interrupted(15)),
        _ = hang_up.recv() => Err(Failure::Interrupted(1)),
    }
}
