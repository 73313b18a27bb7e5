//! The kinds of trouble, and how each one is made and ended.

use crate::context::{Stop, now, pause_for};
use crate::faults::{FaultBench, HandEdit, OnceFault};
use crate::subject::{ServerControl, Subject};
use crate::worker::Worker;
use lease_core::{BootInstant, ResourceName};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// What is to be done to a server whose trouble has not ended yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Undo {
    #[default]
    Nothing,
    Resume,
    Start,
    /// The case is gone, and nothing more may be begun.
    Over,
}

/// Ends the trouble of a case that ended in its middle, by a finding, a panic or because the run was given up: a server that was there before
/// must not stay stopped, nor a path closed.
#[derive(Debug)]
pub(super) struct Aftermath {
    bench: Arc<dyn FaultBench>,
    server: Option<Arc<dyn ServerControl>>,
    undo: Arc<Mutex<Undo>>,
}

impl Aftermath {
    pub(super) fn of(bench: Arc<dyn FaultBench>, server: Option<Arc<dyn ServerControl>>) -> Self {
        Self { bench, server, undo: Arc::default() }
    }

    /// The trouble that it will end.
    pub(super) fn trouble(&self, kind: Kind, edit: Option<Arc<dyn HandEdit>>) -> Trouble<'_> {
        Trouble { kind, aftermath: self, edit }
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        self.bench.path().heal();
        // Whoever is just stopping the server is waited for.
        let undo = std::mem::replace(&mut *lock(&self.undo), Undo::Over);
        if let Some(server) = &self.server {
            // Nobody is left to be told that it failed; the next case that needs the server says so.
            match undo {
                Undo::Resume => drop(server.resume()),
                Undo::Start => drop(server.start()),
                Undo::Nothing | Undo::Over => {}
            }
        }
    }
}

/// A panic under the lock leaves a whole value.
fn lock(undo: &Mutex<Undo>) -> MutexGuard<'_, Undo> {
    undo.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What makes trouble, for one worker.
