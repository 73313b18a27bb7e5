//! For each invariant a history that is wrong in just one way, and correct ones that pass.

use super::*;
use lease_core::{Authority, GrantId};
use std::time::Duration;

fn owner(n: u8) -> OwnerToken {
    OwnerToken::from_revealed(&format!("{n:032x}")).unwrap()
}

fn token(value: u64, grant: u64) -> FencingToken {
    let grant = GrantId::from_hex(&format!("{grant:016x}")).unwrap();
    FencingToken::new(Authority::parse("a").unwrap(), value, grant).unwrap()
}

/// An event from `from` to `to`, in milliseconds.
fn event(from: u64, to: u64, what: What) -> Event {
    Event {
        resource: ResourceName::parse("r").unwrap(),
        invoked: BootInstant::from_nanos(from.saturating_mul(1_000_000)),
        returned: BootInstant::from_nanos(to.saturating_mul(1_000_000)),
        what,
    }
}

const TTL: Duration = Duration::from_secs(1);

fn granted(from: u64, to: u64, who: u8, value: u64) -> Event {
    let what = What::Granted { owner: owner(who), token: Some(token(value, who.into())), granted_ttl: TTL };
    event(from, to, what)
}

fn renewed(from: u64, to: u64, who: u8, value: u64) -> Event {
    let what =
        What::Renew { owner: owner(who), granted_ttl: TTL, outcome: Renewed::Extended(Some(token(value, who.into()))) };
    event(from, to, what)
}

fn lost(from: u64, to: u64, who: u8) -> Event {
    let what = What::Renew { owner: owner(who), granted_ttl: TTL, outcome: Renewed::Lost };
    event(from, to, what)
}

fn ended(from: u64, to: u64, who: u8, certain: bool) -> Event {
    let owner = owner(who);
    event(from, to, What::Ended { owner, certain })
}

fn forced(from: u64, to: u64, value: u64) -> Event {
    event(from, to, What::Forced { value, certain: true })
}

fn wrote(from: u64, to: u64, value: u64, grant: u64, outcome: Wrote) -> Event {
    let what = What::Write { place: "p".into(), token: token(value, grant), outcome };
    event(from, to, what)
}

#[test]
fn correct_histories_pass() {
    let unknown = What::AcquireUnknown { owner: owner(1) };
    let histories = [
        // Release, then the next one; the holder's renewals; a stale renewal and release.
        vec![
            granted(0, 10, 1, 5),
            renewed(500, 510, 1, 5),
            ended(600, 610, 1, true),
            granted(605, 620, 2, 6),
            lost(630, 640, 1),
            ended(640, 650, 1, true),
        ],
        // Expiry: the second grant just when the first one's certain interval is over.
        vec![granted(0, 10, 1, 5), granted(980, 991, 2, 6)],
        // Racing attempts may be granted in either order.
        vec![granted(0, 100, 1, 6), ended(110, 120, 1, true), granted(0, 50, 2, 5), ended(60, 70, 2, true)],
        // A repeat finds the same grant and does not extend it: the interval counts from the first send.
        vec![event(0, 10, unknown), granted(900, 910, 1, 5), granted(995, 1_005, 2, 6)],
        // A release without an answer: the holder counts on nothing any more.
        vec![granted(0, 10, 1, 5), ended(20, 30, 1, false), granted(25, 40, 2, 6)],
        // An order ends the grant that it names, and says nothing about a later one with a larger value, nor about one it came before.
        vec![granted(0, 10, 1, 5), forced(20, 30, 5), granted(25, 40, 2, 6), lost(50, 60, 1), forced(70, 80, 5)],
        vec![forced(0, 5, 5), granted(10, 20, 1, 5), renewed(30, 40, 1, 5)],
        // Writes: the holder's second one, a stale one refused, overlapping ones in either order.
        vec![
            wrote(0, 10, 5, 1, Wrote::Admitted),
            wrote(20, 30, 5, 1, Wrote::Admitted),
            wrote(40, 50, 6, 2, Wrote::Admitted),
            wrote(60, 70, 5, 1, Wrote::Stale),
            wrote(100, 200, 9, 9, Wrote::Admitted),
            wrote(110, 190, 7, 7, Wrote::Admitted),
            wrote(210, 220, 9, 8, Wrote::Refused),
        ],
    ];
    for history in histories {
        assert_eq!(violations(&history), Vec::<String>::new(), "{history:#?}");
    }
}

