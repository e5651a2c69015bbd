//! Small files in batches.

mod common;

use common::{Rig, create, get, kind, noise, put, root, user};
use samite_fs::{FileKind, INLINE_LEN_MAX, NewFile, Timestamp};
use samite_types::ErrorKind;

fn file<'a>(path: &'a [u8], data: &'a [u8]) -> NewFile<'a> {
    let (atime, mtime) = (Timestamp(1), Timestamp(2));
    NewFile { path, perm: 0o640, owner: None, atime, mtime, data }
}

#[test]
fn a_batch_is_one_request_per_node_and_makes_whole_files() {
    let rig = Rig::new(3);
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    put(&rig.fs, b"/d/first", b"to take a range of inode numbers, and warm the cache");
    let data = noise(INLINE_LEN_MAX as usize, 1);
    let paths: Vec<Vec<u8>> = (0..64).map(|i| format!("/d/file-{i}").into_bytes()).collect();
    let new: Vec<NewFile<'_>> =
        paths.iter().enumerate().map(|(i, path)| file(path, &data[..i * 128])).collect();
    let before = rig.client.stats();
    let made = rig.fs.put_files(&root(), &new).unwrap();
    assert_eq!((rig.client.stats() - before).requests, 3);
    assert!(made.iter().all(Result::is_ok), "{made:?}");

    let before = rig.client.stats();
    let asked: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
    let found = rig.fs.get_files(&root(), &asked).unwrap();
    assert_eq!((rig.client.stats() - before).requests, 3);
    for (i, whole) in found.into_iter().enumerate() {
        let whole = whole.unwrap().unwrap();
        assert!(whole.data == data[..i * 128]);
        assert_eq!(whole.attr, rig.fs.stat(&root(), &paths[i], false).unwrap());
        assert_eq!((whole.attr.kind, whole.attr.perm), (FileKind::File, 0o640));
        assert_eq!((whole.attr.atime, whole.attr.mtime), (Timestamp(1), Timestamp(2)));
        assert!(get(&rig.fs, &paths[i]).unwrap() == data[..i * 128]);
    }
}

#[test]
fn each_file_has_its_own_failure() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    create(fs, b"/there").close().unwrap();
    fs.mkdir(&root(), b"/closed", 0o700).unwrap();
    let too_large = vec![0; INLINE_LEN_MAX as usize + 1];
    let new = [
        file(b"/there", b""),
        file(b"/no/such/dir", b""),
        file(b"/new", b"new"),
        file(b"/large", &too_large),
        file(b"/there/below", b""),
    ];
    let kinds = |results: Vec<samite_types::Result<()>>| -> Vec<Option<ErrorKind>> {
        results.into_iter().map(|result| result.err().map(|error| error.kind())).collect()
    };
    let made = kinds(fs.put_files(&root(), &new).unwrap());
    let expected = [
        Some(ErrorKind::Exists),
        Some(ErrorKind::NotFound),
        None,
        Some(ErrorKind::TooLarge),
        Some(ErrorKind::NotDirectory),
    ];
    assert_eq!(made, expected);
    let given = NewFile { owner: Some((0, 0)), ..file(b"/given", b"") };
    let made = fs.put_files(&user(7, 7), &[file(b"/closed/x", b""), given]).unwrap();
    assert_eq!(kinds(made), [Some(ErrorKind::Denied), Some(ErrorKind::NotOwner)]);

    fs.symlink(&root(), b"/new", b"/link").unwrap();
    put(fs, b"/chunked", &noise(1 << 20, 2));
    let paths: [&[u8]; 5] = [b"/new", b"/nope", b"/link", b"/chunked", b"/closed"];
    let mut found = fs.get_files(&root(), &paths).unwrap().into_iter();
    assert_eq!(found.next().unwrap().unwrap().unwrap().data, b"new");
    assert_eq!(kind(found.next().unwrap()), ErrorKind::NotFound);
    assert!(found.all(|other| other.unwrap().is_none()));
    let denied = fs.get_files(&user(7, 7), &[b"/new"]).unwrap().remove(0);
    assert_eq!(kind(denied), ErrorKind::Denied);
}
