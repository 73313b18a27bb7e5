//! What a worker process has: everything by URL.

use super::Failure;
use super::stores;
use crate::subject::{Opener, PlainWriter, TestDestination};
use lease_core::{GuardError, LeaseBackend, LeaseError};
use std::sync::Arc;

/// Opens this workspace's backends and destinations by URL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByUrl;

#[async_trait::async_trait]
impl Opener for ByUrl {
    async fn backend(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        leasehold::connect(url).await
    }

    async fn plain_writer(&self, url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        // What is in memory nobody writes past its interface.
        if url.starts_with("memory:") {
            return Ok(None);
        }
        stores::plain_writer(url).await.map(Some)
    }

    async fn destination(&self, url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        stores::destination(url).await
    }
}

/// Is a worker until standard input ends.
pub(crate) fn work() -> Result<u8, Failure> {
    let failed = |reason: String| Failure::CouldNotRun(format!("worker: {reason}"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(e.to_string()))?;
    runtime.block_on(crate::worker::run_stdio(Arc::new(ByUrl))).map_err(failed)?;
    Ok(0)
}
