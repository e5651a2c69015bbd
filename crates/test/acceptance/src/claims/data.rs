//! Reads after writes.

use libc::{ENXIO, O_APPEND, O_CREAT, O_RDONLY, O_RDWR, O_WRONLY};

use super::ClaimScene;
use crate::access_path::errno_text;
use crate::call::FileCall;
use crate::rng::AcceptanceRng;

type Test = (&'static str, fn(&mut ClaimScene<'_>));

pub const CLAIMS: &[Test] = &[
    ("written-is-read", written_is_read),
    ("size-is-exact", size_is_exact),
    ("append-is-whole", append_is_whole),
    ("holes-are-zeros", holes_are_zeros),
    ("holes-can-be-found", holes_can_be_found),
    ("cut-and-grown-is-zeros", cut_and_grown_is_zeros),
    ("end-is-short-read", end_is_short_read),
    ("time-moves-forward", time_moves_forward),
    ("times-are-kept", times_are_kept),
    ("fsync-has-nothing-to-add", fsync_has_nothing_to_add),
    ("attributes-stay-with-the-file", attributes_stay_with_the_file),
];

/// Lengths and places inside the inode, across its end, across chunks.
const SPANS: [(u64, usize); 7] = [
    (0, 1),
    (0, 4096),
    (5000, 3192),
    (8000, 400),
    (100_000, 5),
    (1_048_570, 20),
    (2_500_000, 70_000),
];

fn written_is_read(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let writer = scene.one.create(&path).expect("create");
    let reader = scene.other.open(&path, O_RDONLY).expect("open");
    let mut rng = AcceptanceRng::new(1);
    for (offset, len) in SPANS {
        let data = rng.bytes(len);
        scene.one.write(writer, offset, &data).expect("write");
        let read = scene.other.read(reader, offset, len as u32).expect("read");
        assert!(read == data, "another process reads something else at {offset}");
    }
    // The other way round: the reader's copy, if there is one, must not last.
    let other = scene.other.open(&path, O_WRONLY).expect("open");
    for (offset, len) in SPANS {
        let data = rng.bytes(len);
        scene.other.write(other, offset, &data).expect("write");
        let read = scene.one.read(writer, offset, len as u32).expect("read");
        assert!(read == data, "the first process reads something else at {offset}");
    }
}

fn size_is_exact(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let file = scene.one.create(&path).expect("create");
    let mut size = 0;
    for (offset, len) in SPANS {
        scene.one.write(file, offset, &vec![1; len]).expect("write");
        size = size.max(offset + len as u64);
        assert_eq!(scene.other.facts(&path).expect("stat").size, size);
        assert_eq!(scene.one.file_facts(file).expect("fstat").size, size);
    }
    for len in [3_000_000, 9000, 100, 0, 8192, 1 << 21] {
        scene.other.run(FileCall::Truncate { path: path.clone(), len }).expect("truncate");
        assert_eq!(scene.one.file_facts(file).expect("fstat").size, len);
        assert_eq!(scene.one.facts(&path).expect("stat").size, len);
    }
}

fn append_is_whole(scene: &mut ClaimScene<'_>) {
    let path = scene.path("log");
    let flags = O_CREAT | O_APPEND | O_WRONLY;
    let one = scene.one.open(&path, flags).expect("open");
    let other = scene.other.open(&path, flags).expect("open");
    let mut expected = Vec::new();
    for index in 0..60u8 {
        let data = vec![index; 1 + usize::from(index) * 40];
        match index % 2 {
            0 => scene.one.append(one, &data).expect("append"),
            _ => scene.other.append(other, &data).expect("append"),
        }
        expected.extend(data);
    }
    assert!(scene.other.get(&path).expect("read") == expected, "records are lost or mixed");
}

fn holes_are_zeros(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let file = scene.one.create(&path).expect("create");
    scene.one.write(file, 3_000_000, b"end").expect("write");
    let data = scene.other.get(&path).expect("read");
    assert_eq!(data.len(), 3_000_003);
    assert!(data[..3_000_000].iter().all(|byte| *byte == 0), "a hole has data");
    scene.one.write(file, 0, &vec![7; 300_000]).expect("write");
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let punch = FileCall::Allocate { file, mode, offset: 1000, len: 200_000 };
    scene.one.run(punch).expect("punch a hole");
    let data = scene.other.get(&path).expect("read");
    let zeros = data[1000..201_000].iter().all(|byte| *byte == 0);
    assert!(zeros && data[999] == 7 && data[201_000] == 7, "a punched hole is somewhere else");
    assert_eq!(data.len(), 3_000_003, "a punched hole changed the size");
}

