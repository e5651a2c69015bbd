//! Random calls on a subtree that is one process's for the time: every answer is known.

use std::collections::BTreeSet;

use libc::{EEXIST, O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

use super::model::{Id, ModelKind, ModelPlace, ModelTree, ROOT, write};
use crate::access_path::{AccessPath, errno_text};
use crate::call::{CallAnswer, FileCall, FileKindSeen, PathHandle, StatFacts};
use crate::rng::AcceptanceRng;

/// The differences.
pub type Wrong = String;

/// Files held open at a time.
const HELD_MAX: usize = 6;
/// More bytes than this in a tree, and files grow no more.
const BYTES_MAX: usize = 4 << 20;
const MODES: [u32; 5] = [0o644, 0o600, 0o755, 0o4711, 0];
const NAMES: u64 = 7;
const DIRECTORIES_MAX: usize = 12;

/// A process's work on a subtree.
pub struct OwnSubtree<'a> {
    access: &'a mut dyn AccessPath,
    root: &'a str,
    tree: ModelTree,
    held: Vec<(PathHandle, Id)>,
    rng: AcceptanceRng,
}

impl<'a> OwnSubtree<'a> {
    /// Takes over the subtree at `root`, which is as `tree` says.
    pub fn new(
        access: &'a mut dyn AccessPath,
        root: &'a str,
        tree: ModelTree,
        rng: AcceptanceRng,
    ) -> Self {
        Self { access, root, tree, held: Vec::new(), rng }
    }

    /// Makes one random call and compares. Returns the call, for the record.
    ///
    /// # Errors
    /// The answer is not that of the model.
    pub fn step(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        match self.rng.below(40) {
            0..5 => self.create(record),
            5..10 => self.change_content(record),
            10..13 => self.read(record),
            13..17 => self.on_held(record),
            17..19 => self.hold(record),
            19..22 => self.mkdir(record),
            22..24 => self.remove_directory(record),
            24..27 => self.unlink(record),
            27..32 => self.rename(record),
            32 => self.link(record),
            33 => self.symlink(record),
            34 => self.chmod(record),
            35..37 => self.list(record),
            _ => self.stat(record),
        }
    }

    /// Closes the open files.
    ///
    /// # Errors
    /// A close that fails.
    pub fn release(mut self) -> Result<ModelTree, Wrong> {
        while let Some((file, id)) = self.held.pop() {
            self.close(file, id)?;
        }
        Ok(self.tree)
    }

    fn held_ids(&self) -> BTreeSet<Id> {
        self.held.iter().map(|(_, id)| *id).collect()
    }

    fn close(&mut self, file: PathHandle, id: Id) -> Result<(), Wrong> {
        self.access.close(file).map_err(|errno| format!("close: {}", errno_text(errno)))?;
        if !self.held_ids().contains(&id) {
            self.tree.let_go(id);
        }
        Ok(())
    }

    /// A place, which may be taken or not, with its path.
    fn place(&mut self) -> (String, ModelPlace) {
        let dirs = self.tree.directories();
        let (dir, path) = self.rng.pick(&dirs);
        let name = format!("n{}", self.rng.below(NAMES));
        (format!("{}{path}/{name}", self.root), ModelPlace { dir: *dir, name })
    }

    /// A name that is there, of a kind that is wanted.
    fn existing(
        &mut self,
        wanted: impl Fn(&ModelKind) -> bool,
    ) -> Option<(String, ModelPlace, Id)> {
        let mut names = self.tree.names();
        names.retain(|(_, _, id)| wanted(&self.tree.node(*id).what));
        if names.is_empty() {
            return None;
        }
        let (path, place, id) = self.rng.pick(&names).clone();
        Some((format!("{}{path}", self.root), place, id))
    }

    fn file(&mut self) -> Option<(String, ModelPlace, Id)> {
        self.existing(|what| matches!(what, ModelKind::File(_)))
    }

    fn len(&mut self) -> usize {
        let len = match self.rng.below(20) {
            0..11 => self.rng.below(300),
            11..15 => self.rng.below(9000),
            15..19 => self.rng.below(90_000),
            _ => self.rng.below(400_000),
        };
        len as usize
    }

    fn offset(&mut self) -> usize {
        let offset = match self.rng.below(20) {
            0..10 => 0,
            10..15 => self.rng.below(9000),
            15..19 => self.rng.below(200_000),
            _ => self.rng.below(1_300_000),
        };
        if self.tree.bytes() > BYTES_MAX { offset.min(1000) as usize } else { offset as usize }
    }

