//! The frame header.
//!
//! ```text
//!  0      2    3    4           8                 16          20            24       28          32
//!  | magic| ver| kind| body_len  | request_id       | payload  | (reserved)  | flags  | checksum |
//! ```
//!
//! The checksum is CRC-32C over the header (with a zero checksum), the body and the payload. On a shared-memory ring or a Unix
//! socket, where no wire can corrupt it, it covers the header and the body only ([`FLAG_PAYLOAD_UNCHECKED`]).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use samite_types::RequestId;

use crate::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};
use crate::{WireError, checksum};

/// First two bytes of every frame.
pub const MAGIC: [u8; 2] = *b"Sm";
/// Version of the header and of what stands where in a frame. The versions of the protocol are
/// agreed on in the [handshake](crate::hello).
pub const FRAME_VERSION: u8 = 3;
/// Length of a frame header, in bytes.
pub const HEADER_LEN: usize = size_of::<FrameHeader>();
/// The checksum does not cover the payload.
pub const FLAG_PAYLOAD_UNCHECKED: u16 = 1;

/// Content of the body of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Client's first message.
    Hello = 1,
    /// Node's challenge and its proof.
    Challenge = 2,
    /// Client's proof.
    Proof = 3,
    /// Node accepts; the session begins.
    Welcome = 4,
    /// Either side ends the connection, with a reason.
    Goodbye = 5,
    /// Data-plane request ([`crate::op::OperationRequest`]).
    Request = 6,
    /// Data-plane reply ([`crate::op::OperationReply`]).
    Reply = 7,
    /// Control-plane request ([`crate::control::ControlRequest`]).
    Control = 8,
    /// Control-plane reply ([`crate::control::ControlReply`]).
    ControlReply = 9,
    /// One node to another, by the connection that it has made.
    Peer = 10,
    /// Messages in answer to those, whenever the other sends them.
    PeerReply = 11,
}

impl FrameKind {
    /// Its name, for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::Challenge => "Challenge",
            Self::Proof => "Proof",
            Self::Welcome => "Welcome",
            Self::Goodbye => "Goodbye",
            Self::Request => "Request",
            Self::Reply => "Reply",
            Self::Control => "Control",
            Self::ControlReply => "ControlReply",
            Self::Peer => "Peer",
            Self::PeerReply => "PeerReply",
        }
    }

    fn from_code(code: u8) -> Result<Self, WireError> {
        Ok(match code {
            1 => Self::Hello,
            2 => Self::Challenge,
            3 => Self::Proof,
            4 => Self::Welcome,
            5 => Self::Goodbye,
            6 => Self::Request,
            7 => Self::Reply,
            8 => Self::Control,
            9 => Self::ControlReply,
            10 => Self::Peer,
            11 => Self::PeerReply,
            _ => return Err(WireError::Unknown("frame kind")),
        })
    }
}

/// The checksum of a frame, computed as its payload comes in.
#[derive(Clone, Copy, Debug)]
pub struct FrameCheck {
    checksum: u32,
    expected: u32,
    covers_payload: bool,
}

impl FrameCheck {
    /// Takes in the next bytes of the payload.
    pub fn update(&mut self, payload: &[u8]) {
        if self.covers_payload {
            self.checksum = checksum::append(self.checksum, payload);
        }
    }

    /// Compares, after the whole payload.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    pub const fn finish(self) -> Result<(), WireError> {
        if self.checksum == self.expected { Ok(()) } else { Err(WireError::Checksum("frame")) }
    }
}

/// The header as it lies on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    body_len: U32,
    request_id: U64,
    payload_len: U32,
    reserved: [u8; 6],
    flags: U16,
    checksum: U32,
}

/// A header that has passed every check but the checksum's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedHeader {
    /// Content of the body.
    pub kind: FrameKind,
    /// Matches a reply to its request.
    pub request_id: RequestId,
    /// Bytes of body that follow the header.
    pub body_len: usize,
    /// Bytes of payload that follow the body.
    pub payload_len: usize,
    /// Flag bits.
    pub flags: u16,
    checksum: u32,
    seed: u32,
}

impl FrameHeader {
    /// Builds the header of a frame whose body is `body` and whose payload is the concatenation of `payload`.
    #[must_use]
    pub fn build(
        kind: FrameKind,
        request_id: RequestId,
        flags: u16,
        body: &[u8],
        payload: &[&[u8]],
    ) -> Self {
        let payload_len: usize = payload.iter().map(|piece| piece.len()).sum();
        debug_assert!(body.len() <= BODY_LEN_MAX && payload_len <= PAYLOAD_LEN_MAX);
        let mut header = Self {
            magic: MAGIC,
            version: FRAME_VERSION,
            kind: kind as u8,
            body_len: U32::new(body.len() as u32),
            request_id: U64::new(request_id.get()),
            payload_len: U32::new(payload_len as u32),
            reserved: [0; 6],
            flags: U16::new(flags),
            checksum: U32::new(0),
        };
        let mut checksum = checksum::append(checksum::of(header.as_bytes()), body);
        if flags & FLAG_PAYLOAD_UNCHECKED == 0 {
            for piece in payload {
                checksum = checksum::append(checksum, piece);
            }
        }
        header.checksum = U32::new(checksum);
        header
    }
}

impl CheckedHeader {
    /// Checks everything a header alone can be wrong about: magic, version, kind, lengths against their limits.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(raw: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let mut header =
            FrameHeader::read_from_bytes(raw).map_err(|_| WireError::Short("frame header"))?;
        if header.magic != MAGIC {
            return Err(WireError::Unknown("frame magic"));
        }
        if header.version != FRAME_VERSION {
            return Err(WireError::Version);
        }
        let checksum = header.checksum.get();
        header.checksum = U32::new(0);
        let parsed = Self {
            kind: FrameKind::from_code(header.kind)?,
            request_id: RequestId(header.request_id.get()),
            body_len: header.body_len.get() as usize,
            payload_len: header.payload_len.get() as usize,
            flags: header.flags.get(),
            checksum,
            seed: checksum::of(header.as_bytes()),
        };
        if parsed.body_len > BODY_LEN_MAX {
            return Err(WireError::OverLimit("frame body"));
        }
        if parsed.payload_len > PAYLOAD_LEN_MAX {
            return Err(WireError::OverLimit("frame payload"));
        }
        Ok(parsed)
    }

    /// Compares the checksum with the bytes that came; `payload` is the concatenation of its pieces.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    pub fn verify(&self, body: &[u8], payload: &[&[u8]]) -> Result<(), WireError> {
        let mut checksum = checksum::append(self.seed, body);
        if self.flags & FLAG_PAYLOAD_UNCHECKED == 0 {
            for piece in payload {
                checksum = checksum::append(checksum, piece);
            }
        }
        if checksum == self.checksum { Ok(()) } else { Err(WireError::Checksum("frame")) }
    }

    /// Starts a check of a frame whose payload arrives bit by bit.
    #[must_use]
    pub fn check(&self, body: &[u8]) -> FrameCheck {
        FrameCheck {
            checksum: checksum::append(self.seed, body),
            expected: self.checksum,
            covers_payload: self.flags & FLAG_PAYLOAD_UNCHECKED == 0,
        }
    }

    /// Body and payload together, in bytes.
    #[must_use]
    pub const fn len_after(&self) -> usize {
        self.body_len + self.payload_len
    }
}
