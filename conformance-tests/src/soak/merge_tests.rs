//! Histories of two workers: a correct one, and ones that are wrong in just one way each.

use super::*;
use lease_core::{Authority, FencingToken, GrantId};

fn token(value: u64) -> FencingToken {
    let grant = GrantId::from_hex(&format!("{value:016x}")).unwrap();
    FencingToken::new(Authority::parse("a").unwrap(), value, grant).unwrap()
}

/// A worker's notes; times in milliseconds.
#[derive(Default)]
struct Notes(Stream);

impl Notes {
    fn did(mut self, from: u64, to: u64, does: Does, came: Came) -> Self {
        let op = u64::try_from(self.0.len()).unwrap();
        self.0.push(Note { op, at_ns: ns(from), part: begins(does) });
        self.0.push(Note { op, at_ns: ns(to), part: Part::Ends { came } });
        self
    }

    /// Begun, and then the worker was killed.
    fn began(mut self, from: u64, does: Does) -> Self {
        let op = u64::try_from(self.0.len()).unwrap();
        self.0.push(Note { op, at_ns: ns(from), part: begins(does) });
        self
    }

    fn granted(self, from: u64, to: u64, value: u64) -> Self {
        let granted_ttl_ns = 1_000_000_000;
        self.did(from, to, Does::Acquire { grant: 0 }, Came::Granted { token: Some(token(value)), granted_ttl_ns })
    }

    fn renewed(self, from: u64, to: u64, value: u64) -> Self {
        let does = Does::Renew { grant: 0, granted_ttl_ns: 1_000_000_000 };
        self.did(from, to, does, Came::Extended { token: Some(token(value)) })
    }

    fn wrote(self, from: u64, to: u64, value: u64, tag: &str, on: Option<&str>, came: Came) -> Self {
        self.did(from, to, write(value, tag, on), came)
    }
}

fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

fn begins(does: Does) -> Part {
    Part::Begins { resource: "r".into(), does }
}

fn write(value: u64, tag: &str, on: Option<&str>) -> Does {
    Does::Write { token: token(value), tag: tag.into(), on: on.map(ToOwned::to_owned) }
}

fn found(tag: &str) -> Came {
    Came::Found { tag: Some(tag.into()) }
}

fn judged(a: Notes, b: Notes, last: &str) -> Judged {
    let name = ResourceName::parse("r").unwrap();
    judge(&[a.0, b.0], &BTreeMap::from([(name, Some(last.to_owned()))]))
}

/// A holds and writes; B takes over when A's time is up, seals, reads and writes; A's late write is refused.
fn a() -> Notes {
    Notes::default().granted(0, 10, 1).wrote(20, 30, 1, "a", None, Came::Admitted).wrote(
        1_200,
        1_300,
        1,
        "late",
        Some("a"),
        Came::Stale,
    )
}

fn b() -> Notes {
    Notes::default()
        .granted(1_000, 1_010, 2)
        .did(1_020, 1_030, Does::Seal { token: token(2) }, Came::Admitted)
        .did(1_040, 1_050, Does::Read, found("a"))
        .wrote(1_060, 1_070, 2, "b", Some("a"), Came::Admitted)
}

#[test]
fn a_correct_history_passes() {
    let judged = judged(a(), b(), "b");
    assert_eq!(judged.violations, Vec::<String>::new());
    let count = |name| judged.counts.get(name).copied().unwrap_or_default();
    assert_eq!((count("operations"), count("grants"), count("commits"), count("stale_refused")), (7, 2, 2, 1));
}

#[test]
fn what_a_killed_worker_had_begun_counts_as_unknown() {
    // Its release was under way, so the next grant may come at once; its write may be there or not.
    let a = Notes::default().granted(0, 10, 1).began(20, write(1, "a", None)).began(40, Does::Ends { grant: 0 });
    let b = Notes::default().granted(50, 60, 2).did(62, 64, Does::Read, found("a")).wrote(
        70,
        80,
        2,
        "b",
        Some("a"),
        Came::Admitted,
    );
    assert_eq!(judged(a, b, "b").violations, Vec::<String>::new());
}

#[test]
fn each_wrong_history_is_found() {
    let late_again = || a().wrote(1_400, 1_410, 1, "x", Some("b"), Came::Admitted);
    let unbegun = Notes(vec![Note { op: 9, at_ns: 1, part: Part::Ends { came: Came::Lost } }]);
    let table = [
        // A renewal had made A's lease longer.
        (
            "two live grants at once",
            Notes::default().granted(0, 10, 1).renewed(900, 910, 1),
            Notes::default().granted(1_000, 1_010, 2),
            None,
        ),
        ("the token fell", Notes::default().granted(0, 10, 3), Notes::default().granted(1_000, 1_010, 2), None),
        ("lost update", a(), b().wrote(1_080, 1_090, 2, "c", Some("a"), Came::Admitted), Some("c")),
        ("a write below the mark", late_again(), b(), Some("x")),
        ("was refused, and is there", a(), b(), Some("late")),
        ("not linearizable", a().did(1_400, 1_410, Does::Read, found("a")), b(), Some("b")),
        ("an end without a beginning", Notes::default().granted(0, 10, 1), unbegun, None),
    ];
    for (finding, a, b, last) in table {
        let name = ResourceName::parse("r").unwrap();
        let last = BTreeMap::from([(name, last.map(ToOwned::to_owned))]);
        let found = judge(&[a.0, b.0], &last).violations;
        assert!(found.iter().any(|text| text.contains(finding)), "{finding}: {found:#?}");
        // A late write that landed is below the mark at the guard and behind a higher token in the register.
        assert!(found.len() == 1 || found.len() == 2 && finding.contains("mark"), "{finding}: {found:#?}");
    }
}
