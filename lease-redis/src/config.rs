//! What a URL says, before anything is sent.

use lease_core::{ConnectOptions, LeaseError, StoreUrl};
use std::fmt;
use std::path::PathBuf;

/// How to connect to one Redis.
///
/// ```no_run
/// # use lease_redis::RedisConfig;
/// let mut config = RedisConfig::parse("redis://worker:secret@localhost:6379/2?namespace=billing")?;
/// config.options.epoch = 1;
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), lease_core::LeaseError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The options that every backend has.
    pub options: ConnectOptions,
    /// How many replicas have to confirm each grant, 0 for none. URL parameter `wait_replicas`; default 0. For leases only.
    pub wait_replicas: u32,
    pub(crate) client: Client,
    pub(crate) tls: bool,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) address: String,
    /// Selected here and not by the client, so that the server's refusal is told apart from a way that broke.
    pub(crate) database: u8,
    /// For the clients: scheme `redis` or `rediss`, credentials, host, port, and nothing else.
    pub(crate) client_url: String,
}

/// Which client crate carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    RedisRs,
    Fred,
}

impl Client {
    /// The backend's name with this client.
    pub(crate) fn backend_name(self) -> &'static str {
        match self {
            Self::RedisRs => "redis",
            Self::Fred => "redis-fred",
        }
    }
}

/// This backend's own URL parameters.
const OWN: &[&str] = &["tls_ca", "wait_replicas"];

impl RedisConfig {
    /// Reads a URL: `redis://USER:PASSWORD@HOST:PORT/DATABASE`, with `rediss` for TLS and `+fred` for the client fred.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`], [`LeaseError::UnknownParameter`] or [`LeaseError::UnknownScheme`], each saying what to write instead.
    pub fn parse(url: &str) -> Result<Self, LeaseError> {
        let parsed = StoreUrl::parse(url, OWN)?;
        let (client, tls) = scheme(parsed.url.scheme())?;
        let tls_ca = parsed.own("tls_ca").map(PathBuf::from);
        if tls_ca.is_some() && !tls {
            return Err(invalid("`tls_ca` is for TLS; write the scheme as `rediss` or `rediss+fred`"));
        }
        if parsed.url.host_str().is_none_or(str::is_empty) {
            return Err(invalid("the URL has no host; write redis://HOST:PORT/"));
        }
        // redis-rs would read `#insecure` as "do not verify the certificate".
        if parsed.url.fragment().is_some() {
            return Err(invalid(
                "the URL has a fragment (`#…`), which nobody reads; remove it, and write `#` in a password as `%23`",
            ));
        }
        let wait_replicas = parsed.own("wait_replicas").map_or(Ok(0), wait_replicas)?;
        let database = database(parsed.url.path())?;
        let mut url = parsed.url.clone();
        url.set_path("");
        url.set_scheme(if tls { "rediss" } else { "redis" }).map_err(|()| invalid("the scheme cannot be read"))?;
        Ok(Self {
            client,
            tls,
            tls_ca,
            wait_replicas,
            address: parsed.address(),
            database,
            client_url: url.to_string(),
            options: parsed.options,
        })
    }

    /// The certificates that TLS trusts, as PEM; `None` for those of the system.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn ca_pem(&self) -> Result<Option<Vec<u8>>, LeaseError> {
        self.tls_ca.as_deref().map(read_ca).transpose()
    }
}

#[cfg(feature = "tls-rustls")]
fn read_ca(path: &std::path::Path) -> Result<Vec<u8>, LeaseError> {
    std::fs::read(path).map_err(|e| invalid(&format!("`tls_ca` names {}: {e}", path.display())))
}

fn scheme(scheme: &str) -> Result<(Client, bool), LeaseError> {
    let (client, tls) = match scheme {
        "redis" => (Client::RedisRs, false),
        "rediss" => (Client::RedisRs, true),
        "redis+fred" => (Client::Fred, false),
        "rediss+fred" => (Client::Fred, true),
        _ => {
            return Err(unknown(scheme, "known here: redis, rediss, redis+fred, rediss+fred"));
        }
    };
    if client == Client::RedisRs && cfg!(not(feature = "client-redis")) {
        return Err(unknown(scheme, "compiled out; build lease-redis with the feature `client-redis`"));
    }
    if client == Client::Fred && cfg!(not(feature = "client-fred")) {
        return Err(unknown(scheme, "compiled out; build lease-redis with the feature `client-fred`"));
    }
    if tls && cfg!(not(feature = "tls-rustls")) {
        return Err(invalid(&format!(
            "`{scheme}` needs TLS, which is compiled out; build with the feature `tls-rustls`"
        )));
    }
    Ok((client, tls))
}

