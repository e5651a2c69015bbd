//! TLS on the way to etcd: the identity that etcd must have, and the one that this side shows.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use samite_types::{Error, ErrorKind, Result};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Certificates for `https://` endpoints, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    authorities: Vec<u8>,
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for EtcdTls {
    /// Leaves the key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").field("has_own", &self.own.is_some()).finish_non_exhaustive()
    }
}

impl EtcdTls {
    /// etcd's certificates are signed by one of `authorities`, and by no other. `own` is shown by
    /// this side if etcd asks for it: its certificate with those between it and the authority, and
    /// its private key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: no PEM, or the key belongs to another certificate.
    pub fn new(authorities: Vec<u8>, own: Option<(Vec<u8>, Vec<u8>)>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&authorities, "etcd's authority")? {
            roots.add(certificate).map_err(|error| invalid("etcd's authority", error))?;
        }
        if let Some((chain, key)) = &own {
            let chain = certificates(chain, "certificate for etcd")?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| invalid("key for etcd", format_args!("{error:?}")))?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| invalid("TLS to etcd", error))?
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
                .map_err(|error| invalid("certificate for etcd", error))?;
        }
        Ok(Self { authorities, own })
    }

    /// As the HTTP client takes it.
    pub(super) fn config(&self) -> Result<TlsConfig> {
        let shown = |pem: &[u8], what| -> Result<Vec<Certificate<'static>>> {
            let all = certificates(pem, what)?;
            Ok(all.iter().map(|one| Certificate::from_der(one).to_owned()).collect())
        };
        let roots = RootCerts::new_with_certs(&shown(&self.authorities, "etcd's authority")?);
        let own = match &self.own {
            Some((chain, key)) => {
                let key = PrivateKey::from_pem(key);
                let key = key.map_err(|error| invalid("key for etcd", error))?;
                Some(ClientCert::new_with_certs(&shown(chain, "certificate for etcd")?, key))
            }
            None => None,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = TlsConfig::builder().root_certs(roots).client_cert(own);
        Ok(config.unversioned_rustls_crypto_provider(provider).build())
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

/// Whether a call failed because of the identity that an end showed the other, which no repetition
/// changes, and why.
pub(super) fn refusal(error: &ureq::Error) -> Option<String> {
    let ureq::Error::Io(error) = error else { return None };
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::InvalidCertificate(why) => {
            format!("its certificate is not trusted: {why} (--etcd-ca says whom to trust)")
        }
        rustls::Error::AlertReceived(alert) => {
            format!(
                "refuses the certificate that was shown, or misses one (--etcd-cert): {alert:?}"
            )
        }
        rustls::Error::InvalidMessage(_) => "takes no TLS at this port".to_owned(),
        _ => return None,
    })
}
