//! The driver: starts the workers, makes the faults, and judges what was noted.

use super::faults::{Done, kinds, make};
use super::merge::{Judged, Stream, judge};
use super::schedule::{hash, schedule};
use super::team::{Member, Mode, Terms};
use super::{CASE, Soak};
use crate::context::{Evidence, evidence, millis, now};
use crate::judge::{Observed, Rule};
use crate::report::Cell;
use crate::subject::TestDestination;
use crate::trials::Outcome;
use lease_core::{Acquisition, Attempt, GrantId, LeaseBackend, ResourceName, Ttl};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many names the workers share.
const NAMES: usize = 3;

pub(super) async fn soak(soak: &Soak, first: Arc<dyn LeaseBackend>, seed: u64) -> Cell {
    let claims = first.claims();
    let (observed, evidence) = match run(soak, first.as_ref(), seed).await {
        Ok((observed, evidence)) => (observed, evidence),
        Err(reason) => (Observed::NotTried { reason }, Evidence::new()),
    };
    let outcome = Outcome {
        case: CASE,
        destination: Some(soak.place.kind().to_owned()),
        rule: Rule::Core,
        declared: claims,
        observed,
        evidence,
        timeline: None,
    };
    outcome.into_cell(soak.subject.name())
}

async fn run(soak: &Soak, first: &dyn LeaseBackend, seed: u64) -> Result<(Observed, Evidence), String> {
    let apart = GrantId::random().map_err(|e| e.to_string())?.to_hex();
    let limits = first.limits();
    let ttl = Duration::from_millis(600).max(limits.min_ttl).min(limits.max_ttl);
    let terms = Terms {
        names: (0..NAMES).map(|n| format!("{apart}/{n}")).collect(),
        ttl,
        namespace: format!("s{apart}"),
        seed,
    };
    let destination = open(soak, first, &terms).await?;
    let mode = Mode::of(soak, &terms.namespace);
    let mut team = Vec::new();
    for number in 0..soak.workers {
        team.push(Member::start(soak, &terms, mode, number).await?);
    }
    let kinds = kinds(soak, &team, mode, &first.claims()).await;
    let steps = schedule(seed, soak.time, ttl, soak.workers, &kinds);
    let (mut streams, mut done) = (Vec::new(), Done::default());
    let begun = now();
    for (at, step) in steps.iter().enumerate() {
        soak.tell(&format!("fault {}/{}: {}", at.saturating_add(1), steps.len(), step.kind.name()));
        make(soak, (&terms, mode), step, &mut team, &mut streams, &mut done).await?;
    }
    let lasted = now().saturating_since(begun);
    soak.tell("the last operations");
    for member in team {
        streams.push(member.end().await?);
    }
    let last = contents(destination.as_ref(), &terms).await?;
    soak.tell("checking");
    let judged = tokio::task::spawn_blocking(move || (judge(&streams, &last), streams)).await;
    let (judged, streams) = judged.map_err(|e| format!("the checker ended by itself: {e}"))?;
    let mut figures = evidence! {
        "faults": done.evidence(),
        "faults_armed_for_nothing": done.unmet(),
        "fault_count": done.times(),
        "schedule_hash": hash(&steps),
        "seconds": lasted.as_secs(),
        "ttl_ms": millis(ttl),
        "workers": match mode { Mode::Processes => "processes", Mode::Threads => "threads" },
        "histories": streams.len(),
        "violations": judged.violations.len(),
    };
    figures.extend(judged.counts.iter().map(|(name, count)| ((*name).to_owned(), (*count).into())));
    Ok((observed(&judged, &streams, done.times()), figures))
}

/// Opens the destination and lets it trust the store's authority.
async fn open(soak: &Soak, first: &dyn LeaseBackend, terms: &Terms) -> Result<Arc<dyn TestDestination>, String> {
    let name = ResourceName::parse(format!("{}/authority", terms.namespace)).map_err(|e| e.to_string())?;
    let ttl = Ttl::parse(terms.ttl).map_err(|e| e.to_string())?;
    let attempt = Attempt::new(name, ttl).map_err(|e| e.to_string())?;
    let lease = match first.acquire(&attempt).await.map_err(|e| e.to_string())? {
        Acquisition::Acquired(lease) => lease,
        Acquisition::Held(_) => return Err("a name that nobody knows is held".to_owned()),
    };
    let token = lease.token().ok_or("the backend gives no fencing tokens")?;
    let destination = soak.place.open(&terms.namespace).await.map_err(|e| e.to_string())?;
    destination.adopt(None, token.authority()).await.map_err(|e| e.to_string())?;
    first.release(&lease).await.map(|_| destination).map_err(|e| e.to_string())
}

/// What each register holds when everybody has gone.
async fn contents(
    destination: &dyn TestDestination,
    terms: &Terms,
) -> Result<BTreeMap<ResourceName, Option<String>>, String> {
    let mut contents = BTreeMap::new();
    for name in &terms.names {
        let name = ResourceName::parse(name).map_err(|e| e.to_string())?;
        let stored = destination.read(&name).await.map_err(|e| format!("the last read failed: {e}"))?;
        let tag = stored.value.map(|value| super::note::tags(&value).0.to_owned());
        contents.insert(name, tag);
    }
    Ok(contents)
}

/// A soak in which nothing happened shows nothing.
fn observed(judged: &Judged, streams: &[Stream], faults: usize) -> Observed {
    let count = |name| judged.counts.get(name).copied().unwrap_or_default();
    if let Some(first) = judged.violations.first() {
        let more = judged.violations.len().saturating_sub(1);
        let finding = if more == 0 { first.clone() } else { format!("{first}; and {more} more") };
        return Observed::Refuted { trial: 1, finding };
    }
    let silent = streams.iter().any(Vec::is_empty);
    if count("grants") == 0 || count("commits") == 0 || faults == 0 || silent {
        let reason = format!(
            "{} grants, {} commits, {faults} faults, a silent worker: {silent}: too little happened",
            count("grants"),
            count("commits")
        );
        return Observed::NotTried { reason };
    }
    Observed::Held { trials: 1 }
}
