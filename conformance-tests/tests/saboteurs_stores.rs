//! One line of a real backend's script or statement is edited, and the case that it is for finds it, by name; the unedited twin passes.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

mod stores;

use lease_conformance::{Cell, Suite, Verdict};
use std::sync::Arc;
use stores::{Edited, EditedPlace, Store, Stores};

/// What is sabotaged.
#[derive(Clone, Copy, Debug)]
enum Part {
    Lease,
    Guard,
}

/// One sabotage: what it is, where, the edit, and the case that must catch it.
struct Saboteur(&'static str, Store, Part, (&'static str, &'static str), &'static str);

const RELEASE: &str = "release/superseded-leaves-holder-alone";
const TOKEN: &str = "token/grows-over-release";
const FLOOR: &str = "token/minted-above-floor";
const STALE: &str = "destination/refuses-stale";
const SECOND_WRITE: &str = "destination/admits-holder";
const OTHER_GRANT: &str = "force/other-grant-left-alone";
const ATTEMPT_OVER: &str = "force/attempt-over";

/// The condition on the owner is written once for all statements, and so is that on the time.
const PG_ANY_OWNER: (&str, &str) = ("AND l.owner = $2 AND NOT l.released", "AND NOT l.released");
const PG_ANY_TIME: (&str, &str) = ("expires_at > clock_timestamp()", "name IS NOT NULL");

