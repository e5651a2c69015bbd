//! The inode: 128 bytes at the start of an entry's value, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | version of this layout: 1 |
//! | 2 | 1 | flags: 1 renamed (has a location record), 2 has extended attributes, 4 never had a name and may be given one |
//! | 3 | 1 | 1 when the file may end in a hole: its length was set, not written |
//! | 4 | 2 | permission bits |
//! | 6 | 1 | state: 1 for a directory, 2 more while it is frozen |
//! | 7 | 1 | kind |
//! | 8 | 8 | inode number |
//! | 16 | 1 | layout |
//! | 24 | 8 | number of links |
//! | 32 | 4 + 4 | owner, group |
//! | 40 | 8 | settled size of a chunked file, without its tail |
//! | 48 | 8 × 4 | times: access, data, change, birth; nanoseconds since 1970 |
//! | 80 | 8 | how often the file was cut |
//! | 88 | 8 | writing mark |
//! | 96 | 8 | removal token of a directory |
//! | 104 | 8 | device numbers |
//! | 112 | 1 | 1 when a chunked file may have holes: the space that it takes has to be asked for |
//! | 113 | 1 | semantics of a directory: 0 posix, 1 session, 2 temporary |
//! | 114 | 6 | zero |
//! | 120 | 8 | token of the handle that took over the spilling of a tail last; 0: none ever did |
//!
//! Number and layout stand side by side, so that one guard checks that a record is still the
//! location of an inode and how its data lie. Data of an inline file, the tail of a chunked one and
//! the target of a symbolic link follow the inode.

use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::Action;

use crate::records::key::ROOT_INO;
use crate::{FileAttributes, FileKind, FileSemantics, STAT_BLOCK_LEN, Timestamp};

/// Length of the encoded inode, in bytes.
pub const INODE_LEN: usize = 128;

const VERSION: u16 = 1;

/// Byte offsets that operations address.
pub mod at {
    pub const FLAGS: u32 = 2;
    pub const ENDS_OPEN: u32 = 3;
    pub const PERM: u32 = 4;
    pub const STATE: u32 = 6;
    pub const INO: u32 = 8;
    pub const LAYOUT: u32 = 16;
    pub const NLINK: u32 = 24;
    pub const OWNER: u32 = 32;
    pub const SIZE: u32 = 40;
    pub const ATIME: u32 = 48;
    pub const MTIME: u32 = 56;
    pub const CTIME: u32 = 64;
    pub const CUTS: u32 = 80;
    pub const MARK: u32 = 88;
    pub const REMOVAL: u32 = 96;
    pub const SPARSE: u32 = 112;
    pub const SEMANTICS: u32 = 113;
    pub const SPILLER: u32 = 120;
}

/// Flag: the file was renamed, so a location record tells open handles where it went.
pub const FLAG_RENAMED: u8 = 1;
/// Flag: it has extended attributes.
pub const FLAG_ATTRIBUTES: u8 = 2;
/// Flag: it was made without a name and may be given one.
pub const FLAG_NAMEABLE: u8 = 4;

/// Added to the state of a record whose inode is moving.
pub const STATE_FROZEN: u8 = 2;

/// Writing mark of a file that several handles have open for writing: nobody takes it off.
pub const MARK_SHARED: u64 = u64::MAX;

/// Where the data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DataLayout {
    /// After the inode.
    Inline = 0,
    /// In chunk records.
    Chunked = 1,
    /// The inode itself is in its own record (`h`); this one only names it.
    Elsewhere = 2,
    /// After the inode, frozen, on their way into chunk 0.
    Converting = 3,
    /// Frozen: the inode is on its way to another record. Its former layout is in the intent.
    Moving = 4,
    /// In chunk records up to the settled size; the bytes appended since then, the *tail*, are
    /// after the inode.
    Tailed = 5,
    /// As tailed, but the tail is frozen, on its way into chunks.
    Spilling = 6,
}

impl DataLayout {
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Inline,
            1 => Self::Chunked,
            2 => Self::Elsewhere,
            3 => Self::Converting,
            4 => Self::Moving,
            5 => Self::Tailed,
            6 => Self::Spilling,
            _ => return None,
        })
    }
}

