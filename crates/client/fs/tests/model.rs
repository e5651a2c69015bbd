//! Random calls against a tree in memory: every result and, in the end, every byte is the same.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeMap;

use common::{Rig, create, get, names, noise, root};
use proptest::prelude::*;
use samite_fs::{AllocateMode, FileAttributes, FileKind, FileSystem, OpenFlags, RenameFlags};
use samite_types::ErrorKind;

type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    Create(Path),
    Write(Path, usize, usize),
    Append(Path, usize),
    Truncate(Path, usize),
    Punch(Path, usize, usize),
    Zero(Path, usize, usize),
    Copy(Path, usize, Path, usize, usize),
    Holes(Path),
    Read(Path, usize, usize),
    Mkdir(Path),
    Rmdir(Path),
    Unlink(Path),
    Rename(Path, Path),
    RenameNew(Path, Path),
    Exchange(Path, Path),
    Link(Path, Path),
    List(Path),
    Stat(Path),
}

fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'c')], 1..4)
        .prop_map(|names| names.iter().flat_map(|name| [b'/', *name]).collect())
}

/// Around the places where something changes: the inline limit and the chunk's.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..200usize,
        8000..8400usize,
        (1usize << 20) - 100..(1 << 20) + 100,
        0..3_000_000usize
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0..300usize, 8000..8400usize, Just(150_000), Just(1 << 20)]
}

/// Around the limits of a tail, a record and a chunk.
fn appended() -> impl Strategy<Value = usize> {
    prop_oneof![
        length(),
        30_000..50_000usize,
        (100usize << 10)..300 << 10,
        (1usize << 20) - 130..1 << 20,
        Just(2_300_000)
    ]
}

/// Lengths of ranges, none empty.
fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![1..300usize, 60_000..70_000usize, 1..2_500_000usize]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => path().prop_map(Op::Create),
        4 => (path(), place(), length()).prop_map(|(path, at, len)| Op::Write(path, at, len)),
        4 => (path(), appended()).prop_map(|(path, len)| Op::Append(path, len)),
        2 => (path(), place()).prop_map(|(path, len)| Op::Truncate(path, len)),
        2 => (path(), place(), extent()).prop_map(|(path, at, len)| Op::Punch(path, at, len)),
        1 => (path(), place(), extent()).prop_map(|(path, at, len)| Op::Zero(path, at, len)),
        2 => (path(), place(), path(), place(), extent())
            .prop_map(|(from, at, to, to_at, len)| Op::Copy(from, at, to, to_at, len)),
        1 => path().prop_map(Op::Holes),
        4 => (path(), place(), length()).prop_map(|(path, at, len)| Op::Read(path, at, len)),
        3 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::Rmdir),
        1 => path().prop_map(Op::Unlink),
        3 => (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| Op::RenameNew(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Op::Exchange(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| Op::Link(from, to)),
        1 => path().prop_map(Op::List),
        2 => path().prop_map(Op::Stat),
    ]
}

/// Directories are `None`, files an index into `files`.
#[derive(Debug, Default)]
struct Model {
    tree: BTreeMap<Path, Option<usize>>,
    files: Vec<Vec<u8>>,
}

impl Model {
    fn parent(&self, path: &[u8]) -> Result<(), ErrorKind> {
        let cut = path.iter().rposition(|byte| *byte == b'/').unwrap();
        let mut prefix = &path[..cut];
        let mut result = Ok(());
        while !prefix.is_empty() {
            match self.tree.get(prefix) {
                None => result = Err(ErrorKind::NotFound),
                Some(Some(_)) => result = Err(ErrorKind::NotDirectory),
                Some(None) => {}
            }
            prefix = &prefix[..prefix.iter().rposition(|byte| *byte == b'/').unwrap()];
        }
        result
    }

    fn get(&self, path: &[u8]) -> Result<Option<usize>, ErrorKind> {
        self.parent(path)?;
        self.tree.get(path).copied().ok_or(ErrorKind::NotFound)
    }

    fn file(&self, path: &[u8]) -> Result<usize, ErrorKind> {
        self.get(path)?.ok_or(ErrorKind::IsDirectory)
    }

