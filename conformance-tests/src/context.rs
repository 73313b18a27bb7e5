//! What every case has in its hands: clients, names, limits, and the recorder of its history.

use crate::history::{Recorded, Recorder};
use crate::report::Cell;
use crate::subject::{Opener, Place, PlainWriter, Subject, TestDestination};
use crate::worker::WorkerProgram;
use lease_core::{
    Acquisition, Attempt, BootInstant, Claim, Claims, Clock, FencingToken, GrantId, GuardError, Lease, LeaseBackend,
    LeaseError, Limits, Release, Renewal, ResourceName, SystemClock, Ttl,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long connecting may take before it counts as failed.
pub(crate) const CONNECTING: Duration = Duration::from_mins(1);

/// What was seen, by name.
pub(crate) type Evidence = BTreeMap<String, Value>;

/// Why a case did not end well.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// A counter-example: what was expected and what was seen instead.
    Refuted(String),
    /// It could not be tried: what was missing.
    NotTried(String),
    /// It could not be tried for want of this guarantee, so that whether the backend declares it is what is judged; and what was missing.
    Wants(Claim, String),
}

/// What a case gives back.
pub(crate) type CaseResult = Result<Evidence, Stop>;

impl From<LeaseError> for Stop {
    fn from(error: LeaseError) -> Self {
        Self::Refuted(format!("an operation that should work failed: {error}"))
    }
}

impl From<GuardError> for Stop {
    fn from(error: GuardError) -> Self {
        Self::Refuted(format!("a guarded operation that should work failed: {error}"))
    }
}

/// Ends the case as refuted unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {{
        let holds: bool = $condition;
        if !holds {
            $crate::context::refute!($($message)+);
        }
    }};
}
pub(crate) use ensure;

/// Ends the case as refuted.
macro_rules! refute {
    ($($message:tt)+) => {
        return Err($crate::context::Stop::Refuted(format!($($message)+)))
    };
}
pub(crate) use refute;

/// Evidence from pairs.
macro_rules! evidence {
    ($($name:literal: $value:expr),* $(,)?) => {
        $crate::context::Evidence::from([$(($name.to_owned(), serde_json::json!($value))),*])
    };
}
pub(crate) use evidence;

/// One run of the suite on one subject.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) subject: Arc<dyn Subject>,
    pub(crate) places: Vec<Arc<dyn Place>>,
    pub(crate) program: Option<WorkerProgram>,
    pub(crate) claims: Claims,
    pub(crate) limits: Limits,
    pub(crate) trials: u32,
    /// Keeps this run's names apart from those of every other run in the same store.
    apart: String,
    names: AtomicU64,
    random: AtomicU64,
}

impl Run {
    pub(crate) fn new(
        subject: Arc<dyn Subject>,
        places: Vec<Arc<dyn Place>>,
        program: Option<WorkerProgram>,
        first: &dyn LeaseBackend,
        (seed, trials): (u64, u32),
    ) -> Result<Self, LeaseError> {
        Ok(Self {
            subject,
            places,
            program,
            claims: first.claims(),
            limits: first.limits(),
            trials,
            apart: GrantId::random()?.to_hex(),
            names: AtomicU64::new(0),
            random: AtomicU64::new(seed),
        })
    }

    /// A namespace that nobody else uses: at most 32 characters of `a-z 0-9 _`.
    pub(crate) fn namespace(&self) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!("c{}_{number}", self.apart)
    }

    /// The next number of the seeded sequence (splitmix64).
    pub(crate) fn random(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The longest that one case may take. Generous: it only keeps a store that never answers from holding the suite up.
    pub(crate) fn patience(&self) -> Duration {
        let ttl = self.short_granted().saturating_add(self.limits.expiry_lag);
        Duration::from_mins(2).saturating_add(ttl.saturating_mul(30))
    }

    /// A TTL to wait for the end of: 300 ms, or what the backend can.
    pub(crate) fn short(&self) -> Ttl {
        let asked = Duration::from_millis(300).max(self.limits.min_ttl).min(self.limits.max_ttl);
        Ttl::parse(asked).unwrap_or_else(|_| fallback_ttl())
    }

    /// What is granted for [`short`](Self::short).
    pub(crate) fn short_granted(&self) -> Duration {
        let short = self.short();
        self.limits.granted_ttl(short).unwrap_or_else(|_| short.duration())
    }

    /// A TTL that does not end while a case runs.
    pub(crate) fn long(&self) -> Ttl {
        let asked = Duration::from_mins(2).max(self.limits.min_ttl).min(self.limits.max_ttl);
        Ttl::parse(asked).unwrap_or_else(|_| fallback_ttl())
    }

    /// How long after a grant the resource may still look held before that is a finding: five times what is declared, and
    /// five seconds for a busy machine.
    pub(crate) fn freed_within(&self, granted_ttl: Duration) -> Duration {
        granted_ttl.saturating_add(self.limits.expiry_lag).saturating_mul(5).saturating_add(Duration::from_secs(5))
    }
}

