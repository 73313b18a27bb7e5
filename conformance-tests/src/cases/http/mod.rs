//! A write over HTTP: A's request is let in by the layer and paused before the handler's write, B gets the lease and its request passes, A's
//! goes on. The layer alone is admission; what refuses is the guard in the handler's transaction.

mod client;
mod service;

use super::destination::{AtPlace, token};
use super::{Case, case};
use crate::context::{
    CaseResult, Evidence, Stop, acquire, acquire_when_free, ensure, evidence, now, pause_for, refute,
};
use crate::judge::Rule;
use client::{Reply, put};
use lease_core::{Claim, FencingToken, GuardedDestination as _, Lease, Stored};
use service::{Handling, Service};
use std::time::Duration;
use tokio::task::JoinSet;

pub(super) const CASES: &[Case] = &[
    case!(
        AtPlace,
        guarded,
        Rule::Core,
        "fencing/http/guarded-transaction",
        "A request that was paused behind the layer while a newer one passed is refused by the guard in its handler's transaction.",
        "A's PUT is let in by the layer and paused before its handler writes, until A's lease has ended, B was granted it and B's PUT was answered. A's handler then gives the token to the guard: the answer must be 412 with the problem `stale`, and content and mark stay B's."
    ),
    case!(
        AtPlace,
        ignoring,
        Rule::Claim(Claim::RefusalUncommittable),
        "fencing/http/refusal-ignored",
        "A handler that ignores the guard's refusal commits nothing stale, whatever it answers.",
        "The same pause. A's handler asks the guard, is refused, writes all the same in the same transaction, commits, and answers 200. Content and mark must stay B's."
    ),
    case!(
        AtPlace,
        layer_alone,
        Rule::Control,
        "fencing/http/layer-alone",
        "Control: behind the layer alone, without a guard in the handler, the stale write lands.",
        "The same pause, and handlers that take the layer's word for it. A's token was required and well-formed, and its write must land: the layer is admission, not fencing."
    ),
];

const OF_A: &str = "written by A";
const OF_B: &str = "written by B";

async fn guarded(at: AtPlace) -> CaseResult {
    let seen = paused(&at, Handling::Guarded).await?;
    seen.is_bs()?;
    ensure!(
        (seen.answer_to_a.status, seen.answer_to_a.problem()) == (412, Some("stale")),
        "the stale write changed nothing, and A was not told so: {}",
        seen.answer_to_a
    );
    Ok(seen.evidence())
}

async fn ignoring(at: AtPlace) -> CaseResult {
    let seen = paused(&at, Handling::IgnoringRefusal).await?;
    seen.is_bs()?;
    Ok(seen.evidence())
}

async fn layer_alone(at: AtPlace) -> CaseResult {
    let seen = paused(&at, Handling::LayerAlone).await?;
    ensure!(
        seen.after.value.as_deref() == Some(OF_A),
        "the stale write should land where nothing stops it; its writer was told \"{}\" and the content is {:?}",
        seen.answer_to_a,
        seen.after.value
    );
    Ok(seen.evidence())
}

/// What was seen of one pause.
#[derive(Debug)]
struct Seen {
    tokens: [FencingToken; 2],
    made_up: bool,
    answer_to_a: Reply,
    answer_to_b: Reply,
    before: Stored,
    after: Stored,
    a_inside_ns: u64,
    b_granted_ns: u64,
    a_resumed_ns: u64,
}

impl Seen {
    /// Content and mark are B's, before A's request went on and after it was answered.
    fn is_bs(&self) -> Result<(), Stop> {
        let [_, of_b] = &self.tokens;
        let expected = Stored::new(Some(OF_B.to_owned()), Some((of_b.value(), of_b.grant())));
        ensure!(
            self.before == expected,
            "B's own write was answered \"{}\" and left {:?} instead of {expected:?}",
            self.answer_to_b,
            self.before
        );
        ensure!(
            self.after == expected,
            "A's stale request was answered \"{}\" and left {:?} instead of {expected:?}",
            self.answer_to_a,
            self.after
        );
        Ok(())
    }

