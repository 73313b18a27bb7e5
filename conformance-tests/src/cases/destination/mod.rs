//! What a guarded destination admits, refuses and remembers. The tokens are made up: any lease backend's are as good.

mod dropped;
mod racing;

pub(super) use dropped::CASES as DROPPED;
pub(super) use racing::CASES as RACING;

use super::restart::kill_and_restart;
use super::{Case, case};
use crate::context::{CONNECTING, CaseResult, Stage, Stop, ensure, evidence, refute};
use crate::history::RecordedDestination;
use crate::judge::Rule;
use crate::subject::{Place, TestDestination};
use lease_core::{Authority, Claim, FencingToken, GrantId, GuardError, GuardedDestination, Refusal, ResourceName};
use std::sync::Arc;

pub(super) const CASES: &[Case] = &[
    case!(
        AtPlace,
        second_write,
        Rule::Core,
        "destination/admits-holder",
        "The holder's second write passes, and so does a newer grant's first one.",
        "Writes with one token twice, then with a larger one; each must land and leave its mark."
    ),
    case!(
        AtPlace,
        stale,
        Rule::Core,
        "destination/refuses-stale",
        "A token below the mark is refused as stale, and changes neither content nor mark.",
        "Write with 10; then write and seal with 9 and with 1."
    ),
    case!(
        AtPlace,
        conflict,
        Rule::Core,
        "destination/refuses-conflict",
        "The mark's value from another grant is refused as a conflict.",
        "Write with 10 of one grant; then write and seal with 10 of another one. It shows that a counter went back."
    ),
    case!(
        AtPlace,
        unknown_authority,
        Rule::Core,
        "destination/refuses-unknown-authority",
        "A token of an authority that is not the trusted one is refused, whatever its value; before one is adopted, every token is.",
        "Write and seal before any adoption, and then with a huge value of another authority."
    ),
    case!(
        AtPlace,
        adopt,
        Rule::Core,
        "destination/adopt-compares-and-sets",
        "Adopting an authority is compare-and-set, and the old one stays refused.",
        "Adopt with a wrong expectation, twice with `None`, and then with the right one."
    ),
    case!(
        AtPlace,
        readopted,
        Rule::Core,
        "destination/old-marks-survive-adoption",
        "An authority that is adopted again finds its marks.",
        "Write with 10 of one authority, adopt another one and write with 1 of it, adopt the first one again: 9 is stale, 10 passes."
    ),
    case!(
        AtPlace,
        seal,
        Rule::Core,
        "destination/seal-raises-mark-only",
        "A seal raises the mark and writes nothing.",
        "Write with 1, seal with 5: the content stays, the mark is 5, and 4 is stale."
    ),
    case!(
        AtPlace,
        exact,
        Rule::Core,
        "destination/exact-values",
        "Values up to 2^63 - 1 compare exactly.",
        "Pairs of neighbours around 2^31, 2^32, 2^53 and at 2^63 - 1, and 9 and 10: the smaller one is stale after the larger one, and the larger one passes after the smaller one."
    ),
    case!(
        AtPlace,
        per_resource,
        Rule::Core,
        "destination/mark-per-resource",
        "Each resource, and each namespace, has its own mark and content.",
        "Write with 10 at one resource; 1 passes at others whose names are alike, and at the same name in another namespace."
    ),
    case!(
        AtPlace,
        roll_back,
        Rule::Claim(Claim::MarkRollsBack),
        "destination/mark-rolls-back",
        "A mutation that is rolled back takes the mark that was raised with it back.",
        "Write with 1; write with 5 and roll back: content and mark are those of 1, and 3 passes."
    ),
    case!(
        AtPlace,
        survives_restart,
        Rule::Claim(Claim::MarkSurvivesRestart),
        "destination/mark-survives-restart",
        "The mark is still there after the store was killed and started again.",
        "Write with 10, kill the store and start it again: the mark is 10, and 9 is stale."
    ),
];

/// One destination case at one place.
#[derive(Clone, Debug)]
pub(crate) struct AtPlace {
    pub(crate) stage: Stage,
    pub(crate) place: Arc<dyn Place>,
}

impl AtPlace {
    /// Opens a destination under a namespace of its own, or another handle of one.
    pub(super) async fn open(&self, namespace: &str) -> Result<RecordedDestination, Stop> {
        let opening = tokio::time::timeout(CONNECTING, self.place.open(namespace));
        let open = opening
            .await
            .map_err(|_| Stop::NotTried("opening did not end within 60 s".into()))?
            .map_err(|e| Stop::NotTried(format!("the destination cannot be opened: {e}")))?;
        let recorder = self.stage.recorder.clone();
        Ok(RecordedDestination::new(open, recorder, namespace.to_owned()))
    }

