//! The fencing token: ordered by grant, minted with it, never changed.

use super::{Case, case};
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_when_free, acquire_with, ensure, evidence, is_held, now, pause_for,
    release, renew, token,
};
use crate::judge::Rule;
use lease_core::{Acquisition, Attempt, Claim, FencingToken, LeaseBackend};
use std::time::Duration;
use tokio::task::JoinSet;

const TOKEN: Rule = Rule::Claim(Claim::FencingToken);

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        present,
        TOKEN,
        "token/present",
        "Each grant has a fencing token, which is within the limits, belongs to this grant and round-trips as text.",
        "Acquire and look at the token."
    ),
    case!(
        Together,
        over_release,
        TOKEN,
        "token/grows-over-release",
        "The next grant after a release has a larger token.",
        "Two clients acquire and release in turns; the tokens must rise, within one authority."
    ),
    case!(
        Together,
        over_expiry,
        TOKEN,
        "token/grows-over-expiry",
        "The next grant after an expiry has a larger token, and the old lease keeps its own.",
        "One client's grant runs out, another client acquires. Its token must be larger; the first lease's token must be what it was."
    ),
    case!(
        Together,
        idle,
        Rule::Claim(Claim::IdleNamesForgotten),
        "token/grows-over-idle-clean-up",
        "What an idle name leaves behind is removed in the end, and its next token is larger all the same.",
        "A client that may forget soon acquires and releases; when the store remembers nothing of the name any more, it acquires again."
    ),
    case!(
        Together,
        clean_up_race,
        TOKEN,
        "token/grows-while-cleaning-up",
        "Clean-up that races an acquire never lets a token go back, and never ends a grant.",
        "One client acquires and releases without pause while another, which may forget at once, cleans up without pause."
    ),
    case!(
        Together,
        racing,
        TOKEN,
        "token/grows-over-racing-acquirers",
        "Of acquirers that race, the later grant has the larger token.",
        "Tasks on several clients acquire and release one resource as fast as they can. Whenever one grant was made after another, its token must be larger, and no value may come twice."
    ),
    case!(
        Together,
        kept,
        TOKEN,
        "token/kept-over-renewal-and-repeat",
        "Renewal and repetition of the attempt never change a grant's token, whatever others do meanwhile.",
        "While one client holds, others try the same resource and are granted other ones. The holder's renewals, and repeats of its attempt, must give its own token."
    ),
];

async fn present(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    let lease = acquire_with(&client, &attempt).await?;
    let Some(token) = lease.token().cloned() else {
        return Err(Stop::Refuted("the grant has no fencing token".into()));
    };
    release(&client, &lease).await?;
    let most = stage.run.limits.max_token_value;
    ensure!(token.value() <= most, "the value {} is above the declared largest one, {most}", token.value());
    ensure!(token.grant() == attempt.grant(), "the token names another grant than its attempt's");
    let text = token.to_string();
    let back: Option<FencingToken> = text.parse().ok();
    ensure!(back.as_ref() == Some(&token), "the text {text} was read back as {back:?}");
    Ok(evidence! { "token": text })
}

/// The later grant's token is larger, in the same authority.
fn grew(earlier: &FencingToken, later: &FencingToken) -> Result<(), Stop> {
    ensure!(earlier < later, "the later grant's token is not larger: {earlier}, then {later}");
    Ok(())
}

async fn over_release(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let mut tokens: Vec<FencingToken> = Vec::new();
    for client in [&a, &b, &b, &a, &a] {
        let lease = acquire(client, &resource, stage.run.long()).await?;
        let this = token(&lease)?.clone();
        release(client, &lease).await?;
        if let Some(last) = tokens.last() {
            grew(last, &this)?;
        }
        tokens.push(this);
    }
    Ok(evidence! { "tokens": tokens })
}

async fn over_expiry(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let old = acquire(&a, &resource, stage.run.short()).await?;
    let first = token(&old)?.clone();
    let new = acquire_when_free(&stage, &b, &resource, stage.run.long(), old.granted_ttl()).await?;
    grew(&first, token(&new)?)?;
    ensure!(old.token() == Some(&first), "the old lease's token changed when another grant was made");
    release(&b, &new).await?;
    Ok(evidence! { "tokens": [first.to_string(), token(&new)?.to_string()] })
}

