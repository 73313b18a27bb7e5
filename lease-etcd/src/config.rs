//! The URL, taken apart.

use lease_core::{ConnectOptions, LeaseError, StoreUrl};
use std::fmt;

/// The port that etcd serves clients on unless told otherwise.
const DEFAULT_PORT: u16 = 2379;

/// The parameters of this backend's URL besides the common ones.
#[cfg(not(feature = "tls-rustls"))]
const PARAMETERS: &[&str] = &["endpoints"];
#[cfg(feature = "tls-rustls")]
const PARAMETERS: &[&str] = &["endpoints", "ca_file", "cert_file", "key_file"];

/// Where etcd is, who logs in, and the options that every backend has.
///
/// `Debug` leaves the password out.
#[derive(Clone)]
pub struct EtcdConfig {
    /// The common options. Change them before connecting.
    pub options: ConnectOptions,
    endpoints: Vec<String>,
    login: Option<(String, String)>,
    tls: bool,
    #[cfg(feature = "tls-rustls")]
    files: TlsFiles,
}

/// PEM files for TLS.
#[cfg(feature = "tls-rustls")]
#[derive(Clone, Debug, Default)]
struct TlsFiles {
    ca: Option<String>,
    identity: Option<(String, String)>,
}

impl EtcdConfig {
    /// Parses `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/][?PARAMETERS]`, or the same with `etcds://` for TLS.
    /// More members can also be given as `endpoints=HOST:PORT,HOST:PORT`. Nothing is sent.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`], [`LeaseError::UnknownParameter`] or [`LeaseError::UnknownScheme`], with what to write instead. The
    /// text of the URL, which may carry a password, is never in the message.
    pub fn parse(url: &str) -> Result<Self, LeaseError> {
        let (first, mut more) = split_hosts(url);
        let parsed = StoreUrl::parse(&first, PARAMETERS)?;
        let tls = is_tls(parsed.url.scheme())?;
        if !matches!(parsed.url.path(), "" | "/") || parsed.url.fragment().is_some() {
            return Err(invalid("etcd has no databases; leave the path and the fragment out"));
        }
        if let Some(listed) = parsed.own("endpoints") {
            more.extend(listed.split(',').map(str::to_owned));
        }
        let mut endpoints = vec![host_and_port(&parsed)?];
        for member in &more {
            let member = endpoint(member)?;
            if !endpoints.contains(&member) {
                endpoints.push(member);
            }
        }
        Ok(Self {
            login: login(&parsed)?,
            #[cfg(feature = "tls-rustls")]
            files: TlsFiles::of(&parsed, tls)?,
            options: parsed.options,
            endpoints,
            tls,
        })
    }

    /// The members that are asked, as `HOST:PORT`.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The address for people, without credentials.
    #[must_use]
    pub fn address(&self) -> String {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}", self.endpoints.join(","))
    }

    pub(crate) fn login(&self) -> Option<&(String, String)> {
        self.login.as_ref()
    }

    /// What TLS needs; `None` without TLS. Reads the files anew each time, so that a reconnect sees renewed certificates.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn tls(&self) -> Result<Option<etcd_client::TlsOptions>, LeaseError> {
        if !self.tls {
            return Ok(None);
        }
        let options = etcd_client::TlsOptions::new();
        let mut options = match &self.files.ca {
            Some(file) => options.ca_certificate(etcd_client::Certificate::from_pem(read_file(file)?)),
            None => options.with_enabled_roots(),
        };
        if let Some((cert, key)) = &self.files.identity {
            options = options.identity(etcd_client::Identity::from_pem(read_file(cert)?, read_file(key)?));
        }
        Ok(Some(options))
    }

    /// The endpoints as the client wants them.
    pub(crate) fn urls(&self) -> Vec<String> {
        let scheme = if self.tls { "https" } else { "http" };
        self.endpoints.iter().map(|e| format!("{scheme}://{e}")).collect()
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("address", &self.address())
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tls-rustls")]
impl TlsFiles {
    fn of(parsed: &StoreUrl, tls: bool) -> Result<Self, LeaseError> {
        let file = |name| parsed.own(name).map(str::to_owned);
        let (ca, cert, key) = (file("ca_file"), file("cert_file"), file("key_file"));
        if !tls && (ca.is_some() || cert.is_some() || key.is_some()) {
            return Err(invalid("ca_file, cert_file and key_file are for TLS; write etcds://"));
        }
        let identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => return Err(invalid("cert_file and key_file belong together; give both or none")),
        };
        Ok(Self { ca, identity })
    }
}

#[cfg(feature = "tls-rustls")]
fn read_file(path: &str) -> Result<Vec<u8>, LeaseError> {
    std::fs::read(path).map_err(|e| invalid(format!("cannot read the file {path}: {e}")))
}

