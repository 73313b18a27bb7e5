//! A TCP proxy before a server, as a path that can be disturbed.

use crate::faults::{FaultBench, FaultyPath, OnceFault};
use lease_core::{LeaseBackend, LeaseError};
use lease_servers::{Mode, Once, Proxy};
use std::sync::Arc;
use std::time::Duration;

/// Clients behind a proxy of their own.
#[derive(Debug)]
pub(crate) struct ProxyBench {
    proxy: Proxy,
    url: String,
}

impl ProxyBench {
    /// Starts a proxy before the server of `url`, which must be on this machine.
    pub(crate) fn before(url: &str, call_timeout: Duration) -> Result<Arc<dyn FaultBench>, String> {
        let parts = Parts::of(url)?;
        let proxy = Proxy::to(parts.port).map_err(|error| error.to_string())?;
        let url = with_call_timeout(&parts.through(proxy.port()), call_timeout);
        Ok(Arc::new(Self { proxy, url }))
    }
}

#[async_trait::async_trait]
impl FaultBench for ProxyBench {
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        leasehold::connect(&self.url).await
    }

    fn worker_url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn path(&self) -> &dyn FaultyPath {
        &self.proxy
    }
}

impl FaultyPath for Proxy {
    fn kind(&self) -> &'static str {
        "tcp proxy"
    }

    fn once_after(&self, passed: u32, fault: OnceFault) {
        let fault = match fault {
            OnceFault::RequestLost => Once::CutBeforeRequest,
            OnceFault::ReplyLost => Once::CutBeforeReply,
            OnceFault::ReplySwallowed => Once::SwallowReply,
            OnceFault::RequestHeld => Once::HoldRequest,
            OnceFault::ReplyHeld => Once::HoldReply,
        };
        Proxy::once_after(self, passed, fault);
    }

    fn happened(&self) -> bool {
        Proxy::happened(self)
    }

    fn black_hole(&self, on: bool) {
        if on {
            self.set_both(Mode::Hole);
        } else {
            Proxy::cut(self);
            self.set_both(Mode::Pass);
        }
    }

    fn cut(&self) {
        Proxy::cut(self);
    }

    fn refuse(&self, on: bool) {
        Proxy::refuse(self, on);
    }

    fn deliver(&self) {
        Proxy::deliver(self);
    }

    fn heal(&self) {
        // No connection goes on with a hole in its stream.
        if self.swallows() {
            Proxy::cut(self);
        }
        Proxy::heal(self);
    }

    fn counts(&self) -> (u64, u64) {
        Proxy::counts(self)
    }
}

/// A URL around its port.
#[derive(Debug)]
struct Parts<'a> {
    before: &'a str,
    port: u16,
    after: &'a str,
}

impl<'a> Parts<'a> {
    /// Takes the URL of a server on this machine apart.
    fn of(url: &'a str) -> Result<Self, String> {
        let unfit = "a path that can be disturbed needs a server at 127.0.0.1:PORT or localhost:PORT";
        let (_, rest) = url.split_once("://").ok_or(unfit)?;
        if url.contains("endpoints=") {
            return Err(format!("{unfit}, and one only"));
        }
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        let (name, port) = host.rsplit_once(':').ok_or(unfit)?;
        if !["127.0.0.1", "localhost"].contains(&name) {
            return Err(unfit.to_owned());
        }
        // Only the path is left behind the authority.
        let after = rest.get(authority.len()..).unwrap_or_default();
        let end = url.len().saturating_sub(after.len()).saturating_sub(port.len());
        let before = url.get(..end).unwrap_or_default();
        Ok(Self { before, port: port.parse().map_err(|_| unfit)?, after })
    }

    fn through(&self, port: u16) -> String {
        format!("{}{port}{}", self.before, self.after)
    }
}

/// The same URL with this `call_timeout_ms`.
fn with_call_timeout(url: &str, call_timeout: Duration) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let own = format!("call_timeout_ms={}", call_timeout.as_millis());
    let kept = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("call_timeout_ms="));
    let query: Vec<&str> = kept.chain([own.as_str()]).collect();
    format!("{base}?{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_port_and_the_limit_change() {
        for (url, through) in [
            ("redis://127.0.0.1:6/", "redis://127.0.0.1:7/"),
            ("redis+fred://:p%40@localhost:6/?namespace=a", "redis+fred://:p%40@localhost:7/?namespace=a"),
            ("postgres://u:6@127.0.0.1:6/db?epoch=6", "postgres://u:6@127.0.0.1:7/db?epoch=6"),
            ("etcd://127.0.0.1:6", "etcd://127.0.0.1:7"),
        ] {
            let parts = Parts::of(url).unwrap();
            assert_eq!((parts.port, parts.through(7).as_str()), (6, through));
        }
        for url in ["redis://h:6/", "sqlite:/a", "redis://127.0.0.1/", "etcd://127.0.0.1:1?endpoints=127.0.0.1:2"] {
            assert!(Parts::of(url).unwrap_err().contains("127.0.0.1:PORT"), "{url}");
        }
        let limit = Duration::from_millis(250);
        assert_eq!(with_call_timeout("a://b", limit), "a://b?call_timeout_ms=250");
        assert_eq!(with_call_timeout("a://b/?x=1&call_timeout_ms=9&y=2", limit), "a://b/?x=1&y=2&call_timeout_ms=250");
    }
}