    fn children(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let prefix = [path, b"/"].concat();
        let below = self.tree.keys().filter_map(|key| key.strip_prefix(&prefix[..]));
        below.filter(|name| !name.contains(&b'/')).map(<[u8]>::to_vec).collect()
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), ErrorKind> {
        self.parent(from)?;
        self.parent(to)?;
        let moved = *self.tree.get(from).ok_or(ErrorKind::NotFound)?;
        let is_dir = moved.is_none();
        if is_dir && to.len() > from.len() && to.starts_with(&[from, b"/"].concat()) {
            return Err(ErrorKind::Invalid);
        }
        if let Some(there) = self.tree.get(to) {
            if from == to || (!is_dir && moved == *there) {
                return Ok(());
            }
            match (is_dir, there.is_none()) {
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, false) => return Err(ErrorKind::NotDirectory),
                (true, true) if !self.children(to).is_empty() => return Err(ErrorKind::NotEmpty),
                _ => {}
            }
        }
        let taken = self.take(from);
        self.tree.remove(to);
        self.place(to, taken);
        Ok(())
    }

    fn rename_new(&mut self, from: &[u8], to: &[u8]) -> Result<(), ErrorKind> {
        self.parent(from)?;
        self.parent(to)?;
        let moved = *self.tree.get(from).ok_or(ErrorKind::NotFound)?;
        if moved.is_none() && to.starts_with(&[from, b"/"].concat()) {
            return Err(ErrorKind::Invalid);
        }
        if self.tree.contains_key(to) { Err(ErrorKind::Exists) } else { self.rename(from, to) }
    }

    fn exchange(&mut self, from: &[u8], to: &[u8]) -> Result<(), ErrorKind> {
        self.parent(from)?;
        self.parent(to)?;
        for path in [from, to] {
            self.tree.get(path).ok_or(ErrorKind::NotFound)?;
        }
        let is_below = |a: &[u8], b: &[u8]| a.starts_with(&[b, b"/"].concat());
        if is_below(from, to) || is_below(to, from) {
            return Err(ErrorKind::Invalid);
        }
        let (first, second) = (self.take(from), if from == to { vec![] } else { self.take(to) });
        self.place(to, first);
        self.place(from, second);
        Ok(())
    }

    /// Removes a path with all below it; gives what follows the path in each, and what it was.
    fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, Option<usize>)> {
        let prefix = [path, b"/"].concat();
        let is_part = |key: &Path| key == path || key.starts_with(&prefix);
        let keys: Vec<Path> = self.tree.keys().filter(|key| is_part(key)).cloned().collect();
        let taken = keys.into_iter().map(|key| {
            let value = self.tree.remove(&key).unwrap();
            (key[path.len()..].to_vec(), value)
        });
        taken.collect()
    }

    fn place(&mut self, path: &[u8], taken: Vec<(Vec<u8>, Option<usize>)>) {
        let placed = taken.into_iter().map(|(rest, value)| ([path, &rest].concat(), value));
        self.tree.extend(placed);
    }
}

fn write(data: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if data.len() < at + bytes.len() {
        data.resize(at + bytes.len(), 0);
    }
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

fn open(fs: &FileSystem, path: &[u8]) -> Result<samite_fs::OpenFile, ErrorKind> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    fs.open_file(&root(), path, flags, 0).map_err(|error| error.kind())
}

/// Runs one operation on both; they must agree.
fn step(fs: &FileSystem, model: &mut Model, op: &Op, seed: u64) {
    let kind = |result: samite_types::Result<()>| result.map_err(|error| error.kind());
    match op {
        Op::Create(path) => {
            let exclusive = OpenFlags { excl: true, ..OpenFlags::creating() };
            let real = kind(fs.open_file(&root(), path, exclusive, 0o644).map(drop));
            let expected = model.parent(path).and_then(|()| match model.tree.get(path) {
                Some(_) => Err(ErrorKind::Exists),
                None => Ok(()),
            });
            assert_eq!(real, expected, "{op:?}");
            if expected.is_ok() {
                model.tree.insert(path.clone(), Some(model.files.len()));
                model.files.push(Vec::new());
            }
        }
        Op::Write(path, at, len) => {
            let (real, expected) = (open(fs, path), model.file(path));
            assert_eq!(real.as_ref().map(drop).map_err(|kind| *kind), expected.map(drop), "{op:?}");
            if let (Ok(file), Ok(index)) = (real, expected) {
                let bytes = noise(*len, seed);
                assert_eq!(file.write_at(&bytes, *at as u64).unwrap(), bytes.len());
                write(&mut model.files[index], *at, &bytes);
                assert_eq!(file.attr().unwrap().size, model.files[index].len() as u64);
                file.close().unwrap();
            }
        }
        Op::Append(path, len) => {
            let (real, expected) = (open(fs, path), model.file(path));
            if let (Ok(file), Ok(index)) = (&real, &expected) {
                let bytes = noise(*len, seed);
                let end = model.files[*index].len();
                assert_eq!(file.append(&bytes).unwrap(), (end as u64, *len), "{op:?}");
                write(&mut model.files[*index], end, &bytes);
                file.close().unwrap();
            }
            assert_eq!(real.map(drop), expected.map(drop), "{op:?}");
        }
        Op::Truncate(path, len) => {
            let real = kind(fs.truncate(&root(), path, *len as u64));
            let expected = model.file(path).map(|index| model.files[index].resize(*len, 0));
            assert_eq!(real, expected, "{op:?}");
        }
        Op::Read(path, at, len) => {
            let (real, expected) = (open(fs, path), model.file(path));
            if let (Ok(file), Ok(index)) = (&real, &expected) {
                let mut buf = vec![0xaa; *len];
                let got = file.read_at(&mut buf, *at as u64).unwrap();
                let data = model.files[*index].get(*at..).unwrap_or_default();
                assert!(buf[..got] == data[..data.len().min(*len)], "{op:?}: {got} bytes");
            }
            assert_eq!(real.map(drop), expected.map(drop), "{op:?}");
        }
        _ => step_ranges(fs, model, op),
    }
}

