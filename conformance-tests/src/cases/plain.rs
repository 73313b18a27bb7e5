//! The plain alternatives to a guard, where the destination's database owns the data: a version condition and an idempotency record. A's grant
//! ends while its effect is prepared, B is granted the resource, and both go on, in either order. A's task is what waits: to the database it is
//! a worker that was paused.

use super::destination::AtPlace;
use super::{Case, case};
use crate::context::{CaseResult, Evidence, Stop, acquire, acquire_when_free, ensure, evidence};
use crate::judge::Rule;
use crate::subject::Unfenced;
use lease_core::plain::{IdempotencyKey, Once, Version};
use lease_core::{Lease, ResourceName};
use std::sync::Arc;

pub(super) const CASES: &[Case] = &[
    case!(
        AtUnfenced,
        version,
        Rule::Core,
        "fencing/plain/version-condition",
        "A write that depends on the version that was read is refused when a newer holder has written since.",
        "A reads version and data; its grant ends, B is granted the resource, reads and writes; A then writes on condition of the version that it has read. It must be told that the version has changed, and the data must stay B's."
    ),
    case!(
        AtUnfenced,
        version_read_late,
        Rule::Control,
        "fencing/plain/version-read-late",
        "Control: a version is no fence: a stale worker that reads after the newer holder's write, writes.",
        "A's grant ends, B is granted the resource, reads and writes; only then A reads, and writes on condition of what it has read. Its write must land: a version tells what was read, not who may write."
    ),
    case!(
        AtUnfenced,
        b_first,
        Rule::Core,
        "fencing/plain/idempotency-b-first",
        "An effect that the newer holder has made is not made again by the stale one with the same key.",
        "A's grant ends, B is granted the resource and makes the effect under the key of resource and operation; A then makes it under the same key. A must be told that it was made before, and it must be there once."
    ),
    case!(
        AtUnfenced,
        a_first,
        Rule::Control,
        "fencing/plain/idempotency-a-first",
        "Control: at most once per key, first one wins, which is not fencing: the stale worker's effect stays when it comes first.",
        "A's grant ends, B is granted the resource; A, stale by then, makes the effect, and B makes it under the same key afterwards. A's must land as the first one, and B must be told that it was made before: once in all, and by the wrong one. First one wins is not fencing."
    ),
    case!(
        AtUnfenced,
        other_payload,
        Rule::Core,
        "fencing/plain/idempotency-other-payload",
        "The same key with another payload is a conflict, and changes nothing.",
        "As when A comes first, but B's effect has another payload than A's. B must be told of the conflict, since the same operation cannot be two things, and A's effect must be the only one."
    ),
    case!(
        AtUnfenced,
        without_key,
        Rule::Control,
        "fencing/plain/effect-without-key",
        "Control: without a key the effect is made twice.",
        "A's grant ends, B is granted the resource and makes the effect; A then makes it too. It must be there twice."
    ),
];

const OF_A: &str = "by A;";
const OF_B: &str = "by B;";
/// What both workers do when neither is to be told from the other.
const EFFECT: &str = "charged;";

/// A, whose grant has ended once B has its own, and the data.
struct Scene {
    data: Arc<dyn Unfenced>,
    resource: ResourceName,
    tokens: [Option<String>; 2],
    /// The version that A has read while its grant was live.
    read_by_a: Version,
}

impl Scene {
    /// Lets A be granted the resource and read, and B be granted it when A's grant has ended.
    async fn begin(at: &AtPlace) -> Result<Self, Stop> {
        let none = || Stop::NotTried("the place has no data that are written without a token".into());
        let data = at.place.unfenced(&at.stage.run.namespace()).ok_or_else(none)?;
        data.set_up().await?;
        let (client_a, client_b) = at.stage.two_clients().await?;
        let resource = at.resource()?;
        let lease_a = acquire(&client_a, &resource, at.stage.run.short()).await?;
        let (read_by_a, _) = data.read(&resource).await?;
        let (long, granted) = (at.stage.run.long(), lease_a.granted_ttl());
        let lease_b = acquire_when_free(&at.stage, &client_b, &resource, long, granted).await?;
        let token = |lease: &Lease| lease.token().map(ToString::to_string);
        Ok(Self { data, tokens: [token(&lease_a), token(&lease_b)], read_by_a, resource })
    }

