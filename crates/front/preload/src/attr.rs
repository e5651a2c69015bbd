//! Attributes in the shapes of libc.

use libc::{statfs, statvfs, statx, statx_timestamp, timespec, timeval};
use rustix::io::Errno;
use samite_fs::{FileAttributes, SetTime, StatFs, Timestamp};

use crate::foreign;

/// Device number of the store: programs compare it to tell file systems apart, and it must be no real device's.
const DEVICE_MAJOR: u32 = 0;
const DEVICE_MINOR: u32 = 0x5a317;
/// The type of the file system in `statfs`: "SMTE".
const MAGIC: i64 = 0x534d_5445;
/// Unit of I/O advised to programs. Larger makes `python3` and others allocate as much for every small file.
const IO_LEN: u32 = 64 << 10;

const fn spec(time: Timestamp) -> (i64, i64) {
    (time.seconds(), time.nanoseconds() as i64)
}

/// `struct stat`.
pub fn stat(attr: &FileAttributes) -> libc::stat {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut out: libc::stat = unsafe { std::mem::zeroed() };
    out.st_dev = libc::makedev(DEVICE_MAJOR, DEVICE_MINOR);
    out.st_ino = attr.ino;
    out.st_mode = attr.mode();
    out.st_nlink = attr.nlink.into();
    out.st_uid = attr.uid;
    out.st_gid = attr.gid;
    out.st_rdev = attr.rdev;
    out.st_size = attr.size.cast_signed();
    out.st_blksize = IO_LEN.into();
    out.st_blocks = attr.blocks.cast_signed();
    (out.st_atime, out.st_atime_nsec) = spec(attr.atime);
    (out.st_mtime, out.st_mtime_nsec) = spec(attr.mtime);
    (out.st_ctime, out.st_ctime_nsec) = spec(attr.ctime);
    out
}

/// `struct statx`.
pub fn extended(attr: &FileAttributes) -> statx {
    const fn time(time: Timestamp) -> statx_timestamp {
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut out: statx_timestamp = unsafe { std::mem::zeroed() };
        out.tv_sec = time.seconds();
        out.tv_nsec = time.nanoseconds();
        out
    }
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut out: statx = unsafe { std::mem::zeroed() };
    out.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    out.stx_blksize = IO_LEN;
    out.stx_nlink = attr.nlink;
    out.stx_uid = attr.uid;
    out.stx_gid = attr.gid;
    // Kind and permissions are 16 bits.
    out.stx_mode = attr.mode() as u16;
    out.stx_ino = attr.ino;
    out.stx_size = attr.size;
    out.stx_blocks = attr.blocks;
    out.stx_atime = time(attr.atime);
    out.stx_btime = time(attr.btime);
    out.stx_ctime = time(attr.ctime);
    out.stx_mtime = time(attr.mtime);
    out.stx_rdev_major = libc::major(attr.rdev);
    out.stx_rdev_minor = libc::minor(attr.rdev);
    out.stx_dev_major = DEVICE_MAJOR;
    out.stx_dev_minor = DEVICE_MINOR;
    out
}

/// `struct statfs`.
pub fn file_system(stat_fs: &StatFs) -> statfs {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut out: statfs = unsafe { std::mem::zeroed() };
    out.f_type = MAGIC;
    out.f_bsize = stat_fs.block_len.cast_signed();
    out.f_frsize = stat_fs.block_len.cast_signed();
    out.f_blocks = stat_fs.blocks;
    out.f_bfree = stat_fs.blocks_free;
    out.f_bavail = stat_fs.blocks_free;
    out.f_files = stat_fs.files;
    out.f_ffree = stat_fs.files_free;
    out.f_namelen = stat_fs.name_len_max.cast_signed();
    out
}

/// `struct statvfs`.
pub fn file_system_posix(stat_fs: &StatFs) -> statvfs {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut out: statvfs = unsafe { std::mem::zeroed() };
    out.f_bsize = stat_fs.block_len;
    out.f_frsize = stat_fs.block_len;
    out.f_blocks = stat_fs.blocks;
    out.f_bfree = stat_fs.blocks_free;
    out.f_bavail = stat_fs.blocks_free;
    out.f_files = stat_fs.files;
    out.f_ffree = stat_fs.files_free;
    out.f_favail = stat_fs.files_free;
    out.f_namemax = stat_fs.name_len_max;
    out
}

/// The two times of `utimensat`; null means now.
pub fn times(given: *const timespec) -> Result<(SetTime, SetTime), Errno> {
    let one = |time: timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(SetTime::Now),
        libc::UTIME_OMIT => Ok(SetTime::Keep),
        nanoseconds @ 0..=999_999_999 => {
            Ok(SetTime::To(Timestamp::new(time.tv_sec, nanoseconds as u32)))
        }
        _ => Err(Errno::INVAL),
    };
    match foreign::get(given.cast::<[timespec; 2]>()) {
        None if !given.is_null() => Err(Errno::FAULT),
        None => Ok((SetTime::Now, SetTime::Now)),
        Some([atime, mtime]) => Ok((one(atime)?, one(mtime)?)),
    }
}

/// The two times of `utimes`; null means now.
pub fn times_us(given: *const timeval) -> Result<(SetTime, SetTime), Errno> {
    let one = |time: timeval| match time.tv_usec {
        microseconds @ 0..=999_999 => {
            Ok(SetTime::To(Timestamp::new(time.tv_sec, microseconds as u32 * 1000)))
        }
        _ => Err(Errno::INVAL),
    };
    match foreign::get(given.cast::<[timeval; 2]>()) {
        None if !given.is_null() => Err(Errno::FAULT),
        None => Ok((SetTime::Now, SetTime::Now)),
        Some([atime, mtime]) => Ok((one(atime)?, one(mtime)?)),
    }
}
