//! Files of a mounted store, through the kernel.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Store, on_each_store};
use rustix::fs::{CWD, Mode, RenameFlags, SeekFrom as Seeking};
use samite_fs::{CallerContext, OpenFlags};
use samite_testkit::has;

fn names(store: &Store, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(store.path(dir)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn names_of_every_kind_are_made_listed_and_removed() {
    on_each_store(|store| {
        fs::create_dir(store.path("d")).unwrap();
        fs::write(store.path("d/file"), "data").unwrap();
        symlink("file", store.path("d/link")).unwrap();
        fs::hard_link(store.path("d/file"), store.path("d/second")).unwrap();
        rustix::fs::mkfifoat(CWD, store.path("d/fifo"), Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(names(store, "d"), ["fifo", "file", "link", "second"]);
        assert_eq!(fs::read(store.path("d/link")).unwrap(), b"data");
        let (file, second) = ["d/file", "d/second"].map(|name| store.path(name)).into();
        let (file, second) = (fs::metadata(file).unwrap(), fs::metadata(second).unwrap());
        assert_eq!((file.ino(), file.nlink()), (second.ino(), 2));
        assert!(fs::symlink_metadata(store.path("d/fifo")).unwrap().file_type().is_fifo());
        assert_eq!(
            fs::remove_dir(store.path("d")).unwrap_err().kind(),
            ErrorKind::DirectoryNotEmpty
        );
        for name in names(store, "d") {
            fs::remove_file(store.path("d").join(name)).unwrap();
        }
        fs::remove_dir(store.path("d")).unwrap();
        assert_eq!(fs::read_dir(store.path("d")).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn nothing_is_made_where_a_directory_was() {
    on_each_store(|store| {
        fs::create_dir(store.path("d")).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "read go; mkdir below; stat ."]).current_dir(store.path("d"));
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).env("LC_ALL", "C");
        let mut shell = shell.spawn().unwrap();
        store.fs.rmdir(&CallerContext::root(), "/d").unwrap();
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let said = String::from_utf8(shell.wait_with_output().unwrap().stderr).unwrap();
        assert_eq!(said.matches("No such file or directory").count(), 2, "{said}");
    });
}

#[test]
fn what_is_open_outlives_its_name() {
    on_each_store(|store| {
        let mut file = File::create_new(store.path("a")).unwrap();
        file.write_all(b"first").unwrap();
        fs::remove_file(store.path("a")).unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        assert_eq!(
            (file.metadata().unwrap().len(), file.metadata().unwrap().nlink()),
            (100_005, 0)
        );
        fs::write(store.path("b"), "old").unwrap();
        fs::write(store.path("c"), "new").unwrap();
        let mut old = File::open(store.path("b")).unwrap();
        fs::rename(store.path("c"), store.path("b")).unwrap();
        let mut text = String::new();
        old.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old");
        assert_eq!(fs::read(store.path("b")).unwrap(), b"new");
        fs::write(store.path("c"), "other").unwrap();
        let rename =
            |flags| rustix::fs::renameat_with(CWD, store.path("c"), CWD, store.path("b"), flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(store.path("b")).unwrap(), b"other");
        assert_eq!(fs::read(store.path("c")).unwrap(), b"new");
    });
}

#[test]
fn modes_owners_and_times_are_kept() {
    on_each_store(|store| {
        let path = store.path("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        std::os::unix::fs::chown(&path, Some(5), Some(6)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        // Another's program does not run as its owner.
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o751, 5, 6));
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
        File::open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x\0\0");
        rustix::fs::setxattr(&path, "user.k", b"v", rustix::fs::XattrFlags::CREATE).unwrap();
        let mut value = [0; 8];
        assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut value[..]).unwrap(), 1);
        assert_eq!(rustix::fs::listxattr(&path, &mut value[..]).unwrap(), 7);
    });
}

#[test]
fn holes_are_found_and_ranges_copied() {
    on_each_store(|store| {
        let mut file = File::create_new(store.path("sparse")).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1; 4096], 4 << 20).unwrap();
        let data = rustix::fs::seek(&file, Seeking::Data(0)).unwrap();
        assert!((1..=4 << 20).contains(&data), "{data}");
        assert_eq!(rustix::fs::seek(&file, Seeking::Hole(0)).unwrap(), 0);
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut copy = File::create_new(store.path("copy")).unwrap();
        assert_eq!(std::io::copy(&mut file, &mut copy).unwrap(), 8 << 20);
        assert!(fs::read(store.path("sparse")).unwrap() == fs::read(store.path("copy")).unwrap());
    });
}

#[test]
fn mappings_and_calls_see_each_other() {
    on_each_store(|store| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(store.path("mapped"))
            .unwrap();
        file.write_all_at(&[b'.'; 8192], 0).unwrap();
        use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), 8192, access, MapFlags::SHARED, &file, 0) };
        let at = at.unwrap().cast::<u8>();
        // SAFETY: both offsets lie within the mapping, which nobody else uses.
        unsafe {
            assert_eq!(at.read_volatile(), b'.');
            at.add(5000).write_volatile(b'!');
            msync(at.cast(), 8192, MsyncFlags::SYNC).unwrap();
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, 5000).unwrap();
        assert_eq!(byte, *b"!");
        let there =
            store.fs.open_file(&CallerContext::root(), "/mapped", OpenFlags::reading(), 0).unwrap();
        assert_eq!(there.read_at(&mut byte, 5000).unwrap(), 1);
        assert_eq!(byte, *b"!");
        // SAFETY: the mapping made above, used no more.
        unsafe { munmap(at.cast(), 8192).unwrap() };
    });
}

