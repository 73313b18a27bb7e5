//! Redis leases for Leasehold: one Lua script for each operation, so one request and one atomic step. Also a guarded destination.
//!
//! ```no_run
//! use lease_core::{GuardedDestination, LeaseBackend, LeaseExt};
//! use lease_redis::{RedisBackend, RedisDestination};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = RedisBackend::connect("redis://worker:secret@locks.internal:6379/0?namespace=billing").await?;
//! let data = RedisDestination::connect("redis://worker:secret@data.internal:6379/0?namespace=billing").await?;
//! if let Some(lease) = leases.try_acquire("invoices/2026-12", Duration::from_secs(30)).await? {
//!     let token = lease.token().ok_or("Redis always mints a token")?;
//!     data.seal(lease.resource(), token).await?; // before reading: no older write can land from here on
//!     data.write(lease.resource(), token, "paid").await?; // refused, should a newer holder have been here
//!     let _how_it_ended = leases.release(&lease).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # What it claims
//!
//! Claims follow the server's settings, which are read with every new connection. A setting that the account may not read is not claimed.
//!
//! | claim | when | why |
//! |---|---|---|
//! | `fencing-token`, `mints-above-floor`, `cross-process` | `maxmemory-policy noeviction` | any other policy may remove a live record when memory runs out |
//! | `native-fence-live-owner` | always | the fence looks at the record in the same script as the write; no record, no write |
//! | `idle-names-forgotten` | always | records expire by themselves, and the server's clock is the lower bound of the next value |
//! | `lease-survives-restart`, `token-survives-restart`, destination: `mark-survives-restart` | `noeviction`, `appendonly yes`, `appendfsync always`, `no-appendfsync-on-rewrite no`, no replicas | otherwise the latest writes may be lost with the process, the machine, or a failover |
//! | destination: `refusal-uncommittable` | always | a refused script ends before the caller's part begins |
//! | `list-by-prefix` | never | Redis would have to scan its whole key space |
//! | destination: `mark-rolls-back` | never | a script that fails half-way is not rolled back: the mark stays |
//!
//! `CONFIG SET` on a running server is noticed with the next connection, not before. Redis Cluster and replicas are refused at connect: the
//! namespace's incarnation would lie in another slot than the leases, and a replica does not decide. Sentinel is not followed; behind a
//! name or an address that moves with the primary, a connection that is answered `READONLY` is given up for a new one.
//!
//! Needs Redis 6 or newer; tested on 7.0. When the server's memory runs out it refuses renewals and releases too, definitely and without effect:
//! leases then end with their TTL.
//!
//! # What orders the tokens
//!
//! The value of a grant is the largest of: the last value of its name plus one, and the server's wall clock in microseconds; at most 2^53, which
//! is the year 2255. The last value is kept for `idle_retention_ms` after the last use (and after the value's own time, should it be ahead of the clock).
//!
//! | what happens | authority | values |
//! |---|---|---|
//! | release, expiry, clean-up of an idle name, script flush, restart with `appendfsync always` | stays | grow |
//! | `FLUSHALL`, restart without persistence, `purge`, removal of the key `NAMESPACE:incarnation` | **changes**: adopt the new one at the destinations | not comparable |
//! | restart or failover that lost the latest writes | stays | grow, as long as the clock moved on and values were not ahead of it |
//! | server clock set back by more than `idle_retention_ms` while a name was forgotten | stays | **may go back unseen** |
//! | restore of an old backup together with a clock set back | stays | **may go back unseen**; raise `epoch` after any restore |
//!
//! A floor that is given to an acquire ([`Attempt::above`](lease_core::Attempt::above)) is one more lower bound, in the same step: above a
//! destination's mark no value comes again, whatever this server has lost and whatever its clock says.
//!
//! # Waiting for replicas
//!
//! Redis answers before its replicas have what was written, so a failover can lose a grant that was answered, and the next worker is granted the
//! resource beside its holder. With `wait_replicas=N` a grant counts only when `N` replicas have confirmed it: `WAIT` follows the script on the
//! same connection, for at most half of what is left of the call's time. With fewer confirmations the grant is ended at once, as an abandoned attempt
//! is, and the error is [`Unconfirmed`](lease_core::LeaseError::Unconfirmed), which says how many there were. How many confirmed a grant is in
//! [`Lease::confirmed_by`](lease_core::Lease::confirmed_by), and in the event `granted`. Needs `+wait`. Up to 16 acquires wait at the same time, each on
//! a connection of its own, so that nothing else waits behind them.
//!
//! **What it does not cure.** Nothing makes a failover promote one of the replicas that confirmed: ask for all that could be promoted. What was not
//! confirmed stays on the primary until it is ended there, and a replica that gets it late may keep it until its TTL ends. Renewals and releases
//! are not waited for: a renewal that had no confirmation has been done all the same, and to refuse it would only end a lease that is held. So
//! after a failover the new primary may end a grant before its holder's deadline, by as much as the latest renewals had extended it, and a grant
//! that was released may still be held. A replica that confirmed has the write in memory, not on its disk. An old primary that goes on
//! answers as before; only `wait_replicas` keeps it from making grants, once its replicas are gone. **Claims do not rise by it**: over a failover only
//! fencing protects the data.
//!
//! # Time
//!
//! Redis knows only the wall clock. A step forward on the server ends grants early: the holder's own deadline then comes too late, and only
//! fencing protects the data. A step back makes them last longer. Holders count on their own boot clock, never on wall clocks.
//!
//! # URL
//!
//! `redis://USER:PASSWORD@HOST:PORT/DATABASE` uses the client crate `redis` (feature `client-redis`), `redis+fred://` the client crate `fred` (feature
//! `client-fred`); `rediss://` and `rediss+fred://` the same with TLS (feature `tls-rustls`), always verified. Both run the same scripts on the same keys:
//! one renews, releases and guards what the other acquired. Neither ever sends a command twice.
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `namespace` | first part of every key | `leasehold` |
//! | `call_timeout_ms` | limit of one call | 2000 |
//! | `connect_timeout_ms` | limit of making a connection | 5000 |
//! | `epoch` | raise it after a restore: another authority | 0 |
//! | `idle_retention_ms` | how long an idle name is remembered | 24 hours |
//! | `wait_replicas` | how many replicas have to confirm each grant, 0 to 100; for leases only | 0 |
//! | `tls_ca` | file with the certificates (PEM) that TLS trusts | those of the system |
//!
//! # Least-privileged account
//!
//! ```text
//! ACL SETUSER worker on >PASSWORD resetkeys ~leasehold:* resetchannels -@all +eval +evalsha +get +mget +set +time +hget +hset +info +config|get +ping
//! ```
//!
//! Write the namespace in place of `leasehold` (and before Redis 7 `+config` in place of `+config|get`). `+info` and `+config|get` are for reading the settings; a database other than
//! 0 needs `+select` besides, `wait_replicas` needs `+wait`, `purge` needs `+scan +unlink`. An operator who ends grants by force needs nothing more. Whatever the caller's own fenced or guarded scripts use comes on top.
//!
//! # Keys
//!
//! `NAMESPACE:{NAME}:lease` with `:spent:OWNER` (tombstones) and `:register` (the fenced register), `NAMESPACE:incarnation`; as a destination
//! `NAMESPACE:{NAME}:marks` and `:guarded`, `NAMESPACE:trusted`. `NAME` is percent-encoded. Owner tokens are in records, keys and
//! arguments of this server: who may read there, or use `MONITOR`, can renew and release. A tombstone that `force_release` leaves lies under a key
//! that its script makes up from the record, beside it in the same hash slot.

#![cfg_attr(
    not(any(feature = "client-redis", feature = "client-fred")),
    expect(dead_code, reason = "without a client nothing is ever sent")
)]

mod acquire;
mod backend;
mod claims;
mod config;
mod error;
mod fence;
mod force;
mod guard;
mod keys;
mod link;
mod purge;
mod replicas;
mod wire;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use fence::RedisFence;
pub use guard::{RedisDestination, RedisGuard};
