//! Names: made, linked, renamed, removed.

use libc::{
    EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_WRONLY,
};

use super::ClaimScene;
use crate::access_path::AccessPath;
use crate::call::{FileCall, FileKindSeen};

type Test = (&'static str, fn(&mut ClaimScene<'_>));

pub const CLAIMS: &[Test] = &[
    ("made-is-seen", made_is_seen),
    ("removed-is-gone", removed_is_gone),
    ("exclusive-is-won-once", exclusive_is_won_once),
    ("rename-replaces", rename_replaces),
    ("rename-never-misses", rename_never_misses),
    ("rename-of-a-directory-takes-all-along", rename_of_a_directory),
    ("rename-refuses", rename_refuses),
    ("exchange-swaps", exchange_swaps),
    ("whiteout-is-left", whiteout_is_left),
    ("unlinked-lives-while-open", unlinked_lives_while_open),
    ("links-are-one-file", links_are_one_file),
    ("symbolic-links-are-followed", symbolic_links_are_followed),
    ("modes-are-kept", modes_are_kept),
];

fn rename(access: &mut dyn AccessPath, from: &str, to: &str, flags: u32) -> Result<(), i32> {
    access.run(FileCall::Rename { from: from.into(), to: to.into(), flags })
}

fn made_is_seen(scene: &mut ClaimScene<'_>) {
    for index in 0..20 {
        let path = scene.path(&format!("f{index}"));
        // A look-up that failed must not be remembered.
        assert_eq!(scene.other.facts(&path), Err(ENOENT));
        let file = scene.one.create(&path).expect("create");
        assert_eq!(scene.other.facts(&path).expect("stat").kind, FileKindSeen::File);
        scene.one.close(file).expect("close");
        let dir = scene.path(&format!("d{index}"));
        assert_eq!(scene.one.facts(&dir), Err(ENOENT));
        scene.other.mkdir(&dir).expect("mkdir");
        scene.one.put(&format!("{dir}/x"), b"x").expect("put");
        assert_eq!(scene.other.get(&format!("{dir}/x")), Ok(b"x".into()));
    }
    assert_eq!(scene.other.list(&scene.dir.clone()).expect("list").len(), 40);
}

fn removed_is_gone(scene: &mut ClaimScene<'_>) {
    for index in 0..20 {
        let path = scene.path(&format!("f{index}"));
        scene.one.put(&path, b"x").expect("put");
        scene.other.get(&path).expect("get");
        scene.one.unlink(&path).expect("unlink");
        assert_eq!(scene.other.facts(&path), Err(ENOENT));
        assert_eq!(scene.other.open(&path, O_RDONLY), Err(ENOENT));
        let (dir, file) = (scene.path("d"), scene.path("d/f"));
        scene.one.mkdir(&dir).expect("mkdir");
        scene.other.put(&file, b"x").expect("put");
        scene.one.unlink(&file).expect("unlink");
        scene.one.rmdir(&dir).expect("rmdir");
        assert_eq!(scene.other.open(&file, O_CREAT | O_WRONLY), Err(ENOENT));
    }
    assert_eq!(scene.other.list(&scene.dir.clone()), Ok(Vec::new()));
}

fn exclusive_is_won_once(scene: &mut ClaimScene<'_>) {
    let flags = O_CREAT | O_EXCL | O_RDWR;
    let path = scene.path("f");
    scene.one.open(&path, flags).expect("the first");
    assert_eq!(scene.other.open(&path, flags), Err(EEXIST));
    let link = scene.path("link");
    scene
        .one
        .run(FileCall::Symlink { target: "nowhere".into(), path: link.clone() })
        .expect("symlink");
    assert_eq!(scene.other.open(&link, flags), Err(EEXIST), "a symbolic link is a name, too");
    let dir = scene.path("d");
    scene.one.mkdir(&dir).expect("mkdir");
    assert_eq!(scene.other.mkdir(&dir), Err(EEXIST));
}

fn rename_replaces(scene: &mut ClaimScene<'_>) {
    let (from, to) = (scene.path("from"), scene.path("to"));
    for size in [5, 100_000] {
        scene.one.put(&to, &vec![1; 50_000]).expect("put");
        scene.one.put(&from, &vec![2; size]).expect("put");
        let old = scene.other.open(&to, O_RDONLY).expect("open");
        scene.one.rename(&from, &to).expect("rename");
        assert_eq!(scene.other.get(&to), Ok(vec![2; size]));
        assert_eq!(scene.other.facts(&from), Err(ENOENT));
        let before = scene.other.read(old, 0, 60_000);
        assert!(before == Ok(vec![1; 50_000]), "who had the old file open reads something else");
        scene.other.close(old).expect("close");
    }
    assert_eq!(scene.one.list(&scene.dir.clone()), Ok(vec!["to".into()]));
}

