//! The client's side: the header of a request.

use crate::FENCING_TOKEN;
use http::{HeaderMap, HeaderValue, Request};
use lease_core::hold::{LeaseGuard, Permit};
use lease_core::{FencingToken, Lease};
use std::fmt;

/// What a request's token can be taken from.
pub trait TokenSource {
    /// The token; `None` on a backend that mints none.
    fn fencing_token(&self) -> Option<&FencingToken>;
}

impl TokenSource for FencingToken {
    fn fencing_token(&self) -> Option<&FencingToken> {
        Some(self)
    }
}

impl TokenSource for Lease {
    fn fencing_token(&self) -> Option<&FencingToken> {
        self.token()
    }
}

impl TokenSource for LeaseGuard {
    fn fencing_token(&self) -> Option<&FencingToken> {
        self.token()
    }
}

impl TokenSource for Permit {
    fn fencing_token(&self) -> Option<&FencingToken> {
        self.token()
    }
}

/// Puts the token into a request, in place of any that was there. A [`Permit`] is the best source: it is refused once the lease is lost.
///
/// ```
/// # use lease_core::{Authority, FencingToken, GrantId};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let permit: FencingToken = "41.00000000000000aa.redis:5f3a:0".parse()?;
/// let mut request = http::Request::put("http://accounts.internal/accounts/42").body("90 euros")?;
/// lease_http::present(&mut request, &permit)?;
/// assert_eq!(request.headers()["fencing-token"], "41.00000000000000aa.redis:5f3a:0");
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`NoToken`] when the backend mints none. The request stays as it was, and a server that requires a token refuses it.
pub fn present<B>(request: &mut Request<B>, source: &impl TokenSource) -> Result<(), NoToken> {
    present_in(request.headers_mut(), source)
}

/// As [`present`], for a client that has the headers only.
///
/// # Errors
/// As [`present`].
pub fn present_in(headers: &mut HeaderMap, source: &impl TokenSource) -> Result<(), NoToken> {
    let token = source.fencing_token().ok_or(NoToken)?;
    let value = HeaderValue::try_from(token.to_string());
    headers.insert(FENCING_TOKEN, value.unwrap_or_else(|_| unreachable!("the text of a token is ASCII letters")));
    Ok(())
}

/// The lease has no fencing token, since its backend has nothing that orders grants. A write under it can't be fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoToken;

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease has no fencing token; use a backend that claims `fencing-token`")
    }
}

impl std::error::Error for NoToken {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Tokenless;

    impl TokenSource for Tokenless {
        fn fencing_token(&self) -> Option<&FencingToken> {
            None
        }
    }

    #[test]
    fn the_latest_token_is_the_only_one() {
        let mut request = Request::new(());
        for text in ["9223372036854775807.ffffffffffffffff.a_b/c-d:7", "41.00000000000000aa.redis:5f3a:0"] {
            let token: FencingToken = text.parse().unwrap();
            present(&mut request, &token).unwrap();
            let sent: Vec<_> = request.headers().get_all("Fencing-Token").iter().collect();
            assert_eq!(sent, [text]);
        }
        assert_eq!(present(&mut request, &Tokenless), Err(NoToken));
        assert_eq!(request.headers().len(), 1, "left as it was");
    }
}
