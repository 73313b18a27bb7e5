//! A floor given to acquire, and the value as a second line beside the owner token.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![allow(clippy::arithmetic_side_effects, reason = "a sum that overflows fails the test")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::memory::MemoryDestination;
use lease_core::{
    Effect, Fence, FenceError, GuardError, GuardedDestination, LeaseBackend, LeaseError, LossReason, Refusal, Release,
    Renewal,
};
use lease_redis::RedisFence;
use lease_servers::{Backup, Server};

/// The largest value.
const MOST: u64 = 1 << 53;

both! {
    async fn the_value_is_above_the_floor(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let first = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
        let floor = value(&first) + 3_600_000_000;
        let above = attempt("r", 30_000).above(floor);
        let lease = acquire(&backend, &above).await;
        assert_eq!(value(&lease), floor + 1);
        assert_eq!(acquire(&backend, &above).await.token(), lease.token(), "the repeat");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        let next = acquire(&backend, &attempt("r", 30_000).above(3)).await;
        assert_eq!(value(&next), floor + 2, "never back, whatever the clock says");
    }

    async fn a_floor_at_the_end_of_the_range(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        for floor in [MOST, u64::MAX] {
            let error = backend.acquire(&attempt("r", 30_000).above(floor)).await.unwrap_err();
            assert!(matches!(error, LeaseError::InvalidFloor { .. }), "{error}");
            assert_eq!(error.effect(), Effect::None);
        }
        assert_eq!(cli(server, &["EXISTS", "leasehold:{r}:lease"]), "0", "nothing was sent");
        let last = acquire(&backend, &attempt("r", 30_000).above(MOST - 1)).await;
        assert_eq!(value(&last), MOST, "exact");
        assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
        assert!(matches!(backend.acquire(&attempt("r", 30_000)).await, Err(LeaseError::TokenRange { .. })));
    }

    async fn a_store_that_went_back_grants_above_what_the_destination_has_seen(server: &mut Server, client: &str) {
        let (r, destination) = (name("r"), MemoryDestination::new());
        let lost = {
            let backend = backend(server, client).await;
            let first = acquire(&backend, &attempt("r", 30_000)).await;
            assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
            let backup = Backup::of(server).unwrap();
            // A clock that is set back is the same as values that were ahead of it.
            let lost = acquire(&backend, &attempt("r", 30_000).above(value(&first) + 3_600_000_000)).await;
            backup.restore_to(server).unwrap();
            lost
        };
        let token = lost.token().unwrap();
        destination.adopt(None, token.authority()).await.unwrap();
        destination.write(&r, token, "new").await.unwrap();

        let backend = backend(server, client).await;
        let unseen = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(unseen.token().unwrap().authority(), token.authority(), "the store cannot tell");
        let refused = destination.write(&r, unseen.token().unwrap(), "low").await.unwrap_err();
        assert!(matches!(&refused, GuardError::Refused { refusal: Refusal::Stale { .. }, .. }), "{refused}");
        assert_eq!(backend.release(&unseen).await.unwrap(), Release::Released);

        let floor = destination.read(&r).await.unwrap().floor();
        let cured = acquire(&backend, &attempt("r", 30_000).above(floor)).await;
        destination.write(&r, cured.token().unwrap(), "newer").await.unwrap();
    }

    async fn an_edited_value_is_refused(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let Fence::LiveOwner(register) = backend.fence() else { panic!() };
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        register.write(&lease, "before").await.unwrap();
        let fence = backend.fence_for(&lease);
        let script = fence.script("return #KEYS + #ARGV");
        let run = || {
            let mut words = vec!["EVAL".to_owned(), script.clone(), "1".to_owned()];
            words.extend(fence.keys(&[]));
            words.extend(fence.args(&["own"]));
            cli(server, &words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(run(), "1", "it sees its own argument only");
        edit_record(server, "r", 1, |value| value + 1);
        let record = cli(server, &["GET", "leasehold:{r}:lease"]);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
        assert!(matches!(register.write(&lease, "after").await, Err(FenceError::Refused { .. })));
        assert!(RedisFence::is_refusal(&run()));
        assert_eq!(register.read(&name("r")).await.unwrap().as_deref(), Some("before"));
        assert_eq!(cli(server, &["GET", "leasehold:{r}:lease"]), record, "left as it is");
    }
}

/// The tests above can fail.
#[cfg(feature = "testing")]
#[tokio::test]
async fn without_its_line_each_of_them_is_seen() {
    const CLIENT: &str = if cfg!(feature = "client-redis") { "redis" } else { "redis+fred" };
    let server = server();
    let edited = async |edit| lease_redis::RedisBackend::connect_edited(&url(&server, CLIENT, ""), &[edit]).await;

    let deaf = edited(("math.max(tonumber(value or 0), tonumber(ARGV[6]))", "tonumber(value or 0)")).await.unwrap();
    let error = deaf.acquire(&attempt("r", 30_000).above(MOST / 2)).await.unwrap_err();
    assert!(matches!(error, LeaseError::BelowFloor { effect: Effect::None, .. }), "{error}");
    assert!(!is_held(&deaf, "r").await, "it was given up");

    let blind = edited(("if not lost and value ~= ARGV[4] then lost = 'superseded' end", "")).await.unwrap();
    let lease = acquire(&blind, &attempt("s", 30_000)).await;
    edit_record(&server, "s", 1, |value| value + 1);
    assert!(matches!(blind.renew(&lease).await.unwrap(), Renewal::Renewed(_)));

    let open = edited(("or value ~= ARGV[2] or", "or")).await.unwrap();
    let Fence::LiveOwner(register) = open.fence() else { panic!() };
    let lease = acquire(&open, &attempt("t", 30_000)).await;
    edit_record(&server, "t", 1, |value| value + 1);
    register.write(&lease, "stale").await.unwrap();
}