/// An inode, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub flags: u8,
    pub ends_open: bool,
    pub perm: u16,
    pub kind: FileKind,
    pub ino: u64,
    pub layout: DataLayout,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    pub cuts: u64,
    pub mark: u64,
    pub removal: u64,
    pub rdev: u64,
    pub sparse: bool,
    pub semantics: FileSemantics,
    pub spiller: u64,
}

impl Inode {
    /// A new, empty one.
    pub fn new(kind: FileKind, ino: u64, perm: u32, uid: u32, gid: u32, now: Timestamp) -> Self {
        Self {
            flags: 0,
            ends_open: false,
            perm: (perm & 0o7777) as u16,
            kind,
            ino,
            layout: DataLayout::Inline,
            nlink: 1,
            uid,
            gid,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            cuts: 0,
            mark: 0,
            removal: 0,
            rdev: 0,
            sparse: false,
            semantics: FileSemantics::Posix,
            spiller: 0,
        }
    }

    /// The root directory, as this process makes it.
    pub fn root(semantics: FileSemantics, now: Timestamp) -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let root = Self::new(FileKind::Directory, ROOT_INO, 0o755, uid.as_raw(), gid.as_raw(), now);
        Self { semantics, ..root }
    }

    pub fn encode(&self) -> [u8; INODE_LEN] {
        let mut out = [0; INODE_LEN];
        let mut put = |offset: u32, bytes: &[u8]| {
            out[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &VERSION.to_le_bytes());
        put(at::FLAGS, &[self.flags, u8::from(self.ends_open)]);
        put(at::PERM, &self.perm.to_le_bytes());
        put(at::STATE, &[u8::from(self.kind == FileKind::Directory), self.kind as u8]);
        put(at::INO, &identity(self.ino, self.layout));
        put(at::NLINK, &self.nlink.to_le_bytes());
        put(at::OWNER, &owner(self.uid, self.gid));
        put(at::SIZE, &self.size.to_le_bytes());
        put(at::ATIME, &self.atime.0.to_le_bytes());
        put(at::MTIME, &self.mtime.0.to_le_bytes());
        put(at::CTIME, &self.ctime.0.to_le_bytes());
        put(at::CTIME + 8, &self.btime.0.to_le_bytes());
        put(at::CUTS, &self.cuts.to_le_bytes());
        put(at::MARK, &self.mark.to_le_bytes());
        put(at::REMOVAL, &self.removal.to_le_bytes());
        put(at::REMOVAL + 8, &self.rdev.to_le_bytes());
        put(at::SPARSE, &[u8::from(self.sparse), self.semantics as u8]);
        put(at::SPILLER, &self.spiller.to_le_bytes());
        out
    }

    /// Decodes the start of a record's value.
    pub fn decode(value: &[u8]) -> Result<Self> {
        let raw = value.first_chunk::<INODE_LEN>().ok_or_else(|| corrupt("it is too short"))?;
        if raw[..2] != VERSION.to_le_bytes() {
            return Err(corrupt("unknown version"));
        }
        let u32_at = |offset: u32| u32::from_le_bytes(field(raw, offset));
        let u64_at = |offset: u32| u64::from_le_bytes(field(raw, offset));
        let time_at = |offset: u32| Timestamp(i64::from_le_bytes(field(raw, offset)));
        Ok(Self {
            flags: raw[at::FLAGS as usize],
            ends_open: raw[at::ENDS_OPEN as usize] != 0,
            perm: u16::from_le_bytes(field(raw, at::PERM)),
            kind: FileKind::from_code(raw[at::STATE as usize + 1])
                .ok_or_else(|| corrupt("unknown kind"))?,
            ino: u64_at(at::INO),
            layout: DataLayout::from_code(raw[at::LAYOUT as usize])
                .ok_or_else(|| corrupt("unknown layout"))?,
            nlink: u64_at(at::NLINK),
            uid: u32_at(at::OWNER),
            gid: u32_at(at::OWNER + 4),
            size: u64_at(at::SIZE),
            atime: time_at(at::ATIME),
            mtime: time_at(at::MTIME),
            ctime: time_at(at::CTIME),
            btime: time_at(at::CTIME + 8),
            cuts: u64_at(at::CUTS),
            mark: u64_at(at::MARK),
            removal: u64_at(at::REMOVAL),
            rdev: u64_at(at::REMOVAL + 8),
            sparse: raw[at::SPARSE as usize] != 0,
            semantics: FileSemantics::from_code(raw[at::SEMANTICS as usize])
                .ok_or_else(|| corrupt("unknown semantics"))?,
            spiller: u64_at(at::SPILLER),
        })
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Attributes of a file whose length is `size`.
    pub fn attr(&self, size: u64) -> FileAttributes {
        FileAttributes {
            ino: self.ino,
            kind: self.kind,
            perm: u32::from(self.perm),
            nlink: u32::try_from(self.nlink).unwrap_or(u32::MAX),
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: size.div_ceil(STAT_BLOCK_LEN),
            block_len: BLOCK_LEN_PREFERRED,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }
}

/// The preferred unit of I/O that `st_blksize` tells: programs size their buffers by it.
const BLOCK_LEN_PREFERRED: u32 = 128 << 10;

fn field<const N: usize>(raw: &[u8; INODE_LEN], offset: u32) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&raw[offset as usize..offset as usize + N]);
    out
}

