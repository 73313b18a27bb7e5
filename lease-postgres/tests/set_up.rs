//! Bad input, wrong servers, missing tables and privileges: each error says what to do, and none has a secret in it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{
    Advice, Claim, Effect, ErrorKind, FencedRegister as _, Forced, GuardError, GuardedDestination as _, LeaseBackend,
    LeaseError, Namespace, Operation, Release, Renewal,
};
use lease_postgres::{PostgresBackend, PostgresDestination};
use lease_servers::{RedisSetup, Server};
use sqlx::PgPool;
use std::error::Error as _;
use support::{admin, attempt, connect, force, name, number, order, own, shared, sql, take, url};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn refused(url: &str) -> LeaseError {
    let error = PostgresBackend::connect(url).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains("s3cret") && !text.contains("private-test-server"), "{text}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_addresses_and_logins() {
    let server = shared();
    let port = server.port();
    let error = refused("postgres://u:s3cret@127.0.0.1:1/postgres").await;
    assert!(matches!(&error, LeaseError::Unreachable { store, .. } if store.contains("127.0.0.1:1")), "{error}");
    assert_eq!((error.kind(), error.advice()), (ErrorKind::Transport, Advice::TryAgain));
    let error = refused(&format!("postgres://postgres:s3cret@127.0.0.1:{port}/postgres")).await;
    assert!(matches!(error, LeaseError::LoginRefused { .. }), "{error}");
    let error = refused(&format!("postgres://nobody:s3cret@127.0.0.1:{port}/postgres")).await;
    assert!(matches!(error, LeaseError::LoginRefused { .. }), "{error}");
    let error = refused(&server.url().replace("/postgres", "/absent").replace("//absent", "//postgres")).await;
    assert!(
        matches!(error, LeaseError::NotSetUp { .. }) && error.to_string().contains("create the database"),
        "{error}"
    );
    let error = refused(&url(&server, "namespace=x&nope=1")).await;
    assert!(error.to_string().contains("sslmode, sslrootcert, max_connections, set_up"), "{error}");
}

/// A port where something else listens: the address, and that it may be the mistake.
#[tokio::test(flavor = "multi_thread")]
async fn something_else_at_the_address() {
    let redis = lease_servers::redis(&RedisSetup::default()).unwrap();
    let web = answers(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
    let mail = answers(b"220 mail.example ESMTP\r\n").await;
    let hangs_up = answers(b"").await;
    for port in [redis.port(), web, mail, hangs_up] {
        // Redis waits for the rest of what it takes for its own protocol, for ever.
        let error = refused(&format!("postgres://u:s3cret@127.0.0.1:{port}/db?connect_timeout_ms=2000")).await;
        assert!(matches!(error, LeaseError::Unreachable { .. }), "{error}");
        assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain));
        for said in [&*format!("127.0.0.1:{port}/db"), "not answer as PostgreSQL", "address is right"] {
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }
}

