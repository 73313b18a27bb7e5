//! Guards whose every operation is one atomic request: memory, Redis, etcd. All orders of the requests of two writers and of `adopt`; each answer,
//! and what is held at the end, is compared with a reference that carries the same requests out one after the other.

use crate::explorer::merges;
use crate::model::{FIRST, SECOND, token};
use lease_core::memory::MemoryDestination;
use lease_core::{
    Authority, Claims, FencingToken, GrantId, GuardError, GuardedDestination, Refusal, ResourceName, Stored,
};
use lease_redis::RedisDestination;
use lease_servers::RedisSetup;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A request of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read,
    Seal,
    Write,
    Adopt,
    /// Reads the mark and judges it in the program, as a broken writer does; a refusal ends its program.
    Look,
    /// Writes without a check what was looked at before.
    WriteBlindly,
    /// Seals, and keeps the conditions for a transaction of the caller's own.
    Prepare,
    /// The caller's own transaction under those conditions.
    Land,
}

/// What a request was answered, as far as the contract fixes it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Refused(Refusal),
    /// The caller's own transaction did not succeed.
    NotLanded,
    Conflict(Option<Authority>),
    Read(Stored),
}

/// The caller's own transaction, where a store's guard gives conditions for one.
#[async_trait::async_trait]
trait Own: Send + Sync {
    async fn prepare(&self, actor: usize, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError>;
    async fn land(&self, actor: usize, resource: &ResourceName) -> bool;
    async fn landed(&self, resource: &ResourceName) -> Option<usize>;
}

/// A store under test.
#[derive(Clone)]
struct Site {
    guard: Arc<dyn GuardedDestination>,
    blind: Option<Blind>,
    own: Option<Arc<dyn Own>>,
}

impl Site {
    fn new(guard: impl GuardedDestination + 'static) -> Self {
        Self { guard: Arc::new(guard), blind: None, own: None }
    }
}

/// The same store without a check.
#[derive(Clone)]
enum Blind {
    Memory(MemoryDestination),
    Edited(Arc<dyn GuardedDestination>),
}

#[derive(Clone, Debug)]
struct Scene {
    tokens: Vec<FencingToken>,
    programs: Vec<Vec<Op>>,
}

/// The reference.
#[derive(Debug)]
struct Reference {
    trusted: String,
    marks: BTreeMap<String, (u64, GrantId)>,
    value: Option<String>,
    own: Option<usize>,
    prepared: BTreeSet<usize>,
}

impl Reference {
    fn admit(&mut self, token: &FencingToken) -> Result<(), Refusal> {
        // Written out here, not asked of the library.
        if token.authority().as_str() != self.trusted {
            let trusted = Some(Authority::parse(&self.trusted).unwrap());
            return Err(Refusal::UnknownAuthority { presented: token.authority().clone(), trusted });
        }
        let (value, grant) = (token.value(), token.grant());
        if let Some((mark, owner)) = self.marks.get(&self.trusted).copied() {
            if value < mark {
                return Err(Refusal::Stale { presented: value, mark });
            }
            if value == mark && grant != owner {
                return Err(Refusal::Conflict { value });
            }
        }
        self.marks.insert(self.trusted.clone(), (value, grant));
        Ok(())
    }

    fn take(&mut self, actor: usize, op: Op, token: &FencingToken, value: &str) -> Answer {
        let admitted = |admitted: Result<(), Refusal>| admitted.err().map_or(Answer::Done, Answer::Refused);
        match op {
            Op::Read => Answer::Read(Stored::new(self.value.clone(), self.marks.get(&self.trusted).copied())),
            Op::Seal => admitted(self.admit(token)),
            Op::Prepare => {
                let answer = self.admit(token);
                if answer.is_ok() {
                    self.prepared.insert(actor);
                }
                admitted(answer)
            }
            // What was looked at before does not matter: a write has to be admitted when it is made.
            Op::Look => Answer::Done,
            Op::Write | Op::WriteBlindly => {
                let answer = self.admit(token);
                if answer.is_ok() {
                    self.value = Some(value.to_owned());
                }
                admitted(answer)
            }
            Op::Land => {
                let mark = self.marks.get(&self.trusted).copied();
                let holds = token.authority().as_str() == self.trusted && mark == Some((token.value(), token.grant()));
                if !(holds && self.prepared.contains(&actor)) {
                    return Answer::NotLanded;
                }
                self.own = Some(actor);
                Answer::Done
            }
            Op::Adopt if self.trusted == FIRST => {
                self.trusted = SECOND.into();
                Answer::Done
            }
            Op::Adopt => Answer::Conflict(Some(Authority::parse(&self.trusted).unwrap())),
        }
    }
}

/// How often which kind of answer came, and what differed from the reference.
#[derive(Clone, Debug, Default)]
struct Tally {
    schedules: u64,
    done: u64,
    refused: u64,
    not_landed: u64,
    differences: u64,
    first: Option<String>,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { schedules, done, refused, not_landed, differences, first } = self;
        write!(f, "{schedules} schedules; {done} requests done, {refused} refused, {not_landed} not landed")?;
        first.as_ref().map_or(Ok(()), |first| write!(f, "; {differences} differences, first: {first}"))
    }
}

