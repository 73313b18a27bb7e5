//! A lease backend and a guarded destination in a file, under its lock: the least that separate processes can share.

pub mod place;

use lease_core::{
    Acquisition, Attempt, Authority, BootId, BootInstant, Claim, Claims, CleanUp, Clock, Description, Fence,
    ForceRelease, Forced, Held, Inspection, Lease, LeaseBackend, LeaseError, Limits, Listed, LossReason, NamePage,
    Operation, Release, Renewal, ResourceName, SharedClock, SystemClock,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Does one step on the file's content, alone: other processes wait. A process that is killed in it has done all of it or nothing.
pub fn step<S: Default + Serialize + DeserializeOwned, T>(path: &Path, work: impl FnOnce(&mut S) -> T) -> T {
    let beside = |end: &str| PathBuf::from(format!("{}.{end}", path.display()));
    let lock = File::options().write(true).create(true).truncate(false).open(beside("lock")).unwrap();
    lock.lock().unwrap();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut state: S = if text.is_empty() { S::default() } else { serde_json::from_str(&text).unwrap() };
    let answer = work(&mut state);
    std::fs::write(beside("new"), serde_json::to_vec(&state).unwrap()).unwrap();
    std::fs::rename(beside("new"), path).unwrap();
    answer
}

/// Leases in a file.
#[derive(Clone, Debug)]
pub struct FileToy {
    path: PathBuf,
    wall: OnWallClock,
}

#[derive(Default, Serialize, Deserialize)]
struct Store {
    last_value: u64,
    records: BTreeMap<String, Record>,
    spent: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    owner: String,
    holder: String,
    value: u64,
    expires_ns: u64,
    released: bool,
}

impl Record {
    fn is_live(&self, now_ns: u64) -> bool {
        !self.released && now_ns < self.expires_ns
    }
}

/// What is counted on the wall clock, which jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnWallClock {
    #[default]
    Nothing,
    Deadlines,
    Records,
    Tokens,
}

impl OnWallClock {
    const ALL: [Self; 4] = [Self::Nothing, Self::Deadlines, Self::Records, Self::Tokens];

    /// Marks the path of such a toy.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Deadlines => "wall-deadlines:",
            Self::Records => "wall-records:",
            Self::Tokens => "wall-tokens:",
        }
    }
}

#[derive(Debug)]
struct WallClock;

#[async_trait::async_trait]
impl Clock for WallClock {
    fn now(&self) -> BootInstant {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        BootInstant::ZERO.saturating_add(wall)
    }

    fn boot_id(&self) -> BootId {
        SystemClock.boot_id()
    }

