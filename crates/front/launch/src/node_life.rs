//! How the process of a node ended, as far as that can be known.
//!
//! Nodes are daemons: the process that started them has gone, so no parent is told how they end.
//! Each writes down that it runs, and at an orderly end how that came about. Where only the first
//! is found, it died, and the rest comes from other sources: the kernel's log, the count of its
//! control group, or the exit status of a process that no parent has waited for yet.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use samite_client::runtime::{ClusterDir, LocalProcess, NodeEntry};
use samite_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::process::{self, NodeProcess};

/// Messages of the kernel's log that are looked at, at most.
const MESSAGES_MAX: usize = 100_000;
/// Longest message of it.
const MESSAGE_LEN_MAX: usize = 8192;
/// Bytes of a process's name that the kernel keeps.
const NAME_LEN_MAX: usize = 15;

/// A node's process, written down in the cluster's directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeLife {
    pid: u32,
    /// See [`process::start_ticks`].
    start_ticks: u64,
    /// The file that counts processes of its control group that were killed for want of memory, and
    /// the count when it began.
    oom_kills: Option<(PathBuf, u64)>,
    /// How it came to its orderly end.
    end: Option<String>,
}

/// Path of what is written down of a node's process.
pub fn path(dir: &ClusterDir, node: NodeId) -> PathBuf {
    dir.path().join(format!("{node}.life"))
}

/// Name of a node's process, which the kernel cuts short.
pub fn name(dir: &ClusterDir, node: NodeId) -> String {
    format!("samite {node} {}", dir.name())
}

impl NodeLife {
    /// That of this process begins. Says how the one before ended.
    pub fn begin(dir: &ClusterDir, node: NodeId) -> Self {
        if let Some(before) = Self::read(dir, node) {
            let how = before.how(dir, node);
            tracing::info!(%node, pid = before.pid, "the process of this node before {how}");
        }
        let pid = std::process::id();
        let start_ticks = process::start_ticks(pid).unwrap_or_default();
        let life = Self { pid, start_ticks, oom_kills: oom_counter(), end: None };
        life.write(dir, node);
        life
    }

    /// It ends in good order.
    pub fn end(mut self, dir: &ClusterDir, node: NodeId, how: String) {
        self.end = Some(how);
        self.write(dir, node);
    }

    /// It ends, and nothing is to tell of it.
    pub fn forget(self, dir: &ClusterDir, node: NodeId) {
        // A `down` may have been faster.
        let _ = std::fs::remove_file(path(dir, node));
    }

    fn read(dir: &ClusterDir, node: NodeId) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path(dir, node)).ok()?).ok()
    }

    /// Nothing depends on it: an end that cannot be recorded is not known later.
    fn write(&self, dir: &ClusterDir, node: NodeId) {
        let path = path(dir, node);
        let fresh = path.with_extension("life.new");
        let text = serde_json::to_vec(self).unwrap_or_default();
        let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
        if let Err(error) = written {
            tracing::warn!(%node, %error, path = %path.display(), "write down how the process is");
        }
    }

    /// How it ended, which it has.
    fn how(&self, dir: &ClusterDir, node: NodeId) -> String {
        if let Some(end) = &self.end {
            return end.clone();
        }
        let mut words = process::exit_status(self.pid, self.start_ticks)
            .unwrap_or_else(|| "died without stopping".to_owned());
        let counted = self.oom_kills.as_ref().and_then(|(counter, before)| {
            let more = oom_kills(counter)?.saturating_sub(*before);
            (more > 0).then_some((counter.display(), more))
        });
        if let Some(message) = killed_for_memory(self.pid, &name(dir, node)) {
            words.push_str(&format!("; the kernel's log says: {message}"));
        } else if let Some((counter, more)) = counted {
            // Of all processes there: this one need not be among them.
            words.push_str(&format!(
                "; perhaps out of memory: since it began, {counter} has counted oom_kill {more} more times"
            ));
        }
        words
    }
}

/// The living process that was written down for `node`, and its socket.
pub fn process(dir: &ClusterDir, node: NodeId) -> Option<LocalProcess> {
    let NodeLife { pid, start_ticks, .. } = NodeLife::read(dir, node)?;
    let socket = dir.socket_path(node).ok()?;
    lives(pid, start_ticks).then_some(LocalProcess { pid, start_ticks, socket })
}

/// The living processes of nodes that were written down in the cluster's directory.
pub fn processes(dir: &ClusterDir) -> Vec<NodeProcess> {
    let Ok(entries) = std::fs::read_dir(dir.path()) else { return Vec::new() };
    let lives = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix('n')?.strip_suffix(".life")?;
        let process = process(dir, NodeId(number.parse().ok()?))?;
        NodeProcess::of(&process)
    });
    lives.collect()
}

/// Whether a process lives, and has not been killed while the kernel still takes it apart.
fn lives(pid: u32, start_ticks: u64) -> bool {
    NodeProcess::started_at(pid, start_ticks).is_some_and(|process| !process.is_dying())
}

