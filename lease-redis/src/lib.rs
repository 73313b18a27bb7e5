//! Redis leases. (docs follow)

mod backend;
mod claims;
mod config;
mod error;
mod fence;
mod guard;
mod keys;
mod link;
mod wire;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use fence::RedisFence;
pub use guard::{RedisDestination, RedisGuard};
