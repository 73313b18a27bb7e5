//! What is tested: a lease backend on some store, and the destinations that stale writes are sent to.

use crate::faults::{FaultBench, HandEdit, at_calls};
use lease_core::plain::{IdempotencyKey, Once, Version};
use lease_core::{GuardError, GuardedDestination, LeaseBackend, LeaseError, ResourceName};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A lease backend under test.
///
/// [`subject`] makes one from a closure; implement the trait to give the suite more to work with.
///
/// Every method is required, here and in [`ServerControl`] and [`Place`]: what a default would say is what the suite then does not try, and a
/// wrapper that forgot to pass a method on would lose it without a word. Where there is nothing to give, say `None`, `false`, or an error.
#[async_trait::async_trait]
pub trait Subject: std::fmt::Debug + Send + Sync {
    /// The name in the report.
    fn name(&self) -> &str;

    /// A new client of the same store.
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError>;

    /// A new client of the same store that may forget idle names after a moment (milliseconds); `None` when the backend has no such setting.
    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>>;

    /// How workers in processes of their own reach the same store: the URL for [`Opener::backend`]. `None`: workers are
    /// runtimes on threads of this process, and a pause blocks the thread.
    fn worker_url(&self) -> Option<String>;

    /// For a store that no other process can reach: the URL with which a worker process has one of the same kind for itself. `None`: a
    /// worker process has nothing to hold, or [`worker_url`](Self::worker_url) reaches the store itself.
    fn own_store_url(&self) -> Option<String>;

    /// The store's own data written without any check, as code that knows nothing of fencing would: the register behind its fence, plain.
    /// `None` when there is no way to do that; the control is then not tried.
    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>>;

    /// The hands on the server, where the suite has any.
    fn server(&self) -> Option<Arc<dyn ServerControl>>;

    /// Clients behind a path that can be disturbed, each of whose calls takes at most `call_timeout`. `None`: there is none; an error:
    /// there should be one and why it is not there. [`faults_at_calls`] makes one for every subject.
    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>>;

    /// An administrator's hands on the store's records, where the suite has any.
    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>>;

    /// Whether the store lives in this process and ends with it, so that no other process can reach it and nothing of it
    /// survives: what the suite cannot try is then known not to hold.
    fn lives_in_process(&self) -> bool;
}

/// What a subject without a path of its own gives as its [`Subject::fault_bench`]: faults [at the calls](at_calls) of one more client.
pub async fn faults_at_calls(
    subject: &dyn Subject,
    call_timeout: Duration,
) -> Option<Result<Arc<dyn FaultBench>, String>> {
    let client = subject.client().await;
    Some(client.map(|client| at_calls(client, call_timeout)).map_err(|error| error.to_string()))
}

/// Writes the register behind a native fence without any check.
#[async_trait::async_trait]
pub trait PlainWriter: std::fmt::Debug + Send + Sync {
    /// Writes.
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError>;
}

/// What can be done to a server that the suite started.
pub trait ServerControl: std::fmt::Debug + Send + Sync {
    /// Kills it (`SIGKILL`) and starts it again on the same data; returns when it is ready, with a witness: the old and the new process id.
    ///
    /// # Errors
    /// When it does not come back.
    fn kill_and_restart(&self) -> Result<(u32, u32), String>;

    /// Stops all its processes (`SIGSTOP`): it accepts connections and answers nothing. A file is kept locked by another process. Returns
    /// the process id.
    ///
    /// # Errors
    /// When it cannot be stopped; the cases that would stop it say so.
    fn pause(&self) -> Result<u32, String>;

    /// Resumes it after [`pause`](Self::pause).
    ///
    /// # Errors
    /// When it cannot be resumed.
    fn resume(&self) -> Result<(), String>;

    /// Whether it is a process of its own, which can be down; a file cannot.
    fn can_be_down(&self) -> bool;

    /// Kills it (`SIGKILL`). Returns the process id that it had.
    ///
    /// # Errors
    /// When it cannot be killed without a restart.
    fn kill(&self) -> Result<u32, String>;

    /// Starts it again on the same data after [`kill`](Self::kill); returns when it is ready, with its process id.
    ///
    /// # Errors
    /// When it does not come back.
    fn start(&self) -> Result<u32, String>;
}

/// A guarded destination that the suite can also write to as careless callers do.
#[async_trait::async_trait]
pub trait TestDestination: GuardedDestination {
    /// Writes the register without any check: the negative control.
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError>;