/// How the process of a node ended; `None`: it lives, or runs on another host.
pub fn ended(dir: &ClusterDir, entry: &NodeEntry) -> Option<String> {
    let LocalProcess { pid, start_ticks, .. } = *entry.process.as_ref()?;
    if lives(pid, start_ticks) {
        return None;
    }
    let known = NodeLife::read(dir, entry.node)
        .filter(|life| (life.pid, life.start_ticks) == (pid, start_ticks));
    match known {
        Some(life) => Some(life.how(dir, entry.node)),
        None => ended_other(pid, start_ticks),
    }
}

/// The same of a process that writes nothing down.
pub fn ended_other(pid: u32, start_ticks: u64) -> Option<String> {
    let how = || process::exit_status(pid, start_ticks).unwrap_or_else(unknown);
    (!lives(pid, start_ticks)).then(how)
}

fn unknown() -> String {
    "has ended; how is not known".to_owned()
}

/// The file that counts the processes of this one's control group that are killed for want of
/// memory, and the count.
fn oom_counter() -> Option<(PathBuf, u64)> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let counters = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) =
            (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let places: &[(&str, &str)] = match controllers {
            "" => &[("", "memory.events"), ("unified", "memory.events")],
            _ if controllers.split(',').any(|one| one == "memory") => {
                &[("memory", "memory.oom_control")]
            }
            _ => &[],
        };
        places.iter().map(move |(tree, file)| {
            let root = Path::new("/sys/fs/cgroup").join(tree);
            root.join(group.trim_start_matches('/')).join(file)
        })
    });
    counters.into_iter().find_map(|path| oom_kills(&path).map(|count| (path, count)))
}

fn oom_kills(counter: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(counter).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The kernel's log on a process of this name that it killed for want of memory, if this user may
/// read it.
fn killed_for_memory(pid: u32, name: &str) -> Option<String> {
    let mut log = std::fs::OpenOptions::new();
    let log = log.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    find_killed(&mut log.ok()?, pid, name)
}

/// Each read gives one message, `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`.
fn find_killed(log: &mut impl Read, pid: u32, name: &str) -> Option<String> {
    let kept = name.as_bytes().get(..NAME_LEN_MAX).unwrap_or(name.as_bytes());
    // With its name: in a container the kernel knows it by another number.
    let what = format!("Killed process {pid} ({})", String::from_utf8_lossy(kept));
    let mut room = [0; MESSAGE_LEN_MAX];
    for _ in 0..MESSAGES_MAX {
        match log.read(&mut room) {
            Ok(0) => return None,
            Ok(len) => {
                let message = String::from_utf8_lossy(&room[..len]);
                let text = message.split_once(';').map_or("", |(_, text)| text);
                if text.contains(&what) {
                    return text.lines().next().map(str::to_owned);
                }
            }
            // The part that was overwritten meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use samite_client::runtime::RuntimeDir;

    use super::*;

    #[test]
    fn what_is_said_is_what_was_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        runtime.create().unwrap();
        let dir = runtime.cluster("c").unwrap();
        dir.create().unwrap();
        let node = NodeId(1);
        // A process that is long gone.
        let (pid, start_ticks) = (u32::MAX >> 1, 7);
        let socket = dir.socket_path(node).unwrap();
        let of = |pid, start_ticks| {
            let socket = socket.clone();
            NodeEntry::local(node, LocalProcess { pid, start_ticks, socket })
        };
        let entry = of(pid, start_ticks);
        assert_eq!(ended(&dir, &entry), Some(unknown()));
        let counter = scratch.path().join("memory.events");
        std::fs::write(&counter, "oom 9\noom_kill 2\noom_group_kill 5\n").unwrap();
        let oom_kills = Some((counter.clone(), 2));
        let life = NodeLife { pid, start_ticks, oom_kills, end: None };
        life.write(&dir, node);
        assert_eq!(ended(&dir, &entry).unwrap(), "died without stopping");
        std::fs::write(&counter, "oom 10\noom_kill 3\noom_group_kill 5\n").unwrap();
        let said = ended(&dir, &entry).unwrap();
        assert!(said.starts_with("died without stopping; perhaps out of memory: since"), "{said}");
        assert!(said.ends_with("memory.events has counted oom_kill 1 more times"), "{said}");
        let other = of(pid, 8);
        assert_eq!(ended(&dir, &other), Some(unknown()), "that is another process");
        life.end(&dir, node, "stopped".to_owned());
        assert_eq!(ended(&dir, &entry).unwrap(), "stopped");
        let pid = std::process::id();
        let start_ticks = process::start_ticks(pid).unwrap();
        assert_eq!(ended(&dir, &of(pid, start_ticks)), None);
        let elsewhere = NodeEntry { process: None, ..entry };
        assert_eq!(ended(&dir, &elsewhere), None, "nobody here knows");
    }

    #[test]
    fn a_message_of_the_kernel_is_known_by_number_and_name() {
        let message =
            b"3,1,2,-;Out of memory: Killed process 12 (samite n1 long-) total-vm:5kB\n more=x\n";
        let find = |pid, name| find_killed(&mut &message[..], pid, name);
        let said = find(12, "samite n1 long-name").unwrap();
        assert_eq!(said, "Out of memory: Killed process 12 (samite n1 long-) total-vm:5kB");
        assert_eq!(find(12, "samite n0 long-name"), None);
        assert_eq!(find(1, "samite n1 long-name"), None);
    }
}
