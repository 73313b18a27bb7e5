//! TLS: the right authority and name are accepted, all else is refused.

use crate::support::*;
use lease_core::{Effect, LeaseBackend, LeaseError};
use lease_etcd::EtcdBackend;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Makes `NAME.pem` and `NAME.key`, signed by themselves, for this address.
fn certificate(folder: &Path, name: &str, address: &str) {
    let file = |suffix| folder.join(format!("{name}.{suffix}")).display().to_string();
    let alt = format!("subjectAltName={address}");
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=test", "-addext", &alt, "-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &file("key"), "-out", &file("pem")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// An etcd that serves TLS with this certificate; the process ends with its handle.
async fn server(folder: &Path, certificate: &str) -> (tokio::process::Child, u16) {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (client, peer) = (format!("https://127.0.0.1:{}", free()), format!("http://127.0.0.1:{}", free()));
    let file = |name: String| folder.join(name).display().to_string();
    let child = tokio::process::Command::new("etcd")
        .args(["--data-dir", &file(format!("data-{certificate}"))])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap", "--log-level", "error"])
        .args(["--cert-file", &file(format!("{certificate}.pem")), "--key-file", &file(format!("{certificate}.key"))])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let port = client.rsplit(':').next().unwrap().parse().unwrap();
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (child, port)
}

#[tokio::test]
async fn only_the_right_certificate_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path(), "right", "IP:127.0.0.1");
    certificate(folder.path(), "other", "IP:127.0.0.1");
    certificate(folder.path(), "misnamed", "DNS:elsewhere.invalid");
    let url = |port: u16, trusted: &str| {
        let ca = folder.path().join(format!("{trusted}.pem"));
        format!("etcds://127.0.0.1:{port}/?connect_timeout_ms=60000&ca_file={}", ca.display())
    };
    let (_child, port) = server(folder.path(), "right").await;
    let backend = EtcdBackend::connect(&url(port, "right")).await.unwrap();
    assert!(backend.description().address.starts_with("etcds://"));
    acquire(&backend, "r", Duration::from_secs(30)).await;
    let (_other_child, other_port) = server(folder.path(), "misnamed").await;

    let no_ca = format!("etcds://127.0.0.1:{port}");
    for url in [url(port, "other"), url(other_port, "misnamed"), no_ca] {
        let error = EtcdBackend::connect(&url).await.unwrap_err();
        assert!(matches!(error, LeaseError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("certificate"), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    for (parameters, says) in [("ca_file=/none", "/none"), ("cert_file=x", "key_file")] {
        let error = EtcdBackend::connect(&format!("etcds://127.0.0.1:{port}?{parameters}")).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = EtcdBackend::connect("etcd://127.0.0.1:1?ca_file=x").await.unwrap_err();
    assert!(error.to_string().contains("etcds://"), "{error}");
}
