//! What a user of each crate pulls in, as `cargo tree` tells it for this machine's target.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeSet;
use std::process::Command;

/// Database clients, and the stacks below them, by the beginning of their names.
const CLIENTS: &[&str] = &[
    "redis",
    "fred",
    "etcd-client",
    "tonic",
    "sqlx",
    "libsqlite3-sys",
    "lease-redis",
    "lease-etcd",
    "lease-postgres",
    "lease-sqlite",
];

/// Name and version of everything that a build of `package` compiles, build scripts included.
fn tree(package: &str, features: &[&str]) -> BTreeSet<(String, String)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--prefix", "none", "--format", "{p}", "--edges", "normal,build"])
        .args(["--package", package])
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let found: BTreeSet<_> = text.lines().filter(|line| !line.is_empty()).map(name_and_version).collect();
    assert!(found.iter().any(|(name, _)| name == package), "the tree of {package} begins with it");
    found
}

fn name_and_version(line: &str) -> (String, String) {
    let mut words = line.split(' ');
    let name = words.next().expect("a name");
    let version = words.next().expect("a version");
    (name.to_owned(), version.to_owned())
}

fn clients_in(package: &str, features: &[&str]) -> Vec<String> {
    tree(package, features)
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| CLIENTS.iter().any(|client| name == client || name.starts_with(&format!("{client}-"))))
        .collect()
}

#[test]
fn the_contract_and_the_suites_library_pull_no_client() {
    assert_eq!(clients_in("lease-core", &["--all-features"]), Vec::<String>::new());
    assert_eq!(clients_in("lease-http", &["--all-features"]), Vec::<String>::new());
    assert_eq!(clients_in("conformance-tests", &["--no-default-features"]), Vec::<String>::new());
    assert_eq!(clients_in("leasehold", &[]), Vec::<String>::new());
}

#[test]
fn a_feature_pulls_its_own_client_only() {
    for (feature, pulls) in [
        ("sqlite", "sqlx-sqlite"),
        ("redis", "redis"),
        ("redis-fred", "fred"),
        ("etcd", "etcd-client"),
        ("postgres", "sqlx-postgres"),
    ] {
        let found = clients_in("leasehold", &["--features", feature]);
        assert!(found.iter().any(|name| name == pulls), "{feature}: {found:?}");
        for other in ["sqlx-sqlite", "redis", "fred", "etcd-client", "sqlx-postgres"] {
            assert!(other == pulls || !found.iter().any(|name| name == other), "{feature}: {found:?}");
        }
    }
    assert_eq!(clients_in("leasehold", &["--features", "tls-rustls"]), Vec::<String>::new(), "TLS alone is nothing");
}

#[test]
fn there_is_one_tls_stack() {
    let found = tree("leasehold", &["--features", "full"]);
    let versions = |wanted: &str| found.iter().filter(|(name, _)| name == wanted).count();
    assert_eq!((versions("rustls"), versions("ring")), (1, 1));
    for other in ["aws-lc-rs", "aws-lc-sys", "aws-lc-fips-sys", "openssl", "openssl-sys", "native-tls"] {
        assert_eq!(versions(other), 0, "{other}");
    }
}

#[test]
fn without_the_feature_there_is_no_tls() {
    let all_but_tls = ["--features", "sqlite,redis,redis-fred,etcd,postgres"];
    let found = tree("leasehold", &all_but_tls);
    assert!(!found.iter().any(|(name, _)| name == "rustls"), "features only add");
}

/// Ceilings a little above what was counted, so that a new dependency is a decision. Whoever raises one says why in the commit.
#[test]
fn nobody_pulls_more_than_the_stated_number_of_crates() {
    for (package, features, ceiling) in [
        ("lease-core", "--all-features", 55),
        ("lease-http", "--all-features", 60),
        ("lease-sqlite", "--all-features", 120),
        ("lease-redis", "--all-features", 140),
        ("lease-etcd", "--all-features", 150),
        ("lease-postgres", "--all-features", 150),
        ("leasehold", "--no-default-features", 55),
        ("leasehold", "--all-features", 245),
        ("conformance-tests", "--no-default-features", 75),
    ] {
        let count = tree(package, &[features]).len();
        println!("{package} {features}: {count} crates, at most {ceiling}");
        assert!(count <= ceiling, "{package} {features}: {count} crates, more than {ceiling}");
        assert!(count > 5, "{package}: the count sees nothing");
    }
}
