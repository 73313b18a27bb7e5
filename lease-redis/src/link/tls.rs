//! TLS with rustls and ring, always verified.

use crate::config::RedisConfig;
use rustls::crypto::{CryptoProvider, ring};

/// Both clients ask rustls for the process's default provider, and panic or fail where there is none.
pub(super) fn ensure_provider(config: &RedisConfig) {
    if config.tls && CryptoProvider::get_default().is_none() {
        // It fails only when another thread has just installed one, which serves as well.
        drop(ring::default_provider().install_default());
    }
}

/// What fred connects with when the caller names the trusted certificates.
#[cfg(feature = "client-fred")]
pub(super) fn client_config(pem: &[u8]) -> Result<rustls::ClientConfig, lease_core::LeaseError> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    let bad = |reason: String| lease_core::LeaseError::InvalidConfig {
        reason: format!("`tls_ca` has no usable certificate: {reason}"),
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|e| bad(e.to_string()))?).map_err(|e| bad(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("the file has no PEM block `CERTIFICATE`".into()));
    }
    Ok(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}
