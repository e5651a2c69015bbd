//! The attributes that `stat` tells.

use rustix::time::{ClockId, clock_gettime};

/// Unit of `st_blocks`, in bytes.
pub const STAT_BLOCK_LEN: u64 = 512;

/// Nanoseconds since 1970-01-01 UTC; negative before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    const PER_SECOND: i64 = 1_000_000_000;

    /// The machine's time now.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Realtime);
        Self::new(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    /// A point given as `struct timespec` does; seconds that do not fit (years past 2262) saturate.
    #[must_use]
    pub fn new(seconds: i64, nanoseconds: u32) -> Self {
        Self(seconds.saturating_mul(Self::PER_SECOND).saturating_add(i64::from(nanoseconds)))
    }

    /// Whole seconds, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(Self::PER_SECOND)
    }

    /// Nanoseconds within the second, 0 to 999,999,999.
    #[must_use]
    pub const fn nanoseconds(self) -> u32 {
        // The remainder is below 1e9, so it fits.
        self.0.rem_euclid(Self::PER_SECOND) as u32
    }
}

/// The kind of file that a directory entry names. The discriminants are stored in inodes: append
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

impl FileKind {
    /// The kind behind a stored code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The `d_type` of `struct dirent`.
    #[must_use]
    pub const fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// Attributes of a file, as in `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    /// Inode number; never used again.
    pub ino: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits, `0o7777` at most.
    pub perm: u32,
    /// Links to it.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device numbers, for device nodes.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in units of [`STAT_BLOCK_LEN`]; holes of whole 64 KiB blocks take none.
    pub blocks: u64,
    /// Preferred unit of I/O, in bytes.
    pub block_len: u32,
    /// Last access. Set when the file is made or by `utimens`; reading does not change it (`noatime`).
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// When it was made.
    pub btime: Timestamp,
}

impl FileAttributes {
    /// `st_mode`: kind and permissions.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }
}

/// Space and number of files of the whole store, as in `struct statvfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, in bytes.
    pub block_len: u64,
    /// Blocks there are.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Files there can be, estimated from the space.
    pub files: u64,
    /// Files that can still be made, estimated from the free space.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_len_max: u64,
}

/// A time to set with `utimens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it as it is (`UTIME_OMIT`).
    Keep,
    /// The time of the call (`UTIME_NOW`).
    Now,
    /// This time.
    To(Timestamp),
}