pub(super) struct Trouble<'a> {
    kind: Kind,
    aftermath: &'a Aftermath,
    edit: Option<Arc<dyn HandEdit>>,
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
                self.aftermath.bench.path().black_hole(true);
                self.aftermath.bench.path().kind().to_owned()
            }
            Kind::CutAndRefused => {
                self.aftermath.bench.path().refuse(true);
                self.aftermath.bench.path().cut();
                self.aftermath.bench.path().kind().to_owned()
            }
            Kind::ReplyStalled => {
                self.aftermath.bench.path().once(OnceFault::ReplySwallowed);
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
            Kind::ServerFrozen => self.begin_on_server(Undo::Resume, |server| server.pause()).await?,
            Kind::ServerKilled => self.begin_on_server(Undo::Start, |server| server.kill()).await?,
        };
        Ok((begun, witness))
    }

    /// Ends it; returns when everything is as before.
    pub(super) async fn end(&self, worker: &mut Worker) -> Result<(), Stop> {
        match self.kind {
            Kind::BlackHole => self.aftermath.bench.path().black_hole(false),
            Kind::CutAndRefused | Kind::ReplyStalled => self.aftermath.bench.path().heal(),
            Kind::WorkerStopped | Kind::RuntimeBlocked => worker.resume().map_err(Stop::NotTried)?,
            Kind::RecordDeleted => {}
            Kind::ServerFrozen => self.on_server(Undo::Nothing, |server| server.resume()).await?,
            Kind::ServerKilled => self.on_server(Undo::Nothing, |server| server.start().map(drop)).await?,
        }
        Ok(())
    }

    /// Only renewals send anything, so the next request is one, or the part of one.
    async fn has_met_a_request(&self) -> Result<(), Stop> {
        let end = now().saturating_add(Duration::from_secs(30));
        while !self.aftermath.bench.path().happened() {
            if now() >= end {
                return Err(Stop::NotTried("no renewal was sent within 30 s".into()));
            }
            pause_for(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Begins trouble; returns the witness.
    async fn begin_on_server(
        &self,
        undo: Undo,
        work: impl FnOnce(&dyn ServerControl) -> Result<u32, String> + Send + 'static,
    ) -> Result<String, Stop> {
        self.on_server(undo, work).await.map(|pid| format!("pid {pid}"))
    }

    /// Signals and restarts block, so not on the runtime. Afterwards `undo` is what is left to be done.
    async fn on_server<T: Send + 'static>(
        &self,
        undo: Undo,
        work: impl FnOnce(&dyn ServerControl) -> Result<T, String> + Send + 'static,
    ) -> Result<T, Stop> {
        let server = self.aftermath.server.clone().ok_or_else(|| Stop::NotTried("no hands on the server".into()))?;
        let to_undo = Arc::clone(&self.aftermath.undo);
        let done = tokio::task::spawn_blocking(move || {
            let mut to_undo = lock(&to_undo);
            if *to_undo == Undo::Over {
                return Err("its case is over".to_owned());
            }
            // Before it is begun, since it may fail half-way.
            if undo != Undo::Nothing {
                *to_undo = undo;
            }
            let done = work(server.as_ref())?;
            *to_undo = undo;
            Ok(done)
        });
        let done = done.await;
        done.map_err(|e| Stop::NotTried(format!("the server's control panicked: {e}")))?.map_err(Stop::NotTried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::at_calls;
    use lease_core::memory::{MemoryBackend, MemoryStore};

    /// Notes what is done to it.
    #[derive(Debug, Default)]
    struct Noted(Mutex<Vec<&'static str>>);

    impl Noted {
        fn note(&self, what: &'static str) -> u32 {
            self.0.lock().unwrap().push(what);
            1
        }
    }

    impl ServerControl for Noted {
        fn kill_and_restart(&self) -> Result<(u32, u32), String> {
            Err("not here".into())
        }

        fn pause(&self) -> Result<u32, String> {
            Ok(self.note("pause"))
        }

        fn resume(&self) -> Result<(), String> {
            self.note("resume");
            Ok(())
        }

        fn can_be_down(&self) -> bool {
            true
        }

        fn kill(&self) -> Result<u32, String> {
            Ok(self.note("kill"))
        }

        fn start(&self) -> Result<u32, String> {
            Ok(self.note("start"))
        }
    }

    fn scene() -> (Arc<Noted>, Aftermath) {
        let client = Arc::new(MemoryBackend::on(MemoryStore::new().unwrap()));
        let bench = at_calls(client, Duration::from_mins(1));
        let server = Arc::new(Noted::default());
        (Arc::clone(&server), Aftermath::of(bench, Some(server)))
    }

    #[tokio::test]
    async fn a_case_that_ends_in_the_middle_leaves_no_server_stopped_and_no_path_closed() {
        for (undo, expected) in [(Undo::Resume, ["pause", "resume"]), (Undo::Start, ["kill", "start"])] {
            let (server, aftermath) = scene();
            let trouble = aftermath.trouble(Kind::ServerFrozen, None);
            let begin =
                move |server: &dyn ServerControl| if undo == Undo::Resume { server.pause() } else { server.kill() };
            trouble.begin_on_server(undo, begin).await.unwrap();
            let bench = Arc::clone(&aftermath.bench);
            bench.path().black_hole(true);
            let client = bench.client().await.unwrap();
            let asking = tokio::spawn(async move { client.inspect(&ResourceName::parse("r").unwrap()).await });
            while bench.path().counts().0 == 0 {
                tokio::task::yield_now().await;
            }
            // Also by a panic.
            let panics = tokio::spawn(async move {
                let _aftermath = aftermath;
                panic!("as a case may");
            });
            assert!(panics.await.unwrap_err().is_panic());
            assert_eq!(*server.0.lock().unwrap(), expected);
            // What was swallowed is cut, long before its limit; and what comes next passes.
            let reason = asking.await.unwrap().unwrap_err().to_string();
            assert!(reason.contains("black hole"), "{reason}");
            let client = bench.client().await.unwrap();
            client.inspect(&ResourceName::parse("r").unwrap()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn trouble_that_was_ended_is_not_ended_again_and_none_begins_behind_its_case() {
        let (server, aftermath) = scene();
        let trouble = aftermath.trouble(Kind::ServerFrozen, None);
        trouble.begin_on_server(Undo::Resume, |server| server.pause()).await.unwrap();
        trouble.on_server(Undo::Nothing, |server| server.resume()).await.unwrap();
        *lock(&aftermath.undo) = Undo::Over;
        assert!(trouble.begin_on_server(Undo::Resume, |server| server.pause()).await.is_err());
        drop(aftermath);
        assert_eq!(*server.0.lock().unwrap(), ["pause", "resume"]);
    }
}
