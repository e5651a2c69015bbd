//! The reference: a tree of files in memory, with the answers that POSIX gives.

use std::collections::{BTreeMap, BTreeSet};

use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};
use serde::{Deserialize, Serialize};

/// Number of a node within its tree.
pub type Id = u64;
/// The root of every tree.
pub const ROOT: Id = 0;

/// Any of these is the right error.
pub type Expected<T> = Result<T, Vec<i32>>;

/// The kind of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelKind {
    /// Regular file with its content.
    File(Vec<u8>),
    /// Directory.
    Directory(BTreeMap<String, Id>),
    /// Symbolic link with its target.
    Symlink(String),
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelNode {
    /// Its kind.
    pub what: ModelKind,
    /// Permission bits.
    pub mode: u32,
    /// Names of it.
    pub links: u64,
    /// The latest modification time that was seen: time does not go back.
    pub changed: i64,
}

/// A tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelTree {
    nodes: BTreeMap<Id, ModelNode>,
    next: Id,
}

/// A place for a name: a directory and a name in it.
#[derive(Clone, Debug)]
pub struct ModelPlace {
    /// The directory.
    pub dir: Id,
    /// The name.
    pub name: String,
}

impl Default for ModelTree {
    fn default() -> Self {
        let root = ModelNode {
            what: ModelKind::Directory(BTreeMap::new()),
            mode: 0o755,
            links: 1,
            changed: 0,
        };
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: 1 }
    }
}

impl ModelTree {
    /// A node that is there.
    ///
    /// # Panics
    /// It is not.
    #[must_use]
    pub fn node(&self, id: Id) -> &ModelNode {
        &self.nodes[&id]
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// It is not there.
    pub fn node_mut(&mut self, id: Id) -> &mut ModelNode {
        self.nodes.get_mut(&id).expect("a node of the tree")
    }

    /// Content of a file.
    ///
    /// # Panics
    /// It is none.
    pub fn data_mut(&mut self, id: Id) -> &mut Vec<u8> {
        match &mut self.node_mut(id).what {
            ModelKind::File(data) => data,
            _ => panic!("node {id} is no file"),
        }
    }

    /// Bytes in all files.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let len =
            |node: &ModelNode| if let ModelKind::File(data) = &node.what { data.len() } else { 0 };
        self.nodes.values().map(len).sum()
    }

    fn entries(&self, dir: Id) -> &BTreeMap<String, Id> {
        match &self.node(dir).what {
            ModelKind::Directory(entries) => entries,
            _ => panic!("node {dir} is no directory"),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.node_mut(dir).what {
            ModelKind::Directory(entries) => entries,
            _ => panic!("node {dir} is no directory"),
        }
    }

    /// The inode with the name.
    #[must_use]
    pub fn find(&self, place: &ModelPlace) -> Option<Id> {
        self.entries(place.dir).get(&place.name).copied()
    }

    /// Whether a node is a directory.
    #[must_use]
    pub fn is_directory(&self, id: Id) -> bool {
        matches!(self.node(id).what, ModelKind::Directory(_))
    }

    /// Every directory with its path; the root's is empty.
    #[must_use]
    pub fn directories(&self) -> Vec<(Id, String)> {
        let mut found = vec![(ROOT, String::new())];
        let mut next = 0;
        while let Some((dir, path)) = found.get(next).cloned() {
            next += 1;
            let below = self.entries(dir).iter().filter(|(_, id)| self.is_directory(**id));
            found.extend(below.map(|(name, id)| (*id, format!("{path}/{name}"))));
        }
        found
    }

    /// Every name with its node, by path.
    #[must_use]
    pub fn names(&self) -> Vec<(String, ModelPlace, Id)> {
        let dirs = self.directories();
        let names = dirs.iter().flat_map(|(dir, path)| {
            self.entries(*dir).iter().map(move |(name, id)| {
                (format!("{path}/{name}"), ModelPlace { dir: *dir, name: name.clone() }, *id)
            })
        });
        names.collect()
    }

    /// Directories in a directory.
    #[must_use]
    pub fn subdirectories(&self, dir: Id) -> u64 {
        self.entries(dir).values().filter(|id| self.is_directory(**id)).count() as u64
    }

    /// Names in a directory.
    #[must_use]
    pub fn list(&self, dir: Id) -> Vec<String> {
        self.entries(dir).keys().cloned().collect()
    }

    /// Makes a node with one name.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn make(&mut self, place: &ModelPlace, what: ModelKind, mode: u32) -> Expected<Id> {
        if self.find(place).is_some() {
            return Err(vec![EEXIST]);
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, ModelNode { what, mode, links: 1, changed: 0 });
        self.entries_mut(place.dir).insert(place.name.clone(), id);
        Ok(id)
    }

