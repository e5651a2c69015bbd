//! Starting the processes of a local cluster: nodes, and etcd for their coordinators.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use samite_client::runtime::{ClusterDir, ClusterSetup, EtcdEntry, VoterEntry};
use samite_node::etcd::{ETCD_PROGRAM, LocalMember};
use samite_types::{Error, NodeId, Redundancy, Result};

use crate::etcd_members::member;
use crate::io_context::SystemContext as _;
use crate::node_command::{NetworkPlaces, far_node_arguments, node_arguments};
use crate::process;

/// The variables that glibc's `malloc` reads; another libc pays no heed.
const MALLOC_VARIABLE: &str = "GLIBC_TUNABLES";
/// Records lie on the heap, far apart. With huge pages the processor mostly knows their addresses;
/// and memory of removed ones, up to 64 MiB, is kept for the next, so that it need not be asked of
/// the kernel again, page by page. With a fixed limit for that, one for allocations with a mapping
/// of their own is to be given, too.
const MALLOC_SETTINGS: &str = "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=67108864:\
    glibc.malloc.top_pad=4194304:glibc.malloc.mmap_threshold=4194304";

/// Starts a node of a cluster that was set up so, or the process with its third voter.
///
/// # Errors
/// `Io`.
pub fn node(dir: &ClusterDir, setup: &ClusterSetup, node: NodeId) -> Result<Child> {
    let session =
        if setup.redundancy > Redundancy(1) { LaunchSession::Own } else { LaunchSession::Shared };
    start_node(dir, node, node_arguments(dir, setup, node), session)
}

/// Starts a node of a cluster on several hosts. Its session is its own: that in which the launcher
/// runs programs ends.
///
/// # Errors
/// `Io`.
pub fn far_node(
    dir: &ClusterDir,
    setup: &ClusterSetup,
    node: NodeId,
    places: &NetworkPlaces,
) -> Result<Child> {
    start_node(dir, node, far_node_arguments(dir, setup, node, places), LaunchSession::Own)
}

fn start_node(
    dir: &ClusterDir,
    node: NodeId,
    arguments: Vec<OsString>,
    session: LaunchSession,
) -> Result<Child> {
    let program = std::env::current_exe().doing("find the samite binary")?;
    let mut command = Command::new(&program);
    command.args(arguments);
    command.env_remove("LD_PRELOAD");
    if std::env::var_os(MALLOC_VARIABLE).is_none() {
        command.env(MALLOC_VARIABLE, MALLOC_SETTINGS);
    }
    spawn(command, session, &dir.log_path(node), &format!("node {node}"))
}

/// Starts the process with the third voter.
///
/// # Errors
/// `Io`.
pub fn third_voter(dir: &ClusterDir, setup: &ClusterSetup) -> Result<(Child, VoterEntry)> {
    let child = node(dir, setup, NodeId::THIRD_VOTER)?;
    let pid = child.id();
    let start_ticks = process::start_ticks(pid).unwrap_or_default();
    Ok((child, VoterEntry { pid, start_ticks }))
}

/// The last message of a node before it failed, from its log.
pub fn last_words(log: &Path) -> Option<String> {
    const TAIL_LEN: u64 = 64 << 10;
    let mut file = File::open(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_LEN))).ok()?;
    let mut text = Vec::new();
    file.take(TAIL_LEN).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find_map(|line| line.strip_prefix("samite: ")).map(str::to_owned)
}

/// Starts the member `entry` of the etcd cluster `all`.
///
/// # Errors
/// `Io`.
pub fn etcd(dir: &ClusterDir, entry: &EtcdEntry, all: &[EtcdEntry]) -> Result<Child> {
    let all: Vec<LocalMember> = all.iter().map(|entry| member(dir, entry)).collect();
    let mut command = Command::new(ETCD_PROGRAM);
    command.args(member(dir, entry).args(&all));
    let log = dir.path().join(format!("{}.log", entry.name));
    spawn(command, LaunchSession::Own, &log, ETCD_PROGRAM).map_err(|failure| {
        let hint = "; Debian has it in the package etcd-server";
        Error::new(failure.kind(), format!("{}{hint}", failure.message()))
    })
}

/// The session among whose processes the kernel shares out cores first (sched(7), autogroup).
enum LaunchSession {
    /// A process is one among those that its starter's session runs: it and programs there can
    /// yield to each other.
    Shared,
    /// A process has a session's share: it is heard in a crowd.
    Own,
}

/// Starts a process that lives on without us, with its output in `log`.
fn spawn(
    mut command: Command,
    session: LaunchSession,
    log_path: &Path,
    what: &str,
) -> Result<Child> {
    // To be appended to, for a node writes its log through a descriptor of its own.
    let log = File::options().append(true).create(true).open(log_path);
    let log = log.doing(format_args!("create {}", log_path.display()))?;
    let errors = log.try_clone().doing("duplicate the log's descriptor")?;
    command.current_dir("/").stdin(Stdio::null()).stdout(log).stderr(errors);
    let detach: fn() -> _ = match session {
        LaunchSession::Shared => process::detach,
        LaunchSession::Own => process::detach_apart,
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(detach) };
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().doing(format_args!("start {what} ({program})"))
}
