//! The kernel's requests.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use samite_fs::LockSpace;

use crate::kernel::{Answer, KernelName, NO_FILE, caller};
use crate::kernel_options::{self, IO_LEN_MAX};
use crate::locks::{LockAsk, UNLOCKED, space_of};
use crate::ops::{AttributeChanges, FuseOperations, NewKind, SeenName, read_into};
use crate::replies::{GENERATION, TTL, attributes, empty, entry, value, written};
use crate::worker_pool::{ExpectedRequest, ReaderPool, ServedRequest};

/// Requests that move so many bytes take long.
const LONG_LEN_MIN: usize = 64 << 10;

/// Data go to the store directly, several writers at a time; mappings have pages all the same.
const OPEN_FLAGS: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Answers the kernel.
pub struct FuseServer {
    ops: Arc<FuseOperations>,
    pool: Arc<ReaderPool>,
}

impl FuseServer {
    /// For these operations, by these workers.
    pub const fn new(ops: Arc<FuseOperations>, pool: Arc<ReaderPool>) -> Self {
        Self { ops, pool }
    }

    /// For as long as a worker serves a request.
    fn turn(&self, req: &Request) -> ServedRequest<'_, impl Fn() -> bool> {
        self.turn_of(req, 0, ExpectedRequest::More)
    }

    /// The same for one with so many bytes to move, and with what is likely to come after it.
    fn turn_of(
        &self,
        req: &Request,
        len: usize,
        next: ExpectedRequest,
    ) -> ServedRequest<'_, impl Fn() -> bool> {
        let is_long = len >= LONG_LEN_MIN;
        // A program that moves much data is likely to have more of it, and others as well.
        let turn = self.pool.begin(req.pid(), next, move || !is_long && self.ops.fs.answers_soon());
        if is_long {
            self.pool.call();
        }
        turn
    }

    /// Answers with the new file.
    fn made(&self, answer: Answer<SeenName<FileAttr>>, reply: ReplyEntry) {
        match answer {
            Ok(SeenName { attr, name, attributes }) => {
                self.ops.caching.answer([name, attributes], |[name, attributes]| {
                    reply.entry_with_ttls(&attributes, &name, &attr, GENERATION);
                });
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Waits in a thread of its own: workers are for what ends soon.
    fn wait_for_lock(&self, ask: LockAsk, thread: u32, reply: ReplyEmpty) {
        let ops = self.ops.clone();
        let wait = move || {
            let answer = ops.run(|ops| match ops.locks.waiter() {
                Some(waiter) => waiter.wait(&ask, thread),
                None => Err(Errno::ENOLCK),
            });
            empty(answer, reply);
        };
        // A thread that cannot be had drops the reply, which answers EIO.
        if let Err(error) = std::thread::Builder::new().name("lock".to_owned()).spawn(wait) {
            tracing::warn!("wait for a lock: {error}");
        }
    }
}

const fn name(parent: INodeNo, name: &OsStr) -> KernelName<'_> {
    KernelName { parent: parent.0, name }
}

impl Filesystem for FuseServer {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        kernel_options::ask(config, self.ops.caching.is_on());
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEntry) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.look_up(&caller(req), name(parent, child))) {
            Ok(seen) => {
                self.ops.caching.answer([seen.name, seen.attributes], |[name, attributes]| {
                    match &seen.attr {
                        Some(attr) => reply.entry_with_ttls(&attributes, &name, attr, GENERATION),
                        None if name.is_zero() => reply.error(Errno::ENOENT),
                        None => reply.entry_with_ttls(&TTL, &name, &NO_FILE, GENERATION),
                    }
                })
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, req: &Request, ino: INodeNo, nlookup: u64) {
        let _turn = self.turn(req);
        self.ops.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.turn_of(req, 0, ExpectedRequest::Unknown);
        match self.ops.run(|ops| ops.attr(ino.0, fh.map(u64::from))) {
            Ok((attr, delegation)) => {
                self.ops.caching.answer([delegation], |[ttl]| reply.attr(&ttl, &attr));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.turn(req);
        let changes = AttributeChanges { mode, uid, gid, size, atime, mtime };
        let fh = fh.map(u64::from);
        attributes(self.ops.run(|ops| ops.set_attr(&caller(req), ino.0, fh, &changes)), reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.target(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.turn(req);
        let new = NewKind::Node(mode, rdev);
        self.made(self.ops.run(|ops| ops.make(&caller(req), name(parent, child), new)), reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.turn(req);
        let new = NewKind::Directory(mode & 0o7777);
        self.made(self.ops.run(|ops| ops.make(&caller(req), name(parent, child), new)), reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn(req);
        empty(self.ops.run(|ops| ops.unlink(&caller(req), name(parent, child))), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn(req);
        empty(self.ops.run(|ops| ops.rmdir(&caller(req), name(parent, child))), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _turn = self.turn(req);
        let new = NewKind::Symlink(target.as_os_str().as_bytes());
        self.made(self.ops.run(|ops| ops.make(&caller(req), name(parent, link_name), new)), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(req);
        let (from, to) = (name(parent, child), name(newparent, newname));
        empty(self.ops.run(|ops| ops.rename(&caller(req), from, to, flags)), reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let _turn = self.turn(req);
        entry(self.ops.run(|ops| ops.link(&caller(req), ino.0, name(newparent, newname))), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.open(&caller(req), ino.0, flags.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), OPEN_FLAGS),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.create(&caller(req), name(parent, child), mode, flags)) {
            Ok((SeenName { attr, name, attributes }, handle)) => {
                self.ops.caching.answer([name, attributes], |ttls| {
                    let ttl = ttls[0].min(ttls[1]);
                    reply.created(&ttl, &attr, GENERATION, FileHandle(handle), OPEN_FLAGS);
                });
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.turn_of(req, size as usize, ExpectedRequest::More);
        read_into(size.min(IO_LEN_MAX) as usize, |buffer| {
            match self.ops.run(|ops| ops.read(fh.0, buffer, offset)) {
                Ok(len) => reply.data(&buffer[..len]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.turn_of(req, data.len(), ExpectedRequest::More);
        let flags = (flags.0, write_flags);
        written(self.ops.run(|ops| ops.write(fh.0, data, offset, flags)), reply);
    }

    fn flush(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(req);
        empty(self.ops.run(|ops| ops.flush(fh.0, lock_owner.0)), reply);
    }

    fn release(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(req);
        empty(self.ops.run(|ops| ops.release(fh.0)), reply);
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let _turn = self.turn_of(req, usize::MAX, ExpectedRequest::More);
        empty(self.ops.run(|ops| ops.settle(fh.0)), reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.open(&caller(req), ino.0, flags.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.list(fh.0, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let _turn = self.turn(req);
        self.ops.list_with_attributes(&caller(req), fh.0, offset, reply);
    }

    fn releasedir(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(req);
        empty(self.ops.run(|ops| ops.release(fh.0)), reply);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // A call on a directory is complete when it returns.
        reply.ok();
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.turn(req);
        match self.ops.run(FuseOperations::statfs) {
            Ok(stat) => reply.statfs(
                stat.blocks,
                stat.blocks_free,
                stat.blocks_free,
                stat.files,
                stat.files_free,
                stat.block_len as u32,
                stat.name_len_max as u32,
                stat.block_len as u32,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        key: &OsStr,
        bytes: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(req);
        let attribute = (key.as_bytes(), bytes);
        empty(self.ops.run(|ops| ops.set_xattr(&caller(req), ino.0, attribute, flags)), reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, key: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.turn(req);
        let found = self.ops.run(|ops| ops.get_xattr(&caller(req), ino.0, key.as_bytes()));
        value(found, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.turn(req);
        value(self.ops.run(|ops| ops.list_xattrs(&caller(req), ino.0)), size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, key: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn(req);
        empty(self.ops.run(|ops| ops.remove_xattr(&caller(req), ino.0, key.as_bytes())), reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn_of(req, usize::MAX, ExpectedRequest::More);
        empty(self.ops.run(|ops| ops.allocate(fh.0, offset, length, mode)), reply);
    }

    fn lseek(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _turn = self.turn(req);
        match self.ops.run(|ops| ops.seek(fh.0, offset, whence)) {
            Ok(found) => reply.offset(found),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _turn = self.turn_of(req, usize::MAX, ExpectedRequest::More);
        let (from, to) = ((fh_in.0, offset_in), (fh_out.0, offset_out));
        written(self.ops.run(|ops| ops.copy(from, to, len)), reply);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let _turn = self.turn(req);
        let ask = LockAsk {
            ino: ino.0,
            handle: fh.0,
            owner: lock_owner.0,
            space: LockSpace::Ranges,
            range: (start, end),
            kind: typ,
            pid,
        };
        match self.ops.run(|ops| ops.locks.test(&ask)) {
            Ok(found) => {
                let (start, last, kind, pid) = found.unwrap_or(UNLOCKED);
                reply.locked(start, last, kind, pid);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let ask = LockAsk {
            ino: ino.0,
            handle: fh.0,
            owner: lock_owner.0,
            space: space_of(req),
            range: (start, end),
            kind: typ,
            pid,
        };
        match self.ops.run(|ops| ops.locks.try_set(&ask)) {
            Ok(true) => reply.ok(),
            Ok(false) if sleep => self.wait_for_lock(ask, req.pid(), reply),
            Ok(false) => reply.error(Errno::EAGAIN),
            Err(errno) => reply.error(errno),
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel takes files for always ready then.
        reply.error(Errno::ENOSYS);
    }
}
