//! Waiting for something that has to come, with a limit.

use crate::ServerError;
use std::time::{Duration, Instant};

/// How long something may take that takes a moment on a machine with nothing else to do. A loaded machine is slow.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// Looks again and again until it is there; what was seen instead is in the error.
pub(crate) fn until<T>(
    what: impl Into<String>,
    limit: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> Result<T, ServerError> {
    let begin = Instant::now();
    loop {
        match look() {
            Ok(there) => return Ok(there),
            Err(seen) if begin.elapsed() > limit => {
                return Err(ServerError::NotReached { what: what.into(), limit, seen });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
