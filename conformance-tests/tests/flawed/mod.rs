//! An adapter on the toy store that is wrong in one way about faults on the way or about dropped calls, or in none.

pub mod caught;

use crate::toy::Toy;
use lease_conformance::faults::{FaultBench, FaultyPath, HandEdit, at_calls};
use lease_conformance::subject::{PlainWriter, ServerControl, Subject};
use lease_core::{
    Acquisition, Advice, Attempt, Authority, Claims, CleanUp, Description, Effect, ErrorKind, Fence, ForceRelease,
    Forced, Held, Inspection, Lease, LeaseBackend, LeaseError, Limits, LossReason, NamePage, Operation, Release,
    Renewal, ResourceName, SharedClock, Ttl,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The deadline counts from the answer.
    DeadlineFromTheAnswer,
    /// A store that cannot be reached has no holders.
    DownIsFree,
    /// A release in doubt is forgotten, so that its repeat says that the lease was lost.
    DoubtIsForgotten,
    /// A call that was dropped leaves the connection in its middle.
    DropSpoilsTheConnection,
    /// A grant is made without an end, and gets it by a second request.
    ExpiryComesLater,
    /// A connection on which a force-release had no answer is never made again.
    ForceNeverComesBack,
    /// A force-release that had no answer is sent again and again.
    ForceWaitsForEver,
    /// The reply that nobody waits for any more is taken for that to the next question.
    LateReplyAnswersNext,
    /// The connection is never made again.
    NeverComesBack,
    /// A renewed deadline counts from the answer.
    RenewalFromTheAnswer,
    /// A grant is renewed from the moment it is made, also when nobody has heard of it.
    RenewsWhatWasDropped,
    /// An acquire without an answer is sent again, as another attempt.
    SendsAnotherAttempt,
    /// What had no answer had no effect.
    UnknownHasNoEffect,
    /// What had no answer is lost.
    UnknownIsALoss,
    /// What had no answer is held by another.
    UnknownIsHeld,
    /// What had no answer is asked again and again.
    WaitsForEver,
}

/// The toy store behind such an adapter.
#[derive(Debug)]
pub struct FlawedSubject {
    store: Toy,
    flaw: Option<Flaw>,
}

impl FlawedSubject {
    pub fn new(flaw: Option<Flaw>) -> Self {
        Self { store: Toy::new(None), flaw }
    }
}

#[async_trait::async_trait]
impl Subject for FlawedSubject {
    fn name(&self) -> &'static str {
        "flawed"
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::new(Flawed::around(Arc::new(self.store.another()), self.flaw)))
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        None
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn own_store_url(&self) -> Option<String> {
        None
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        let calls = at_calls(Arc::new(self.store.another()), call_timeout);
        Some(Ok(Arc::new(Bench { calls, flaw: self.flaw })))
    }
}

#[derive(Debug)]
struct Bench {
    calls: Arc<dyn FaultBench>,
    flaw: Option<Flaw>,
}

#[async_trait::async_trait]
impl FaultBench for Bench {
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::new(Flawed::around(self.calls.client().await?, self.flaw)))
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn path(&self) -> &dyn FaultyPath {
        self.calls.path()
    }
}

#[derive(Debug)]
struct Flawed {
    inner: Arc<dyn LeaseBackend>,
    flaw: Option<Flaw>,
    busy: AtomicBool,
    lost: AtomicBool,
    replies: Mutex<VecDeque<Inspection>>,
}

impl Flawed {
    fn around(inner: Arc<dyn LeaseBackend>, flaw: Option<Flaw>) -> Self {
        Self { inner, flaw, busy: AtomicBool::new(false), lost: AtomicBool::new(false), replies: Mutex::default() }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// What every call does: once the way is long enough to be dropped on, and what is made of a missing answer.
    async fn call<T, F: Future<Output = Result<T, LeaseError>> + Send>(
        &self,
        operation: Operation,
        work: impl Fn() -> F + Send,
    ) -> Result<T, LeaseError> {
        if self.is(Flaw::DropSpoilsTheConnection) && self.busy.swap(true, Ordering::SeqCst) {
            return Err(LeaseError::Store {
                operation,
                reason: "another call is under way".into(),
                effect: Effect::None,
                advice: Advice::TryAgain,
                source: None,
            });
        }
        tokio::task::yield_now().await;
        if self.lost.load(Ordering::SeqCst) {
            let reason = "the connection is closed".to_owned();
            return Err(LeaseError::Connection { operation, reason, effect: Effect::None, source: None });
        }
        let mut answer = work().await;
        let of_force = operation == Operation::ForceRelease;
        let for_good = self.is(Flaw::NeverComesBack) || self.is(Flaw::ForceNeverComesBack) && of_force;
        if for_good && answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Transport) {
            self.lost.store(true, Ordering::SeqCst);
        }
        let waits = self.is(Flaw::WaitsForEver) || self.is(Flaw::ForceWaitsForEver) && of_force;
        while waits && unknown(&answer) {
            answer = work().await;
        }
        self.busy.store(false, Ordering::SeqCst);
        match answer {
            Err(LeaseError::Timeout { operation, limit, .. }) if self.is(Flaw::UnknownHasNoEffect) => {
                Err(LeaseError::Timeout { operation, limit, effect: Effect::None })
            }
            Err(LeaseError::Connection { operation, reason, source, .. }) if self.is(Flaw::UnknownHasNoEffect) => {
                Err(LeaseError::Connection { operation, reason, effect: Effect::None, source })
            }
            answer => answer,
        }
    }

