//! The secret that proves ownership of a grant.

use crate::LeaseError;
use std::fmt;

/// 128 random bits from the operating system, one per attempt; compared for equality in the store, never ordered.
///
/// Missing from `Debug` and from every message: who knows it can renew and release the grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerToken([u8; 16]);

impl OwnerToken {
    /// Draws a new token.
    ///
    /// # Errors
    /// [`LeaseError::Entropy`] when the operating system gives no random numbers.
    pub fn random() -> Result<Self, LeaseError> {
        let mut bytes = [0; 16];
        fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The token as 32 lower-case hexadecimal digits, for the store and for nobody else.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// Reads a token back from [`reveal`](Self::reveal).
    #[must_use]
    pub fn from_revealed(text: &str) -> Option<Self> {
        is_hex(text, 32).then(|| u128::from_str_radix(text, 16).ok().map(|n| Self(n.to_be_bytes())))?
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(secret)")
    }
}

/// Whether `text` is `digits` lower-case hexadecimal digits: one value has one text.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Fills `bytes` from the operating system's generator.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), LeaseError> {
    getrandom::fill(bytes).map_err(|e| LeaseError::Entropy { reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_repeats_never_prints() {
        let tokens: std::collections::HashSet<_> = (0..10_000).map(|_| OwnerToken::random().unwrap()).collect();
        assert_eq!(tokens.len(), 10_000);
        let token = OwnerToken::random().unwrap();
        assert!(!format!("{token:?}").contains(&token.reveal()));
        assert_eq!(OwnerToken::from_revealed(&token.reveal()), Some(token));
        assert_eq!(OwnerToken::from_revealed("12"), None);
        assert_eq!(OwnerToken::from_revealed(&format!("+{}", "0".repeat(31))), None);
    }
}
