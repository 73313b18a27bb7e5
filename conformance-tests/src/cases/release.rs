//! A release ends its own grant and no other.

use super::{Case, case};
use crate::context::{CaseResult, Stage, acquire, ensure, evidence, is_held, release, renew, until_free};
use crate::judge::Rule;
use lease_core::{LeaseBackend, Release};

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        frees,
        Rule::Core,
        "release/frees",
        "A release frees the resource at once.",
        "Acquire with a long TTL, release, look, and acquire again with another client."
    ),
    case!(
        Together,
        idempotent,
        Rule::Core,
        "release/idempotent",
        "A repeated release has the same answer.",
        "Release twice; both answers must be `Released`."
    ),
    case!(
        Together,
        expired,
        Rule::Core,
        "release/expired-is-not-held",
        "The release of an expired grant says that the lease was lost before.",
        "The TTL passes; the release must be `NotHeld`."
    ),
    case!(
        Together,
        superseded,
        Rule::Core,
        "release/superseded-leaves-holder-alone",
        "A stale release does not touch the grant that followed.",
        "The TTL passes and another client acquires; the release must be `NotHeld`, and the other one still holds and renews."
    ),
    case!(
        Together,
        old_repeat,
        Rule::Core,
        "release/old-repeat-leaves-own-new-grant-alone",
        "The repeat of an old release does not touch the same client's newer grant.",
        "One client acquires, releases, acquires again and repeats the first release. Its second grant must stay."
    ),
    case!(
        Together,
        frees_no_other,
        Rule::Core,
        "release/frees-no-other-resource",
        "A release frees its own resource only.",
        "One client holds two resources and releases one; the other one stays held."
    ),
];

async fn frees(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let lease = acquire(&a, &resource, stage.run.long()).await?;
    release(&a, &lease).await?;
    ensure!(b.inspect(&resource).await?.held.is_none(), "after a release the resource looks held");
    release(&b, &acquire(&b, &resource, stage.run.long()).await?).await?;
    Ok(evidence! {})
}

async fn idempotent(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let lease = acquire(&client, &stage.resource("r")?, stage.run.long()).await?;
    release(&client, &lease).await?;
    let again = client.release(&lease).await?;
    ensure!(again == Release::Released, "the second release was answered by {again:?}");
    Ok(evidence! {})
}

async fn expired(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    let lease = acquire(&client, &resource, stage.run.short()).await?;
    until_free(&stage, &client, &resource, lease.granted_ttl()).await?;
    let answer = client.release(&lease).await?;
    ensure!(answer == Release::NotHeld, "the release of an expired grant was answered by {answer:?}");
    Ok(evidence! {})
}

async fn superseded(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let old = acquire(&a, &resource, stage.run.short()).await?;
    until_free(&stage, &a, &resource, old.granted_ttl()).await?;
    let next = acquire(&b, &resource, stage.run.long()).await?;
    let answer = a.release(&old).await?;
    ensure!(is_held(&a, &resource, stage.run.long()).await?, "a stale release freed the new holder's resource");
    ensure!(answer == Release::NotHeld, "the release of a grant that another one followed was answered by {answer:?}");
    release(&b, &renew(&b, &next).await?).await?;
    Ok(evidence! {})
}

async fn old_repeat(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    let old = acquire(&client, &resource, stage.run.long()).await?;
    release(&client, &old).await?;
    let new = acquire(&client, &resource, stage.run.long()).await?;
    let answer = client.release(&old).await?;
    ensure!(
        is_held(&client, &resource, stage.run.long()).await?,
        "the repeat of an old release ({answer:?}) freed the same client's newer grant"
    );
    release(&client, &new).await?;
    Ok(evidence! { "answer_to_the_repeat": format!("{answer:?}") })
}

async fn frees_no_other(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let (one, two) = (stage.resource("one")?, stage.resource("two")?);
    let first = acquire(&client, &one, stage.run.long()).await?;
    let second = acquire(&client, &two, stage.run.long()).await?;
    release(&client, &first).await?;
    ensure!(
        is_held(&client, &two, stage.run.long()).await?,
        "the release of one resource freed another one of the same client"
    );
    release(&client, &second).await?;
    Ok(evidence! {})
}
