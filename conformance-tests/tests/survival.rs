//! Each probe of the survival matrix can fail: a store, or a destination, with one flaw turns the cell of a harmless fault.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::program::Backend;
use lease_conformance::subject::{Opener, PlainWriter, TestDestination};
use lease_conformance::survival::{
    Engine, Expected, Guarantee, Moment, Outcome, Outcomes, Scene, Stage, Trouble, Witness, Worker,
};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{
    Acquisition, Attempt, Authority, Claims, CleanUp, Description, Fence, FencingToken, ForceRelease, Forced,
    GuardError, GuardedDestination, Held, Inspection, Lease, LeaseBackend, LeaseError, Limits, LossReason, NamePage,
    Release, Renewal, ResourceName, SharedClock, Stored,
};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is wrong from the fault on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    Nothing,
    /// Each grant has the token 1.
    TokenGoesBack,
    /// Everything is forgotten, the incarnation too.
    Forgets,
    /// Nothing is granted any more.
    NeverGrants,
    /// Renewals are answered as lost.
    LosesRenewals,
    /// The guards let everything in.
    GuardAdmits,
    /// Where nothing should check, something does.
    PlainChecks,
    /// The fault leaves no witness.
    NoWitness,
    /// The fault says that it did not happen.
    NotShown,
}

#[derive(Debug)]
struct World {
    flaw: Flaw,
    struck: AtomicBool,
    before: MemoryStore,
    after: MemoryStore,
    destinations: Mutex<HashMap<String, Arc<Loose>>>,
}

impl World {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw && self.struck.load(Ordering::SeqCst)
    }

    fn store(&self) -> MemoryBackend {
        MemoryBackend::on(if self.has(Flaw::Forgets) { self.after.clone() } else { self.before.clone() })
    }
}

struct Toy(Arc<World>);

impl Stage for Toy {
    fn url(&self, _who: Worker) -> String {
        "toy:".to_owned()
    }

    fn before(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn strike(&mut self, _moment: &Moment) -> Result<Witness, Trouble> {
        self.0.struck.store(true, Ordering::SeqCst);
        match self.0.flaw {
            Flaw::NoWitness => Ok(Witness::default()),
            Flaw::NotShown => Err(Trouble::NotShown("nothing moved".to_owned())),
            _ => Ok(Witness::of("struck", true)),
        }
    }
}

struct ToyOpener(Arc<World>);

#[async_trait::async_trait]
impl Opener for ToyOpener {
    async fn backend(&self, _url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::new(Flawed { world: Arc::clone(&self.0), inner: self.0.store() }))
    }

    async fn plain_writer(&self, _url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        Ok(None)
    }

    async fn destination(&self, url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        let mut all = self.0.destinations.lock().unwrap();
        let world = Arc::clone(&self.0);
        Ok(all.entry(url.to_owned()).or_insert_with(|| Arc::new(Loose { world, value: Mutex::default() })).clone())
    }
}

#[derive(Debug)]
struct Flawed {
    world: Arc<World>,
    /// For what a future may borrow.
    inner: MemoryBackend,
}

#[async_trait::async_trait]
impl LeaseBackend for Flawed {
    fn description(&self) -> Description {
        self.inner.description()
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn clock(&self) -> SharedClock {
        self.inner.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        if self.world.has(Flaw::NeverGrants) {
            return Ok(Acquisition::Held(Held::for_another(None)));
        }
        let sent = self.clock().now();
        match self.world.store().acquire(attempt).await? {
            Acquisition::Acquired(lease) if self.world.has(Flaw::TokenGoesBack) => {
                let authority = lease.token().unwrap().authority().clone();
                let token = attempt.token(authority, 1)?;
                Ok(Acquisition::Acquired(Lease::granted(attempt, Some(token), lease.granted_ttl(), sent, self.clock())))
            }
            answer => Ok(answer),
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        if self.world.has(Flaw::LosesRenewals) {
            return Ok(Renewal::Lost(LossReason::Gone));
        }
        self.world.store().renew(lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        self.world.store().release(lease).await
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        self.world.store().abandon(attempt).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        self.world.store().force_release(order).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.world.store().inspect(resource).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.world.store().list(prefix, after, limit).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.world.store().clean_up().await
    }

    fn fence(&self) -> Fence<'_> {
        self.inner.fence()
    }
}

/// A destination that lets everything in; or whose plain writes check, after the second one.
#[derive(Debug)]
struct Loose {
    world: Arc<World>,
    value: Mutex<(u32, Option<String>)>,
}

impl Loose {
    fn put(&self, value: &str) {
        let mut stored = self.value.lock().unwrap();
        stored.0 = stored.0.saturating_add(1);
        if self.world.flaw != Flaw::PlainChecks || stored.0 <= 2 {
            stored.1 = Some(value.to_owned());
        }
    }
}

#[async_trait::async_trait]
impl GuardedDestination for Loose {
    fn kind(&self) -> &'static str {
        "loose"
    }

    fn claims(&self) -> Claims {
        Claims::of(&[])
    }

    async fn adopt(&self, _expected_old: Option<&Authority>, _new: &Authority) -> Result<(), GuardError> {
        Ok(())
    }

    async fn seal(&self, _resource: &ResourceName, _token: &FencingToken) -> Result<(), GuardError> {
        Ok(())
    }

    async fn write(&self, _resource: &ResourceName, _token: &FencingToken, value: &str) -> Result<(), GuardError> {
        self.put(value);
        Ok(())
    }

    async fn read(&self, _resource: &ResourceName) -> Result<Stored, GuardError> {
        Ok(Stored::new(self.value.lock().unwrap().1.clone(), None))
    }
}

#[async_trait::async_trait]
impl TestDestination for Loose {
    async fn write_plain(&self, _resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        self.put(value);
        Ok(())
    }

    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        self.write(resource, token, value).await
    }

