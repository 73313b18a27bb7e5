//! The token on its way from the layer to the guard in the handler's transaction.

use http::Extensions;
use lease_core::FencingToken;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::info;

/// A token that a request presented. **It was admitted by the layer, which fences nothing**: the process may be paused right here, while
/// a newer holder's request passes.
///
/// Give it to the guard of the transaction that writes, with [`into_guard`](Self::into_guard). The check there, in the same atomic step as
/// the write, is what refuses a stale worker. A handler that answers with success (any status below 400) and has not done so has its
/// answer replaced by 500 `token-unused`, so that the first request shows that it was forgotten.
#[derive(Debug)]
#[must_use = "the layer alone is admission, not fencing: give the token to the guard of the transaction that writes"]
pub struct PresentedToken {
    token: FencingToken,
    used: Used,
}

impl PresentedToken {
    /// Takes the token out of the request's extensions, where [`RequireToken`](crate::RequireToken) has put it.
    ///
    /// # Errors
    /// [`NotPresented`] when the layer is not on this route, or the token was taken before.
    pub fn take(extensions: &mut Extensions) -> Result<Self, NotPresented> {
        let Admitted { token, used } = extensions.remove().ok_or(NotPresented)?;
        Ok(Self { token, used })
    }

    /// The token, for the guard of the transaction that writes: `SqliteGuard::begin`, `PostgresGuard::admit`, a guarded destination's `seal`
    /// and `write`, and so on. It names no resource: give it to the guard of the one that the handler writes.
    ///
    /// Call it before a task is spawned for the work, not inside of it: the layer asks when the handler answers.
    #[must_use = "the layer alone is admission, not fencing: give the token to the guard of the transaction that writes"]
    pub fn into_guard(self) -> FencingToken {
        self.used.note();
        self.token
    }

    /// Declares that this request's work needs no guard: it only reads, or something else keeps a stale write out. The reason is for whoever reads
    /// the logs.
    pub fn into_unguarded(self, reason: &'static str) {
        info!(target: "leasehold", event = "request_unguarded", token = %self.token, reason);
        self.used.note();
    }
}

/// The handler asked for a token that no layer has put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPresented;

impl fmt::Display for NotPresented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no fencing token was left in the request: put `RequireTokenLayer` on this route, and take the token once",
        )
    }
}

impl std::error::Error for NotPresented {}

/// What lies in the extensions until the handler takes it. Extensions have to be `Clone`, and a [`PresentedToken`] must not be.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    token: FencingToken,
    used: Used,
}

impl Admitted {
    pub(crate) fn new(token: FencingToken) -> Self {
        Self { token, used: Used::default() }
    }

    pub(crate) fn used(&self) -> Used {
        self.used.clone()
    }
}

/// Whether a guard was given the token; shared by all copies of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used(Arc<AtomicBool>);

impl Used {
    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_once() {
        let mut extensions = Extensions::new();
        assert_eq!(PresentedToken::take(&mut extensions).unwrap_err(), NotPresented);
        let token: FencingToken = "41.00000000000000aa.a".parse().unwrap();
        let admitted = Admitted::new(token.clone());
        let used = admitted.used();
        extensions.insert(admitted);
        let presented = PresentedToken::take(&mut extensions).unwrap();
        assert!(PresentedToken::take(&mut extensions).is_err());
        assert!(!used.is_noted(), "taken, and given to nobody yet");
        assert_eq!(presented.into_guard(), token);
        assert!(used.is_noted());
    }
}
