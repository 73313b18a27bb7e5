//! The URL and what it says.

use crate::keys;
use lease_core::{ConnectOptions, LeaseError, StoreUrl};
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use std::fmt;
use std::time::Duration;

/// The URL parameters of this backend, besides the common ones.
const PARAMETERS: &[&str] = &["sslmode", "sslrootcert", "max_connections", "set_up"];

/// The most that `max_connections` can be.
const MAX_CONNECTIONS: u16 = 1_000;

/// Whether missing tables are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetUp {
    /// Creates the schema and its tables where they are missing, which needs an account that may. The default.
    #[default]
    IfMissing,
    /// Creates nothing: somebody ran the migration before.
    Never,
}

/// How to connect to PostgreSQL.
///
/// Made from a URL by [`parse`](Self::parse); the public fields can be changed afterwards.
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// What every backend has: namespace, limits, epoch, retention, clock.
    pub options: ConnectOptions,
    /// The most connections that this instance opens; 1 to 1,000, default 8. URL parameter `max_connections`.
    pub max_connections: u16,
    /// Whether missing tables are created. URL parameter `set_up`: `if_missing` (default) or `never`.
    pub set_up: SetUp,
    client: PgConnectOptions,
    address: String,
}

impl PostgresConfig {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS` (or `postgresql://`).
    ///
    /// User, password, host, port and database that the URL leaves out are taken as every PostgreSQL client does: from `PGUSER`, `PGDATABASE`
    /// and the like, and a missing password from `~/.pgpass`. `PGSSLMODE` is not: TLS is as the URL says.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`], [`LeaseError::UnknownParameter`], [`LeaseError::UnknownScheme`] or
    /// [`LeaseError::InvalidName`], each before any I/O and without the text of the URL, which may carry a password.
    pub fn parse(url: &str) -> Result<Self, LeaseError> {
        let parsed = StoreUrl::parse(url, PARAMETERS)?;
        if !matches!(parsed.url.scheme(), "postgres" | "postgresql") {
            return Err(LeaseError::UnknownScheme {
                scheme: parsed.url.scheme().into(),
                advice: "this is the PostgreSQL backend; write postgres:// or postgresql://".into(),
            });
        }
        // The client's own message could quote the URL.
        let client = PgConnectOptions::from_url(&parsed.url).map_err(|_| LeaseError::InvalidConfig {
            reason: "user, password and database must be percent-encoded UTF-8".into(),
        })?;
        let client = with_tls(client, &parsed)?;
        let config = Self {
            max_connections: max_connections(parsed.own("max_connections")),
            set_up: set_up(parsed.own("set_up"))?,
            address: parsed.address(),
            options: parsed.options,
            client: client.disable_statement_logging(),
        };
        config.check()?;
        Ok(config)
    }

    /// Looks at what can be changed after [`parse`](Self::parse), too.
    pub(crate) fn check(&self) -> Result<(), LeaseError> {
        keys::check_namespace(&self.options.namespace)?;
        if (1..=MAX_CONNECTIONS).contains(&self.max_connections) {
            Ok(())
        } else {
            Err(invalid(format!("`max_connections`: give a whole number from 1 to {MAX_CONNECTIONS}")))
        }
    }

