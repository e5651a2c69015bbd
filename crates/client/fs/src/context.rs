//! The caller of an operation: credentials and umask.

use rustix::fs::OFlags;
use smallvec::SmallVec;

/// Credentials of the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerContext {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: SmallVec<[u32; 8]>,
    /// Permission bits that new files do not get.
    pub umask: u32,
    /// The operating system has checked already that the caller may do it (the kernel does, for a
    /// mount): permissions are not checked again. A new file belongs to `uid` and `gid` all the
    /// same.
    pub is_checked: bool,
}

impl CallerContext {
    /// Root with no umask.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// The calling process's effective ids and groups, with the given umask.
    #[must_use]
    pub fn of_process(umask: u32) -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
            umask: umask & 0o777,
            is_checked: false,
        }
    }

    /// Whether no permission is asked for.
    pub(crate) const fn may_all(&self) -> bool {
        self.uid == 0 || self.is_checked
    }

    /// Whether `gid` is one of the caller's groups.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// How to open a file. Neither `read` nor `write`: the file is only named (`O_PATH`), and no permission on it is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they mirror the flags of open(2)")]
pub struct OpenFlags {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Each write goes to the end.
    pub append: bool,
    /// Make the file if it is missing.
    pub create: bool,
    /// With `create`: it must be missing.
    pub excl: bool,
    /// Cut to length 0.
    pub truncate: bool,
    /// It must be a directory.
    pub directory: bool,
    /// Do not follow a symbolic link in the last component.
    pub nofollow: bool,
}

impl OpenFlags {
    /// `O_RDONLY`.
    #[must_use]
    pub fn reading() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// `O_RDWR | O_CREAT`.
    #[must_use]
    pub fn creating() -> Self {
        Self { read: true, write: true, create: true, ..Self::default() }
    }

    /// From the flags of open(2); bits that do not concern the store are ignored.
    #[must_use]
    pub fn from_oflags(raw: u32) -> Self {
        let flags = OFlags::from_bits_retain(raw);
        let access = raw & OFlags::RWMODE.bits();
        let path_only = flags.contains(OFlags::PATH);
        let is = |flag: OFlags| flags.contains(flag);
        Self {
            read: !path_only && access != OFlags::WRONLY.bits(),
            write: !path_only && (access == OFlags::WRONLY.bits() || access == OFlags::RDWR.bits()),
            append: is(OFlags::APPEND),
            create: !path_only && is(OFlags::CREATE),
            excl: !path_only && is(OFlags::EXCL),
            truncate: !path_only && is(OFlags::TRUNC),
            directory: is(OFlags::DIRECTORY),
            nofollow: is(OFlags::NOFOLLOW),
        }
    }

    pub(crate) fn code(self) -> u8 {
        [self.read, self.write, self.append, self.directory]
            .iter()
            .enumerate()
            .fold(0, |code, (bit, set)| code | (u8::from(*set) << bit))
    }

    pub(crate) fn from_code(code: u8) -> Self {
        let bit = |index: u8| code & (1 << index) != 0;
        Self { read: bit(0), write: bit(1), append: bit(2), directory: bit(3), ..Self::default() }
    }
}

/// How to rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with `EEXIST` when the new name exists (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// Swap the two names (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// Leave a character device 0:0 under the old name, in the same step (`RENAME_WHITEOUT`):
    /// layered file systems take it for "not there".
    pub whiteout: bool,
}