async fn idle(stage: Stage) -> CaseResult {
    let (client, forgetful) = match stage.forgetful_client().await {
        Ok(client) => (client, true),
        Err(_) => (stage.client().await?, false),
    };
    let resource = stage.resource("r")?;
    let lease = acquire(&client, &resource, stage.run.short()).await?;
    let first = token(&lease)?.clone();
    release(&client, &lease).await?;
    let limit = stage.run.freed_within(lease.granted_ttl());
    let end = now().saturating_add(limit);
    let mut removed = 0_u64;
    while client.inspect(&resource).await?.last_value.is_some() {
        if !forgetful && now() >= end {
            let why =
                "the store remembers for longer than can be waited for, and the subject gives no `forgetful_client`";
            return Err(Stop::NotTried(why.into()));
        }
        ensure!(now() < end, "{limit:?} after its release the store still remembers {resource}");
        pause_for(Duration::from_millis(50)).await;
        removed = removed.saturating_add(client.clean_up().await?.removed);
    }
    let again = acquire(&client, &resource, stage.run.short()).await?;
    grew(&first, token(&again)?)?;
    release(&client, &again).await?;
    Ok(evidence! { "tokens": [first.to_string(), token(&again)?.to_string()], "removed_by_clean_up": removed })
}

async fn clean_up_race(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let cleaner = match stage.forgetful_client().await {
        Ok(cleaner) => cleaner,
        Err(_) => stage.client().await?,
    };
    let resource = stage.resource("r")?;
    token(&{
        let lease = acquire(&client, &resource, stage.run.long()).await?;
        release(&client, &lease).await?;
        lease
    })?;
    let end = now().saturating_add(Duration::from_millis(700));
    let cleaning = tokio::spawn(async move {
        let mut removed = 0_u64;
        while now() < end {
            removed = removed.saturating_add(cleaner.clean_up().await?.removed);
            tokio::task::yield_now().await;
        }
        Ok::<_, lease_core::LeaseError>(removed)
    });
    let (mut last, mut grants) = (None::<FencingToken>, 0_u32);
    while now() < end {
        let lease = acquire(&client, &resource, stage.run.long()).await?;
        let this = token(&lease)?.clone();
        if let Some(last) = &last {
            grew(last, &this)?;
        }
        let lease = renew(&client, &lease).await?;
        release(&client, &lease).await?;
        (last, grants) = (Some(this), grants.saturating_add(1));
        // Now and then, idle for long enough to be forgotten.
        if grants.is_multiple_of(16) {
            pause_for(Duration::from_millis(stage.run.random() % 250)).await;
        }
        tokio::task::yield_now().await;
    }
    let removed = cleaning.await.map_err(|e| Stop::Refuted(format!("clean-up panicked: {e}")))??;
    Ok(evidence! { "grants": grants, "removed": removed })
}

/// How many grants the race makes, and over how many tasks.
const GRANTS: usize = 48;
const TASKS: usize = 6;

async fn racing(stage: Stage) -> CaseResult {
    let clients = [stage.client().await?, stage.client().await?, stage.client().await?];
    let resource = stage.resource("r")?;
    let mut racers = JoinSet::new();
    for client in clients.iter().cycle().take(TASKS) {
        let (client, resource, stage) = (client.clone(), resource.clone(), stage.clone());
        racers.spawn(async move {
            let mut tokens = 0_usize;
            let end = now().saturating_add(Duration::from_mins(1));
            while tokens < GRANTS / TASKS {
                let attempt = Attempt::new(resource.clone(), stage.run.long())?;
                if let Acquisition::Acquired(lease) = client.acquire(&attempt).await? {
                    token(&lease)?;
                    tokens = tokens.saturating_add(1);
                    release(&client, &lease).await?;
                }
                ensure!(now() < end, "a racer was not granted its share within a minute");
                pause_for(Duration::from_micros(stage.run.random() % 2_000)).await;
            }
            Ok::<_, Stop>(tokens)
        });
    }
    // Order and uniqueness are what the history is checked for.
    let mut grants = 0_usize;
    while let Some(joined) = racers.join_next().await {
        let racer = joined.map_err(|e| Stop::Refuted(format!("a racer panicked: {e}")))?;
        grants = grants.saturating_add(racer?);
    }
    Ok(evidence! { "grants": grants, "tasks_at_once": TASKS })
}

async fn kept(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    let mut lease = acquire_with(&a, &attempt).await?;
    let own = token(&lease)?.clone();
    for round in 0..3 {
        ensure!(
            is_held(&b, attempt.resource(), stage.run.long()).await?,
            "a second client was granted a lease that is held"
        );
        let other = acquire(&b, &stage.resource(&format!("other {round}"))?, stage.run.long()).await?;
        lease = renew(&a, &lease).await?;
        ensure!(lease.token() == Some(&own), "a renewal changed the token from {own} to {:?}", lease.token());
        let again = acquire_with(&b, &attempt).await?;
        ensure!(
            again.token() == Some(&own),
            "a repeat of the attempt has the token {:?}, its grant's is {own}",
            again.token()
        );
        release(&b, &other).await?;
    }
    release(&a, &lease).await?;
    Ok(evidence! { "token": own })
}