    /// The grant with a deadline that counts from here.
    async fn granted_now(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let ttl = self.inner.limits().granted_ttl(attempt.ttl())?;
        let value = self.inner.inspect(attempt.resource()).await?.last_value.unwrap();
        let token = attempt.token(Authority::parse("toy:1:0")?, value)?;
        let clock = self.inner.clock();
        Ok(Acquisition::Acquired(Lease::granted(attempt, Some(token), ttl, clock.now(), clock)))
    }
}

fn unknown<T>(answer: &Result<T, LeaseError>) -> bool {
    answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown)
}

#[async_trait::async_trait]
impl LeaseBackend for Flawed {
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
        if self.is(Flaw::ExpiryComesLater) {
            let endless = Attempt::new(attempt.resource().clone(), Ttl::parse(Duration::from_hours(1))?)?;
            if let Acquisition::Acquired(lease) = self.inner.acquire(&endless).await? {
                self.inner.release(&lease).await.map(drop)?;
            }
        }
        let copy = attempt.as_held_up();
        let sent = if self.is(Flaw::DeadlineFromTheAnswer) { &copy } else { attempt };
        let answer = self.call(Operation::Acquire, || self.inner.acquire(sent)).await;
        match (self.flaw, &answer) {
            (Some(Flaw::DeadlineFromTheAnswer), Ok(Acquisition::Acquired(_)) | Err(LeaseError::LateGrant { .. })) => {
                self.granted_now(attempt).await
            }
            (Some(Flaw::SendsAnotherAttempt), _) if unknown(&answer) => {
                self.inner.acquire(&Attempt::new(attempt.resource().clone(), attempt.ttl())?).await
            }
            (Some(Flaw::UnknownIsHeld), _) if unknown(&answer) => Ok(Acquisition::Held(Held::for_another(None))),
            (Some(Flaw::RenewsWhatWasDropped), Ok(Acquisition::Acquired(lease))) => {
                let (inner, lease) = (Arc::clone(&self.inner), lease.clone());
                let renewing = tokio::spawn(async move {
                    while let Ok(Renewal::Renewed(_)) = inner.renew(&lease).await {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                });
                tokio::task::yield_now().await;
                renewing.abort();
                answer
            }
            _ => answer,
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let answer = self.call(Operation::Renew, || self.inner.renew(lease)).await;
        if self.is(Flaw::UnknownIsALoss) && unknown(&answer) {
            return Ok(Renewal::Lost(LossReason::Gone));
        }
        match answer {
            Ok(Renewal::Renewed(lease)) if self.is(Flaw::RenewalFromTheAnswer) => {
                Ok(Renewal::Renewed(lease.renewed(self.clock().now())))
            }
            answer => answer,
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let copy = lease.clone().into_hand_over().into_lease(self.inner.clock())?;
        let lease = if self.is(Flaw::DoubtIsForgotten) { &copy } else { lease };
        let answer = self.call(Operation::Release, || self.inner.release(lease)).await;
        if self.is(Flaw::UnknownIsALoss) && unknown(&answer) {
            return Ok(Release::NotHeld);
        }
        answer
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        self.call(Operation::Abandon, || self.inner.abandon(attempt)).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        self.call(Operation::ForceRelease, || self.inner.force_release(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let answer = self.call(Operation::Inspect, || self.inner.inspect(resource)).await;
        if self.is(Flaw::DownIsFree) && answer.is_err() {
            return Ok(Inspection::free(None));
        }
        if !self.is(Flaw::LateReplyAnswersNext) {
            return answer;
        }
        // The reply comes, whether anybody waits for it or not.
        let reply = match &answer {
            Ok(reply) => reply.clone(),
            Err(_) => self.inner.inspect(resource).await?,
        };
        self.replies.lock().unwrap().push_back(reply);
        tokio::task::yield_now().await;
        answer?;
        Ok(self.replies.lock().unwrap().pop_front().unwrap())
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.call(Operation::List, || self.inner.list(prefix, after, limit)).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.call(Operation::CleanUp, || self.inner.clean_up()).await
    }

    fn fence(&self) -> Fence<'_> {
        self.inner.fence()
    }
}
