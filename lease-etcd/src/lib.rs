//! etcd leases for Leasehold.
mod acquire;
mod backend;
mod claims;
mod client;
mod config;
mod error;
mod fence;
mod guard;
mod keys;
mod look;
mod sabotage;
mod wire;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
pub use guard::{EtcdDestination, EtcdGuard};
