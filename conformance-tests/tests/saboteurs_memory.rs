//! Every probe catches the saboteur that it is for, by name, and passes its honest twin.

#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "a test may end by a panic, and the toys are broken on purpose"
)]
#![expect(unreachable_pub, reason = "the toys are shared by test programs")]

mod toy;

use lease_conformance::{Cell, Suite, Verdict, subject};
use std::sync::Arc;
use toy::Toy;
use toy::place::ToyPlace;

/// The saboteurs of the lease backend, each with the cases that must catch it.
#[rustfmt::skip]
const BACKEND: &[(toy::Break, &[&str])] = {
    use toy::Break::*;
    &[
        (AbandonDoesNothing, &["attempt/over-after-abandon", "attempt/abandoned-before-sent", "unknown/dropped-acquire-arrives-later"]),
        (AbandonEndsAnyGrant, &["attempt/abandon-leaves-holder-alone"]),
        (AbandonOnlyDeletes, &["unknown/held-up-acquire-after-abandon", "unknown/delayed-acquire-after-abandon", "unknown/short-form-gives-up", "unknown/dropped-acquire-arrives-later"]),
        (AcquireHangs, &["exclusion/second-client"]),
        (AcquireInTwoSteps, &["exclusion/racing"]),
        (AcquirePanics, &["exclusion/second-client"]),
        (CleanUpEndsQuietGrants, &["clean-up/leaves-live-grants-alone"]),
        (CleanUpForgetsCounter, &["token/grows-over-idle-clean-up", "token/grows-while-cleaning-up"]),
        (ClaimsTheOtherFence, &["declared/fence-agrees-with-claims"]),
        (ContendersTtlCounts, &["expiry/holders-ttl-counts"]),
        (DeadlineOfTheFirstTry, &["wait/validity-of-the-winning-try"]),
        (DropNeedsARuntime, &["holder/drop-anywhere"]),
        (ExpiresEarly, &["expiry/frees", "holder/loss-by-deadline"]),
        (FenceDoesNotCheck, &["exclusion/refused-attempt-can-do-nothing", "fencing/native-refuses-ended-grant", "fencing/pause-past-ttl/native-live-owner"]),
        (FloorIsIgnored, &["token/above-floor", "token/minted-above-floor"]),
        (FloorIsRefused, &["token/above-floor", "token/minted-above-floor"]),
        (ForceEndsAnyGrant, &["force/other-grant-left-alone", "force/repeated"]),
        (ForceForgetsAttempt, &["force/attempt-over"]),
        (ForceLooksLikeRelease, &["force/ends-the-named-grant"]),
        (ForceOnlyReports, &["force/ends-the-named-grant", "force/native-fence-refuses"]),
        (GrantDiesWithItsClient, &["renew/after-its-client-is-gone"]),
        (HeldAttemptExtends, &["expiry/others-do-not-extend"]),
        (HeldThoughJustGranted, &["wait/edge-leaves-nothing"]),
        (ListSkipsAPage, &["list/by-prefix"]),
        (NameIsFolded, &["names/distinct"]),
        (NameIsTruncated, &["names/longest"]),
        (NoExpiry, &["expiry/frees", "ttl/tiny-rounds-up"]),
        (OwnerIsShown, &["inspect/no-owner-token"]),
        (ReentrantForOneClient, &["exclusion/same-client", "unknown/release-request-lost"]),
        (ReentrantForOneLabel, &["exclusion/same-label"]),
        (ReleaseByClient, &["release/old-repeat-leaves-own-new-grant-alone"]),
        (ReleaseDoesNothing, &["release/frees", "holder/drop-frees", "holder/renewal-stops-with-guard"]),
        (ReleaseForgetsAttempt, &["unknown/held-up-acquire-after-release"]),
        (ReleaseMissesRenewed, &["holder/release-during-renewal"]),
        (ReleaseWithoutOwner, &["exclusion/refused-attempt-can-do-nothing", "release/superseded-leaves-holder-alone", "fencing/pause-past-ttl/release-leaves-holder-alone"]),
        (ReleasedAttemptIsGrantedAgain, &["attempt/over-after-release"]),
        (RenewExtendsAnyGrant, &["renew/leaves-other-grant-alone"]),
        (RenewRecreates, &["renew/expired-is-lost"]),
        (RenewShortens, &["renew/extends", "holder/no-false-loss"]),
        (RenewWithoutOwner, &["exclusion/refused-attempt-can-do-nothing", "renew/superseded-is-lost", "fencing/pause-past-ttl/cannot-renew"]),
        (RepeatExtends, &["attempt/repeat-does-not-extend"]),
        (RepeatMakesAnotherGrant, &["attempt/repeat-finds-same-grant"]),
        (SecondGrantIsNeverRenewed, &["holder/second-lease-is-renewed-after-a-loss"]),
        (TakeoverForgetsAttempt, &["unknown/held-up-acquire-after-expiry"]),
        (TaskPerGrant, &["holder/ten-thousand-guards"]),
        (TokenFromWallClock, &["token/grows-over-release", "token/grows-over-racing-acquirers"]),
        (TokenOfTheClient, &["token/grows-over-release", "token/grows-over-expiry", "token/grows-over-racing-acquirers"]),
        (TokenReadLater, &["token/kept-over-renewal-and-repeat"]),
        (TokenResetOnRelease, &["token/grows-over-release"]),
        (TtlIsTruncated, &["ttl/granted-not-shorter"]),
        (TtlOfTheClient, &["ttl/each-grant-its-own"]),
    ]
};

