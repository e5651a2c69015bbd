//! The state by which a process opens a file again that another process, or this one before `exec`,
//! has open.

use samite_types::{Error, ErrorKind, PartitionId, Result};

use crate::files::file::is_urgent;
use crate::records::inode::{DataLayout, Inode};
use crate::records::key::{KEY_LEN_MAX, Key};
use crate::records::store::{FoundInode, RecordLocation};
use crate::{CallerContext, FileKind, FileSystem, OpenFile, OpenFlags, PATH_LEN_MAX, Timestamp};

const VERSION: u8 = 2;

/// An open file as bytes: version, flags, kind, layout, inode number (8), token of its open
/// reference (8), token of the reference of the process that opened it (8), partition (4), length
/// of the key (2), key of the inode's record, and of a directory the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenState {
    ino: u64,
    flags: OpenFlags,
    kind: FileKind,
    layout: DataLayout,
    open_reference: u64,
    inherited: u64,
    location: RecordLocation,
    path: Option<Box<[u8]>>,
}

const HEADER_LEN: usize = 34;

impl OpenState {
    /// Longest encoding of an open file, in bytes; an open directory adds its path.
    pub const LEN_MAX: usize = HEADER_LEN + KEY_LEN_MAX;

    /// Inode number of the file.
    #[must_use]
    pub const fn ino(&self) -> u64 {
        self.ino
    }

    /// As [`OpenFile::is_urgent`], when it was described.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        is_urgent(&self.location, self.layout)
    }

    /// Bytes for [`OpenState::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::LEN_MAX);
        out.extend([VERSION, self.flags.code(), self.kind as u8, self.layout as u8]);
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.extend_from_slice(&self.open_reference.to_le_bytes());
        out.extend_from_slice(&self.inherited.to_le_bytes());
        out.extend_from_slice(&self.location.partition.get().to_le_bytes());
        // A key is far shorter than 64 KiB.
        out.extend_from_slice(&(self.location.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.location.key);
        out.extend_from_slice(self.path.as_deref().unwrap_or_default());
        out
    }

    /// Back from bytes.
    ///
    /// # Errors
    /// `Corrupt`: they are not what [`OpenState::encode`] gave.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "state of an open file: malformed"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let [version, flags, kind, layout, ..] = *header;
        let ino = u64::from_le_bytes(*header[4..].first_chunk()?);
        let open_reference = u64::from_le_bytes(*header[12..].first_chunk()?);
        let inherited = u64::from_le_bytes(*header[20..].first_chunk()?);
        let partition = PartitionId(u32::from_le_bytes(*header[28..].first_chunk()?));
        let key_len = usize::from(u16::from_le_bytes(*header[32..].first_chunk()?));
        let (key, path) = rest.split_at_checked(key_len)?;
        let kind = FileKind::from_code(kind)?;
        let is_directory = kind == FileKind::Directory;
        let is_valid = version == VERSION
            && (1..=KEY_LEN_MAX).contains(&key_len)
            && path.len() <= PATH_LEN_MAX
            && is_directory != path.is_empty();
        is_valid.then(|| Self {
            ino,
            flags: OpenFlags::from_code(flags),
            kind,
            layout: DataLayout::from_code(layout).unwrap_or(DataLayout::Inline),
            open_reference,
            inherited,
            location: RecordLocation { key: Key::from_slice(key), partition },
            path: is_directory.then(|| path.into()),
        })
    }
}

impl OpenFile {
    /// The state by which another process opens it again. Settles the file first, so that the other
    /// one starts clean.
    ///
    /// # Errors
    /// As of [`OpenFile::fsync`].
    pub fn state(&self) -> Result<OpenState> {
        self.fsync()?;
        Ok(OpenState {
            ino: self.ino(),
            flags: self.flags(),
            kind: self.kind(),
            layout: self.layout(),
            open_reference: self.open_reference(),
            inherited: self.inherited(),
            location: self.location(),
            path: self.dir_path().map(Box::from),
        })
    }
}

impl FileSystem {
    /// Opens again what another process, or this one before `exec`, had open. Costs nothing: permission was checked
    /// when it was first opened,
    /// and where it is now shows when it is used.
    #[must_use]
    pub fn reopen(&self, state: &OpenState) -> OpenFile {
        let mut inode = Inode::new(state.kind, state.ino, 0, 0, 0, Timestamp::default());
        inode.layout = state.layout;
        let node = FoundInode {
            location: state.location.clone(),
            inode,
            data_len: 0,
            version: samite_types::Version(0),
            target: None,
            open_reference: state.open_reference,
        };
        let file = OpenFile::new(self, node, state.flags, state.path.clone());
        file.minding(&CallerContext::of_process(0), None).inheriting(state.inherited)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::key;

    #[test]
    fn a_state_round_trips() {
        let state = OpenState {
            ino: 77,
            flags: OpenFlags { read: true, append: true, ..OpenFlags::default() },
            kind: FileKind::File,
            layout: DataLayout::Chunked,
            open_reference: 99,
            inherited: 7,
            location: RecordLocation {
                key: key::entry(1, &[b'n'; 255]),
                partition: PartitionId(63),
            },
            path: None,
        };
        let raw = state.encode();
        assert!(raw.len() <= OpenState::LEN_MAX && OpenState::LEN_MAX <= 400);
        assert_eq!(OpenState::decode(&raw).unwrap(), state);
        let dir = OpenState { kind: FileKind::Directory, path: Some(b"/a"[..].into()), ..state };
        assert_eq!(OpenState::decode(&dir.encode()).unwrap(), dir);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(raw in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = OpenState::decode(&raw);
        }
    }
}