impl Tally {
    fn assert_honest(&self) {
        assert!(self.first.is_none() && self.done > 0 && self.refused > 0, "{self}");
    }

    async fn schedule(&mut self, site: &Site, scene: &Scene, schedule: &[usize], resource: &ResourceName) {
        self.schedules += 1;
        let mut reference = Reference {
            trusted: FIRST.into(),
            marks: BTreeMap::new(),
            value: None,
            own: None,
            prepared: BTreeSet::new(),
        };
        let mut next = vec![0; scene.programs.len()];
        let mut shown = Vec::new();
        for &actor in schedule {
            let Some(&op) = scene.programs[actor].get(next[actor]) else { continue };
            next[actor] += 1;
            let (token, value) = (&scene.tokens[actor], format!("{actor}.{}", next[actor]));
            let answer = carry_out(site, actor, op, token, &value, resource).await;
            let expected = reference.take(actor, op, token, &value);
            match &answer {
                Answer::Done | Answer::Read(_) => self.done += 1,
                Answer::Refused(_) | Answer::Conflict(_) => self.refused += 1,
                Answer::NotLanded => self.not_landed += 1,
            }
            shown.push(format!("{actor}:{op:?}={answer:?}"));
            // A look is no request of the contract: it only ends the program of a writer that sees itself overtaken.
            if answer != expected && op != Op::Look {
                self.difference(format!("{} instead of {expected:?}", shown.join(" ")));
                break;
            }
            if op == Op::Look && answer != Answer::Done {
                next[actor] = scene.programs[actor].len();
            }
        }
        let stored = site.guard.read(resource).await.unwrap();
        let mark = reference.marks.get(&reference.trusted).copied();
        if (&stored.value, stored.mark) != (&reference.value, mark) {
            self.difference(format!("{} leaves {stored:?} instead of {:?} {mark:?}", shown.join(" "), reference.value));
        }
        if let Some(own) = &site.own {
            let landed = own.landed(resource).await;
            if landed != reference.own {
                self.difference(format!("{}: {landed:?} landed last instead of {:?}", shown.join(" "), reference.own));
            }
        }
        if reference.trusted == SECOND {
            let [old, new] = [SECOND, FIRST].map(|text| Authority::parse(text).unwrap());
            site.guard.adopt(Some(&old), &new).await.unwrap();
        }
    }

    fn difference(&mut self, what: String) {
        self.differences += 1;
        self.first.get_or_insert(what);
    }
}

async fn carry_out(
    site: &Site,
    actor: usize,
    op: Op,
    token: &FencingToken,
    value: &str,
    resource: &ResourceName,
) -> Answer {
    let answer = match op {
        Op::Read => site.guard.read(resource).await.map(Answer::Read),
        Op::Seal => site.guard.seal(resource, token).await.map(|()| Answer::Done),
        Op::Write => site.guard.write(resource, token, value).await.map(|()| Answer::Done),
        Op::Adopt => {
            let [old, new] = [FIRST, SECOND].map(|text| Authority::parse(text).unwrap());
            site.guard.adopt(Some(&old), &new).await.map(|()| Answer::Done)
        }
        Op::Look => site.guard.read(resource).await.map(|stored| {
            let trusted = Authority::parse(FIRST).unwrap();
            Refusal::judge(Some(&trusted), stored.mark, token).err().map_or(Answer::Done, Answer::Refused)
        }),
        Op::WriteBlindly => match site.blind.as_ref().unwrap() {
            Blind::Edited(blind) => blind.write(resource, token, value).await.map(|()| Answer::Done),
            Blind::Memory(blind) => {
                blind.write_plain(resource, value);
                Ok(Answer::Done)
            }
        },
        Op::Prepare => site.own.as_ref().unwrap().prepare(actor, resource, token).await.map(|()| Answer::Done),
        Op::Land if site.own.as_ref().unwrap().land(actor, resource).await => Ok(Answer::Done),
        Op::Land => Ok(Answer::NotLanded),
    };
    match answer {
        Ok(answer) => answer,
        Err(GuardError::Refused { refusal, .. }) => Answer::Refused(refusal),
        Err(GuardError::AdoptConflict { found }) => Answer::Conflict(found),
        Err(error) => panic!("the store failed: {error}"),
    }
}

use Op::{Adopt, Land, Look, Prepare, Read, Seal, Write, WriteBlindly};

