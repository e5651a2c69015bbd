//! The authorities that sign the TLS certificates of a site's nodes, from PEM files.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use samite_types::{Error, ErrorKind, Result};

pub(crate) fn invalid(what: &str, error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("{what}: {error}"))
}

pub(crate) fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| invalid(what, format_args!("{error:?}")))?;
    if all.is_empty() {
        return Err(invalid(what, "no certificate in it (PEM is expected)"));
    }
    Ok(all)
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

    pub(crate) fn roots(&self) -> Result<RootCertStore> {
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
