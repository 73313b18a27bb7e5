//! Removing what a namespace has, for tests and for decommissioning.

use crate::error::unexpected;
use crate::link::{Link, Reply};
use lease_core::{LeaseError, Operation};

/// Removes all keys that match `pattern`, some hundred at a time, each batch a call of its own.
pub(crate) async fn remove_all(link: &Link, pattern: &str) -> Result<(), LeaseError> {
    let mut cursor = "0".to_owned();
    loop {
        let call = link.begin(Operation::CleanUp);
        let scan = ["SCAN", &cursor, "MATCH", pattern, "COUNT", "500"];
        let reply = call.command(&scan).await.map_err(|e| e.into_lease(&call, None))?;
        let Reply::List(parts) = reply else {
            return Err(unexpected(Operation::CleanUp));
        };
        let mut parts = parts.into_iter();
        let Some(Reply::Text(next)) = parts.next() else {
            return Err(unexpected(Operation::CleanUp));
        };
        let keys: Vec<String> = parts.flat_map(Reply::into_texts).collect();
        if !keys.is_empty() {
            let words: Vec<&str> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
            call.command(&words).await.map_err(|e| e.into_lease(&call, None))?;
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}