#[test]
fn each_wrong_history_is_found_once() {
    let table = [
        ("two live grants at once", vec![granted(0, 10, 1, 5), granted(20, 30, 2, 6)]),
        ("two live grants at once", vec![granted(0, 10, 1, 5), renewed(900, 910, 1, 5), granted(1_200, 1_210, 2, 6)]),
        ("two live grants at once", vec![granted(0, 10, 1, 5), granted(900, 989, 2, 6)]),
        ("the token fell", vec![granted(0, 10, 1, 5), ended(20, 30, 1, true), granted(40, 50, 2, 4)]),
        ("two grants have one value", vec![granted(0, 10, 1, 5), ended(20, 30, 1, true), granted(40, 50, 2, 5)]),
        ("a grant's token changed", vec![granted(0, 10, 1, 5), renewed(20, 30, 1, 6)]),
        ("a grant's token changed", vec![granted(0, 10, 1, 5), granted(20, 30, 1, 6)]),
        ("a grant came back", vec![granted(0, 10, 1, 5), ended(20, 30, 1, true), renewed(40, 50, 1, 5)]),
        ("a grant came back", vec![granted(0, 10, 1, 5), ended(20, 30, 1, true), granted(40, 50, 1, 5)]),
        ("a grant came back", vec![granted(0, 10, 1, 5), lost(1_100, 1_110, 1), renewed(1_200, 1_210, 1, 5)]),
        ("a grant came back", vec![granted(0, 10, 1, 5), forced(20, 30, 5), renewed(40, 50, 1, 5)]),
        ("two live grants at once", vec![granted(0, 10, 1, 5), forced(20, 30, 4), granted(40, 50, 2, 6)]),
        ("a write below the mark", vec![wrote(0, 10, 6, 2, Wrote::Admitted), wrote(20, 30, 5, 1, Wrote::Admitted)]),
        ("one value of two grants", vec![wrote(0, 10, 5, 2, Wrote::Admitted), wrote(20, 30, 5, 1, Wrote::Admitted)]),
        (
            "without a larger value before it",
            vec![wrote(0, 10, 5, 1, Wrote::Admitted), wrote(20, 30, 5, 1, Wrote::Stale)],
        ),
        (
            "without a larger value before it",
            vec![wrote(0, 10, 5, 1, Wrote::Stale), wrote(20, 30, 6, 2, Wrote::Admitted)],
        ),
    ];
    for (finding, history) in table {
        let found = violations(&history);
        assert_eq!(found.len(), 1, "{finding}: {found:#?}");
        assert!(found.iter().all(|text| text.contains(finding)), "{finding}: {found:#?}");
    }
}

#[test]
fn other_resources_places_and_authorities_do_not_mix() {
    let mut elsewhere = granted(20, 30, 2, 5);
    elsewhere.resource = ResourceName::parse("r2").unwrap();
    assert_eq!(violations(&[granted(0, 10, 1, 5), elsewhere]), Vec::<String>::new());
    let mut other_place = wrote(20, 30, 5, 1, Wrote::Admitted);
    if let What::Write { place, .. } = &mut other_place.what {
        *place = "q".into();
    }
    let history = [wrote(0, 10, 6, 2, Wrote::Admitted), other_place];
    assert_eq!(violations(&history), Vec::<String>::new());
}

#[test]
fn no_message_shows_an_owner() {
    let history = [granted(0, 10, 1, 5), granted(20, 30, 2, 6)];
    for text in violations(&history) {
        assert!(!text.contains(&owner(1).reveal()) && !text.contains(&owner(2).reveal()));
    }
}
