//! Asking an etcd something, through its HTTP gateway.

use crate::wait::LIMIT;
use crate::{Server, ServerError};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// Sends JSON to a path of an etcd's gateway, such as `/v3/kv/range`, and returns the JSON that it answers.
///
/// # Errors
/// When it cannot be reached, refuses, or does not answer within a minute.
pub fn etcd_call(server: &Server, path: &str, json: &str) -> Result<String, ServerError> {
    let what = || format!("call {path} of the etcd on port {}", server.port());
    let answer = exchange(server.port(), path, json).map_err(ServerError::io(what()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(ServerError::Refused { what: what(), answer: body.trim().to_owned() }),
    }
}

/// What a member knows of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdStatus {
    /// Its own id.
    pub member: u64,
    /// The id of the leader that it knows; 0 for none.
    pub leader: u64,
    /// The term, which grows with each election.
    pub term: u64,
    /// The revision of its data.
    pub revision: u64,
}

/// Asks a member what it knows, without the others.
///
/// # Errors
/// When it does not answer within a minute.
pub fn etcd_status(server: &Server) -> Result<EtcdStatus, ServerError> {
    let text = etcd_call(server, "/v3/maintenance/status", "{}")?;
    Ok(EtcdStatus {
        member: number(&text, "member_id"),
        leader: number(&text, "leader"),
        term: number(&text, "raftTerm"),
        revision: number(&text, "revision"),
    })
}

/// A number of the answer. The gateway leaves zeros out, and writes long numbers as text.
fn number(json: &str, name: &str) -> u64 {
    let found = json.split_once(&format!("\"{name}\":\"")).and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
    found.unwrap_or_default()
}

fn exchange(port: u16, path: &str, json: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    // The older version of HTTP, in which an answer ends with its connection.
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{json}", json.len())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_an_answer() {
        let text = r#"{"header":{"member_id":"17"},"leader":"18446744073709551615"}"#;
        assert_eq!((number(text, "member_id"), number(text, "leader"), number(text, "revision")), (17, u64::MAX, 0));
    }
}