fn step_ranges(fs: &FileSystem, model: &mut Model, op: &Op) {
    match op {
        Op::Punch(path, at, len) | Op::Zero(path, at, len) => {
            let (real, expected) = (open(fs, path), model.file(path));
            if let (Ok(file), Ok(index)) = (&real, &expected) {
                let data = &mut model.files[*index];
                let zeros = matches!(op, Op::Zero(..));
                let mode = match op {
                    Op::Punch(..) => AllocateMode::PunchHole,
                    _ => AllocateMode::ZeroRange { keep_size: false },
                };
                file.allocate(mode, *at as u64, *len as u64).unwrap();
                if zeros && data.len() < at + len {
                    data.resize(at + len, 0);
                }
                let (from, to) = (data.len().min(*at), data.len().min(at + len));
                data[from..to].fill(0);
                assert_eq!(file.attr().unwrap().size, data.len() as u64, "{op:?}");
                file.close().unwrap();
            }
            assert_eq!(real.map(drop), expected.map(drop), "{op:?}");
        }
        Op::Copy(from, at, to, to_at, len) => {
            let (source, target) = (open(fs, from), open(fs, to));
            assert_eq!(source.as_ref().map(drop).map_err(|kind| *kind), model.file(from).map(drop));
            assert_eq!(target.as_ref().map(drop).map_err(|kind| *kind), model.file(to).map(drop));
            let (Ok(source), Ok(target)) = (source, target) else { return };
            let (first, second) = (model.file(from).unwrap(), model.file(to).unwrap());
            let data = &model.files[first];
            let bytes = data[data.len().min(*at)..data.len().min(at + len)].to_vec();
            let real = fs.copy_range(&source, *at as u64, &target, *to_at as u64, *len as u64);
            let real = real.map_err(|error| error.kind());
            let overlaps = first == second && at.abs_diff(*to_at) < bytes.len();
            if overlaps {
                assert_eq!(real, Err(ErrorKind::Invalid), "{op:?}");
            } else {
                assert_eq!(real, Ok(bytes.len() as u64), "{op:?}");
                write(&mut model.files[second], *to_at, &bytes);
            }
            target.close().unwrap();
        }
        Op::Holes(path) => {
            let (Ok(file), Ok(index)) = (open(fs, path), model.file(path)) else { return };
            let data = &model.files[index];
            let mut at = 0;
            while (at as usize) < data.len() {
                let found = file.seek_data(at).unwrap();
                let next = found.unwrap_or(data.len() as u64);
                assert!(data[at as usize..next as usize].iter().all(|byte| *byte == 0), "{op:?}");
                at = if found.is_some() { file.seek_hole(next).unwrap().unwrap() } else { next };
            }
            assert_eq!(file.seek_hole(at).unwrap(), None, "{op:?}");
        }
        _ => step_names(fs, model, op),
    }
}

fn rename(
    fs: &FileSystem,
    model: &mut Model,
    op: &Op,
) -> (Result<(), ErrorKind>, Result<(), ErrorKind>) {
    let run = |from: &Path, to: &Path, flags| {
        fs.rename(&root(), from, to, flags).map_err(|error| error.kind())
    };
    let plain = RenameFlags::default();
    match op {
        Op::Rename(from, to) => (run(from, to, plain), model.rename(from, to)),
        Op::RenameNew(from, to) => {
            let flags = RenameFlags { no_replace: true, ..plain };
            (run(from, to, flags), model.rename_new(from, to))
        }
        Op::Exchange(from, to) => {
            let flags = RenameFlags { exchange: true, ..plain };
            (run(from, to, flags), model.exchange(from, to))
        }
        _ => unreachable!("{op:?} is of the other kind"),
    }
}

