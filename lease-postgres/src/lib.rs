//! PostgreSQL leases for Leasehold, and PostgreSQL as a guarded destination.
//!
//! A resource is one row. Each operation is one statement, so one transaction and one round trip; it decides on the row's
//! latest version, under its lock, by the server's `clock_timestamp()`. A session, an advisory lock or an open transaction is
//! never what holds a lease, so a dead client, a pooled connection or an idle time-out neither keeps nor frees one.
//!
//! ```no_run
//! use lease_core::{LeaseBackend, LeaseExt};
//! use lease_postgres::PostgresBackend;
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = PostgresBackend::connect("postgres://worker:secret@localhost/app").await?;
//! if let Some(lease) = leases.try_acquire("invoices/2026-12", Duration::from_secs(30)).await? {
//!     // In this database: the fence. Elsewhere: lease.token() goes with each write.
//!     let pool = sqlx::PgPool::connect("postgres://worker:secret@localhost/app").await?;
//!     let mut transaction = pool.begin().await?;
//!     leases.transaction_fence().check(&mut transaction, &lease).await?;
//!     sqlx::query("UPDATE invoice SET sent = true").execute(&mut *transaction).await?;
//!     transaction.commit().await?;
//!     leases.release(&lease).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # What it claims
//!
//! | claim | declared | why |
//! |---|---|---|
//! | `fencing-token`, `mints-above-floor` | always | the value is computed under the row's lock: at least the last one + 1, the clean-up's floor + 1, the attempt's floor + 1, and the server's clock in µs |
//! | `native-fence-live-owner` | always | [`PostgresFence`] checks owner and time, and keeps the row from the next grant until the transaction ends |
//! | `native-fence-mark` | no | the fence above is stronger |
//! | `cross-process` | always | all state is in the server |
//! | `list-by-prefix` | always | a range of the primary key, in byte order |
//! | `idle-names-forgotten` | always | clean-up deletes rows that were idle for `idle_retention_ms`, after a floor keeps their values |
//! | `lease-survives-restart`, `token-survives-restart`, `mark-survives-restart` | by settings | `fsync` and `full_page_writes` are on, and no table is UNLOGGED. `synchronous_commit` is set to `on` by each session, whatever the default, and in the caller's own session by the guard for its transaction |
//! | `refusal-uncommittable`, `mark-rolls-back` | always | a refusal is an SQL error inside the transaction; the mark is a row of the same transaction |
//!
//! The settings are read on each new connection. A standby or read-only server is refused.
//!
//! # What orders the tokens
//!
//! The authority is `postgres:INCARNATION:EPOCH`. The incarnation is drawn when the tables are created, and drawn anew when
//! `meta` was emptied, or one of `meta` and `lease` was dropped. What can make values go back **unseen**, since a store can't notice its own rollback: a restore
//! from a backup, the promotion of a standby that lagged behind (set `synchronous_standby_names`, so that `on` waits for it), and
//! somebody's changing the tables by hand. After one of these raise `epoch` and adopt the new authority at each destination. A server clock that is set
//! back does not: the last value of each name is in its row, and those of forgotten names are below the floor. It makes leases last longer, though,
//! and one that is set forward ends them early; the tokens stay in order.
//!
//! With synchronous replication an administrator's `pg_cancel_backend` on a grant that waits for the standby turns the wait into a
//! success with a warning, which the client library drops. This crate never sends a cancel; end such sessions with `pg_terminate_backend`.
//!
//! # Ending a grant by force
//!
//! `force_release` is one statement as every operation, and needs no other privileges. It remembers the broken grant's attempt as `abandon` does: for two granted
//! TTLs, at least ten seconds. It does not wait for a transaction that the holder has fenced: that one can still commit, and until it has ended
//! nobody is granted the resource. A transaction that is paused for good ends by its idle limit, or by `pg_terminate_backend`. A fence that is checked after the
//! order refuses, unless its transaction is at REPEATABLE READ or SERIALIZABLE and has an older snapshot, and nobody was granted the resource since.
//!
//! # The tables
//!
//! Tables without a key or a column that this release needs are refused at connect and left as they are. Those from before `force_release` lack a column of `lease`: stop
//! every older client and run `ALTER TABLE leasehold.lease ADD COLUMN forced boolean NOT NULL DEFAULT false`, or choose another namespace.
//!
//! # Without a token
//!
//! Where this database owns the state, three alternatives do without a fencing token ([compared](lease_core::plain)): [`PostgresFence`], a
//! transaction that holds the lease's row; [`PostgresVersions`], a write that depends on what was read; [`PostgresOnce`], an effect at most once per
//! key. They work in your own transaction, on tables of their own beside the others.
//!
//! # URL
//!
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE` (or `postgresql://`), with the common parameters and
//!
//! | parameter | values | default |
//! |---|---|---|
//! | `sslmode` | `disable`, `allow`, `prefer`, `require`, `verify-ca`, `verify-full` | `prefer` with the feature `tls-rustls`, else `disable`. Only the two `verify-…` check the certificate |
//! | `sslrootcert` | file with the authority's certificates | the system's |
//! | `max_connections` | 1 to 1,000 | 8 |
//! | `set_up` | `if_missing`, `never` | `if_missing` |
//!
//! The namespace is the schema. Each call ends within `call_timeout_ms`, waiting for a connection included; the server gives up a lock after
//! a quarter of that and a statement after half, which is a definite answer without effect. This crate has connections of its own, never more
//! than `max_connections`, and needs no second one while it uses one.
//!
//! **Poolers**: connect directly, or through a pooler in session mode that passes the startup parameter `options` on. Transaction
//! pooling breaks prepared statements of every client that uses them; it is refused at connect where the pooler drops the session's settings.
//!
//! # Accounts
//!
//! By default the first client creates schema, tables and one function, for which its account needs `CREATE` on the database (or on the
//! schema). To run with less, run [`PostgresBackend::migration`] and [`PostgresDestination::migration`] as their owner, and give the
//! account of the workers [`RUNTIME_GRANTS`], and that of the programs which write at the destination [`WRITER_GRANTS`]. Whoever can
//! read the table `lease` sees owner tokens, and could renew and release with them.
//!
//! `adopt` changes whom the destination trusts, so writers lack it: it needs `SELECT, INSERT, UPDATE` on the table `trusted`.

