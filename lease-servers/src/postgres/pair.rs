//! A private PostgreSQL with a standby.

use super::wire::postgres_query;
use super::{PASSWORD, PostgresSetup, copy_of, launch, own, postgres};
use crate::server::Folder;
use crate::wait::{LIMIT, until};
use crate::{Kind, Proxy, Server, ServerError};

/// When a commit of the primary is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replication {
    /// When the primary has it. What the standby had not been sent is lost by a promotion.
    Asynchronous,
    /// When the standby has it too (`synchronous_standby_names`). Without the standby no commit ends.
    Synchronous,
}

/// A PostgreSQL and its standby, made by `pg_basebackup`. The write-ahead log reaches the standby through a [`Proxy`], so that it can be
/// made to lag.
#[derive(Debug)]
pub struct PostgresPair {
    primary: Server,
    link: Proxy,
    standby: Server,
}

impl PostgresPair {
    /// Starts both with the same settings and returns when the standby has everything.
    ///
    /// # Errors
    /// When a program of PostgreSQL is not installed, or one of the two does not become ready.
    pub fn start(setup: &PostgresSetup, replication: Replication) -> Result<Self, ServerError> {
        let mut of_primary = setup.clone();
        if replication == Replication::Synchronous {
            of_primary.settings.push(("synchronous_standby_names".into(), NAME.into()));
        }
        let primary = postgres(&of_primary)?;
        let link = Proxy::to(primary.port())?;
        let folder = Folder::new(Kind::Postgres)?;
        copy_of(&primary, &folder, &folder.data())?;
        let signal = folder.data().join("standby.signal");
        std::fs::write(&signal, "").and_then(|()| own(&signal)).map_err(ServerError::io("write standby.signal"))?;
        let mut of_standby = setup.clone();
        let port = link.port();
        let source = format!("host=127.0.0.1 port={port} user=postgres password={PASSWORD} application_name={NAME}");
        of_standby.settings.push(("primary_conninfo".into(), source));
        // Left to itself it waits five seconds before it connects again.
        of_standby.settings.push(("wal_retrieve_retry_interval".into(), "100ms".into()));
        let standby = launch(&of_standby, folder)?;
        let pair = Self { primary, link, standby };
        pair.wait_in_step()?;
        Ok(pair)
    }

    /// The server that was the primary at the beginning. After a promotion it is the old one; it takes writes all the same until it is
    /// killed.
    #[must_use]
    pub fn primary(&self) -> &Server {
        &self.primary
    }

    /// The same, to kill it and to start it again.
    pub fn primary_mut(&mut self) -> &mut Server {
        &mut self.primary
    }

    /// The server that was the standby at the beginning. It keeps its role over a restart.
    #[must_use]
    pub fn standby(&self) -> &Server {
        &self.standby
    }

    /// The same, to kill it and to start it again.
    pub fn standby_mut(&mut self) -> &mut Server {
        &mut self.standby
    }

    /// What the standby reaches the primary through.
    #[must_use]
    pub fn link(&self) -> &Proxy {
        &self.link
    }

    /// Cuts the standby off from the primary, and returns when both have noticed.
    ///
    /// # Errors
    /// When one of them cannot be asked, or does not notice within a minute.
    pub fn cut_link(&self) -> Result<(), ServerError> {
        self.link.refuse(true);
        self.link.cut();
        until("the primary sends no write-ahead log", LIMIT, || {
            expect(&self.primary, "SELECT count(*) FROM pg_stat_replication", "0")
        })?;
        until("the standby receives no write-ahead log", LIMIT, || {
            expect(&self.standby, "SELECT count(*) FROM pg_stat_wal_receiver", "0")
        })
    }

    /// Joins them again after [`cut_link`](Self::cut_link), and returns when the standby has everything.
    ///
    /// # Errors
    /// When the standby does not catch up within a minute.
    pub fn restore_link(&self) -> Result<(), ServerError> {
        self.link.heal();
        self.wait_in_step()
    }

    /// Returns when the standby has, and shows, everything that was written before the call; and counts for commits, if it is to.
    ///
    /// # Errors
    /// When one of them cannot be asked, or the standby has not caught up within a minute.
    pub fn wait_in_step(&self) -> Result<(), ServerError> {
        until("the primary sends its write-ahead log", LIMIT, || expect(&self.primary, STREAMS, "t"))?;
        let written = postgres_query(&self.primary, "SELECT pg_current_wal_lsn()")?;
        let shows = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        until("the standby shows what the primary had", LIMIT, || expect(&self.standby, &shows, "t"))
    }

    /// How many bytes of the primary's write-ahead log the standby has not got.
    ///
    /// # Errors
    /// When one of them cannot be asked.
    pub fn lag_bytes(&self) -> Result<u64, ServerError> {
        let has = postgres_query(&self.standby, "SELECT pg_last_wal_receive_lsn()")?;
        let lag = format!("SELECT greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), '{has}'), 0)");
        let lag = postgres_query(&self.primary, &lag)?;
        lag.parse().map_err(|_| ServerError::Refused { what: "read how far the standby is".into(), answer: lag })
    }

    /// Makes the standby a primary (`pg_promote`), for good, and returns when it takes writes. The old primary is not told.
    ///
    /// # Errors
    /// When the standby cannot be asked, or does not take writes within a minute.
    pub fn promote(&self) -> Result<(), ServerError> {
        postgres_query(&self.standby, "SELECT pg_promote(wait => false)")?;
        until("the standby is promoted", LIMIT, || expect(&self.standby, "SELECT pg_is_in_recovery()", "f"))
    }
}

/// What the standby calls itself.
const NAME: &str = "standby";

/// Whether it is sent all as it comes, and is waited for where the setup says so.
const STREAMS: &str = "SELECT coalesce(bool_or(state = 'streaming' AND (sync_state = 'sync' OR \
     current_setting('synchronous_standby_names') = '')), false) FROM pg_stat_replication";

fn expect(server: &Server, sql: &str, wanted: &str) -> Result<(), String> {
    match postgres_query(server, sql) {
        Ok(answer) if answer == wanted => Ok(()),
        Ok(answer) => Err(format!("`{answer}` instead of `{wanted}`")),
        Err(error) => Err(error.to_string()),
    }
}
