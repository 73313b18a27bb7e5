//! Guards whose every operation is one atomic request: memory, Redis, etcd. All orders of the requests of two writers and of `adopt`; each answer,
//! and what is held at the end, is compared with a reference that carries the same requests out one after the other.

mod broken;
#[cfg(feature = "etcd-saboteurs")]
mod etcd;
mod play;
mod programs;
mod reference;

use crate::explorer::merges;
use crate::model::FIRST;
use broken::{assert_flaws_are_found, assert_look_is_found};
use lease_core::memory::MemoryDestination;
use lease_core::{Authority, FencingToken, GuardError, GuardedDestination, Refusal, ResourceName, Stored};
use lease_redis::RedisDestination;
use lease_servers::RedisSetup;
use play::Tally;
use programs::{all_programs, scenes};
use std::sync::Arc;

/// A request of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read,
    Seal,
    Write,
    Adopt,
    /// Reads the mark and judges it in the program, as a broken writer does; a refusal ends its program.
    Look,
    /// Writes without a check what was looked at before.
    WriteBlindly,
    /// Seals, and keeps the conditions for a transaction of the caller's own.
    Prepare,
    /// The caller's own transaction under those conditions.
    Land,
}

/// What a request was answered, as far as the contract fixes it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Refused(Refusal),
    /// The caller's own transaction did not succeed.
    NotLanded,
    Conflict(Option<Authority>),
    Read(Stored),
}

/// The caller's own transaction, where a store's guard gives conditions for one.
#[async_trait::async_trait]
trait Own: Send + Sync {
    async fn prepare(&self, actor: usize, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError>;
    async fn land(&self, actor: usize, resource: &ResourceName) -> bool;
    async fn landed(&self, resource: &ResourceName) -> Option<usize>;
}

/// A store under test.
#[derive(Clone)]
struct Site {
    guard: Arc<dyn GuardedDestination>,
    blind: Option<Blind>,
    own: Option<Arc<dyn Own>>,
}

impl Site {
    fn new(guard: impl GuardedDestination + 'static) -> Self {
        Self { guard: Arc::new(guard), blind: None, own: None }
    }
}

/// The same store without a check.
#[derive(Clone)]
enum Blind {
    Memory(MemoryDestination),
    Edited(Arc<dyn GuardedDestination>),
}

#[derive(Clone, Debug)]
struct Scene {
    tokens: Vec<FencingToken>,
    programs: Vec<Vec<Op>>,
}

/// Plays all schedules. Each label is used once in a store, so that each schedule has a resource of its own.
async fn explore(site: &Site, label: &str, scenes: &[Scene]) -> Tally {
    let mut tally = Tally::default();
    let mut adopted = site.guard.adopt(None, &Authority::parse(FIRST).unwrap()).await;
    if matches!(adopted, Err(GuardError::AdoptConflict { .. })) {
        adopted = Ok(());
    }
    adopted.unwrap();
    for (number, scene) in scenes.iter().enumerate() {
        let lengths: Vec<_> = scene.programs.iter().map(Vec::len).collect();
        for (place, schedule) in merges(&lengths).iter().enumerate() {
            let resource = ResourceName::parse(format!("{label}/{number}/{place}")).unwrap();
            tally.schedule(site, scene, schedule, &resource).await;
        }
    }
    tally
}

#[tokio::test]
async fn memory_is_right_in_every_order() {
    let memory = MemoryDestination::new();
    let site = Site { blind: Some(Blind::Memory(memory.clone())), ..Site::new(memory) };
    for (label, scenes) in [("scenes", scenes()), ("all programs of three", all_programs())] {
        let tally = explore(&site, label, &scenes).await;
        println!("memory, {label}: {tally}");
        tally.assert_honest();
    }
    assert_flaws_are_found(&site).await;
    assert_look_is_found(&site).await;
}

#[tokio::test]
async fn redis_is_right_in_every_order() {
    let server = lease_servers::redis(&RedisSetup { append_fsync: "no", ..RedisSetup::default() }).unwrap();
    let open = async |namespace: &str, edits: &[(&str, &str)]| {
        let url = format!("{}?namespace={namespace}&call_timeout_ms=60000&connect_timeout_ms=60000", server.url());
        RedisDestination::connect_edited(&url, edits).await.unwrap()
    };
    let site = Site::new(open("honest", &[]).await);
    let tally = explore(&site, "scenes", &scenes()).await;
    println!("redis: {tally}");
    tally.assert_honest();
    let stale = ("if order < 0 then return redis.error_reply('LEASEHOLD_GUARD stale ' .. value) end", "");
    for (number, (name, edit)) in [
        ("forgets its mark", ("if order > 0 then redis.call('HSET'", "if false then redis.call('HSET'")),
        ("takes another grant's value", ("order == 0 and grant ~= ARGV[3]", "false")),
        ("refuses the holder's second write", ("if order < 0 then", "if order <= 0 then")),
        ("swallows its refusal", stale),
    ]
    .into_iter()
    .enumerate()
    {
        let broken = Site::new(open(&format!("broken{number}"), &[edit]).await);
        let tally = explore(&broken, "scenes", &scenes()).await;
        println!("redis saboteur, {name}: {tally}");
        assert!(tally.differences > 0, "{name} was not found");
    }
    let blind = Blind::Edited(Arc::new(open("honest", &[stale]).await));
    assert_look_is_found(&Site { blind: Some(blind), ..site }).await;
}
