//! The number that a destination checks.

use crate::{LeaseError, owner};
use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

/// Names the history that orders fencing values: which store, which incarnation of it, which epoch of its operator.
///
/// 1 to 128 characters of `A-Z a-z 0-9 : _ / -`. Two tokens are ordered only when their authorities are equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authority(Arc<str>);

impl Authority {
    /// Parses an authority.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when it has another form.
    pub fn parse(text: impl AsRef<str>) -> Result<Self, LeaseError> {
        let text = text.as_ref();
        let fits = (1..=128).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'/' | b'-'));
        if fits {
            Ok(Self(text.into()))
        } else {
            Err(LeaseError::InvalidName {
                what: "authority",
                reason: "give 1 to 128 characters of A-Z, a-z, 0-9 and : _ / -".into(),
            })
        }
    }

    /// The authority `kind:incarnation:epoch` of a store: `incarnation` is drawn once, when the store's history begins,
    /// and kept in the store; the operator raises `epoch` after a restore.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when a part has a character that no authority has.
    pub fn of_store(kind: &str, incarnation: &str, epoch: u32) -> Result<Self, LeaseError> {
        Self::parse(format!("{kind}:{incarnation}:{epoch}"))
    }

    /// The authority as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.0)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 64 random bits that tell two grants apart even when a broken store gave them the same value. Not a secret, and not
/// derived from the owner token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrantId(u64);

impl GrantId {
    /// Draws a new id.
    ///
    /// # Errors
    /// [`LeaseError::Entropy`] when the operating system gives no random numbers.
    pub fn random() -> Result<Self, LeaseError> {
        let mut bytes = [0; 8];
        owner::fill(&mut bytes)?;
        Ok(Self(u64::from_be_bytes(bytes)))
    }

    /// The id as 16 lower-case hexadecimal digits, the form in which stores keep it.
    #[must_use]
    pub fn to_hex(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Reads an id back from [`to_hex`](Self::to_hex).
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        owner::is_hex(text, 16).then(|| u64::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl fmt::Debug for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantId({:016x})", self.0)
    }
}

/// A fencing token: sent with each write, so that the destination can refuse the writes of older grants.
///
/// Minted in the same atomic step that makes the grant; never changed by renewal. Ordered only inside one
/// [`Authority`]: tokens of different authorities, and equal values of different grants, do not compare.
///
/// ```
/// use lease_core::{Authority, FencingToken, GrantId};
/// let authority = Authority::of_store("redis", "5f3a", 0)?;
/// let a = FencingToken::new(authority.clone(), 41, GrantId::from_hex("00000000000000aa").unwrap())?;
/// let b = FencingToken::new(authority, 42, GrantId::from_hex("00000000000000bb").unwrap())?;
/// assert!(a < b);
/// assert_eq!(a.to_string(), "41.00000000000000aa.redis:5f3a:0");
/// assert_eq!("41.00000000000000aa.redis:5f3a:0".parse::<FencingToken>().unwrap(), a);
/// # Ok::<(), lease_core::LeaseError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FencingToken {
    authority: Authority,
    value: NonZeroU64,
    grant: GrantId,
}

impl FencingToken {
    /// The largest value: it fits a signed `bigint`.
    pub const MAX_VALUE: u64 = i64::MAX.unsigned_abs();

    /// Makes a token; for backends, which mint, and for code that reads one back.
    ///
    /// # Errors
    /// [`LeaseError::TokenRange`] when the value is zero or above [`MAX_VALUE`](Self::MAX_VALUE).
    pub fn new(authority: Authority, value: u64, grant: GrantId) -> Result<Self, LeaseError> {
        match NonZeroU64::new(value) {
            Some(value) if value.get() <= Self::MAX_VALUE => Ok(Self { authority, value, grant }),
            _ => Err(LeaseError::TokenRange { value }),
        }
    }

