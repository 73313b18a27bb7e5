//! PostgreSQL leases for Leasehold.

mod backend;
mod claims;
mod clean_up;
mod config;
mod error;
mod fence;
mod guard;
mod keys;
mod pool;
mod set_up;
mod wire;

pub use backend::PostgresBackend;
pub use config::{PostgresConfig, SetUp};
pub use fence::PostgresFence;
pub use guard::{PostgresDestination, PostgresGuard};