fn invalid(reason: impl Into<String>) -> LeaseError {
    LeaseError::InvalidConfig { reason: reason.into() }
}

fn is_tls(scheme: &str) -> Result<bool, LeaseError> {
    let unknown =
        |advice: &str| Err(LeaseError::UnknownScheme { scheme: scheme.to_owned(), advice: advice.to_owned() });
    match scheme {
        "etcd" => Ok(false),
        "etcds" if cfg!(feature = "tls-rustls") => Ok(true),
        "etcds" => unknown("build with the feature `tls-rustls`"),
        _ => unknown("write etcd:// or, for TLS, etcds://"),
    }
}

/// Takes all hosts but the first out of the URL: a URL has only one, but an etcd cluster has several.
fn split_hosts(url: &str) -> (String, Vec<String>) {
    let Some((scheme, rest)) = url.split_once("://") else {
        return (url.to_owned(), Vec::new());
    };
    let (place, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // A password may have commas, a host has none.
    let (login, hosts) = place.split_at(place.rfind('@').map_or(0, |at| at.saturating_add(1)));
    let mut hosts = hosts.split(',');
    let first = hosts.next().unwrap_or_default();
    (format!("{scheme}://{login}{first}{tail}"), hosts.map(str::to_owned).collect())
}

fn host_and_port(parsed: &StoreUrl) -> Result<String, LeaseError> {
    match parsed.url.host_str() {
        None | Some("") => Err(invalid("the URL has no host; write etcd://HOST:PORT")),
        Some(host) => Ok(format!("{host}:{}", parsed.url.port().unwrap_or(DEFAULT_PORT))),
    }
}

fn endpoint(text: &str) -> Result<String, LeaseError> {
    let wrong = || invalid("an endpoint is not of the form HOST:PORT; write them as HOST:PORT,HOST:PORT");
    if text.is_empty() || text.contains(['/', '?', '#', '@', ' ']) {
        return Err(wrong());
    }
    let parsed = StoreUrl::parse(&format!("etcd://{text}"), &[]).map_err(|_| wrong())?;
    host_and_port(&parsed)
}

fn login(parsed: &StoreUrl) -> Result<Option<(String, String)>, LeaseError> {
    let encoded =
        |part: &str| decoded(part).ok_or_else(|| invalid("user or password is not well percent-encoded UTF-8"));
    match (parsed.url.username(), parsed.url.password()) {
        ("", None) => Ok(None),
        ("", Some(_)) => Err(invalid("the URL has a password but no user; write etcd://USER:PASSWORD@HOST:PORT")),
        (_, None) => Err(invalid("the URL has a user but no password; write etcd://USER:PASSWORD@HOST:PORT")),
        (user, Some(password)) => Ok(Some((encoded(user)?, encoded(password)?))),
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let [high, low, after @ ..] = tail else { return None };
            let pair = [*high, *low];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_hosts_login_and_options() {
        let url = "etcd://us%40er:p%2Cw,x@a:1,b,[::1]:3/?endpoints=c:4,a:1&namespace=billing";
        let config = EtcdConfig::parse(url).unwrap();
        assert_eq!(config.endpoints(), ["a:1", "b:2379", "[::1]:3", "c:4"]);
        assert_eq!(config.login(), Some(&("us@er".to_owned(), "p,w,x".to_owned())));
        assert_eq!(config.options.namespace.as_str(), "billing");
        assert_eq!(config.address(), "etcd://a:1,b:2379,[::1]:3,c:4");
        assert!(!format!("{config:?}").contains("p,w"));
    }

    #[test]
    fn bad_urls_say_what_to_write_and_keep_the_secret() {
        for (url, says) in [
            ("s3cret", "SCHEME://"),
            ("http://u:s3cret@h", "etcd://"),
            ("etcd://u:s3cret@h/db", "no databases"),
            ("etcd://u:s3cret@h?endpoints=a/b", "HOST:PORT"),
            ("etcd://u:s3cret@h,,b", "HOST:PORT"),
            ("etcd://u:s3cret@h?endpoint=a", "endpoints"),
            ("etcd://u@h", "USER:PASSWORD"),
            ("etcd://:s3cret@h", "USER:PASSWORD"),
            ("etcd://u:s3cret%zz@h", "percent"),
            ("etcd://u:s3cret@h:99999", "SCHEME://"),
            ("etcd:///", "HOST:PORT"),
        ] {
            let message = EtcdConfig::parse(url).unwrap_err().to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn tls_that_was_compiled_out_names_the_feature() {
        let message = EtcdConfig::parse("etcds://h").unwrap_err().to_string();
        assert!(message.contains("tls-rustls"), "{message}");
    }
}