    /// The history that orders this token.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The number alone, 1 to 2^63 − 1. Whoever stores only this loses the check for equal values of different grants.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value.get()
    }

    /// The number alone, for a `bigint` column.
    #[must_use]
    pub fn value_i64(&self) -> i64 {
        i64::try_from(self.value.get()).unwrap_or(i64::MAX)
    }

    /// The number as 19 digits with leading zeros, so that stores which compare text order it right.
    #[must_use]
    pub fn padded_value(&self) -> String {
        format!("{:019}", self.value)
    }

    /// Which grant the token belongs to.
    #[must_use]
    pub fn grant(&self) -> GrantId {
        self.grant
    }
}

impl PartialOrd for FencingToken {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        if self.authority != other.authority {
            return None;
        }
        match self.value.cmp(&other.value) {
            Ordering::Equal if self.grant != other.grant => None,
            order => Some(order),
        }
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({self})")
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.value, self.grant.to_hex(), self.authority)
    }
}

/// The text was no fencing token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fencing token; its form is VALUE.GRANT.AUTHORITY, such as 41.00000000000000aa.redis:5f3a:0")]
pub struct ParseTokenError;

impl FromStr for FencingToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let mut parts = text.splitn(3, '.');
        let (Some(value), Some(grant), Some(authority)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(ParseTokenError);
        };
        let value: u64 = value.parse().map_err(|_| ParseTokenError)?;
        let grant = GrantId::from_hex(grant).ok_or(ParseTokenError)?;
        let token =
            Authority::parse(authority).and_then(|a| Self::new(a, value, grant)).map_err(|_| ParseTokenError)?;
        // One token has one text: no leading zeros, no plus sign, no capitals.
        if token.to_string() == text { Ok(token) } else { Err(ParseTokenError) }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for FencingToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for FencingToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(authority: &str, value: u64, grant: u64) -> FencingToken {
        FencingToken::new(Authority::parse(authority).unwrap(), value, GrantId(grant)).unwrap()
    }

    #[test]
    fn ordered_only_inside_one_authority() {
        assert!(token("a", 9, 1) < token("a", 10, 2), "by number, not by text");
        assert_eq!(token("a", 9, 1).partial_cmp(&token("b", 10, 2)), None);
        assert_eq!(token("a", 9, 1).partial_cmp(&token("a", 9, 2)), None, "equal values of different grants");
        assert_eq!(token("a", 9, 1).partial_cmp(&token("a", 9, 1)), Some(Ordering::Equal));
    }

    #[test]
    fn text_round_trips_and_is_canonical() {
        let max = token("sqlite:x_1/y-2:7", FencingToken::MAX_VALUE, u64::MAX);
        assert_eq!(max.to_string().parse::<FencingToken>().unwrap(), max);
        for bad in [
            "",
            "1",
            "1.2",
            "01.00000000000000aa.a",
            "+1.00000000000000aa.a",
            "0.00000000000000aa.a",
            "1.00000000000000AA.a",
            "1.aa.a",
            "1.00000000000000aa.",
            "1.00000000000000aa.a b",
            "9223372036854775808.00000000000000aa.a",
        ] {
            assert!(bad.parse::<FencingToken>().is_err(), "{bad}");
        }
    }

    #[test]
    fn range_is_that_of_a_bigint() {
        let authority = Authority::parse("a").unwrap();
        assert!(FencingToken::new(authority.clone(), 0, GrantId(1)).is_err());
        assert!(FencingToken::new(authority, FencingToken::MAX_VALUE + 1, GrantId(1)).is_err());
        assert_eq!(token("a", FencingToken::MAX_VALUE, 1).value_i64(), i64::MAX);
        assert_eq!(GrantId::from_hex("+00000000000000a"), None);
        assert_eq!(GrantId::from_hex("000000000000000A"), None);
        assert_eq!(token("a", 7, 1).padded_value().len(), FencingToken::MAX_VALUE.to_string().len());
    }
}
