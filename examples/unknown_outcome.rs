//! An acquire whose outcome is unknown, and how it is resolved: the same attempt again, and at last `abandon`.
//!
//! ```text
//! cargo run -p leasehold --example unknown_outcome
//! ```
//!
//! In memory; what gets lost on the way is scripted.

#![expect(clippy::print_stdout, reason = "the story is what this program tells")]

use leasehold::memory::MemoryBackend;
use leasehold::testing::{Fault, Scripted};
use leasehold::{Acquisition, Attempt, Effect, FencingToken, LeaseBackend, LeaseError, Operation, ResourceName, Ttl};
use std::sync::Arc;
use std::time::Duration;

/// After so many unknown outcomes the attempt is given up.
const TRIES: usize = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LeaseError> {
    println!("The store makes the grant, and the reply is lost:");
    let store = store()?;
    store.next(Operation::Acquire, Fault::ReplyLost);
    release(&store, resolve(&store, &new_attempt()?).await?).await?;

    println!("\nThe request is lost, and the store never sees it:");
    let store = self::store()?;
    store.next(Operation::Acquire, Fault::RequestLost);
    release(&store, resolve(&store, &new_attempt()?).await?).await?;

    println!("\nEvery reply is lost:");
    let store = self::store()?;
    store.always(Operation::Acquire, Some(Fault::ReplyLost));
    if resolve(&store, &new_attempt()?).await.is_ok() {
        return Err(LeaseError::InvalidConfig { reason: "this store answers".into() });
    }
    store.always(Operation::Acquire, None);
    tell("another worker", &store.acquire(&new_attempt()?).await);

    println!("\nThe mistake, a new attempt instead of the same one: the grant that nobody knows of is in its way:");
    let store = self::store()?;
    store.next(Operation::Acquire, Fault::ReplyLost);
    tell("acquire", &store.acquire(&new_attempt()?).await);
    tell("a new attempt", &store.acquire(&new_attempt()?).await);
    Ok(())
}

/// Repeats the attempt while nobody knows what became of it, and at last gives it up. A `Keeper` does so by itself.
async fn resolve(store: &dyn LeaseBackend, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
    let mut answer = store.acquire(attempt).await;
    tell("acquire", &answer);
    for _ in 1..TRIES {
        if !is_unknown(&answer) {
            return answer;
        }
        // Here a program waits a little; all tries together within the TTL, which counts from the first.
        answer = store.acquire(attempt).await;
        tell("the same again", &answer);
    }
    if is_unknown(&answer) {
        // Ends what it has made, and keeps what is still on its way from making anything. If this fails too, the TTL ends it.
        store.abandon(attempt).await?;
        println!("  {:16} it leaves nothing behind", "abandon");
    }
    answer
}

async fn release(store: &dyn LeaseBackend, answer: Acquisition) -> Result<(), LeaseError> {
    if let Acquisition::Acquired(lease) = answer {
        println!("  {:16} {:?}", "release", store.release(&lease).await?);
    }
    Ok(())
}

fn is_unknown(answer: &Result<Acquisition, LeaseError>) -> bool {
    answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown)
}

fn tell(what: &str, answer: &Result<Acquisition, LeaseError>) {
    let text = match answer {
        Ok(Acquisition::Acquired(lease)) => {
            format!("acquired, token {}", lease.token().map_or(0, FencingToken::value))
        }
        Ok(Acquisition::Held(held)) => {
            let seconds = held.remaining.unwrap_or_default().as_secs_f64();
            format!("held, for {seconds:.0} s more")
        }
        Err(error) if error.effect() == Effect::Unknown => "no answer, so its effect is unknown".into(),
        Err(error) => error.to_string(),
    };
    println!("  {what:16} {text}");
}

fn store() -> Result<Scripted, LeaseError> {
    Ok(Scripted::new(Arc::new(MemoryBackend::new()?)))
}

fn new_attempt() -> Result<Attempt, LeaseError> {
    Attempt::new(ResourceName::parse("accounts/42")?, Ttl::parse(Duration::from_mins(1))?)
}