fn pairs() -> [Vec<FencingToken>; 3] {
    [
        vec![token(FIRST, 3, 3), token(FIRST, 7, 7)],
        vec![token(FIRST, 5, 3), token(FIRST, 5, 7)],
        vec![token(FIRST, 5, 3), token(FIRST, 5, 3)],
    ]
}

fn scenes_of(programs: &[&[Op]], tokens: impl IntoIterator<Item = Vec<FencingToken>>) -> Vec<Scene> {
    let programs: Vec<_> = programs.iter().map(|program| program.to_vec()).collect();
    tokens.into_iter().map(|tokens| Scene { tokens, programs: programs.clone() }).collect()
}

/// What each store plays.
fn scenes() -> Vec<Scene> {
    let mut all = scenes_of(&[&[Read, Seal, Write, Write], &[Seal, Read, Write, Write]], pairs());
    let adopting = token(SECOND, 1, 1);
    let newer = [token(FIRST, 7, 7), token(SECOND, 2, 2)];
    let tokens = newer.map(|newer| vec![token(FIRST, 3, 3), newer, adopting.clone()]);
    all.extend(scenes_of(&[&[Read, Write, Write], &[Seal, Write], &[Adopt]], tokens));
    all
}

/// The same for the caller's own transaction, prepared by an older read.
fn own_scenes() -> Vec<Scene> {
    let mut all = scenes_of(&[&[Prepare, Land, Land], &[Prepare, Land, Write]], pairs());
    let tokens = vec![token(FIRST, 3, 3), token(FIRST, 7, 7), token(SECOND, 1, 1)];
    all.extend(scenes_of(&[&[Prepare, Land], &[Seal, Write], &[Adopt]], [tokens]));
    all
}

/// All programs of three requests for both writers.
fn all_programs() -> Vec<Scene> {
    let ops = [Read, Seal, Write];
    let mut programs = Vec::new();
    for a in ops {
        for b in ops {
            programs.extend(ops.map(|c| vec![a, b, c]));
        }
    }
    let both = programs.iter().flat_map(|one| programs.iter().map(|two| [one.as_slice(), two.as_slice()]));
    both.flat_map(|both| scenes_of(&both, pairs())).collect()
}

/// Plays all schedules. Each label is used once in a store, so that each schedule has a resource of its own.
async fn explore(site: &Site, label: &str, scenes: &[Scene]) -> Tally {
    let mut tally = Tally::default();
    let mut adopted = site.guard.adopt(None, &Authority::parse(FIRST).unwrap()).await;
    if matches!(adopted, Err(GuardError::AdoptConflict { .. })) {
        adopted = Ok(());
    }
    adopted.unwrap();
    for (number, scene) in scenes.iter().enumerate() {
        let lengths: Vec<_> = scene.programs.iter().map(Vec::len).collect();
        for (place, schedule) in merges(&lengths).iter().enumerate() {
            let resource = ResourceName::parse(format!("{label}/{number}/{place}")).unwrap();
            tally.schedule(site, scene, schedule, &resource).await;
        }
    }
    tally
}

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
async fn assert_flaws_are_found(site: &Site) {
    for flaw in [Flaw::Swallows, Flaw::TakesEqual, Flaw::RefusesSecond] {
        let label = format!("{flaw:?}");
        let scenes = scenes_of(&[&[Write, Write], &[Write, Write]], pairs());
        let tally = explore(&Broken::site(Arc::clone(&site.guard), flaw), &label, &scenes).await;
        println!("{} saboteur {label}: {tally}", site.guard.kind());
        assert!(tally.differences > 0, "{label} was not found");
    }
}

/// A check in one request with the write in another is found.
async fn assert_look_is_found(site: &Site) {
    let [stale, ..] = pairs();
    let tally = explore(site, "look", &scenes_of(&[&[Look, WriteBlindly], &[Seal, Write]], [stale])).await;
    println!("{} saboteur that looks first: {tally}", site.guard.kind());
    assert!(tally.differences > 0, "a write that was looked at before, and is not checked, was not found");
}

#[tokio::test]
async fn memory_is_right_in_every_order() {
    let memory = MemoryDestination::new();
    let site = Site { blind: Some(Blind::Memory(memory.clone())), ..Site::new(memory) };
    for (label, scenes) in [("scenes", scenes()), ("all programs of three", all_programs())] {
        let tally = explore(&site, label, &scenes).await;
        println!("memory, {label}: {tally}");
        tally.assert_honest();
    }
    assert_flaws_are_found(&site).await;
    assert_look_is_found(&site).await;
}

