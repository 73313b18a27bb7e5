//! What is asked of an etcd besides leases, through its gateway.

use crate::survival::NAMESPACE;
use crate::survival::scene::Trouble;
use lease_servers::{Server, etcd_call};
use serde_json::{Value, json};

/// Where the lease of a resource lies.
pub(super) fn record(resource: &str) -> String {
    format!("{NAMESPACE}/lease/grant/{resource}")
}

/// Calls a path with a body.
pub(super) fn call(server: &Server, path: &str, body: &Value) -> Result<Value, Trouble> {
    let answer = etcd_call(server, path, &body.to_string())?;
    serde_json::from_str(&answer).map_err(|error| Trouble::Failed(format!("{path} answered {answer}: {error}")))
}

/// Puts a value, which makes a revision.
pub(super) fn put(server: &Server, key: &str, value: &[u8]) -> Result<(), Trouble> {
    call(server, "/v3/kv/put", &json!({ "key": base64(key.as_bytes()), "value": base64(value) })).map(drop)
}

/// A key as it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The revision that made it.
    pub(super) created: u64,
    /// The etcd lease that it is attached to.
    pub(super) lease: String,
}

/// Reads a key: from the majority, or `alone` from what this member has by itself.
pub(super) fn get(server: &Server, key: &str, alone: bool) -> Result<Option<Found>, Trouble> {
    let body = json!({ "key": base64(key.as_bytes()), "serializable": alone });
    let answer = call(server, "/v3/kv/range", &body)?;
    let found = answer.pointer("/kvs/0");
    Ok(found.map(|kv| Found { created: number(kv, "create_revision"), lease: text(kv, "lease").to_owned() }))
}

/// Deletes keys: one, or all with a prefix. How many there were.
pub(super) fn delete(server: &Server, key: &str, as_prefix: bool) -> Result<u64, Trouble> {
    let mut body = json!({ "key": base64(key.as_bytes()) });
    if as_prefix && let Some(body) = body.as_object_mut() {
        // No key of this namespace has a byte above ASCII's last one here.
        body.insert("range_end".to_owned(), base64(format!("{key}\u{7f}").as_bytes()).into());
    }
    Ok(number(&call(server, "/v3/kv/deleterange", &body)?, "deleted"))
}

/// How many seconds an etcd lease has left; none when it is gone.
pub(super) fn left_s(server: &Server, lease: &str) -> Result<Option<u64>, Trouble> {
    let answer = call(server, "/v3/lease/timetolive", &json!({ "ID": lease }))?;
    Ok(text(&answer, "TTL").parse().ok())
}

/// The id of the cluster, as a member tells it.
pub(super) fn cluster_id(server: &Server) -> Result<String, Trouble> {
    let answer = call(server, "/v3/maintenance/status", &json!({}))?;
    match answer.pointer("/header/cluster_id").and_then(Value::as_str) {
        Some(id) => Ok(id.to_owned()),
        None => Err(Trouble::Failed(format!("the status has no cluster id: {answer}"))),
    }
}

/// The gateway writes long numbers as text, and leaves zeros out.
fn number(json: &Value, name: &str) -> u64 {
    text(json, name).parse().unwrap_or_default()
}

fn text<'a>(json: &'a Value, name: &str) -> &'a str {
    json.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The gateway takes bytes in this form only.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3).saturating_mul(4));
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| chunk.get(index).copied().unwrap_or_default();
        let bits = u32::from_be_bytes([0, byte(0), byte(1), byte(2)]);
        for (index, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let [.., six] = (bits.wrapping_shr(shift) & 63).to_be_bytes();
            let letter = LETTERS.get(usize::from(six)).filter(|_| index <= chunk.len());
            text.push(letter.map_or('=', |letter| char::from(*letter)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_the_gateway_takes_them() {
        for (bytes, text) in [("", ""), ("k", "aw=="), ("ke", "a2U="), ("key", "a2V5"), ("\u{fb}\u{ff}", "w7vDvw==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn numbers_and_what_is_left_out() {
        let kv = json!({ "create_revision": "17", "lease": "9007199254740993" });
        assert_eq!((number(&kv, "create_revision"), number(&kv, "version")), (17, 0));
        assert_eq!(text(&kv, "lease"), "9007199254740993");
    }
}
