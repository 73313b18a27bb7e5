//! Plain alternatives to a guard, where the database owns the state: a version condition and a unique idempotency record.
//!
//! They need no fencing token, and protect less than one:
//!
//! | | a stale worker's write | what it does not do |
//! |---|---|---|
//! | guard ([`FencingToken`](crate::FencingToken)) | refused once a newer grant has sealed or written | |
//! | a transaction that holds the lease's row (the store's own [`Fence`](crate::Fence)) | refused from the moment the grant ended | reach beyond the lease's own store |
//! | [`Version`] | refused when anything was written since it read | tell a stale worker from a fresh one: of two that have read the same, the first one wins |
//! | [`IdempotencyKey`] | ignored when the effect was made before | **not fenced: at most once per key, first one wins**, also when the first one was stale |
//!
//! The helpers that check them in your own transaction are in the crates of the databases.

use crate::{LeaseError, ResourceName};
use std::fmt;
use std::sync::Arc;

/// Names one effect on one resource, for a database or an external API that makes the effect at most once per key.
///
/// **At most once per key, first one wins, not fenced.** The key is made of the resource and the operation only: no token, no grant, no worker,
/// no attempt. So whoever does the operation, and however often, has the same key; with a token in it, a newer holder would repeat what an older
/// one has done. The operation has to say which one it is: `charge/2026-12`, not `charge`, if the next month is charged too.
///
/// For an external API, send [`as_str`](Self::as_str) as the request's idempotency key, and see in its documentation for how long it is remembered:
/// a repetition after that is a second effect.
///
/// ```
/// use lease_core::{IdempotencyKey, ResourceName};
/// let key = IdempotencyKey::new(&ResourceName::parse("accounts/42")?, "charge/2026-12")?;
/// assert_eq!(key.as_str(), "charge/2026-12:accounts/42");
/// # Ok::<(), lease_core::LeaseError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The longest operation, in bytes.
    pub const MAX_OPERATION_BYTES: usize = 128;

    /// The key of `operation` on `resource`. An operation is 1 to 128 characters of `A-Z a-z 0-9 . _ ~ - /`.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when the operation has another form.
    pub fn new(resource: &ResourceName, operation: &str) -> Result<Self, LeaseError> {
        let fits = (1..=Self::MAX_OPERATION_BYTES).contains(&operation.len())
            && operation.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'~' | b'-' | b'/'));
        if !fits {
            return Err(LeaseError::InvalidName {
                what: "operation",
                reason: "give 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ - /".into(),
            });
        }
        // Neither part has a colon, so no two pairs have the same key.
        Ok(Self(format!("{operation}:{}", resource.encoded()).into()))
    }

    /// The key as text of printable ASCII, as long as the operation and the resource's [encoded](ResourceName::encoded) name, and one more. Some APIs
    /// take no more than 255 characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({})", self.0)
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an idempotency record says about an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an effect that was made before must not be made again"]
pub enum Once {
    /// It was not made before: make it, in the transaction that has the record now.
    First,
    /// It was made before, with the same payload: leave it.
    Before,
}

/// Why an idempotency record could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError {
    /// The effect was made before, with another payload.
    #[error(
        "conflict: {key} was done with another payload; the same operation cannot be two things, so look at who has sent which"
    )]
    Conflict {
        /// The key of both.
        key: IdempotencyKey,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] LeaseError),
}

/// How often the data of a resource were written under a version condition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Of a resource that was never written.
    pub const NEVER: Self = Self(0);

    /// The version number `number`; for stores, which count.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({})", self.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why a version could not be advanced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// Somebody has written since the version was read.
    #[error("{resource} was at version {read} when it was read and is at {found}; read again, and compute anew")]
    Changed {
        /// The resource.
        resource: ResourceName,
        /// The version that was read.
        read: Version,
        /// The present one.
        found: Version,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] LeaseError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_effects_have_the_same_key() {
        let key = |resource: &str, operation| IdempotencyKey::new(&ResourceName::parse(resource).unwrap(), operation);
        let pairs =
            [("a", "b/c"), ("c/a", "b"), ("b:a", "x"), ("a", "x"), ("a%3Ab", "x"), ("ä", "x"), ("A", "x"), ("a ", "x")];
        let mut keys: Vec<_> = pairs.map(|(resource, operation)| key(resource, operation).unwrap()).to_vec();
        assert!(keys.iter().all(|key| key.as_str().bytes().all(|b| b.is_ascii_graphic())), "{keys:?}");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), pairs.len());
        assert_eq!(key("a", "x").unwrap(), key("a", "x").unwrap());
        for bad in ["", "a:b", "a b", "ä", "a\n", &"a".repeat(129)] {
            assert!(key("a", bad).is_err(), "{bad}");
        }
    }
}
