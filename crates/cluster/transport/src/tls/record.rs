//! The records after the handshake, each direction by itself.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, ProtocolVersion, Tls13CipherSuite,
};
use smallvec::SmallVec;

use crate::socket::{receive_append, send_now};

/// Longest record: header, content, its type, and the tag of any cipher of TLS 1.3.
pub(crate) const RECORD_LEN_MAX: usize = RECORD_HEADER_LEN + CONTENT_LEN_MAX + 256;
/// Most content of a record.
const CONTENT_LEN_MAX: usize = 16 << 10;
const RECORD_HEADER_LEN: usize = 5;

/// The length of the record at the front of `bytes`, header included; `None`: more bytes are needed to tell.
pub(super) fn record_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..RECORD_HEADER_LEN)?;
    Some(RECORD_HEADER_LEN + usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// Plaintext that is encrypted before it is offered to the socket.
const SEALED_LEN_MAX: usize = 256 << 10;
/// Bytes received at once when there are many.
const BULK_LEN: usize = 64 << 10;
/// Handshake message `KeyUpdate` that asks for none in return (RFC 8446, 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// Records without content that may follow each other.
const EMPTY_RECORDS_MAX: u32 = 32;

/// The side's part of the key schedule, for new keys when old ones have been used enough.
pub(super) enum KeySchedule {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// Secrets from which both halves of a connection make new keys.
pub(super) struct RecordKeys {
    schedule: Mutex<KeySchedule>,
    suite: &'static Tls13CipherSuite,
}

impl RecordKeys {
    pub(super) fn new(schedule: KeySchedule) -> Option<Self> {
        let suite = match &schedule {
            KeySchedule::Client(connection) => connection.negotiated_cipher_suite(),
            KeySchedule::Server(connection) => connection.negotiated_cipher_suite(),
        };
        Some(Self { suite: suite.tls13()?, schedule: Mutex::new(schedule) })
    }

    fn next(
        &self,
        client: impl FnOnce(&mut KernelConnection<ClientConnectionData>) -> Renewed,
        server: impl FnOnce(&mut KernelConnection<ServerConnectionData>) -> Renewed,
    ) -> Result<ConnectionTrafficSecrets, Errno> {
        let mut schedule = self.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = match &mut *schedule {
            KeySchedule::Client(connection) => client(connection),
            KeySchedule::Server(connection) => server(connection),
        };
        renewed.map(|(_, secrets)| secrets).map_err(|_| Errno::BADMSG)
    }

    fn encrypter(&self, secrets: ConnectionTrafficSecrets) -> Option<Box<dyn MessageEncrypter>> {
        let (key, iv) = parts(secrets)?;
        Some(self.suite.aead_alg.encrypter(key, iv))
    }

    fn decrypter(&self, secrets: ConnectionTrafficSecrets) -> Option<Box<dyn MessageDecrypter>> {
        let (key, iv) = parts(secrets)?;
        Some(self.suite.aead_alg.decrypter(key, iv))
    }
}

type Renewed = Result<(u64, ConnectionTrafficSecrets), rustls::Error>;

fn parts(
    secrets: ConnectionTrafficSecrets,
) -> Option<(rustls::crypto::cipher::AeadKey, rustls::crypto::cipher::Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Some((key, iv)),
        _ => None,
    }
}

/// The sending half: encrypts plaintext into records, and keeps those that the socket has not
/// taken.
pub(crate) struct RecordSealer {
    keys: Arc<RecordKeys>,
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
    /// Records under one key.
    records_max: u64,
    records: VecDeque<Vec<u8>>,
    /// Bytes of the first record that are sent.
    sent: usize,
    /// Bytes of records that wait.
    len: usize,
    /// Bytes ever sent.
    progress: u64,
}

impl RecordSealer {
    pub(super) fn new(
        keys: &Arc<RecordKeys>,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Option<Self> {
        Some(Self {
            encrypter: keys.encrypter(secrets)?,
            records_max: keys.suite.common.confidentiality_limit,
            keys: Arc::clone(keys),
            sequence,
            records: VecDeque::new(),
            sent: 0,
            len: 0,
            progress: 0,
        })
    }

    #[cfg(test)]
    pub(super) const fn renew_after(&mut self, records: u64) {
        self.records_max = records;
    }

    /// Bytes of records that the socket has not taken.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// A number that grows as the peer takes bytes.
    pub(crate) const fn progress(&self) -> u64 {
        self.progress
    }

    /// Encrypts the next bytes of `chunks`, from `from` on, some hundred KiB of them at most.
    /// Frames that wait together share records. Returns how many bytes.
    pub(crate) fn seal(&mut self, chunks: &[&[u8]], from: usize) -> Result<usize, Errno> {
        let total: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        let until = total.min(from + SEALED_LEN_MAX);
        let mut at = from;
        while at < until {
            let end = until.min(at + CONTENT_LEN_MAX);
            if self.sequence >= self.records_max {
                self.renew()?;
            }
            let content = OutboundChunks::Multiple { chunks, start: at, end };
            self.push(ContentType::ApplicationData, content)?;
            at = end;
        }
        Ok(until - from)
    }

    fn push(&mut self, typ: ContentType, payload: OutboundChunks<'_>) -> Result<(), Errno> {
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_3, payload };
        let sealed = self.encrypter.encrypt(message, self.sequence).map_err(|_| Errno::BADMSG)?;
        self.sequence += 1;
        let record = sealed.encode();
        self.len += record.len();
        self.records.push_back(record);
        Ok(())
    }

    /// Says that the key changes, and changes it.
    fn renew(&mut self) -> Result<(), Errno> {
        self.push(ContentType::Handshake, OutboundChunks::Single(&KEY_UPDATE))?;
        let secrets = self
            .keys
            .next(KernelConnection::update_tx_secret, KernelConnection::update_tx_secret)?;
        self.encrypter = self.keys.encrypter(secrets).ok_or(Errno::BADMSG)?;
        self.sequence = 0;
        Ok(())
    }

    /// Sends the records that the socket takes now. `true`: all of them.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        while self.len > 0 {
            let mut slices: SmallVec<[IoSlice<'_>; 20]> = SmallVec::new();
            let mut skip = self.sent;
            for record in self.records.iter().take(slices.inline_size()) {
                slices.push(IoSlice::new(&record[skip..]));
                skip = 0;
            }
            let sent = send_now(fd, &slices);
            drop(slices);
            match sent {
                Ok(sent) => self.advance(sent),
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, sent: usize) {
        self.len -= sent;
        self.progress += sent as u64;
        self.sent += sent;
        while let Some(first) = self.records.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.records.pop_front();
        }
    }
}

impl fmt::Debug for RecordSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSealer").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The receiving half: opens records where they were received.
pub(crate) struct RecordOpener {
    keys: Arc<RecordKeys>,
    decrypter: Box<dyn MessageDecrypter>,
    sequence: u64,
    /// Plaintext that nobody has taken, then encrypted bytes.
    buffer: Vec<u8>,
    /// The plaintext in it.
    plain: std::ops::Range<usize>,
    /// Where the encrypted bytes begin.
    sealed_at: usize,
    /// Bytes received at once.
    receive_len: usize,
    empty_records: u32,
    /// The peer has said that it sends nothing more.
    closed: bool,
    /// The error that has ended it.
    failed: Option<Errno>,
}

impl RecordOpener {
    /// `received`: encrypted bytes that came with the last of the handshake.
    pub(super) fn new(
        keys: &Arc<RecordKeys>,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
        received: Vec<u8>,
    ) -> Option<Self> {
        Some(Self {
            decrypter: keys.decrypter(secrets)?,
            keys: Arc::clone(keys),
            sequence,
            buffer: received,
            plain: 0..0,
            sealed_at: 0,
            receive_len: RECORD_LEN_MAX,
            empty_records: 0,
            closed: false,
            failed: None,
        })
    }

    /// Something can be taken without receiving anything.
    pub(crate) fn is_ready(&self) -> bool {
        !self.plain.is_empty()
            || record_len(&self.buffer[self.sealed_at..])
                .is_some_and(|len| len <= self.buffer.len() - self.sealed_at)
    }

    /// The peer is in the middle of a record.
    pub(crate) fn is_inside_record(&self) -> bool {
        self.sealed_at < self.buffer.len() && !self.is_ready()
    }

    /// Takes plaintext, receiving what it needs for that; with `wait`, for as long as the socket's receive timeout. 0: the peer has closed.
    ///
    /// # Errors
    /// `AGAIN`: no whole record is there. `BADMSG`: a record was forged or damaged. `CONNABORTED`: the peer has ended the connection with an alert.
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        dest: &mut [u8],
        wait: bool,
    ) -> Result<usize, Errno> {
        let mut at = 0;
        self.receive_with(fd, dest.len(), wait, &mut |bytes| {
            dest[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
    }

    /// The same, behind what `buffer` holds; at most `limit` bytes. Does not wait.
    pub(crate) fn receive_append(
        &mut self,
        fd: BorrowedFd<'_>,
        buffer: &mut Vec<u8>,
        limit: usize,
    ) -> Result<usize, Errno> {
        buffer.reserve(limit);
        self.receive_with(fd, limit, false, &mut |bytes| buffer.extend_from_slice(bytes))
    }

    fn receive_with(
        &mut self,
        fd: BorrowedFd<'_>,
        limit: usize,
        wait: bool,
        put: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, Errno> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        loop {
            let len = self.take(limit, put).inspect_err(|errno| self.failed = Some(*errno))?;
            if len > 0 || self.closed || limit == 0 {
                return Ok(len);
            }
            let asked = self.receive_len;
            match self.fill(fd, wait)? {
                0 => return Ok(0),
                // A record is shorter than that, so this ends.
                received if received == asked => {}
                _ if self.is_ready() => {}
                _ => return Err(Errno::AGAIN),
            }
        }
    }

    /// Receives once.
    fn fill(&mut self, fd: BorrowedFd<'_>, wait: bool) -> Result<usize, Errno> {
        self.buffer.drain(..self.sealed_at);
        (self.sealed_at, self.plain) = (0, 0..0);
        let received = receive_append(fd, &mut self.buffer, self.receive_len, wait);
        match received {
            Ok(len) if len == self.receive_len => self.receive_len = BULK_LEN,
            Ok(_) => {}
            Err(_) => {
                // Quiet connections keep little.
                self.receive_len = RECORD_LEN_MAX;
                self.buffer.shrink_to(2 * RECORD_LEN_MAX);
            }
        }
        received
    }

    /// Gives away what is opened, or can be, up to `limit` bytes.
    fn take(&mut self, limit: usize, put: &mut dyn FnMut(&[u8])) -> Result<usize, Errno> {
        let mut filled = 0;
        loop {
            let len = self.plain.len().min(limit - filled);
            let from = self.plain.start;
            put(&self.buffer[from..from + len]);
            self.plain.start += len;
            filled += len;
            if filled == limit || self.closed || !self.open()? {
                return Ok(filled);
            }
        }
    }

    /// Opens the next record, if all of it is here.
    fn open(&mut self) -> Result<bool, Errno> {
        let sealed = &mut self.buffer[self.sealed_at..];
        let Some(len) = record_len(sealed) else { return Ok(false) };
        if len > RECORD_LEN_MAX || sealed[0] != u8::from(ContentType::ApplicationData) {
            return Err(Errno::BADMSG);
        }
        let Some(record) = sealed.get_mut(RECORD_HEADER_LEN..len) else { return Ok(false) };
        let data = ContentType::ApplicationData;
        let message = InboundOpaqueMessage::new(data, ProtocolVersion::TLSv1_2, record);
        let opened = self.decrypter.decrypt(message, self.sequence).map_err(|_| Errno::BADMSG)?;
        self.sequence += 1;
        let mut plain_len = 0;
        match (opened.typ, opened.payload) {
            (ContentType::ApplicationData, content) => plain_len = content.len(),
            (ContentType::Handshake, content) if *content == KEY_UPDATE => self.renew()?,
            (ContentType::Alert, [_, alert])
                if *alert == u8::from(AlertDescription::CloseNotify) =>
            {
                self.closed = true;
            }
            (ContentType::Alert, _) => return Err(Errno::CONNABORTED),
            _ => return Err(Errno::BADMSG),
        }
        // Records that bring nothing cost the peer little and this side much.
        self.empty_records = if plain_len > 0 { 0 } else { self.empty_records + 1 };
        if self.empty_records > EMPTY_RECORDS_MAX {
            return Err(Errno::BADMSG);
        }
        let plain_at = self.sealed_at + RECORD_HEADER_LEN;
        self.plain = plain_at..plain_at + plain_len;
        self.sealed_at += len;
        Ok(true)
    }

    /// The peer's key has changed.
    fn renew(&mut self) -> Result<(), Errno> {
        let secrets = self
            .keys
            .next(KernelConnection::update_rx_secret, KernelConnection::update_rx_secret)?;
        self.decrypter = self.keys.decrypter(secrets).ok_or(Errno::BADMSG)?;
        self.sequence = 0;
        Ok(())
    }
}

impl fmt::Debug for RecordOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordOpener").field("plain", &self.plain).finish_non_exhaustive()
    }
}