#[test]
fn the_mount_and_the_library_see_each_other_at_once() {
    on_each_store(|store| {
        let root = CallerContext::root();
        for round in 0..50_u32 {
            let text = round.to_string();
            let file = store.fs.open_file(&root, "/shared", OpenFlags::creating(), 0o644).unwrap();
            file.truncate(0).unwrap();
            file.write_at(text.as_bytes(), 0).unwrap();
            file.close().unwrap();
            assert_eq!(fs::read_to_string(store.path("shared")).unwrap(), text);
            fs::rename(store.path("shared"), store.path("moved")).unwrap();
            assert!(store.fs.stat(&root, "/shared", true).is_err());
            store.fs.unlink(&root, "/moved").unwrap();
            assert!(!store.path("moved").exists());
        }
    });
}

/// Whether a whole-file lock can be had; `flock`, and a lock of the open file description.
fn locks(file: &File) -> [bool; 2] {
    use std::os::fd::AsRawFd;
    let whole =
        libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and `whole` is what this command reads.
    let ofd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
    [file.try_lock().is_ok(), ofd == 0]
}

#[test]
fn locks_exclude_others_and_end_with_the_last_close() {
    on_each_store(|store| {
        File::create_new(store.path("l")).unwrap();
        let (first, second) =
            (File::open(store.path("l")), OpenOptions::new().write(true).open(store.path("l")));
        let (first, second) = (first.unwrap(), second.unwrap());
        first.lock().unwrap();
        // The two kinds do not meet.
        assert_eq!(locks(&second), [false, true]);
        let third = OpenOptions::new().write(true).open(store.path("l")).unwrap();
        assert_eq!(locks(&third), [false, false]);
        drop((first, second));
        // The kernel releases a file some time after the close returned.
        let mut got = [false, false];
        for _ in 0..500 {
            got = locks(&third);
            if got == [true, true] {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(got, [true, true]);
    });
}

#[test]
fn who_waits_for_a_lock_holds_up_nobody() {
    on_each_store(|store| {
        let path = store.path("l");
        let holder = File::create_new(&path).unwrap();
        holder.lock().unwrap();
        let got = Arc::new(AtomicUsize::new(0));
        // More than the mount has workers.
        let waiters: Vec<_> = (0..12)
            .map(|_| {
                let (path, got) = (path.clone(), got.clone());
                std::thread::spawn(move || {
                    let file = File::open(path).unwrap();
                    file.lock().unwrap();
                    got.fetch_add(1, Ordering::AcqRel);
                })
            })
            .collect();
        for round in 0..50 {
            fs::write(store.path(&format!("w{round}")), "x").unwrap();
        }
        assert_eq!(got.load(Ordering::Acquire), 0);
        drop(holder);
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!(got.load(Ordering::Acquire), 12);
    });
}

#[test]
fn many_threads_work_side_by_side() {
    on_each_store(|store| {
        let log = store.path("log");
        File::create_new(&log).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..12_u8 {
                let log = &log;
                scope.spawn(move || {
                    let dir = store.path(&format!("t{worker}"));
                    fs::create_dir(&dir).unwrap();
                    let mut log = OpenOptions::new().append(true).open(log).unwrap();
                    for round in 0..30_usize {
                        let data = vec![worker; round * 1000];
                        fs::write(dir.join("new"), &data).unwrap();
                        fs::rename(dir.join("new"), dir.join("now")).unwrap();
                        assert!(fs::read(dir.join("now")).unwrap() == data);
                        log.write_all(&[b'a' + worker; 10]).unwrap();
                    }
                    fs::remove_dir_all(&dir).unwrap();
                });
            }
        });
        let log = fs::read(&log).unwrap();
        assert_eq!(log.len(), 12 * 30 * 10);
        // No line is torn.
        assert!(log.chunks(10).all(|line| line.iter().all(|byte| *byte == line[0])));
        assert_eq!(names(store, ""), ["log"]);
    });
}

#[test]
fn a_long_listing_has_every_name_once() {
    on_each_store(|store| {
        fs::create_dir(store.path("d")).unwrap();
        let wanted: Vec<String> = (0..1500).map(|number| format!("file-{number:04}")).collect();
        for name in &wanted {
            File::create_new(store.path("d").join(name)).unwrap();
        }
        assert_eq!(names(store, "d"), wanted);
        // Removing while listing sees the rest all the same.
        let mut seen = 0;
        for entry in fs::read_dir(store.path("d")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
            seen += 1;
        }
        assert_eq!(seen, wanted.len());
        fs::remove_dir(store.path("d")).unwrap();
    });
}

#[test]
fn a_signal_ends_the_wait_for_a_lock() {
    on_each_store(|store| {
        if !has("flock") {
            return;
        }
        let holder = File::create_new(store.path("l")).unwrap();
        holder.lock().unwrap();
        let mut flock = std::process::Command::new("flock");
        let mut waiter = flock.arg(store.path("l")).arg("true").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(waiter.try_wait().unwrap().is_none());
        let begun = std::time::Instant::now();
        waiter.kill().unwrap();
        assert!(!waiter.wait().unwrap().success());
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
        // It has no locks, and nothing waits in its place.
        holder.unlock().unwrap();
        holder.try_lock().unwrap();
    });
}
