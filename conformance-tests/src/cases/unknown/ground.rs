//! What the cases stand on: clients behind a path that can be disturbed, and an observer beside it.

use crate::cases::answers::{right, unused};
use crate::context::{CONNECTING, Evidence, Stage, Stop, ensure, evidence, now, pause_for};
use crate::faults::{FaultBench, FaultyPath, OnceFault};
use crate::history::Recorded;
use lease_core::{ErrorKind, LeaseBackend, LeaseError, Listed, ResourceName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a call behind the path may take.
pub(super) const CALL: Duration = Duration::from_secs(1);

/// More requests than any operation sends.
pub(super) const POINTS: u32 = 40;

/// Clients behind a path, and an observer that does not go through it.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) stage: Stage,
    pub(super) observer: Recorded,
    bench: Arc<dyn FaultBench>,
}

/// No fault outlives its case, however that ends: the path may be one that others use, and the store one that was there before.
impl Drop for Ground {
    fn drop(&mut self) {
        self.bench.path().heal();
    }
}

impl Ground {
    pub(super) async fn of(stage: Stage, call_timeout: Duration) -> Result<Self, Stop> {
        let making = tokio::time::timeout(CONNECTING, stage.run.subject.fault_bench(call_timeout));
        let bench = match making.await {
            Err(_) => return Err(Stop::NotTried("connecting did not end within 60 s".into())),
            Ok(None) => {
                return Err(Stop::NotTried(
                    "the subject gives no path that can be disturbed (`Subject::fault_bench`)".into(),
                ));
            }
            Ok(Some(Err(reason))) => return Err(Stop::NotTried(format!("no path that can be disturbed: {reason}"))),
            Ok(Some(Ok(bench))) => bench,
        };
        let observer = stage.client().await?;
        // What a store learns at the first use, such as a script, it knows from here on: a request that is held up will be carried out.
        right(&stage, &observer).await?;
        Ok(Self { stage, observer, bench })
    }

    pub(super) fn path(&self) -> &dyn FaultyPath {
        self.bench.path()
    }

    /// A new client behind the path, not recorded and not bounded by the suite.
    pub(super) async fn bare_client(&self) -> Result<Arc<dyn LeaseBackend>, Stop> {
        let connecting = tokio::time::timeout(CONNECTING, self.bench.client());
        let client = connecting.await.map_err(|_| Stop::NotTried("connecting did not end within 60 s".into()))?;
        let client = client.map_err(|e| Stop::NotTried(format!("cannot connect through the path: {e}")))?;
        // A connection is open, and what it has to say for itself has passed.
        drop(client.inspect(&unused(&self.stage, "warm")?).await);
        let end = now().saturating_add(CALL);
        let mut before = self.path().counts();
        loop {
            pause_for(Duration::from_millis(20)).await;
            let counts = self.path().counts();
            if counts == before || now() >= end {
                return Ok(client);
            }
            before = counts;
        }
    }

    /// A new client behind the path.
    pub(super) async fn client(&self) -> Result<Recorded, Stop> {
        Ok(Recorded::new(self.bare_client().await?, self.stage.recorder.clone()))
    }

    /// A name that was never used before.
    pub(super) fn name(&self) -> Result<ResourceName, Stop> {
        unused(&self.stage, "r")
    }

    /// Takes the fault back; whether it has happened.
    pub(super) fn heal(&self) -> bool {
        let happened = self.path().happened();
        self.path().heal();
        happened
    }

    /// What the observer sees.
    pub(super) async fn seen(&self, resource: &ResourceName) -> Result<Option<Listed>, Stop> {
        Ok(self.observer.inspect(resource).await?.held)
    }
}

/// How one point of a sweep ended.
pub(super) enum Point {
    /// The operation was over before the fault: the sweep is complete.
    Over,
    /// The fault met something that decides nothing, such as a question that the client asks first.
    Beside,
    /// The fault met what the case is about.
    Met,
}

/// What a sweep has seen.
#[derive(Debug, Default)]
pub(super) struct Tally {
    points: u32,
    met: u32,
    answers: BTreeMap<String, u32>,
}

impl Tally {
    /// Notes an answer.
    pub(super) fn answer(&mut self, fault: OnceFault, answer: &str) {
        self.told(&format!("{fault:?}: {answer}"));
    }

    /// Notes something that was told.
    pub(super) fn told(&mut self, what: &str) {
        let count = self.answers.entry(what.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// Notes an answer that is an error.
    pub(super) fn error(&mut self, fault: OnceFault, error: &LeaseError) {
        self.answer(fault, &short(error));
    }

    /// Notes a point; false when the sweep is complete.
    pub(super) fn goes_on(&mut self, point: &Point) -> bool {
        let more = u32::from(!matches!(point, Point::Over));
        self.points = self.points.saturating_add(more);
        self.met = self.met.saturating_add(u32::from(matches!(point, Point::Met)));
        more == 1
    }

    /// The evidence, if the sweeps met what the case is about.
    pub(super) fn evidence(self, ground: &Ground) -> Result<Evidence, Stop> {
        if self.met == 0 {
            let seen = self.answers;
            return Err(Stop::NotTried(format!("none of {} points met what the case is about: {seen:?}", self.points)));
        }
        Ok(self.plain_evidence(ground))
    }

    /// The evidence, whatever was met.
    pub(super) fn plain_evidence(self, ground: &Ground) -> Evidence {
        let (requests, replies) = ground.path().counts();
        evidence! {
            "path": ground.path().kind(),
            "points": self.points,
            "points_met": self.met,
            "answers": self.answers,
            "requests_at_the_path": requests,
            "replies_at_the_path": replies,
        }
    }
}

/// An error's variant and effect.
pub(super) fn short(error: &LeaseError) -> String {
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(', '{']).next().unwrap_or_default();
    format!("{name}, effect {:?}", error.effect())
}

/// A fault on the way may be told as trouble on the way, or as the store's own, and as nothing else.
pub(super) fn from_the_way(error: &LeaseError) -> Result<(), Stop> {
    ensure!(
        matches!(error.kind(), ErrorKind::Transport | ErrorKind::Store),
        "a fault on the way was told as something else: {error} ({:?})",
        error.kind()
    );
    Ok(())
}

/// How long a client may take to find its way back.
pub(super) const RECOVERY: Duration = Duration::from_secs(30);

/// Repeats a call by a client that has to find its way back first.
pub(super) async fn eventually<T, F: Future<Output = Result<T, LeaseError>>>(
    mut call: impl FnMut() -> F,
    what: &str,
) -> Result<T, Stop> {
    let end = now().saturating_add(RECOVERY);
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        from_the_way(&error)?;
        ensure!(now() < end, "{RECOVERY:?} after a fault {what} still fails: {error}");
        pause_for(Duration::from_millis(20)).await;
    }
}
