//! What was asked for on the command line.

use super::render::Pages;
use super::{Backend, Failure, Store};
use std::path::PathBuf;
use std::str::FromStr;

/// Options of `run`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Run this backend, on a private server or, with a URL, on a server that is already there (in namespaces of its own, which are
    /// removed at the end). Repeatable. Asking by name implies that it has to run. Default: everything that is compiled in and installed.
    // Parsed by hand: the argument parser's error would repeat the whole argument, with the password in the URL.
    #[arg(long = "backend", value_name = "NAME[=URL]")]
    backends: Vec<String>,
    /// Send stale writes to destinations of this kind only, besides the lease's own store. Repeatable. Default: every kind.
    #[arg(long = "destination", value_name = "KIND", value_parser = parse_destination)]
    pub(crate) destinations: Vec<Store>,
    /// Fail (exit status 3) when anything that was asked for cannot be run: also backends and destinations that are asked for by default.
    #[arg(long)]
    pub(crate) require: bool,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the matrix as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pages: Pages,
    /// Seed of every random choice. Default: a new one, which the report names.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Trials of each case. In one trial each of the two cases with holders in trouble puts at least 20 of them into it: ten trials of
    /// `--case holder/loss-by-deadline --case holder/no-false-loss` take about ten minutes on a backend, and judge 200 holders in each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) trials: u32,
    /// Only the cases whose id begins with this. Repeatable.
    #[arg(long = "case", value_name = "PREFIX")]
    pub(crate) cases: Vec<String>,
    /// Leave out the cases that take minutes: faults on the way to the store, dropped calls, holders in trouble. The default without a
    /// subcommand.
    #[arg(long, conflicts_with = "cases")]
    pub(crate) quick: bool,
    /// The expected verdicts, instead of the built-in ones. They are compared when private servers are used.
    #[arg(long, value_name = "FILE")]
    pub(crate) expected: Option<PathBuf>,
}

/// Options of `soak`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// Soak this backend, on a private server or, with a URL, on a server that is already there. Repeatable. Default: everything that is
    /// compiled in and installed.
    // Parsed by hand, as for `run`.
    #[arg(long = "backend", value_name = "NAME[=URL]")]
    backends: Vec<String>,
    /// How long, for each backend, counted in the time that the schedule gives to faults and to the pauses between them.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// How many worker processes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) workers: u8,
    /// Seed of the schedule and of what the workers do. The same seed repeats the schedule. Default: a new one, which the report names.
    #[arg(long)]
    seed: Option<u64>,
    /// Fail (exit status 3) when anything that was asked for cannot be run.
    #[arg(long)]
    require: bool,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl SoakArgs {
    /// The same wishes as options of a run: the workers write to a file, which no fault hits.
    pub(crate) fn as_run(&self) -> RunArgs {
        RunArgs {
            backends: self.backends.clone(),
            destinations: vec![Store::Sqlite],
            require: self.require,
            json: self.json.clone(),
            markdown: None,
            pages: Pages::default(),
            seed: self.seed,
            trials: 1,
            cases: Vec::new(),
            quick: false,
            expected: None,
        }
    }
}

impl RunArgs {
    /// The backends that were asked for by name; empty for all of them.
    pub(crate) fn asked(&self) -> Result<Vec<AskedBackend>, Failure> {
        let mut asked: Vec<AskedBackend> = Vec::new();
        for text in &self.backends {
            let one: AskedBackend = text.parse().map_err(|e| Failure::Usage(format!("--backend: {e}")))?;
            if asked.iter().any(|other| other.backend == one.backend) {
                return Err(Failure::Usage(format!("--backend: {} is asked for twice", one.backend)));
            }
            asked.push(one);
        }
        asked.sort_by_key(|one| one.backend);
        Ok(asked)
    }
}

/// One backend that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedBackend {
    pub(crate) backend: Backend,
    /// Where it is; `None` for a private server.
    pub(crate) url: Option<String>,
}

impl AskedBackend {
    pub(crate) fn by_name(backend: Backend) -> Self {
        Self { backend, url: None }
    }

    /// Why it cannot be run here; `None` when it can, as far as one can tell before it was tried.
    pub(crate) fn missing(&self) -> Option<String> {
        self.backend.compiled_out().or_else(|| match self.url {
            Some(_) => None,
            None => missing_server(self.backend.store()),
        })
    }
}

/// Why no private server of this kind can be started; `None` when one can.
pub(crate) fn missing_server(store: Store) -> Option<String> {
    let kind = store.server()?;
    let package = lease_servers::missing_package(kind)?;
    Some(format!("its server is not installed; Debian has it in the package {package}"))
}

impl FromStr for AskedBackend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) => (name, Some(url)),
            None => (text, None),
        };
        let backend = Backend::from_name(name).ok_or_else(|| {
            let names: Vec<_> = Backend::ALL.iter().map(|b| b.name()).collect();
            format!("no backend has that name; there are {}", names.join(", "))
        })?;
        if let Some(url) = url {
            check_url(backend, url)?;
        }
        Ok(Self { backend, url: url.map(ToOwned::to_owned) })
    }
}

fn check_url(backend: Backend, url: &str) -> Result<(), String> {
    if backend == Backend::Memory {
        return Err("the memory backend has no server: give its name alone".to_owned());
    }
    let scheme = url.split(':').next().unwrap_or_default();
    if !backend.schemes().contains(&scheme) {
        return Err(format!("a URL of {backend} begins with {}:", backend.schemes().join(": or ")));
    }
    // The suite's own namespace and retention go into it.
    let parsed =
        lease_core::StoreUrl::parse(url, &["sslmode", "sslrootcert", "max_connections", "set_up", "endpoints"]);
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let sets = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    match parsed {
        Ok(_) if ["namespace", "idle_retention_ms", "call_timeout_ms"].into_iter().any(sets) => {
            Err("the suite chooses namespace, idle_retention_ms and call_timeout_ms itself: leave them out".to_owned())
        }
        // An unknown parameter is the backend's to judge: it may know some that are not in this list.
        Ok(_) | Err(lease_core::LeaseError::UnknownParameter { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_destination(text: &str) -> Result<Store, String> {
    Store::from_name(text).ok_or_else(|| {
        let names: Vec<_> = Store::SEPARATE.iter().map(|s| s.name()).collect();
        format!("no destination has that name; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_a_name_or_a_name_and_a_url() {
        assert_eq!("redis".parse(), Ok(AskedBackend::by_name(Backend::Redis)), "a private server");
        let asked: AskedBackend = "redis=redis://h:1/?epoch=5".parse().unwrap();
        assert_eq!(asked.url.as_deref(), Some("redis://h:1/?epoch=5"));
        for (bad, says) in [
            ("redi", "there are memory"),
            ("redis=postgres://h/", "begins with redis: or rediss:"),
            ("memory=memory:x", "no server"),
            ("redis=redis://u:s3cret@h/?namespace=x", "leave them out"),
            ("redis=redis://u:s3cret@h/?epoch=x", "whole number"),
        ] {
            let message = bad.parse::<AskedBackend>().unwrap_err();
            assert!(message.contains(says), "{message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
    }
}
