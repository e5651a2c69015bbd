//! Certificates of a site's own, from PEM files.

use std::fmt;
use std::sync::Arc;

use rustls::ConfigBuilder;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WantsServerCert;
use samite_types::{Error, ErrorKind, Result};

use super::keys::server_config;
use crate::key::ClusterKey;
use crate::key_set::SharedKeys;

/// A node's certificate, as PEM.
#[derive(Clone)]
pub struct TlsFiles {
    /// The certificate, then those between it and the authority.
    pub chain: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
}

impl fmt::Debug for TlsFiles {
    /// Leaves the key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").field("chain_len", &self.chain.len()).finish_non_exhaustive()
    }
}

fn invalid(what: &str, error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("{what}: {error}"))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| invalid(what, format_args!("{error:?}")))?;
    if all.is_empty() {
        return Err(invalid(what, "no certificate in it (PEM is expected)"));
    }
    Ok(all)
}

impl TlsFiles {
    /// Checks that a node can show it.
    ///
    /// # Errors
    /// `Invalid`: no PEM, or the key belongs to another certificate.
    pub fn check(&self) -> Result<()> {
        server_config(&SharedKeys::from(ClusterKey::new([0; ClusterKey::LEN])), Some(self))
            .map(drop)
    }

    pub(super) fn serve(
        &self,
        builder: ConfigBuilder<ServerConfig, WantsServerCert>,
    ) -> Result<ServerConfig> {
        let chain = certificates(&self.chain, "TLS certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| invalid("TLS key", format_args!("{error:?}")))?;
        builder.with_single_cert(chain, key).map_err(|error| invalid("TLS certificate", error))
    }
}

/// Certificates of the authorities that sign nodes' certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsAuthorities(Arc<Vec<u8>>);

impl TlsAuthorities {
    /// Checks that `pem` holds certificates.
    ///
    /// # Errors
    /// `Invalid`: it does not.
    pub fn from_pem(pem: Vec<u8>) -> Result<Self> {
        let authorities = Self(Arc::new(pem));
        authorities.roots()?;
        Ok(authorities)
    }

    /// The certificates, as PEM.
    #[must_use]
    pub fn pem(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.0, "TLS authority")? {
            roots.add(certificate).map_err(|error| invalid("TLS authority", error))?;
        }
        Ok(roots)
    }
}

impl fmt::Debug for TlsAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAuthorities").finish_non_exhaustive()
    }
}
