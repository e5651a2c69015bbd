//! Between the kernel's words and the file system's.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use samite_fs::{CallerContext, FileAttributes, FileKind, SetTime, Timestamp};
use samite_types::Error;

/// How an operation ends.
pub type Answer<T> = Result<T, Errno>;

/// A name in a directory, as the kernel gives it.
#[derive(Clone, Copy)]
pub struct KernelName<'a> {
    /// Inode number of the directory.
    pub parent: u64,
    /// The name.
    pub name: &'a OsStr,
}

/// The caller of a request: the kernel has checked that it may, and taken its umask off.
pub fn caller(request: &Request) -> CallerContext {
    CallerContext {
        uid: request.uid(),
        gid: request.gid(),
        is_checked: true,
        ..CallerContext::default()
    }
}

/// The errno of an error. An error without a better one is worth a line in the log.
pub fn errno(error: &Error) -> Errno {
    let errno = Errno::from_i32(error.kind().errno().raw_os_error());
    if errno.code() == Errno::EIO.code() {
        tracing::warn!("{error}");
    }
    errno
}

/// Kind of a file.
pub const fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The answer that the kernel takes for a missing name.
pub const NO_FILE: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

/// Attributes.
pub fn file_attr(attr: &FileAttributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32-bit form is the lower half of libc's.
        rdev: attr.rdev as u32,
        blksize: attr.block_len,
        flags: 0,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let since = Duration::from_nanos(time.0.unsigned_abs());
    let point =
        if time.0 < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
    point.unwrap_or(UNIX_EPOCH)
}

/// A time to be set.
pub fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Keep,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::To(timestamp(time)),
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            Timestamp::new(seconds, since.subsec_nanos())
        }
        Err(before) => {
            let nanoseconds = i64::try_from(before.duration().as_nanos()).unwrap_or(i64::MAX);
            Timestamp(-nanoseconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_both_ways_also_before_1970() {
        for time in [0, 1, -1, 1_700_000_000_123_456_789, -1_000_000_001, i64::MAX, -i64::MAX] {
            assert_eq!(timestamp(system_time(Timestamp(time))), Timestamp(time));
        }
    }
}
