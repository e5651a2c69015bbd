//! Key pairs from the cluster key, and the keys that each end accepts from the other.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use samite_types::{Error, ErrorKind, Result};

use super::files::TlsFiles;
use crate::key::{ClusterKey, ProofRole};

/// Application protocol, so that no other TLS service of a site takes part by mistake.
const PROTOCOL: &[u8] = b"samite";
/// DER before the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410, 7).
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

fn failed(error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("set up TLS: {error}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The key pair of a side, which every holder of the cluster key can derive.
fn key_pair(key: &ClusterKey, role: ProofRole) -> Result<Arc<dyn SigningKey>> {
    let der = [&ED25519_PKCS8[..], &key.derive_tls_seed(role)].concat();
    rustls::crypto::ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).map_err(failed)
}

fn public_key(pair: &Arc<dyn SigningKey>) -> Result<SubjectPublicKeyInfoDer<'static>> {
    let key = pair.public_key().ok_or_else(|| failed("key pair without a public key"))?;
    Ok(key.into_owned())
}

fn certified(pair: Arc<dyn SigningKey>) -> Result<Arc<CertifiedKey>> {
    // With raw public keys, what stands in the certificate's place is the key itself.
    let public = CertificateDer::from(public_key(&pair)?.to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], pair)))
}

/// Configuration with which a node's event loops accept connections.
pub(crate) fn server_config(
    key: &ClusterKey,
    files: Option<&TlsFiles>,
) -> Result<Arc<ServerConfig>> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(failed)?;
    let mut config = if let Some(files) = files {
        files.serve(builder.with_no_client_auth())?
    } else {
        let known = PinnedKey::new(key, ProofRole::Client, algorithms)?;
        let own = certified(key_pair(key, ProofRole::Node)?)?;
        builder
            .with_client_cert_verifier(Arc::new(known))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)))
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A session that is resumed would not prove the key again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Configuration with which a client, or a node that dials another, connects.
pub(super) fn client_config(key: &ClusterKey) -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(failed)?;
    let mut config = if let Some(authorities) = key.authorities() {
        builder.with_root_certificates(authorities.roots()?).with_no_client_auth()
    } else {
        let known = PinnedKey::new(key, ProofRole::Node, algorithms)?;
        let own = certified(key_pair(key, ProofRole::Client)?)?;
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(known))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)))
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
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
    fn new(
        key: &ClusterKey,
        role: ProofRole,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<Self> {
        Ok(Self { key: public_key(&key_pair(key, role)?)?, algorithms })
    }

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

impl ClientCertVerifier for PinnedKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
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
