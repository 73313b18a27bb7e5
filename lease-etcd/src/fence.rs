//! The native fence: a condition for transactions in the lease's own etcd.

use crate::EtcdBackend;
use etcd_client::Compare;
use lease_core::{FenceError, FencedRegister, Lease, LeaseError, Operation, ResourceName};

impl EtcdBackend {
    /// Conditions for the caller's own etcd transaction: they hold exactly while this grant is live. A transaction with them commits
    /// nothing from the moment the grant has ended, whether or not another one was made since.
    ///
    /// Put them into [`Txn::when`](etcd_client::Txn::when), with conditions of your own if you like, and take `succeeded() == false` for
    /// what it may be: the lease is lost. They guard this etcd cluster's data only.
    #[must_use]
    pub fn compares(&self, lease: &Lease) -> Vec<Compare> {
        self.wire.fence(lease)
    }
}

#[async_trait::async_trait]
impl FencedRegister for EtcdBackend {
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError> {
        let operation = Operation::FencedWrite;
        let txn = self.wire.fenced_write(lease, value);
        if self.within(operation, self.store.plain_txn(operation, txn)).await?.succeeded() {
            return Ok(());
        }
        Err(FenceError::Refused { resource: lease.resource().clone() })
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError> {
        let operation = Operation::Read;
        let key = self.wire.keys.register(resource).into_bytes();
        let reading = self.store.get(operation, key, etcd_client::GetOptions::new());
        let got = self.within(operation, reading).await?;
        Ok(crate::wire::first_text(&got))
    }
}