    async fn write_and_roll_back(
        &self,
        _resource: &ResourceName,
        _token: &FencingToken,
        _value: &str,
    ) -> Option<Result<(), GuardError>> {
        None
    }
}

const HARMLESS: &str = r#"
    [[scene]]
    setup = "toy/toy"
    fault = "harmless"
    survives = ["exclusion", "lease-kept", "token-order", "granting", "fence-reached", "fence-unreached"]
"#;

async fn played(flaw: Flaw) -> Outcomes {
    let world = Arc::new(World {
        flaw,
        struck: AtomicBool::new(false),
        before: MemoryStore::new().unwrap(),
        after: MemoryStore::new().unwrap(),
        destinations: Mutex::default(),
    });
    let staged = Arc::clone(&world);
    let scene = Scene {
        setup: "toy/toy",
        setup_means: "a store in this process",
        fault: "harmless",
        fault_means: "nothing happens",
        backend: Backend::Memory,
        ttl: Duration::from_millis(500),
        outlasts: false,
        start: Arc::new(move || Ok(Box::new(Toy(Arc::clone(&staged))))),
    };
    let own_destinations = matches!(flaw, Flaw::GuardAdmits | Flaw::PlainChecks);
    let engine = Engine {
        opener: Arc::new(ToyOpener(world)),
        folder: own_destinations.then(|| PathBuf::from("/nowhere")),
        trials: 1,
        at_once: 1,
        progress: Arc::new(|_, _| {}),
    };
    let scenes = [scene];
    let expected = Expected::parse(HARMLESS, &scenes).unwrap();
    engine.run(&scenes, &expected).await.pop().unwrap()
}

/// The outcomes that are not the expected ones.
async fn turned(flaw: Flaw) -> BTreeMap<Guarantee, Outcome> {
    let outcomes = played(flaw).await;
    assert_eq!(outcomes.trouble, None);
    assert_eq!(outcomes.cells.len(), Guarantee::ALL.len());
    for cell in &outcomes.cells {
        assert_eq!(cell.witness.len(), 1, "{cell:?}");
        assert_eq!(cell.timeline.is_some(), matches!(cell.outcome, Outcome::Breaks | Outcome::Noticed), "{cell:?}");
    }
    outcomes.cells.iter().filter(|cell| !cell.is_expected()).map(|cell| (cell.guarantee, cell.outcome)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_survives_and_its_control_breaks() {
    assert_eq!(turned(Flaw::Nothing).await, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_goes_back_is_seen_and_found_out_where_a_mark_is() {
    let expected = [
        (Guarantee::TokenOrder, Outcome::Breaks),
        (Guarantee::FenceReached, Outcome::Noticed),
        (Guarantee::FenceUnreached, Outcome::Breaks),
    ];
    assert_eq!(turned(Flaw::TokenGoesBack).await, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_forgets_breaks_the_lease_and_its_new_authority_is_noticed() {
    let expected = [
        (Guarantee::Exclusion, Outcome::Breaks),
        (Guarantee::LeaseKept, Outcome::Breaks),
        (Guarantee::TokenOrder, Outcome::Noticed),
        (Guarantee::FenceReached, Outcome::Noticed),
        (Guarantee::FenceUnreached, Outcome::Noticed),
    ];
    assert_eq!(turned(Flaw::Forgets).await, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_never_grants_again_is_seen_and_nothing_is_said_of_writes() {
    let expected = [
        (Guarantee::Granting, Outcome::Breaks),
        (Guarantee::TokenOrder, Outcome::NotTried),
        (Guarantee::FenceReached, Outcome::NotTried),
        (Guarantee::FenceUnreached, Outcome::NotTried),
        (Guarantee::NoGuard, Outcome::NotTried),
    ];
    assert_eq!(turned(Flaw::NeverGrants).await, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_lost_is_seen() {
    assert_eq!(turned(Flaw::LosesRenewals).await, BTreeMap::from([(Guarantee::LeaseKept, Outcome::Breaks)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_admits_everything_is_seen() {
    let expected = [(Guarantee::FenceReached, Outcome::Breaks), (Guarantee::FenceUnreached, Outcome::Breaks)];
    assert_eq!(turned(Flaw::GuardAdmits).await, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_that_checks_proves_nothing() {
    let seen = turned(Flaw::PlainChecks).await;
    assert_eq!(seen.get(&Guarantee::NoGuard), Some(&Outcome::Survives), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_did_not_happen_does_not_count() {
    for flaw in [Flaw::NoWitness, Flaw::NotShown] {
        let outcomes = played(flaw).await;
        assert!(matches!(outcomes.trouble, Some(Trouble::NotShown(_))), "{outcomes:?}");
        assert!(
            outcomes.cells.iter().all(|cell| cell.outcome == Outcome::NotTried && cell.trials == 0),
            "{outcomes:?}"
        );
    }
}