fn step_names(fs: &FileSystem, model: &mut Model, op: &Op) {
    let kind = |result: samite_types::Result<()>| result.map_err(|error| error.kind());
    let (real, expected) = match op {
        Op::Mkdir(path) => {
            let expected = model.parent(path).and_then(|()| match model.tree.get(path) {
                Some(_) => Err(ErrorKind::Exists),
                None => {
                    model.tree.insert(path.clone(), None);
                    Ok(())
                }
            });
            (kind(fs.mkdir(&root(), path, 0o755)), expected)
        }
        Op::Rmdir(path) => {
            let expected = match model.get(path) {
                Ok(Some(_)) => Err(ErrorKind::NotDirectory),
                Ok(None) if !model.children(path).is_empty() => Err(ErrorKind::NotEmpty),
                Ok(None) => {
                    model.tree.remove(path);
                    Ok(())
                }
                Err(kind) => Err(kind),
            };
            (kind(fs.rmdir(&root(), path)), expected)
        }
        Op::Unlink(path) => {
            let expected = model.file(path).map(|_| {
                model.tree.remove(path);
            });
            (kind(fs.unlink(&root(), path)), expected)
        }
        Op::Rename(..) | Op::RenameNew(..) | Op::Exchange(..) => rename(fs, model, op),
        Op::Link(from, to) => {
            let expected = model.get(from).and_then(|file| {
                file.ok_or(ErrorKind::NotOwner)?;
                model.parent(to)?;
                if model.tree.contains_key(to) {
                    return Err(ErrorKind::Exists);
                }
                model.tree.insert(to.clone(), file);
                Ok(())
            });
            (kind(fs.link(&root(), from, to, false)), expected)
        }
        Op::List(path) => match model.get(path) {
            Ok(None) => {
                assert_eq!(names(fs, path), model.children(path), "{op:?}");
                return;
            }
            other => {
                let expected = other.and(Err(ErrorKind::NotDirectory));
                (kind(fs.read_dir(&root(), path).map(drop)), expected)
            }
        },
        Op::Stat(path) => {
            let real = fs.stat(&root(), path, true);
            if let (Ok(attr), Ok(node)) = (&real, model.get(path)) {
                check_attr(model, path, node, attr);
            }
            (kind(real.map(drop)), model.get(path).map(drop))
        }
        _ => unreachable!("{op:?} is of the other kind"),
    };
    assert_eq!(real, expected, "{op:?}");
}

fn check_attr(model: &Model, path: &[u8], node: Option<usize>, attr: &FileAttributes) {
    match node {
        Some(index) => {
            assert_eq!(attr.size, model.files[index].len() as u64, "{path:?}");
            let links = model.tree.values().filter(|other| **other == node).count();
            assert_eq!(attr.nlink as usize, links, "{path:?}");
        }
        None => {
            let is_dir = |name: &Vec<u8>| model.tree[&[path, &b"/"[..], name].concat()].is_none();
            let directories = model.children(path).iter().filter(|name| is_dir(name)).count();
            assert_eq!(attr.nlink as usize, 2 + directories, "{path:?}");
            assert_eq!(attr.kind, FileKind::Directory);
        }
    }
}

/// Everything is as in the model, and nothing else is there.
fn check_tree(fs: &FileSystem, model: &Model) {
    let mut tree: Vec<Path> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(dir) = tree.pop() {
        let path = if dir.is_empty() { b"/".to_vec() } else { dir.clone() };
        assert_eq!(names(fs, &path), model.children(&dir));
        for name in model.children(&dir) {
            seen += 1;
            let path = [&dir[..], b"/", &name].concat();
            match model.tree[&path] {
                None => tree.push(path),
                Some(index) => assert!(get(fs, &path).unwrap() == model.files[index], "{path:?}"),
            }
        }
    }
    assert_eq!(seen, model.tree.len());
}

fn clear(fs: &FileSystem, dir: &[u8]) {
    for name in names(fs, if dir.is_empty() { b"/" } else { dir }) {
        let path = [dir, b"/", &name].concat();
        if fs.stat(&root(), &path, false).unwrap().kind == FileKind::Directory {
            clear(fs, &path);
            fs.rmdir(&root(), &path).unwrap();
        } else {
            fs.unlink(&root(), &path).unwrap();
        }
    }
}

fn run(nodes: usize, cases: u32) {
    let rig = Rig::with_memory(nodes, 128 << 20);
    // Two clients take turns: the files that one caches, the other changes.
    let clients = [rig.fs.clone(), rig.another()];
    // `PROPTEST_CASES` for a longer run.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(ops in proptest::collection::vec((op(), 0..2usize), 1..120))| {
        clear(&rig.fs, b"");
        let mut model = Model::default();
        for (index, (op, client)) in ops.iter().enumerate() {
            step(&clients[*client], &mut model, op, index as u64 + 1);
        }
        check_tree(&clients[0], &model);
        check_tree(&clients[1], &model);
    });
    // The cases have left the last tree, and records that stay: change stamps of the root,
    // counters.
    clear(&rig.fs, b"");
    drop(create(&rig.fs, b"/still-works"));
}

#[test]
fn calls_agree_with_a_tree_in_memory_on_one_node() {
    run(1, 30);
}

#[test]
fn calls_agree_with_a_tree_in_memory_on_three_nodes() {
    run(3, 30);
}