/// Declared limits that allow no TTL at all are found by a case of their own.
fn fallback_ttl() -> Ttl {
    Ttl::parse(Duration::from_secs(1)).unwrap_or_else(|_| unreachable!("one second is a TTL"))
}

/// One case in one trial.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) run: Arc<Run>,
    pub(crate) recorder: Recorder,
    name: String,
}

impl Stage {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        let name = run.namespace();
        Self { run, recorder: Recorder::default(), name }
    }

    /// A resource of this case alone.
    pub(crate) fn resource(&self, suffix: &str) -> Result<ResourceName, Stop> {
        ResourceName::parse(format!("{}/{suffix}", self.name)).map_err(Stop::from)
    }

    /// A new client, recorded and with every call bounded.
    pub(crate) async fn client(&self) -> Result<Recorded, Stop> {
        let connecting = tokio::time::timeout(CONNECTING, self.run.subject.client());
        let client = connecting.await.map_err(|_| Stop::NotTried("connecting did not end within 60 s".into()))?;
        let client = client.map_err(|e| Stop::NotTried(format!("cannot connect: {e}")))?;
        Ok(Recorded::new(client, self.recorder.clone()))
    }

    /// A new client that forgets idle names soon.
    pub(crate) async fn forgetful_client(&self) -> Result<Recorded, Stop> {
        let connecting = tokio::time::timeout(CONNECTING, self.run.subject.forgetful_client());
        match connecting.await {
            Err(_) => Err(Stop::NotTried("connecting did not end within 60 s".into())),
            Ok(None) => Err(Stop::NotTried("the subject gives no client that forgets idle names soon".into())),
            Ok(Some(Err(error))) => Err(Stop::NotTried(format!("cannot connect: {error}"))),
            Ok(Some(Ok(client))) => Ok(Recorded::new(client, self.recorder.clone())),
        }
    }

    pub(crate) async fn two_clients(&self) -> Result<(Recorded, Recorded), Stop> {
        Ok((self.client().await?, self.client().await?))
    }
}

/// How often a grant may arrive after its own deadline, on a machine that is too busy for a short TTL, before that is a finding.
const LATE_GRANTS: u32 = 10;

/// Acquires a resource that should be free. A grant that arrives after its own deadline is no success and was given up: as its error
/// advises, a new attempt follows.
pub(crate) async fn acquire(client: &dyn LeaseBackend, resource: &ResourceName, ttl: Ttl) -> Result<Lease, Stop> {
    let mut late = 0;
    loop {
        let attempt = Attempt::new(resource.clone(), ttl)?;
        match client.acquire(&attempt).await {
            Err(LeaseError::LateGrant { .. }) if late < LATE_GRANTS => late = late.saturating_add(1),
            answer => return granted(answer?, resource),
        }
    }
}

fn granted(answer: Acquisition, resource: &ResourceName) -> Result<Lease, Stop> {
    match answer {
        Acquisition::Acquired(lease) => Ok(lease),
        Acquisition::Held(held) => {
            Err(Stop::Refuted(format!("{resource} should be free, but the answer was {held:?}")))
        }
    }
}

/// Acquires, with a kept attempt, a resource that should be free.
pub(crate) async fn acquire_with(client: &dyn LeaseBackend, attempt: &Attempt) -> Result<Lease, Stop> {
    granted(client.acquire(attempt).await?, attempt.resource())
}

