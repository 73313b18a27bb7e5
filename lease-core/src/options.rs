//! What every backend's URL and configuration have in common.

use crate::{Authority, LeaseError, Namespace, SharedClock, SystemClock};
use std::fmt;
use std::time::Duration;
use url::Url;

/// Options that every backend has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Keeps this application's records apart. URL parameter `namespace`.
    pub namespace: Namespace,
    /// How long one call may take. URL parameter `call_timeout_ms`, 1 to 3,600,000; default 2,000.
    pub call_timeout: Duration,
    /// How long connecting may take. URL parameter `connect_timeout_ms`, 1 to 3,600,000; default 5,000.
    pub connect_timeout: Duration,
    /// The operator's epoch: raise it after the store was restored from a backup, so that its tokens get a new authority.
    /// URL parameter `epoch`; default 0.
    pub epoch: u32,
    /// How long a resource must be idle before what it left behind may be removed. URL parameter `idle_retention_ms`;
    /// default 24 hours. A server clock that is set back by more than this can let a forgotten resource's token go back.
    ///
    /// It may be shorter than a TTL: what safety needs is kept apart from it. An attempt that was abandoned, handed over, broken by force, or released
    /// while a request of it may still have been on its way makes no grant, as it is remembered for two granted TTLs, at least ten seconds, whatever is
    /// said here. What goes early is the *reason*: a holder that asks more than this after its grant has ended is told that its record is gone, not
    /// that it was released, forced or expired. Two TTLs or more keep the reasons for those who ask late.
    pub idle_retention: Duration,
    /// The clock of deadlines. Not in the URL.
    pub clock: SharedClock,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            call_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            epoch: 0,
            idle_retention: Duration::from_hours(24),
            clock: SystemClock::shared(),
        }
    }
}

impl ConnectOptions {
    /// The URL parameters that every backend knows.
    pub const PARAMETERS: &'static [&'static str] =
        &["namespace", "call_timeout_ms", "connect_timeout_ms", "epoch", "idle_retention_ms"];

    /// The authority of a store whose history is `incarnation`, under this epoch.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when the store's incarnation was damaged.
    pub fn authority(&self, kind: &str, incarnation: &str) -> Result<Authority, LeaseError> {
        Authority::of_store(kind, incarnation, self.epoch)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), LeaseError> {
        match name {
            "namespace" => self.namespace = Namespace::parse(value)?,
            "call_timeout_ms" => self.call_timeout = millis(name, value, 1, 3_600_000)?,
            "connect_timeout_ms" => self.connect_timeout = millis(name, value, 1, 3_600_000)?,
            "idle_retention_ms" => self.idle_retention = millis(name, value, 1, 100 * 365 * 24 * 3_600_000)?,
            "epoch" => {
                self.epoch = number(name, value, 0, u64::from(u32::MAX))?.try_into().unwrap_or(u32::MAX);
            }
            _ => {}
        }
        Ok(())
    }
}

fn millis(name: &str, value: &str, min: u64, max: u64) -> Result<Duration, LeaseError> {
    number(name, value, min, max).map(Duration::from_millis)
}

fn number(name: &str, value: &str, min: u64, max: u64) -> Result<u64, LeaseError> {
    match value.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(LeaseError::InvalidConfig {
            reason: format!("URL parameter `{name}` is `{value}`; give a whole number from {min} to {max}"),
        }),
    }
}

/// A store's URL, taken apart: the common options, the backend's own parameters, and the rest for the client.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreUrl {
    /// The URL without any of the parameters.
    pub url: Url,
    /// The common options.
    pub options: ConnectOptions,
    /// The backend's own parameters, in order.
    pub own: Vec<(String, String)>,
}

/// By hand: a `Url` prints its password.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl")
            .field("address", &self.address())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A password with a bare `/`, `?` or `#` ends the host too early: what follows it would be taken for a path or a parameter, and printed.
fn check_password(url: &Url) -> Result<(), LeaseError> {
    let has_login = !url.username().is_empty() || url.password().is_some();
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    let rest = [Some(url.path()), url.query(), url.fragment()];
    if has_host && !has_login && rest.into_iter().flatten().any(|part| part.contains('@')) {
        return Err(LeaseError::InvalidConfig {
            reason:
                "there is an `@` behind the host; in a user or password write `/` as %2F, `?` as %3F and `#` as %23, \
                     elsewhere write `@` as %40"
                    .into(),
        });
    }
    Ok(())
}

