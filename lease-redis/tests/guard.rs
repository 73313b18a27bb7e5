//! The guarded destination on a real server, on both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on fails"
)]

mod common;

use common::*;
use lease_core::memory::MemoryBackend;
use lease_core::{
    Authority, Claim, FencingToken, GrantId, GuardError, GuardedDestination, LeaseBackend, LeaseError, LeaseExt,
    Refusal,
};
use lease_redis::RedisDestination;
use lease_servers::Server;
use std::time::Duration;

fn authority(text: &str) -> Authority {
    Authority::parse(text).unwrap()
}

fn token(value: u64, grant: u64) -> FencingToken {
    token_of("redis:aa:0", value, grant)
}

fn token_of(of: &str, value: u64, grant: u64) -> FencingToken {
    FencingToken::new(authority(of), value, GrantId::from_hex(&format!("{grant:016x}")).unwrap()).unwrap()
}

async fn trusting(server: &Server, client: &str) -> RedisDestination {
    let destination = RedisDestination::connect(&url(server, client, "")).await.unwrap();
    destination.adopt(None, &authority("redis:aa:0")).await.unwrap();
    destination
}

fn refusal(result: Result<(), GuardError>) -> Refusal {
    match result {
        Err(GuardError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

both! {
    async fn admits_at_or_above_and_refuses_below(server: &mut Server, client: &str) {
        let destination = trusting(server, client).await;
        let r = name("r {x}");
        assert_eq!(destination.read(&r).await.unwrap(), lease_core::Stored::new(None, None));
        destination.write(&r, &token(5, 1), "a b").await.unwrap();
        destination.write(&r, &token(5, 1), "second write").await.unwrap();
        destination.seal(&r, &token(7, 2)).await.unwrap();
        assert_eq!(refusal(destination.write(&r, &token(5, 1), "stale").await), Refusal::Stale { presented: 5, mark: 7 });
        assert_eq!(refusal(destination.seal(&r, &token(6, 3)).await), Refusal::Stale { presented: 6, mark: 7 });
        assert_eq!(refusal(destination.write(&r, &token(7, 9), "conflict").await), Refusal::Conflict { value: 7 });
        let stored = destination.read(&r).await.unwrap();
        assert_eq!(stored.value.as_deref(), Some("second write"), "a seal writes nothing, a refused write writes nothing");
        assert_eq!(stored.mark, Some((7, GrantId::from_hex("0000000000000002").unwrap())));
        destination.write(&r, &token(7, 2), "").await.unwrap();
        assert_eq!(destination.read(&r).await.unwrap().value.as_deref(), Some(""));
        destination.write(&name("other"), &token(1, 1), "x").await.unwrap();
        assert_eq!(cli(server, &["TTL", "leasehold:{r%20%7Bx%7D}:marks"]), "-1", "marks never expire");
    }

    async fn the_authority_is_adopted_by_compare_and_set(server: &mut Server, client: &str) {
        let destination = RedisDestination::connect(&url(server, client, "")).await.unwrap();
        let (old, new) = (authority("redis:aa:0"), authority("etcd:bb:1"));
        let r = name("r");
        assert_eq!(
            refusal(destination.write(&r, &token(1, 1), "x").await),
            Refusal::UnknownAuthority { presented: old.clone(), trusted: None }
        );
        destination.adopt(None, &old).await.unwrap();
        destination.write(&r, &token(9, 1), "x").await.unwrap();
        for wrong in [None, Some(&new)] {
            match destination.adopt(wrong, &new).await {
                Err(GuardError::AdoptConflict { found }) => assert_eq!(found.as_ref(), Some(&old)),
                other => panic!("{other:?}"),
            }
        }
        destination.adopt(Some(&old), &new).await.unwrap();
        assert_eq!(
            refusal(destination.write(&r, &token(10, 1), "stale").await),
            Refusal::UnknownAuthority { presented: old.clone(), trusted: Some(new.clone()) }
        );
        assert_eq!(destination.read(&r).await.unwrap().mark, None, "marks begin anew");
        destination.write(&r, &token_of("etcd:bb:1", 2, 1), "y").await.unwrap();
        destination.adopt(Some(&new), &old).await.unwrap();
        assert_eq!(
            refusal(destination.write(&r, &token(8, 1), "stale").await),
            Refusal::Stale { presented: 8, mark: 9 },
            "an authority that comes back finds its marks"
        );
    }

    async fn values_beyond_a_double_compare_exactly(server: &mut Server, client: &str) {
        let destination = trusting(server, client).await;
        let (r, max) = (name("r"), FencingToken::MAX_VALUE);
        // Neighbours that a double cannot tell apart, digits that carry into the upper part, and the ends of the range.
        let ladder = [1, 2, 999_999_999, 1_000_000_000, 9_007_199_254_740_992, 9_007_199_254_740_993, max - 1, max];
        for pair in ladder.windows(2) {
            destination.write(&r, &token(pair[1], 1), "x").await.unwrap();
            assert_eq!(
                refusal(destination.write(&r, &token(pair[0], 1), "stale").await),
                Refusal::Stale { presented: pair[0], mark: pair[1] }
            );
        }
        assert_eq!(refusal(destination.seal(&r, &token(max, 2)).await), Refusal::Conflict { value: max });
        destination.seal(&r, &token(max, 1)).await.unwrap();
    }

    async fn marks_survive_a_killed_server(server: &mut Server, client: &str) {
        let destination = trusting(server, client).await;
        assert!(destination.claims().has(Claim::MarkSurvivesRestart));
        destination.write(&name("r"), &token(7, 1), "x").await.unwrap();
        server.kill();
        server.restart().unwrap();
        let again = RedisDestination::connect(&url(server, client, "")).await.unwrap();
        assert_eq!(refusal(again.write(&name("r"), &token(6, 2), "stale").await), Refusal::Stale { presented: 6, mark: 7 });
        assert_eq!(again.read(&name("r")).await.unwrap().value.as_deref(), Some("x"));
    }

    async fn the_callers_own_script_is_guarded(server: &mut Server, client: &str) {
        let destination = trusting(server, client).await;
        let run = |token: &FencingToken, body: &str| {
            let guard = destination.guard_for(&name("r"), token);
            let keys = guard.keys(&["invoices"]);
            let mut words = vec!["EVAL".to_owned(), guard.script(body), keys.len().to_string()];
            words.extend(keys);
            words.extend(guard.args(&["2026-12"]));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let answer = cli(server, &words);
            (guard.refusal(&answer), answer)
        };
        let push = "return redis.call('RPUSH', KEYS[1], ARGV[1]) + #KEYS * 100 + #ARGV * 1000";
        assert_eq!(run(&token(5, 1), push), (None, "1101".into()));
        assert_eq!(run(&token(5, 1), push), (None, "1102".into()), "the holder's second write");
        assert_eq!(run(&token(4, 2), push).0, Some(Refusal::Stale { presented: 4, mark: 5 }));
        assert_eq!(run(&token(5, 2), push).0, Some(Refusal::Conflict { value: 5 }));
        assert!(matches!(run(&token_of("x", 9, 2), push).0, Some(Refusal::UnknownAuthority { trusted: Some(_), .. })));
        // Clients put the code of an error in quotes and a colon behind it.
        let guard = destination.guard_for(&name("r"), &token(4, 2));
        let quoted = guard.refusal("\"LEASEHOLD_GUARD\": stale 0000000000000000005");
        assert_eq!(quoted, Some(Refusal::Stale { presented: 4, mark: 5 }));
        assert_eq!(cli(server, &["LLEN", "invoices"]), "2");
        // Redis does not roll back, and that is not claimed: the mark stays when the caller's part fails.
        let (refusal, answer) = run(&token(6, 1), "return redis.call('INCR', KEYS[1])");
        assert!(refusal.is_none() && answer.contains("WRONGTYPE"), "{answer}");
        assert_eq!(run(&token(5, 1), push).0, Some(Refusal::Stale { presented: 5, mark: 6 }));
        assert!(!destination.claims().has(Claim::MarkRollsBack));
    }

    async fn tokens_of_another_backend_are_guarded(server: &mut Server, client: &str) {
        let memory = MemoryBackend::new().unwrap();
        let ttl = Duration::from_secs(30);
        let first = memory.try_acquire("r", ttl).await.unwrap().unwrap();
        let (old, authority) = (first.token().unwrap(), first.token().unwrap().authority());
        let destination = RedisDestination::connect(&url(server, client, "")).await.unwrap();
        destination.adopt(None, authority).await.unwrap();
        destination.write(&name("r"), old, "first").await.unwrap();
        assert_eq!(memory.release(&first).await.unwrap(), lease_core::Release::Released);
        let second = memory.try_acquire("r", ttl).await.unwrap().unwrap();
        destination.seal(&name("r"), second.token().unwrap()).await.unwrap();
        assert!(matches!(refusal(destination.write(&name("r"), old, "stale").await), Refusal::Stale { .. }));
    }

    async fn foreign_data_are_left_alone(server: &mut Server, client: &str) {
        let destination = trusting(server, client).await;
        let foreign = |result: Result<(), GuardError>| {
            assert!(matches!(result, Err(GuardError::Store(LeaseError::ForeignData { .. }))), "{result:?}");
        };
        cli(server, &["RPUSH", "leasehold:{list}:marks", "x"]);
        foreign(destination.write(&name("list"), &token(1, 1), "x").await);
        foreign(destination.read(&name("list")).await.map(drop));
        for text in ["nonsense", "5 00000000000000aa", "00000000000000000005"] {
            cli(server, &["HSET", "leasehold:{text}:marks", "redis:aa:0", text]);
            foreign(destination.seal(&name("text"), &token(9, 1)).await);
            assert_eq!(cli(server, &["HGET", "leasehold:{text}:marks", "redis:aa:0"]), text);
        }
        cli(server, &["SET", "leasehold:trusted", "no authority!"]);
        assert!(matches!(
            destination.adopt(None, &authority("a")).await,
            Err(GuardError::Store(LeaseError::NotSetUp { .. }))
        ));
    }

    async fn purge_removes_the_marks(server: &mut Server, client: &str) {
        let destination = trusting(server, client).await;
        destination.write(&name("r"), &token(7, 1), "x").await.unwrap();
        cli(server, &["SET", "leasehold:{r}:lease", "not the destination's"]);
        destination.purge().await.unwrap();
        assert_eq!(cli(server, &["KEYS", "*"]), "leasehold:{r}:lease");
        destination.adopt(None, &authority("redis:aa:0")).await.unwrap();
    }
}