#[rustfmt::skip]
const SABOTEURS: &[Saboteur] = {
    use Part::{Guard, Lease};
    use Store::{Postgres, Redis, Sqlite};
    &[
        Saboteur("release without owner check", Redis, Lease,
            ("if lost then return { lost } end\nstate = 'r'", "if not live then return { lost } end\nstate = 'r'"), RELEASE),
        Saboteur("renew without owner check", Redis, Lease,
            ("if lost then return { lost } end\nexpires =", "if not live then return { lost } end\nexpires ="), "renew/superseded-is-lost"),
        Saboteur("renew that re-creates", Redis, Lease,
            ("if lost then return { lost } end\nexpires =", "if lost and lost ~= 'expired' then return { lost } end\nexpires ="), "renew/expired-is-lost"),
        Saboteur("no expiry", Redis, Lease,
            ("local live = state == 'h' and t < expires", "local live = state == 'h'"), "expiry/frees"),
        Saboteur("re-entrant", Redis, Lease,
            ("if live then return { 'held'", "if live and false then return { 'held'"), "exclusion/same-client"),
        Saboteur("token from a wall clock of whole seconds", Redis, Lease,
            ("math.max(before + 1, t)", "math.floor(t / 1000000)"), TOKEN),
        Saboteur("token reset on release", Redis, Lease,
            ("math.max(before + 1, t)", "state == 'r' and 1 or math.max(before + 1, t)"), TOKEN),
        Saboteur("floor ignored", Redis, Lease,
            ("math.max(tonumber(value or 0), tonumber(ARGV[6]))", "tonumber(value or 0)"), FLOOR),
        Saboteur("fence without owner check", Redis, Lease,
            ("if owner ~= ARGV[1] or value ~= ARGV[2] or state ~= 'h'", "if state ~= 'h'"), "fencing/pause-past-ttl/native-live-owner"),
        Saboteur("fence that takes an ended grant", Redis, Lease,
            (" or state ~= 'h' or t[1] * 1000000 + t[2] >= tonumber(expires)", ""), "fencing/native-refuses-ended-grant"),
        Saboteur("force-release without value check", Redis, Lease,
            ("if value ~= ARGV[1] then return { 'other', value } end", ""), OTHER_GRANT),
        Saboteur("force-release without a tombstone", Redis, Lease,
            ("redis.call('SET', ARGV[3] .. owner,", "redis.call('SET', ARGV[3] .. 'nobody',"), ATTEMPT_OVER),
        Saboteur("guard that forgets its mark", Redis, Guard,
            ("if order > 0 then redis.call('HSET'", "if false then redis.call('HSET'"), STALE),
        Saboteur("guard that refuses the holder's second write", Redis, Guard,
            ("if order < 0 then", "if order <= 0 then"), SECOND_WRITE),
        Saboteur("guard that compares doubles", Redis, Guard,
            ("    if order == 0 then order = string.sub(ARGV[2], 11) - string.sub(value, 11) end\n", ""), "destination/exact-values"),

        Saboteur("release without owner check", Postgres, Lease, PG_ANY_OWNER, RELEASE),
        Saboteur("renew without owner check", Postgres, Lease,
            ("AND l.owner = $2 AND l.value = $4 AND NOT l.released", "AND NOT l.released"), "renew/superseded-is-lost"),
        Saboteur("renew that re-creates", Postgres, Lease, PG_ANY_TIME, "renew/expired-is-lost"),
        Saboteur("no expiry", Postgres, Lease,
            ("clock_timestamp() + $5 * interval '1 millisecond'", "clock_timestamp() + $5 * interval '1 hour'"), "expiry/frees"),
        Saboteur("token that stays", Postgres, Lease,
            ("value = greatest(l.value + 1,", "value = least(l.value,"), TOKEN),
        Saboteur("floor ignored", Postgres, Lease, ("$6 + 1", "$6 * 0"), FLOOR),
        Saboteur("fence that takes an ended grant", Postgres, Lease, PG_ANY_TIME, "fencing/native-refuses-ended-grant"),
        Saboteur("a released attempt is granted again", Postgres, Lease,
            ("AND l.owner <> $2 AND NOT l.spent ? $2", ""), "attempt/over-after-release"),
        Saboteur("force-release without value check", Postgres, Lease,
            ("AND l.value = $2 AND", "AND $2 > 0 AND"), OTHER_GRANT),
        Saboteur("force-release without a tombstone", Postgres, Lease,
            ("jsonb_build_object(l.owner,", "jsonb_build_object('nobody',"), ATTEMPT_OVER),
        Saboteur("guard that forgets its mark", Postgres, Guard,
            ("WHERE m.value < EXCLUDED.value OR", "WHERE true OR"), STALE),
        Saboteur("guard that refuses the holder's second write", Postgres, Guard,
            (" OR (m.value = EXCLUDED.value AND m.grant_id = EXCLUDED.grant_id)", ""), SECOND_WRITE),
        Saboteur("guard that does not tell grants apart", Postgres, Guard,
            (" AND m.grant_id = EXCLUDED.grant_id)", ")"), "destination/refuses-conflict"),

        Saboteur("release without owner check", Sqlite, Lease,
            ("expires = ?4 WHERE resource = ?1 AND owner = ?2 AND", "expires = ?4 WHERE resource = ?1 AND"), RELEASE),
        Saboteur("renew that extends any grant", Sqlite, Lease,
            ("renewed = ?4\n                 WHERE resource = ?1 AND owner = ?2 AND value = ?6 AND", "renewed = ?4\n                 WHERE resource = ?1 AND"), "renew/leaves-other-grant-alone"),
        Saboteur("renew that re-creates", Sqlite, Lease,
            ("renewed = ?4\n                 WHERE resource = ?1 AND owner = ?2 AND value = ?6 AND NOT released AND boot = ?3 AND expires > ?4", "renewed = ?4\n                 WHERE resource = ?1 AND owner = ?2 AND NOT released AND boot = ?3"), "renew/expired-is-lost"),
        Saboteur("no expiry", Sqlite, Lease,
            ("?4 + ?5, ?4, ?4, 0", "?4 + ?5 + 3600000000000, ?4, ?4, 0"), "expiry/frees"),
        Saboteur("token that stays", Sqlite, Lease,
            ("value = excluded.value, boot", "boot"), TOKEN),
        Saboteur("floor ignored", Sqlite, Lease, ("?10 + 1, ?6", "?10 * 0, ?6"), FLOOR),
        Saboteur("force-release without value check", Sqlite, Lease,
            ("AND value = ?2 AND", "AND ?2 > 0 AND"), OTHER_GRANT),
        Saboteur("force-release without a tombstone", Sqlite, Lease,
            ("SELECT owner, ?3,", "SELECT 'nobody', ?3,"), ATTEMPT_OVER),
        Saboteur("guard that forgets its mark", Sqlite, Guard,
            ("WHERE excluded.value > leasehold_mark.value", "WHERE true"), STALE),
        Saboteur("guard that refuses the holder's second write", Sqlite, Guard,
            ("AND m.grant_id = ?4", "AND m.grant_id = ?4 AND NOT EXISTS (SELECT 1 FROM leasehold_register WHERE resource = ?1)"), SECOND_WRITE),
    ]
};

