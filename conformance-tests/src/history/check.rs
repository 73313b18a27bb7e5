//! The invariants. Each one takes only what is certain, so that a correct store never breaks it, however slow the machine.
//! Each is a sweep over sorted events: a busy case notes tens of thousands.

use super::event::{Event, Renewed, What, Wrote};
use lease_core::{Authority, BootInstant, FencingToken, OwnerToken, ResourceName, safety_margin};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The violations in a history, each with the two events that show it.
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
        found.extend(one_token_per_grant(events, &grants));
        found.extend(no_resurrection(events, &grants));
        found.extend(destinations(events));
    }
    found
}

/// One grant, from everything that was noted of it.
struct Grant<'a> {
    /// The answer that came first.
    event: &'a Event,
    token: Option<&'a FencingToken>,
    /// Before this, when its attempt was first sent, the grant cannot have been made.
    not_before: BootInstant,
    /// From here to `until` it was live for certain.
    from: BootInstant,
    until: BootInstant,
}

impl Grant<'_> {
    fn has(&self, value: u64) -> bool {
        self.token.is_some_and(|token| token.value() == value)
    }
}

fn grants<'a>(events: &[&'a Event]) -> HashMap<OwnerToken, Grant<'a>> {
    let mut grants: HashMap<OwnerToken, Grant<'a>> = HashMap::new();
    for event in events {
        let What::Granted { owner, token, .. } = &event.what else { continue };
        let grant = grants.entry(*owner).or_insert_with(|| Grant {
            event,
            token: token.as_ref(),
            not_before: event.invoked,
            from: event.returned,
            until: BootInstant::ZERO,
        });
        if event.returned < grant.from {
            (grant.event, grant.token, grant.from) = (event, token.as_ref(), event.returned);
        }
    }
    for event in events {
        if let What::Granted { owner, .. } | What::AcquireUnknown { owner } = &event.what
            && let Some(grant) = grants.get_mut(owner)
        {
            grant.not_before = grant.not_before.min(event.invoked);
        }
    }
    live_until(events, &mut grants);
    grants
}

/// Until when each grant was live for certain: as long as the earliest expiry that its acknowledged requests allow, but
/// not past the moment at which its holder began to give it up.
fn live_until(events: &[&Event], grants: &mut HashMap<OwnerToken, Grant<'_>>) {
    let lasts = |ttl: Duration| ttl.saturating_sub(safety_margin(ttl));
    for event in events {
        match &event.what {
            // A repeat doesn't extend, so the first send counts.
            What::Granted { owner, granted_ttl, .. } => {
                if let Some(grant) = grants.get_mut(owner) {
                    grant.until = grant.until.max(grant.not_before.saturating_add(lasts(*granted_ttl)));
                }
            }
            What::Renew { owner, granted_ttl, outcome: Renewed::Extended(_) } => {
                if let Some(grant) = grants.get_mut(owner) {
                    grant.until = grant.until.max(event.invoked.saturating_add(lasts(*granted_ttl)));
                }
            }
            _ => {}
        }
    }
    for event in events {
        match &event.what {
            What::Ended { owner, .. } => {
                if let Some(grant) = grants.get_mut(owner) {
                    grant.until = grant.until.min(event.invoked);
                }
            }
            What::Forced { value, .. } => {
                for grant in grants.values_mut().filter(|grant| grant.has(*value)) {
                    grant.until = grant.until.min(event.invoked);
                }
            }
            _ => {}
        }
    }
}

/// No two grants of a resource were live for certain at one moment.
fn exclusion(grants: &HashMap<OwnerToken, Grant<'_>>) -> Vec<String> {
    let mut by_start: Vec<&Grant<'_>> = grants.values().filter(|grant| grant.from < grant.until).collect();
    by_start.sort_by_key(|grant| grant.from);
    let mut found = Vec::new();
    let mut longest: Option<&Grant<'_>> = None;
    for grant in by_start {
        if let Some(other) = longest.filter(|other| grant.from < other.until) {
            let until = other.until.as_nanos() / 1_000;
            found.push(format!(
                "two live grants at once: {} (live until {until} µs at least) and {}",
                other.event, grant.event
            ));
        }
        if longest.is_none_or(|other| grant.until > other.until) {
            longest = Some(grant);
        }
    }
    found
}

/// A grant that began after another one had been made has a larger token of the same authority; no two share a value.
fn token_order(grants: &HashMap<OwnerToken, Grant<'_>>) -> Vec<String> {
    let mut found = Vec::new();
    let mut by_value: HashMap<(&Authority, u64), &Event> = HashMap::new();
    let mut spans: HashMap<&Authority, Vec<Span<'_>>> = HashMap::new();
    let mut in_order: Vec<&Grant<'_>> = grants.values().collect();
    in_order.sort_by_key(|grant| grant.from);
    for grant in in_order {
        let Some(token) = grant.token else { continue };
        if let Some(other) = by_value.insert((token.authority(), token.value()), grant.event) {
            found.push(format!("two grants have one value: {other} and {}", grant.event));
        }
        spans.entry(token.authority()).or_default().push(Span {
            begun: grant.not_before,
            done: grant.from,
            value: token.value(),
            event: grant.event,
        });
    }
    for spans in spans.into_values() {
        let fell = falls(&spans);
        found.extend(fell.map(|(earlier, later)| format!("the token fell: {earlier}, then {later}")));
    }
    found
}

/// Something with a value that happened between two instants.
struct Span<'a> {
    begun: BootInstant,
    done: BootInstant,
    value: u64,
    event: &'a Event,
}

