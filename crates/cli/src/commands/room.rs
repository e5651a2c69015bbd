//! Whether what is to be copied into the store fits, before anything is written.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use samite_stage::{LocalTree, StoreTree, Tree, join};

use crate::cluster::Files;
use crate::failure::Failure;
use crate::output::human_bytes;
use crate::paths::StorePath;

/// What a file or directory takes beside its data, at least.
const ENTRY_LEN: u64 = 256;
/// The part of the memory that is kept for removing.
const RESERVE: u64 = 64;
/// Unit of `st_blocks`.
const BLOCK_LEN: u64 = 512;

#[derive(Default)]
struct Need {
    bytes: u64,
    entries: u64,
}

impl Need {
    const fn total(&self) -> u64 {
        self.bytes.saturating_add(self.entries.saturating_mul(ENTRY_LEN))
    }
}

/// Refuses a tree that is larger than the room that is free. What is there already does not count when it would be skipped.
pub fn check(
    files: &Files,
    source: &Path,
    destination: &StorePath,
    resumes: bool,
) -> Result<(), Failure> {
    let mut need = Need::default();
    measure(source, &mut |_, _| false, &mut need);
    let stat = files.fs.statfs()?;
    let capacity = stat.blocks.saturating_mul(stat.block_len);
    let free = stat.blocks_free.saturating_mul(stat.block_len).saturating_sub(capacity / RESERVE);
    if need.total() <= free {
        return Ok(());
    }
    if resumes {
        // Looked at only now: it takes a request for each file.
        let store = StoreTree::new(files.fs.clone(), files.context.clone());
        let mut is_there = |path: &Path, below: &Path| {
            let below = below.as_os_str().as_bytes();
            let to = match below {
                b"" => destination.bytes().to_vec(),
                below => join(destination.bytes(), below),
            };
            let here = LocalTree.meta(path.as_os_str().as_bytes());
            matches!((here, store.meta(&to)), (Ok(here), Ok(there)) if here.is_copied_as(&there))
        };
        need = Need::default();
        measure(source, &mut is_there, &mut need);
        if need.total() <= free {
            return Ok(());
        }
    }
    let map = files.fs.client().map()?;
    let nodes: Vec<String> = map.nodes().iter().map(|info| info.node.to_string()).collect();
    Err(Failure::failed(format!(
        "needs about {} and {} entries; {} are free on {}: --force tries",
        human_bytes(need.total()),
        need.entries,
        human_bytes(free),
        nodes.join("+"),
    )))
}

/// Adds up what a tree takes, but for files that `is_there` says of: their path, and the path below `root`.
/// What cannot be looked at counts nothing; the copy says so.
fn measure(root: &Path, is_there: &mut dyn FnMut(&Path, &Path) -> bool, need: &mut Need) {
    let mut unread = vec![root.to_path_buf()];
    let mut linked = HashSet::new();
    let mut add = |path: &Path, meta: &Metadata| {
        if meta.nlink() > 1 && !meta.is_dir() && !linked.insert((meta.dev(), meta.ino())) {
            need.entries += 1;
            return;
        }
        let below = path.strip_prefix(root).unwrap_or(path);
        if meta.is_file() && is_there(path, below) {
            return;
        }
        need.entries += 1;
        if meta.is_file() {
            // Holes take nothing.
            let held = meta.blocks().saturating_mul(BLOCK_LEN);
            need.bytes = need.bytes.saturating_add(meta.len().min(held));
        }
    };
    while let Some(path) = unread.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        add(&path, &meta);
        if meta.is_dir()
            && let Ok(entries) = std::fs::read_dir(&path)
        {
            for entry in entries.flatten() {
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => unread.push(entry.path()),
                    Ok(meta) => add(&entry.path(), &meta),
                    Err(_) => {}
                }
            }
        }
    }
}