    async fn read(&self) -> Result<(Version, String), Stop> {
        Ok(self.data.read(&self.resource).await?)
    }

    async fn write_at(&self, read: Version, text: &str) -> Result<bool, Stop> {
        Ok(self.data.write_at(&self.resource, read, text).await?)
    }

    /// Makes the effect once. Whoever does it has the same key.
    async fn once(&self, text: &str) -> Result<Option<Once>, Stop> {
        let key = IdempotencyKey::new(&self.resource, "charge")?;
        Ok(self.data.add_once(&self.resource, &key, text).await?)
    }

    /// The data are `expected` at the end, read back from the database.
    async fn ends_with(&self, expected: &str) -> CaseResult {
        let (version, text) = self.read().await?;
        ensure!(text == expected, "the data should be {expected:?} at the end; they are {text:?}");
        Ok(self.evidence(version, &text))
    }

    fn evidence(&self, version: Version, text: &str) -> Evidence {
        let [token_a, token_b] = &self.tokens;
        evidence! {
            "token_a": token_a,
            "token_b": token_b,
            "version_at_the_end": version.number(),
            "data_at_the_end": text,
        }
    }
}

async fn version(at: AtPlace) -> CaseResult {
    let scene = Scene::begin(&at).await?;
    let of_a = scene.read_by_a;
    let (of_b, _) = scene.read().await?;
    ensure!(scene.write_at(of_b, OF_B).await?, "nobody has written since B has read, and its write was refused");
    ensure!(
        !scene.write_at(of_a, OF_A).await?,
        "A's write on condition of {of_a} passed, although B has written since"
    );
    scene.ends_with(OF_B).await
}

async fn version_read_late(at: AtPlace) -> CaseResult {
    let scene = Scene::begin(&at).await?;
    let (of_b, _) = scene.read().await?;
    ensure!(scene.write_at(of_b, OF_B).await?, "nobody has written since B has read, and its write was refused");
    let (of_a, _) = scene.read().await?;
    let landed = scene.write_at(of_a, OF_A).await?;
    ensure!(landed, "the stale write should land, since nobody has written since A has read");
    scene.ends_with(OF_A).await
}

async fn b_first(at: AtPlace) -> CaseResult {
    let scene = Scene::begin(&at).await?;
    is(scene.once(EFFECT).await?, Some(Once::First), "B")?;
    is(scene.once(EFFECT).await?, Some(Once::Before), "A")?;
    scene.ends_with(EFFECT).await
}

async fn a_first(at: AtPlace) -> CaseResult {
    let scene = Scene::begin(&at).await?;
    is(scene.once(EFFECT).await?, Some(Once::First), "A, which is stale and comes first,")?;
    is(scene.once(EFFECT).await?, Some(Once::Before), "B")?;
    scene.ends_with(EFFECT).await
}

async fn other_payload(at: AtPlace) -> CaseResult {
    let scene = Scene::begin(&at).await?;
    is(scene.once(OF_A).await?, Some(Once::First), "A, which comes first,")?;
    is(scene.once(OF_B).await?, None, "B, with another payload,")?;
    scene.ends_with(OF_A).await
}

async fn without_key(at: AtPlace) -> CaseResult {
    let scene = Scene::begin(&at).await?;
    scene.data.add(&scene.resource, OF_B).await?;
    scene.data.add(&scene.resource, OF_A).await?;
    scene.ends_with(&format!("{OF_B}{OF_A}")).await
}

/// `None` is a conflict.
fn is(answer: Option<Once>, expected: Option<Once>, who: &str) -> Result<(), Stop> {
    ensure!(
        answer == expected,
        "{who} should have been told {expected:?} (`None` is a conflict), and was told {answer:?}"
    );
    Ok(())
}
