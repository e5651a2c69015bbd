//! Whether a tree that is to be copied into the store, or out of it, fits, before any data are
//! written. Files that it replaces stay until the new ones are whole, and take their room until
//! then.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use samite_client::{Client, Dataset};
use samite_fs::{FileKind, StatFs};
use samite_placement::ClusterMap;
use samite_stage::{FileMeta, FileTree, LocalTree, StoreTree, join, sweep_tree};
use samite_types::human_bytes;

use crate::cluster::ClusterFiles;
use crate::failure::CommandFailure;
use crate::paths::StorePath;

/// The space that a file or directory takes beside its data, at least.
const ENTRY_LEN: u64 = 256;
/// The part of the memory that is reserved for removing.
const RESERVE: u64 = 64;
/// Unit of `st_blocks`.
const BLOCK_LEN: u64 = 512;
/// Less than this is tried at once: to ask costs a request to each node, and to find out too late costs little.
const TRIED_LEN: u64 = 1 << 20;

/// How long a node keeps what a killed client had open, as the client could connect again, and half as long again.
const ORPHANS_END: Duration = Duration::from_secs(3);

#[derive(Default)]
struct RoomNeed {
    bytes: u64,
    entries: u64,
}

impl RoomNeed {
    const fn total(&self) -> u64 {
        self.bytes.saturating_add(self.entries.saturating_mul(ENTRY_LEN))
    }
}

/// Bytes of a local file: holes take nothing.
pub fn data_len(meta: &Metadata) -> u64 {
    meta.len().min(meta.blocks().saturating_mul(BLOCK_LEN))
}

/// Refuses a file of so many bytes that is larger than the room that is free in a dataset.
pub fn check_dataset(client: &Client, dataset: &Dataset, need: u64) -> Result<(), CommandFailure> {
    if need < TRIED_LEN {
        return Ok(());
    }
    let map = client.map()?;
    let (mut capacity, mut used) = (0u64, 0u64);
    for info in map.nodes() {
        // A node that cannot be asked says nothing of the free space.
        let Ok(status) = client.node_status(info.node) else { return Ok(()) };
        let (node_capacity, node_used) = status.usage(&dataset.spec().backend);
        capacity = capacity.saturating_add(node_capacity);
        used = used.saturating_add(node_used);
    }
    let copies = u64::from(dataset.spec().redundancy.get().max(1));
    let (capacity, used) = (capacity / copies, used / copies);
    let free = capacity.saturating_sub(used).saturating_sub(capacity / RESERVE);
    if need <= free { Ok(()) } else { Err(too_large(need, free, &node_names(&map))) }
}

/// Refuses a file of so many bytes that is larger than the room that is free for files.
pub fn check_files(files: &ClusterFiles, need: u64) -> Result<(), CommandFailure> {
    if need < TRIED_LEN {
        return Ok(());
    }
    // If it cannot be told, the copy says so.
    let Ok(stat) = files.fs.statfs() else { return Ok(()) };
    if need <= free_of(&stat) {
        return Ok(());
    }
    let free = free_without_orphans(files, need)?;
    if need <= free {
        return Ok(());
    }
    Err(too_large(need, free, &node_names(&*files.fs.client().map()?)))
}

/// Refuses a local file of so many bytes that is larger than the room that is free where it is to be.
pub fn check_local(local: &Path, need: u64) -> Result<(), CommandFailure> {
    match (need >= TRIED_LEN).then(|| free_at(local)).flatten() {
        Some((free, dir)) if need > free => Err(too_large(need, free, &dir.display().to_string())),
        _ => Ok(()),
    }
}

/// Refuses to copy a tree out of the store where that is larger than the room that is free. Files
/// that are there already do not count when they would be skipped.
pub fn check_out(
    files: &ClusterFiles,
    source: &[u8],
    destination: &Path,
    resumes: bool,
) -> Result<(), CommandFailure> {
    let Some((mut free, dir)) = free_at(destination) else { return Ok(()) };
    // Mostly all that there is would fit: then nothing need be looked at.
    let Ok(stat) = files.fs.statfs() else { return Ok(()) };
    let held = stat.blocks.saturating_sub(stat.blocks_free).saturating_mul(stat.block_len);
    if held <= free {
        return Ok(());
    }
    let store = StoreTree::new(files.fs.clone(), files.context.clone());
    // At most the stored bytes: the others are holes.
    let need = measure_store(&store, source, destination, resumes).min(held);
    if need > free {
        sweep_tree((&store, source), (&LocalTree, destination.as_os_str().as_bytes()));
        free = free_at(destination).map_or(free, |(free, _)| free);
    }
    if need <= free {
        return Ok(());
    }
    Err(too_large(need, free, &dir.display().to_string()))
}

