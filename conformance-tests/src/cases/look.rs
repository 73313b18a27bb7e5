//! Looking: what `inspect` and `list` show, and what they must not.

use super::{Case, case};
use crate::context::{CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, millis, release, until_free};
use crate::judge::Rule;
use lease_core::{Attempt, Claim, FencingToken, HolderLabel, LeaseBackend, LeaseError};

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        shows_holder,
        Rule::Core,
        "inspect/shows-holder",
        "A held resource shows its holder's label, its fencing value and a remaining time within the granted TTL; a free one shows no holder.",
        "Look before, during and after a grant, and after an expiry."
    ),
    case!(
        Together,
        no_owner,
        Rule::Core,
        "inspect/no-owner-token",
        "No owner token shows up: not in an observation, a lease, an attempt, a description or an error.",
        "The owner token is searched for in the text of all of them."
    ),
    case!(
        Together,
        list,
        Rule::Claim(Claim::ListByPrefix),
        "list/by-prefix",
        "Held resources are listed by prefix, in byte order, in pages, and nothing else is.",
        "Resources under two prefixes are acquired, some released; the pages must name exactly those that are held under the prefix."
    ),
];

async fn shows_holder(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    ensure!(b.inspect(&resource).await?.held.is_none(), "a new resource looks held");
    let label = HolderLabel::parse("worker ä \"7\" {x}")?;
    let attempt = Attempt::new(resource.clone(), stage.run.short())?.held_by(label.clone());
    let lease = acquire_with(&a, &attempt).await?;
    let value = lease.token().map(FencingToken::value);
    let seen = b.inspect(&resource).await?;
    if let Some(held) = &seen.held {
        ensure!(held.resource == resource, "the observation is about {}", held.resource);
        ensure!(held.holder == label.as_str(), "the holder's label is shown as {:?}", held.holder);
        ensure!(
            held.value == value && seen.last_value == value,
            "the grant's value is {value:?}; shown are {:?} and {:?}",
            held.value,
            seen.last_value
        );
        ensure!(
            held.remaining <= lease.granted_ttl().saturating_add(stage.run.limits.ttl_granularity),
            "{:?} is left of {:?}",
            held.remaining,
            lease.granted_ttl()
        );
    } else {
        ensure!(lease.is_past_deadline(), "a held resource looks free");
    }
    until_free(&stage, &b, &resource, lease.granted_ttl()).await?;
    let remembered = b.inspect(&resource).await?.last_value;
    ensure!(
        remembered.is_none() || remembered == value,
        "after the expiry the last value is shown as {remembered:?}, it was {value:?}"
    );
    Ok(evidence! { "granted_ttl_ms": millis(lease.granted_ttl()) })
}

async fn no_owner(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    let attempt = Attempt::new(resource.clone(), stage.run.long())?;
    let lease = acquire_with(&client, &attempt).await?;
    let secret = attempt.owner().reveal();
    let mut texts = vec![
        format!("{:?}", client.inspect(&resource).await?),
        format!("{lease:?} {attempt:?}"),
        format!("{:?}", client.description()),
        format!("{client:?}"),
        lease.token().map(ToString::to_string).unwrap_or_default(),
    ];
    match client.list(resource.as_str(), None, 10).await {
        Ok(page) => texts.push(format!("{page:?}")),
        Err(error) => texts.push(format!("{error} {error:?}")),
    }
    release(&client, &lease).await?;
    if let Err(error) = client.acquire(&attempt).await {
        texts.push(format!("{error} {error:?}"));
    }
    for text in &texts {
        ensure!(
            !text.to_lowercase().contains(&secret),
            "the owner token is in: {}",
            text.replace(&secret, "(the owner token)")
        );
    }
    Ok(evidence! { "texts": texts.len() })
}

/// One more than two pages.
const LISTED: usize = 5;

async fn list(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let mut expected = Vec::new();
    for name in ["in/b", "in/a", "in/a b", "in/ä", "in/B"] {
        let lease = acquire(&client, &stage.resource(name)?, stage.run.long()).await?;
        expected.push(lease.resource().clone());
    }
    acquire(&client, &stage.resource("in")?, stage.run.long()).await?;
    acquire(&client, &stage.resource("IN/a")?, stage.run.long()).await?;
    let freed = acquire(&client, &stage.resource("in/freed")?, stage.run.long()).await?;
    release(&client, &freed).await?;
    expected.sort();
    let prefix = stage.resource("in/")?;
    let (mut after, mut found, mut pages) = (None, Vec::new(), 0_usize);
    loop {
        let page = match client.list(prefix.as_str(), after.as_ref(), 2).await {
            Err(LeaseError::Unsupported { reason, .. }) => {
                return Err(Stop::Refuted(format!("it is not available here: {reason}")));
            }
            other => other?,
        };
        ensure!(page.grants.len() <= 2, "a page of at most 2 has {}", page.grants.len());
        pages = pages.saturating_add(1);
        found.extend(page.grants.into_iter().map(|grant| grant.resource));
        ensure!(pages <= LISTED.saturating_mul(2), "the pages do not end");
        let Some(next) = page.next_after else { break };
        after = Some(next);
    }
    ensure!(found == expected, "held are {expected:?}, listed are {found:?}");
    Ok(evidence! { "pages": pages, "listed": found.len() })
}