impl StoreUrl {
    /// Takes `text` apart. `own` names the parameters that the backend knows besides the common ones.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when it is no URL or a value is wrong, [`LeaseError::UnknownParameter`] with the list of the known
    /// ones. The text of the URL, which may carry a password, is never in the message.
    pub fn parse(text: &str, own: &[&'static str]) -> Result<Self, LeaseError> {
        let mut url = Url::parse(text).map_err(|e| LeaseError::InvalidConfig {
            reason: format!("not a URL ({e}); write it as SCHEME://USER:PASSWORD@HOST:PORT/…"),
        })?;
        check_password(&url)?;
        let mut options = ConnectOptions::default();
        let mut rest = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (name, value) in url.query_pairs() {
            if !seen.insert(name.to_string()) {
                return Err(LeaseError::InvalidConfig { reason: format!("URL parameter `{name}` is given twice") });
            }
            if ConnectOptions::PARAMETERS.contains(&&*name) {
                options.set(&name, &value)?;
            } else if own.contains(&&*name) {
                rest.push((name.into_owned(), value.into_owned()));
            } else {
                let known = ConnectOptions::PARAMETERS.iter().chain(own).copied().collect();
                return Err(LeaseError::UnknownParameter { name: name.into_owned(), known });
            }
        }
        url.set_query(None);
        Ok(Self { url, options, own: rest })
    }

    /// The value of one of the backend's own parameters.
    #[must_use]
    pub fn own(&self, name: &str) -> Option<&str> {
        self.own.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The address for people: scheme, host, port and path, without credentials.
    #[must_use]
    pub fn address(&self) -> String {
        redact_url(self.url.as_str())
    }
}

/// A URL for people: without user, password, parameters and fragment. Text that is no URL becomes a placeholder.
#[must_use]
pub fn redact_url(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        return "(not a URL)".into();
    };
    // These fail for URLs that cannot have credentials, such as `memory:`; then there are none to take out.
    let cleared = url.set_username("").is_ok() && url.set_password(None).is_ok();
    if !cleared && (!url.username().is_empty() || url.password().is_some()) {
        return "(a URL whose credentials cannot be taken out)".into();
    }
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_url_apart() {
        let url = "redis://user:s3cret@localhost:6379/2?namespace=billing&call_timeout_ms=150&db_mode=x";
        let parsed = StoreUrl::parse(url, &["db_mode"]).unwrap();
        assert_eq!(parsed.options.namespace.as_str(), "billing");
        assert_eq!(parsed.options.call_timeout, Duration::from_millis(150));
        assert_eq!(parsed.own("db_mode"), Some("x"));
        assert_eq!(parsed.address(), "redis://localhost:6379/2");
        assert_eq!(parsed.url.as_str(), "redis://user:s3cret@localhost:6379/2");
    }

    #[test]
    fn bad_input_says_what_to_write_and_keeps_the_secret() {
        for (url, says) in [
            ("not a url s3cret", "SCHEME://"),
            ("redis://u:s3cret@h/?nmespace=a", "namespace, call_timeout_ms"),
            ("redis://u:s3cret@h/?call_timeout_ms=0", "from 1 to 3600000"),
            ("redis://u:s3cret@h/?namespace=Not%20Good", "a-z"),
            ("redis://u:s3cret@h/?epoch=1&epoch=2", "twice"),
            ("redis://u:12/s3cret@h/1", "%2F"),
            ("redis://u:/s3cret@h", "%2F"),
            ("redis://u:12?s3cret@h/1", "%3F"),
            ("redis://u:?epoch=s3cret@h", "%3F"),
            ("redis://u:12#s3cret@h", "%23"),
        ] {
            let message = StoreUrl::parse(url, &[]).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
        let url = StoreUrl::parse("redis://u:s3cret@h/1?tls_ca=/a@b", &["tls_ca"]).unwrap();
        assert!(!format!("{url:?}").contains("s3cret"));
        assert!(StoreUrl::parse("sqlite:///home/a@b/leases.db", &[]).is_ok());
        assert!(!redact_url("redis://u:s3cret@h/?password=s3cret").contains("s3cret"));
    }
}
