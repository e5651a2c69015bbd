//! The handshake, without I/O: bytes in, bytes out.

use std::fmt;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{AlertDescription, ServerConfig};
use samite_types::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use super::keys::{client_config, key_name};
use super::record::{
    KeySchedule, RECORD_LEN_MAX, RecordKeys, RecordOpener, RecordSealer, record_len,
};
use crate::credential::Credential;
use crate::proof::Binding;

/// Most bytes that a peer may send in a handshake. A chain of certificates has some KiB.
const RECEIVED_LEN_MAX: usize = 64 << 10;

enum HandshakeSide {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// A handshake under way.
pub(crate) struct TlsHandshake {
    side: HandshakeSide,
    /// Bytes that have come and were not given to rustls, which gets whole records one by one: what follows the handshake is not for it.
    received: Vec<u8>,
    /// Records that rustls has not done with.
    records: Vec<u8>,
    /// Bytes that have ever come.
    received_len: usize,
    /// Over what was sent, and over what was received and belongs to the handshake.
    digests: (Sha256, Sha256),
}

/// A finished handshake.
#[derive(Debug)]
pub(crate) struct TlsSession {
    pub(crate) sealer: RecordSealer,
    pub(crate) opener: RecordOpener,
    pub(crate) binding: Binding,
}

/// The step that rustls wants next.
enum HandshakeStep {
    Again,
    /// Another record, unless the handshake is finished.
    Record,
}

impl TlsHandshake {
    pub(crate) fn client(credential: &Credential, host: &str) -> Result<Self> {
        // Keys from the cluster key belong to no host in particular. The name says which of the
        // cluster's keys the node's is to come of.
        let name = match (credential.authorities(), credential.key_number()) {
            (None, Some(number)) => key_name(number),
            _ => host.to_owned(),
        };
        let name = ServerName::try_from(name).map_err(|_| {
            Error::new(ErrorKind::Invalid, format!("{host}: no name that a certificate can have"))
        })?;
        let connection = UnbufferedClientConnection::new(client_config(credential)?, name);
        Ok(Self::new(HandshakeSide::Client(connection.map_err(refused)?)))
    }

    pub(crate) fn server(config: &Arc<ServerConfig>) -> Result<Self> {
        let connection = UnbufferedServerConnection::new(Arc::clone(config));
        Ok(Self::new(HandshakeSide::Server(connection.map_err(refused)?)))
    }

    fn new(side: HandshakeSide) -> Self {
        let (received, records) = (Vec::new(), Vec::new());
        Self { side, received, records, received_len: 0, digests: Default::default() }
    }

    /// Nothing has come yet.
    pub(crate) const fn is_fresh(&self) -> bool {
        self.received_len == 0
    }

    #[cfg(test)]
    pub(super) fn kept_len(&self) -> usize {
        self.received.len() + self.records.len()
    }