/// Tries to acquire; true when another holds it.
pub(crate) async fn is_held(client: &dyn LeaseBackend, resource: &ResourceName, ttl: Ttl) -> Result<bool, Stop> {
    let attempt = Attempt::new(resource.clone(), ttl)?;
    Ok(matches!(client.acquire(&attempt).await?, Acquisition::Held(_)))
}

/// Renews a grant that should be live.
pub(crate) async fn renew(client: &dyn LeaseBackend, lease: &Lease) -> Result<Lease, Stop> {
    match client.renew(lease).await? {
        Renewal::Renewed(lease) => Ok(lease),
        Renewal::Lost(reason) => Err(Stop::Refuted(format!("a live grant could not be renewed: lost, {reason:?}"))),
    }
}

/// Releases a grant that should be live.
pub(crate) async fn release(client: &dyn LeaseBackend, lease: &Lease) -> Result<(), Stop> {
    match client.release(lease).await? {
        Release::Released => Ok(()),
        other => Err(Stop::Refuted(format!("the release of a live grant was answered by {other:?}"))),
    }
}

/// The token of a grant; the case cannot be tried without one.
pub(crate) fn token(lease: &Lease) -> Result<&FencingToken, Stop> {
    let missing = || Stop::Wants(Claim::FencingToken, "the backend gives no fencing tokens".into());
    lease.token().ok_or_else(missing)
}

/// Polls until the resource is free by the store's own account; an observation only, nothing is taken.
pub(crate) async fn until_free(
    stage: &Stage,
    client: &dyn LeaseBackend,
    resource: &ResourceName,
    granted_ttl: Duration,
) -> Result<(), Stop> {
    let limit = stage.run.freed_within(granted_ttl);
    let end = now().saturating_add(limit);
    while client.inspect(resource).await?.held.is_some() {
        ensure!(now() < end, "{resource} is still held {limit:?} after a grant of {granted_ttl:?}");
        pause_for(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Tries again and again until the resource could be acquired.
pub(crate) async fn acquire_when_free(
    stage: &Stage,
    client: &dyn LeaseBackend,
    resource: &ResourceName,
    ttl: Ttl,
    granted_ttl: Duration,
) -> Result<Lease, Stop> {
    let limit = stage.run.freed_within(granted_ttl);
    let end = now().saturating_add(limit);
    loop {
        let attempt = Attempt::new(resource.clone(), ttl)?;
        if let Acquisition::Acquired(lease) = client.acquire(&attempt).await? {
            return Ok(lease);
        }
        ensure!(now() < end, "{resource} is still held {limit:?} after a grant of {granted_ttl:?}");
        pause_for(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn pause_for(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(crate) fn now() -> BootInstant {
    SystemClock.now()
}

/// The `n`th part of a duration.
pub(crate) fn part(duration: Duration, n: u32) -> Duration {
    duration.checked_div(n).unwrap_or_default()
}

/// A duration in milliseconds, for evidence.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What a worker on a thread opens: the subject and the places of this process, by number.
#[derive(Debug)]
pub(crate) struct Here(pub(crate) Arc<Run>);

impl Here {
    pub(crate) fn url(place: usize, namespace: &str) -> String {
        format!("{place}/{namespace}")
    }
}

#[async_trait::async_trait]
impl Opener for Here {
    async fn backend(&self, _url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        self.0.subject.client().await
    }

    async fn plain_writer(&self, _url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        Ok(self.0.subject.plain_writer())
    }

    async fn destination(&self, url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        let parts = url.split_once('/');
        let place = parts.and_then(|(place, _)| self.0.places.get(place.parse::<usize>().ok()?));
        let (Some(place), Some((_, namespace))) = (place, parts) else {
            return Err(GuardError::Store(LeaseError::InvalidConfig { reason: "no such place".into() }));
        };
        place.open(namespace).await
    }
}

/// The destination's name in the report.
pub(crate) fn destination_name(run: &Run, place: &dyn Place) -> String {
    if place.store_of() == Some(run.subject.name()) { Cell::SAME_STORE.into() } else { place.kind().to_owned() }
}