fn holes_can_be_found(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let file = scene.one.create(&path).expect("create");
    scene.one.write(file, 8 << 20, &vec![1; 1 << 20]).expect("write");
    scene.one.run(FileCall::FileTruncate { file, len: 16 << 20 }).expect("truncate");
    let other = scene.other.open(&path, O_RDONLY).expect("open");
    let data = scene.other.seek(other, 0, libc::SEEK_DATA).expect("seek to data");
    assert_eq!(data, 8 << 20, "data begins elsewhere");
    let hole = scene.other.seek(other, 8 << 20, libc::SEEK_HOLE).expect("seek to a hole");
    assert_eq!(hole, 9 << 20, "the hole begins elsewhere");
    assert_eq!(scene.other.seek(other, 10 << 20, libc::SEEK_DATA), Err(ENXIO));
    let blocks = scene.other.facts(&path).expect("stat").blocks;
    assert!(blocks * 512 >= 1 << 20 && blocks * 512 <= 4 << 20, "{blocks} blocks");
}

fn cut_and_grown_is_zeros(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    for size in [8000usize, 200_000, 2_200_000] {
        scene.one.put(&path, &vec![9; size]).expect("put");
        let cut = size as u64 / 3;
        scene.other.run(FileCall::Truncate { path: path.clone(), len: cut }).expect("cut");
        scene.one.run(FileCall::Truncate { path: path.clone(), len: size as u64 }).expect("grow");
        let data = scene.other.get(&path).expect("read");
        let (kept, new) = data.split_at(cut as usize);
        assert!(data.len() == size && kept.iter().all(|byte| *byte == 9), "what stayed is gone");
        assert!(new.iter().all(|byte| *byte == 0), "what was cut off came back");
    }
}

fn end_is_short_read(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    scene.one.put(&path, &vec![3; 10_000]).expect("put");
    let file = scene.other.open(&path, O_RDONLY).expect("open");
    assert_eq!(scene.other.read(file, 9_990, 100).expect("read"), vec![3; 10]);
    assert_eq!(scene.other.read(file, 10_000, 100).expect("read"), b"");
    assert_eq!(scene.other.read(file, 1 << 40, 100).expect("read"), b"");
}

fn time_moves_forward(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let file = scene.one.create(&path).expect("create");
    let mut last = scene.other.facts(&path).expect("stat").changed;
    for (offset, len) in SPANS {
        scene.one.write(file, offset, &vec![1; len]).expect("write");
        scene.one.run(FileCall::Sync { file }).expect("fsync");
        let now = scene.other.facts(&path).expect("stat").changed;
        assert!(now > last, "a write at {offset} did not move the time forward: {last}, {now}");
        last = now;
    }
    let dir = scene.dir.clone();
    let before = scene.other.facts(&dir).expect("stat").changed;
    scene.one.put(&scene.path("g"), b"").expect("put");
    let made = scene.other.facts(&dir).expect("stat").changed;
    scene.one.unlink(&scene.path("g")).expect("unlink");
    let gone = scene.other.facts(&dir).expect("stat").changed;
    assert!(before < made && made < gone, "a directory's time: {before}, {made}, {gone}");
}

fn times_are_kept(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    scene.one.put(&path, &vec![1; 100_000]).expect("put");
    for nanoseconds in [1, 1_234_567_890_123_456_789, 0] {
        let set = FileCall::SetTimes { path: path.clone(), nanoseconds };
        scene.one.run(set).expect("set times");
        assert_eq!(scene.other.facts(&path).expect("stat").changed, nanoseconds);
    }
    let file = scene.other.open(&path, O_RDWR).expect("open");
    scene.other.read(file, 0, 10).expect("read");
    scene.other.close(file).expect("close");
    assert_eq!(scene.one.facts(&path).expect("stat").changed, 0, "reading changed the time");
}

fn fsync_has_nothing_to_add(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    let mut victim = scene.victim();
    let file = crate::access_path::AccessPath::create(&mut victim, &path).expect("create");
    let data = AcceptanceRng::new(2).bytes(300_000);
    crate::access_path::AccessPath::write(&mut victim, file, 0, &data).expect("write");
    victim.kill();
    let found = scene.other.get(&path).unwrap_or_else(|errno| panic!("{}", errno_text(errno)));
    assert!(found == data, "what a killed process had written is not there");
    assert_eq!(scene.other.facts(&path).expect("stat").size, 300_000);
}

fn attributes_stay_with_the_file(scene: &mut ClaimScene<'_>) {
    let (path, moved) = (scene.path("f"), scene.path("moved"));
    scene.one.put(&path, b"x").expect("put");
    let name = String::from("user.colour");
    let set =
        FileCall::SetAttribute { path: path.clone(), name: name.clone(), value: b"red".into() };
    scene.one.run(set).expect("setxattr");
    scene.other.rename(&path, &moved).expect("rename");
    let get = FileCall::GetAttribute { path: moved.clone(), name: name.clone() };
    assert_eq!(crate::access_path::bytes(scene.other.call(get)), Ok(b"red".into()));
    let get = FileCall::GetAttribute { path: moved, name: "user.none".into() };
    assert_eq!(crate::access_path::bytes(scene.one.call(get)), Err(libc::ENODATA));
}