    fn evidence(&self) -> Evidence {
        let mark = |stored: &Stored| stored.mark.map(|(value, _)| value.to_string());
        evidence! {
            "token_a": self.tokens[0].to_string(),
            "token_b": self.tokens[1].to_string(),
            "tokens": if self.made_up { "made up, since the backend gives none" } else { "the backend's" },
            "answer_to_a": self.answer_to_a.to_string(),
            "answer_to_b": self.answer_to_b.to_string(),
            "content_before": self.before.value,
            "content_after": self.after.value,
            "mark_before": mark(&self.before),
            "mark_after": mark(&self.after),
            "a_inside_ns": self.a_inside_ns,
            "b_granted_ns": self.b_granted_ns,
            "a_resumed_ns": self.a_resumed_ns,
        }
    }
}

/// How long a request may take. Generous: it only keeps a service that never answers from holding the suite up.
const PATIENCE: Duration = Duration::from_mins(1);

async fn paused(at: &AtPlace, handling: Handling) -> Result<Seen, Stop> {
    let (client_a, client_b) = at.stage.two_clients().await?;
    let (resource, namespace) = (at.resource()?, at.stage.run.namespace());
    let observer = at.open(&namespace).await?;

    let lease_a = acquire(&client_a, &resource, at.stage.run.short()).await?;
    let token_a = token_of(&lease_a, 41)?;
    observer.adopt(None, token_a.authority()).await?;
    let service = Service::start(at.open(&namespace).await?, resource.clone(), handling).await?;

    let mut of_a = JoinSet::new();
    of_a.spawn(put(service.address(), token_a.clone(), OF_A));
    tokio::select! {
        () = service.first_is_inside() => {}
        Some(answer) = of_a.join_next() => refute!("A's request should be past the layer; it was answered {answer:?}"),
        () = pause_for(PATIENCE) => return Err(Stop::NotTried("A's request never got past the layer".to_owned())),
    }
    let a_inside_ns = now().as_nanos();

    let (long, granted) = (at.stage.run.long(), lease_a.granted_ttl());
    let lease_b = acquire_when_free(&at.stage, &client_b, &resource, long, granted).await?;
    let (token_b, b_granted_ns) = (token_of(&lease_b, 42)?, now().as_nanos());
    let answer_to_b = in_time(put(service.address(), token_b.clone(), OF_B)).await?;
    let before = observer.read(&resource).await?;

    service.let_the_first_go_on();
    let a_resumed_ns = now().as_nanos();
    let answer_to_a = in_time(async {
        let answer = of_a.join_next().await;
        answer.and_then(Result::ok).unwrap_or_else(|| Err(Stop::NotTried("A's client ended by itself".to_owned())))
    });
    let answer_to_a = answer_to_a.await?;
    let after = observer.read(&resource).await?;
    ensure!(
        answer_to_b.status == 200 && before.value.as_deref() == Some(OF_B),
        "B's request should pass while A's is paused; it was answered \"{answer_to_b}\", and the content was {:?}",
        before.value
    );
    Ok(Seen {
        made_up: lease_a.token().is_none(),
        tokens: [token_a, token_b],
        answer_to_a,
        answer_to_b,
        before,
        after,
        a_inside_ns,
        b_granted_ns,
        a_resumed_ns,
    })
}

/// The grant's token. Of a backend that gives none a made-up one: what is judged is the destination behind the service.
fn token_of(lease: &Lease, value: u64) -> Result<FencingToken, Stop> {
    lease.token().map_or_else(|| token(value, value), |token| Ok(token.clone()))
}

async fn in_time(work: impl Future<Output = Result<Reply, Stop>>) -> Result<Reply, Stop> {
    let late = |_| Err(Stop::Refuted(format!("a request had no answer within {PATIENCE:?}")));
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(late)
}
