//! What a client is told.

use crate::json::Object;
use crate::{FENCING_TOKEN, NotPresented, ProblemKind};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use lease_core::{Advice, Authority, Effect, GuardError, LeaseError, Refusal, ResourceName};
use std::fmt;

/// What the problems' types begin with.
const TYPES: &str = "https://docs.rs/lease-http#";

/// A refusal or a failure as an HTTP answer: problem details as in RFC 9457.
///
/// It is made from a [`GuardError`] or a [`LeaseError`], and holds nothing of the store's own words: log the error as well.
///
/// ```
/// use lease_core::{GuardError, Refusal, ResourceName};
/// use lease_http::Problem;
///
/// let refusal = Refusal::Stale { presented: 41, mark: 42 };
/// let error = GuardError::Refused { resource: ResourceName::parse("accounts/42")?, refusal };
/// let answer: http::Response<String> = Problem::from(&error).into_response();
/// assert_eq!(answer.status(), 412);
/// assert_eq!(answer.headers()["content-type"], "application/problem+json");
/// assert!(answer.body().contains(r#""effect":"none","advice":"stop","resource":"accounts/42","presented":"41","mark":"42""#));
/// # Ok::<(), lease_core::LeaseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: ProblemKind,
    detail: String,
    /// The members besides those that every problem has.
    members: Vec<(&'static str, String)>,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), members: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.members.push((name, value.to_string()));
        self
    }

    /// What it is about.
    #[must_use]
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// The body of the answer.
    #[must_use]
    pub fn to_json(&self) -> String {
        let effect = match self.kind.effect() {
            Effect::None => "none",
            Effect::Unknown => "unknown",
        };
        let object = Object::new()
            .text("type", &format!("{TYPES}{}", self.kind.id()))
            .text("title", self.kind.title())
            .number("status", self.status().as_u16())
            .text("detail", &self.detail)
            .text("effect", effect)
            .text("advice", self.kind.advice());
        self.members.iter().fold(object, |object, (name, value)| object.text(name, value)).end()
    }

    /// The whole answer. No cache may keep it.
    #[must_use]
    pub fn into_response<B: From<String>>(self) -> Response<B> {
        self.response()
    }

    pub(crate) fn response<B: From<String>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.to_json()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    pub(crate) fn missing() -> Self {
        let detail = format!("send the header `{FENCING_TOKEN}` with the token of your lease; nothing was written");
        Self::new(ProblemKind::TokenMissing, detail)
    }

    pub(crate) fn malformed() -> Self {
        let detail = format!(
            "`{FENCING_TOKEN}` has the form VALUE.GRANT.AUTHORITY, such as 41.00000000000000aa.redis:5f3a:0; nothing was written"
        );
        Self::new(ProblemKind::TokenMalformed, detail)
    }

    pub(crate) fn repeated() -> Self {
        let detail = format!("send the header `{FENCING_TOKEN}` once; nothing was written");
        Self::new(ProblemKind::TokenRepeated, detail)
    }

    pub(crate) fn unused() -> Self {
        let detail =
            "the handler answered without having given the token to a guard: what it wrote, if anything, is not fenced";
        Self::new(ProblemKind::TokenUnused, detail)
    }

    fn refused(resource: &ResourceName, refusal: &Refusal) -> Self {
        let problem = |kind| Self::new(kind, refusal.to_string()).with("resource", resource);
        match refusal {
            Refusal::Stale { presented, mark } => {
                problem(ProblemKind::Stale).with("presented", presented).with("mark", mark)
            }
            Refusal::Conflict { value } => problem(ProblemKind::Conflict).with("mark", value),
            Refusal::UnknownAuthority { presented, trusted } => {
                problem(ProblemKind::UnknownAuthority).with("presented_authority", presented).trusting(trusted.as_ref())
            }
            _ => problem(ProblemKind::Refused),
        }
    }

    /// Left out when none is trusted.
    fn trusting(self, trusted: Option<&Authority>) -> Self {
        match trusted {
            Some(trusted) => self.with("trusted_authority", trusted),
            None => self,
        }
    }
}

impl From<&GuardError> for Problem {
    fn from(error: &GuardError) -> Self {
        match error {
            GuardError::Refused { resource, refusal } => Self::refused(resource, refusal),
            GuardError::AdoptConflict { found } => {
                Self::new(ProblemKind::AdoptConflict, error.to_string()).trusting(found.as_ref())
            }
            GuardError::Store(error) => Self::from(error),
            // Of a later version. That nothing was written can't be said of what is not known.
            _ => Self::new(ProblemKind::EffectUnknown, READ_BACK),
        }
    }
}

const READ_BACK: &str =
    "it may have been written, or still be: read it, under the same token, before you write it again";

