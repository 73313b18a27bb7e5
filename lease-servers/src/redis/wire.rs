//! Redis's protocol, as far as servers are set up and looked at with it.

use crate::wait::LIMIT;
use crate::{Server, ServerError};
use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

/// Sends one command to a Redis, on a connection of its own with its administrator's rights, and returns the answer as text: the parts of a
/// list one a line, nothing for nil.
///
/// # Errors
/// When it cannot be reached, answers with an error, or does not answer within a minute.
pub fn redis_command(server: &Server, words: &[&str]) -> Result<String, ServerError> {
    let what = || format!("send {} to the Redis on port {}", words.first().unwrap_or(&""), server.port());
    let answer = exchange(server, words).map_err(ServerError::io(what()))?;
    answer.map_err(|answer| ServerError::Refused { what: what(), answer })
}

/// One field of `INFO`.
pub(crate) fn info(server: &Server, section: &str, field: &str) -> Result<String, ServerError> {
    let text = redis_command(server, &["INFO", section])?;
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(found.unwrap_or_default().trim().to_owned())
}

/// `master` or `slave`.
pub(crate) fn role(server: &Server) -> Result<String, ServerError> {
    info(server, "replication", "role")
}

fn exchange(server: &Server, words: &[&str]) -> std::io::Result<Result<String, String>> {
    let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut stream = BufReader::new(stream);
    if let Some(password) = password(server.url()) {
        send(&mut stream, &["AUTH", password])?;
        if let Err(refused) = answer(&mut stream)? {
            return Ok(Err(refused));
        }
    }
    send(&mut stream, words)?;
    answer(&mut stream)
}

fn password(url: &str) -> Option<&str> {
    url.split_once("://:")?.1.rsplit_once('@').map(|(password, _)| password)
}

fn send(stream: &mut BufReader<TcpStream>, words: &[&str]) -> std::io::Result<()> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
    }
    stream.get_mut().write_all(request.as_bytes())
}

/// One answer; the inner error is one that the server sent.
fn answer(stream: &mut BufReader<TcpStream>) -> std::io::Result<Result<String, String>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
    match kind {
        "+" | ":" => Ok(Ok(rest.to_owned())),
        "-" => Ok(Err(rest.to_owned())),
        "$" => {
            let Ok(length) = rest.parse::<usize>() else { return Ok(Ok(String::new())) };
            let mut text = vec![0; length.saturating_add(2)];
            stream.read_exact(&mut text)?;
            text.truncate(length);
            Ok(Ok(String::from_utf8_lossy(&text).into_owned()))
        }
        "*" => {
            let mut parts = Vec::new();
            for _ in 0..rest.parse::<usize>().unwrap_or_default() {
                match answer(stream)? {
                    Ok(part) => parts.push(part),
                    refused => return Ok(refused),
                }
            }
            Ok(Ok(parts.join("\n")))
        }
        _ => Err(Error::new(ErrorKind::InvalidData, line.to_owned())),
    }
}
