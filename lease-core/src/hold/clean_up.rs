//! What is done in the background for calls and guards that are gone. Best effort: the TTL ends what it does not.

use crate::{Advice, LeaseError, SharedClock};
use std::future::Future;
use std::time::Duration;

/// How often it is tried, in some seconds and the time that the calls take: an outage may be short, and the first try often finds out only
/// that the connection is broken.
const TRIES: u32 = 10;

/// Calls until it is done, or repeating does not help.
///
/// # Errors
/// The last one.
pub(super) async fn repeated<T, F>(clock: &SharedClock, call: impl Fn() -> F) -> Result<T, LeaseError>
where
    F: Future<Output = Result<T, LeaseError>>,
{
    let mut pause = Duration::from_millis(20);
    for _ in 1..TRIES {
        match call().await {
            Err(error) if error.advice() == Advice::TryAgain => {}
            settled => return settled,
        }
        clock.sleep_until(clock.now().saturating_add(pause)).await;
        pause = pause.saturating_mul(2).min(Duration::from_secs(1));
    }
    call().await
}
