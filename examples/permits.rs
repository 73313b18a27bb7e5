//! Each declaration of a permit, and what becomes of a stale worker's effect under it.
//!
//! ```text
//! cargo run -p leasehold --example permits
//! ```
//!
//! Each time the same happens: worker A gets its permit and prepares its effect; its machine sleeps past the TTL; worker B gets the lease
//! and does the same; A wakes up and goes on. In memory and on virtual time.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use leasehold::hold::{HoldOptions, Keeper, LeaseGuard, Permit, StaleBehaviour};
use leasehold::memory::{MemoryBackend, MemoryDestination, MemoryStore};
use leasehold::{DestinationExt, FenceError, FencingToken, GuardError, GuardedDestination};
use leasehold::{IdempotencyKey, LeaseBackend, ManualClock};
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn Error>;

const TTL: Duration = Duration::from_secs(10);
const A: &str = "100 euros, from A";
const B: &str = "90 euros, from B";
const UNPROTECTED: StaleBehaviour = StaleBehaviour::Unprotected { reason: "an example of what happens" };

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    println!("{:16} {:48} a stale worker's effect", "declaration", "what the code after the permit does");
    fenced(two_workers(StaleBehaviour::Fenced).await?).await?;
    transactional(two_workers(StaleBehaviour::Transactional).await?).await?;
    version_checked(two_workers(StaleBehaviour::VersionChecked).await?)?;
    idempotent(two_workers(StaleBehaviour::Idempotent).await?)?;
    unprotected(two_workers(UNPROTECTED).await?)
}

/// The token goes with the write, and the destination compares it in the same step.
async fn fenced([a, b]: [Worker; 2]) -> Result<(), Failure> {
    let accounts = MemoryDestination::new();
    accounts.trust(token(&b.permit)?.authority()).await?;
    // B seals before it reads, so that A's write can't land between its read and its write.
    accounts.seal(b.guard.resource(), token(&b.permit)?).await?;
    accounts.write(b.guard.resource(), token(&b.permit)?, B).await?;
    b.permit.committed();
    let effect = match accounts.write(a.guard.resource(), token(&a.permit)?, A).await {
        Err(GuardError::Refused { refusal, .. }) => Err(refusal.to_string()),
        answer => Ok(answer?),
    };
    row(a, "seals, then sends the token with every write", effect)
}

/// The data are in the lease's own store, which looks at the lease in the same step.
async fn transactional([a, b]: [Worker; 2]) -> Result<(), Failure> {
    b.store.fence().register().ok_or("no fence")?.write(&b.guard.lease(), B).await?;
    b.permit.committed();
    let effect = match a.store.fence().register().ok_or("no fence")?.write(&a.guard.lease(), A).await {
        Err(FenceError::Refused { .. }) => Err("its grant has ended".into()),
        answer => Ok(answer?),
    };
    row(a, "checks the lease in the transaction of the write", effect)
}

/// The write changes a row only if it is still the one that was read.
fn version_checked([a, b]: [Worker; 2]) -> Result<(), Failure> {
    let mut accounts = (7_u64, "110 euros");
    // UPDATE … SET version = version + 1 … WHERE … AND version = $read, and a look at the number of rows
    let mut update = |read: u64, text| {
        if accounts.0 != read {
            return Err(format!("no row has version {read} any more"));
        }
        accounts = (read.saturating_add(1), text);
        Ok(())
    };
    let (read_by_a, read_by_b) = (7, 7);
    update(read_by_b, B)?;
    b.permit.committed();
    row(a, "writes only over the version that it has read", update(read_by_a, A))
}

/// The other side knows a repeated operation by its key, which names neither worker nor grant.
fn idempotent([a, b]: [Worker; 2]) -> Result<(), Failure> {
    let mut bank = HashMap::new();
    let key = |worker: &Worker| IdempotencyKey::new(worker.guard.resource(), "rent/2026-12");
    let mut pay = |key: IdempotencyKey, text| match *bank.entry(key).or_insert(text) {
        first if first == text => Ok(()),
        first => Err(format!("done already: {first} (the first one wins)")),
    };
    pay(key(&b)?, B)?;
    b.permit.committed();
    let effect = pay(key(&a)?, A);
    row(a, "sends a key made of resource and operation", effect)
}

/// Nothing looks at anything.
fn unprotected([a, b]: [Worker; 2]) -> Result<(), Failure> {
    let accounts = MemoryDestination::new();
    accounts.write_plain(b.guard.resource(), B);
    b.permit.committed();
    accounts.write_plain(a.guard.resource(), A);
    row(a, "nothing; the log has the reason", Ok(()))
}

/// Prints what became of A's effect, and notes it in events and metrics.
fn row(stale: Worker, follows: &str, effect: Result<(), String>) -> Result<(), Failure> {
    let behaviour = stale.permit.behaviour();
    let lands = effect.is_ok();
    let text = effect.map_or_else(|refusal| format!("refused: {refusal}"), |()| "LANDS".into());
    println!("{:16} {follows:48} {}", behaviour.id(), text.split(';').next().unwrap_or_default());
    if lands {
        stale.permit.committed();
    } else {
        stale.permit.refused();
    }
    if lands == (behaviour == UNPROTECTED) { Ok(()) } else { Err("that is not what was declared".into()) }
}

fn token(permit: &Permit) -> Result<&FencingToken, Failure> {
    permit.token().ok_or_else(|| "this backend mints no tokens".into())
}

struct Worker {
    store: MemoryBackend,
    guard: LeaseGuard,
    permit: Permit,
}

/// A, whose machine slept past the TTL after it had got its permit, and B, who has the lease now.
async fn two_workers(behaviour: StaleBehaviour) -> Result<[Worker; 2], Failure> {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock.shared())?;
    let a = worker(&store, behaviour).await?;
    clock.advance(TTL.saturating_mul(2));
    let b = worker(&store, behaviour).await?;
    // A learns it as soon as it asks. What it was given before can't be taken back.
    if a.guard.permit(behaviour).is_ok() {
        return Err("a lost guard gave a permit".into());
    }
    Ok([a, b])
}

async fn worker(store: &MemoryStore, behaviour: StaleBehaviour) -> Result<Worker, Failure> {
    let store = MemoryBackend::on(store.clone());
    let keeper = Keeper::start(Arc::new(store.clone()))?;
    let guard = keeper.acquire("accounts/42", TTL, HoldOptions::default()).await?.ok_or("somebody else has it")?;
    let permit = guard.permit(behaviour)?;
    Ok(Worker { store, guard, permit })
}