    fn create(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let (path, place) = self.place();
        let flags = [O_CREAT | O_RDWR, O_CREAT | O_EXCL | O_WRONLY, O_CREAT | O_TRUNC | O_RDWR];
        let flags = *self.rng.pick(&flags);
        record(format!("open {path} {flags:#o}"));
        let found = self.tree.find(&place);
        let expected = match found.map(|id| (id, &self.tree.node(id).what)) {
            None => self.tree.make(&place, ModelKind::File(Vec::new()), 0o644),
            Some(_) if flags & O_EXCL != 0 => Err(vec![EEXIST]),
            Some((_, ModelKind::Directory(_))) => Err(vec![libc::EISDIR]),
            Some((_, ModelKind::Symlink(_))) => return Ok(()),
            Some((id, ModelKind::File(_))) => Ok(id),
        };
        let opened = self.access.open(&path, flags);
        let Ok(file) = opened else { return same(expected.map(drop), opened.map(drop), "open") };
        let id = expected.map_err(|errnos| format!("open: done, expected one of {errnos:?}"))?;
        if flags & O_TRUNC != 0 {
            self.tree.data_mut(id).clear();
        }
        self.write_through(file, id)?;
        self.close(file, id)
    }

    /// Writes something through an open file.
    fn write_through(&mut self, file: PathHandle, id: Id) -> Result<(), Wrong> {
        let (offset, len) = (self.offset(), self.len());
        let data = self.rng.bytes(len);
        if !data.is_empty() {
            write(self.tree.data_mut(id), offset, &data);
        }
        same(Ok(()), self.access.write(file, offset as u64, &data), "write")
    }

    fn change_content(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let Some((path, _, id)) = self.file() else { return Ok(()) };
        match self.rng.below(5) {
            0 => {
                let len = self.offset() + self.rng.below(5000) as usize;
                record(format!("truncate {path} {len}"));
                self.tree.data_mut(id).resize(len, 0);
                let call = FileCall::Truncate { path, len: len as u64 };
                same(Ok(()), self.access.run(call), "truncate")
            }
            1 => self.punch(&path, id, record),
            2 => {
                let data = {
                    let len = self.len() / 4;
                    self.rng.bytes(len)
                };
                record(format!("append {path} {}", data.len()));
                let file = self.access.open(&path, O_WRONLY | O_APPEND);
                let file = file.map_err(|errno| format!("open: {}", errno_text(errno)))?;
                self.tree.data_mut(id).extend_from_slice(&data);
                if !data.is_empty() {
                    same(Ok(()), self.access.append(file, &data), "append")?;
                }
                self.close(file, id)
            }
            _ => {
                record(format!("write {path}"));
                let file = self.access.open(&path, O_WRONLY);
                let file = file.map_err(|errno| format!("open: {}", errno_text(errno)))?;
                self.write_through(file, id)?;
                self.close(file, id)
            }
        }
    }

    fn punch(&mut self, path: &str, id: Id, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let (offset, len) = (self.offset(), 1 + self.len());
        record(format!("punch {path} {offset} {len}"));
        let file = self.access.open(path, O_RDWR);
        let file = file.map_err(|errno| format!("open: {}", errno_text(errno)))?;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let call = FileCall::Allocate { file, mode, offset: offset as u64, len: len as u64 };
        same(Ok(()), self.access.run(call), "punch")?;
        let data = self.tree.data_mut(id);
        let end = (offset + len).min(data.len());
        data[offset.min(end)..end].fill(0);
        self.close(file, id)
    }

    fn read(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let Some((path, _, id)) = self.file() else { return Ok(()) };
        record(format!("read {path}"));
        let file = self.access.open(&path, O_RDONLY);
        let file = file.map_err(|errno| format!("open: {}", errno_text(errno)))?;
        self.read_through(file, id)?;
        self.close(file, id)
    }

    fn read_through(&mut self, file: PathHandle, id: Id) -> Result<(), Wrong> {
        let (offset, len) = (self.offset(), self.len());
        let read = self.access.read(file, offset as u64, len as u32);
        let read = read.map_err(|errno| format!("read: {}", errno_text(errno)))?;
        let content = self.tree.data_mut(id);
        let end = (offset + len).min(content.len());
        compare(&content[offset.min(end)..end], &read)
    }