    /// A second name.
    ///
    /// # Errors
    /// As of `link`.
    pub fn link(&mut self, from: &ModelPlace, to: &ModelPlace) -> Expected<()> {
        let Some(id) = self.find(from) else { return Err(vec![ENOENT, EEXIST]) };
        if self.is_directory(id) {
            return Err(vec![EPERM, EEXIST]);
        }
        if self.find(to).is_some() {
            return Err(vec![EEXIST]);
        }
        self.entries_mut(to.dir).insert(to.name.clone(), id);
        self.node_mut(id).links += 1;
        Ok(())
    }

    /// Removes the name of anything but a directory. The inode stays while it is in `held`.
    ///
    /// # Errors
    /// As of `unlink`.
    pub fn unlink(&mut self, place: &ModelPlace, held: &BTreeSet<Id>) -> Expected<()> {
        let Some(id) = self.find(place) else { return Err(vec![ENOENT]) };
        if self.is_directory(id) {
            return Err(vec![EISDIR]);
        }
        self.entries_mut(place.dir).remove(&place.name);
        self.drop_name(id, held);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As of `rmdir`.
    pub fn rmdir(&mut self, place: &ModelPlace) -> Expected<()> {
        let Some(id) = self.find(place) else { return Err(vec![ENOENT]) };
        if !self.is_directory(id) {
            return Err(vec![ENOTDIR]);
        }
        if !self.entries(id).is_empty() {
            return Err(vec![ENOTEMPTY]);
        }
        self.entries_mut(place.dir).remove(&place.name);
        self.nodes.remove(&id);
        Ok(())
    }

    /// Forgets an inode without names or open references.
    pub fn let_go(&mut self, id: Id) {
        if self.nodes.get(&id).is_some_and(|node| node.links == 0) {
            self.nodes.remove(&id);
        }
    }

    fn drop_name(&mut self, id: Id, held: &BTreeSet<Id>) {
        let node = self.node_mut(id);
        node.links -= 1;
        if node.links == 0 && !held.contains(&id) {
            self.nodes.remove(&id);
        }
    }

    /// Whether `below` is `above` or somewhere below it.
    fn is_within(&self, below: Id, above: Id) -> bool {
        if below == above {
            return true;
        }
        self.is_directory(above)
            && self.entries(above).values().any(|id| self.is_within(below, *id))
    }

    /// Renames.
    ///
    /// # Errors
    /// As of `renameat2`.
    pub fn rename(
        &mut self,
        from: &ModelPlace,
        to: &ModelPlace,
        flags: u32,
        held: &BTreeSet<Id>,
    ) -> Expected<()> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let (source, target) = (self.find(from), self.find(to));
        let mut wrong = Vec::new();
        if source.is_none() || (exchange && target.is_none()) {
            wrong.push(ENOENT);
        }
        if flags & libc::RENAME_NOREPLACE != 0 && target.is_some() {
            wrong.push(EEXIST);
        }
        if source.is_some_and(|source| self.is_within(to.dir, source)) {
            wrong.push(EINVAL);
        }
        if target.is_some_and(|target| self.is_within(from.dir, target)) {
            wrong.push(if exchange { EINVAL } else { ENOTEMPTY });
        }
        let (Some(source), true) = (source, wrong.is_empty()) else {
            // Which of several errors is told first is not promised.
            wrong.extend([ENOTEMPTY, EISDIR, ENOTDIR].iter().filter(|_| !exchange));
            return Err(wrong);
        };
        match target {
            Some(target) if target == source => return Ok(()),
            Some(target) if exchange => {
                self.entries_mut(from.dir).insert(from.name.clone(), target);
                self.entries_mut(to.dir).insert(to.name.clone(), source);
                return Ok(());
            }
            Some(target) => match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(vec![ENOTDIR]),
                (false, true) => return Err(vec![EISDIR, ENOTEMPTY]),
                (true, true) => {
                    if !self.entries(target).is_empty() {
                        return Err(vec![ENOTEMPTY, EEXIST]);
                    }
                    self.nodes.remove(&target);
                }
                (false, false) => self.drop_name(target, held),
            },
            None => {}
        }
        self.entries_mut(from.dir).remove(&from.name);
        self.entries_mut(to.dir).insert(to.name.clone(), source);
        Ok(())
    }
}

/// Writes into a content as `pwrite` does.
pub fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
}
