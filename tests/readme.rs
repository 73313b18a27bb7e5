//! The front page says what there is: features, schemes, parameters, files. Its code runs as doc tests, its matrix is the suite's.

use leasehold::{ConnectOptions, Registry};
use std::path::Path;

const README: &str = include_str!("../README.md");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_feature_is_in_it() {
    let manifest: toml::Table = std::fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let features = manifest["features"].as_table().unwrap();
    for feature in features.keys().filter(|name| *name != "default") {
        assert!(README.contains(&format!("| `{feature}` |")), "no row for the feature {feature}");
    }
    assert_eq!(features["default"].as_array().unwrap().len(), 0, "it says that there is memory only");
}

#[test]
fn every_scheme_and_parameter_is_in_it() {
    let registry = Registry::new();
    // The longer spelling of one scheme needs no row of its own.
    for scheme in registry.schemes().filter(|scheme| *scheme != "postgresql") {
        assert!(README.contains(&format!("`{scheme}:")), "no URL for the scheme {scheme}");
    }
    for parameter in ConnectOptions::PARAMETERS {
        assert!(README.contains(&format!("`{parameter}`")), "nothing about the parameter {parameter}");
    }
}

#[test]
fn the_defaults_in_it_are_the_defaults() {
    let options = ConnectOptions::default();
    assert_eq!((options.call_timeout.as_millis(), options.connect_timeout.as_millis()), (2_000, 5_000));
    assert_eq!((options.idle_retention.as_secs(), options.epoch), (24 * 3_600, 0));
    assert!(README.contains("`call_timeout_ms` (2,000), `connect_timeout_ms` (5,000), `idle_retention_ms` (24 h)"));
}

#[test]
fn its_links_lead_somewhere() {
    let targets: Vec<_> = README
        .split("](")
        .skip(1)
        .map(|rest| rest.split_once(')').expect("a link ends").0)
        .filter(|target| !target.contains("://"))
        .collect();
    assert!(targets.len() >= 6, "{targets:?}");
    for target in targets {
        assert!(root().join(target).exists(), "{target} does not exist");
    }
}

#[test]
fn its_matrix_has_its_place() {
    let (begin, end) = ("<!-- matrix:begin -->", "<!-- matrix:end -->");
    assert_eq!((README.matches(begin).count(), README.matches(end).count()), (1, 1));
    assert!(README.find(begin) < README.find(end));
    // The promise of the first screen: what it is, then the matrix, then the two commands.
    let line = README.lines().position(|line| line == begin).unwrap();
    assert!(line < 12, "the matrix begins in line {line}");
}

#[test]
fn its_commands_exist() {
    assert!(README.contains("cargo run --release -p conformance-tests") && README.contains("./test"));
    for file in ["test", "examples/fenced_write.rs", "examples/own_scheme.rs", "conformance-tests/Cargo.toml"] {
        assert!(root().join(file).is_file(), "{file}");
    }
    let examples: Vec<_> = std::fs::read_dir(root().join("examples")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(examples.len() >= 5, "{examples:?}");
    for example in examples {
        let name = example.file_stem().unwrap().to_str().unwrap();
        assert!(README.contains(&format!("--example {name}")) || README.contains(&format!("`{name}`")), "{name}");
    }
}