    fn hold(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        if self.held.len() == HELD_MAX {
            let index = self.rng.below(HELD_MAX as u64) as usize;
            let (file, id) = self.held.swap_remove(index);
            record(format!("close held {file:?}"));
            return self.close(file, id);
        }
        let Some((path, _, id)) = self.file() else { return Ok(()) };
        let file = self.access.open(&path, O_RDWR);
        let file = file.map_err(|errno| format!("open: {}", errno_text(errno)))?;
        record(format!("hold {path} as {file:?}"));
        self.held.push((file, id));
        Ok(())
    }

    fn on_held(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        if self.held.is_empty() {
            return Ok(());
        }
        let (file, id) = *self.rng.pick(&self.held);
        match self.rng.below(4) {
            0 => {
                record(format!("write held {file:?}"));
                self.write_through(file, id)
            }
            1 => {
                let len = self.offset();
                record(format!("truncate held {file:?} {len}"));
                self.tree.data_mut(id).resize(len, 0);
                let call = FileCall::FileTruncate { file, len: len as u64 };
                same(Ok(()), self.access.run(call), "ftruncate")
            }
            2 => {
                record(format!("fstat held {file:?}"));
                let facts = self.access.file_facts(file);
                let facts = facts.map_err(|errno| format!("fstat: {}", errno_text(errno)))?;
                check_facts(&mut self.tree, id, &facts)
            }
            _ => {
                record(format!("read held {file:?}"));
                self.read_through(file, id)
            }
        }
    }

    fn mkdir(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        if self.tree.directories().len() >= DIRECTORIES_MAX {
            return Ok(());
        }
        let (path, place) = self.place();
        record(format!("mkdir {path}"));
        let made = self.tree.make(&place, ModelKind::Directory(Default::default()), 0o755);
        same(made.map(drop), self.access.mkdir(&path), "mkdir")
    }

    fn remove_directory(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let (path, place) = self.place();
        record(format!("rmdir {path}"));
        same(self.tree.rmdir(&place), self.access.rmdir(&path), "rmdir")
    }

    fn unlink(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let (path, place) = self.place();
        record(format!("unlink {path}"));
        let held = self.held_ids();
        same(self.tree.unlink(&place, &held), self.access.unlink(&path), "unlink")
    }

    fn rename(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let from = match self.rng.below(4) {
            0 => Some(self.place()),
            _ => self.existing(|_| true).map(|(path, place, _)| (path, place)),
        };
        let Some((from, source)) = from else { return Ok(()) };
        let (to, target) = self.place();
        let flags = [0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE];
        let flags = *self.rng.pick(&flags);
        record(format!("rename {from} {to} {flags}"));
        let held = self.held_ids();
        let expected = self.tree.rename(&source, &target, flags, &held);
        same(expected, self.access.run(FileCall::Rename { from, to, flags }), "rename")
    }

    fn link(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let Some((from, source, _)) = self.existing(|_| true) else { return Ok(()) };
        let (to, target) = self.place();
        record(format!("link {from} {to}"));
        same(self.tree.link(&source, &target), self.access.link(&from, &to), "link")
    }

    fn symlink(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let (path, place) = self.place();
        let target = format!("n{}", self.rng.below(NAMES));
        record(format!("symlink {target} {path}"));
        let expected = self.tree.make(&place, ModelKind::Symlink(target.clone()), 0o777);
        same(expected.map(drop), self.access.run(FileCall::Symlink { target, path }), "symlink")
    }

    fn chmod(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let wanted = |what: &ModelKind| !matches!(what, ModelKind::Symlink(_));
        let Some((path, _, id)) = self.existing(wanted) else { return Ok(()) };
        let mode = *self.rng.pick(&MODES);
        record(format!("chmod {path} {mode:o}"));
        self.tree.node_mut(id).mode = mode;
        same(Ok(()), self.access.run(FileCall::Chmod { path, mode }), "chmod")
    }

    fn list(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let dirs = self.tree.directories();
        let (dir, path) = self.rng.pick(&dirs);
        let path = format!("{}{path}", self.root);
        record(format!("list {path}"));
        check_list(self.access, &path, &self.tree.list(*dir))
    }

