//! Certificates of a site's own, from PEM files.

use std::fmt;

use rustls::ConfigBuilder;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WantsServerCert;
use samite_types::Result;

use super::keys::server_config;
use crate::authorities::{certificates, invalid};
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