    /// A new destination that trusts the authority `a`.
    async fn trusting(&self) -> Result<RecordedDestination, Stop> {
        let destination = self.open(&self.stage.run.namespace()).await?;
        destination.adopt(None, &authority("a")?).await?;
        Ok(destination)
    }

    pub(super) fn resource(&self) -> Result<ResourceName, Stop> {
        self.stage.resource("r")
    }
}

fn authority(name: &str) -> Result<Authority, Stop> {
    Ok(Authority::of_store("suite", name, 0)?)
}

/// A token of the authority `a`.
pub(super) fn token(value: u64, grant: u64) -> Result<FencingToken, Stop> {
    token_of("a", value, grant)
}

fn token_of(name: &str, value: u64, grant: u64) -> Result<FencingToken, Stop> {
    let grant = GrantId::from_hex(&format!("{grant:016x}"));
    let grant = grant.ok_or_else(|| Stop::NotTried("not a grant id".into()))?;
    Ok(FencingToken::new(authority(name)?, value, grant)?)
}

/// The destination holds `value` under the mark of `token`.
async fn holds(
    at: &dyn TestDestination,
    resource: &ResourceName,
    value: Option<&str>,
    token: &FencingToken,
) -> Result<(), Stop> {
    let stored = at.read(resource).await?;
    let mark = Some((token.value(), token.grant()));
    ensure!(
        stored.value.as_deref() == value && stored.mark == mark,
        "the content should be {value:?} under the mark {mark:?}; it is {stored:?}"
    );
    Ok(())
}

/// Neither a write nor a seal with `token` is admitted, for the reason that `fits`.
async fn refuses(
    at: &dyn TestDestination,
    resource: &ResourceName,
    token: &FencingToken,
    fits: fn(&Refusal) -> bool,
) -> Result<(), Stop> {
    let answers = [("write", at.write(resource, token, "refused").await), ("seal", at.seal(resource, token).await)];
    for (what, answer) in answers {
        match answer {
            Err(GuardError::Refused { refusal, .. }) if fits(&refusal) => {}
            other => {
                return Err(Stop::Refuted(format!(
                    "a {what} with {token} should be refused for its reason; the answer was {other:?}"
                )));
            }
        }
    }
    Ok(())
}

fn is_stale(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Stale { .. })
}

fn is_conflict(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Conflict { .. })
}

fn is_unknown(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::UnknownAuthority { .. })
}

async fn second_write(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    for (value, text) in [(5, "1"), (5, "2"), (7, "3"), (7, "4")] {
        let token = token(value, value)?;
        open.write(&resource, &token, text).await?;
        holds(&open, &resource, Some(text), &token).await?;
    }
    Ok(evidence! {})
}

async fn stale(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    let ten = token(10, 10)?;
    open.write(&resource, &ten, "ten").await?;
    for value in [9, 1] {
        refuses(&open, &resource, &token(value, value)?, is_stale).await?;
        holds(&open, &resource, Some("ten"), &ten).await?;
    }
    Ok(evidence! {})
}

async fn conflict(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    let ten = token(10, 1)?;
    open.write(&resource, &ten, "ten").await?;
    refuses(&open, &resource, &token(10, 2)?, is_conflict).await?;
    holds(&open, &resource, Some("ten"), &ten).await?;
    open.write(&resource, &ten, "again").await?;
    Ok(evidence! {})
}

async fn unknown_authority(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.open(&at.stage.run.namespace()).await?, at.resource()?);
    refuses(&open, &resource, &token(10, 10)?, is_unknown).await?;
    open.adopt(None, &authority("a")?).await?;
    let ten = token(10, 10)?;
    open.write(&resource, &ten, "ten").await?;
    for value in [1, 10, 11, FencingToken::MAX_VALUE] {
        refuses(&open, &resource, &token_of("b", value, 10)?, is_unknown).await?;
        holds(&open, &resource, Some("ten"), &ten).await?;
    }
    Ok(evidence! {})
}

async fn adopt(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    let (a, b, c) = (authority("a")?, authority("b")?, authority("c")?);
    for expected in [None, Some(&b), Some(&c)] {
        match open.adopt(expected, &c).await {
            Err(GuardError::AdoptConflict { found }) if found.as_ref() == Some(&a) => {}
            other => {
                refute!("trusted is {a}; adopting with the expectation {expected:?} was answered by {other:?}")
            }
        }
    }
    open.adopt(Some(&a), &b).await?;
    refuses(&open, &resource, &token(10, 10)?, is_unknown).await?;
    let one = token_of("b", 1, 1)?;
    open.write(&resource, &one, "one").await?;
    holds(&open, &resource, Some("one"), &one).await?;
    Ok(evidence! {})
}

