//! The files of a node on flash, set aside so that the node begins anew and is brought up to date
//! by others.

use std::fs::File;
use std::path::{Path, PathBuf};

use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{DurabilityKind, MemberConsistency};

use crate::directories::{node_dir, private_dir};
use crate::io_context::{SystemContext as _, failed};

/// Names the directory.
const STORAGE: &str = "storage";
/// Says by what its node joined last.
const JOINED: &str = "joined";
/// Most times that one directory is set aside.
const ASIDES_MAX: u32 = 1000;

/// Renames the logs and checkpoints of `node`, and what names them; nothing is deleted, and a
/// coordinator's state stays where it is. Returns where they are now; `None`: there were none. Done
/// halfway, it can be done again: a node does not start with what is left.
///
/// # Errors
/// `Io`.
pub fn set_aside(durable: &Path, node: NodeId) -> Result<Option<PathBuf>> {
    let from = node_dir(durable, node);
    let mut names = Vec::new();
    let entries = match std::fs::read_dir(&from) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => entries.doing(format_args!("list {}", from.display()))?,
    };
    for entry in entries {
        let name = entry.doing(format_args!("list {}", from.display()))?.file_name();
        let is_kept = |name: &str| name == STORAGE || name == JOINED || name.starts_with("shard-");
        if name.to_str().is_some_and(is_kept) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(None);
    }
    // The file that names the directory goes first: logs without it are refused, while with it a
    // log whose directory and `.begun` are gone would be taken for an empty one.
    names.sort_by_key(|name| name != STORAGE);
    let mut asides = (1..ASIDES_MAX).map(|number| durable.join(format!("{node}.aside-{number}")));
    let to = asides.find(|path| !path.exists()).ok_or_else(|| {
        let words = format!("{}: it was set aside too often; remove some", from.display());
        failed(words)
    })?;
    private_dir(&to)?;
    for name in names {
        let (old, new) = (from.join(&name), to.join(&name));
        std::fs::rename(&old, &new).doing(format_args!("rename {}", old.display()))?;
        sync(&from)?;
    }
    sync(&to)?;
    sync(durable)?;
    Ok(Some(to))
}

fn sync(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.doing(format_args!("sync {}", dir.display()))
}

/// How to restore files that were set aside.
pub fn way_back(durable: &Path, node: NodeId, aside: Option<&Path>) -> String {
    aside.map_or_else(String::new, |aside| {
        let dir = node_dir(durable, node);
        format!(
            "; what {node} had is in {}: to have it again, move that to {} in place of what is there",
            aside.display(),
            dir.display()
        )
    })
}

/// Refuses when a part of a durable dataset has its only good copy on `node`.
///
/// # Errors
/// `Conflict`.
pub fn check_others(map: &ClusterMap, node: NodeId) -> Result<()> {
    let is_whole =
        |consistency| matches!(consistency, MemberConsistency::Good | MemberConsistency::Restarted);
    for known in map.datasets() {
        let logged = known.spec.durability == DurabilityKind::Logged;
        let Some(table) = map.table(known.spec.redundancy).filter(|_| logged) else { continue };
        let only = table.groups.iter().filter(|group| {
            let mut whole = group.members.iter().filter(|member| is_whole(member.consistency));
            let first = whole.next().map(|member| map.node_of_target(member.target));
            first == Some(Some(node)) && whole.next().is_none()
        });
        let only = only.count();
        if only > 0 {
            let words = format!(
                "{node} has the only good copy of {only} partitions of dataset {:?}: restore its directory from elsewhere, or drop the dataset",
                known.spec.name
            );
            return Err(Error::new(ErrorKind::Conflict, words));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_deleted_and_a_coordinator_keeps_its_state() {
        let durable = tempfile::tempdir().unwrap();
        let (durable, node) = (durable.path(), NodeId(1));
        assert_eq!(set_aside(durable, node).unwrap(), None);
        let dir = node_dir(durable, node);
        for time in 1..4 {
            std::fs::create_dir_all(dir.join("shard-0")).unwrap();
            for name in ["storage", "joined", "coordinator", "shard-0/log"] {
                std::fs::write(dir.join(name), format!("{time}")).unwrap();
            }
            let aside = set_aside(durable, node).unwrap().unwrap();
            for name in ["storage", "joined", "shard-0/log"] {
                assert_eq!(std::fs::read_to_string(aside.join(name)).unwrap(), format!("{time}"));
                assert!(!dir.join(name).exists());
            }
            assert!(dir.join("coordinator").exists());
            assert_eq!(set_aside(durable, node).unwrap(), None);
        }
    }
}