fn corrupt(cause: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("inode: {cause}"))
}

/// Bytes at [`at::INO`]: number and layout.
pub fn identity(ino: u64, layout: DataLayout) -> [u8; 9] {
    let mut out = [layout as u8; 9];
    out[..8].copy_from_slice(&ino.to_le_bytes());
    out
}

/// Bytes at [`at::OWNER`].
pub fn owner(uid: u32, gid: u32) -> [u8; 8] {
    pair(uid.to_le_bytes(), gid.to_le_bytes())
}

/// A time that is later than another by more than this, in nanoseconds, was not left by a faster
/// client: it was set on purpose.
const SET_ON_PURPOSE: u64 = 10_000_000_000;

/// When the data change: data and change time. Of two clients the slower does not set them back.
pub const fn data_changed(key: &[u8], now: Timestamp) -> Action<'_> {
    Action::Advance { key, offset: at::MTIME, count: 2, to: now.0, slack: SET_ON_PURPOSE }
}

/// When data were changed by `written`, which may be some time ago: a client that has set the time
/// since has counted a cut.
pub const fn data_written(key: &[u8], written: Timestamp) -> Action<'_> {
    Action::Advance { key, offset: at::MTIME, count: 2, to: written.0, slack: u64::MAX }
}

/// When something else changes: change time, which nobody can set.
pub const fn inode_changed(key: &[u8], now: Timestamp) -> Action<'_> {
    Action::Advance { key, offset: at::CTIME, count: 1, to: now.0, slack: u64::MAX }
}

/// Bytes at [`at::CUTS`]: number of cuts and writing mark.
pub fn cuts_and_mark(cuts: u64, mark: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&cuts.to_le_bytes());
    out[8..].copy_from_slice(&mark.to_le_bytes());
    out
}

fn pair(first: [u8; 4], second: [u8; 4]) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&first);
    out[4..].copy_from_slice(&second);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn inodes()(
            (flags, ends_open, sparse, semantics) in (0..4u8, any::<bool>(), any::<bool>(), 0..3u8),
            (perm, kind, layout) in (0..0o10000u16, 1..8u8, 0..7u8),
            (ino, nlink, size, cuts) in any::<(u64, u64, u64, u64)>(),
            (mark, removal, rdev, spiller) in any::<(u64, u64, u64, u64)>(),
            (uid, gid) in any::<(u32, u32)>(),
            times in any::<[i64; 4]>(),
        ) -> Inode {
            let [atime, mtime, ctime, btime] = times.map(Timestamp);
            Inode {
                flags, ends_open, perm, ino, nlink, uid, gid, size, atime, mtime, ctime, btime, cuts, mark, removal, rdev, sparse, spiller,
                kind: FileKind::from_code(kind).unwrap(),
                layout: DataLayout::from_code(layout).unwrap(),
                semantics: FileSemantics::from_code(semantics).unwrap(),
            }
        }
    }

    proptest! {
        #[test]
        fn round_trip(inode in inodes()) {
            let raw = inode.encode();
            prop_assert_eq!(Inode::decode(&raw).unwrap(), inode);
            prop_assert_eq!(raw[at::STATE as usize] == 1, inode.is_directory());
        }

        #[test]
        fn any_bytes_decode_or_are_refused(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Inode::decode(&raw);
        }
    }
}