async fn readopted(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    let (a, b) = (authority("a")?, authority("b")?);
    let ten = token(10, 10)?;
    open.write(&resource, &ten, "ten").await?;
    open.adopt(Some(&a), &b).await?;
    open.write(&resource, &token_of("b", 1, 1)?, "one of b").await?;
    open.adopt(Some(&b), &a).await?;
    refuses(&open, &resource, &token(9, 9)?, is_stale).await?;
    open.write(&resource, &ten, "ten again").await?;
    holds(&open, &resource, Some("ten again"), &ten).await?;
    Ok(evidence! {})
}

async fn seal(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    open.seal(&resource, &token(1, 1)?).await?;
    holds(&open, &resource, None, &token(1, 1)?).await?;
    open.write(&resource, &token(1, 1)?, "one").await?;
    let five = token(5, 5)?;
    open.seal(&resource, &five).await?;
    holds(&open, &resource, Some("one"), &five).await?;
    refuses(&open, &resource, &token(4, 4)?, is_stale).await?;
    open.write(&resource, &five, "five").await?;
    holds(&open, &resource, Some("five"), &five).await?;
    Ok(evidence! {})
}

async fn exact(at: AtPlace) -> CaseResult {
    let open = at.trusting().await?;
    let largest = [
        10,
        1 << 31,
        (1 << 31) + 1,
        1 << 32,
        (1 << 32) + 1,
        (1 << 53) + 1,
        (1 << 53) + 2,
        1_000_000_000_000_000_000,
        FencingToken::MAX_VALUE,
    ];
    for larger in largest {
        let (small, large) = (token(larger.saturating_sub(1), 1)?, token(larger, 2)?);
        let resource = at.stage.resource(&format!("exact {larger}"))?;
        open.write(&resource, &small, "small").await?;
        holds(&open, &resource, Some("small"), &small).await?;
        open.write(&resource, &large, "large").await?;
        holds(&open, &resource, Some("large"), &large).await?;
        refuses(&open, &resource, &small, is_stale).await?;
        holds(&open, &resource, Some("large"), &large).await?;
    }
    Ok(evidence! { "larger_of_each_pair": largest.map(|value: u64| value.to_string()) })
}

async fn per_resource(at: AtPlace) -> CaseResult {
    let open = at.trusting().await?;
    let (ten, one) = (token(10, 10)?, token(1, 1)?);
    let resource = at.stage.resource("a")?;
    open.write(&resource, &ten, "ten").await?;
    for other in ["A", "a ", "a/", "ab", "a%", "a_", "{a}", "a'", "a\"", "ä", "a:1"] {
        let other = at.stage.resource(other)?;
        open.write(&other, &one, "one").await?;
        holds(&open, &other, Some("one"), &one).await?;
    }
    let apart = at.trusting().await?;
    apart.write(&resource, &one, "apart").await?;
    holds(&apart, &resource, Some("apart"), &one).await?;
    holds(&open, &resource, Some("ten"), &ten).await?;
    Ok(evidence! {})
}

async fn roll_back(at: AtPlace) -> CaseResult {
    let (open, resource) = (at.trusting().await?, at.resource()?);
    let one = token(1, 1)?;
    open.write(&resource, &one, "one").await?;
    match open.write_and_roll_back(&resource, &token(5, 5)?, "five").await {
        Some(answer) => answer?,
        None if open.claims().has(Claim::MarkRollsBack) => {
            return Err(Stop::NotTried("this destination gives nothing to roll back".into()));
        }
        None => return Err(Stop::Refuted("there is no roll-back here".into())),
    }
    holds(&open, &resource, Some("one"), &one).await?;
    open.write(&resource, &token(3, 3)?, "three").await?;
    holds(&open, &resource, Some("three"), &token(3, 3)?).await?;
    Ok(evidence! {})
}

async fn survives_restart(at: AtPlace) -> CaseResult {
    if at.place.lives_in_process() {
        return Err(Stop::Refuted("the destination lives in this process and ends with it".into()));
    }
    let missing = || Stop::NotTried("the suite has no hands on the server (`Place::server`)".into());
    let server = at.place.server().ok_or_else(missing)?;
    let namespace = at.stage.run.namespace();
    let (open, resource, ten) = (at.open(&namespace).await?, at.resource()?, token(10, 10)?);
    open.adopt(None, &authority("a")?).await?;
    open.write(&resource, &ten, "ten").await?;
    let evidence = kill_and_restart(server).await?;
    let again = at.open(&namespace).await?;
    holds(&again, &resource, Some("ten"), &ten).await?;
    refuses(&again, &resource, &token(9, 9)?, is_stale).await?;
    Ok(evidence)
}