    /// The address without credentials.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The client's options with the session settings that this crate's promises rest on.
    pub(crate) fn client(&self) -> PgConnectOptions {
        let ms = |limit: Duration| limit.as_millis().max(1).to_string();
        self.client.clone().application_name("leasehold").options([
            // Whatever the server's or the role's default is: a grant that was answered must not be lost by a crash.
            ("synchronous_commit", "on".to_owned()),
            // One statement is one transaction here, and each decides on the latest version of a row.
            ("default_transaction_isolation", "read committed".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            ("search_path", "pg_catalog".to_owned()),
            ("lock_timeout", ms(self.lock_timeout())),
            ("statement_timeout", ms(self.statement_timeout())),
            // A client that stops inside one of this crate's few transactions can't block others for longer.
            ("idle_in_transaction_session_timeout", ms(self.options.call_timeout)),
        ])
    }

    /// How long a statement waits for a lock: a quarter of a call.
    pub(crate) fn lock_timeout(&self) -> Duration {
        self.options.call_timeout.checked_div(4).unwrap_or_default()
    }

    /// How long a statement runs on the server: half of a call, so that the server's definite answer comes before the
    /// client's own limit.
    fn statement_timeout(&self) -> Duration {
        self.options.call_timeout.checked_div(2).unwrap_or_default()
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("address", &self.address)
            .field("options", &self.options)
            .field("max_connections", &self.max_connections)
            .field("set_up", &self.set_up)
            .finish_non_exhaustive()
    }
}

fn invalid(reason: impl Into<String>) -> LeaseError {
    LeaseError::InvalidConfig { reason: reason.into() }
}

/// The range is that of [`PostgresConfig::check`]; what is no number is out of it.
fn max_connections(text: Option<&str>) -> u16 {
    text.map_or(8, |text| text.parse().unwrap_or(0))
}

fn set_up(text: Option<&str>) -> Result<SetUp, LeaseError> {
    match text {
        None | Some("if_missing") => Ok(SetUp::IfMissing),
        Some("never") => Ok(SetUp::Never),
        Some(_) => Err(invalid("URL parameter `set_up`: give `if_missing` or `never`")),
    }
}

/// TLS as the URL says. Without the feature the client would silently go on in plain text, so anything else is refused.
fn with_tls(client: PgConnectOptions, url: &StoreUrl) -> Result<PgConnectOptions, LeaseError> {
    let mode = match url.own("sslmode") {
        Some(text) => text.parse::<PgSslMode>().map_err(|_| {
            invalid("URL parameter `sslmode`: give disable, allow, prefer, require, verify-ca or verify-full")
        })?,
        None if cfg!(feature = "tls-rustls") => PgSslMode::Prefer,
        None => PgSslMode::Disable,
    };
    let wants_tls = !matches!(mode, PgSslMode::Disable);
    if wants_tls && !cfg!(feature = "tls-rustls") {
        return Err(invalid("URL parameter `sslmode`: TLS is compiled out; turn the feature `tls-rustls` on"));
    }
    let client = client.ssl_mode(mode);
    Ok(match url.own("sslrootcert") {
        Some(_) if !wants_tls => {
            return Err(invalid("URL parameter `sslrootcert` needs `sslmode=verify-ca` or `verify-full`"));
        }
        Some(path) => client.ssl_root_cert(path),
        None => client,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_urls_say_what_to_write_and_keep_the_password() {
        for (url, says) in [
            ("redis://u:s3cret@h/", "postgres://"),
            ("postgres://u:s3cret@h/db?max_connections=0", "from 1 to 1000"),
            ("postgres://u:s3cret@h/db?set_up=always", "`if_missing` or `never`"),
            ("postgres://u:s3cret@h/db?sslmode=maybe", "verify-full"),
            ("postgres://u:s3cret@h/db?sslrootcert=/ca.pem&sslmode=disable", "verify-ca"),
            ("postgres://u:s3cret@h/db?namespace=pg_x", "keeps this name"),
            ("postgres://u:s3cret@h/db?user=x", "known here"),
        ] {
            let message = PostgresConfig::parse(url).unwrap_err().to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
        let config = PostgresConfig::parse("postgresql://u:s3cret@h:5433/db?max_connections=3&set_up=never").unwrap();
        assert_eq!((config.max_connections, config.set_up), (3, SetUp::Never));
        assert!(!format!("{config:?}").contains("s3cret"));

        let mut changed = config.clone();
        changed.max_connections = 0;
        assert!(changed.check().unwrap_err().to_string().contains("from 1 to 1000"));
        let mut changed = config;
        changed.options.namespace = lease_core::Namespace::parse("pg_x").unwrap();
        assert!(changed.check().is_err());
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn tls_that_is_compiled_out_is_refused() {
        for mode in ["allow", "prefer", "require", "verify-ca", "verify-full"] {
            let error = PostgresConfig::parse(&format!("postgres://h/db?sslmode={mode}")).unwrap_err();
            assert!(error.to_string().contains("tls-rustls"), "{error}");
        }
    }
}
