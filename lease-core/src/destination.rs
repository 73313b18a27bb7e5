//! Where protected data lives: a destination that remembers the highest token and refuses lower ones.

use crate::{Authority, Claims, FencingToken, GrantId, LeaseError, ResourceName};

/// A destination with a guard: it admits tokens at or above its mark, refuses those below, and remembers in the same
/// atomic step.
///
/// It takes tokens from *any* lease backend. This trait drives one register per resource, which is what the conformance
/// suite and small programs need; each destination crate also offers the same guard for the caller's own transaction.
///
/// # Contract
///
/// * **Admit at or above the mark.** The holder's second write passes. A lower value is refused as stale; an equal value of another
///   grant is refused as a conflict, since it shows that a counter went back.
/// * **One trusted authority per destination**, set by [`adopt`](Self::adopt), not by first use. Tokens of another
///   authority are refused, whatever their value.
/// * **One atomic step.** The mark rises before or together with the mutation. A mark that rose without one is only a seal.
/// * **A refusal can't be committed** by a caller that ignores it.
/// * **Marks are durable and never cleaned up** while a token may be outstanding.
///
/// A counter that went back is found out only when the mark had reached this destination before.
///
/// # Cancel safety
///
/// Dropping a future of this trait may leave its request under way: a guarded write may still happen, if its token is still admitted
/// when it arrives. No future of this trait can undo a mark.
#[async_trait::async_trait]
pub trait GuardedDestination: std::fmt::Debug + Send + Sync {
    /// The kind, such as `postgres`, as reports print it.
    fn kind(&self) -> &'static str;

    /// The guarantees that this instance declares.
    fn claims(&self) -> Claims;

    /// Sets the trusted authority, if it is `expected_old` at present (`None`: if none is set yet). Compare-and-set. Marks begin anew
    /// under a new authority, since its values are not comparable; the old one stays refused. A program that starts again and again calls
    /// [`trust`](crate::DestinationExt::trust).
    ///
    /// # Errors
    /// [`GuardError::AdoptConflict`] when another one is set.
    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError>;

    /// Raises the mark without writing, so that no older write can land from now on. Do this before the first *read*
    /// under a new lease; otherwise an old write may land between the read and the write that was computed from it.
    ///
    /// # Errors
    /// [`GuardError::Refused`] when the token is not admitted.
    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError>;

    /// Writes the register of `resource`, if the token is admitted.
    ///
    /// # Errors
    /// [`GuardError::Refused`] when it is not: nothing was written.
    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError>;

    /// Reads the register and the mark.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError>;
}

/// What a guarded destination holds for one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The register's value; `None` when it was never written.
    pub value: Option<String>,
    /// The mark: the highest value admitted, with its grant.
    pub mark: Option<(u64, GrantId)>,
}

impl Stored {
    /// What was found.
    #[must_use]
    pub fn new(value: Option<String>, mark: Option<(u64, GrantId)>) -> Self {
        Self { value, mark }
    }

    /// The mark as a floor for the next attempt, [`Attempt::above`](crate::Attempt::above); 0 without a mark.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.mark.map_or(0, |(value, _)| value)
    }
}

/// Why a guarded operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The token is not admitted; nothing was written.
    #[error("the guard refused the token for {resource}: {refusal}")]
    Refused {
        /// The resource.
        resource: ResourceName,
        /// Why.
        refusal: Refusal,
    },
    /// Another authority is trusted than the caller of `adopt` expected.
    #[error("the trusted authority is {}, not the expected one; look at who changed it before adopting another", found_text(.found.as_ref()))]
    AdoptConflict {
        /// The authority that is trusted at present.
        found: Option<Authority>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] LeaseError),
}

fn found_text(found: Option<&Authority>) -> String {
    found.map_or_else(|| "not set".into(), ToString::to_string)
}

/// Why a token is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A newer grant has been here.
    #[error("stale: its value {presented} is below the mark {mark}; this grant has ended, stop the work")]
    Stale {
        /// The token's value.
        presented: u64,
        /// The mark.
        mark: u64,
    },
    /// Another grant with the same value has been here: the store that issued them went back.
    #[error(
        "conflict: value {value} was admitted for another grant; the lease store's history went back, raise its epoch and adopt the new authority"
    )]
    Conflict {
        /// The value of both.
        value: u64,
    },
    /// The token's authority is not the trusted one.
    #[error("unknown authority {presented} (trusted: {}); adopt it if the lease store was changed on purpose", found_text(.trusted.as_ref()))]
    UnknownAuthority {
        /// The token's authority.
        presented: Authority,
        /// The trusted one.
        trusted: Option<Authority>,
    },
}

impl Refusal {
    /// Judges a token as the contract says: for destinations that check in the program, and for turning what an atomic step found into
    /// the reason.
    ///
    /// # Errors
    /// The refusal, when the token is not admitted.
    pub fn judge(trusted: Option<&Authority>, mark: Option<(u64, GrantId)>, token: &FencingToken) -> Result<(), Self> {
        if trusted != Some(token.authority()) {
            return Err(Self::UnknownAuthority { presented: token.authority().clone(), trusted: trusted.cloned() });
        }
        match mark {
            Some((mark, _)) if token.value() < mark => Err(Self::Stale { presented: token.value(), mark }),
            Some((mark, grant)) if token.value() == mark && token.grant() != grant => {
                Err(Self::Conflict { value: mark })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_as_the_contract_says() {
        let (a, b) = (Authority::parse("a").unwrap(), Authority::parse("b").unwrap());
        let grant = |n: u64| GrantId::from_hex(&format!("{n:016x}")).unwrap();
        let token = |value, g| FencingToken::new(a.clone(), value, grant(g)).unwrap();
        let judge = |mark, t: &FencingToken| Refusal::judge(Some(&a), mark, t);
        assert_eq!(judge(None, &token(1, 1)), Ok(()));
        assert_eq!(judge(Some((5, grant(1))), &token(5, 1)), Ok(()), "the holder's second write");
        assert_eq!(judge(Some((5, grant(1))), &token(6, 2)), Ok(()));
        assert!(matches!(judge(Some((10, grant(1))), &token(9, 2)), Err(Refusal::Stale { .. })));
        assert!(matches!(judge(Some((5, grant(1))), &token(5, 2)), Err(Refusal::Conflict { .. })));
        assert!(matches!(Refusal::judge(Some(&b), None, &token(1, 1)), Err(Refusal::UnknownAuthority { .. })));
        assert!(matches!(Refusal::judge(None, None, &token(1, 1)), Err(Refusal::UnknownAuthority { .. })));
    }
}
