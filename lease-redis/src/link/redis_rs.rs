//! The client crate `redis`.

use super::{LinkError, Opener, Reply, ServerReply, Wire, login_refused, unreachable};
use crate::config::RedisConfig;
use lease_core::LeaseError;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) struct RedisRs {
    client: redis::Client,
    address: String,
}

impl RedisRs {
    pub(super) fn new(config: &RedisConfig) -> Result<Self, LeaseError> {
        let refuse = |e: &RedisError| LeaseError::InvalidConfig { reason: e.to_string() };
        let info = config.client_url.as_str().into_connection_info().map_err(|e| refuse(&e))?;
        // RESP3, because only there does the client say that a connection was closed.
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        // Without TCP_NODELAY small requests wait for the acknowledgement of those before them.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true)).set_redis_settings(login);
        Ok(Self {
            client: client(config, info).map_err(|e| match e {
                Failure::Client(e) => refuse(&e),
                #[cfg(feature = "tls-rustls")]
                Failure::Config(e) => e,
            })?,
            address: config.address.clone(),
        })
    }
}

enum Failure {
    Client(RedisError),
    #[cfg(feature = "tls-rustls")]
    Config(LeaseError),
}

fn client(config: &RedisConfig, info: redis::ConnectionInfo) -> Result<redis::Client, Failure> {
    #[cfg(feature = "tls-rustls")]
    if let Some(pem) = config.ca_pem().map_err(Failure::Config)? {
        let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(pem) };
        return redis::Client::build_with_tls(info, certificates).map_err(Failure::Client);
    }
    let _ = config;
    redis::Client::open(info).map_err(Failure::Client)
}

/// By hand, so that no version of the client can print the password.
impl std::fmt::Debug for RedisRs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisRs").field("address", &self.address).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Opener for RedisRs {
    async fn open(&self) -> Result<Arc<dyn Wire>, LeaseError> {
        let closed = Arc::new(AtomicBool::new(false));
        let notice = Arc::clone(&closed);
        let listen = move |push: PushInfo| -> Result<(), Infallible> {
            if push.kind == PushKind::Disconnection {
                notice.store(true, Ordering::SeqCst);
            }
            Ok(())
        };
        // The time limits are the caller's: a limit of the client's own would only hide which one struck.
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(listen);
        match self.client.get_multiplexed_async_connection_with_config(&settings).await {
            Ok(connection) => Ok(Arc::new(Connection { connection, closed })),
            Err(error) => Err(self.refused(error)),
        }
    }
}

impl RedisRs {
    fn refused(&self, error: RedisError) -> LeaseError {
        let reason = error.to_string();
        let login = error.kind() == ErrorKind::AuthenticationFailed
            || error.code().is_some_and(|code| ServerReply::new(code).is_login());
        if login {
            login_refused(&self.address, reason, Some(Box::new(error)))
        } else {
            unreachable(&self.address, reason, Some(Box::new(error)))
        }
    }
}

struct Connection {
    connection: MultiplexedConnection,
    closed: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Wire for Connection {
    async fn request(&self, words: &[&str], limit: Duration) -> Result<Reply, LinkError> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let mut connection = self.connection.clone();
        // The client matches a late answer with its request and drops it, so that answers never shift.
        match tokio::time::timeout(limit, connection.send_packed_command(&command)).await {
            Err(_) => Err(LinkError::TimedOut),
            Ok(Ok(value)) => reply(value),
            Ok(Err(error)) => Err(failure(error)),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("redis::Connection").finish_non_exhaustive()
    }
}

fn reply(value: Value) -> Result<Reply, LinkError> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Okay => Reply::Text("OK".into()),
        Value::Int(number) => Reply::Text(number.to_string()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Reply::Text(text),
        Value::BulkString(bytes) => Reply::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Array(items) | Value::Set(items) => Reply::List(items.into_iter().map(reply).collect::<Result<_, _>>()?),
        Value::Map(pairs) => {
            let items = pairs.into_iter().flat_map(|(key, value)| [key, value]);
            Reply::List(items.map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => return Err(failure(error.into())),
        other => return Err(broken(format!("unexpected answer of type {:?}", std::mem::discriminant(&other)), None)),
    })
}

fn failure(error: RedisError) -> LinkError {
    match (error.kind(), error.code()) {
        (ErrorKind::Server(_) | ErrorKind::Extension, Some(code)) => {
            LinkError::Server(ServerReply::new(&format!("{code} {}", error.detail().unwrap_or_default())))
        }
        _ => broken(error.to_string(), Some(Box::new(error))),
    }
}

fn broken(reason: String, source: Option<lease_core::Source>) -> LinkError {
    LinkError::Broken { reason, source }
}
