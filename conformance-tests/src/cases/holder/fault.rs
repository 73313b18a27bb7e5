//! The kinds of trouble, and how each one is made and ended.

use crate::context::{Stop, now, pause_for};
use crate::faults::{FaultBench, HandEdit, OnceFault};
use crate::subject::{ServerControl, Subject};
use crate::worker::Worker;
use lease_core::{BootInstant, ResourceName};
use std::sync::Arc;
use std::time::Duration;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    BlackHole,
    CutAndRefused,
    /// One reply never comes; the connection stays, and silent.
    ReplyStalled,
    WorkerStopped,
    /// The runtime of the holder and of its renewals; the holder's other threads run on.
    RuntimeBlocked,
    RecordDeleted,
    ServerFrozen,
    ServerKilled,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::BlackHole,
        Self::CutAndRefused,
        Self::ReplyStalled,
        Self::WorkerStopped,
        Self::RuntimeBlocked,
        Self::RecordDeleted,
        Self::ServerFrozen,
        Self::ServerKilled,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BlackHole => "black hole",
            Self::CutAndRefused => "cut and refused",
            Self::ReplyStalled => "one reply stalled",
            Self::WorkerStopped => "worker stopped",
            Self::RuntimeBlocked => "runtime blocked",
            Self::RecordDeleted => "record deleted by hand",
            Self::ServerFrozen => "server frozen",
            Self::ServerKilled => "server killed",
        }
    }

    /// It hits every client of the server, so no other kind may be tried at the same time.
    pub(super) fn hits_all(self) -> bool {
        matches!(self, Self::ServerFrozen | Self::ServerKilled)
    }

    /// Why it cannot be made here; `None` when it can.
    pub(super) fn missing(self, subject: &dyn Subject, can_freeze: bool, can_kill: bool) -> Option<&'static str> {
        match self {
            Self::RecordDeleted if subject.hand_edit().is_none() => Some("no hands on the records"),
            Self::ServerFrozen if !can_freeze => Some("no hands on a server"),
            Self::ServerKilled if !can_kill => Some("no hands on a server process"),
            _ => None,
        }
    }
}

/// What makes trouble, for one worker.
pub(super) struct Trouble<'a> {
    pub(super) kind: Kind,
    pub(super) bench: &'a Arc<dyn FaultBench>,
    pub(super) server: Option<Arc<dyn ServerControl>>,
    pub(super) edit: Option<Arc<dyn HandEdit>>,
}

impl Trouble<'_> {
    /// Begins it; returns when it is there, with its witness and the instant right before.
    pub(super) async fn begin(
        &self,
        worker: &mut Worker,
        names: &[ResourceName],
    ) -> Result<(BootInstant, String), Stop> {
        let mut begun = now();
        let witness = match self.kind {
            Kind::BlackHole => {
                self.bench.path().black_hole(true);
                self.bench.path().kind().to_owned()
            }
            Kind::CutAndRefused => {
                self.bench.path().refuse(true);
                self.bench.path().cut();
                self.bench.path().kind().to_owned()
            }
            Kind::ReplyStalled => {
                self.bench.path().once(OnceFault::ReplySwallowed);
                self.has_met_a_request().await?;
                begun = now();
                "one reply swallowed".to_owned()
            }
            Kind::WorkerStopped | Kind::RuntimeBlocked => worker.pause().await.map_err(Stop::NotTried)?,
            Kind::RecordDeleted => {
                let edit = self.edit.as_ref().ok_or_else(|| Stop::NotTried("no hands on the records".into()))?;
                for name in names {
                    edit.delete_record(name).await?;
                }
                format!("{} records deleted", names.len())
            }
            Kind::ServerFrozen => self.on_server(|server| server.pause().map(|pid| format!("pid {pid}"))).await?,
            Kind::ServerKilled => self.on_server(|server| server.kill().map(|pid| format!("pid {pid}"))).await?,
        };
        Ok((begun, witness))
    }

    /// Ends it; returns when everything is as before.
    pub(super) async fn end(&self, worker: &mut Worker) -> Result<(), Stop> {
        match self.kind {
            Kind::BlackHole => self.bench.path().black_hole(false),
            Kind::CutAndRefused | Kind::ReplyStalled => self.bench.path().heal(),
            Kind::WorkerStopped | Kind::RuntimeBlocked => worker.resume().map_err(Stop::NotTried)?,
            Kind::RecordDeleted => {}
            Kind::ServerFrozen => self.on_server(|server| server.resume().map(|()| String::new())).await.map(drop)?,
            Kind::ServerKilled => self.on_server(|server| server.start().map(|_| String::new())).await.map(drop)?,
        }
        Ok(())
    }

    /// Only renewals send anything, so the next request is one, or the part of one.
    async fn has_met_a_request(&self) -> Result<(), Stop> {
        let end = now().saturating_add(Duration::from_secs(30));
        while !self.bench.path().happened() {
            if now() >= end {
                return Err(Stop::NotTried("no renewal was sent within 30 s".into()));
            }
            pause_for(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Signals and restarts block, so not on the runtime.
    async fn on_server(
        &self,
        work: impl FnOnce(&dyn ServerControl) -> Result<String, String> + Send + 'static,
    ) -> Result<String, Stop> {
        let server = self.server.clone().ok_or_else(|| Stop::NotTried("no hands on the server".into()))?;
        let done = tokio::task::spawn_blocking(move || work(server.as_ref())).await;
        done.map_err(|e| Stop::NotTried(format!("the server's control panicked: {e}")))?.map_err(Stop::NotTried)
    }
}
