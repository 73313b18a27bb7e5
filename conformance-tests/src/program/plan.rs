//! From what was asked for to what is going to be run.

use super::ask::{AskedBackend, RunArgs, missing_server};
use super::servers::Role;
use super::{Backend, Failure, Store};
use crate::report::Missing;

/// What is going to be run.
pub(crate) struct Plan {
    /// Unique to this run, so that runs on one server do not meet.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
    pub(crate) backends: Vec<AskedBackend>,
    pub(crate) destinations: Vec<Store>,
    pub(crate) missing: Vec<Missing>,
}

impl Plan {
    pub(crate) fn new(args: &RunArgs) -> Result<Self, Failure> {
        let mut missing = Vec::new();
        let backends = backends(args, &mut missing)?;
        let destinations = destinations(args, &backends, &mut missing);
        let prefix = format!("conf_{:08x}", random()? >> 32);
        let seed = args.seed.map_or_else(random, Ok)?;
        Ok(Self { prefix, seed, backends, destinations, missing })
    }

    /// The server of this kind that a URL names.
    pub(crate) fn given(&self, store: Store) -> Option<&str> {
        given(&self.backends, store)
    }

    /// Whether every server is this run's own: what is expected is known of those only.
    pub(crate) fn is_private(&self) -> bool {
        self.backends.iter().all(|one| one.url.is_none())
    }

    /// The private stores that are needed.
    pub(crate) fn needed(&self) -> Vec<(Role, Store)> {
        let mut needed: Vec<(Role, Store)> = self
            .backends
            .iter()
            .filter(|one| one.url.is_none() && one.backend != Backend::Memory)
            .map(|one| (Role::Leases, one.backend.store()))
            .collect();
        let separate = self.destinations.iter().filter(|store| self.given(**store).is_none());
        needed.extend(separate.map(|store| (Role::Destinations, *store)));
        needed.sort_unstable();
        needed.dedup();
        needed
    }
}

fn backends(args: &RunArgs, missing: &mut Vec<Missing>) -> Result<Vec<AskedBackend>, Failure> {
    let asked = args.asked()?;
    let by_name = !asked.is_empty();
    let candidates = if by_name { asked } else { Backend::ALL.into_iter().map(AskedBackend::by_name).collect() };
    let mut backends = Vec::new();
    for one in candidates {
        match one.missing() {
            Some(reason) => missing.push(Missing {
                backend: one.backend.name().to_owned(),
                reason,
                required: by_name || args.require,
            }),
            None => backends.push(one),
        }
    }
    Ok(backends)
}

/// Every kind that can be had. On servers that are there already: only theirs, and files, unless one was asked for.
fn destinations(args: &RunArgs, backends: &[AskedBackend], missing: &mut Vec<Missing>) -> Vec<Store> {
    let by_url = backends.iter().any(|one| one.url.is_some());
    let mut destinations = Vec::new();
    for store in Store::SEPARATE {
        let asked_for = args.destinations.contains(&store);
        let is_there = given(backends, store).is_some();
        let wanted =
            if args.destinations.is_empty() { !by_url || is_there || store == Store::Sqlite } else { asked_for };
        if !wanted {
            continue;
        }
        let reason = store.compiled_out().or_else(|| if is_there { None } else { missing_server(store) });
        match reason {
            None => destinations.push(store),
            Some(reason) => missing.push(Missing {
                backend: format!("destination {store}"),
                reason,
                required: asked_for || args.require,
            }),
        }
    }
    destinations
}

fn given(backends: &[AskedBackend], store: Store) -> Option<&str> {
    backends.iter().filter(|one| one.backend.store() == store).find_map(|one| one.url.as_deref())
}

fn random() -> Result<u64, Failure> {
    let id = lease_core::GrantId::random().map_err(|e| Failure::CouldNotRun(e.to_string()))?;
    u64::from_str_radix(&id.to_hex(), 16).map_err(|e| Failure::CouldNotRun(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn plan(args: &[&str]) -> Plan {
        let line = Line::try_parse_from(std::iter::once("run").chain(args.iter().copied())).unwrap();
        Plan::new(&line.run).unwrap()
    }

    #[test]
    fn asking_by_name_requires_and_a_default_does_not() {
        assert!(plan(&[]).missing.iter().all(|missing| !missing.required));
        assert!(plan(&["--require"]).missing.iter().all(|missing| missing.required));
        if let Some(missing) = plan(&["--backend", "etcd"]).missing.iter().find(|missing| missing.backend == "etcd") {
            assert!(missing.required);
        }
    }

    #[test]
    fn memory_needs_no_store_and_a_lease_store_is_never_a_separate_destination() {
        let needed = plan(&["--backend", "memory", "--destination", "sqlite"]).needed();
        if cfg!(feature = "sqlite") {
            assert_eq!(needed, [(Role::Destinations, Store::Sqlite)]);
            let needed = plan(&["--backend", "sqlite", "--destination", "sqlite"]).needed();
            assert_eq!(needed, [(Role::Leases, Store::Sqlite), (Role::Destinations, Store::Sqlite)]);
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn on_a_server_that_is_there_nothing_else_is_started() {
        let plan = plan(&["--backend", "redis=redis://127.0.0.1:1/"]);
        assert!(!plan.is_private());
        assert!(plan.needed().iter().all(|(role, store)| *role == Role::Destinations && *store == Store::Sqlite));
    }
}