    /// Asks the guard, ignores its refusal, goes on with the write in the same transaction and commits, as a careless caller would.
    /// Returns what the caller was told last.
    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &lease_core::FencingToken,
        value: &str,
    ) -> Result<(), GuardError>;

    /// Raises the mark and writes in one transaction, then rolls it back. `None` where the store has no roll-back.
    async fn write_and_roll_back(
        &self,
        resource: &ResourceName,
        token: &lease_core::FencingToken,
        value: &str,
    ) -> Option<Result<(), GuardError>>;
}

/// Data that are written without a token, by the plain alternatives to a guard, each write in one transaction with its condition. The data of a
/// resource are one text, empty at first.
#[async_trait::async_trait]
pub trait Unfenced: std::fmt::Debug + Send + Sync {
    /// Creates the tables where they are missing.
    async fn set_up(&self) -> Result<(), LeaseError>;

    /// The version, and then the text.
    async fn read(&self, resource: &ResourceName) -> Result<(Version, String), LeaseError>;

    /// Puts `text` in the place of the text if the data are still at the version `read`; says whether they were.
    async fn write_at(&self, resource: &ResourceName, read: Version, text: &str) -> Result<bool, LeaseError>;

    /// Adds `text` at the end, at most once per key, and commits whatever the answer is; `None` when it was done with another text.
    async fn add_once(
        &self,
        resource: &ResourceName,
        key: &IdempotencyKey,
        text: &str,
    ) -> Result<Option<Once>, LeaseError>;

    /// Adds `text` at the end without a key: the negative control.
    async fn add(&self, resource: &ResourceName, text: &str) -> Result<(), LeaseError>;
}

/// A place for stale writes: a destination kind on one server. Every mode of the two-worker test gets a namespace of its own there.
#[async_trait::async_trait]
pub trait Place: std::fmt::Debug + Send + Sync {
    /// The kind in the report: `sqlite`, `redis`, `etcd`, `postgres`, `memory`.
    fn kind(&self) -> &str;

    /// The name of the lease backend whose own store this is; `None` for a separate one.
    fn store_of(&self) -> Option<&str>;

    /// The URL of the destination under `namespace`, for workers in other processes; `None`: it can only be opened here.
    fn url(&self, namespace: &str) -> Option<String>;

    /// Opens the destination under `namespace`. Two openings of the same namespace are the same destination.
    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError>;

    /// The data under `namespace` that are written without a token; two of the same namespace are the same data. `None`: the place has none,
    /// and the cases about them have no cell there.
    fn unfenced(&self, namespace: &str) -> Option<Arc<dyn Unfenced>>;

    /// The hands on its server, where the suite has any.
    fn server(&self) -> Option<Arc<dyn ServerControl>>;

    /// Whether it lives in this process and ends with it, so that no mark of it survives.
    fn lives_in_process(&self) -> bool;
}

/// Opens backends and destinations by URL: what a worker process has.
#[async_trait::async_trait]
pub trait Opener: Send + Sync {
    /// A client of the backend at `url`.
    async fn backend(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError>;

    /// The plain writer of the backend's own register.
    async fn plain_writer(&self, url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError>;

    /// The destination at `url`.
    async fn destination(&self, url: &str) -> Result<Arc<dyn TestDestination>, GuardError>;
}

/// A subject from a closure that makes clients of one store: for an adapter that lives in this process or brings its own connection.
pub fn subject<F, Fut, B>(name: impl Into<String>, connect: F) -> Arc<dyn Subject>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<B, LeaseError>> + Send + 'static,
    B: LeaseBackend + 'static,
{
    let connect = move || -> BoxFuture<'static, Result<Arc<dyn LeaseBackend>, LeaseError>> {
        let client = connect();
        Box::pin(async move {
            let client: Arc<dyn LeaseBackend> = Arc::new(client.await?);
            Ok(client)
        })
    };
    Arc::new(FromClosure { name: name.into(), connect: Box::new(connect) })
}

type Connect = dyn Fn() -> BoxFuture<'static, Result<Arc<dyn LeaseBackend>, LeaseError>> + Send + Sync;

struct FromClosure {
    name: String,
    connect: Box<Connect>,
}

impl std::fmt::Debug for FromClosure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FromClosure").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Subject for FromClosure {
    fn name(&self) -> &str {
        &self.name
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        (self.connect)().await
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        None
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn own_store_url(&self) -> Option<String> {
        None
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        faults_at_calls(self, call_timeout).await
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}