fn rename_never_misses(scene: &mut ClaimScene<'_>) {
    // Two access paths, one thread: the interleavings are the stress test's; here each step is seen
    // whole.
    let path = scene.path("current");
    scene.one.put(&path, b"0").expect("put");
    for index in 1..30 {
        let new = scene.path(&format!("new{index}"));
        let (maker, reader) = if index % 2 == 0 {
            (&mut *scene.one, &mut *scene.other)
        } else {
            (&mut *scene.other, &mut *scene.one)
        };
        maker.put(&new, index.to_string().as_bytes()).expect("put");
        maker.rename(&new, &path).expect("rename");
        assert_eq!(reader.get(&path), Ok(index.to_string().into_bytes()));
    }
}

fn rename_of_a_directory(scene: &mut ClaimScene<'_>) {
    let (from, to) = (scene.path("from"), scene.path("to"));
    scene.one.mkdir(&from).expect("mkdir");
    scene.one.mkdir(&format!("{from}/sub")).expect("mkdir");
    for index in 0..20 {
        scene.one.put(&format!("{from}/sub/{index}"), b"x").expect("put");
    }
    let open = scene.other.open(&format!("{from}/sub/3"), O_RDWR).expect("open");
    scene.one.rename(&from, &to).expect("rename");
    assert_eq!(scene.other.facts(&format!("{from}/sub/3")), Err(ENOENT));
    assert_eq!(scene.other.list(&format!("{to}/sub")).expect("list").len(), 20);
    scene.other.write(open, 0, b"yy").expect("write through a file opened before");
    assert_eq!(scene.one.get(&format!("{to}/sub/3")), Ok(b"yy".into()));
    // A new directory under the old name is another one.
    scene.one.mkdir(&from).expect("mkdir");
    assert_eq!(scene.other.list(&from), Ok(Vec::new()));
    scene.other.rename(&to, &from).expect("over an empty directory");
    assert_eq!(scene.one.list(&format!("{from}/sub")).expect("list").len(), 20);
}

fn rename_refuses(scene: &mut ClaimScene<'_>) {
    let (file, dir, full) = (scene.path("file"), scene.path("dir"), scene.path("full"));
    scene.one.put(&file, b"x").expect("put");
    scene.one.mkdir(&dir).expect("mkdir");
    scene.one.mkdir(&full).expect("mkdir");
    scene.one.put(&format!("{full}/x"), b"x").expect("put");
    let other = &mut *scene.other;
    assert_eq!(other.rename(&file, &dir), Err(EISDIR));
    assert_eq!(other.rename(&dir, &file), Err(ENOTDIR));
    assert_eq!(other.rename(&dir, &full), Err(ENOTEMPTY));
    assert_eq!(other.rename(&full, &format!("{full}/below")), Err(EINVAL));
    assert_eq!(rename(other, &file, &dir, libc::RENAME_NOREPLACE), Err(EEXIST));
    assert_eq!(other.rename(&scene.dir.clone().replace('/', "/no"), &file), Err(ENOENT));
    assert_eq!(
        other.list(&scene.dir.clone()).expect("list").len(),
        3,
        "a refused rename had an effect"
    );
}

fn exchange_swaps(scene: &mut ClaimScene<'_>) {
    let (file, dir) = (scene.path("file"), scene.path("dir"));
    scene.one.put(&file, b"x").expect("put");
    scene.one.mkdir(&dir).expect("mkdir");
    scene.one.put(&format!("{dir}/y"), b"y").expect("put");
    rename(scene.other, &file, &dir, libc::RENAME_EXCHANGE).expect("exchange");
    assert_eq!(scene.one.get(&dir), Ok(b"x".into()));
    assert_eq!(scene.one.get(&format!("{file}/y")), Ok(b"y".into()));
    let none = scene.path("none");
    assert_eq!(rename(scene.other, &file, &none, libc::RENAME_EXCHANGE), Err(ENOENT));
}

