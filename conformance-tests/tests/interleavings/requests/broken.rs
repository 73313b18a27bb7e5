//! Guards that are broken on purpose, each of which has to be found.

use super::Op::{Look, Seal, Write, WriteBlindly};
use super::programs::{pairs, scenes_of};
use super::{Site, explore};
use lease_core::{
    Authority, Claims, FencingToken, GrantId, GuardError, GuardedDestination, Refusal, ResourceName, Stored,
};
use std::sync::{Arc, Mutex};

/// A guard that is broken around an honest one.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    Swallows,
    TakesEqual,
    RefusesSecond,
}

#[derive(Debug)]
struct Broken {
    inner: Arc<dyn GuardedDestination>,
    flaw: Flaw,
    written: Mutex<Vec<(ResourceName, GrantId)>>,
}

impl Broken {
    fn site(inner: Arc<dyn GuardedDestination>, flaw: Flaw) -> Site {
        Site::new(Self { inner, flaw, written: Mutex::default() })
    }
}

#[async_trait::async_trait]
impl GuardedDestination for Broken {
    fn kind(&self) -> &'static str {
        "broken"
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        self.inner.adopt(expected_old, new).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.inner.seal(resource, token).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let answer = self.inner.write(resource, token, value).await;
        let this = (resource.clone(), token.grant());
        let again = self.written.lock().unwrap().contains(&this);
        match (self.flaw, answer) {
            (Flaw::Swallows, Err(GuardError::Refused { .. }))
            | (Flaw::TakesEqual, Err(GuardError::Refused { refusal: Refusal::Conflict { .. }, .. })) => Ok(()),
            (Flaw::RefusesSecond, Ok(())) if again => {
                let refusal = Refusal::Stale { presented: token.value(), mark: token.value() };
                Err(GuardError::Refused { resource: resource.clone(), refusal })
            }
            (_, answer) => {
                self.written.lock().unwrap().push(this);
                answer
            }
        }
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.inner.read(resource).await
    }
}

/// Each flaw around the honest guard is found.
pub(super) async fn assert_flaws_are_found(site: &Site) {
    for flaw in [Flaw::Swallows, Flaw::TakesEqual, Flaw::RefusesSecond] {
        let label = format!("{flaw:?}");
        let scenes = scenes_of(&[&[Write, Write], &[Write, Write]], pairs());
        let tally = explore(&Broken::site(Arc::clone(&site.guard), flaw), &label, &scenes).await;
        println!("{} saboteur {label}: {tally}", site.guard.kind());
        assert!(tally.differences > 0, "{label} was not found");
    }
}

/// A check in one request with the write in another is found.
pub(super) async fn assert_look_is_found(site: &Site) {
    let [stale, ..] = pairs();
    let tally = explore(site, "look", &scenes_of(&[&[Look, WriteBlindly], &[Seal, Write]], [stale])).await;
    println!("{} saboteur that looks first: {tally}", site.guard.kind());
    assert!(tally.differences > 0, "a write that was looked at before, and is not checked, was not found");
}
