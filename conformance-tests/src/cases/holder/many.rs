//! Holders of every kind of trouble, as many as are wanted, and what was seen of them.

use super::fault::Kind;
use crate::context::{Evidence, Stage, Stop, evidence};
use crate::figures;
use crate::task::Task;
use lease_core::Ttl;
use serde_json::{Value, json};
use std::time::Duration;

/// How many holders there are, at least.
const HOLDERS: u32 = 20;

/// The kinds that can be tried here, those that can be tried together first; and why the others cannot.
async fn kinds(stage: &Stage, without: &[Kind]) -> (Vec<Vec<Kind>>, Vec<String>) {
    let subject = &stage.run.subject;
    let (mut can_freeze, mut can_kill) = (false, false);
    if let Some(server) = subject.server() {
        can_kill = server.can_be_down();
        let paused = tokio::task::spawn_blocking(move || server.pause().and_then(|_| server.resume())).await;
        can_freeze = paused.is_ok_and(|paused| paused.is_ok());
    }
    let (mut together, mut alone, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for kind in Kind::ALL.into_iter().filter(|kind| !without.contains(kind)) {
        match kind.missing(subject.as_ref(), can_freeze, can_freeze && can_kill) {
            Some(reason) => missing.push(format!("{}: {reason}", kind.name())),
            None if kind.hits_all() => alone.push(vec![kind]),
            None => together.push(kind),
        }
    }
    alone.insert(0, together);
    (alone, missing)
}

/// How many holders each kind gets, so that there are `wanted` together.
fn each(rounds: &[Vec<Kind>], wanted: u32) -> u32 {
    let kinds = rounds.iter().map(Vec::len).sum::<usize>();
    wanted.div_ceil(u32::try_from(kinds).unwrap_or(1).max(1))
}

pub(super) fn ttl(stage: &Stage, wanted: Duration) -> Ttl {
    let limits = stage.run.limits;
    Ttl::parse(wanted.max(limits.min_ttl).min(limits.max_ttl)).unwrap_or_else(|_| stage.run.short())
}

/// What became of some holders of one kind.
pub(super) struct Told {
    pub(super) kind: Kind,
    pub(super) witness: String,
    /// What was seen of those that can be judged.
    pub(super) evidence: Evidence,
    pub(super) counted: u32,
    pub(super) discarded: u32,
}

/// How often holders are added for those that cannot be judged.
const PASSES: u32 = 3;

/// Runs trials of every kind, those of a round at the same time, until there are enough holders that can be judged.
pub(super) async fn all<F>(
    stage: &Stage,
    without: &[Kind],
    trial: impl Fn(Stage, Kind, u32) -> F,
) -> Result<(Evidence, Vec<Told>), Stop>
where
    F: Future<Output = Result<Told, Stop>> + Send + 'static,
{
    let (rounds, missing) = kinds(stage, without).await;
    let mut told: Vec<Told> = Vec::new();
    for _ in 0..PASSES {
        let wanted = HOLDERS.saturating_sub(sum(&told, |told| told.counted));
        let rounds = still(&rounds, &told, wanted);
        if rounds.is_empty() {
            break;
        }
        // A kind of which nobody could be judged gets some more holders than one.
        let count = each(&rounds, wanted).max(2);
        for round in &rounds {
            let start = |kind: &Kind| Task::spawn(trial(stage.clone(), *kind, count));
            let running: Vec<_> = round.iter().map(start).collect();
            let mut ended = Vec::new();
            for one in running {
                ended.push(one.await.map_err(|e| Stop::Refuted(format!("a trial ended by itself: {e}")))?);
            }
            told.extend(ended.into_iter().collect::<Result<Vec<_>, Stop>>()?);
        }
    }
    enough(&told)?;
    let kinds: Evidence = Kind::ALL.into_iter().filter_map(|kind| of_kind(&told, kind)).collect();
    let seen = evidence! {
        "holders": sum(&told, |told| told.counted),
        "holders_not_judged": sum(&told, |told| told.discarded),
        "kinds": kinds,
        "kinds_not_tried": missing,
    };
    Ok((seen, told))
}

fn sum(told: &[Told], of: fn(&Told) -> u32) -> u32 {
    told.iter().map(of).fold(0, u32::saturating_add)
}

/// Whether a holder of this kind could be judged.
fn is_judged(told: &[Told], kind: Kind) -> bool {
    told.iter().any(|told| told.kind == kind && told.counted > 0)
}

/// What has to be tried: everything while holders are wanted, and else the kinds of which none could be judged so far.
fn still(rounds: &[Vec<Kind>], told: &[Told], wanted: u32) -> Vec<Vec<Kind>> {
    let kinds =
        |round: &Vec<Kind>| round.iter().copied().filter(|kind| wanted > 0 || !is_judged(told, *kind)).collect();
    rounds.iter().map(kinds).filter(|round: &Vec<Kind>| !round.is_empty()).collect()
}

/// There are enough holders that can be judged, and some of each kind that was tried: a kind whose holders were all discarded has not been
/// tried, whatever the others have shown.
fn enough(told: &[Told]) -> Result<(), Stop> {
    let (counted, discarded) = (sum(told, |told| told.counted), sum(told, |told| told.discarded));
    let mut unjudged: Vec<&str> =
        told.iter().map(|told| told.kind).filter(|kind| !is_judged(told, *kind)).map(Kind::name).collect();
    unjudged.sort_unstable();
    unjudged.dedup();
    if counted < HOLDERS || !unjudged.is_empty() {
        let none = if unjudged.is_empty() { String::new() } else { format!(", and none of: {}", unjudged.join(", ")) };
        return Err(Stop::NotTried(format!(
            "the machine was too slow: only {counted} of {} holders can be judged{none}",
            counted.saturating_add(discarded)
        )));
    }
    Ok(())
}

/// The figures of one kind.
fn of_kind(told: &[Told], kind: Kind) -> Option<(String, Value)> {
    let own: Vec<&Told> = told.iter().filter(|told| told.kind == kind).collect();
    let witness = &own.last()?.witness;
    let mut seen = figures::merged(own.iter().map(|told| &told.evidence));
    seen.insert("witness".to_owned(), json!(witness));
    Some((kind.name().to_owned(), json!(seen)))
}

/// The least or most of one figure over all kinds.
pub(super) fn over_all(told: &[Told], name: &str, choose: fn(u64, u64) -> u64) -> Option<u64> {
    told.iter().filter_map(|told| told.evidence.get(name).and_then(Value::as_u64)).reduce(choose)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: Kind, counted: u32, discarded: u32) -> Told {
        Told { kind, witness: String::new(), evidence: Evidence::new(), counted, discarded }
    }

    #[test]
    fn a_kind_whose_holders_were_all_discarded_has_not_been_tried() {
        let rounds = [vec![Kind::BlackHole, Kind::WorkerStopped], vec![Kind::ServerKilled]];
        let mut seen = vec![told(Kind::BlackHole, HOLDERS, 0), told(Kind::WorkerStopped, 1, 6)];
        assert!(enough(&seen).is_ok());
        seen.push(told(Kind::ServerKilled, 0, 7));
        let Err(Stop::NotTried(reason)) = enough(&seen) else { panic!("it counts as tried") };
        assert!(reason.contains("server killed") && !reason.contains("black hole"), "{reason}");
        // It is tried again, by itself, and that may mend it.
        assert_eq!(still(&rounds, &seen, 0), [[Kind::ServerKilled]]);
        seen.push(told(Kind::ServerKilled, 1, 1));
        assert!(enough(&seen).is_ok());
        assert!(still(&rounds, &seen, 0).is_empty());
    }

    #[test]
    fn too_few_holders_are_not_enough() {
        let seen = [told(Kind::BlackHole, HOLDERS - 1, 3)];
        assert!(matches!(enough(&seen), Err(Stop::NotTried(_))));
        assert_eq!(still(&[vec![Kind::BlackHole]], &seen, 1), [[Kind::BlackHole]]);
    }
}