fn whiteout_is_left(scene: &mut ClaimScene<'_>) {
    let (from, to, dir) = (scene.path("from"), scene.path("to"), scene.path("dir"));
    scene.one.put(&from, b"new").expect("put");
    scene.other.put(&to, b"old").expect("put");
    scene.one.mkdir(&dir).expect("mkdir");
    for (old, new) in [(&from, &to), (&dir, &scene.path("moved"))] {
        rename(scene.other, old, new, libc::RENAME_WHITEOUT).expect("rename");
        for access in [&mut *scene.one, &mut *scene.other] {
            let left = access.facts(old).expect("something is there");
            assert_eq!((left.kind, left.mode, left.size), (FileKindSeen::Other, 0, 0));
        }
    }
    assert_eq!(scene.one.get(&to), Ok(b"new".into()));
    let both = libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE;
    assert_eq!(rename(scene.other, &to, &from, both), Err(EINVAL));
}

fn unlinked_lives_while_open(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    for size in [10, 100_000] {
        scene.one.put(&path, &vec![4; size]).expect("put");
        let mine = scene.one.open(&path, O_RDWR).expect("open");
        let theirs = scene.other.open(&path, O_RDWR).expect("open");
        scene.one.unlink(&path).expect("unlink");
        assert_eq!(scene.other.facts(&path), Err(ENOENT));
        assert_eq!(scene.other.file_facts(theirs).expect("fstat").links, 0);
        scene.other.write(theirs, size as u64, b"more").expect("write");
        let data = scene.one.read(mine, 0, 200_000).expect("read");
        assert!(data.len() == size + 4 && data.ends_with(b"more"), "the two see different files");
        scene.one.close(mine).expect("close");
        assert_eq!(scene.other.read(theirs, 0, 200_000).expect("read").len(), size + 4);
        scene.other.close(theirs).expect("close");
    }
}

fn links_are_one_file(scene: &mut ClaimScene<'_>) {
    let (one, two) = (scene.path("one"), scene.path("two"));
    scene.one.put(&one, b"first").expect("put");
    scene.one.link(&one, &two).expect("link");
    let facts = scene.other.facts(&two).expect("stat");
    assert_eq!((facts.links, facts.ino), (2, scene.other.facts(&one).expect("stat").ino));
    scene.other.put(&two, b"second, longer").expect("put");
    assert_eq!(scene.one.get(&one), Ok(b"second, longer".into()));
    scene.other.run(FileCall::Chmod { path: one.clone(), mode: 0o600 }).expect("chmod");
    assert_eq!(scene.one.facts(&two).expect("stat").mode, 0o600);
    assert_eq!(scene.other.link(&one, &two), Err(EEXIST));
    scene.one.unlink(&one).expect("unlink");
    assert_eq!(scene.other.facts(&two).expect("stat").links, 1);
    assert_eq!(scene.other.get(&two), Ok(b"second, longer".into()));
}

fn symbolic_links_are_followed(scene: &mut ClaimScene<'_>) {
    let (target, link) = (scene.path("target"), scene.path("link"));
    scene
        .one
        .run(FileCall::Symlink { target: "target".into(), path: link.clone() })
        .expect("symlink");
    assert_eq!(scene.other.get(&link), Err(ENOENT));
    scene.one.put(&target, b"there").expect("put");
    assert_eq!(scene.other.get(&link), Ok(b"there".into()));
    assert_eq!(scene.other.facts(&link).expect("lstat").kind, FileKindSeen::Symlink);
    let read = scene.other.call(FileCall::ReadLink { path: link.clone() });
    assert_eq!(crate::access_path::bytes(read), Ok(b"target".into()));
    let ring = scene.path("ring");
    scene
        .one
        .run(FileCall::Symlink { target: "ring".into(), path: ring.clone() })
        .expect("symlink");
    assert_eq!(scene.other.open(&ring, O_RDONLY), Err(libc::ELOOP));
    scene.other.unlink(&link).expect("unlink");
    assert_eq!(scene.one.get(&target), Ok(b"there".into()), "unlink followed the link");
}

fn modes_are_kept(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let create = FileCall::Open { path: path.clone(), flags: O_CREAT | O_WRONLY, mode: 0o666 };
    assert!(matches!(scene.one.call(create), crate::call::CallAnswer::Opened(_)));
    assert_eq!(scene.other.facts(&path).expect("stat").mode, 0o644, "the umask is 022");
    for mode in [0o4755, 0, 0o7777, 0o640] {
        scene.one.run(FileCall::Chmod { path: path.clone(), mode }).expect("chmod");
        assert_eq!(scene.other.facts(&path).expect("stat").mode, mode);
    }
}
