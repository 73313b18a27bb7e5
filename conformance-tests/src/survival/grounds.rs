//! The destinations of one scene, in a store of their own that does not fail, and what the two workers do there.

use super::judge::{Answer, BY_B, BY_STALE_A, Story};
use super::scene::Trouble;
use crate::MemoryPlace;
use crate::subject::{Opener, Place as _, TestDestination};
use crate::timeline::{MarkKind, Recorder};
use lease_core::{FencingToken, GuardError, Refusal, ResourceName};
use std::path::Path;
use std::sync::Arc;

/// Three destinations: A seals and writes at `reached` and is never at `unreached` before it is stale; `plain` has no guard.
pub(super) struct Grounds {
    reached: Arc<dyn TestDestination>,
    unreached: Arc<dyn TestDestination>,
    plain: Arc<dyn TestDestination>,
    resource: ResourceName,
}

/// It is not what is tried: on a busy machine it is waited for.
const UNHURRIED: &str = "call_timeout_ms=30000&connect_timeout_ms=30000";

/// The lanes of a timeline.
pub(super) const LANES: [&str; 6] = ["A", "B", "store", REACHED, UNREACHED, PLAIN];
const REACHED: &str = "reached (guarded)";
const UNREACHED: &str = "unreached (guarded)";
const PLAIN: &str = "plain (no guard)";

impl Grounds {
    /// Opens them in a file, or in memory.
    pub(super) async fn open(opener: &dyn Opener, file: Option<&Path>) -> Result<Self, Trouble> {
        let memory = MemoryPlace::new();
        let open = async |namespace: &str| match file {
            Some(file) => {
                let url = format!("sqlite://{}?namespace={namespace}&{UNHURRIED}", file.display());
                opener.destination(&url).await
            }
            None => memory.open(namespace).await,
        };
        let all = async || -> Result<Self, GuardError> {
            Ok(Self {
                reached: open("reached").await?,
                unreached: open("unreached").await?,
                plain: open("plain").await?,
                resource: ResourceName::parse(super::CONTESTED)?,
            })
        };
        all().await.map_err(|error| Trouble::Failed(format!("the destinations cannot be opened: {error}")))
    }

    /// What A does with its lease: the guards take its store's tokens, and it writes where it is to have been.
    pub(super) async fn first(&self, a: &FencingToken, recorder: &Recorder) -> Result<(), Trouble> {
        let write = async || -> Result<(), GuardError> {
            self.reached.adopt(None, a.authority()).await?;
            self.unreached.adopt(None, a.authority()).await?;
            self.reached.seal(&self.resource, a).await?;
            recorder.mark(REACHED, MarkKind::Sealed, format!("A seals {}", a.value()));
            self.reached.write(&self.resource, a, "A's").await?;
            recorder.mark(REACHED, MarkKind::Committed, "A writes");
            self.plain.write_plain(&self.resource, "A's").await?;
            recorder.mark(PLAIN, MarkKind::Committed, "A writes");
            Ok(())
        };
        write().await.map_err(|error| Trouble::Failed(format!("A cannot write: {error}")))
    }

    /// B writes with its lease, then A, who is stale by now. One story for each of `reached`, `unreached`, `plain`.
    pub(super) async fn then(&self, a: &FencingToken, b: &FencingToken, recorder: &Recorder) -> [Story; 3] {
        [
            self.guarded(&*self.reached, REACHED, a, b, recorder).await,
            self.guarded(&*self.unreached, UNREACHED, a, b, recorder).await,
            self.unguarded(recorder).await,
        ]
    }

    async fn guarded(
        &self,
        at: &dyn TestDestination,
        lane: &str,
        a: &FencingToken,
        b: &FencingToken,
        recorder: &Recorder,
    ) -> Story {
        let b_first = self.seal_and_write(at, lane, b, recorder).await;
        let b_adopted = match &b_first {
            // What an operator does who has looked at why the authority is another one.
            Answer::Refused(Refusal::UnknownAuthority { .. }) => {
                match at.adopt(Some(a.authority()), b.authority()).await {
                    Ok(()) => {
                        recorder.mark(lane, MarkKind::Note, "the new authority is adopted");
                        Some(self.seal_and_write(at, lane, b, recorder).await)
                    }
                    Err(error) => Some(answer(Err(error))),
                }
            }
            _ => None,
        };
        let a_stale = answer(at.write(&self.resource, a, BY_STALE_A).await);
        let wrote_before = b_adopted.as_ref().unwrap_or(&b_first) == &Answer::Done;
        mark(recorder, lane, "A's stale write", &a_stale, wrote_before);
        self.story(at, b_first, b_adopted, a_stale).await
    }

    async fn seal_and_write(
        &self,
        at: &dyn TestDestination,
        lane: &str,
        b: &FencingToken,
        recorder: &Recorder,
    ) -> Answer {
        let sealed = answer(at.seal(&self.resource, b).await);
        if sealed != Answer::Done {
            mark(recorder, lane, "B's seal", &sealed, false);
            return sealed;
        }
        recorder.mark(lane, MarkKind::Sealed, format!("B seals {}", b.value()));
        let wrote = answer(at.write(&self.resource, b, BY_B).await);
        mark(recorder, lane, "B's write", &wrote, false);
        wrote
    }

    async fn unguarded(&self, recorder: &Recorder) -> Story {
        let b_first = answer(self.plain.write_plain(&self.resource, BY_B).await);
        mark(recorder, PLAIN, "B's write", &b_first, false);
        let a_stale = answer(self.plain.write_plain(&self.resource, BY_STALE_A).await);
        mark(recorder, PLAIN, "A's stale write", &a_stale, true);
        self.story(&*self.plain, b_first, None, a_stale).await
    }

    async fn story(
        &self,
        at: &dyn TestDestination,
        b_first: Answer,
        b_adopted: Option<Answer>,
        a_stale: Answer,
    ) -> Story {
        match at.read(&self.resource).await {
            Ok(stored) => Story { b_first, b_adopted, a_stale, end: stored.value },
            Err(error) => Story { b_first, b_adopted, a_stale: Answer::Failed(error.to_string()), end: None },
        }
    }
}

fn answer(result: Result<(), GuardError>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(GuardError::Refused { refusal, .. }) => Answer::Refused(refusal),
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// A write that lands on what a newer holder wrote is what a reader looks for.
fn mark(recorder: &Recorder, lane: &str, what: &str, answer: &Answer, is_stale: bool) {
    let kind = match answer {
        Answer::Done if is_stale => MarkKind::StaleCommitted,
        Answer::Done => MarkKind::Committed,
        Answer::Refused(_) => MarkKind::Refused,
        Answer::Failed(_) => MarkKind::Note,
    };
    let how = match answer {
        Answer::Done => "lands",
        Answer::Refused(_) => "is refused",
        Answer::Failed(_) => "fails",
    };
    recorder.mark(lane, kind, format!("{what} {how}"));
}
