//! The client crate `fred`.
//!
//! Left to itself, fred sends a command again after a reconnect, also one whose caller is gone. Here each connection is a fred client
//! without a reconnect policy: once it is closed, everything that waited in it is dropped, and it is never used again.

use super::{LinkError, Opener, Reply, ServerReply, Wire, login_refused, unreachable};
use crate::config::RedisConfig;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, Options, PerformanceConfig, TcpConfig};
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, Value};
use lease_core::LeaseError;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Fred {
    config: Config,
    connection: ConnectionConfig,
    performance: PerformanceConfig,
    address: String,
}

impl Fred {
    pub(super) fn new(config: &RedisConfig) -> Result<Self, LeaseError> {
        let mut settings = Config::from_url(&config.client_url)
            .map_err(|e| LeaseError::InvalidConfig { reason: e.details().to_owned() })?;
        settings.fail_fast = true;
        #[cfg(feature = "tls-rustls")]
        if let Some(pem) = config.ca_pem()? {
            settings.tls = Some(super::tls::client_config(&pem)?.into());
        }
        let connection = ConnectionConfig {
            // One attempt. Zero would mean "fall back to three".
            max_command_attempts: 1,
            max_redirections: 0,
            connection_timeout: config.options.connect_timeout,
            internal_command_timeout: config.options.connect_timeout,
            disable_cluster_health_check: true,
            // Without TCP_NODELAY small requests wait for the acknowledgement of those before them.
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        let performance =
            PerformanceConfig { default_command_timeout: config.options.call_timeout, ..PerformanceConfig::default() };
        Ok(Self { config: settings, connection, performance, address: config.address.clone() })
    }
}

/// By hand: fred's own configuration prints the password.
impl std::fmt::Debug for Fred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fred").field("address", &self.address).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Opener for Fred {
    async fn open(&self) -> Result<Arc<dyn Wire>, LeaseError> {
        let client = fred::clients::Client::new(
            self.config.clone(),
            Some(self.performance.clone()),
            Some(self.connection.clone()),
            None,
        );
        // A task of its own, bounded by fred's limits: fred starts a task for the connection and hands it out only at the end. Should this
        // future be dropped, the connection still has an owner, which closes it.
        let opening = tokio::spawn(async move {
            let task = client.init().await?;
            Ok(Connection { client, task })
        });
        match opening.await {
            Ok(Ok(connection)) => Ok(Arc::new(connection)),
            Ok(Err(error)) => Err(self.refused(error)),
            Err(ended) => Err(unreachable(&self.address, ended.to_string(), None)),
        }
    }
}

impl Fred {
    fn refused(&self, error: Error) -> LeaseError {
        let reason = error.details().to_owned();
        if *error.kind() == ErrorKind::Auth {
            login_refused(&self.address, reason, Some(Box::new(error)))
        } else {
            unreachable(&self.address, reason, Some(Box::new(error)))
        }
    }
}

struct Connection {
    client: fred::clients::Client,
    task: ConnectHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The task keeps itself alive; nothing else would close the socket.
        self.task.abort();
    }
}

/// How much later than fred's own time limit the outer one strikes, if fred's does not. Only fred's takes back what is not yet sent.
const GRACE: Duration = Duration::from_millis(100);

#[async_trait::async_trait]
impl Wire for Connection {
    async fn request(&self, words: &[&str], limit: Duration) -> Result<Reply, LinkError> {
        let Some((name, args)) = words.split_first() else {
            return Err(broken("an empty command".into(), None));
        };
        if limit.is_zero() {
            // To fred, zero means "no limit".
            return Err(LinkError::TimedOut);
        }
        let command = CustomCommand::new((*name).to_owned(), ClusterHash::FirstKey, false);
        let args: Vec<Value> = args.iter().map(|word| Value::from(*word)).collect();
        let options = Options { max_attempts: Some(1), fail_fast: true, timeout: Some(limit), ..Options::default() };
        let client = self.client.with_options(&options);
        let answer = client.custom::<Value, Value>(command, args);
        match tokio::time::timeout(limit.saturating_add(GRACE), answer).await {
            Err(_) => Err(LinkError::TimedOut),
            Ok(Ok(value)) => reply(value),
            Ok(Err(error)) => Err(failure(error)),
        }
    }

    fn is_closed(&self) -> bool {
        self.task.is_finished()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("fred::Connection").finish_non_exhaustive()
    }
}

fn reply(value: Value) -> Result<Reply, LinkError> {
    Ok(match value {
        Value::Null => Reply::Nil,
        Value::String(text) => Reply::Text(text.to_string()),
        Value::Bytes(bytes) => Reply::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Integer(number) => Reply::Text(number.to_string()),
        Value::Array(items) => Reply::List(items.into_iter().map(reply).collect::<Result<_, _>>()?),
        other => return Err(broken(format!("unexpected answer of type {:?}", other.kind()), None)),
    })
}

/// fred has one error type for the server's answers and for its own troubles. An answer begins with its code, in capitals.
fn failure(error: Error) -> LinkError {
    let code = error.details().split_ascii_whitespace().next().unwrap_or_default();
    let is_code = code.len() > 1 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    match error.kind() {
        ErrorKind::Timeout => LinkError::TimedOut,
        ErrorKind::Unknown
        | ErrorKind::Config
        | ErrorKind::InvalidArgument
        | ErrorKind::InvalidCommand
        | ErrorKind::Auth
        | ErrorKind::Cluster
            if is_code =>
        {
            LinkError::Server(ServerReply::new(error.details()))
        }
        _ => broken(error.details().to_owned(), Some(Box::new(error))),
    }
}

fn broken(reason: String, source: Option<lease_core::Source>) -> LinkError {
    LinkError::Broken { reason, source }
}
