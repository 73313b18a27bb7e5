//! Where the stale writes of one pause go.

use super::{GUARDED, IGNORED, NEITHER, PLAIN, SEALED};
use crate::context::{CONNECTING, Here, Run, Stage, destination_name};
use crate::subject::{Place, TestDestination};
use crate::worker::{Command, How, Worker};
use lease_core::{Authority, ResourceName};
use std::sync::Arc;

/// Workers of one kind, and the places that they can reach.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Processes of their own; else runtimes on threads.
    pub(super) processes: bool,
    /// By number, as in [`Run::places`].
    pub(super) places: Vec<usize>,
    /// Whether the cases without a destination are judged from this group: one group does.
    pub(super) first: bool,
}

/// Processes for what has a URL, threads for the rest.
pub(super) fn groups(run: &Run) -> Vec<Group> {
    let processes = run.program.is_some() && run.subject.worker_url().is_some();
    let all = 0..run.places.len();
    if !processes {
        let places = all.collect();
        return vec![Group { processes: false, places, first: true }];
    }
    let has_url = |at: &usize| run.places.get(*at).is_some_and(|place| place.url("probe").is_some());
    let (reached, rest): (Vec<_>, Vec<_>) = all.partition(has_url);
    let mut groups = vec![Group { processes: true, places: reached, first: true }];
    if !rest.is_empty() {
        groups.push(Group { processes: false, places: rest, first: false });
    }
    groups
}

impl Group {
    /// Starts a worker that is connected.
    pub(super) async fn worker(&self, run: &Arc<Run>) -> Result<Worker, String> {
        let (mut worker, url) = match (&run.program, run.subject.worker_url()) {
            (Some(program), Some(url)) if self.processes => (Worker::process(program)?, url),
            _ => (Worker::thread(Arc::new(Here(Arc::clone(run))))?, String::new()),
        };
        worker.call(Command::Connect { url }).await?;
        Ok(worker)
    }

    fn url(&self, place: &dyn Place, at: usize, namespace: &str) -> Option<String> {
        if self.processes { place.url(namespace) } else { Some(Here::url(at, namespace)) }
    }
}

/// What B does while A is stopped, and how A writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Guarded,
    Sealed,
    Neither,
    Plain,
    Ignored,
}

impl Mode {
    pub(super) const ALL: [Self; 5] = [Self::Guarded, Self::Sealed, Self::Neither, Self::Plain, Self::Ignored];

    pub(super) fn case(self) -> &'static str {
        match self {
            Self::Guarded => GUARDED,
            Self::Sealed => SEALED,
            Self::Neither => NEITHER,
            Self::Plain => PLAIN,
            Self::Ignored => IGNORED,
        }
    }

    pub(super) fn needs_token(self) -> bool {
        self != Self::Plain
    }

    /// How A, the stale worker, writes.
    pub(super) fn stale_how(self) -> How {
        match self {
            Self::Guarded | Self::Sealed | Self::Neither => How::Guarded,
            Self::Plain => How::Plain,
            Self::Ignored => How::IgnoringRefusal,
        }
    }

    /// How B, the new holder, writes.
    pub(super) fn fresh_how(self) -> How {
        if self == Self::Plain { How::Plain } else { How::Guarded }
    }

    /// Whether this worker's writes are plain guarded ones, which the history's invariants hold for.
    pub(super) fn is_guarded(self, stale_worker: bool) -> bool {
        let how = if stale_worker { self.stale_how() } else { self.fresh_how() };
        how == How::Guarded
    }

    /// B seals while A is stopped.
    pub(super) fn seals(self) -> bool {
        matches!(self, Self::Guarded | Self::Sealed | Self::Ignored)
    }

    /// B writes while A is stopped; else it does so afterwards, from what it had read.
    pub(super) fn writes_during(self) -> bool {
        matches!(self, Self::Guarded | Self::Plain | Self::Ignored)
    }
}

/// One place in one mode.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) mode: Mode,
    pub(super) destination: String,
    /// The namespace, which is also what workers call it.
    pub(super) key: String,
    pub(super) url: String,
    /// The observer's own.
    pub(super) open: Arc<dyn TestDestination>,
}

/// A place in a mode that could not be set up, and why.
#[derive(Clone, Debug)]
pub(super) struct Unopened {
    pub(super) mode: Mode,
    pub(super) destination: String,
    pub(super) reason: String,
}

/// What is at a destination before anybody holds a lease.
pub(super) const START: &str = "start";

/// Opens every place in every mode, lets it trust `authority`, and puts something there.
pub(super) async fn open_all(
    stage: &Stage,
    group: &Group,
    resource: &ResourceName,
    authority: Option<&Authority>,
) -> (Vec<Target>, Vec<Unopened>) {
    let (mut targets, mut unopened) = (Vec::new(), Vec::new());
    for (at, mode) in group.places.iter().flat_map(|at| Mode::ALL.map(|mode| (*at, mode))) {
        let Some(place) = stage.run.places.get(at) else { continue };
        let destination = destination_name(&stage.run, place.as_ref());
        let opened =
            tokio::time::timeout(CONNECTING, open(stage, group, (place.as_ref(), at), mode, resource, authority));
        match opened.await.unwrap_or_else(|_| Err("opening did not end within 60 s".into())) {
            Ok((key, url, open)) => targets.push(Target { mode, destination, key, url, open }),
            Err(reason) => unopened.push(Unopened { mode, destination, reason }),
        }
    }
    (targets, unopened)
}

async fn open(
    stage: &Stage,
    group: &Group,
    (place, at): (&dyn Place, usize),
    mode: Mode,
    resource: &ResourceName,
    authority: Option<&Authority>,
) -> Result<(String, String, Arc<dyn TestDestination>), String> {
    let namespace = stage.run.namespace();
    let url = group.url(place, at, &namespace).ok_or("it has no URL")?;
    let open = place.open(&namespace).await.map_err(|e| e.to_string())?;
    if mode.needs_token() {
        let authority = authority.ok_or("the backend gives no fencing tokens")?;
        open.adopt(None, authority).await.map_err(|e| e.to_string())?;
    }
    open.write_plain(resource, START).await.map_err(|e| e.to_string())?;
    Ok((namespace, url, open))
}