    fn stat(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let (path, place) = self.place();
        record(format!("stat {path}"));
        let facts = self.access.facts(&path);
        match self.tree.find(&place) {
            None => same(Err(vec![libc::ENOENT]), facts.map(drop), "stat"),
            Some(id) => {
                let facts = facts.map_err(|errno| format!("stat: {}", errno_text(errno)))?;
                check_facts(&mut self.tree, id, &facts)
            }
        }
    }
}

/// Compares a whole subtree with what must be there.
///
/// # Errors
/// Something differs.
pub fn verify(access: &mut dyn AccessPath, root: &str, tree: &mut ModelTree) -> Result<(), Wrong> {
    for (dir, path) in tree.directories() {
        check_list(access, &format!("{root}{path}"), &tree.list(dir))?;
    }
    let mut all = tree.names();
    all.push((String::new(), ModelPlace { dir: ROOT, name: String::new() }, ROOT));
    for (path, _, id) in all {
        let path = format!("{root}{path}");
        let context = |wrong: Wrong| format!("{path}: {wrong}");
        let facts = access.facts(&path).map_err(|errno| context(errno_text(errno)))?;
        check_facts(tree, id, &facts).map_err(context)?;
        match &tree.node(id).what {
            ModelKind::File(content) => {
                let data = access.get(&path).map_err(|errno| context(errno_text(errno)))?;
                compare(content, &data).map_err(context)?;
            }
            ModelKind::Symlink(target) => {
                let found = access.call(FileCall::ReadLink { path: path.clone() });
                if found != CallAnswer::Bytes(target.clone().into()) {
                    return Err(format!("{path}: leads to {found:?}, expected {target}"));
                }
            }
            ModelKind::Directory(_) => {}
        }
    }
    Ok(())
}

fn check_list(access: &mut dyn AccessPath, path: &str, expected: &[String]) -> Result<(), Wrong> {
    let found = access.list(path).map_err(|errno| format!("list {path}: {}", errno_text(errno)))?;
    if found == expected {
        return Ok(());
    }
    Err(format!("list {path}: {found:?}, expected {expected:?}"))
}

fn check_facts(tree: &mut ModelTree, id: Id, facts: &StatFacts) -> Result<(), Wrong> {
    let subdirectories = if tree.is_directory(id) { tree.subdirectories(id) } else { 0 };
    let node = tree.node_mut(id);
    let (kind, size, links) = match &node.what {
        ModelKind::File(data) => (FileKindSeen::File, Some(data.len() as u64), node.links),
        ModelKind::Directory(_) => (FileKindSeen::Directory, None, 2 + subdirectories),
        ModelKind::Symlink(target) => {
            (FileKindSeen::Symlink, Some(target.len() as u64), node.links)
        }
    };
    let is_same = facts.kind == kind
        && facts.mode == node.mode
        && size.is_none_or(|size| size == facts.size)
        && facts.links == links;
    if !is_same {
        return Err(format!(
            "stat: {facts:?}, expected {kind:?}, mode {:o}, size {size:?}, links {links}",
            node.mode
        ));
    }
    if facts.changed < node.changed {
        return Err(format!(
            "stat of {kind:?}: the time went back from {} to {}",
            node.changed, facts.changed
        ));
    }
    node.changed = node.changed.max(facts.changed);
    Ok(())
}

fn compare(expected: &[u8], found: &[u8]) -> Result<(), Wrong> {
    if expected == found {
        return Ok(());
    }
    let at = expected.iter().zip(found).position(|(expected, found)| expected != found);
    let at = at.unwrap_or(expected.len().min(found.len()));
    Err(format!(
        "content: {} bytes, expected {}; the first difference is at {at}: {:02x?}, expected {:02x?}",
        found.len(),
        expected.len(),
        &found[at..found.len().min(at + 8)],
        &expected[at..expected.len().min(at + 8)]
    ))
}

fn same(expected: Result<(), Vec<i32>>, found: Result<(), i32>, call: &str) -> Result<(), Wrong> {
    match (expected, found) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(errnos), Err(errno)) if errnos.contains(&errno) => Ok(()),
        (Ok(()), Err(errno)) => Err(format!("{call}: {}, expected success", errno_text(errno))),
        (Err(errnos), Ok(())) => Err(format!("{call}: done, expected one of {errnos:?}")),
        (Err(errnos), Err(errno)) => {
            Err(format!("{call}: {} ({errno}), expected one of {errnos:?}", errno_text(errno)))
        }
    }
}
