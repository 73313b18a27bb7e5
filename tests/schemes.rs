//! What a URL means, under whatever features this was built with.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold::{ErrorKind, GuardedDestination, LeaseBackend, LeaseError, LeaseExt, Registry};
use std::sync::Arc;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

/// Every scheme of the library, and the features that it needs, with whether they are on.
const SCHEMES: &[(&str, &[(&str, bool)])] = &[
    ("sqlite", &[("sqlite", cfg!(feature = "sqlite"))]),
    ("redis", &[("redis", cfg!(feature = "redis"))]),
    ("rediss", &[("redis", cfg!(feature = "redis")), ("tls-rustls", cfg!(feature = "tls-rustls"))]),
    ("redis+fred", &[("redis-fred", cfg!(feature = "redis-fred"))]),
    ("rediss+fred", &[("redis-fred", cfg!(feature = "redis-fred")), ("tls-rustls", cfg!(feature = "tls-rustls"))]),
    ("etcd", &[("etcd", cfg!(feature = "etcd"))]),
    ("etcds", &[("etcd", cfg!(feature = "etcd")), ("tls-rustls", cfg!(feature = "tls-rustls"))]),
    ("postgres", &[("postgres", cfg!(feature = "postgres"))]),
    ("postgresql", &[("postgres", cfg!(feature = "postgres"))]),
];

fn is_compiled_in(features: &[(&str, bool)]) -> bool {
    features.iter().all(|(_, on)| *on)
}

/// The advice of an unknown scheme, for leases and for destinations.
async fn advices(url: &str) -> [(String, String); 2] {
    let registry = Registry::new();
    let errors = [registry.connect(url).await.unwrap_err(), registry.connect_destination(url).await.unwrap_err()];
    errors.map(|error| {
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        match error {
            LeaseError::UnknownScheme { scheme, advice } => (scheme, advice),
            other => panic!("not an unknown scheme: {other}"),
        }
    })
}

#[tokio::test]
async fn a_compiled_out_scheme_names_the_missing_features() {
    for (name, features) in SCHEMES.iter().filter(|(_, features)| !is_compiled_in(features)) {
        for (scheme, advice) in advices(&format!("{name}://user:s3cret@localhost/")).await {
            assert_eq!(&scheme, name);
            assert!(advice.contains("compiled out"), "{advice}");
            assert!(!advice.contains("s3cret"), "{advice}");
            for (feature, on) in *features {
                assert_eq!(advice.contains(&format!("`{feature}`")), !on, "{advice}");
            }
        }
    }
}

#[test]
fn the_list_of_schemes_is_what_is_compiled_in() {
    let mut expected: Vec<_> =
        SCHEMES.iter().filter(|(_, features)| is_compiled_in(features)).map(|(name, _)| *name).collect();
    expected.push("memory");
    expected.sort_unstable();
    let registry = Registry::new();
    assert_eq!(registry.schemes().collect::<Vec<_>>(), expected);
    assert_eq!(registry.destination_schemes().collect::<Vec<_>>(), expected);
}

