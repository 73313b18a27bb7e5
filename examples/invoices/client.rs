//! A small HTTP client: one request, one connection. Use your own for this.

use crate::Failure;
use leasehold::plain::IdempotencyKey;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// For connecting, sending and the whole answer.
const LIMIT: Duration = Duration::from_secs(30);

/// The API's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// Asks for a payment, at most once per key if there is one.
pub(crate) async fn charge(
    api: SocketAddr,
    invoice: &str,
    cents: i64,
    key: Option<&IdempotencyKey>,
) -> Result<Answer, Failure> {
    let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
    send(api, "POST /charges", &key, &json!({ "invoice": invoice, "cents": cents }).to_string()).await
}

/// What the API has taken for an invoice: how often, and how much in all.
pub(crate) async fn charges(api: SocketAddr, invoice: &str) -> Result<(i64, i64), Failure> {
    let answer = send(api, &format!("GET /charges/{invoice}"), "", "").await?;
    let number =
        |name| answer.body.get(name).and_then(Value::as_i64).ok_or_else(|| format!("the API answered {answer:?}"));
    Ok((number("charges")?, number("cents")?))
}

async fn send(api: SocketAddr, what: &str, headers: &str, body: &str) -> Result<Answer, Failure> {
    let request = format!(
        "{what} HTTP/1.1\r\nhost: {api}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(api).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(LIMIT, exchange).await.map_err(|_| format!("no answer to {what}"))??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("half an answer")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
    Ok(Answer { status, body: serde_json::from_str(body).map_err(|_| format!("{status} {body}"))? })
}
