//! A lease backend with nothing that orders grants: an honest lock without fencing.

use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{
    Acquisition, Attempt, Claim, Claims, CleanUp, Description, Fence, ForceRelease, Forced, HandOver, Inspection,
    Lease, LeaseBackend, LeaseError, Limits, NamePage, Operation, Release, Renewal, ResourceName, SharedClock,
};

#[derive(Clone, Debug)]
pub struct Tokenless(MemoryBackend);

impl Tokenless {
    pub fn on(store: &MemoryStore) -> Self {
        Self(MemoryBackend::on(store.clone()))
    }
}

#[async_trait::async_trait]
impl LeaseBackend for Tokenless {
    fn description(&self) -> Description {
        Description::new("tokenless", "1".into(), "tokenless:".into())
    }

    fn claims(&self) -> Claims {
        Claims::of(&[Claim::ListByPrefix])
    }

    fn limits(&self) -> Limits {
        self.0.limits().with_max_token_value(0)
    }

    fn clock(&self) -> SharedClock {
        self.0.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let answer = self.0.acquire(attempt).await?;
        let Acquisition::Acquired(lease) = answer else { return Ok(answer) };
        let mut data = serde_json::to_value(lease.into_hand_over()).unwrap();
        data["token"] = serde_json::Value::Null;
        let data: HandOver = serde_json::from_value(data).unwrap();
        Ok(Acquisition::Acquired(data.into_lease(self.clock())?))
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        self.0.renew(lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        self.0.release(lease).await
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        self.0.abandon(attempt).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        order
            .carry_out(async {
                Err(LeaseError::Unsupported {
                    operation: Operation::ForceRelease,
                    backend: "tokenless",
                    reason: "its grants have no fencing value to name",
                })
            })
            .await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let mut seen = self.0.inspect(resource).await?;
        seen.last_value = None;
        if let Some(held) = &mut seen.held {
            held.value = None;
        }
        Ok(seen)
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.0.list(prefix, after, limit).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.0.clean_up().await
    }

    fn fence(&self) -> Fence<'_> {
        Fence::None
    }
}