mod backend;
mod claims;
mod clean_up;
mod config;
mod error;
mod fence;
mod force;
mod guard;
mod keys;
mod look;
mod once;
mod opening;
mod plain;
mod pool;
mod set_up;
mod version;
mod wire;

pub use backend::PostgresBackend;
pub use config::{PostgresConfig, SetUp};
pub use fence::PostgresFence;
pub use guard::{PostgresDestination, PostgresGuard};
pub use once::{ONCE_GRANTS, PostgresOnce};
pub use version::{PostgresVersions, VERSION_GRANTS};

/// What the account `ACCOUNT` of a worker needs in the namespace `leasehold`, and no more. `DELETE` is for clean-up, on `meta` and
/// `register` only for [`PostgresBackend::purge`].
pub const RUNTIME_GRANTS: &[&str] = &[
    "GRANT USAGE ON SCHEMA leasehold TO ACCOUNT",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.meta, leasehold.lease, leasehold.register TO ACCOUNT",
];

/// What the account `ACCOUNT` of a writer at the destination needs in the namespace `leasehold`, and no more: it can neither delete marks nor
/// change the trusted authority. It can update marks, so the guard is right for writers that use it, and none against a hostile one.
/// `UPDATE (id)` is for the row lock that `adopt` waits for.
pub const WRITER_GRANTS: &[&str] = &[
    "GRANT USAGE ON SCHEMA leasehold TO ACCOUNT",
    "GRANT SELECT, UPDATE (id) ON leasehold.trusted TO ACCOUNT",
    "GRANT SELECT, INSERT, UPDATE ON leasehold.mark, leasehold.guarded TO ACCOUNT",
];