/// The first span whose value is below that of one which was done before it began.
fn falls<'a>(spans: &[Span<'a>]) -> Option<(&'a Event, &'a Event)> {
    let (mut by_begin, mut by_end): (Vec<_>, Vec<_>) = (spans.iter().collect(), spans.iter().collect());
    by_begin.sort_by_key(|span| span.begun);
    by_end.sort_by_key(|span| span.done);
    let mut done = by_end.into_iter().peekable();
    let mut largest: Option<&Span<'a>> = None;
    for span in by_begin {
        while let Some(earlier) = done.next_if(|earlier| earlier.done < span.begun) {
            if largest.is_none_or(|largest| earlier.value > largest.value) {
                largest = Some(earlier);
            }
        }
        if let Some(earlier) = largest.filter(|largest| largest.value > span.value) {
            return Some((earlier.event, span.event));
        }
    }
    None
}

/// Renewal and repetition never change a grant's token.
fn one_token_per_grant(events: &[&Event], grants: &HashMap<OwnerToken, Grant<'_>>) -> Vec<String> {
    let mut found = Vec::new();
    for event in events {
        let (What::Granted { owner, token, .. } | What::Renew { owner, outcome: Renewed::Extended(token), .. }) =
            &event.what
        else {
            continue;
        };
        if let Some(grant) = grants.get(owner).filter(|grant| grant.token != token.as_ref()) {
            found.push(format!("a grant's token changed: {}, then {event}", grant.event));
        }
    }
    found
}

/// What has ended for certain stays ended.
fn no_resurrection(events: &[&Event], grants: &HashMap<OwnerToken, Grant<'_>>) -> Vec<String> {
    let mut ends: HashMap<OwnerToken, &Event> = HashMap::new();
    for event in events {
        let owner = match &event.what {
            What::Ended { owner, certain: true } | What::Renew { owner, outcome: Renewed::Lost, .. } => owner,
            // An order that came before its grant says nothing about it.
            What::Forced { value, certain: true } => {
                let named = grants.iter().find(|(_, grant)| grant.has(*value) && grant.from <= event.invoked);
                let Some((owner, _)) = named else { continue };
                owner
            }
            _ => continue,
        };
        let end = ends.entry(*owner).or_insert(event);
        if event.returned < end.returned {
            *end = event;
        }
    }
    let mut found = Vec::new();
    for event in events {
        let (What::Granted { owner, .. } | What::Renew { owner, outcome: Renewed::Extended(_), .. }) = &event.what
        else {
            continue;
        };
        if let Some(end) = ends.get(owner).filter(|end| end.returned < event.invoked) {
            found.push(format!("a grant came back: {end}, then {event}"));
        }
    }
    found
}

/// The writes at one destination with tokens of one authority.
#[derive(Default)]
struct Writes<'a> {
    all: Vec<(&'a Event, &'a FencingToken, &'a Wrote)>,
}

/// Admitted values never fall, equal ones belong to one grant, and nothing is refused as stale without a larger value before it.
fn destinations(events: &[&Event]) -> Vec<String> {
    let mut writes: BTreeMap<(&str, &Authority), Writes<'_>> = BTreeMap::new();
    for event in events {
        if let What::Write { place, token, outcome } = &event.what {
            let of_place = writes.entry((place.as_str(), token.authority())).or_default();
            of_place.all.push((event, token, outcome));
        }
    }
    let mut found = Vec::new();
    for writes in writes.into_values() {
        found.extend(below_the_mark(&writes));
        found.extend(conflicts(&writes));
        found.extend(false_refusals(writes));
    }
    found
}

fn below_the_mark(writes: &Writes<'_>) -> Option<String> {
    let admitted = writes.all.iter().filter(|(_, _, outcome)| **outcome == Wrote::Admitted);
    let spans: Vec<Span<'_>> = admitted
        .map(|(event, token, _)| Span { begun: event.invoked, done: event.returned, value: token.value(), event })
        .collect();
    let (earlier, later) = falls(&spans)?;
    Some(format!("a write below the mark was admitted: {earlier}, then {later}"))
}

fn conflicts(writes: &Writes<'_>) -> Option<String> {
    let mut first: HashMap<u64, (&Event, &FencingToken)> = HashMap::new();
    for (event, token, _) in writes.all.iter().filter(|(_, _, outcome)| **outcome == Wrote::Admitted) {
        match first.entry(token.value()) {
            Entry::Vacant(entry) => drop(entry.insert((event, token))),
            Entry::Occupied(entry) => {
                let (other, known) = entry.get();
                if known.grant() != token.grant() {
                    return Some(format!("one value of two grants was admitted: {other}, then {event}"));
                }
            }
        }
    }
    None
}

fn false_refusals(writes: Writes<'_>) -> Option<String> {
    let mut by_begin = writes.all.clone();
    by_begin.sort_by_key(|(event, _, _)| event.invoked);
    let mut by_end = writes.all;
    by_end.sort_by_key(|(event, _, _)| event.returned);
    let mut begun = by_begin.into_iter().peekable();
    let mut largest = 0;
    for (event, token, outcome) in by_end {
        while let Some((_, other, _)) = begun.next_if(|(other, _, _)| other.invoked < event.returned) {
            largest = largest.max(other.value());
        }
        if *outcome == Wrote::Stale && largest <= token.value() {
            return Some(format!("refused as stale without a larger value before it: {event}"));
        }
    }
    None
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
