//! Random calls against a tree in memory: every result and, in the end, every byte is the same.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeMap;

use common::{Rig, create, get, names, noise, root};
use proptest::prelude::*;
use samite_fs::{Attr, FileKind, FileSystem, OpenFlags, RenameFlags};
use samite_types::ErrorKind;

type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    Create(Path),
    Write(Path, usize, usize),
    Append(Path, usize),
    Truncate(Path, usize),
    Read(Path, usize, usize),
    Mkdir(Path),
    Rmdir(Path),
    Unlink(Path),
    Rename(Path, Path),
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

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => path().prop_map(Op::Create),
        4 => (path(), place(), length()).prop_map(|(path, at, len)| Op::Write(path, at, len)),
        3 => (path(), length()).prop_map(|(path, len)| Op::Append(path, len)),
        2 => (path(), place()).prop_map(|(path, len)| Op::Truncate(path, len)),
        4 => (path(), place(), length()).prop_map(|(path, at, len)| Op::Read(path, at, len)),
        3 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::Rmdir),
        1 => path().prop_map(Op::Unlink),
        3 => (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
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
        let prefix = [from, b"/"].concat();
        let below: Vec<Path> =
            self.tree.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        for key in below {
            let value = self.tree.remove(&key).unwrap();
            self.tree.insert([to, &key[from.len()..]].concat(), value);
        }
        self.tree.remove(from);
        self.tree.insert(to.to_vec(), moved);
        Ok(())
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
                let at = file.append(&bytes).unwrap();
                assert_eq!(at, model.files[*index].len() as u64, "{op:?}");
                write(&mut model.files[*index], at as usize, &bytes);
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
        _ => step_names(fs, model, op),
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
        Op::Rename(from, to) => {
            let real = fs.rename(&root(), from, to, RenameFlags::default());
            (kind(real), model.rename(from, to))
        }
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

fn check_attr(model: &Model, path: &[u8], node: Option<usize>, attr: &Attr) {
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
    // Two clients take turns: what one caches, the other changes.
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
    // What the cases left is the last tree, and records that stay: marks of the root, counters.
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
