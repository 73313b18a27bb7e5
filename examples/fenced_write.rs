//! Two workers, one of them paused past its TTL: what happens to the write that it had prepared.
//!
//! ```text
//! cargo run -p leasehold --example fenced_write                                         # in memory
//! cargo run -p leasehold --example fenced_write --features redis -- redis://localhost/  # leases there, and a guarded destination too
//! ```
//!
//! The pause is real time without a word to the lease store, which is all that a stopped process is to it. The suite does the
//! same with separate processes that are really stopped.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the timeline is what this program is for")]

use leasehold::{DestinationExt, FencingToken, GuardError, Lease, LeaseBackend, LeaseExt, Registry, Release, Renewal};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(1);
/// Longer than the TTL of any backend that raises it.
const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:example".into());
    match two_workers(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn two_workers(url: &str) -> Result<(), Box<dyn Error>> {
    let registry = Registry::new();
    // Two clients of one lease store, and two destinations: one that knows nothing of fencing, and a guarded one.
    let (store_of_a, store_of_b) = (registry.connect(url).await?, registry.connect(url).await?);
    let guarded = registry.connect_destination(url).await?;
    let mut plain = String::new();
    let line = Timeline::begin();

    let a = lease_of(&*store_of_a).await?;
    let token_a = token_of(&a)?;
    guarded.trust(token_a.authority()).await?;
    line.tell("A", format_args!("acquired, token {}", token_a.value()));
    guarded.seal(a.resource(), token_a).await?;
    let prepared_by_a = "100 euros, from A";
    line.tell("A", format_args!("read the account, prepared its write, and is paused"));

    let b = lease_of(&*store_of_b).await?;
    let token_b = token_of(&b)?;
    line.tell("B", format_args!("acquired after A's TTL, token {}", token_b.value()));
    // Sealing before reading: from here on no older write can land between B's read and B's write.
    guarded.seal(b.resource(), token_b).await?;
    guarded.write(b.resource(), token_b, "90 euros, from B").await?;
    "90 euros, from B".clone_into(&mut plain);
    line.tell("B", format_args!("wrote \"90 euros, from B\" to both destinations"));

    line.tell("A", format_args!("wakes up and goes on where it was"));
    prepared_by_a.clone_into(&mut plain);
    line.tell("A", format_args!("plain destination:   its stale write LANDED: \"{plain}\""));
    match guarded.write(a.resource(), token_a, prepared_by_a).await {
        Err(GuardError::Refused { refusal, .. }) => {
            line.tell("A", format_args!("guarded destination: refused, {refusal}"));
        }
        other => return Err(format!("the guard should have refused the stale write: {other:?}").into()),
    }
    let kept = guarded.read(b.resource()).await?.value.unwrap_or_default();
    line.tell("-", format_args!("guarded destination holds \"{kept}\""));

    let late = a.is_past_deadline();
    line.tell("A", format_args!("its lease says, without asking anybody: past its deadline = {late}"));
    if let Renewal::Renewed(_) = store_of_a.renew(&a).await? {
        return Err("a lease that had ended was renewed".into());
    }
    match store_of_a.release(&a).await? {
        Release::NotHeld => line.tell("A", format_args!("can't renew; its release ended nothing, and B still holds")),
        other => return Err(format!("A's release took B's lease for its own: {other:?}").into()),
    }
    let released = store_of_b.release(&b).await?;
    line.tell("B", format_args!("{released:?}"));
    Ok(())
}

async fn lease_of(store: &dyn LeaseBackend) -> Result<Lease, Box<dyn Error>> {
    let lease = store.acquire_within("accounts/42", TTL, PATIENCE).await?;
    lease.ok_or_else(|| "somebody else holds accounts/42; is another run of this example under way?".into())
}

fn token_of(lease: &Lease) -> Result<&FencingToken, Box<dyn Error>> {
    lease.token().ok_or_else(|| "this backend has nothing that orders its grants".into())
}

/// Prints what happened and when.
struct Timeline(Instant);

impl Timeline {
    fn begin() -> Self {
        Self(Instant::now())
    }

    fn tell(&self, who: &str, what: std::fmt::Arguments<'_>) {
        println!("{:6.3} s  {who}  {what}", self.0.elapsed().as_secs_f64());
    }
}
