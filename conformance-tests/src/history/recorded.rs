//! Wrappers that note every operation, and end every call.

use super::event::{Recorder, Renewed, What, Wrote};
use crate::subject::TestDestination;
use lease_core::{
    Acquisition, Attempt, Authority, Claims, CleanUp, Description, Effect, Fence, FencingToken, ForceRelease, Forced,
    GuardError, GuardedDestination, Inspection, Lease, LeaseBackend, LeaseError, Limits, NamePage, Operation, Refusal,
    Release, Renewal, ResourceName, SharedClock, Stored, bounded,
};
use std::sync::Arc;
use std::time::Duration;

/// A backend whose operations are noted. A call that takes much longer than the backend declares is ended, so that the suite
/// ends too.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    inner: Arc<dyn LeaseBackend>,
    recorder: Recorder,
    limit: Duration,
}

impl Recorded {
    pub(crate) fn new(inner: Arc<dyn LeaseBackend>, recorder: Recorder) -> Self {
        let limit = inner
            .limits()
            .call_timeout
            .saturating_mul(3)
            .saturating_add(Duration::from_secs(5))
            .min(Duration::from_mins(1));
        Self { inner, recorder, limit }
    }

    async fn call<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        bounded(self.limit, operation, Effect::Unknown, work).await
    }
}

#[async_trait::async_trait]
impl LeaseBackend for Recorded {
    fn description(&self) -> Description {
        self.inner.description()
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn clock(&self) -> SharedClock {
        self.inner.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let owner = *attempt.owner();
        let unknown = What::AcquireUnknown { owner };
        let open = self.recorder.begin(attempt.resource(), unknown.clone());
        let answer = self.call(Operation::Acquire, self.inner.acquire(attempt)).await;
        open.end(match &answer {
            Ok(Acquisition::Acquired(lease)) => {
                Some(What::Granted { owner, token: lease.token().cloned(), granted_ttl: lease.granted_ttl() })
            }
            Ok(Acquisition::Held(_)) => None,
            Err(error) if error.effect() == Effect::None => None,
            Err(_) => Some(unknown),
        });
        answer
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let event = |outcome| What::Renew { owner: *lease.owner(), granted_ttl: lease.granted_ttl(), outcome };
        let open = self.recorder.begin(lease.resource(), event(Renewed::Unknown));
        let answer = self.call(Operation::Renew, self.inner.renew(lease)).await;
        open.end(match &answer {
            Ok(Renewal::Renewed(lease)) => Some(event(Renewed::Extended(lease.token().cloned()))),
            Ok(Renewal::Lost(_)) => Some(event(Renewed::Lost)),
            Err(_) => Some(event(Renewed::Unknown)),
        });
        answer
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let ended = |certain| What::Ended { owner: *lease.owner(), certain };
        let open = self.recorder.begin(lease.resource(), ended(false));
        let answer = self.call(Operation::Release, self.inner.release(lease)).await;
        open.end(Some(ended(answer.is_ok())));
        answer
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        let ended = |certain| What::Ended { owner: *attempt.owner(), certain };
        let open = self.recorder.begin(attempt.resource(), ended(false));
        let answer = self.call(Operation::Abandon, self.inner.abandon(attempt)).await;
        open.end(Some(ended(answer.is_ok())));
        answer
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        let forced = |certain| What::Forced { value: order.value(), certain };
        let open = self.recorder.begin(order.resource(), forced(false));
        let answer = self.call(Operation::ForceRelease, self.inner.force_release(order)).await;
        open.end(match &answer {
            Ok(Forced::Ended | Forced::NotHeld) => Some(forced(true)),
            Ok(_) => None,
            Err(error) if error.effect() == Effect::None => None,
            Err(_) => Some(forced(false)),
        });
        answer
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.call(Operation::Inspect, self.inner.inspect(resource)).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.call(Operation::List, self.inner.list(prefix, after, limit)).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.call(Operation::CleanUp, self.inner.clean_up()).await
    }

    fn fence(&self) -> Fence<'_> {
        self.inner.fence()
    }
}

/// A destination whose guarded operations are noted, under the name `place`.
#[derive(Clone, Debug)]
pub(crate) struct RecordedDestination {
    inner: Arc<dyn TestDestination>,
    recorder: Recorder,
    place: String,
}

/// More than any store gives itself: a call that takes longer is a finding.
const DESTINATION_LIMIT: Duration = Duration::from_mins(1);

impl RecordedDestination {
    pub(crate) fn new(inner: Arc<dyn TestDestination>, recorder: Recorder, place: String) -> Self {
        Self { inner, recorder, place }
    }

    async fn noted(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        work: impl Future<Output = Result<(), GuardError>>,
    ) -> Result<(), GuardError> {
        let event = |outcome| What::Write { place: self.place.clone(), token: token.clone(), outcome };
        let open = self.recorder.begin(resource, event(Wrote::Unknown));
        let answer = ended(work).await;
        open.end(Some(event(outcome(&answer))));
        answer
    }
}

/// How an answer of a guard is noted.
pub(crate) fn outcome(answer: &Result<(), GuardError>) -> Wrote {
    match answer {
        Ok(()) => Wrote::Admitted,
        Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. }) => Wrote::Stale,
        Err(GuardError::Refused { .. }) => Wrote::Refused,
        Err(_) => Wrote::Unknown,
    }
}

async fn ended<T>(work: impl Future<Output = Result<T, GuardError>>) -> Result<T, GuardError> {
    tokio::time::timeout(DESTINATION_LIMIT, work).await.unwrap_or_else(|_| {
        Err(GuardError::Store(LeaseError::Timeout {
            operation: Operation::GuardedWrite,
            limit: DESTINATION_LIMIT,
            effect: Effect::Unknown,
        }))
    })
}

#[async_trait::async_trait]
impl GuardedDestination for RecordedDestination {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        ended(self.inner.adopt(expected_old, new)).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.noted(resource, token, self.inner.seal(resource, token)).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let write = self.inner.write(resource, token, value);
        self.noted(resource, token, write).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        ended(self.inner.read(resource)).await
    }
}

#[async_trait::async_trait]
impl TestDestination for RecordedDestination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        ended(self.inner.write_plain(resource, value)).await
    }

    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        ended(self.inner.write_ignoring_refusal(resource, token, value)).await
    }

    async fn write_and_roll_back(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Option<Result<(), GuardError>> {
        let work = self.inner.write_and_roll_back(resource, token, value);
        tokio::time::timeout(DESTINATION_LIMIT, work).await.unwrap_or_else(|_| {
            Some(Err(GuardError::Store(LeaseError::Timeout {
                operation: Operation::GuardedWrite,
                limit: DESTINATION_LIMIT,
                effect: Effect::Unknown,
            })))
        })
    }
}
