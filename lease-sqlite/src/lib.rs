//! Leases in a SQLite file: many processes on one machine, no server. The same file, or another one, can be a guarded destination.
//!
//! ```
//! use lease_core::LeaseExt;
//! use lease_sqlite::SqliteBackend;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite://{}/leases.db", folder.path().display());
//! // let url = "sqlite:///var/lib/app/leases.db";
//! let backend = SqliteBackend::connect(&url).await?;
//! let lease = backend.try_acquire("invoices/2026-12", Duration::from_secs(10)).await?.expect("nobody holds it");
//!
//! // The holder's own data, in the same file: nobody newer can be granted anything before this commits.
//! let mut work = backend.begin_fenced(&lease).await?;
//! sqlx::raw_sql("CREATE TABLE invoice (number INTEGER); INSERT INTO invoice VALUES (1)").execute(&mut *work).await?;
//! work.commit().await?;
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! Each operation is one transaction: `BEGIN IMMEDIATE` takes the file's one write lock, then the time is read, then one text of SQL decides,
//! writes, looks at the result and commits. The journal is a WAL with `synchronous=FULL`.
//!
//! **The clock is the machine's boot clock**, not the wall clock. A record keeps the boot id and the boot-time instant at which the grant ends. A
//! record of another boot is an expired one: whoever held it went down with the machine. Setting the wall clock changes no lease. Where the
//! system tells no boot id (no `/proc`, or another system than Linux), connecting is refused: give a [clock](lease_core::Clock) of your own there.
//!
//! **All processes must be on one machine**, and see the same boot clock. A file on a network file system is refused where the system tells its
//! kind (Linux). A container with a time namespace of its own (`unshare --time`) must not share the file with processes outside, and
//! neither may two virtual machines through a shared folder. A pause of the whole virtual machine from outside can stop the boot
//! clock together with every worker.
//!
//! **A stopped process can stop all writers.** SQLite has one write lock and no limit on an idle transaction. A worker that is stopped (`SIGSTOP`, a
//! debugger, a frozen container) inside a transaction holds up every acquire, renewal and release on the file until it goes on or
//! is killed. Other calls then end in time with an error of no effect. This crate's own transactions wait for nothing but the
//! database; keep those of [`begin_fenced`](SqliteBackend::begin_fenced) and [`SqliteGuard::begin`] short too. What reads goes on.
//!
//! # What it claims
//!
//! | claim | | why |
//! |---|---|---|
//! | `fencing-token`, `mints-above-floor` | yes | minted in the transaction that makes the grant |
//! | `native-fence-live-owner` | yes | the grant is checked in the transaction that writes, under the write lock |
//! | `native-fence-mark` | no | the live-owner fence is the stronger one |
//! | `cross-process` | yes | on one machine |
//! | `list-by-prefix` | yes | a range of the primary key |
//! | `idle-names-forgotten` | yes | see below |
//! | `lease-survives-restart`, `token-survives-restart`, `mark-survives-restart` | if the connection reports `wal` and `synchronous` of at least FULL | the processes' restart, not the machine's |
//! | `refusal-uncommittable`, `mark-rolls-back` | yes | [`SqliteGuard::begin`] owns the connection: see there |
//!
//! # Fencing values
//!
//! `max(last value of this name + 1, floor + 1, wall clock in µs)`. The record of a name stays for `idle_retention_ms` after its last use. Clean-up
//! raises the floor of the whole namespace in the same transaction that removes a record, so no value is lost. It runs by itself, a page of
//! names after every 64 grants of an instance, or of many short-lived ones on average. Records that carry a fenced register's data stay.
//!
//! | event | authority | values |
//! |---|---|---|
//! | processes or machine restart, power cut | same | grow |
//! | file deleted, tables dropped, `purge` | **new**, drawn at random | begin at the wall clock |
//! | file restored from a backup, or copied | same: SQLite can't notice. **Raise `epoch`** and adopt the new authority | may repeat, if the wall clock was set back too, or in both copies |
//! | wall clock set back | same | grow: the last value counts |
//! | damaged file | refused | |
//!
//! A file that is deleted or replaced while it is open is noticed at the next call, which fails; its leases are gone with it. So is a `-wal` or
//! `-shm` that was deleted alone (never do that): the process has to be restarted then. Don't reach one file through hard links: SQLite's
//! journal goes by name.
//!
//! # Ending a grant by force
//!
//! `force_release` is one transaction as every operation. It remembers the broken grant's attempt as `abandon` does: for two granted TTLs, at least ten
//! seconds. A holder inside a fenced transaction has the write lock, so the order waits for it like everybody, and says that it had no effect
//! when that takes too long. A holder that is stopped there has to be killed; then its transaction is gone, and the order goes through.
//!
//! # The tables
//!
//! They must have the very shape that this release creates. A file with others, such as those from before `force_release`, which lack the column
//! `forced`, is refused when it is opened, with what to do, and left as it is.
//!
//! # Without a token
//!
//! Where the file owns the state, three alternatives do without a fencing token ([compared](lease_core::plain)): a transaction that holds the lease's row
//! ([`begin_fenced`](SqliteBackend::begin_fenced)); [`SqliteVersions`], a write that depends on what was read; [`SqliteOnce`], an effect at most once per
//! key. The latter two work in your own transaction, on tables of their own beside the others.
//!
//! # URL
//!
//! `sqlite:relative.db` or `sqlite:///absolute/file.db`, `%XX` for bytes that a URL can't have; then `?` and:
//!
//! | parameter | default | |
//! |---|---|---|
//! | `namespace` | `leasehold` | begins the tables' names; not `sqlite` or `sqlite_…` |
//! | `call_timeout_ms` | 2000 | how long a call may take; three quarters of it may go to waiting for the write lock |
//! | `connect_timeout_ms` | 5000 | |
//! | `epoch` | 0 | raise it after a restore |
//! | `idle_retention_ms` | 86400000 | |
//!
//! `sqlite::memory:` is refused: such a database belongs to one connection. Use `memory:` of `lease-core`.
//!
//! # The least-privileged account
//!
//! SQLite has no accounts. The user that runs the worker needs read and write permission on the file, on `FILE-wal` and `FILE-shm` beside it, and
//! on their directory; nothing else. Whoever can read the file can read the owner tokens in it, so keep it from others: mode `0600`,
//! or `0660` for a group of workers.

mod backend;
mod boot;
mod claims;
mod config;
mod connection;
mod error;
mod fence;
mod force;
mod guard;
mod guard_wire;
mod keys;
mod mounts;
mod once;
mod plain;
mod schema;
mod step;
mod sweep;
mod transaction;
mod version;
mod wire;

pub use backend::SqliteBackend;
pub use config::SqliteConfig;
pub use fence::FencedTransaction;
pub use guard::{GuardedTransaction, SqliteDestination, SqliteGuard};
pub use once::SqliteOnce;
pub use version::SqliteVersions;
