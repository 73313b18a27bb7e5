//! A server whose wall clock really jumps: it ends leases early or late, and lets no stale write through. On both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::{
    Fence, FenceError, GuardError, GuardedDestination, LeaseBackend, LossReason, Refusal, Release, Renewal,
};
use lease_redis::RedisDestination;
use lease_servers::Server;
use std::time::Duration;

const HOUR: i64 = 3_600;

both! {
    async fn a_jump_ahead_costs_the_lease_and_lets_no_stale_write_through(server: &mut Server, client: &str) {
        server.put_on_clock().unwrap();
        let (holder, other) = (backend(server, client).await, backend(server, client).await);
        let destination = RedisDestination::connect(&url(server, client, "")).await.unwrap();
        let Fence::LiveOwner(register) = holder.fence() else { panic!() };
        let (r, lease) = (name("r"), acquire(&holder, &attempt("r", 60_000)).await);
        let token = lease.token().unwrap();
        destination.adopt(None, token.authority()).await.unwrap();
        destination.write(&r, token, "first").await.unwrap();
        register.write(&lease, "first").await.unwrap();

        server.set_clock(HOUR).unwrap();
        assert!(!lease.is_past_deadline(), "the holder counts on its own clock, so that fencing has to do");
        assert!(matches!(register.write(&lease, "stale").await, Err(FenceError::Refused { .. })));
        let next = acquire(&other, &attempt("r", 60_000)).await;
        assert!(next.token() > lease.token(), "of the same authority, and larger");
        destination.seal(&r, next.token().unwrap()).await.unwrap();
        server.set_clock(0).unwrap();

        match destination.write(&r, token, "stale").await {
            Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. }) => {}
            answer => panic!("{answer:?}"),
        }
        assert!(matches!(register.write(&lease, "stale").await, Err(FenceError::Refused { .. })));
        assert_eq!(register.read(&r).await.unwrap().as_deref(), Some("first"));
        assert!(matches!(holder.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
        assert_eq!(holder.release(&lease).await.unwrap(), Release::NotHeld);
        assert!(matches!(other.renew(&next).await.unwrap(), Renewal::Renewed(_)), "the jump back costs nobody anything");
        assert_eq!(other.release(&next).await.unwrap(), Release::Released);
        let last = acquire(&holder, &attempt("r", 60_000)).await;
        assert!(last.token() > next.token(), "the value does not go back with the clock");
    }

    async fn a_jump_back_makes_a_dead_holder_last_longer_by_as_much(server: &mut Server, client: &str) {
        server.put_on_clock().unwrap();
        let other = backend(server, client).await;
        let lease = acquire(&backend(server, client).await, &attempt("r", 60_000)).await;
        server.set_clock(-HOUR).unwrap();
        assert!(is_held(&other, "r").await);
        let left = other.inspect(&name("r")).await.unwrap().held.unwrap().remaining;
        let (hour, minute) = (Duration::from_hours(1), Duration::from_mins(1));
        assert!(left > hour.saturating_sub(minute) && left <= hour.saturating_add(minute), "{left:?}");
        assert!(lease.remaining() <= minute, "for the holder nothing has changed");
        server.set_clock(HOUR).unwrap();
        assert!(acquire(&other, &attempt("r", 60_000)).await.token() > lease.token());
    }
}