/// etcd's transactions are built in code, so an edit names a condition or an operation and takes it out.
#[cfg(not(feature = "etcd-saboteurs"))]
const ETCD: &[Saboteur] = &[];
#[cfg(feature = "etcd-saboteurs")]
#[rustfmt::skip]
const ETCD: &[Saboteur] = {
    use Part::{Guard, Lease};
    use Store::Etcd;
    &[
        Saboteur("re-entrant", Etcd, Lease, ("acquire compares that the resource is free", ""), "exclusion/same-client"),
        Saboteur("no expiry", Etcd, Lease, ("acquire attaches the lease", ""), "expiry/frees"),
        Saboteur("token from the leader's term", Etcd, Lease, ("the token is the grant's revision", ""), "token/grows-over-expiry"),
        Saboteur("renew without key check", Etcd, Lease, ("renew reads the key", ""), "renew/released-is-lost"),
        Saboteur("renew without owner check", Etcd, Lease, ("renew compares the owner", ""), "renew/superseded-is-lost"),
        Saboteur("release without owner check", Etcd, Lease, ("release compares the owner", ""), RELEASE),
        Saboteur("force-release without value check", Etcd, Lease, ("force-release compares the value", ""), OTHER_GRANT),
        Saboteur("force-release without a tombstone", Etcd, Lease, ("force-release leaves a marker", ""), ATTEMPT_OVER),
        Saboteur("fence without compare", Etcd, Lease, ("fence compares the owner", ""), "fencing/native-refuses-ended-grant"),
        Saboteur("guard that forgets its mark", Etcd, Guard, ("guard compares the mark", ""), STALE),
        Saboteur("guard that trusts any authority", Etcd, Guard, ("guard compares the authority", ""), "destination/refuses-unknown-authority"),
    ]
};

fn saboteurs() -> impl Iterator<Item = &'static Saboteur> {
    SABOTEURS.iter().chain(ETCD)
}

/// Runs the cases on one part of one store with an edit, or without any.
async fn run(
    stores: &Stores,
    store: Store,
    part: Part,
    edit: Option<(&'static str, &'static str)>,
    cases: &[&str],
) -> Vec<Cell> {
    let url = stores.url(store);
    let mut suite = match part {
        Part::Lease => Suite::new(Arc::new(Edited { store, url, edit })),
        Part::Guard => Suite::new(stores::honest()).places(vec![Arc::new(EditedPlace { store, url, edit })]),
    };
    for case in cases {
        suite = suite.only(*case);
    }
    let report = suite.run().await;
    assert_eq!(report.missing, [], "an edit that is stale, or a server that is down");
    report.cells
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_saboteur_of_a_store_is_caught_by_its_case() {
    let stores = Arc::new(Stores::start());
    let mut missed = Vec::new();
    for few in saboteurs().collect::<Vec<_>>().chunks(6) {
        let mut runs = tokio::task::JoinSet::new();
        for Saboteur(name, store, part, edit, case) in few.iter().copied() {
            let stores = Arc::clone(&stores);
            runs.spawn(async move {
                let cells = run(&stores, *store, *part, Some(*edit), &[case]).await;
                let caught =
                    |cell: &Cell| cell.case == *case && cell.verdict == Verdict::Broken && cell.finding.is_some();
                let seen: Vec<_> = cells.iter().map(|cell| (&cell.case, cell.verdict, &cell.finding)).collect();
                (!cells.iter().any(caught)).then(|| format!("{store:?}, {name}: not caught by {case}: {seen:?}"))
            });
        }
        missed.extend(runs.join_all().await.into_iter().flatten());
    }
    assert_eq!(missed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_honest_twin_passes_the_same_cases() {
    let stores = Stores::start();
    for &store in Store::ALL {
        for part in [Part::Lease, Part::Guard] {
            let is_its = |saboteur: &&Saboteur| {
                saboteur.1 == store && std::mem::discriminant(&saboteur.2) == std::mem::discriminant(&part)
            };
            let cases: Vec<&str> = saboteurs().filter(is_its).map(|saboteur| saboteur.4).collect();
            let cells = run(&stores, store, part, None, &cases).await;
            let bad: Vec<_> = cells.iter().filter(|cell| cell.verdict != Verdict::Kept).collect();
            assert!(bad.is_empty() && cases.iter().all(|case| cells.iter().any(|c| c.case == *case)), "{bad:#?}");
        }
    }
}

#[tokio::test]
async fn an_edit_that_is_stale_is_loud() {
    let stores = Stores::start();
    for &store in Store::ALL {
        let url = stores.url(store);
        assert!(stores::backend(store, &url, &[("no such text", "")]).await.is_err(), "{store:?}");
        assert!(stores::destination(store, &url, &[("no such text", "")]).await.is_err(), "{store:?}");
    }
}
