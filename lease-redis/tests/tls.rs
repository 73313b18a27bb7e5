//! TLS on a real server: verified, on both clients, and without a provider that somebody else has installed.
#![cfg(all(feature = "tls-rustls", any(feature = "client-redis", feature = "client-fred")))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::LeaseBackend;
use lease_core::{Fence, LeaseError};
use lease_redis::RedisBackend;
use lease_servers::{RedisSetup, Server};
use std::path::Path;
use std::process::Command;

/// A server with TLS on a port of its own, whose certificate is for `localhost` only; and the folder with its authority's certificate.
struct Tls {
    _server: Server,
    folder: tempfile::TempDir,
    port: u16,
}

impl Tls {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for authority in ["ca", "other"] {
            let subject = format!("/CN={authority}");
            openssl(
                folder.path(),
                &[
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                    "-nodes",
                    "-days",
                    "2",
                    "-subj",
                    &subject,
                    "-keyout",
                    &format!("{authority}.key"),
                    "-out",
                    &format!("{authority}.crt"),
                ],
            );
        }
        openssl(
            folder.path(),
            &[
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                "/CN=localhost",
                "-keyout",
                "server.key",
                "-out",
                "server.csr",
            ],
        );
        std::fs::write(folder.path().join("names"), "subjectAltName=DNS:localhost\n").unwrap();
        openssl(
            folder.path(),
            &[
                "x509",
                "-req",
                "-in",
                "server.csr",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "2",
                "-extfile",
                "names",
                "-out",
                "server.crt",
            ],
        );
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let extra_args = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &file("server.crt"),
            "--tls-key-file",
            &file("server.key"),
            "--tls-ca-cert-file",
            &file("ca.crt"),
            "--tls-auth-clients",
            "no",
        ];
        let extra_args = extra_args.iter().map(|arg| (*arg).to_owned()).collect();
        let server = lease_servers::redis(&RedisSetup { extra_args, ..RedisSetup::default() }).unwrap();
        Self { _server: server, folder, port }
    }

    fn url(&self, client: &str, host: &str, ca: Option<&str>) -> String {
        let scheme = client.replacen("redis", "rediss", 1);
        let ca = ca.map(|ca| format!("&tls_ca={}", self.folder.path().join(ca).display())).unwrap_or_default();
        format!("{scheme}://{host}:{}/?connect_timeout_ms=20000{ca}", self.port)
    }
}

fn openssl(folder: &Path, args: &[&str]) {
    let output = Command::new("openssl").args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

both! {
    async fn certificates_are_verified(_server: &mut Server, client: &str) {
        let tls = Tls::start();
        let backend = RedisBackend::connect(&tls.url(client, "localhost", Some("ca.crt"))).await.unwrap();
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        let Fence::LiveOwner(register) = backend.fence() else { panic!() };
        register.write(&lease, "x").await.unwrap();
        for (host, ca, what) in [
            ("127.0.0.1", Some("ca.crt"), "another name"),
            ("localhost", Some("other.crt"), "another authority"),
            ("localhost", None, "the system's authorities"),
        ] {
            let error = RedisBackend::connect(&tls.url(client, host, ca)).await.unwrap_err();
            assert!(matches!(error, LeaseError::Unreachable { .. }), "{what}: {error}");
            assert!(error.to_string().to_lowercase().contains("certificate"), "{what}: {error}");
        }
        for (ca, says) in [("no-such-file", "tls_ca"), ("server.key", "ertificate")] {
            let error = RedisBackend::connect(&tls.url(client, "localhost", Some(ca))).await.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