    async fn sleep_until(&self, at: BootInstant) {
        while self.now() < at {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl FileToy {
    /// In the file at `path`, which may begin with the mark of what is wrong.
    pub fn new(path: &str) -> Self {
        let marked =
            |wall: &OnWallClock| path.strip_prefix(wall.mark()).map(|path| Self { path: path.into(), wall: *wall });
        OnWallClock::ALL.iter().rev().find_map(marked).unwrap()
    }

    fn now_ns(&self) -> u64 {
        if self.wall == OnWallClock::Records { WallClock.now().as_nanos() } else { SystemClock.now().as_nanos() }
    }

    fn after(&self, ttl: Duration) -> u64 {
        BootInstant::from_nanos(self.now_ns()).saturating_add(ttl).as_nanos()
    }

    fn next(&self, last_value: u64) -> u64 {
        if self.wall == OnWallClock::Tokens { WallClock.now().as_nanos() } else { last_value + 1 }
    }

    fn grant(&self, attempt: &Attempt, ttl: Duration) -> Result<Option<u64>, LeaseError> {
        let (owner, now_ns) = (attempt.owner().reveal(), self.now_ns());
        step(&self.path, |store: &mut Store| {
            let found = store.records.get(attempt.resource().as_str());
            let own = found.filter(|record| record.owner == owner);
            if store.spent.contains(&owner) || own.is_some_and(|record| !record.is_live(now_ns)) {
                let resource = attempt.resource().clone();
                return Err(LeaseError::AttemptOver { resource, reason: "it has ended" });
            }
            if let Some(own) = own {
                return Ok(Some(own.value));
            }
            if found.is_some_and(|record| record.is_live(now_ns)) {
                return Ok(None);
            }
            let expired = found.filter(|record| !record.released).map(|record| record.owner.clone());
            store.spent.extend(expired);
            store.last_value = self.next(store.last_value);
            let record = Record {
                owner,
                holder: attempt.holder().as_str().into(),
                value: store.last_value,
                expires_ns: self.after(ttl),
                released: false,
            };
            store.records.insert(attempt.resource().as_str().into(), record);
            Ok(Some(store.last_value))
        })
    }
}

#[async_trait::async_trait]
impl LeaseBackend for FileToy {
    fn description(&self) -> Description {
        Description::new("file toy", "1".into(), "file:".into())
    }

    fn claims(&self) -> Claims {
        Claims::of(&[Claim::FencingToken, Claim::CrossProcess, Claim::IdleNamesForgotten])
    }

    fn limits(&self) -> Limits {
        let millisecond = Duration::from_millis(1);
        Limits::new(millisecond, Duration::from_hours(1), millisecond)
    }

    fn clock(&self) -> SharedClock {
        if self.wall == OnWallClock::Deadlines { Arc::new(WallClock) } else { SystemClock::shared() }
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let ttl = self.limits().granted_ttl(attempt.ttl())?;
        let sent = attempt.begin_send(self.clock().now(), ttl)?;
        let first = sent.first_sent();
        let answer = self.grant(attempt, ttl);
        sent.answered();
        let Some(value) = answer? else {
            return Ok(Acquisition::Held(Held::for_another(None)));
        };
        let token = attempt.token(Authority::parse("file:1:0")?, value)?;
        let lease = Lease::granted(attempt, Some(token), ttl, first, self.clock());
        lease_core::accept_grant(self, attempt, lease).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let sent = self.clock().now();
        let renewed = step(&self.path, |store: &mut Store| {
            let record = store.records.get_mut(lease.resource().as_str())?;
            let own = record.is_live(self.now_ns()) && record.owner == lease.owner().reveal();
            own.then(|| record.expires_ns = record.expires_ns.max(self.after(lease.granted_ttl())))
        });
        Ok(match renewed {
            Some(()) => Renewal::Renewed(lease.renewed(sent)),
            None => Renewal::Lost(LossReason::Gone),
        })
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let release = lease.begin_release();
        let ended = step(&self.path, |store: &mut Store| {
            let record = store.records.get_mut(lease.resource().as_str());
            record.filter(|record| record.owner == lease.owner().reveal()).is_some_and(|record| {
                record.released = record.released || record.is_live(self.now_ns());
                record.released
            })
        });
        Ok(release.answered(ended))
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let owner = attempt.owner().reveal();
        step(&self.path, |store: &mut Store| {
            let record = store.records.get_mut(attempt.resource().as_str());
            if let Some(record) = record.filter(|record| record.owner == owner) {
                record.released = true;
            }
            store.spent.push(owner.clone());
        });
        Ok(())
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        let force = |store: &mut Store| {
            let live = store.records.get_mut(order.resource().as_str()).filter(|record| record.is_live(self.now_ns()));
            match live {
                None => Forced::NotHeld,
                Some(record) if record.value != order.value() => Forced::OtherGrant { value: record.value },
                Some(record) => {
                    record.expires_ns = self.now_ns();
                    store.spent.push(record.owner.clone());
                    Forced::Ended
                }
            }
        };
        order.carry_out(async { Ok(step(&self.path, force)) }).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        Ok(step(&self.path, |store: &mut Store| match store.records.get(resource.as_str()) {
            Some(record) if record.is_live(self.now_ns()) => {
                let left = Duration::from_nanos(record.expires_ns.saturating_sub(self.now_ns()));
                Inspection::held(Listed::new(resource.clone(), record.holder.clone(), Some(record.value), left))
            }
            record => Inspection::free(record.map(|record| record.value)),
        }))
    }

    async fn list(&self, _: &str, _: Option<&ResourceName>, _: u32) -> Result<NamePage, LeaseError> {
        Err(LeaseError::Unsupported { operation: Operation::List, backend: "file toy", reason: "it is a toy" })
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        Ok(step(&self.path, |store: &mut Store| {
            let before = store.records.len();
            store.records.retain(|_, record| record.is_live(self.now_ns()));
            CleanUp::removed(before.abs_diff(store.records.len()).try_into().unwrap())
        }))
    }

    fn fence(&self) -> Fence<'_> {
        Fence::TokenOnly
    }
}