impl From<&LeaseError> for Problem {
    fn from(error: &LeaseError) -> Self {
        match (error.effect(), error.advice()) {
            (Effect::Unknown, _) => Self::new(ProblemKind::EffectUnknown, READ_BACK),
            // Refused before any store was asked, so the text is of this workspace and of the client. A configuration is nothing of the client's.
            _ if matches!(error, LeaseError::InvalidName { .. } | LeaseError::InvalidTtl { .. }) => {
                Self::new(ProblemKind::RequestInvalid, format!("{error}; nothing was written"))
            }
            (Effect::None, Advice::TryAgain) => Self::new(
                ProblemKind::StoreUnavailable,
                "nothing was written; the same request, with the same token, may succeed later",
            ),
            (Effect::None, _) => Self::new(
                ProblemKind::StoreFailed,
                "nothing was written, and nothing will be until somebody sees to the server; its log says more",
            ),
        }
    }
}

impl From<NotPresented> for Problem {
    fn from(error: NotPresented) -> Self {
        Self::new(ProblemKind::TokenNotRequired, error.to_string())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.title(), self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;
    use lease_core::Operation;
    use std::time::Duration;

    fn refused(refusal: Refusal) -> GuardError {
        GuardError::Refused { resource: ResourceName::parse("a \"b\" \\ ü").unwrap(), refusal }
    }

    fn json(error: &GuardError) -> serde_json::Value {
        let response: Response<String> = Problem::from(error).into_response();
        let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!(body["status"], response.status().as_u16());
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        body
    }

    #[test]
    fn a_refusal_says_what_was_refused_and_why() {
        let (a, b) = (Authority::parse("a").unwrap(), Authority::parse("b").unwrap());
        let most = u64::MAX / 2;
        let stale = json(&refused(Refusal::Stale { presented: most - 1, mark: most }));
        assert_eq!(stale["type"], "https://docs.rs/lease-http#stale");
        assert_eq!((&stale["status"], &stale["resource"]), (&412.into(), &"a \"b\" \\ ü".into()));
        assert_eq!((&stale["presented"], &stale["mark"]), (&(most - 1).to_string().into(), &most.to_string().into()));
        let conflict = json(&refused(Refusal::Conflict { value: 7 }));
        assert_eq!((&conflict["status"], &conflict["mark"]), (&409.into(), &"7".into()));
        let unknown = json(&refused(Refusal::UnknownAuthority { presented: b.clone(), trusted: Some(a.clone()) }));
        assert_eq!((&unknown["presented_authority"], &unknown["trusted_authority"]), (&"b".into(), &"a".into()));
        let never_set = json(&refused(Refusal::UnknownAuthority { presented: b, trusted: None }));
        assert_eq!(never_set.get("trusted_authority"), None);
        let adopted = json(&GuardError::AdoptConflict { found: Some(a) });
        assert_eq!((&adopted["status"], &adopted["trusted_authority"]), (&409.into(), &"a".into()));
        for body in [stale, conflict, unknown, never_set, adopted] {
            assert_eq!((&body["effect"], &body["advice"]), (&"none".into(), &"stop".into()), "{body}");
        }
    }

    #[test]
    fn a_bad_name_in_a_request_is_the_clients_to_fix() {
        let bad_name = ResourceName::parse("").unwrap_err();
        let bad_ttl = lease_core::Ttl::parse(Duration::ZERO).unwrap_err();
        for error in [bad_name, bad_ttl] {
            let body = json(&GuardError::Store(error));
            assert_eq!((&body["status"], &body["advice"]), (&400.into(), &"fix-request".into()), "{body}");
            assert_eq!(
                (&body["effect"], &body["type"]),
                (&"none".into(), &"https://docs.rs/lease-http#request-invalid".into())
            );
            assert!(body["detail"].as_str().unwrap().starts_with("invalid "), "{body}");
        }
        let config = LeaseError::InvalidConfig { reason: "s3cret-host".into() };
        let body = json(&GuardError::Store(config));
        assert_eq!(body["status"], 500, "no client can mend the server's configuration: {body}");
        assert!(!body.to_string().contains("s3cret"), "{body}");
    }

    #[test]
    fn a_failure_says_its_effect_and_nothing_of_the_store() {
        let store = |effect, advice| LeaseError::Store {
            operation: Operation::GuardedWrite,
            reason: "s3cret-host".into(),
            effect,
            advice,
            source: None,
        };
        let late =
            |effect| LeaseError::Timeout { operation: Operation::GuardedWrite, limit: Duration::from_secs(1), effect };
        for (error, kind) in [
            (store(Effect::Unknown, Advice::TryAgain), ProblemKind::EffectUnknown),
            (store(Effect::Unknown, Advice::Fix), ProblemKind::EffectUnknown),
            (store(Effect::None, Advice::TryAgain), ProblemKind::StoreUnavailable),
            (store(Effect::None, Advice::Fix), ProblemKind::StoreFailed),
            (store(Effect::None, Advice::BeginAnew), ProblemKind::StoreFailed),
            (late(Effect::Unknown), ProblemKind::EffectUnknown),
            (late(Effect::None), ProblemKind::StoreUnavailable),
        ] {
            let text = format!("{error:?}");
            let problem = Problem::from(&GuardError::Store(error));
            assert_eq!(problem.kind(), kind, "{text}");
            let unknown = kind.effect() == Effect::Unknown;
            assert_eq!(problem.to_json().contains(r#""effect":"unknown""#), unknown, "{text}");
            assert!(problem.status().is_server_error() && !problem.to_json().contains("s3cret"), "{text}");
        }
    }
}
