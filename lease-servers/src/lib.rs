//! Private servers for tests: Redis, etcd and PostgreSQL, started from installed binaries.
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
