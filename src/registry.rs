//! Which schemes there are, as a value: no globals, so that two parts of a program can't change each other's URLs.

use crate::memory_url::MemoryStores;
use crate::{GuardedDestination, LeaseBackend, LeaseError, builtin};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// What a backend's constructor returns.
pub type BackendFuture = Pin<Box<dyn Future<Output = Result<Arc<dyn LeaseBackend>, LeaseError>> + Send>>;
/// What a destination's constructor returns.
pub type DestinationFuture = Pin<Box<dyn Future<Output = Result<Arc<dyn GuardedDestination>, LeaseError>> + Send>>;

type BackendFn = Arc<dyn Fn(String) -> BackendFuture + Send + Sync>;
type DestinationFn = Arc<dyn Fn(String) -> DestinationFuture + Send + Sync>;

/// The URL schemes that can be connected to: those that are compiled in, and your own.
///
/// A registry also keeps the named memory stores: `memory:NAME` is the same store for every connect through the same registry or
/// a clone of it, and ends with the last of them and of its backends. Parameter `namespace` tells stores of one name apart, as on
/// a server. `memory:` without a name is a new store at each connect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::LeaseError> {
/// use leasehold::{LeaseExt, Registry};
/// use std::time::Duration;
/// let registry = Registry::new();
/// let (one, two) = (registry.connect("memory:shared").await?, registry.connect("memory:shared").await?);
/// let lease = one.try_acquire("job", Duration::from_secs(10)).await?;
/// assert!(lease.is_some());
/// assert!(two.try_acquire("job", Duration::from_secs(10)).await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Registry {
    backends: BTreeMap<String, BackendFn>,
    destinations: BTreeMap<String, DestinationFn>,
}

impl Registry {
    /// The schemes that are compiled in.
    #[must_use]
    pub fn new() -> Self {
        Self::with_memory(MemoryStores::named())
    }

    /// For one connect: nothing outlives it, so a named memory store would exclude nobody and is refused.
    pub(crate) fn for_one_connect() -> Self {
        Self::with_memory(MemoryStores::unnamed())
    }

    fn with_memory(stores: MemoryStores) -> Self {
        let mut registry = Self { backends: BTreeMap::new(), destinations: BTreeMap::new() };
        builtin::add_to(&mut registry, stores);
        registry
    }

    /// Adds an own scheme for lease backends. `connect` gets the whole URL, and takes it apart with
    /// [`StoreUrl::parse`](crate::StoreUrl::parse) so that it understands the common parameters and refuses unknown ones.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when `scheme` is not a URL scheme, is registered already, or is one of this library's own: those stay
    /// reserved even where they are compiled out, so that a feature never changes what a URL means.
    pub fn register<F, Fut>(&mut self, scheme: &str, connect: F) -> Result<(), LeaseError>
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn LeaseBackend>, LeaseError>> + Send + 'static,
    {
        let scheme = free_scheme(scheme, |scheme| self.backends.contains_key(scheme))?;
        self.insert_backend(&scheme, connect);
        Ok(())
    }

    /// Adds an own scheme for guarded destinations; it may be one that [`register`](Self::register) has added for leases.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_destination<F, Fut>(&mut self, scheme: &str, connect: F) -> Result<(), LeaseError>
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn GuardedDestination>, LeaseError>> + Send + 'static,
    {
        let scheme = free_scheme(scheme, |scheme| self.destinations.contains_key(scheme))?;
        self.insert_destination(&scheme, connect);
        Ok(())
    }

    /// The schemes of lease backends that [`connect`](Self::connect) takes, in order.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.backends.keys().map(String::as_str)
    }

    /// The schemes that [`connect_destination`](Self::connect_destination) takes, in order.
    pub fn destination_schemes(&self) -> impl Iterator<Item = &str> {
        self.destinations.keys().map(String::as_str)
    }

    /// Connects to the lease store that `url` names.
    ///
    /// # Errors
    /// As [`connect`](crate::connect).
    ///
    /// # Cancel safety
    /// The connection is given up. Nothing was granted.
    pub async fn connect(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        let scheme = scheme_of(url)?;
        match self.backends.get(&scheme) {
            Some(connect) => connect(url.to_owned()).await,
            None => Err(unknown(scheme, "leases", self.schemes())),
        }
    }

    /// Connects to the guarded destination that `url` names.
    ///
    /// # Errors
    /// As [`connect`](crate::connect).
    ///
    /// # Cancel safety
    /// The connection is given up. No mark was raised.
    pub async fn connect_destination(&self, url: &str) -> Result<Arc<dyn GuardedDestination>, LeaseError> {
        let scheme = scheme_of(url)?;
        match self.destinations.get(&scheme) {
            Some(connect) => connect(url.to_owned()).await,
            None => Err(unknown(scheme, "guarded destinations", self.destination_schemes())),
        }
    }

    pub(crate) fn insert_backend<F, Fut>(&mut self, scheme: &str, connect: F)
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn LeaseBackend>, LeaseError>> + Send + 'static,
    {
        let connect: BackendFn = Arc::new(move |url| Box::pin(connect(url)));
        self.backends.insert(scheme.to_owned(), connect);
    }

    pub(crate) fn insert_destination<F, Fut>(&mut self, scheme: &str, connect: F)
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn GuardedDestination>, LeaseError>> + Send + 'static,
    {
        let connect: DestinationFn = Arc::new(move |url| Box::pin(connect(url)));
        self.destinations.insert(scheme.to_owned(), connect);
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("schemes", &self.backends.keys())
            .field("destination_schemes", &self.destinations.keys())
            .finish()
    }
}

/// The scheme of a URL, in lower case. What is no scheme may be a misplaced password, so it is not repeated.
fn scheme_of(url: &str) -> Result<String, LeaseError> {
    let before_colon = url.split_once(':').map(|(scheme, _)| scheme);
    before_colon.filter(|scheme| is_scheme(scheme)).map(str::to_ascii_lowercase).ok_or_else(|| {
        LeaseError::InvalidConfig {
            reason: "this is not a URL: it must begin with a scheme and a colon, such as `sqlite:` or `redis://`"
                .into(),
        }
    })
}

/// As RFC 3986 has it: a letter, then letters, digits, `+`, `-` and `.`.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn free_scheme(scheme: &str, is_taken: impl Fn(&str) -> bool) -> Result<String, LeaseError> {
    let refuse = |reason: String| Err(LeaseError::InvalidConfig { reason });
    if !is_scheme(scheme) {
        return refuse(format!("`{scheme}` is not a URL scheme; give a letter, then letters, digits, + - and ."));
    }
    let scheme = scheme.to_ascii_lowercase();
    if builtin::is_reserved(&scheme) {
        return refuse(format!("the scheme `{scheme}` is Leasehold's own; choose another, such as `my-{scheme}`"));
    }
    if is_taken(&scheme) {
        return refuse(format!(
            "the scheme `{scheme}` is registered already; choose another, or begin with a new registry"
        ));
    }
    Ok(scheme)
}

fn unknown<'a>(scheme: String, what: &str, known: impl Iterator<Item = &'a str>) -> LeaseError {
    let advice = builtin::missing_features(&scheme).unwrap_or_else(|| {
        let known = known.collect::<Vec<_>>().join(", ");
        format!("registered here for {what}: {known}")
    });
    LeaseError::UnknownScheme { scheme, advice }
}
