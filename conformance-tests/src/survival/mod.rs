//! What survives a server fault: each guarantee of a lease, for each lease backend, server set-up and fault, shown by a run.
//!
//! A *set-up* is how the servers run (`redis/aof-everysec`), a *fault* is what happens to them (`power-cut`), a *scene* is one fault in one
//! set-up. The engine plays every scene alike (see `play.rs`): worker A gets a lease, seals and writes at one destination, more grants are
//! made and acknowledged, the fault happens, and worker B, who has tried all the time, gets the lease sooner or later. What was granted,
//! renewed, refused and written is judged (`judge.rs`) and compared with `survival.toml`, which is committed before the run.
//!
//! # Adding a set-up or a fault
//!
//! Each store has one file here (`redis.rs` is the one to copy from) with a `scenes()` that [`stage`]s its lists; `scenes()` below calls it.
//!
//! 1. A *rig* is what the store's servers are in code, with whatever the faults have to remember (a backup, say): any type with
//!    [`Rig::url`]. Several rigs in one file are several calls of [`stage`].
//! 2. A [`SetUp`] names the rig's function to start it and the backends that it serves. `settle` brings what was granted so far to safety
//!    (syncs it, waits for the replica), so that the fault takes recent history only, and not the store's incarnation with it.
//! 3. A [`Fault`] has three steps, all of them plain blocking functions on the rig: `prepare` before anybody connects (a disk, a clock
//!    of the server's own), `before` after the set-up's `settle` and before the grants that the fault may take (cut the link, make the
//!    backup), and `make`, which returns when the fault is *over* (the server is back), with a [`Witness`] of what was read from the
//!    system. A fault that was not seen to happen is [`Trouble::NotShown`], and so is a witness without a fact: nothing is judged then.
//!    `on` lists the set-ups that it is tried in.
//! 4. Write the outcomes that you expect into `survival.toml`, one entry for each scene, with a reason for each that does not survive, and
//!    run `lease-conformance survive --setup ID --fault ID`. A difference is a bug, a wrong expectation, or a missing claim: find out which.
//!
//! Names that a rig may look for in its store: [`NAMESPACE`], [`CONTESTED`], [`KEPT`], [`OTHERS`].

mod cell;
#[cfg(feature = "program")]
mod contender;
#[cfg(feature = "program")]
mod engine;
#[cfg(feature = "program")]
mod etcd;
#[cfg(feature = "program")]
mod expected;
#[cfg(feature = "program")]
mod fold;
#[cfg(feature = "program")]
mod grounds;
#[cfg(feature = "program")]
mod held;
#[cfg(feature = "program")]
mod judge;
#[cfg(feature = "program")]
mod play;
#[cfg(feature = "program")]
mod postgres;
#[cfg(feature = "program")]
mod redis;
#[cfg(feature = "program")]
mod scene;

pub use cell::{Guarantee, Outcome, SurvivalCell};
#[cfg(feature = "program")]
pub use engine::{Engine, Outcomes, Progress};
#[cfg(feature = "program")]
pub use expected::{Entry, Expected};
#[cfg(feature = "program")]
pub use scene::{
    Fault, Moment, Rig, Scene, SetUp, Stage, Start, Step, Trouble, Witness, Worker, nothing, stage, until,
};

/// The namespace of the leases.
#[cfg(feature = "program")]
pub const NAMESPACE: &str = "survival";
/// The resource that A holds and B wants.
#[cfg(feature = "program")]
pub const CONTESTED: &str = "contested";
/// The resource that A holds, that nobody else wants, and that A renews after the fault.
#[cfg(feature = "program")]
pub const KEPT: &str = "kept";
/// The resources that are granted and released before the fault, and granted again after it.
#[cfg(feature = "program")]
pub const OTHERS: [&str; 3] = ["other-1", "other-2", "other-3"];

/// Every scene that there is, in the order of tables.
#[cfg(feature = "program")]
#[must_use]
pub fn scenes() -> Vec<Scene> {
    let mut scenes = redis::scenes();
    scenes.extend(etcd::scenes());
    scenes.extend(postgres::scenes());
    scenes
}
