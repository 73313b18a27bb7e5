//! Set-ups, faults, and the scenes that they make together.

use crate::program::Backend;
use lease_servers::ServerError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Servers of one kind in one set-up, as the faults see them.
pub trait Rig: Send + 'static {
    /// Where this worker reaches the store at present, without namespace: it is asked again when the fault is over.
    fn url(&self, who: Worker) -> String;
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// The holder, who becomes stale.
    A,
    /// The one who comes after.
    B,
}

/// What is done to a rig. It may block.
pub type Step<R> = fn(&mut R) -> Result<(), Trouble>;

/// A step of which nothing is needed.
///
/// # Errors
/// Never.
pub fn nothing<R>(_: &mut R) -> Result<(), Trouble> {
    Ok(())
}

/// How the servers run.
pub struct SetUp<R: 'static> {
    /// Its id, such as `redis/aof-everysec`. The part before `/` is the table that it is printed in.
    pub id: &'static str,
    /// What it is, in one sentence.
    pub means: &'static str,
    /// The lease backends that are tried on it.
    pub backends: &'static [Backend],
    /// Starts it.
    pub start: fn() -> Result<R, Trouble>,
    /// Brings what was granted so far to safety.
    pub settle: Step<R>,
}

/// What happens to the servers.
pub struct Fault<R: 'static> {
    /// Its id, such as `power-cut`.
    pub id: &'static str,
    /// What it is, in one sentence.
    pub means: &'static str,
    /// The ids of the set-ups that it is tried in.
    pub on: &'static [&'static str],
    /// The TTL of the grants: longer than the fault takes, unless it is to outlast them. On a machine that is too busy for it, a longer
    /// one is taken.
    pub ttl: Duration,
    /// Whether it lasts longer than the TTL on purpose.
    pub outlasts: bool,
    /// Before anybody connects.
    pub prepare: Step<R>,
    /// After the set-up's `settle`, before the grants that the fault may take.
    pub before: Step<R>,
    /// Makes it, and returns when it is over.
    pub make: fn(&mut R, &Moment) -> Result<Witness, Trouble>,
}

/// What a fault may need to know, and what it may let A do.
#[derive(Clone)]
#[non_exhaustive]
pub struct Moment {
    /// The TTL of the grants in this trial.
    pub ttl: Duration,
    renew: Arc<Renew>,
}

/// A renews what it holds.
type Renew = dyn Fn() -> Result<(), String> + Send + Sync;

impl Moment {
    pub(super) fn with(ttl: Duration, renew: Arc<Renew>) -> Self {
        Self { ttl, renew }
    }

    /// Lets A renew both leases now, for faults in which a holder goes on all the while. By itself A renews only when the fault is over.
    /// It blocks.
    ///
    /// # Errors
    /// With what A was told, when one of them was not renewed.
    pub fn renew(&self) -> Result<(), String> {
        (self.renew)()
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// Facts that show that a fault happened, as they were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Witness(BTreeMap<String, Value>);

impl Witness {
    /// With a first fact.
    #[must_use]
    pub fn of(name: &str, fact: impl Into<Value>) -> Self {
        Self::default().and(name, fact)
    }

    /// With one more fact.
    #[must_use]
    pub fn and(mut self, name: &str, fact: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), fact.into());
        self
    }

    /// With the facts of another one.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The facts.
    #[must_use]
    pub fn facts(&self) -> &BTreeMap<String, Value> {
        &self.0
    }
}

/// Why a scene could not be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// This machine or user lacks something.
    #[error("{0}")]
    Missing(String),
    /// The fault was made and was not seen to happen.
    #[error("the fault was not seen to happen: {0}")]
    NotShown(String),
    /// The machine was too busy for the TTL.
    #[error("the machine was too busy: {0}")]
    TooSlow(String),
    /// Something else went wrong.
    #[error("{0}")]
    Failed(String),
}

impl From<ServerError> for Trouble {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::MissingBinary { .. } | ServerError::CannotHere { .. } => Self::Missing(error.to_string()),
            ServerError::NotShown { .. } => Self::NotShown(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl<R> fmt::Debug for SetUp<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetUp").field("id", &self.id).field("backends", &self.backends).finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for Fault<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault").field("id", &self.id).field("on", &self.on).finish_non_exhaustive()
    }
}

/// Started servers, with the fault that awaits them.
pub trait Stage: Send {
    /// Where this worker reaches the store at present, without namespace.
    fn url(&self, who: Worker) -> String;

    /// Brings what was granted so far to safety, and makes ready for the fault.
    ///
    /// # Errors
    /// When that fails.
    fn before(&mut self) -> Result<(), Trouble>;

    /// Makes the fault, and returns when it is over.
    ///
    /// # Errors
    /// When it cannot be made, or was not seen to happen.
    fn strike(&mut self, moment: &Moment) -> Result<Witness, Trouble>;
}

/// Starts the servers of a scene.
pub type Start = dyn Fn() -> Result<Box<dyn Stage>, Trouble> + Send + Sync;

/// One fault in one set-up, for one backend.
#[derive(Clone)]
pub struct Scene {
    /// The set-up's id.
    pub setup: &'static str,
    /// What the set-up is.
    pub setup_means: &'static str,
    /// The fault's id.
    pub fault: &'static str,
    /// What the fault is.
    pub fault_means: &'static str,
    /// The lease backend.
    pub backend: Backend,
    /// The TTL of the grants.
    pub ttl: Duration,
    /// Whether the fault lasts longer than the TTL on purpose.
    pub outlasts: bool,
    /// Starts the servers.
    pub start: Arc<Start>,
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} on {}", self.setup, self.fault, self.backend)
    }
}

struct Staged<R: 'static> {
    rig: R,
    settle: Step<R>,
    fault: &'static Fault<R>,
}

impl<R: Rig> Stage for Staged<R> {
    fn url(&self, who: Worker) -> String {
        self.rig.url(who)
    }

    fn before(&mut self) -> Result<(), Trouble> {
        (self.settle)(&mut self.rig)?;
        (self.fault.before)(&mut self.rig)
    }

    fn strike(&mut self, moment: &Moment) -> Result<Witness, Trouble> {
        (self.fault.make)(&mut self.rig, moment)
    }
}

/// The scenes of these set-ups and faults: each fault in each of its set-ups, for each backend that the set-up serves.
#[must_use]
pub fn stage<R: Rig>(setups: &'static [SetUp<R>], faults: &'static [Fault<R>]) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for setup in setups {
        for fault in faults.iter().filter(|fault| fault.on.contains(&setup.id)) {
            let start: Arc<Start> = Arc::new(move || {
                let mut rig = (setup.start)()?;
                (fault.prepare)(&mut rig)?;
                Ok(Box::new(Staged { rig, settle: setup.settle, fault }))
            });
            scenes.extend(setup.backends.iter().map(|backend| Scene {
                setup: setup.id,
                setup_means: setup.means,
                fault: fault.id,
                fault_means: fault.means,
                backend: *backend,
                ttl: fault.ttl,
                outlasts: fault.outlasts,
                start: Arc::clone(&start),
            }));
        }
    }
    scenes
}

/// Looks again and again until it is there, for at most half a minute; then the fault was not shown. It blocks.
///
/// # Errors
/// [`Trouble::NotShown`], with what was waited for and what was seen last.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> Result<T, Trouble> {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(there) => return Ok(there),
            Err(seen) if begun.elapsed() > SHOWN_LIMIT => {
                return Err(Trouble::NotShown(format!("{what}: not so; the last that was seen: {seen}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

const SHOWN_LIMIT: Duration = Duration::from_secs(30);
