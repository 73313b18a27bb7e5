//! Private servers for tests: Redis, etcd and PostgreSQL, started from installed binaries, and faults of them.
//!
//! Each one has its own temporary folder, its own loopback port and its own process, ends with its handle (on a panic
//! too), and ends when this process is killed; its folder goes with it. Nothing here knows of leases.
//!
//! ```no_run
//! let mut server = lease_servers::redis(&lease_servers::RedisSetup::default())?;
//! println!("{} {}", server.version(), server.url());
//! server.kill();
//! server.restart()?; // the same folder, the same port
//! # Ok::<(), lease_servers::ServerError>(())
//! ```
//!
//! | set-up | one server of it | faults |
//! |---|---|---|
//! | [`redis()`], [`etcd()`], [`postgres()`] | [`Server`] | pause, kill, restart; [`Backup`]; a disk and a clock of its own, below |
//! | [`RedisPair`], [`PostgresPair`] | `primary_mut`, `replica_mut`, `standby_mut` | a cut link, promotion |
//! | [`RedisSentinel`] | of its `pair_mut` | a killed and an isolated primary |
//! | [`EtcdCluster`] | `members_mut` | loss of members and of the majority, an isolated member, a moved leader |
//!
//! Between a client and any of them stands a [`Proxy`]. As root, a server can be put on a disk of its own, whose power is cut, that is full or
//! that stalls ([`Server::put_on_disk`]); with a C compiler, on a wall clock of its own, which jumps ([`Server::put_on_clock`]). Each fault
//! returns when it is seen to have happened, or with an error that says what was seen instead.
//!
//! ```no_run
//! use lease_servers::{RedisPair, RedisSetup, redis_command};
//!
//! let mut pair = RedisPair::start(&RedisSetup::default())?;
//! pair.cut_link()?;
//! redis_command(pair.primary(), &["SET", "k", "v"])?; // it answers, and nobody else knows
//! pair.primary_mut().kill();
//! pair.promote()?;
//! assert_eq!(redis_command(pair.replica(), &["GET", "k"])?, "");
//! # Ok::<(), lease_servers::ServerError>(())
//! ```

mod backup;
mod binaries;
mod error;
mod etcd;
mod postgres;
mod process;
mod program;
mod proxy;
mod redis;
mod server;
mod wait;

pub use backup::Backup;
pub use binaries::{Kind, missing_package};
pub use error::ServerError;
pub use etcd::{EtcdCluster, EtcdSetup, EtcdStatus, etcd, etcd_call, etcd_status};
pub use postgres::{PostgresPair, PostgresSetup, Replication, postgres, postgres_query};
pub use process::{process_state, resume_process, stop_process};
pub use proxy::{Direction, Mode, Once, Proxy};
pub use redis::{RedisPair, RedisSentinel, RedisSetup, redis, redis_command};
pub use server::Server;
