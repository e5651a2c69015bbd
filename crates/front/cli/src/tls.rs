//! The command line's arguments for TLS.

use std::path::{Path, PathBuf};

use samite_client::TlsAuthorities;
use samite_client::runtime::EtcdTlsFiles;
use samite_node::TlsFiles;
use samite_node::etcd::EtcdTls;

use crate::failure::{CommandFailure, IoContext};

/// TLS of a cluster that is to be started.
#[derive(clap::Args)]
pub struct TlsArgs {
    /// Take TLS on tcp, and nothing else; nobody needs a certificate, for both ends' keys come of the cluster key
    #[arg(long, conflicts_with = "no_tcp")]
    tls: bool,
    /// The same, with this certificate (PEM) for the nodes
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "no_tcp",
        requires = "tls_key",
        requires = "tls_ca"
    )]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Who has signed the certificate (PEM); clients and nodes trust nobody else
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

/// The requested TLS settings, read and checked.
pub struct TlsRequest {
    /// Whether there is to be TLS.
    pub is_on: bool,
    /// Absolute paths of the certificate and of its key.
    pub files: Option<(PathBuf, PathBuf)>,
    /// The authority that signs certificates, as PEM.
    pub authorities: Option<Vec<u8>>,
}

impl TlsArgs {
    /// Whether there is to be TLS.
    pub fn is_on(&self) -> bool {
        self.tls || self.has_files()
    }

    /// Whether with certificates of one's own.
    pub fn has_files(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Reads the files, if there are any.
    pub fn read(&self) -> Result<TlsRequest, CommandFailure> {
        let (Some(certificate), Some(key), Some(ca)) =
            (&self.tls_cert, &self.tls_key, &self.tls_ca)
        else {
            return Ok(TlsRequest { is_on: self.tls, files: None, authorities: None });
        };
        let refused = |option: &str, path: &Path, error: samite_types::Error| {
            CommandFailure::usage(format!("{option} {}: {error}", path.display()))
        };
        files(certificate, key)?
            .check()
            .map_err(|error| refused("--tls-cert", certificate, error))?;
        let authorities = read(ca)?;
        TlsAuthorities::from_pem(authorities.clone())
            .map_err(|error| refused("--tls-ca", ca, error))?;
        // Nodes run elsewhere, so that paths must not depend on where this is.
        let absolute = |path: &Path| path.canonicalize().doing(path.display());
        let files = Some((absolute(certificate)?, absolute(key)?));
        Ok(TlsRequest { is_on: true, files, authorities: Some(authorities) })
    }
}

/// Certificates for etcd by https.
#[derive(clap::Args)]
pub struct EtcdTlsArgs {
    /// Who has signed the certificates of etcd at https://… (PEM); nobody else is trusted
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Show etcd this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_key", requires = "etcd_ca")]
    pub etcd_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
}

impl EtcdTlsArgs {
    /// Absolute paths of the files, if there are any, and what is in them.
    pub fn read(&self) -> Result<Option<(EtcdTlsFiles, EtcdTls)>, CommandFailure> {
        let Some(authorities) = &self.etcd_ca else { return Ok(None) };
        let absolute = |path: &Path| path.canonicalize().doing(path.display());
        let mut files = EtcdTlsFiles { authorities: absolute(authorities)?, own: None };
        if let (Some(certificate), Some(key)) = (&self.etcd_cert, &self.etcd_key) {
            files.own = Some((absolute(certificate)?, absolute(key)?));
        }
        let own = match &files.own {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        let tls = EtcdTls::new(read(&files.authorities)?, own);
        let tls =
            tls.map_err(|error| CommandFailure::usage(format!("--etcd-ca, --etcd-cert: {error}")))?;
        Ok(Some((files, tls)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CommandFailure> {
    std::fs::read(path).doing(format_args!("read {}", path.display()))
}

/// A node's certificate and its key.
pub fn files(certificate: &Path, key: &Path) -> Result<TlsFiles, CommandFailure> {
    Ok(TlsFiles { chain: read(certificate)?, key: read(key)? })
}
