//! The stores of a run: private servers that are started for it, or those that are there already.

use super::{Failure, Store};
use crate::subject::ServerControl;
use lease_servers::{EtcdSetup, PostgresSetup, RedisSetup, Server, ServerError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// One store: a server, or a file.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) store: Store,
    /// Its URL without the suite's own parameters, with credentials.
    pub(crate) url: String,
    /// The hands on it; none on a server that was there already.
    pub(crate) control: Option<Arc<dyn ServerControl>>,
}

impl Home {
    /// A server that is there already.
    pub(crate) fn existing(store: Store, url: String) -> Self {
        Self { store, url, control: None }
    }

    /// The URL with more parameters.
    pub(crate) fn url_with(&self, parameters: &[(&str, &str)]) -> String {
        with_parameters(&self.url, parameters.iter().copied())
    }
}

/// A URL with more parameters, whether it has some or not.
pub(crate) fn with_parameters<'a>(url: &str, parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    parameters.into_iter().fold(url.to_owned(), |url, (name, value)| {
        let before = if url.contains('?') { '&' } else { '?' };
        format!("{url}{before}{name}={value}")
    })
}

/// What a store is needed for. The two never share a server, so that what a lease store loses, a destination still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Leases,
    Destinations,
}

/// Private stores. Dropping it stops the servers and removes their folders.
#[derive(Debug)]
pub(crate) struct Fleet {
    homes: BTreeMap<(Role, Store), Home>,
    /// Why one could not be started.
    failed: BTreeMap<(Role, Store), String>,
    // After the homes, so that whoever has a file open lets go of it before its folder goes.
    files: Option<TempDir>,
}

impl Fleet {
    /// Starts what is needed, all at once.
    ///
    /// # Errors
    /// When there is no temporary folder. A server that does not start is kept as [`failure`](Self::failure).
    pub(crate) fn start(needed: &[(Role, Store)]) -> Result<Self, Failure> {
        let files = needed.iter().any(|(_, store)| *store == Store::Sqlite).then(files).transpose()?;
        let mut fleet = Self { homes: BTreeMap::new(), failed: BTreeMap::new(), files: None };
        let folder = files.as_ref().map(TempDir::path);
        let started: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = needed
                .iter()
                .map(|&(role, store)| ((role, store), scope.spawn(move || start(role, store, folder))))
                .collect();
            threads
                .into_iter()
                .map(|(key, thread)| {
                    let result = thread.join().unwrap_or_else(|_| Err("starting it panicked".to_owned()));
                    (key, result)
                })
                .collect()
        });
        for (key, result) in started {
            match result {
                Ok(home) => drop(fleet.homes.insert(key, home)),
                Err(reason) => drop(fleet.failed.insert(key, reason)),
            }
        }
        fleet.files = files;
        Ok(fleet)
    }

    pub(crate) fn home(&self, role: Role, store: Store) -> Option<&Home> {
        self.homes.get(&(role, store))
    }

    /// Why a store is not there, although it was needed.
    pub(crate) fn failure(&self, role: Role, store: Store) -> Option<&str> {
        self.failed.get(&(role, store)).map(String::as_str)
    }
}

/// A folder for files, in memory where the system has such a place: what the suite does to a file is to kill a process that writes to it,
/// which a disk would show no different, and the times in the cases should not be those of a busy disk. `TMPDIR` comes first.
fn files() -> Result<TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("leasehold-files-");
    let in_memory = match std::env::var_os("TMPDIR") {
        Some(_) => None,
        None => builder.tempdir_in("/dev/shm").ok(),
    };
    match in_memory {
        Some(folder) => Ok(folder),
        None => builder.tempdir().map_err(|e| Failure::CouldNotRun(format!("cannot make a temporary folder: {e}"))),
    }
}

fn start(role: Role, store: Store, folder: Option<&Path>) -> Result<Home, String> {
    let server = |started: Result<Server, ServerError>| {
        let server = started.map_err(|e| e.to_string())?;
        let url = server.url().to_owned();
        let control: Arc<dyn ServerControl> = Arc::new(Hands(Mutex::new(server)));
        Ok(Home { store, url, control: Some(control) })
    };
    match store {
        Store::Memory => Err("memory has no server".to_owned()),
        Store::Sqlite => {
            let name = match role {
                Role::Leases => "leases.db",
                Role::Destinations => "destinations.db",
            };
            let file = folder.ok_or("there is no folder for files")?.join(name);
            let url = format!("sqlite://{}", file.display());
            let control = super::stores::file_control(&url)?;
            Ok(Home { store, url, control: Some(control) })
        }
        Store::Redis => server(lease_servers::redis(&RedisSetup::default())),
        Store::Etcd => server(lease_servers::etcd(&EtcdSetup::default())),
        Store::Postgres => server(lease_servers::postgres(&PostgresSetup::default())),
    }
}

/// The hands on a private server.
#[derive(Debug)]
struct Hands(Mutex<Server>);

impl Hands {
    /// A panic of another user left at worst a server that is down, which the next start mends.
    fn server(&self) -> MutexGuard<'_, Server> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerControl for Hands {
    fn kill_and_restart(&self) -> Result<(u32, u32), String> {
        Ok((self.kill()?, self.start()?))
    }

    fn pause(&self) -> Result<u32, String> {
        let server = self.server();
        let pid = server.pid().ok_or("it is down")?;
        server.pause();
        Ok(pid)
    }

    fn resume(&self) -> Result<(), String> {
        self.server().resume();
        Ok(())
    }

    fn can_be_down(&self) -> bool {
        true
    }

    fn kill(&self) -> Result<u32, String> {
        let mut server = self.server();
        let pid = server.pid().ok_or("it was down before")?;
        server.kill();
        Ok(pid)
    }

    fn start(&self) -> Result<u32, String> {
        let mut server = self.server();
        server.restart().map_err(|e| e.to_string())?;
        server.pid().ok_or_else(|| "it is down after the start".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_added_to_whatever_is_there() {
        let home = |url: &str| Home::existing(Store::Redis, url.to_owned());
        assert_eq!(
            home("redis://h:1/").url_with(&[("namespace", "a"), ("epoch", "1")]),
            "redis://h:1/?namespace=a&epoch=1"
        );
        assert_eq!(home("redis://h:1/?epoch=1").url_with(&[("namespace", "a")]), "redis://h:1/?epoch=1&namespace=a");
    }
}
