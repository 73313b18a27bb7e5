//! A machine that slept: the first touch tells, whatever it is.

use crate::bench::{TTL, bench};
use lease_core::Operation;
use lease_core::hold::{EnsureError, LossCause, StaleBehaviour};
use std::time::Duration;

#[tokio::test]
async fn a_process_that_slept_learns_it_at_the_first_touch() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.clock.advance(TTL);
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::Expired);
    assert!(matches!(guard.ensure(Duration::ZERO), Err(EnsureError::Lost(loss)) if loss.cause() == LossCause::Expired));
    let renewals = bench.backend.calls(Operation::Renew);
    bench.pass(TTL).await;
    assert_eq!(bench.backend.calls(Operation::Renew), renewals, "a lost lease is not renewed");
}
