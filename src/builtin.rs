//! The schemes of this library: which feature brings each, and what it connects to. One table, so that the list in an error and what
//! can be connected to are the same.

use crate::Registry;
use crate::memory_url::MemoryStores;
#[cfg(any(feature = "sqlite", feature = "redis", feature = "redis-fred", feature = "etcd", feature = "postgres"))]
use crate::{GuardedDestination, LeaseBackend};
use std::sync::Arc;

macro_rules! schemes {
    ($($scheme:literal needs $($feature:literal)+ => $backend:ty, $destination:ty;)+) => {
        /// Each scheme with its features, and whether they are on.
        const SCHEMES: &[(&str, &[(&str, bool)])] =
            &[$(($scheme, &[$(($feature, cfg!(feature = $feature))),+])),+];

        /// Adds the schemes that are compiled in.
        pub(crate) fn add_to(registry: &mut Registry, memory: MemoryStores) {
            add_memory(registry, memory);
            $(
                #[cfg(all($(feature = $feature),+))]
                {
                    registry.insert_backend($scheme, |url| async move {
                        let backend: Arc<dyn LeaseBackend> = Arc::new(<$backend>::connect(&url).await?);
                        Ok(backend)
                    });
                    registry.insert_destination($scheme, |url| async move {
                        let destination: Arc<dyn GuardedDestination> = Arc::new(<$destination>::connect(&url).await?);
                        Ok(destination)
                    });
                }
            )+
        }
    };
}

schemes! {
    "sqlite" needs "sqlite" => lease_sqlite::SqliteBackend, lease_sqlite::SqliteDestination;
    "redis" needs "redis" => lease_redis::RedisBackend, lease_redis::RedisDestination;
    "rediss" needs "redis" "tls-rustls" => lease_redis::RedisBackend, lease_redis::RedisDestination;
    "redis+fred" needs "redis-fred" => lease_redis::RedisBackend, lease_redis::RedisDestination;
    "rediss+fred" needs "redis-fred" "tls-rustls" => lease_redis::RedisBackend, lease_redis::RedisDestination;
    "etcd" needs "etcd" => lease_etcd::EtcdBackend, lease_etcd::EtcdDestination;
    "etcds" needs "etcd" "tls-rustls" => lease_etcd::EtcdBackend, lease_etcd::EtcdDestination;
    "postgres" needs "postgres" => lease_postgres::PostgresBackend, lease_postgres::PostgresDestination;
    "postgresql" needs "postgres" => lease_postgres::PostgresBackend, lease_postgres::PostgresDestination;
}

const MEMORY: &str = "memory";

fn add_memory(registry: &mut Registry, stores: MemoryStores) {
    let stores = Arc::new(stores);
    let for_destinations = Arc::clone(&stores);
    registry.insert_backend(MEMORY, move |url| {
        let backend = stores.backend(&url);
        async move { backend }
    });
    registry.insert_destination(MEMORY, move |url| {
        let destination = for_destinations.destination(&url);
        async move { destination }
    });
}

/// Whether a scheme is this library's own, compiled in or not.
pub(crate) fn is_reserved(scheme: &str) -> bool {
    scheme == MEMORY || SCHEMES.iter().any(|(name, _)| *name == scheme)
}

/// What to do about a scheme of this library that is compiled out; `None` for any other.
pub(crate) fn missing_features(scheme: &str) -> Option<String> {
    let (_, features) = SCHEMES.iter().find(|(name, _)| *name == scheme)?;
    let missing: Vec<_> = features.iter().filter(|(_, on)| !on).map(|(feature, _)| format!("`{feature}`")).collect();
    let noun = match missing.len() {
        0 => return None,
        1 => "feature",
        _ => "features",
    };
    Some(format!("it is compiled out; build `leasehold` with the {noun} {}", missing.join(" and ")))
}