/// Bytes of the files of a tree in the store. A file that cannot be looked at counts nothing; the
/// copy says so.
fn measure_store(store: &StoreTree, source: &[u8], destination: &Path, resumes: bool) -> u64 {
    let (mut total, mut linked) = (0u64, HashSet::new());
    let mut unread = vec![(source.to_vec(), destination.as_os_str().as_bytes().to_vec())];
    let mut entries = Vec::new();
    while let Some((from, to)) = unread.pop() {
        let Ok(meta) = store.meta(&from) else { continue };
        if meta.kind == FileKind::Directory {
            entries.clear();
            let _ = store.list(&from, &mut entries);
            for (name, known) in &entries {
                let (from, to) = (join(&from, name), join(&to, name));
                match known {
                    Some(known) => add_file(known, &to, resumes, &mut linked, &mut total),
                    None => unread.push((from, to)),
                }
            }
        } else {
            add_file(&meta, &to, resumes, &mut linked, &mut total);
        }
    }
    total
}

fn add_file(
    meta: &FileMeta,
    to: &[u8],
    resumes: bool,
    linked: &mut HashSet<(u64, u64)>,
    total: &mut u64,
) {
    let is_copied = || LocalTree.meta(to).is_ok_and(|there| meta.is_copied_as(&there));
    let counts = meta.kind == FileKind::File
        && (meta.nlink < 2 || linked.insert(meta.id))
        && !(resumes && is_copied());
    if counts {
        *total = total.saturating_add(meta.size);
    }
}

/// The free space where a local file is to be, and the directory that was looked at.
fn free_at(local: &Path) -> Option<(u64, &Path)> {
    let is_there = |dir: &&Path| !dir.as_os_str().is_empty() && dir.is_dir();
    let dir = local.ancestors().find(is_there).unwrap_or(Path::new("."));
    let space = rustix::fs::statvfs(dir).ok()?;
    let blocks = if rustix::process::geteuid().is_root() { space.f_bfree } else { space.f_bavail };
    Some((blocks.saturating_mul(space.f_frsize), dir))
}

/// The room for files, when leaked orphans are gone: killed commands have had files open that have no
/// name any more. Waits while there are orphans, and less than `need`, for [`ORPHANS_END`] at most.
fn free_without_orphans(files: &ClusterFiles, need: u64) -> Result<u64, CommandFailure> {
    let begun = Instant::now();
    loop {
        files.fs.sweep_orphans()?;
        let free = free_of(&files.fs.statfs()?);
        if need <= free || begun.elapsed() >= ORPHANS_END || !files.fs.has_orphans()? {
            return Ok(free);
        }
        std::thread::sleep(ORPHANS_END / 30);
    }
}

fn free_of(stat: &StatFs) -> u64 {
    let capacity = stat.blocks.saturating_mul(stat.block_len);
    stat.blocks_free.saturating_mul(stat.block_len).saturating_sub(capacity / RESERVE)
}

fn node_names(map: &ClusterMap) -> String {
    let nodes: Vec<String> = map.nodes().iter().map(|info| info.node.to_string()).collect();
    nodes.join("+")
}

fn too_large(need: u64, free: u64, place: &str) -> CommandFailure {
    CommandFailure::failed(format!(
        "needs about {}; {} are free on {place}: --force tries",
        human_bytes(need),
        human_bytes(free),
    ))
}

/// Refuses a tree that is larger than the room that is free. Files that are there already do not
/// count when they would be skipped.
pub fn check(
    files: &ClusterFiles,
    source: &Path,
    destination: &StorePath,
    resumes: bool,
) -> Result<(), CommandFailure> {
    let mut need = RoomNeed::default();
    measure(source, &mut |_, _| false, &mut need);
    if need.total() <= free_of(&files.fs.statfs()?) {
        return Ok(());
    }
    // All this is looked at only now: it takes a request for each directory, or file.
    let store = StoreTree::new(files.fs.clone(), files.context.clone());
    sweep_tree((&LocalTree, source.as_os_str().as_bytes()), (&store, destination.bytes()));
    let free = free_without_orphans(files, need.total())?;
    if need.total() <= free {
        return Ok(());
    }
    if resumes {
        let mut is_there = |path: &Path, below: &Path| {
            let below = below.as_os_str().as_bytes();
            let to = match below {
                b"" => destination.bytes().to_vec(),
                below => join(destination.bytes(), below),
            };
            let here = LocalTree.meta(path.as_os_str().as_bytes());
            matches!((here, store.meta(&to)), (Ok(here), Ok(there)) if here.is_copied_as(&there))
        };
        need = RoomNeed::default();
        measure(source, &mut is_there, &mut need);
        if need.total() <= free {
            return Ok(());
        }
    }
    let map = files.fs.client().map()?;
    Err(CommandFailure::failed(format!(
        "needs about {} and {} entries; {} are free on {}: --force tries",
        human_bytes(need.total()),
        need.entries,
        human_bytes(free),
        node_names(&map),
    )))
}

/// Adds up the space that a tree takes, except files for which `is_there` returns true, which is
/// given their path, and the path below `root`. A file that cannot be looked at counts nothing; the
/// copy says so.
fn measure(root: &Path, is_there: &mut dyn FnMut(&Path, &Path) -> bool, need: &mut RoomNeed) {
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
            need.bytes = need.bytes.saturating_add(data_len(meta));
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
