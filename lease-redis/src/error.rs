//! From what the server or the client said to [`LeaseError`], with the right effect.

use crate::link::{Call, LinkError, ServerReply};
use lease_core::{Advice, Effect, LeaseError, Operation, ResourceName};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a request gave no answer to use.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The server answered with an error.
    Server(ServerReply),
    /// There is no answer.
    Failed(LeaseError),
}

impl CallError {
    /// The error for the caller. `resource` is what the call was about, if it was about one.
    pub(crate) fn into_lease(self, call: &Call<'_>, resource: Option<&ResourceName>) -> LeaseError {
        match self {
            Self::Failed(error) => error,
            Self::Server(reply) => refused(reply, call, resource),
        }
    }
}

/// What the least-privileged account needs; also in the crate docs, and tested.
pub(crate) const ACL_ADVICE: &str = "as an administrator: ACL SETUSER NAME +eval +evalsha +get +mget +set +time +hget +hset +info +config|get +ping ~NAMESPACE:* \
    (for a database other than 0 also +select, for wait_replicas +wait, for purge +scan +unlink)";

/// The scripts read and check before their first write, and the server checks privileges, memory and role before it lets the first write
/// pass, so an error that it answers with means that nothing was done.
fn refused(reply: ServerReply, call: &Call<'_>, resource: Option<&ResourceName>) -> LeaseError {
    let operation = call.operation();
    let reason = reply.to_string();
    if reply.says("WRONGTYPE") {
        return match resource {
            Some(resource) => foreign(resource, "it is of another type"),
            None => LeaseError::NotSetUp {
                reason,
                advice: "a key of this namespace is used by something else; choose another namespace".into(),
                source: Some(Box::new(reply)),
            },
        };
    }
    if reply.is_login() {
        return crate::link::login_refused(call.address(), reason, Some(Box::new(reply)));
    }
    if is_for_lack_of_privilege(&reply) {
        return missing_privilege(operation, reply);
    }
    let advice = if passes(&reply) { Advice::TryAgain } else { Advice::Fix };
    LeaseError::Store { operation, reason, effect: Effect::None, advice, source: Some(Box::new(reply)) }
}

fn passes(reply: &ServerReply) -> bool {
    ["LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY", "OOM", "MISCONF", "TRYAGAIN", "CLUSTERDOWN"]
        .iter()
        .any(|code| reply.says(code))
}

fn is_for_lack_of_privilege(reply: &ServerReply) -> bool {
    reply.says("NOPERM") || reply.says("ACL failure") || reply.says("can't run this command")
}

fn missing_privilege(operation: Operation, reply: ServerReply) -> LeaseError {
    LeaseError::MissingPrivilege {
        operation,
        reason: reply.to_string(),
        advice: ACL_ADVICE.into(),
        source: Some(Box::new(reply)),
    }
}

/// Why the server did not select the database that the URL names.
pub(crate) fn no_database(number: &str, reply: ServerReply) -> LeaseError {
    let operation = Operation::Connect;
    if is_for_lack_of_privilege(&reply) {
        return missing_privilege(operation, reply);
    }
    let reason = format!("the server refused to select database {number}: {reply}");
    if passes(&reply) {
        let (effect, advice) = (Effect::None, Advice::TryAgain);
        return LeaseError::Store { operation, reason, effect, advice, source: Some(Box::new(reply)) };
    }
    LeaseError::NotSetUp {
        reason,
        advice: "write a number that it has in the URL's path: it has as many as its setting `databases` says, counted from 0".into(),
        source: Some(Box::new(reply)),
    }
}

/// The request left, and nothing came back.
pub(crate) fn lost(error: LinkError, operation: Operation, limit: Duration) -> LeaseError {
    let effect = match operation {
        Operation::Connect | Operation::Inspect | Operation::List | Operation::Read => Effect::None,
        _ => Effect::Unknown,
    };
    match error {
        LinkError::TimedOut => LeaseError::Timeout { operation, limit, effect },
        LinkError::Broken { reason, source } => LeaseError::Connection { operation, reason, effect, source },
        LinkError::Server(reply) => LeaseError::Store {
            operation,
            reason: reply.to_string(),
            effect,
            advice: Advice::Fix,
            source: Some(Box::new(reply)),
        },
    }
}

/// Why no connection could be made, for one of the calls that waited for it.
pub(crate) fn share(error: &Arc<LeaseError>) -> LeaseError {
    let source = || error.source().is_some().then(|| lease_core::Source::from(SharedSource(Arc::clone(error))));
    match &**error {
        LeaseError::LoginRefused { store, reason, .. } => {
            LeaseError::LoginRefused { store: store.clone(), reason: reason.clone(), source: source() }
        }
        LeaseError::Unreachable { store, reason, .. } => {
            LeaseError::Unreachable { store: store.clone(), reason: reason.clone(), source: source() }
        }
        LeaseError::NotSetUp { reason, advice, .. } => {
            LeaseError::NotSetUp { reason: reason.clone(), advice: advice.clone(), source: source() }
        }
        LeaseError::MissingPrivilege { operation, reason, advice, .. } => LeaseError::MissingPrivilege {
            operation: *operation,
            reason: reason.clone(),
            advice: advice.clone(),
            source: source(),
        },
        other => LeaseError::Store {
            operation: Operation::Connect,
            reason: other.to_string(),
            effect: Effect::None,
            advice: other.advice(),
            source: source(),
        },
    }
}

/// The source of an error that several calls share.
struct SharedSource(Arc<LeaseError>);

impl fmt::Debug for SharedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.source())
    }
}

impl fmt::Display for SharedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.source().map_or(Ok(()), |source| write!(f, "{source}"))
    }
}

impl Error for SharedSource {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source().and_then(Error::source)
    }
}

pub(crate) fn foreign(resource: &ResourceName, reason: &str) -> LeaseError {
    LeaseError::ForeignData { resource: resource.clone(), reason: reason.into() }
}

/// A script answered something that it never answers.
pub(crate) fn unexpected(operation: Operation) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "the script's answer cannot be read".into(),
        effect: Effect::Unknown,
        advice: Advice::Fix,
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_select_is_told_apart() {
        let refused = |text| no_database("3", ServerReply::new(text));
        assert!(matches!(refused("ERR DB index is out of range"), LeaseError::NotSetUp { .. }));
        assert!(matches!(refused("NOPERM this user has no permissions"), LeaseError::MissingPrivilege { .. }));
        let busy = refused("BUSY Redis is busy running a script");
        assert_eq!(
            (busy.effect(), busy.advice()),
            (Effect::None, Advice::TryAgain),
            "nobody has to set up anything: {busy}"
        );
    }
}
