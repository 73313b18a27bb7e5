//! One scene, played once.
//!
//! 1. A is granted each name and releases it: what the store knows of old. The set-up brings that to safety.
//! 2. A is granted `kept`, then `contested`; it seals and writes at its destinations. From here on B asks for `contested`, all the time.
//! 3. More grants are made on other names and released: each has a token that somebody was told.
//! 4. The fault is made, and shown; it is over when the servers answer again.
//! 5. A renews `kept`; the other names are granted again; B gets `contested`, sooner or later.
//! 6. B seals and writes, then A, who is stale by now.

use super::cell::Guarantee;
use super::contender::Contender;
use super::grounds::{Grounds, LANES};
use super::held::Held;
use super::judge::{self, Contest, Finding, Kept, Told, TooSlow};
use super::scene::{Moment, Scene, Stage, Trouble, Witness, Worker};
use super::{CONTESTED, KEPT, OTHERS};
use crate::program::Backend;
use crate::subject::Opener;
use crate::timeline::{MarkKind, Recorder, SpanKind, Timeline};
use lease_core::{
    Acquisition, Attempt, Effect, FencingToken, Lease, LeaseBackend, LeaseError, LossReason, Renewal, ResourceName,
    SharedClock, SystemClock, Ttl,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one call may take: less than a TTL, so that a call which nobody answers leaves time for the next.
const CALL_TIMEOUT_MS: u32 = 1_000;
/// How long a grant may take that nothing stands against.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a worker waits after an error.
const PAUSE: Duration = Duration::from_millis(20);

/// What every worker of a trial has.
#[derive(Clone)]
pub(super) struct Cast {
    pub(super) opener: Arc<dyn Opener>,
    pub(super) backend: Backend,
    pub(super) ttl: Duration,
    pub(super) clock: SharedClock,
}

/// What was seen in one trial.
pub(super) struct Played {
    pub(super) findings: BTreeMap<Guarantee, Finding>,
    pub(super) witness: Witness,
    pub(super) timeline: Timeline,
}

impl Cast {
    pub(super) fn new(opener: Arc<dyn Opener>, backend: Backend, ttl: Duration) -> Self {
        Self { opener, backend, ttl, clock: SystemClock::shared() }
    }

    /// A new client of the store at `url`.
    pub(super) async fn client(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        self.opener.backend(&self.full_url(url)).await
    }

    /// The same, asking until it answers, at the latest at `until`.
    async fn connect(&self, url: &str, until: Instant) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        loop {
            match self.client(url).await {
                Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    fn full_url(&self, url: &str) -> String {
        let url = match url.strip_prefix("redis://") {
            Some(rest) if self.backend == Backend::RedisFred => format!("redis+fred://{rest}"),
            _ => url.to_owned(),
        };
        let joint = if url.contains('?') { '&' } else { '?' };
        format!("{url}{joint}namespace={}&call_timeout_ms={CALL_TIMEOUT_MS}", super::NAMESPACE)
    }

    /// Asks until it is granted, at the latest at `until`.
    async fn acquire(&self, client: &dyn LeaseBackend, name: &str, until: Instant) -> Result<Lease, String> {
        let new = || -> Result<Attempt, LeaseError> { Attempt::new(ResourceName::parse(name)?, Ttl::parse(self.ttl)?) };
        let mut attempt = new().map_err(|error| error.to_string())?;
        loop {
            let said = match client.acquire(&attempt).await {
                Ok(Acquisition::Acquired(lease)) => return Ok(lease),
                Ok(Acquisition::Held(_)) => "it is held".to_owned(),
                Err(error) => {
                    if error.effect() != Effect::Unknown {
                        attempt = new().map_err(|error| error.to_string())?;
                    }
                    error.to_string()
                }
            };
            if Instant::now() >= until {
                return Err(format!("{name} was not granted: {said}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A grant that is released again; only its token stays.
    async fn touch(&self, client: &dyn LeaseBackend, name: &str, until: Instant) -> Result<Told, String> {
        let lease = self.acquire(client, name, until).await?;
        let told = (name.to_owned(), token_of(&lease)?);
        // In doubt it ends with its TTL.
        drop(client.release(&lease).await);
        Ok(told)
    }
}

fn token_of(lease: &Lease) -> Result<FencingToken, String> {
    lease.token().cloned().ok_or_else(|| "the backend mints no tokens".to_owned())
}

/// Plays a scene once, with this TTL.
pub(super) async fn play(
    scene: &Scene,
    opener: &Arc<dyn Opener>,
    file: Option<&Path>,
    ttl: Duration,
) -> Result<Played, Trouble> {
    let cast = Cast::new(Arc::clone(opener), scene.backend, ttl);
    let mut stage = tokio::task::block_in_place(|| (scene.start)())?;
    let grounds = Grounds::open(&**opener, file).await?;
    let title = format!("{} × {} on {}", scene.setup, scene.fault, scene.backend);
    let recorder = Arc::new(Recorder::begin(title, &LANES));
    let before = Before::make(&cast, &mut *stage, &grounds, &recorder).await?;

    let began = recorder.now_ms();
    recorder.mark("store", MarkKind::Fault, scene.fault);
    let moment = Moment::with(ttl, before.renewer());
    let witness = tokio::task::block_in_place(|| stage.strike(&moment))?;
    if witness.facts().is_empty() {
        return Err(Trouble::NotShown("it left no witness".to_owned()));
    }
    recorder.span_since("store", began, SpanKind::Down, scene.fault);
    let findings =
        after(scene, &cast, [Worker::A, Worker::B].map(|who| stage.url(who)), before, &grounds, &recorder).await;
    // Servers end while they are blocked on; the scene is over anyway.
    tokio::task::block_in_place(|| drop(stage));
    Ok(Played { findings: findings?, witness, timeline: recorder.timeline() })
}

/// What there is when the fault comes.
struct Before {
    url: String,
    client: Arc<dyn LeaseBackend>,
    kept: Held,
    contested: Held,
    a: FencingToken,
    told: Vec<Told>,
    b: Contender,
}

impl Before {
    async fn make(
        cast: &Cast,
        stage: &mut dyn Stage,
        grounds: &Grounds,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, Trouble> {
        let url = stage.url(Worker::A);
        let until =
            Instant::now().checked_add(PATIENCE).ok_or_else(|| Trouble::Failed("there is no such time".to_owned()))?;
        let client = cast.connect(&url, until).await.map_err(|e| Trouble::Failed(format!("A cannot connect: {e}")))?;
        let mut told = Vec::new();
        for name in [KEPT, CONTESTED].into_iter().chain(OTHERS) {
            told.push(cast.touch(&*client, name, until).await.map_err(Trouble::Failed)?);
        }
        tokio::task::block_in_place(|| stage.before())?;

        let kept = cast.acquire(&*client, KEPT, until).await.map_err(Trouble::Failed)?;
        let contested = cast.acquire(&*client, CONTESTED, until).await.map_err(Trouble::Failed)?;
        let a = token_of(&contested).map_err(Trouble::Failed)?;
        told.extend([(KEPT.to_owned(), token_of(&kept).map_err(Trouble::Failed)?), (CONTESTED.to_owned(), a.clone())]);
        recorder.mark("A", MarkKind::Granted, format!("A is granted {}", a.value()));
        recorder.span_for("A", contested.remaining(), SpanKind::Held, format!("A holds {}", a.value()));
        let (kept, contested) = (Held::of(kept), Held::of(contested));
        let b = Contender::start(cast, contested.clone(), stage.url(Worker::B), recorder);
        grounds.first(&a, recorder).await?;
        for name in OTHERS {
            told.push(cast.touch(&*client, name, until).await.map_err(Trouble::Failed)?);
        }
        if contested.now().is_past_deadline() {
            return Err(Trouble::TooSlow("A's deadline had passed before the fault".to_owned()));
        }
        Ok(Self { url, client, kept, contested, a, told, b })
    }

    /// Lets A renew what it holds, from a thread that may block.
    fn renewer(&self) -> Arc<dyn Fn() -> Result<(), String> + Send + Sync> {
        let (runtime, client) = (tokio::runtime::Handle::current(), Arc::clone(&self.client));
        let (kept, contested) = (self.kept.clone(), self.contested.clone());
        Arc::new(move || {
            let both = async { tokio::join!(kept.renew(&*client), contested.renew(&*client)) };
            let (kept, contested) = runtime.block_on(both);
            kept.and(contested)
        })
    }
}

async fn after(
    scene: &Scene,
    cast: &Cast,
    [url, b_url]: [String; 2],
    before: Before,
    grounds: &Grounds,
    recorder: &Recorder,
) -> Result<BTreeMap<Guarantee, Finding>, Trouble> {
    before.b.fault_is_over(b_url, cast.clock.now());
    let limits = before.client.limits();
    let bound = cast.ttl.saturating_mul(3).saturating_add(limits.expiry_lag).saturating_add(limits.call_timeout);
    let old = (url == before.url).then(|| Arc::clone(&before.client));
    let (kept, client) = renewal(cast, &before.kept.now(), old, &url, recorder).await;
    let again = granted_again(cast, client, &url, bound).await;

    let limit = before.contested.now().remaining().saturating_add(bound);
    let contest = before.b.outcome(limit).await;
    let mut later = again;
    later.extend(contest.won.iter().map(|won| (CONTESTED.to_owned(), won.token.clone())));

    let mut findings = BTreeMap::new();
    findings.insert(Guarantee::Exclusion, judge::exclusion(&contest, scene.outlasts)?);
    findings.insert(Guarantee::LeaseKept, judge::kept(&kept, scene.outlasts)?);
    findings.insert(Guarantee::TokenOrder, judge::order(&before.told, &later));
    findings.insert(Guarantee::Granting, judge::granting(&contest, bound));
    findings.extend(fences(&contest, &before.a, grounds, recorder).await);
    for finding in findings.values_mut() {
        finding.evidence.insert("ttl_ms".to_owned(), judge::ms(cast.ttl).into());
    }
    Ok(findings)
}

impl From<TooSlow> for Trouble {
    fn from(TooSlow(why): TooSlow) -> Self {
        Self::TooSlow(why)
    }
}

/// A's renewals after the fault, by the client that it had, or where the store has moved by a new one.
async fn renewal(
    cast: &Cast,
    lease: &Lease,
    mut client: Option<Arc<dyn LeaseBackend>>,
    url: &str,
    recorder: &Recorder,
) -> (Kept, Option<Arc<dyn LeaseBackend>>) {
    if lease.is_past_deadline() {
        return (Kept::TooLate, client);
    }
    let over = cast.clock.now();
    let mut last = String::new();
    while !lease.is_past_deadline() {
        let renewed = match &client {
            Some(client) => client.renew(lease).await,
            None => match cast.client(url).await {
                Ok(new) => client.insert(new).renew(lease).await,
                Err(error) => Err(error),
            },
        };
        match renewed {
            Ok(Renewal::Renewed(_)) => {
                recorder.mark("A", MarkKind::Note, format!("{KEPT}: renewed"));
                return (Kept::Renewed { after: cast.clock.now().saturating_since(over) }, client);
            }
            // It came too late to be of use, and says nothing of the fault.
            Ok(Renewal::Lost(LossReason::Expired)) if lease.is_past_deadline() => return (Kept::TooLate, client),
            Ok(Renewal::Lost(reason)) => {
                recorder.mark("A", MarkKind::Lost, format!("{KEPT}: lost ({reason:?})"));
                return (Kept::Lost(reason), client);
            }
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(PAUSE).await;
    }
    (Kept::Unanswered(last), client)
}

/// Grants of the other names, as many as there are within the bound.
async fn granted_again(cast: &Cast, client: Option<Arc<dyn LeaseBackend>>, url: &str, bound: Duration) -> Vec<Told> {
    let mut told = Vec::new();
    let grant = async {
        let client = match client {
            Some(client) => client,
            None => loop {
                match cast.client(url).await {
                    Ok(client) => break client,
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            },
        };
        let Some(until) = Instant::now().checked_add(bound) else { return };
        for name in OTHERS {
            told.extend(cast.touch(&*client, name, until).await);
        }
    };
    // What was not granted by then is missing in the list.
    drop(tokio::time::timeout(bound, grant).await);
    told
}

/// What became of the stale write, where B ever had a grant to write with.
async fn fences(
    contest: &Contest,
    a: &FencingToken,
    grounds: &Grounds,
    recorder: &Recorder,
) -> [(Guarantee, Finding); 3] {
    const WHERE: [Guarantee; 3] = [Guarantee::FenceReached, Guarantee::FenceUnreached, Guarantee::NoGuard];
    match &contest.won {
        Some(won) => {
            let [reached, unreached, plain] = grounds.then(a, &won.token, recorder).await;
            let tokens =
                |finding: Finding| finding.with("a_token", a.to_string()).with("b_token", won.token.to_string());
            [
                (Guarantee::FenceReached, tokens(judge::fence(&reached))),
                (Guarantee::FenceUnreached, tokens(judge::fence(&unreached))),
                (Guarantee::NoGuard, judge::control(&plain)),
            ]
        }
        None => WHERE.map(|guarantee| {
            (
                guarantee,
                Finding::new(super::Outcome::NotTried, "B was never granted, so nobody was there to be overwritten"),
            )
        }),
    }
}
