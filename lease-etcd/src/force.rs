//! Ending somebody else's grant, on an operator's order.

use crate::EtcdBackend;
use crate::backend::{marker_ttl, unsettled};
use crate::sabotage::Flaw;
use crate::wire::{Look, Present, Record, foreign};
use lease_core::{Effect, ForceRelease, Forced, LeaseError, Operation};

impl EtcdBackend {
    /// The record is read before the transaction, since it says under which key and for how long the marker has to lie; whether it is
    /// still the live grant's is the transaction's decision.
    pub(crate) async fn force(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        let (operation, resource) = (Operation::ForceRelease, order.resource());
        let key = self.wire.keys.grant(resource).into_bytes();
        let got = self.store.get(operation, key, etcd_client::GetOptions::new()).await?;
        let record = match self.named(order, Present::read(got.kvs().first()))? {
            Ok(record) => record,
            Err(answer) => return Ok(answer),
        };
        let subject = record.subject(resource);
        let marker = self.ensure_marker(operation, subject, marker_ttl(record.ttl)).await?;
        let txn = self.wire.force(subject, order.value(), marker);
        let Some(reply) = self.store.txn(operation, txn).await? else {
            return Err(unsettled(operation, Effect::None));
        };
        if reply.succeeded() {
            // The marker stands; what follows only leaves less behind.
            self.revoke_left(operation, subject, &reply).await;
            return Ok(Forced::Ended);
        }
        match self.named(order, Look::read(&reply).present)? {
            Err(answer) => Ok(answer),
            // With that value there, the transaction would have succeeded.
            Ok(_) => Err(unsettled(operation, Effect::None)),
        }
    }

    /// The record of the grant that the order names; else what there is to answer.
    fn named(&self, order: &ForceRelease, present: Present) -> Result<Result<Record, Forced>, LeaseError> {
        match present {
            Present::Nothing => Ok(Err(Forced::NotHeld)),
            Present::Foreign => Err(foreign(order.resource())),
            Present::Record(record)
                if record.value == order.value() || self.wire.sabotage.has(Flaw::ForceIgnoresValue) =>
            {
                Ok(Ok(record))
            }
            Present::Record(record) => Ok(Err(Forced::OtherGrant { value: record.value })),
        }
    }
}