    /// Takes bytes that have come; what is to be sent is appended to `out`, also with an error. `true`: it is finished.
    ///
    /// # Errors
    /// `WrongKey`, `Denied`, `Corrupt`, `TooLarge`.
    pub(crate) fn advance(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.received_len += bytes.len();
        self.received.extend_from_slice(bytes);
        loop {
            let begin = out.len();
            let (discard, step) = match &mut self.side {
                HandshakeSide::Client(side) => {
                    step(side.process_tls_records(&mut self.records), out)
                }
                HandshakeSide::Server(side) => {
                    step(side.process_tls_records(&mut self.records), out)
                }
            };
            self.records.drain(..discard);
            self.digests.0.update(&out[begin..]);
            match step {
                Ok(HandshakeStep::Again) => {}
                Ok(HandshakeStep::Record) if self.is_done() => return Ok(true),
                Ok(HandshakeStep::Record) => {
                    if !self.next_record()? {
                        return Ok(false);
                    }
                }
                Err(error) => {
                    self.say_why(out);
                    return Err(refused(error));
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        let is_handshaking = match &self.side {
            HandshakeSide::Client(side) => side.is_handshaking(),
            HandshakeSide::Server(side) => side.is_handshaking(),
        };
        !is_handshaking && self.records.is_empty()
    }

    /// Gives rustls another record, if all of it is here.
    fn next_record(&mut self) -> Result<bool> {
        let len = record_len(&self.received);
        if self.received_len > RECEIVED_LEN_MAX || len.is_some_and(|len| len > RECORD_LEN_MAX) {
            return Err(Error::new(ErrorKind::TooLarge, "TLS handshake is too long"));
        }
        let Some(record) = len.and_then(|len| self.received.get(..len)) else { return Ok(false) };
        let len = record.len();
        self.digests.1.update(record);
        self.records.extend_from_slice(record);
        self.received.drain(..len);
        Ok(true)
    }

    /// After an error: what waits to be sent, an alert at its end. rustls does not expect to go on with records after it.
    fn say_why(&mut self, out: &mut Vec<u8>) {
        while self.has_words() {
            let step = match &mut self.side {
                HandshakeSide::Client(side) => {
                    step(side.process_tls_records(&mut self.records), out).1
                }
                HandshakeSide::Server(side) => {
                    step(side.process_tls_records(&mut self.records), out).1
                }
            };
            if step.is_err() {
                return;
            }
        }
    }

    fn has_words(&self) -> bool {
        match &self.side {
            HandshakeSide::Client(side) => side.wants_write(),
            HandshakeSide::Server(side) => side.wants_write(),
        }
    }

    /// The two directions, after [`TlsHandshake::advance`] has said that it is finished.
    pub(crate) fn finish(self) -> Result<TlsSession> {
        let (is_client, extracted) = match self.side {
            HandshakeSide::Client(connection) => (
                true,
                connection
                    .dangerous_into_kernel_connection()
                    .map(|(secrets, schedule)| (secrets, KeySchedule::Client(schedule))),
            ),
            HandshakeSide::Server(connection) => (
                false,
                connection
                    .dangerous_into_kernel_connection()
                    .map(|(secrets, schedule)| (secrets, KeySchedule::Server(schedule))),
            ),
        };
        let (secrets, schedule) = extracted.map_err(refused)?;
        let (sent, received) = (self.digests.0.finalize(), self.digests.1.finalize());
        let (client, server) = if is_client { (sent, received) } else { (received, sent) };
        let binding = Sha256::new().chain_update(client).chain_update(server).finalize().into();
        let made = RecordKeys::new(schedule).map(Arc::new).and_then(|keys| {
            let sealer = RecordSealer::new(&keys, secrets.tx)?;
            let opener = RecordOpener::new(&keys, secrets.rx, self.received)?;
            Some(TlsSession { sealer, opener, binding })
        });
        made.ok_or_else(|| Error::new(ErrorKind::Internal, "TLS cipher is not known here"))
    }
}

impl fmt::Debug for TlsHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsHandshake").field("received", &self.received_len).finish_non_exhaustive()
    }
}

type Stepped = std::result::Result<HandshakeStep, rustls::Error>;

/// Does the step that rustls wants. Returns the bytes of records that it has done with, too.
fn step<Data>(
    UnbufferedStatus { discard, state, .. }: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
) -> (usize, Stepped) {
    let step = match state {
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(&mut data, out).map(|()| HandshakeStep::Again)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(HandshakeStep::Again)
        }
        Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
            Ok(HandshakeStep::Record)
        }
        Ok(_) => Err(rustls::Error::General("data in the handshake".into())),
        Err(error) => Err(error),
    };
    (discard, step)
}

fn encode<Data>(
    data: &mut EncodeTlsData<'_, Data>,
    out: &mut Vec<u8>,
) -> std::result::Result<(), rustls::Error> {
    let begin = out.len();
    let mut room = 512;
    loop {
        out.resize(begin + room, 0);
        match data.encode(&mut out[begin..]) {
            Ok(len) => {
                out.truncate(begin + len);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) if size.required_size > room => {
                room = size.required_size;
            }
            Err(error) => {
                out.truncate(begin);
                return Err(rustls::Error::General(error.to_string()));
            }
        }
    }
}

/// The error for the user of a handshake that fails.
fn refused(error: rustls::Error) -> Error {
    use rustls::{CertificateError, Error as Tls};
    let refusals = [
        AlertDescription::BadCertificate,
        AlertDescription::CertificateUnknown,
        AlertDescription::AccessDenied,
        AlertDescription::DecryptError,
        AlertDescription::CertificateRequired,
        AlertDescription::UnknownCA,
    ];
    match error {
        Tls::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            Error::new(ErrorKind::WrongKey, "node does not hold this cluster's key")
        }
        Tls::InvalidCertificate(why) => {
            Error::new(ErrorKind::Denied, format!("peer's TLS certificate is not trusted: {why:?}"))
        }
        Tls::AlertReceived(alert) if refusals.contains(&alert) => Error::new(
            ErrorKind::WrongKey,
            format!(
                "peer refuses this side's TLS key: another cluster key, or another authority ({alert:?})"
            ),
        ),
        Tls::PeerIncompatible(_)
        | Tls::AlertReceived(
            AlertDescription::HandshakeFailure | AlertDescription::UnsupportedCertificate,
        ) => Error::new(
            ErrorKind::Denied,
            format!(
                "peer's TLS is set up differently (certificates from files at one end only?): {error}"
            ),
        ),
        error => Error::new(ErrorKind::Corrupt, format!("TLS handshake: {error}")),
    }
}
