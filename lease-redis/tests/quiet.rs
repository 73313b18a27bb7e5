//! Clients that say nothing for long, and many that ask for the same: neither is trouble. On both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on fails"
)]

mod common;

use common::*;
use lease_core::{Effect, ErrorKind, LeaseBackend, LeaseError, LeaseExt as _, Release, Renewal};
use lease_servers::{RedisSetup, Server};
use std::time::Duration;

/// Waits until the server has closed every connection but that of the question, and a moment for the other end to notice.
async fn until_closed(server: &Server) {
    while cli(server, &["CLIENT", "LIST"]).lines().count() > 1 {
        sleep_ms(50).await;
    }
    sleep_ms(100).await;
}

/// What one call came to; on a slow machine the client may not have noticed the close, and then it does not know.
fn one<T>(answer: Result<T, LeaseError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Transport, Effect::Unknown), "{error}");
            None
        }
    }
}

fn error_replies(server: &Server) -> String {
    let stats = cli(server, &["INFO", "stats"]);
    stats.lines().find_map(|line| line.strip_prefix("total_error_replies:")).unwrap().trim().to_owned()
}

both! {
    async fn one_call_is_enough_after_the_server_closed_an_idle_connection(_server: &mut Server, client: &str) {
        let extra_args = vec!["--timeout".into(), "1".into()];
        let server = lease_servers::redis(&RedisSetup { extra_args, ..RedisSetup::default() }).unwrap();
        let backend = backend(&server, client).await;
        let mut enough = 0;
        for round in 0..2 {
            let attempt = attempt(&format!("r{round}"), 60_000);
            let lease = acquire(&backend, &attempt).await;
            until_closed(&server).await;
            let renewed = one(backend.renew(&lease).await);
            assert!(matches!(renewed, None | Some(Renewal::Renewed(_))), "never lost: {renewed:?}");
            until_closed(&server).await;
            let released = one(backend.release(&lease).await);
            assert!(matches!(released, None | Some(Release::Released)), "never lost: {released:?}");
            until_closed(&server).await;
            let next = one(backend.try_acquire(&format!("next {round}"), Duration::from_mins(1)).await);
            assert!(matches!(next, None | Some(Some(_))), "never held: {next:?}");
            enough += u32::from(renewed.is_some()) + u32::from(released.is_some()) + u32::from(next.is_some());
        }
        assert!(enough > 0, "no call of six was enough");
    }

    async fn contention_is_no_error_for_the_server_and_uses_no_values(server: &mut Server, client: &str) {
        let backends = [backend(server, client).await, backend(server, client).await];
        drop(acquire(&backends[0], &attempt("r", 60_000)).await);
        // So far ahead that the clock is of no help: only grants may move it.
        edit_record(server, "r", 1, |value| value + 1_000_000_000_000);
        for backend in &backends {
            assert!(is_held(backend, "r").await);
        }
        let ahead = backends[0].inspect(&name("r")).await.unwrap().last_value.unwrap();
        let before = error_replies(server);
        let mut waiters = tokio::task::JoinSet::new();
        for backend in backends.iter().cycle().take(20) {
            let backend = backend.clone();
            waiters.spawn(async move {
                backend.acquire_within("r", Duration::from_mins(1), Duration::from_secs(2)).await.unwrap().is_none()
            });
        }
        assert!(waiters.join_all().await.into_iter().all(|nothing| nothing), "it was held all the time");
        assert_eq!(error_replies(server), before);
        expire(server, "r");
        assert_eq!(value(&acquire(&backends[1], &attempt("r", 60_000)).await), ahead + 1);
    }
}
