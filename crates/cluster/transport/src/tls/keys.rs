//! Keys for TLS from the cluster key, and the key that a client accepts from a node.

use std::fmt;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, PeerIncompatible, ServerConfig,
    SignatureScheme,
};
use samite_types::{Error, ErrorKind, Result};

use super::files::TlsFiles;
use crate::credential::Credential;
use crate::key::ClusterKey;
use crate::key_set::SharedKeys;

/// Application protocol, so that no other TLS service of a site takes part by mistake.
const PROTOCOL: &[u8] = b"samite";
/// DER before the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410, 7).
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// DER before the 32 bytes of an Ed25519 public key (RFC 8410, 4).
const ED25519_SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

fn failed(error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("set up TLS: {error}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn public_key(bytes: &[u8; 32]) -> SubjectPublicKeyInfoDer<'static> {
    SubjectPublicKeyInfoDer::from([&ED25519_SPKI[..], bytes].concat())
}

/// The key pair of the nodes, as what a node shows in TLS.
fn certified(key: &ClusterKey) -> Result<Arc<CertifiedKey>> {
    let pair = key.node_pair();
    let der = [&ED25519_PKCS8[..], pair.seed()].concat();
    let signing: Arc<dyn SigningKey> =
        rustls::crypto::ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der))
            .map_err(failed)?;
    // With raw public keys, what stands in the certificate's place is the key itself.
    let public = CertificateDer::from(public_key(&pair.public_key()).to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], signing)))
}

/// The server name by which a client says which cluster key it goes by.
pub(super) fn key_name(number: u32) -> String {
    format!("k{number}.samite")
}

/// Shows the key pair that comes of the cluster key which the client goes by.
#[derive(Debug)]
struct NodePairs(SharedKeys);

impl ResolvesServerCert for NodePairs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = self.0.load();
        let number = hello
            .server_name()
            .and_then(|name| name.strip_prefix('k')?.strip_suffix(".samite")?.parse().ok());
        let key = number.and_then(|number| keys.find(number)).unwrap_or_else(|| keys.current());
        certified(key).ok()
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// Configuration with which a node's event loops accept connections. Clients show nothing here:
/// the handshake inside asks for their proof, which holds for this connection alone.
pub(crate) fn server_config(
    keys: &SharedKeys,
    files: Option<&TlsFiles>,
) -> Result<Arc<ServerConfig>> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(failed)?.with_no_client_auth();
    let mut config = match files {
        Some(files) => files.serve(builder)?,
        None => builder.with_cert_resolver(Arc::new(NodePairs(keys.clone()))),
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A session that is resumed would not prove the key again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Configuration with which a client, or a node that dials another, connects.
pub(super) fn client_config(credential: &Credential) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(failed)?;
    let mut config = if let Some(authorities) = credential.authorities() {
        let mut config = builder.with_root_certificates(authorities.roots()?).with_no_client_auth();
        config.enable_sni = false;
        config
    } else {
        let node_key = credential.node_key().ok_or_else(|| {
            let words = "TLS needs the cluster key or a ticket, which tell the node's key";
            Error::new(ErrorKind::Invalid, words)
        })?;
        let known = PinnedKey { key: public_key(&node_key), algorithms };
        builder.dangerous().with_custom_certificate_verifier(Arc::new(known)).with_no_client_auth()
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Takes one public key, and no other.
#[derive(Debug)]
struct PinnedKey {
    key: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedKey {
    fn check(&self, shown: &CertificateDer<'_>) -> std::result::Result<(), rustls::Error> {
        // Public, so that the time which this takes tells nothing.
        if **shown == *self.key {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &self.key, signature, &self.algorithms)
    }
}

fn only_tls13<T>() -> std::result::Result<T, rustls::Error> {
    Err(PeerIncompatible::Tls12NotOffered.into())
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        only_tls13()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