/// The database that the path names, 0 when it names none.
fn database(path: &str) -> Result<u8, LeaseError> {
    match path.strip_prefix('/').unwrap_or(path) {
        "" => Ok(0),
        text => {
            text.parse::<u8>().ok().filter(|number| number.to_string() == text).ok_or_else(|| {
                invalid(&format!("the path `{path}` is no database number; write /0 to /255, or nothing"))
            })
        }
    }
}

/// More than a primary has replicas is no mistake here: they may come.
fn wait_replicas(text: &str) -> Result<u32, LeaseError> {
    let number = text.parse::<u32>().ok().filter(|number| *number <= MOST_REPLICAS);
    number.ok_or_else(|| {
        invalid(&format!("URL parameter `wait_replicas` is `{text}`; give a whole number from 0 to {MOST_REPLICAS}"))
    })
}

const MOST_REPLICAS: u32 = 100;

fn invalid(reason: &str) -> LeaseError {
    LeaseError::InvalidConfig { reason: reason.into() }
}

fn unknown(scheme: &str, advice: &str) -> LeaseError {
    LeaseError::UnknownScheme { scheme: scheme.into(), advice: advice.into() }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("address", &self.address)
            .field("client", &self.client)
            .field("tls", &self.tls)
            .field("tls_ca", &self.tls_ca)
            .field("wait_replicas", &self.wait_replicas)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "client-redis")]
    #[test]
    fn bad_urls_say_what_to_write_and_keep_the_secret() {
        let cases: &[(&str, &str)] = &[
            ("redis:///?x=1", "known here"),
            ("redis://u:s3cret@h/?namespce=a", "namespace"),
            ("redis://u:s3cret@h/abc", "/255"),
            ("redis://u:s3cret@h/300", "/255"),
            ("redis://u:s3cret@h/01", "/255"),
            ("redis://u:s3cret@h/#insecure", "remove it"),
            ("redis-cluster://u:s3cret@h/", "rediss+fred"),
            ("redis://u:s3cret@h/?tls_ca=/x", "rediss"),
            ("redis://u:s3cret@h/?wait_replicas=-1", "from 0 to 100"),
            ("redis://u:s3cret@h/?wait_replicas=101", "from 0 to 100"),
            ("redis:///", "no host"),
        ];
        for (url, says) in cases {
            let error = RedisConfig::parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(says), "{url}: {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn tls_that_is_compiled_out_is_named() {
        #[cfg(feature = "client-redis")]
        assert!(RedisConfig::parse("rediss://h/").unwrap_err().to_string().contains("`tls-rustls`"));
        #[cfg(feature = "client-fred")]
        assert!(RedisConfig::parse("rediss+fred://h/").unwrap_err().to_string().contains("`tls-rustls`"));
    }

    #[cfg(not(all(feature = "client-redis", feature = "client-fred")))]
    #[test]
    fn a_client_that_is_compiled_out_is_named() {
        #[cfg(not(feature = "client-redis"))]
        assert!(RedisConfig::parse("redis://h/").unwrap_err().to_string().contains("`client-redis`"));
        #[cfg(not(feature = "client-fred"))]
        assert!(RedisConfig::parse("redis+fred://h/").unwrap_err().to_string().contains("`client-fred`"));
    }

    #[cfg(feature = "client-redis")]
    #[test]
    fn the_client_gets_only_what_it_may_read() {
        let config = RedisConfig::parse("redis://u:p%40w@h:1/3?namespace=a&epoch=2").unwrap();
        assert_eq!(config.client_url, "redis://u:p%40w@h:1");
        assert_eq!(config.database, 3);
        assert_eq!(config.address, "redis://h:1/3");
        assert!(!format!("{config:?}").contains("p%40w"));
    }
}
