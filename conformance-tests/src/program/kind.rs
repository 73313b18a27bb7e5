//! The lease backends and stores that the program knows, compiled in or not.

use std::fmt;

/// A lease backend of this workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// In memory.
    Memory,
    /// `SQLite`.
    Sqlite,
    /// Redis with the client `redis`.
    Redis,
    /// Redis with the client `fred`.
    RedisFred,
    /// etcd.
    Etcd,
    /// `PostgreSQL`.
    Postgres,
}

impl Backend {
    /// Every backend, in the order of reports.
    pub const ALL: [Self; 6] = [Self::Memory, Self::Sqlite, Self::Redis, Self::RedisFred, Self::Etcd, Self::Postgres];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::RedisFred => "redis-fred",
            Self::Etcd => "etcd",
            Self::Postgres => "postgres",
        }
    }

    /// Finds a backend by its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Which kind of store it keeps its leases in.
    #[must_use]
    pub fn store(self) -> Store {
        match self {
            Self::Memory => Store::Memory,
            Self::Sqlite => Store::Sqlite,
            Self::Redis | Self::RedisFred => Store::Redis,
            Self::Etcd => Store::Etcd,
            Self::Postgres => Store::Postgres,
        }
    }

    /// What to do when it is compiled out; `None` when it is compiled in.
    #[must_use]
    pub fn compiled_out(self) -> Option<String> {
        let is_in = match self {
            Self::Memory => true,
            Self::Sqlite => cfg!(feature = "sqlite"),
            Self::Redis => cfg!(feature = "redis"),
            Self::RedisFred => cfg!(feature = "redis-fred"),
            Self::Etcd => cfg!(feature = "etcd"),
            Self::Postgres => cfg!(feature = "postgres"),
        };
        let name = self.name();
        match self {
            _ if is_in => None,
            Self::Etcd => Some(
                "compiled out; build with `--features etcd`, for which Debian's packages protobuf-compiler and \
                 libprotobuf-dev are needed, and install etcd-server to run it"
                    .to_owned(),
            ),
            _ => Some(format!("compiled out; build with `--features {name}`")),
        }
    }

    /// The schemes of its URLs.
    #[must_use]
    pub fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &["memory"],
            Self::Sqlite => &["sqlite"],
            Self::Redis => &["redis", "rediss"],
            Self::RedisFred => &["redis+fred", "rediss+fred"],
            Self::Etcd => &["etcd", "etcds"],
            Self::Postgres => &["postgres", "postgresql"],
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kind of store: where leases are kept, and where stale writes are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Store {
    /// This process's memory.
    Memory,
    /// A file.
    Sqlite,
    /// Redis.
    Redis,
    /// etcd.
    Etcd,
    /// `PostgreSQL`.
    Postgres,
}

impl Store {
    /// The kinds that can be a destination apart from the lease store, in the order of reports.
    pub const SEPARATE: [Self; 4] = [Self::Sqlite, Self::Redis, Self::Etcd, Self::Postgres];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::Postgres => "postgres",
        }
    }

    /// Finds a kind that can be a destination by its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::SEPARATE.into_iter().find(|store| store.name() == name)
    }

    /// What to do when no client of it is compiled in; `None` when one is.
    #[must_use]
    pub fn compiled_out(self) -> Option<String> {
        let mut reasons = Backend::ALL.into_iter().filter(|backend| backend.store() == self).map(Backend::compiled_out);
        // One client is enough, so a reason counts only if every backend of the store has one.
        let first = reasons.next().flatten()?;
        reasons.all(|reason| reason.is_some()).then_some(first)
    }

    /// The server that has to run for it.
    #[must_use]
    pub fn server(self) -> Option<lease_servers::Kind> {
        match self {
            Self::Memory | Self::Sqlite => None,
            Self::Redis => Some(lease_servers::Kind::Redis),
            Self::Etcd => Some(lease_servers::Kind::Etcd),
            Self::Postgres => Some(lease_servers::Kind::Postgres),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_a_compiled_out_one_names_its_feature() {
        for backend in Backend::ALL {
            assert_eq!(Backend::from_name(backend.name()), Some(backend));
            if let Some(reason) = backend.compiled_out() {
                assert!(reason.contains(&format!("--features {backend}")), "{reason}");
            }
        }
        assert_eq!(Backend::from_name("Redis"), None);
        assert_eq!(Store::Memory.compiled_out(), None);
    }
}
