//! Files by handle, as a mount uses them.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, kind, names, root};
use samite_fs::{FileSystem, OpenFile, RelativePath, RenameFlags};
use samite_types::ErrorKind;

const REPLACE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

fn look_up(fs: &FileSystem, path: &[u8]) -> OpenFile {
    fs.look_up(&root(), path).unwrap().file
}

/// `path` name by name, as the kernel does it: a handle on each directory of it.
fn handles(fs: &FileSystem, path: &str) -> Vec<OpenFile> {
    let mut all = vec![fs.root().unwrap().file];
    for name in path.split('/') {
        let last = all.last().unwrap();
        let next = fs.look_up(&root(), RelativePath::dir(last, name.as_bytes())).unwrap().file;
        all.push(next);
    }
    all
}

#[test]
fn no_directory_moves_into_itself_whatever_others_moved() {
    let rig = Rig::new(2);
    let (fs, other, ctx) = (&rig.fs, rig.another(), root());
    for path in ["/a", "/b", "/b/c", "/b/c/d", "/e"] {
        fs.mkdir(&ctx, path, 0o755).unwrap();
    }
    let top = fs.root().unwrap().file;
    let a = look_up(fs, b"/a");
    // Nothing here has ever seen the directories between.
    other.rename(&ctx, b"/a", b"/b/c/d/a", REPLACE).unwrap();
    let b_into_a =
        || fs.rename(&ctx, RelativePath::dir(&top, b"b"), RelativePath::dir(&a, b"x"), REPLACE);
    assert_eq!(kind(b_into_a()), ErrorKind::Invalid);
    fs.rename(&ctx, RelativePath::dir(&top, b"e"), RelativePath::dir(&a, b"e"), REPLACE).unwrap();
    assert_eq!(names(&other, b"/b/c/d/a"), [b"e"]);
    // With handles on all of them, and after renames in between.
    let known = handles(fs, "b/c/d/a/e");
    other.rename(&ctx, b"/b/c", b"/b/c2", REPLACE).unwrap();
    let into_e = |from: &OpenFile, name: &[u8]| {
        fs.rename(&ctx, RelativePath::dir(from, name), RelativePath::dir(&known[5], b"x"), REPLACE)
    };
    assert_eq!(kind(into_e(&top, b"b")), ErrorKind::Invalid);
    assert_eq!(kind(into_e(&known[1], b"c2")), ErrorKind::Invalid);
    assert_eq!(kind(into_e(&known[2], b"d")), ErrorKind::Invalid);
    let swap = RenameFlags { exchange: true, ..REPLACE };
    fs.mkdir(&ctx, RelativePath::dir(&known[5], b"y"), 0o755).unwrap();
    let swapped =
        fs.rename(&ctx, RelativePath::dir(&top, b"b"), RelativePath::dir(&known[5], b"y"), swap);
    assert_eq!(kind(swapped), ErrorKind::Invalid);
    // Out of there, it may.
    other.rename(&ctx, b"/b/c2/d/a", b"/a", REPLACE).unwrap();
    b_into_a().unwrap();
    assert_eq!(names(&other, b"/a"), [b"e", b"x"]);
}
