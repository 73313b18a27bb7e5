//! The invariants. Each one takes only what is certain, so that a correct store never breaks it, however slow the machine.

use super::event::{Event, Renewed, What, Wrote};
use lease_core::{BootInstant, FencingToken, OwnerToken, ResourceName, safety_margin};
use std::collections::BTreeMap;

/// Every violation in a history, each with the fewest events that show it.
pub(crate) fn violations(events: &[Event]) -> Vec<String> {
    let mut by_resource: BTreeMap<&ResourceName, Vec<&Event>> = BTreeMap::new();
    for event in events {
        by_resource.entry(&event.resource).or_default().push(event);
    }
    let mut found = Vec::new();
    for events in by_resource.values() {
        let grants = grants(events);
        found.extend(exclusion(&grants));
        found.extend(token_order(&grants));
        found.extend(one_token_per_grant(events));
        found.extend(no_resurrection(events));
        found.extend(destination(events));
    }
    found
}

/// One grant, from everything that was noted of it.
struct Grant<'a> {
    owner: OwnerToken,
    event: &'a Event,
    token: Option<&'a FencingToken>,
    /// Before this the grant cannot have been made.
    not_before: BootInstant,
    /// From here to `until` it was live for certain.
    from: BootInstant,
    until: BootInstant,
}

fn grants<'a>(events: &[&'a Event]) -> Vec<Grant<'a>> {
    let mut grants: Vec<Grant<'a>> = Vec::new();
    for event in events {
        let What::Granted { owner, token, .. } = &event.what else {
            continue;
        };
        if let Some(grant) = grants.iter_mut().find(|grant| grant.owner == *owner) {
            if event.returned < grant.from {
                grant.from = event.returned;
                grant.event = event;
            }
        } else {
            grants.push(Grant {
                owner: *owner,
                event,
                token: token.as_ref(),
                not_before: event.invoked,
                from: event.returned,
                until: BootInstant::ZERO,
            });
        }
    }
    for grant in &mut grants {
        grant.not_before = first_send(events, grant.owner).unwrap_or(grant.not_before);
        grant.until = live_until(events, grant);
    }
    grants
}

/// The first moment at which a request of this attempt was on its way.
fn first_send(events: &[&Event], owner: OwnerToken) -> Option<BootInstant> {
    let of_attempt = events.iter().filter(|event| match &event.what {
        What::Granted { owner: who, .. } | What::AcquireUnknown { owner: who } => *who == owner,
        _ => false,
    });
    of_attempt.map(|event| event.invoked).min()
}

/// Until when the grant was live for certain: as long as the earliest expiry that its acknowledged requests allow, but
/// not past the moment at which its holder began to give it up.
fn live_until(events: &[&Event], grant: &Grant<'_>) -> BootInstant {
    let mut until = BootInstant::ZERO;
    let mut given_up = BootInstant::from_nanos(u64::MAX);
    for event in events {
        match &event.what {
            // A repeat doesn't extend, so the first send counts.
            What::Granted { owner, granted_ttl, .. } if *owner == grant.owner => {
                let lasts = granted_ttl.saturating_sub(safety_margin(*granted_ttl));
                until = until.max(grant.not_before.saturating_add(lasts));
            }
            What::Renew { owner, granted_ttl, outcome: Renewed::Extended(_) } if *owner == grant.owner => {
                let lasts = granted_ttl.saturating_sub(safety_margin(*granted_ttl));
                until = until.max(event.invoked.saturating_add(lasts));
            }
            What::Ended { owner, .. } if *owner == grant.owner => given_up = given_up.min(event.invoked),
            _ => {}
        }
    }
    until.min(given_up)
}

/// No two grants of a resource were live for certain at one moment.
fn exclusion(grants: &[Grant<'_>]) -> Vec<String> {
    let mut by_start: Vec<&Grant<'_>> = grants.iter().filter(|grant| grant.from < grant.until).collect();
    by_start.sort_by_key(|grant| grant.from);
    let mut found = Vec::new();
    let mut longest: Option<&Grant<'_>> = None;
    for grant in by_start {
        if let Some(other) = longest.filter(|other| grant.from < other.until) {
            found.push(format!(
                "two live grants at once: {} (live until {} µs at least) and {}",
                other.event,
                other.until.as_nanos() / 1_000,
                grant.event
            ));
        }
        if longest.is_none_or(|other| grant.until > other.until) {
            longest = Some(grant);
        }
    }
    found
}

/// A grant that began after another one had been made has a larger token of the same authority; no two share a value.
fn token_order(grants: &[Grant<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for earlier in grants {
        for later in grants {
            let (Some(a), Some(b)) = (earlier.token, later.token) else {
                continue;
            };
            if earlier.owner == later.owner || a.authority() != b.authority() {
                continue;
            }
            if earlier.from < later.not_before && a.value() > b.value() {
                found.push(format!("the token fell: {}, then {}", earlier.event, later.event));
            } else if a.value() == b.value() && earlier.from <= later.from {
                found.push(format!("two grants have one value: {} and {}", earlier.event, later.event));
            }
        }
    }
    found
}

/// Renewal and repetition never change a grant's token.
fn one_token_per_grant(events: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    for first in events {
        let What::Granted { owner, token, .. } = &first.what else {
            continue;
        };
        for again in events {
            let changed = match &again.what {
                What::Granted { owner: who, token: other, .. }
                | What::Renew { owner: who, outcome: Renewed::Extended(other), .. } => {
                    who == owner && first.invoked <= again.invoked && token != other
                }
                _ => false,
            };
            if changed {
                found.push(format!("a grant's token changed: {first}, then {again}"));
            }
        }
    }
    found
}

/// What has ended for certain stays ended.
fn no_resurrection(events: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    for end in events {
        let (What::Ended { owner, certain: true } | What::Renew { owner, outcome: Renewed::Lost, .. }) = &end.what
        else {
            continue;
        };
        for later in events.iter().filter(|later| later.invoked > end.returned) {
            let back = match &later.what {
                What::Granted { owner: who, .. } | What::Renew { owner: who, outcome: Renewed::Extended(_), .. } => {
                    who == owner
                }
                _ => false,
            };
            if back {
                found.push(format!("a grant came back: {end}, then {later}"));
            }
        }
    }
    found
}

/// Admitted values never fall, equal ones belong to one grant, and nothing is refused as stale without a larger value before it.
fn destination(events: &[&Event]) -> Vec<String> {
    let mut found = Vec::new();
    for one in events {
        let What::Write { place, token, outcome } = &one.what else {
            continue;
        };
        let mut larger_before = false;
        for other in events {
            let What::Write { place: where_, token: t, outcome: o } = &other.what else {
                continue;
            };
            if where_ != place || t.authority() != token.authority() {
                continue;
            }
            larger_before |= t.value() > token.value() && other.invoked < one.returned;
            let both = *outcome == Wrote::Admitted && *o == Wrote::Admitted;
            if both && other.returned < one.invoked && t.value() > token.value() {
                found.push(format!("a write below the mark was admitted: {other}, then {one}"));
            }
            if both && other.invoked < one.invoked && t.value() == token.value() && t.grant() != token.grant() {
                found.push(format!("one value of two grants was admitted: {other}, then {one}"));
            }
        }
        if *outcome == Wrote::Stale && !larger_before {
            found.push(format!("refused as stale without a larger value before it: {one}"));
        }
    }
    found
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