/// Each scheme that is compiled in reaches its backend: a parameter that nobody reads is refused there, before any I/O.
#[tokio::test]
async fn every_compiled_in_scheme_refuses_an_unknown_parameter() {
    let registry = Registry::new();
    for scheme in registry.schemes() {
        let url = match scheme {
            "memory" | "sqlite" => format!("{scheme}:nowhere?nonsense=1"),
            _ => format!("{scheme}://user:s3cret@127.0.0.1:1/db?nonsense=1"),
        };
        for error in [registry.connect(&url).await.unwrap_err(), registry.connect_destination(&url).await.unwrap_err()]
        {
            assert!(
                matches!(&error, LeaseError::UnknownParameter { name, known }
                    if name == "nonsense" && known.contains(&"namespace")),
                "{scheme}: {error}"
            );
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}

/// Port 1 of this machine refuses connections: nothing was sent, whichever client it is, and the password stays where it was.
#[tokio::test]
async fn an_unreachable_server_is_named_without_its_password() {
    let registry = Registry::new();
    for scheme in registry.schemes().filter(|scheme| !matches!(*scheme, "memory" | "sqlite")) {
        let url = format!("{scheme}://user:s3cret@127.0.0.1:1");
        for error in [registry.connect(&url).await.unwrap_err(), registry.connect_destination(&url).await.unwrap_err()]
        {
            assert!(matches!(error, LeaseError::Unreachable { .. }), "{scheme}: {error:?}");
            assert!(error.to_string().contains("127.0.0.1:1"), "{scheme}: {error}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{scheme}: {error:?}");
        }
    }
}

#[tokio::test]
async fn an_unknown_scheme_lists_the_registered_ones() {
    for (scheme, advice) in advices("zookeeper://user:s3cret@localhost/").await {
        assert_eq!(scheme, "zookeeper");
        assert!(advice.contains("memory"), "{advice}");
        for (name, features) in SCHEMES {
            let listed = advice.split([' ', ',']).any(|word| word == *name);
            assert_eq!(listed, is_compiled_in(features), "{name}: {advice}");
        }
    }
}

#[tokio::test]
async fn what_is_no_url_is_refused_and_not_repeated() {
    for text in ["", "s3cret", "s3cret@localhost:6379", "://s3cret", "1s3cret://x", " redis://s3cret"] {
        let error = leasehold::connect(text).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidConfig { .. }), "{text}: {error}");
        assert!(error.to_string().contains("scheme"), "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn schemes_are_not_case_sensitive() {
    assert_eq!(leasehold::connect("MEMORY:").await.unwrap().description().name, "memory");
}

async fn excludes(one: &Arc<dyn LeaseBackend>, two: &Arc<dyn LeaseBackend>) -> bool {
    let lease = one.try_acquire("job", TTL).await.unwrap().unwrap();
    let free = two.try_acquire("job", TTL).await.unwrap();
    assert_eq!(one.release(&lease).await.unwrap(), leasehold::Release::Released, "for the next question");
    free.is_none()
}

#[tokio::test]
async fn a_named_memory_store_is_one_store_per_registry_and_namespace() {
    let registry = Registry::new();
    let one = registry.connect("memory:shared").await.unwrap();
    let same = registry.clone().connect("memory:shared").await.unwrap();
    assert!(excludes(&one, &same).await);
    for (other, url) in [
        (&registry, "memory:other"),
        (&registry, "memory:shared?namespace=elsewhere"),
        (&registry, "memory:"),
        (&Registry::new(), "memory:shared"),
    ] {
        assert!(!excludes(&one, &other.connect(url).await.unwrap()).await, "{url}");
    }
}

#[tokio::test]
async fn a_named_memory_destination_is_kept_too() {
    let registry = Registry::new();
    let backend = registry.connect("memory:").await.unwrap();
    let lease = backend.try_acquire("job", TTL).await.unwrap().unwrap();
    let token = lease.token().unwrap();
    let [one, two]: [Arc<dyn GuardedDestination>; 2] = [
        registry.connect_destination("memory:shared").await.unwrap(),
        registry.connect_destination("memory:shared").await.unwrap(),
    ];
    one.adopt(None, token.authority()).await.unwrap();
    two.write(lease.resource(), token, "x").await.unwrap();
    assert_eq!(one.read(lease.resource()).await.unwrap().value.as_deref(), Some("x"));
}

#[tokio::test]
async fn memory_urls_say_what_to_write() {
    for (url, says) in [
        ("memory:shared", "Registry"),
        ("memory://shared", "memory:NAME"),
        ("memory:a/b", "memory:NAME"),
        ("memory:x#y", "memory:NAME"),
        ("memory:?epoch=1", "epoch"),
        ("memory:?call_timeout_ms=0", "from 1 to"),
    ] {
        let error = leasehold::connect(url).await.unwrap_err();
        assert!(error.to_string().contains(says), "{url}: {error}");
        let error = leasehold::connect_destination(url).await.unwrap_err();
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    assert!(leasehold::connect("memory:?call_timeout_ms=5&namespace=a&epoch=0").await.is_ok());
}

fn toy(registry: &mut Registry, scheme: &str) -> Result<(), LeaseError> {
    registry.register(scheme, |_url| async {
        let backend: Arc<dyn LeaseBackend> = Arc::new(leasehold::memory::MemoryBackend::new()?);
        Ok(backend)
    })
}

#[tokio::test]
async fn an_own_scheme_is_connected_to_and_listed() {
    let mut registry = Registry::new();
    toy(&mut registry, "Toy").unwrap();
    assert!(registry.schemes().any(|scheme| scheme == "toy"));
    assert!(registry.connect("toy:anything").await.is_ok());
    let error = registry.connect_destination("toy:anything").await.unwrap_err();
    assert!(error.to_string().contains("guarded destinations"), "{error}");
    assert!(Registry::new().connect("toy:anything").await.is_err(), "no globals");
}

#[test]
fn own_schemes_never_change_what_a_url_means() {
    let mut registry = Registry::new();
    toy(&mut registry, "toy").unwrap();
    let refused = |registry: &mut Registry, scheme| toy(registry, scheme).unwrap_err().to_string();
    assert!(refused(&mut registry, "TOY").contains("registered already"));
    assert!(refused(&mut registry, "memory").contains("Leasehold's own"));
    for bad in ["", "1a", "a b", "a:"] {
        assert!(refused(&mut registry, bad).contains("not a URL scheme"), "{bad}");
    }
    for (scheme, _) in SCHEMES {
        // Also where it is compiled out: turning the feature on must not turn this into another store.
        assert!(refused(&mut registry, scheme).contains("Leasehold's own"), "{scheme}");
    }
}