/// The port of something that answers whatever it is asked with `text`, and hangs up.
async fn answers(text: &'static [u8]) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut peer, _) = listener.accept().await.unwrap();
            assert_ne!(peer.read(&mut [0; 1_024]).await.unwrap(), 0);
            peer.write_all(text).await.unwrap();
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_or_read_only_server_is_refused() {
    let server = own(&[]);
    std::fs::write(server.folder().join("data/standby.signal"), "").unwrap();
    let mut server = server;
    server.restart().unwrap();
    let error = refused(&url(&server, "connect_timeout_ms=60000")).await;
    assert!(matches!(error, LeaseError::NotSetUp { .. }) && error.to_string().contains("primary"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_are_named_and_the_migration_creates_them() {
    let server = shared();
    let pool = admin(&server).await;
    let never = url(&server, "namespace=migrated&set_up=never");
    let error = refused(&never).await;
    assert!(matches!(error, LeaseError::NotSetUp { .. }) && error.to_string().contains("migration"), "{error}");
    assert_eq!(number(&pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'migrated'").await, 0);
    let namespace = Namespace::parse("migrated").unwrap();
    for _ in 0..2 {
        sql(&pool, &PostgresBackend::migration(&namespace)).await;
        sql(&pool, &PostgresDestination::migration(&namespace)).await;
    }
    let backend = PostgresBackend::connect(&never).await.unwrap();
    let lease = take(&backend, "r", 60_000).await;
    let destination = PostgresDestination::connect(&never).await.unwrap();
    destination.adopt(None, lease.token().unwrap().authority()).await.unwrap();
    destination.write(&name("r"), lease.token().unwrap(), "x").await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);

    sql(&pool, "DROP TABLE migrated.lease").await;
    let error = backend.acquire(&attempt("r", 60_000)).await.unwrap_err();
    assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error}");
}

/// Who may create heals what was dropped under it; the call that met the hole says so.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_tables_are_created_anew() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "healed").await;
    take(&backend, "r", 60_000).await;
    sql(&pool, "DROP SCHEMA healed CASCADE").await;
    // Says so once, unless it had to open a connection anyway.
    let answer = backend.acquire(&attempt("other", 60_000)).await;
    assert!(matches!(answer, Ok(_) | Err(LeaseError::NotSetUp { .. })), "{answer:?}");
    take(&backend, "r", 60_000).await;
}

/// Tables that are there but lack what exclusion rests on.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_its_key_or_columns_is_refused() {
    let server = shared();
    let pool = admin(&server).await;
    for (change, says) in [
        ("ALTER TABLE damaged.lease DROP CONSTRAINT lease_pkey", "primary key (name)"),
        ("ALTER TABLE damaged.lease DROP COLUMN spent", "spent jsonb"),
        ("ALTER TABLE damaged.lease DROP COLUMN forced", "forced boolean"),
        ("ALTER TABLE damaged.lease ALTER COLUMN value TYPE int", "value bigint"),
        ("ALTER TABLE damaged.lease ALTER COLUMN name TYPE text COLLATE \"en-x-icu\"", "name text C"),
        ("ALTER TABLE damaged.meta DROP CONSTRAINT meta_pkey", "primary key (id)"),
    ] {
        sql(&pool, "DROP SCHEMA IF EXISTS damaged CASCADE").await;
        sql(&pool, &PostgresBackend::migration(&Namespace::parse("damaged").unwrap())).await;
        sql(&pool, change).await;
        let error = refused(&url(&server, "namespace=damaged")).await;
        assert!(matches!(error, LeaseError::NotSetUp { .. }), "{change}: {error}");
        assert!(error.to_string().contains(says), "{change}: {error}");
    }
    // Tables from before force-release, brought up to date as the crate's docs say.
    sql(&pool, "DROP SCHEMA damaged CASCADE").await;
    sql(&pool, &PostgresBackend::migration(&Namespace::parse("damaged").unwrap())).await;
    sql(&pool, "ALTER TABLE damaged.lease DROP COLUMN forced").await;
    sql(&pool, "ALTER TABLE damaged.lease ADD COLUMN forced boolean NOT NULL DEFAULT false").await;
    drive(&connect(&server, "damaged").await).await;
    sql(&pool, "DROP SCHEMA damaged CASCADE; CREATE SCHEMA damaged; CREATE TABLE damaged.lease (id int)").await;
    assert!(matches!(refused(&url(&server, "namespace=damaged")).await, LeaseError::NotSetUp { .. }));
    assert_eq!(number(&pool, "SELECT count(*) FROM damaged.lease").await, 0, "left alone");
}

/// What the settings of server and tables make true is what is claimed; a new connection reads them anew.
#[tokio::test(flavor = "multi_thread")]
async fn claims_follow_the_settings() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "claimed").await;
    let destination = PostgresDestination::connect(&url(&server, "namespace=claimed")).await.unwrap();
    for claim in [Claim::LeaseSurvivesRestart, Claim::TokenSurvivesRestart, Claim::NativeFenceLiveOwner] {
        assert!(backend.claims().has(claim), "{claim}");
    }
    assert!(destination.claims().has(Claim::MarkSurvivesRestart));
    assert_eq!(backend.description().name, "postgres");
    assert!(backend.description().server_version.starts_with(server.version()));
    assert!(!backend.description().address.contains("private-test-server"));
    sql(&pool, "ALTER TABLE claimed.lease SET UNLOGGED; ALTER TABLE claimed.mark SET UNLOGGED").await;
    let backend = connect(&server, "claimed").await;
    let destination = PostgresDestination::connect(&url(&server, "namespace=claimed")).await.unwrap();
    for claim in [Claim::LeaseSurvivesRestart, Claim::TokenSurvivesRestart] {
        assert!(!backend.claims().has(claim), "{claim}");
    }
    assert!(!destination.claims().has(Claim::MarkSurvivesRestart));
    assert!(destination.claims().has(Claim::RefusalUncommittable));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_read_again_on_reconnect() {
    let mut server = own(&[]);
    let backend = connect(&server, "reread").await;
    let lease = take(&backend, "r", 600_000).await;
    assert!(backend.claims().has(Claim::TokenSurvivesRestart));
    let config = server.folder().join("data/postgresql.auto.conf");
    std::fs::write(config, "fsync = off\n").unwrap();
    server.restart().unwrap();
    while !matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))) {}
    assert!(!backend.claims().has(Claim::TokenSurvivesRestart));
    assert!(!backend.claims().has(Claim::LeaseSurvivesRestart));
}

