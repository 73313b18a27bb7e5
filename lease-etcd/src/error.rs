//! What the client's errors mean, and whether the request may have run.

use etcd_client::Error;
use lease_core::{Advice, Effect, LeaseError, Operation, Source};

/// What messages say of the store: never a credential.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: String,
    /// The prefix that the account has to be able to read and write.
    pub(crate) prefix: String,
}

/// Whether the request was certainly never sent: no connection could be made, or TLS refused it.
///
/// Only a status that the client made by itself has a source. The source's type is not public, but its `Debug` names it.
pub(crate) fn never_sent(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => {
            std::error::Error::source(status).is_some_and(|source| format!("{source:?}").contains("ConnectError("))
        }
        _ => false,
    }
}

/// Whether the server says that there is no such etcd lease: definite.
pub(crate) fn no_such_lease(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message() == "etcdserver: requested lease not found",
        // From `keep_alive`, whose first reply had no positive TTL.
        Error::LeaseKeepAliveError(text) => text == "lease not found",
        _ => false,
    }
}

/// Whether the server says that the etcd lease is there already: definite.
pub(crate) fn lease_exists(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == "etcdserver: lease already exists")
}

/// Whether the server refused the login of this connection because users or roles have changed since: definite, and a new login helps. The client
/// renews by itself only one that has run out.
pub(crate) fn login_outdated(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == "etcdserver: revision of auth store is old")
}

/// Whether the request was answered, so that nothing of it is still on its way, though it may have taken effect.
pub(crate) fn was_answered(error: &LeaseError) -> bool {
    error.effect() == Effect::None || matches!(error, LeaseError::Store { advice: Advice::Fix, .. })
}

/// Turns a client's error into ours. In doubt the effect is unknown, but for operations that only read.
pub(crate) fn of_call(operation: Operation, place: &Place, error: Error) -> LeaseError {
    if never_sent(&error) {
        return LeaseError::Unreachable {
            store: place.address.clone(),
            reason: text(&error),
            source: Some(boxed(error)),
        };
    }
    match &error {
        Error::GRpcStatus(status) => match answer(i32::from(status.code()), status.message()) {
            Answer::Login(advice) => LeaseError::LoginRefused {
                store: place.address.clone(),
                reason: format!("{}{advice}", status.message()),
                source: Some(boxed(error)),
            },
            Answer::Permission => LeaseError::MissingPrivilege {
                operation,
                reason: status.message().to_owned(),
                advice: format!(
                    "grant the account's role this prefix: etcdctl role grant-permission ROLE --prefix=true readwrite {}",
                    place.prefix
                ),
                source: Some(boxed(error)),
            },
            Answer::Refused(advice) => LeaseError::Store {
                operation,
                reason: status.message().to_owned(),
                effect: Effect::None,
                advice,
                source: Some(boxed(error)),
            },
            Answer::Doubtful(advice) => LeaseError::Store {
                operation,
                reason: status.message().to_owned(),
                effect: in_doubt(operation),
                advice,
                source: Some(boxed(error)),
            },
            Answer::Broken => broken(operation, error),
        },
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            LeaseError::InvalidConfig { reason: text(&error) }
        }
        _ => broken(operation, error),
    }
}

/// The effect of an operation that had no definite answer.
pub(crate) fn in_doubt(operation: Operation) -> Effect {
    match operation {
        Operation::Connect | Operation::Inspect | Operation::List | Operation::Read => Effect::None,
        _ => Effect::Unknown,
    }
}

/// The error for a reply stream that ended without a reply.
pub(crate) fn no_reply(operation: Operation) -> LeaseError {
    LeaseError::Connection {
        operation,
        reason: "the stream ended without a reply".into(),
        effect: in_doubt(operation),
        source: None,
    }
}

/// What kind of answer a status is.
enum Answer {
    Login(&'static str),
    Permission,
    /// Definite: nothing was done.
    Refused(Advice),
    /// The server answered, but does not say whether the request was, or will still be, done.
    Doubtful(Advice),
    /// No answer of etcd's: the way to it broke.
    Broken,
}

/// gRPC's codes by number, since the client does not make their names public.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

/// With these codes etcd says that it did nothing.
const DEFINITE: &[i32] = &[
    INVALID_ARGUMENT,
    NOT_FOUND,
    ALREADY_EXISTS,
    RESOURCE_EXHAUSTED,
    FAILED_PRECONDITION,
    OUT_OF_RANGE,
    UNIMPLEMENTED,
];

fn answer(code: i32, message: &str) -> Answer {
    match message {
        "etcdserver: authentication failed, invalid user ID or password" => Answer::Login(""),
        "etcdserver: user name is empty" => Answer::Login(" (the server demands a login)"),
        "etcdserver: authentication is not enabled" => Answer::Login(" on the server, so leave them out of it"),
        "etcdserver: too many requests" | "etcdserver: no leader" | "etcdserver: revision of auth store is old" => {
            Answer::Refused(Advice::TryAgain)
        }
        // A member whose space ran out between the request and its turn does it, and answers this all the same.
        "etcdserver: mvcc: database space exceeded" => Answer::Doubtful(Advice::Fix),
        // gRPC of the server says this before anybody sees the request.
        _ if code == RESOURCE_EXHAUSTED && message.starts_with("grpc: received message larger than max") => {
            Answer::Refused(Advice::Fix)
        }
        _ if !message.starts_with("etcdserver: ") => Answer::Broken,
        _ if code == UNAUTHENTICATED => Answer::Login(""),
        _ if code == PERMISSION_DENIED => Answer::Permission,
        _ if DEFINITE.contains(&code) => Answer::Refused(Advice::Fix),
        _ => Answer::Doubtful(Advice::TryAgain),
    }
}

fn broken(operation: Operation, error: Error) -> LeaseError {
    LeaseError::Connection { operation, reason: text(&error), effect: in_doubt(operation), source: Some(boxed(error)) }
}

fn boxed(error: Error) -> Source {
    Box::new(error)
}

/// The innermost reasons, which the client's own text leaves out.
fn text(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => chain(status.message(), std::error::Error::source(status)),
        other => other.to_string(),
    }
}

fn chain(first: &str, mut next: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut text = first.to_owned();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNAVAILABLE: i32 = 14;

    #[test]
    fn only_definite_answers_have_no_effect() {
        let refused = |code, message| matches!(answer(code, message), Answer::Refused(_));
        assert!(refused(INVALID_ARGUMENT, "etcdserver: request is too large"));
        let full = answer(RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Answer::Doubtful(Advice::Fix)));
        assert!(refused(UNAVAILABLE, "etcdserver: no leader"));
        for message in [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
        ] {
            assert!(matches!(answer(UNAVAILABLE, message), Answer::Doubtful(Advice::TryAgain)), "{message}");
        }
        for code in [UNAVAILABLE, UNIMPLEMENTED, 1, 2, 4, 13] {
            assert!(matches!(answer(code, "transport error"), Answer::Broken));
        }
        assert!(matches!(in_doubt(Operation::Acquire), Effect::Unknown));
    }
}