/// The saboteurs of the destination, each with the cases that must catch it.
#[rustfmt::skip]
const DESTINATION: &[(toy::place::Break, &[&str])] = {
    use toy::place::Break::*;
    &[
        (AdoptDoesNotCompare, &["destination/adopt-compares-and-sets"]),
        (AdoptForgetsMarks, &["destination/old-marks-survive-adoption"]),
        (ChecksThenWrites, &["destination/racing-writers"]),
        (ComparesDoubles, &["destination/exact-values"]),
        (ComparesText, &["destination/exact-values"]),
        (ConflictPasses, &["destination/refuses-conflict"]),
        (DroppedWriteKeepsLock, &["cancel/guarded-write-swept"]),
        (ForgetsMark, &["destination/refuses-stale", "fencing/pause-past-ttl/guarded", "fencing/http/guarded-transaction"]),
        (IgnoresAuthority, &["destination/refuses-unknown-authority"]),
        (MarkStaysAfterRollBack, &["destination/mark-rolls-back"]),
        (OneMarkForAll, &["destination/mark-per-resource"]),
        (RefusalCanBeCommitted, &["fencing/pause-past-ttl/refusal-ignored", "fencing/http/refusal-ignored"]),
        (RefusedSecondWrite, &["destination/admits-holder"]),
        (RefusedTokenBecomesMark, &["destination/refuses-stale"]),
        (SealDoesNothing, &["destination/seal-raises-mark-only", "fencing/pause-past-ttl/sealed-not-written"]),
        (SealWrites, &["destination/seal-raises-mark-only"]),
        (TellsWrittenWhenRefused, &["destination/refuses-stale", "fencing/pause-past-ttl/guarded", "fencing/http/guarded-transaction"]),
    ]
};

/// How many saboteurs are run at the same time.
const AT_ONCE: usize = 12;

async fn run(backend: Option<toy::Break>, place: Option<toy::place::Break>, only: &[&str]) -> Vec<Cell> {
    let store = Toy::new(backend);
    let toy = subject("toy", move || std::future::ready(Ok(store.another())));
    let mut suite = Suite::new(toy).places(vec![Arc::new(ToyPlace::new(place))]);
    for prefix in only {
        suite = suite.only(*prefix);
    }
    suite.run().await.cells
}

/// What is wrong with the cells that should have caught it.
fn missed(name: &str, cells: &[Cell], cases: &[&str]) -> Vec<String> {
    let caught = |case: &&&str| {
        let mut cells = cells.iter().filter(|cell| cell.case == **case);
        cells.any(|cell| cell.verdict == Verdict::Broken && cell.finding.is_some())
    };
    let missed = cases.iter().filter(|case| !caught(case));
    missed.map(|case| format!("{name} was not caught by {case}: {:?}", verdicts(cells))).collect()
}

fn verdicts(cells: &[Cell]) -> Vec<(&str, Verdict, &Option<String>)> {
    cells.iter().map(|cell| (cell.case.as_str(), cell.verdict, &cell.finding)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_saboteur_is_caught_by_its_case() {
    let mut runs = tokio::task::JoinSet::new();
    // Some at a time: what a saboteur does for a moment only is not seen where each look takes longer than that.
    let turns = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    for (sabotage, cases) in BACKEND {
        let turns = Arc::clone(&turns);
        runs.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            missed(&format!("{sabotage:?}"), &run(Some(*sabotage), None, cases).await, cases)
        });
    }
    for (sabotage, cases) in DESTINATION {
        let turns = Arc::clone(&turns);
        runs.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            missed(&format!("{sabotage:?}"), &run(None, Some(*sabotage), cases).await, cases)
        });
    }
    let missed: Vec<String> = runs.join_all().await.into_iter().flatten().collect();
    assert_eq!(missed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_honest_twin_passes_them_all() {
    let cells = run(None, None, &[]).await;
    let red = cells.iter().filter(|cell| {
        !matches!(cell.verdict, Verdict::Kept | Verdict::ControlLanded | Verdict::HonestNo | Verdict::Untested)
    });
    let red: Vec<Cell> = red.cloned().collect();
    assert!(red.is_empty(), "{:#?}", verdicts(&red));
    let sabotaged = BACKEND.iter().map(|(_, cases)| cases).chain(DESTINATION.iter().map(|(_, cases)| cases));
    for case in sabotaged.flat_map(|cases| cases.iter()) {
        let of_case = cells.iter().filter(|cell| cell.case == *case);
        assert!(
            of_case.clone().count() > 0 && of_case.clone().all(|cell| cell.verdict == Verdict::Kept),
            "the twin should keep {case}: {:?}",
            verdicts(&of_case.cloned().collect::<Vec<_>>())
        );
    }
}
