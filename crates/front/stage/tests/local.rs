//! Copies between two places of the local file system: conditions that are true whatever the trees
//! are.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use samite_stage::{CopyOptions, CopyProgress, CopySummary, LocalTree, copy_tree};

fn stage(from: &Path, to: &Path, checksum: bool) -> (CopySummary, Vec<String>) {
    let errors = Mutex::new(Vec::new());
    let summary = copy_tree(
        (&LocalTree, from.as_os_str().as_bytes()),
        (&LocalTree, to.as_os_str().as_bytes()),
        &CopyOptions { threads: 3, checksum, ..CopyOptions::default() },
        &CopyProgress::default(),
        &|error| errors.lock().unwrap().push(error.to_string()),
    )
    .unwrap();
    (summary, errors.into_inner().unwrap())
}

fn set_time(path: &Path, nanoseconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn assert_same(from: &Path, to: &Path) {
    let (a, b) = (fs::symlink_metadata(from).unwrap(), fs::symlink_metadata(to).unwrap());
    assert_eq!(a.mode(), b.mode(), "{from:?}");
    assert_eq!((a.mtime(), a.mtime_nsec()), (b.mtime(), b.mtime_nsec()), "{from:?}");
    if a.is_dir() {
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            assert_same(&from.join(&name), &to.join(&name));
        }
    } else if a.is_symlink() {
        assert_eq!(fs::read_link(from).unwrap(), fs::read_link(to).unwrap());
    } else {
        assert!(fs::read(from).unwrap() == fs::read(to).unwrap(), "{from:?}");
    }
}

/// A tree with everything odd that a local file system allows.
fn odd_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"new\nline \xff\xfe")), "odd name").unwrap();
    fs::write(root.join("dir/private"), "secret").unwrap();
    fs::set_permissions(root.join("dir/private"), fs::Permissions::from_mode(0o4600)).unwrap();
    fs::hard_link(root.join("dir/private"), root.join("other-name")).unwrap();
    symlink("../nowhere", root.join("dir/dangling")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(100 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 50 << 20).unwrap();
    let large: Vec<u8> = (0..40 << 20).map(|i: u32| (i / 7 % 251) as u8).collect();
    fs::write(root.join("large"), large).unwrap();
    set_time(&root.join("empty"), 1_234_567_890_123_456_789);
    fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(0o750)).unwrap();
    set_time(&root.join("dir"), 999_999_999_000_000_001);
}

#[test]
fn everything_arrives_as_it_was_and_is_skipped_the_second_time() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    odd_tree(&from);
    let (summary, errors) = stage(&from, &to, true);
    assert_eq!(errors, [] as [&str; 0]);
    assert_same(&from, &to);
    assert_eq!((summary.files, summary.verified, summary.skipped), (5, 5, 0));
    assert_eq!((summary.directories, summary.symlinks, summary.hard_links), (3, 1, 1));
    let ino = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(ino("dir/private"), ino("other-name"));
    assert!(fs::metadata(to.join("sparse")).unwrap().blocks() * 512 < 1 << 20, "holes are kept");

    let (summary, errors) = stage(&from, &to, false);
    assert_eq!(errors, [] as [&str; 0]);
    assert_eq!((summary.files, summary.skipped, summary.hard_links), (0, 5, 1));
    assert_same(&from, &to);
}

#[test]
fn what_was_begun_or_changed_is_copied_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    odd_tree(&from);
    stage(&from, &to, false);
    // As an interrupted copy leaves it: right length, wrong bytes, its time not set yet.
    fs::write(to.join("large"), vec![0; 40 << 20]).unwrap();
    fs::remove_file(to.join("empty")).unwrap();
    let (summary, errors) = stage(&from, &to, false);
    assert_eq!(errors, [] as [&str; 0]);
    assert_eq!((summary.files, summary.skipped), (2, 3));
    assert_same(&from, &to);
    // Same length and time, other bytes: only reading tells.
    let time = fs::metadata(to.join("large")).unwrap().modified().unwrap();
    let large = File::options().write(true).open(to.join("large")).unwrap();
    large.write_all_at(b"X", 20 << 20).unwrap();
    large.set_modified(time).unwrap();
    assert_eq!(stage(&from, &to, false).0.files, 0);
    assert_eq!(stage(&from, &to, true).0.files, 1);
    assert_same(&from, &to);
}

#[test]
fn an_error_names_its_file_and_the_rest_goes_on() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("a"), "a").unwrap();
    fs::write(from.join("b"), "b").unwrap();
    fs::create_dir_all(to.join("a/in the way")).unwrap();
    let (summary, errors) = stage(&from, &to, false);
    assert_eq!(summary.errors, 1);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("to/a: is there, and is a directory"), "{errors:?}");
    assert_eq!(fs::read(to.join("b")).unwrap(), b"b");
}

#[test]
fn a_single_file_is_a_tree() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::write(&from, "alone").unwrap();
    let (summary, _) = stage(&from, &to, false);
    assert_eq!(summary.files, 1);
    assert_same(&from, &to);
}