#[tokio::test]
async fn redis_is_right_in_every_order() {
    let server = lease_servers::redis(&RedisSetup { append_fsync: "no", ..RedisSetup::default() }).unwrap();
    let open = async |namespace: &str, edits: &[(&str, &str)]| {
        let url = format!("{}?namespace={namespace}&call_timeout_ms=60000&connect_timeout_ms=60000", server.url());
        RedisDestination::connect_edited(&url, edits).await.unwrap()
    };
    let site = Site::new(open("honest", &[]).await);
    let tally = explore(&site, "scenes", &scenes()).await;
    println!("redis: {tally}");
    tally.assert_honest();
    let stale = ("if order < 0 then return redis.error_reply('LEASEHOLD_GUARD stale ' .. value) end", "");
    for (number, (name, edit)) in [
        ("forgets its mark", ("if order > 0 then redis.call('HSET'", "if false then redis.call('HSET'")),
        ("takes another grant's value", ("order == 0 and grant ~= ARGV[3]", "false")),
        ("refuses the holder's second write", ("if order < 0 then", "if order <= 0 then")),
        ("swallows its refusal", stale),
    ]
    .into_iter()
    .enumerate()
    {
        let broken = Site::new(open(&format!("broken{number}"), &[edit]).await);
        let tally = explore(&broken, "scenes", &scenes()).await;
        println!("redis saboteur, {name}: {tally}");
        assert!(tally.differences > 0, "{name} was not found");
    }
    let blind = Blind::Edited(Arc::new(open("honest", &[stale]).await));
    assert_look_is_found(&Site { blind: Some(blind), ..site }).await;
}

#[cfg(feature = "etcd-saboteurs")]
mod etcd {
    use super::*;
    use etcd_client::{Client, Txn, TxnOp};
    use lease_etcd::{EtcdDestination, EtcdGuard};

    /// The caller's own transaction, on etcd's own client.
    struct OwnTransaction {
        destination: EtcdDestination,
        raw: Client,
        prepared: Mutex<BTreeMap<(usize, String), EtcdGuard>>,
    }

    #[async_trait::async_trait]
    impl Own for OwnTransaction {
        async fn prepare(&self, actor: usize, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
            let guard = self.destination.open(resource, token).await?;
            self.prepared.lock().unwrap().insert((actor, resource.as_str().into()), guard);
            Ok(())
        }

        async fn land(&self, actor: usize, resource: &ResourceName) -> bool {
            let guard = self.prepared.lock().unwrap().get(&(actor, resource.as_str().into())).cloned();
            let Some(guard) = guard else { return false };
            let put = TxnOp::put(format!("mine/{resource}"), actor.to_string(), None);
            let txn = Txn::new().when(guard.compares()).and_then([put]);
            self.raw.kv_client().txn(txn).await.unwrap().succeeded()
        }

        async fn landed(&self, resource: &ResourceName) -> Option<usize> {
            let found = self.raw.kv_client().get(format!("mine/{resource}"), None).await.unwrap();
            found.kvs().first().map(|kv| kv.value_str().unwrap().parse().unwrap())
        }
    }

    #[tokio::test]
    async fn etcd_is_right_in_every_order() {
        let server = lease_servers::etcd(&lease_servers::EtcdSetup::default()).unwrap();
        let raw = Client::connect([format!("127.0.0.1:{}", server.port())], None).await.unwrap();
        let open = async |namespace: &str, edits: &[(&str, &str)]| {
            let url = format!("{}?namespace={namespace}&call_timeout_ms=60000&connect_timeout_ms=60000", server.url());
            EtcdDestination::connect_edited(&url, edits).await.unwrap()
        };
        let with_own = |destination: EtcdDestination| {
            let own = OwnTransaction { destination: destination.clone(), raw: raw.clone(), prepared: Mutex::default() };
            Site { own: Some(Arc::new(own)), ..Site::new(destination) }
        };
        let site = Site::new(open("honest", &[]).await);
        let tally = explore(&site, "scenes", &scenes()).await;
        println!("etcd: {tally}");
        tally.assert_honest();
        let own = with_own(open("honest", &[]).await);
        let tally = explore(&own, "own", &own_scenes()).await;
        println!("etcd, the caller's own transaction: {tally}");
        tally.assert_honest();
        assert!(tally.not_landed > 0, "{tally}");

        for (number, check) in ["guard compares the mark", "guard compares the authority"].into_iter().enumerate() {
            let broken = with_own(open(&format!("broken{number}"), &[(check, "")]).await);
            let tally = explore(&broken, &format!("broken{number}"), &own_scenes()).await;
            println!("etcd saboteur without `{check}`: {tally}");
            assert!(tally.differences > 0, "{check}");
        }
        assert_flaws_are_found(&site).await;
        let blind = Blind::Edited(Arc::new(open("honest", &[("guard compares the mark", "")]).await));
        assert_look_is_found(&Site { blind: Some(blind), ..site }).await;
    }
}
