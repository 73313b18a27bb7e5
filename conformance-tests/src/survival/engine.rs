//! Plays many scenes, some at a time, each as often as it needs.

use super::cell::SurvivalCell;
use super::expected::{Entry, Expected};
use super::fold::{Folded, not_tried};
use super::play::{Played, play};
use super::scene::{Scene, Trouble};
use crate::subject::Opener;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How often a TTL is doubled on a machine that is too busy for it.
const DOUBLINGS: u32 = 3;

/// Is told of a scene that is over, and how many are.
pub type Progress = dyn Fn(usize, &Scene) + Send + Sync;

/// Plays scenes. Needs a runtime with several threads, since servers are waited for in place.
#[derive(Clone)]
pub struct Engine {
    /// Opens backends and destinations.
    pub opener: Arc<dyn Opener>,
    /// Where the destinations' files go; in memory when there is no folder.
    pub folder: Option<PathBuf>,
    /// How often each scene is played at least.
    pub trials: u32,
    /// How many at a time. They mostly wait.
    pub at_once: usize,
    /// Is told of each scene that is over, and how many are.
    pub progress: Arc<Progress>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("trials", &self.trials).field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

/// What came of one scene.
#[derive(Debug)]
pub struct Outcomes {
    /// One cell for each guarantee.
    pub cells: Vec<SurvivalCell>,
    /// Why it could not be played, if so.
    pub trouble: Option<Trouble>,
}

impl Engine {
    /// Plays the scenes; the results are in their order.
    ///
    /// # Cancel safety
    /// The servers of the scenes that are being played end with them.
    pub async fn run(&self, scenes: &[Scene], expected: &Expected) -> Vec<Outcomes> {
        let gate = Arc::new(Semaphore::new(self.at_once.max(1)));
        let mut tasks = JoinSet::new();
        let mut order: Vec<usize> = (0..scenes.len()).collect();
        // The longest first, so that none of them is left alone at the end.
        order.sort_by_key(|index| std::cmp::Reverse(scenes.get(*index).map(|scene| scene.ttl)));
        for index in order {
            let Some(scene) = scenes.get(index).cloned() else { continue };
            let (engine, gate) = (self.clone(), Arc::clone(&gate));
            let entry = expected.of(&scene).cloned();
            tasks.spawn(async move {
                // The gate is never closed.
                let _turn = gate.acquire().await;
                (index, engine.scene(&scene, entry.as_ref(), index).await)
            });
        }
        let mut done = BTreeMap::new();
        while let Some(result) = tasks.join_next().await {
            if let Ok((index, outcomes)) = result {
                done.insert(index, outcomes);
                if let Some(scene) = scenes.get(index) {
                    (self.progress)(done.len(), scene);
                }
            }
        }
        let of = |(index, scene): (usize, &Scene)| {
            done.remove(&index)
                .unwrap_or_else(|| failed(scene, expected.of(scene), Trouble::Failed("playing it panicked".to_owned())))
        };
        scenes.iter().enumerate().map(of).collect()
    }

    /// Plays one scene until what is expected was seen, as often as is allowed.
    async fn scene(&self, scene: &Scene, entry: Option<&Entry>, index: usize) -> Outcomes {
        if let Some(reason) = scene.backend.compiled_out() {
            return failed(scene, entry, Trouble::Missing(reason));
        }
        let expected = entry.map(Entry::outcomes).unwrap_or_default();
        let least = self.trials.max(1);
        let most = least.max(entry.map_or(1, Entry::tries));
        let mut folded = Folded::default();
        let mut not_shown = None;
        for trial in 1..=most {
            match self.once(scene, index, trial).await {
                Ok(played) => folded.add(&played),
                // It may be shown in the next one.
                Err(trouble @ Trouble::NotShown(_)) => not_shown = Some(trouble),
                Err(trouble) => return failed(scene, entry, trouble),
            }
            if trial >= least && folded.are(&expected) {
                break;
            }
        }
        match (folded.is_empty(), not_shown) {
            (true, Some(trouble)) => failed(scene, entry, trouble),
            _ => Outcomes { cells: folded.cells(scene, &expected), trouble: None },
        }
    }

    /// Plays it once, with a longer TTL where the machine is too busy.
    async fn once(&self, scene: &Scene, index: usize, trial: u32) -> Result<Played, Trouble> {
        let mut ttl = scene.ttl;
        for doubling in 0..=DOUBLINGS {
            let name = format!("{index}-{trial}-{doubling}.db");
            let file = self.folder.as_deref().map(|folder: &Path| folder.join(name));
            match play(scene, &self.opener, file.as_deref(), ttl).await {
                Err(Trouble::TooSlow(_)) if doubling < DOUBLINGS => ttl = ttl.saturating_mul(2),
                result => return result,
            }
        }
        Err(Trouble::TooSlow("even for a TTL that was doubled again and again".to_owned()))
    }
}

fn failed(scene: &Scene, entry: Option<&Entry>, trouble: Trouble) -> Outcomes {
    let expected = entry.map(Entry::outcomes).unwrap_or_default();
    Outcomes { cells: not_tried(scene, &expected, &trouble), trouble: Some(trouble) }
}
