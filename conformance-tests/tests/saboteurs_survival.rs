//! One line of a real backend's script is edited, and a real fault in a real set-up has another outcome, in the cell that it is for.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::program::Backend;
use lease_conformance::subject::{Opener, PlainWriter, TestDestination};
use lease_conformance::survival::{Engine, Expected, Guarantee, Outcome, scenes};
use lease_core::{GuardError, LeaseBackend, LeaseError};
use lease_redis::RedisBackend;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Opens Redis with an edit in its scripts.
struct Edited(Option<(&'static str, &'static str)>);

#[async_trait::async_trait]
impl Opener for Edited {
    async fn backend(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        let edits: Vec<(&str, &str)> = self.0.into_iter().collect();
        Ok(Arc::new(RedisBackend::connect_edited(url, &edits).await?))
    }

    async fn plain_writer(&self, _url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        Ok(None)
    }

    async fn destination(&self, _url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        unreachable!("destinations are in memory when there is no folder")
    }
}

/// What is not as the table expects it when this scene is played with the edit.
async fn turned(setup: &str, fault: &str, edit: Option<(&'static str, &'static str)>) -> BTreeMap<Guarantee, Outcome> {
    let all = scenes();
    let is_it = |scene: &&_| {
        let scene: &lease_conformance::survival::Scene = scene;
        scene.setup == setup && scene.fault == fault && scene.backend == Backend::Redis
    };
    let scene = all.iter().find(is_it).unwrap().clone();
    let engine =
        Engine { opener: Arc::new(Edited(edit)), folder: None, trials: 1, at_once: 1, progress: Arc::new(|_, _| {}) };
    let outcomes = engine.run(&[scene], &Expected::built_in().unwrap()).await.pop().unwrap();
    assert_eq!(outcomes.trouble, None);
    let cells = outcomes.cells.into_iter().filter(|cell| !cell.is_expected());
    cells.map(|cell| (cell.guarantee, cell.outcome)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn unedited_nothing_differs() {
    assert_eq!(turned("redis/aof-always", "restore", None).await, BTreeMap::new());
}

/// Only the server's clock keeps tokens from coming again after a restore.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_clock_as_lower_bound_a_restored_backup_repeats_a_token() {
    let edit = ("math.max(before + 1, t)", "before + 1");
    let seen = turned("redis/aof-always", "restore", Some(edit)).await;
    // The guard at the place that A never reached sees the same value of another grant, and refuses the second.
    let expected = [(Guarantee::TokenOrder, Outcome::Breaks), (Guarantee::FenceReached, Outcome::Noticed)];
    assert_eq!(seen, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_lets_a_second_one_in_breaks_exclusion_only() {
    let edit = ("if live then return { 'held'", "if live and false then return { 'held'");
    let seen = turned("redis/aof-always", "kill-restart", Some(edit)).await;
    assert_eq!(seen, BTreeMap::from([(Guarantee::Exclusion, Outcome::Breaks)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_never_ends_is_never_followed() {
    let edit = ("local live = state == 'h' and t < expires", "local live = state == 'h'");
    let seen = turned("redis/aof-always", "kill-restart", Some(edit)).await;
    assert_eq!(seen.get(&Guarantee::Granting), Some(&Outcome::Breaks), "{seen:?}");
    assert_eq!(seen.get(&Guarantee::Exclusion), None, "{seen:?}");
}
