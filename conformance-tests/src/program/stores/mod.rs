//! What the suite does to each kind of store besides what its crate does: careless writes, by the store's own client, and the guard kit in the
//! caller's own transaction or script. One file for each kind.

#![cfg_attr(
    not(any(feature = "sqlite", feature = "redis", feature = "redis-fred", feature = "etcd", feature = "postgres")),
    expect(clippy::unused_async, unused_variables, reason = "without any store there is nothing to wait for")
)]

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "redis", feature = "redis-fred"))]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(any(feature = "sqlite", feature = "redis", feature = "redis-fred", feature = "etcd", feature = "postgres"))]
mod raw;

use super::Failure;
use crate::subject::{PlainWriter, ServerControl, TestDestination, Unfenced};
use lease_core::{GuardError, LeaseError, ResourceName};
use std::sync::Arc;

/// Opens the destination at `url`.
pub(crate) async fn destination(url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(sqlite::Destination::open(url).await?)),
        #[cfg(any(feature = "redis", feature = "redis-fred"))]
        "redis" | "rediss" | "redis+fred" | "rediss+fred" => Ok(Arc::new(redis::Destination::open(url).await?)),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Arc::new(etcd::Destination::open(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(postgres::Destination::open(url).await?)),
        other => Err(compiled_out(other).into()),
    }
}

/// The data in the store at `url` that are written without a token; `None` where the store's crate has no helpers for that.
pub(crate) fn unfenced(url: &str) -> Option<Arc<dyn Unfenced>> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => Some(Arc::new(sqlite::Tokenless::new(url))),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Some(Arc::new(postgres::Tokenless::new(url))),
        _ => None,
    }
}

/// Opens what writes the register of the lease store at `url` behind its fence.
pub(crate) async fn plain_writer(url: &str) -> Result<Arc<dyn PlainWriter>, LeaseError> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(sqlite::Plain::new(url)?)),
        #[cfg(any(feature = "redis", feature = "redis-fred"))]
        "redis" | "rediss" | "redis+fred" | "rediss+fred" => Ok(Arc::new(redis::Plain::open(url).await?)),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Arc::new(etcd::Plain::open(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(postgres::Plain::new(url)?)),
        other => Err(compiled_out(other)),
    }
}

/// Deletes the record of a resource's lease in the lease store at `url`, as an administrator would.
pub(crate) async fn delete_record(url: &str, resource: &ResourceName) -> Result<(), LeaseError> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::Plain::new(url)?.delete_record(resource).await,
        #[cfg(any(feature = "redis", feature = "redis-fred"))]
        "redis" | "rediss" | "redis+fred" | "rediss+fred" => {
            redis::Plain::open(url).await?.delete_record(resource).await
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => etcd::Plain::open(url).await?.delete_record(resource).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres::Plain::new(url)?.delete_record(resource).await,
        other => Err(compiled_out(other)),
    }
}

/// Removes everything that the lease namespace of `url` has in its store.
pub(crate) async fn purge_leases(url: &str) -> Result<(), LeaseError> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => lease_sqlite::SqliteBackend::connect(url).await?.purge().await,
        #[cfg(any(feature = "redis", feature = "redis-fred"))]
        "redis" | "rediss" | "redis+fred" | "rediss+fred" => {
            lease_redis::RedisBackend::connect(url).await?.purge().await
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => lease_etcd::EtcdBackend::connect(url).await?.purge().await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => lease_postgres::PostgresBackend::connect(url).await?.purge().await,
        other => Err(compiled_out(other)),
    }
}

/// Removes everything that the destination namespace of `url` has in its store.
pub(crate) async fn purge_destination(url: &str) -> Result<(), LeaseError> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            lease_sqlite::SqliteDestination::connect(url).await?.purge().await?;
            sqlite::Tokenless::new(url).purge().await
        }
        #[cfg(any(feature = "redis", feature = "redis-fred"))]
        "redis" | "rediss" | "redis+fred" | "rediss+fred" => {
            lease_redis::RedisDestination::connect(url).await?.purge().await
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => lease_etcd::EtcdDestination::connect(url).await?.purge().await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            // The schema goes with the last of its tables.
            postgres::Tokenless::new(url).purge().await?;
            lease_postgres::PostgresDestination::connect(url).await?.purge().await
        }
        other => Err(compiled_out(other)),
    }
}

/// The hands on a store that is a file.
#[cfg(feature = "sqlite")]
pub(crate) fn file_control(url: &str) -> Result<Arc<dyn ServerControl>, String> {
    sqlite::FileControl::new(url).map(|control| -> Arc<dyn ServerControl> { Arc::new(control) })
}

/// The hands on a store that is a file.
#[cfg(not(feature = "sqlite"))]
pub(crate) fn file_control(_url: &str) -> Result<Arc<dyn ServerControl>, String> {
    Err("no backend on files is compiled in".to_owned())
}

/// Writes to the file of `url` without committing, says so, and waits to be killed.
pub(crate) fn write_and_wait(url: &str) -> Result<u8, Failure> {
    #[cfg(feature = "sqlite")]
    {
        let failed = |reason: String| Failure::CouldNotRun(format!("write-and-wait: {reason}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(e.to_string()))?;
        runtime.block_on(sqlite::write_and_wait(url)).map_err(failed)?;
        Ok(0)
    }
    #[cfg(not(feature = "sqlite"))]
    Err(Failure::Usage(format!("{} is no file of a backend that is compiled in", lease_core::redact_url(url))))
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn compiled_out(scheme: &str) -> LeaseError {
    LeaseError::UnknownScheme {
        scheme: scheme.to_owned(),
        advice: format!(
            "it is compiled out, or cannot be reached by URL; `{} list` says what is there",
            super::itself::command()
        ),
    }
}
