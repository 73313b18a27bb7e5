//! The faults of a soak, made one after the other as the schedule says, each with a witness.

use super::Soak;
use super::merge::Stream;
use super::schedule::{Kind, Step};
use super::team::{Member, Mode, Terms};
use crate::faults::OnceFault;
use crate::subject::ServerControl;
use lease_core::{Claim, Claims};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The kinds that can be made here.
pub(super) async fn kinds(soak: &Soak, team: &[Member], mode: Mode, claims: &Claims) -> Vec<Kind> {
    let mut kinds = Vec::new();
    if team.iter().all(|member| member.bench.is_some()) {
        kinds.extend(Kind::PATH);
    }
    kinds.push(Kind::WorkerStopped);
    if mode == Mode::Processes {
        kinds.push(Kind::WorkerKilled);
    }
    if let Some(server) = soak.subject.server() {
        // Not every server can be paused.
        let paused = on_server(server, |server| server.pause().and_then(|_| server.resume())).await;
        if paused.is_ok() {
            kinds.push(Kind::ServerFrozen);
        }
        // Where grants and tokens do not survive it, it would show just that.
        if claims.has(Claim::LeaseSurvivesRestart) && claims.has(Claim::TokenSurvivesRestart) {
            kinds.push(Kind::ServerKilled);
        }
    }
    kinds
}

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Done {
    kinds: BTreeMap<&'static str, Vec<String>>,
    /// How often a fault was armed and nothing came by.
    unmet: BTreeMap<&'static str, u64>,
}

impl Done {
    /// By kind: how often, and what was seen of the first ones.
    pub(super) fn evidence(&self) -> Value {
        let kinds = self.kinds.iter().map(|(kind, seen)| {
            let first: Vec<&String> = seen.iter().take(3).collect();
            (*kind, json!({ "times": seen.len(), "witnesses": first }))
        });
        json!(kinds.collect::<BTreeMap<_, _>>())
    }

    pub(super) fn unmet(&self) -> Value {
        json!(self.unmet)
    }

    pub(super) fn times(&self) -> usize {
        self.kinds.values().map(Vec::len).sum()
    }

    fn note(&mut self, kind: Kind, witness: Option<String>) {
        if let Some(witness) = witness {
            self.kinds.entry(kind.name()).or_default().push(witness);
        } else {
            let unmet = self.unmet.entry(kind.name()).or_default();
            *unmet = unmet.saturating_add(1);
        }
    }
}

/// Makes one fault and ends it.
pub(super) async fn make(
    soak: &Soak,
    (terms, mode): (&Terms, Mode),
    step: &Step,
    team: &mut Vec<Member>,
    streams: &mut Vec<Stream>,
    done: &mut Done,
) -> Result<(), String> {
    tokio::time::sleep(step.wait).await;
    let witness = match step.kind {
        Kind::ServerFrozen => {
            let server = soak.subject.server().ok_or("the server is gone")?;
            let frozen = Frozen(Some(Arc::clone(&server)));
            let pausing = on_server(Arc::clone(&server), move |server| Ok((server.pause()?, frozen)));
            let (pid, mut frozen) = pausing.await?;
            tokio::time::sleep(step.lasts).await;
            on_server(server, |server| server.resume()).await?;
            frozen.0 = None;
            Some(format!("pid {pid} for {} ms", step.lasts.as_millis()))
        }
        Kind::ServerKilled => {
            let server = soak.subject.server().ok_or("the server is gone")?;
            let (before, after) = on_server(server, |server| server.kill_and_restart()).await?;
            Some(format!("pid {before}, then {after}"))
        }
        Kind::WorkerKilled => {
            if step.worker >= team.len() {
                return Err("there is no such worker".to_owned());
            }
            let (next, stream, pid) = team.swap_remove(step.worker).replace(soak, terms, mode).await?;
            team.push(next);
            let last = team.len().saturating_sub(1);
            team.swap(step.worker, last);
            streams.push(stream);
            Some(format!("pid {pid}"))
        }
        _ => {
            let member = team.get_mut(step.worker).ok_or("there is no such worker")?;
            on_member(member, step).await?
        }
    };
    done.note(step.kind, witness);
    Ok(())
}

/// A server that is stopped, and is resumed when the soak is given up in the middle. It comes out of the call that stops the server, so that
/// one which nobody waits for any more undoes itself.
struct Frozen(Option<Arc<dyn ServerControl>>);

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(server) = &self.0 {
            // Nobody is left to be told that it failed.
            drop(server.resume());
        }
    }
}

async fn on_member(member: &mut Member, step: &Step) -> Result<Option<String>, String> {
    if step.kind == Kind::WorkerStopped {
        let state = member.worker.pause().await?;
        tokio::time::sleep(step.lasts).await;
        member.worker.resume()?;
        return Ok(Some(format!("pid {} in state {state}", member.worker.pid())));
    }
    let bench = member.bench.clone().ok_or("the worker has no path that can be disturbed")?;
    let path = bench.path();
    let (requests, replies) = path.counts();
    let arrived = || {
        let (now_requests, now_replies) = path.counts();
        let (more, answers) = (now_requests.saturating_sub(requests), now_replies.saturating_sub(replies));
        format!("{more} requests and {answers} replies came by")
    };
    match step.kind {
        Kind::BlackHole => {
            path.black_hole(true);
            tokio::time::sleep(step.lasts).await;
            let seen = arrived();
            path.black_hole(false);
            Ok(Some(seen))
        }
        Kind::Cut | Kind::Refused => {
            path.refuse(step.kind == Kind::Refused);
            path.cut();
            tokio::time::sleep(step.lasts).await;
            path.heal();
            Ok(Some(format!("{}, cut", path.kind())))
        }
        kind => {
            path.once(match kind {
                Kind::RequestLost => OnceFault::RequestLost,
                Kind::ReplyLost => OnceFault::ReplyLost,
                Kind::RequestHeld => OnceFault::RequestHeld,
                _ => OnceFault::ReplyHeld,
            });
            // A worker is never long without a request.
            for _ in 0..100 {
                if path.happened() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let happened = path.happened();
            tokio::time::sleep(step.lasts).await;
            path.heal();
            Ok(happened.then(|| format!("{}, happened", path.kind())))
        }
    }
}

/// Signals and restarts block, so not on the runtime.
async fn on_server<T: Send + 'static>(
    server: Arc<dyn ServerControl>,
    work: impl FnOnce(&dyn ServerControl) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(move || work(server.as_ref())).await;
    done.map_err(|e| format!("the server's control panicked: {e}"))?
}
