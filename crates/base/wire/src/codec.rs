//! Bounds-checked reading and plain writing of little-endian fields.

/// Why bytes were refused. Carries the field, never the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends inside this field.
    #[error("message ends inside {0}")]
    Short(&'static str),
    /// A length or count is over its limit.
    #[error("{0} is over its limit")]
    OverLimit(&'static str),
    /// A field holds a value that no version of the protocol gives it.
    #[error("{0} has an unknown value")]
    Unknown(&'static str),
    /// A frame of a version that this build does not speak.
    #[error("frame is of another version of the protocol")]
    Version,
    /// Bytes are left over after the last field.
    #[error("bytes left over after {0}")]
    Trailing(&'static str),
    /// The checksum does not match.
    #[error("checksum of {0} does not match")]
    Checksum(&'static str),
}

impl From<WireError> for samite_types::Error {
    fn from(error: WireError) -> Self {
        let kind = match error {
            WireError::Version => samite_types::ErrorKind::WrongVersion,
            _ => samite_types::ErrorKind::Corrupt,
        };
        Self::new(kind, error.to_string())
    }
}

/// Reads fields off the front of a byte slice.
#[derive(Clone, Debug)]
pub struct FieldDecoder<'a> {
    rest: &'a [u8],
}

macro_rules! number {
    ($read:ident, $ty:ty) => {
        #[doc = concat!("Reads one `", stringify!($ty), "`.")]
        #[inline]
        pub fn $read(&mut self, field: &'static str) -> Result<$ty, WireError> {
            let (raw, rest) = self.rest.split_first_chunk().ok_or(WireError::Short(field))?;
            self.rest = rest;
            Ok(<$ty>::from_le_bytes(*raw))
        }
    };
}

impl<'a> FieldDecoder<'a> {
    /// A decoder over the whole of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    number!(u8, u8);
    number!(u16, u16);
    number!(u32, u32);
    number!(u64, u64);

    /// Takes the next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(WireError::Short(field))?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes a `u16` length, at most `max`, and that many bytes.
    #[inline]
    pub fn short_bytes(&mut self, max: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        let len = usize::from(self.u16(field)?);
        if len > max {
            return Err(WireError::OverLimit(field));
        }
        self.bytes(len, field)
    }

    /// Bytes that have not been read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Ends the reading: nothing may be left.
    pub const fn finish(self, field: &'static str) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing(field)) }
    }
}

/// Appends little-endian fields to a vector.
pub(crate) trait PutFields {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_short_bytes(&mut self, bytes: &[u8]);
}

impl PutFields for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    #[inline]
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    #[inline]
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    /// The caller has checked the length against its limit; all such limits are below 64 KiB.
    #[inline]
    fn put_short_bytes(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        self.put_u16(bytes.len() as u16);
        self.extend_from_slice(bytes);
    }
}
