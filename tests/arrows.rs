//! The house rules that Cargo can tell: which crate may use which, and that versions and lints are the workspace's.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Floors of the house. An arrow goes from a crate to one on a lower floor, never along its own or up.
const FLOORS: &[(&str, u8)] = &[
    ("lease-core", 0),
    ("lease-servers", 0),
    ("lease-http", 1),
    ("lease-sqlite", 1),
    ("lease-redis", 1),
    ("lease-etcd", 1),
    ("lease-postgres", 1),
    ("leasehold", 2),
    ("conformance-tests", 3),
    ("lease-cli", 4),
    ("peers", 4),
    ("bench", 5),
];

/// On the backends' floor, with no store of its own.
const NO_BACKENDS: &[&str] = &["lease-http"];

/// A member of the workspace: where its manifest is, and the members that it depends on, dev- and build-dependencies included.
struct Member {
    manifest: String,
    uses: Vec<String>,
}

fn members() -> BTreeMap<String, Member> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = |value: &serde_json::Value| value.as_array().expect("a list in the metadata").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("a text in the metadata").to_owned();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let member = Member {
                manifest: text(&package["manifest_path"]),
                // A path is what tells a neighbour from a crate of the same name elsewhere.
                uses: list(&package["dependencies"])
                    .iter()
                    .filter(|dependency| dependency["path"].is_string())
                    .map(|dependency| text(&dependency["name"]))
                    .collect(),
            };
            (text(&package["name"]), member)
        })
        .collect()
}

fn floor(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(n, _)| *n == name).map(|(_, floor)| *floor)
}

/// What is wrong with the arrow between two crates, if anything.
fn fault(from: &str, to: &str) -> Option<String> {
    match (floor(from), floor(to)) {
        (Some(high), Some(low)) if high > low => None,
        (Some(high), Some(low)) => Some(format!("{from} (floor {high}) uses {to} (floor {low})")),
        _ => Some(format!("{from} or {to} has no floor yet: give it one in FLOORS")),
    }
}

#[test]
fn arrows_go_one_way() {
    let members = members();
    assert!(members.len() >= 8, "the metadata has only {}", members.len());
    let faults: Vec<_> = members
        .iter()
        .flat_map(|(user, member)| member.uses.iter().filter_map(|used| fault(user, used)))
        .chain(members.keys().filter(|name| floor(name).is_none()).cloned())
        .collect();
    assert_eq!(faults, Vec::<String>::new());
    assert!(members["leasehold"].uses.contains(&"lease-core".to_owned()), "it sees the arrows at all");
}

#[test]
fn an_arrow_up_or_along_is_a_fault() {
    assert_eq!(fault("lease-redis", "lease-core"), None);
    assert!(fault("lease-core", "lease-redis").is_some());
    assert!(fault("lease-redis", "lease-sqlite").is_some());
    assert!(fault("lease-redis", "newcomer").is_some());
}

fn read(manifest: &str) -> toml::Table {
    std::fs::read_to_string(manifest).unwrap().parse().unwrap()
}

/// The dependency tables of a manifest, those under `target` too.
fn dependency_tables(manifest: &toml::Table) -> Vec<&toml::Table> {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    std::iter::once(manifest)
        .chain(targets.into_iter().flat_map(|t| t.values().filter_map(toml::Value::as_table)))
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()))
        .collect()
}

fn inherits(value: &toml::Value) -> bool {
    value.get("workspace").and_then(toml::Value::as_bool) == Some(true)
}

fn not_inherited(manifest: &toml::Table) -> Vec<String> {
    dependency_tables(manifest)
        .into_iter()
        .flatten()
        .filter(|(_, value)| !inherits(value))
        .map(|(name, _)| name.clone())
        .collect()
}

#[test]
fn versions_and_lints_are_the_workspaces() {
    for (name, member) in members() {
        let manifest = read(&member.manifest);
        assert_eq!(not_inherited(&manifest), Vec::<String>::new(), "{name}: write `x.workspace = true`");
        assert!(manifest.get("lints").is_some_and(inherits), "{name}: [lints] workspace = true");
        for key in ["version", "edition", "rust-version", "license"] {
            let value = &manifest["package"][key];
            assert!(inherits(value), "{name}: {key}.workspace = true");
        }
    }
}

#[test]
fn a_version_of_its_own_is_found() {
    let manifest =
        "[dependencies]\na.workspace = true\nb = \"1\"\n[target.'cfg(unix)'.dev-dependencies]\nc = { version = \"1\" }";
    assert_eq!(not_inherited(&manifest.parse().unwrap()), ["b", "c"]);
}

#[test]
fn rooms_have_the_same_file_names() {
    const FILES: [&str; 9] = ["lib", "config", "backend", "claims", "keys", "wire", "fence", "guard", "error"];
    let is_backend = |name: &str| floor(name) == Some(1) && !NO_BACKENDS.contains(&name);
    let members = members();
    let rooms: Vec<_> = members.iter().filter(|(name, _)| is_backend(name)).collect();
    for name in ["lease-sqlite", "lease-redis", "lease-etcd", "lease-postgres"] {
        assert!(rooms.iter().any(|(room, _)| *room == name), "{name} was not looked at");
    }
    for (name, member) in rooms {
        let src = Path::new(&member.manifest).with_file_name("src");
        for file in FILES {
            assert!(
                src.join(file).with_extension("rs").is_file() || src.join(file).is_dir(),
                "{name} has no src/{file}.rs"
            );
        }
    }
}