/// The server's default of `synchronous_commit`, isolation and read-only mode does not reach this client's sessions.
#[tokio::test(flavor = "multi_thread")]
async fn session_settings_are_this_crates_own() {
    let server = own(&[
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
    ]);
    let backend = connect(&server, "defaults").await;
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let backend = backend.clone();
        tasks.spawn(async move {
            for round in 0..20 {
                let resource = format!("r{}", (worker + round) % 3);
                if let lease_core::Acquisition::Acquired(lease) =
                    backend.acquire(&attempt(&resource, 60_000)).await.unwrap()
                {
                    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
                    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// The account of the crate's docs: what it may, it can; what it may not, it can't; and what is missing is named.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_privileged_account() {
    let server = shared();
    let pool = admin(&server).await;
    let namespace = Namespace::parse("least").unwrap();
    sql(&pool, &PostgresBackend::migration(&namespace)).await;
    sql(&pool, &PostgresDestination::migration(&namespace)).await;
    sql(&pool, "CREATE ROLE worker LOGIN PASSWORD 's3cret'; CREATE ROLE writer LOGIN PASSWORD 's3cret'").await;
    let as_role = |role: &str| {
        let rest = server.url().split_once('@').unwrap().1.to_owned();
        format!("postgres://{role}:s3cret@{rest}?namespace=least")
    };

    // Without any grant, each error names what is needed.
    let backend = PostgresBackend::connect(&as_role("worker")).await.unwrap();
    for (operation, error) in [
        (Operation::Acquire, backend.acquire(&attempt("r", 60_000)).await.unwrap_err()),
        (Operation::ForceRelease, backend.force_release(&order("r", 1)).await.unwrap_err()),
    ] {
        assert!(matches!(error, LeaseError::MissingPrivilege { operation: o, .. } if o == operation), "{error}");
        assert!(error.to_string().contains("GRANT USAGE ON SCHEMA \"least\""), "{error}");
        assert!(error.source().is_some_and(|source| source.to_string().contains("42501")));
    }
    let error = PostgresBackend::connect(&as_role("worker").replace("=least", "=elsewhere")).await.unwrap_err();
    assert!(matches!(error, LeaseError::MissingPrivilege { operation: Operation::Connect, .. }), "{error}");

    for grant in lease_postgres::RUNTIME_GRANTS {
        sql(&pool, &grant.replace("leasehold", "least").replace("ACCOUNT", "worker")).await;
    }
    drive(&backend).await;
    let worker = PgPool::connect(&as_role("worker").replace("?namespace=least", "")).await.unwrap();
    for forbidden in
        ["DROP TABLE least.lease", "CREATE TABLE least.mine (n int)", "SELECT FROM least.mark", "CREATE SCHEMA mine"]
    {
        assert!(sqlx::query(sqlx::AssertSqlSafe(forbidden)).execute(&worker).await.is_err(), "{forbidden}");
    }
    backend.purge().await.unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM least.lease").await, 0);
    drive(&backend).await;

    let destination = PostgresDestination::connect(&as_role("writer")).await.unwrap();
    let token = take(&backend, "token", 60_000).await.token().unwrap().clone();
    let error = destination.seal(&name("r"), &token).await.unwrap_err();
    assert!(matches!(error, GuardError::Store(LeaseError::MissingPrivilege { .. })), "{error}");
    for grant in lease_postgres::WRITER_GRANTS {
        sql(&pool, &grant.replace("leasehold", "least").replace("ACCOUNT", "writer")).await;
    }
    let error = destination.adopt(None, token.authority()).await.unwrap_err();
    assert!(error.to_string().contains("ON \"least\".trusted"), "a writer trusts nobody by itself: {error}");
    administrator(&server).await.adopt(None, token.authority()).await.unwrap();
    destination.write(&name("r"), &token, "x").await.unwrap();
    assert_eq!(destination.read(&name("r")).await.unwrap().value.as_deref(), Some("x"));
    let writer = PgPool::connect(&as_role("writer").replace("?namespace=least", "")).await.unwrap();
    for forbidden in ["UPDATE least.trusted SET authority = 'x'", "DELETE FROM least.mark", "SELECT FROM least.lease"] {
        assert!(sqlx::query(sqlx::AssertSqlSafe(forbidden)).execute(&writer).await.is_err(), "{forbidden}");
    }
}

async fn administrator(server: &Server) -> PostgresDestination {
    PostgresDestination::connect(&url(server, "namespace=least")).await.unwrap()
}

/// Every operation of a backend once.
async fn drive(backend: &PostgresBackend) {
    let lease = take(backend, "r", 60_000).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    backend.write(&lease, "x").await.unwrap();
    assert_eq!(backend.read(&name("r")).await.unwrap().as_deref(), Some("x"));
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_some());
    assert_eq!(backend.list("", None, 10).await.unwrap().grants.len(), 1);
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    backend.abandon(&attempt("r", 60_000)).await.unwrap();
    backend.abandon(&attempt("never seen", 60_000)).await.unwrap();
    assert_eq!(force(backend, &take(backend, "r", 60_000).await).await, Forced::Ended);
    backend.clean_up().await.unwrap();
}

/// The server quotes whole rows in the details of some errors; none of that reaches a message.
#[tokio::test(flavor = "multi_thread")]
async fn errors_never_show_an_owner_token() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "secrets").await;
    sql(&pool, "ALTER TABLE secrets.lease ADD CHECK (holder = 'somebody')").await;
    let attempt = attempt("r", 60_000);
    let error = backend.acquire(&attempt).await.unwrap_err();
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text} {cause} {cause:?}");
        source = cause.source();
    }
    assert!(text.contains("23514"), "{text}");
    assert!(!text.contains(&attempt.owner().reveal()), "{text}");
}

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread")]
async fn edits_change_what_runs_and_stale_ones_are_loud() {
    let server = shared();
    let url = url(&server, "namespace=edited");
    assert!(PostgresBackend::connect_edited(&url, &[("no such text", "x")]).await.is_err());
    // Without the owner's comparison a stranger's renewal passes: the edit is in force.
    let edits = [(
        "WHERE l.name = $1 AND l.owner = $2 AND l.value = $4 AND NOT l.released AND l.expires_at > clock_timestamp()\n    RETURNING",
        "WHERE l.name = $1 AND $2 <> '' AND $4 > 0\n    RETURNING",
    )];
    let broken = PostgresBackend::connect_edited(&url, &edits).await.unwrap();
    let first = take(&broken, "r", 60_000).await;
    assert_eq!(broken.release(&first).await.unwrap(), Release::Released);
    take(&broken, "r", 60_000).await;
    assert!(matches!(broken.renew(&first).await.unwrap(), Renewal::Renewed(_)));
    let edits = [("m.value < EXCLUDED.value", "true")];
    let broken = PostgresDestination::connect_edited(&url, &edits).await.unwrap();
    let token = first.token().unwrap();
    broken.adopt(None, token.authority()).await.unwrap();
    broken.write(&name("r"), token, "x").await.unwrap();
    let older = lease_core::FencingToken::new(token.authority().clone(), 1, token.grant()).unwrap();
    broken.write(&name("r"), &older, "stale").await.unwrap();
}
