//! SQLite leases.

mod backend;
mod claims;
mod config;
mod connection;
mod error;
mod fence;
mod guard;
mod guard_wire;
mod keys;
mod schema;
mod transaction;
mod wire;

pub use backend::SqliteBackend;
pub use config::SqliteConfig;
pub use fence::FencedTransaction;
pub use guard::{GuardedTransaction, SqliteDestination, SqliteGuard};
