//! The runtime directory of a user: where the local clusters' keys, sockets, logs and descriptions lie.
//!
//! ```text
//! ${SAMITE_RUNTIME_DIR:-${XDG_RUNTIME_DIR:-/tmp}/samite-UID}/      0700, the user's own
//!   <cluster>/                                                     0700
//!     key            0600: the cluster key ([`samite_transport::ClusterKeys`])
//!     ticket         0600: in its place, for users who do not own the store ([`TicketFile`])
//!     ca.pem         who signs the nodes' TLS certificates, where they have their own
//!     cluster.json   [`ClusterFile`]: written last, once the store serves
//!     n0.sock …      unix socket of each node
//!     n0.log …       log of each node
//! ```
//!
//! A user that can write here can hand another user a false store, so nothing is used before it is
//! known to be a real directory, owned by the user, closed to everyone else. The preload library
//! reads these files inside other people's programs: all I/O is raw system calls, never libc.

mod credentials;
mod files;
mod nodes;
mod setup;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use samite_types::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};

pub(crate) use credentials::is_there;
pub use credentials::{TicketFile, key_bytes, read_key_file, to_base64};
pub use files::name_without_temporary;
pub(crate) use files::write_file;
use files::{DirectoryLock, read_file};
pub use nodes::{LocalProcess, NodeEntry};
pub use setup::{ClusterSetup, EtcdEntry, EtcdTlsFiles, VoterEntry};

/// Names the cluster that commands and programs use; [`DEFAULT_CLUSTER`] when unset.
pub const ENV_CLUSTER: &str = "SAMITE_CLUSTER";
/// Overrides where the runtime directory lies.
pub const ENV_RUNTIME_DIR: &str = "SAMITE_RUNTIME_DIR";
/// The path under which programs started by `samite run` see the store; [`DEFAULT_MOUNT`] when unset.
pub const ENV_MOUNT: &str = "SAMITE_MOUNT";
/// Path of the preload library, for `samite run`.
pub const ENV_PRELOAD: &str = "SAMITE_PRELOAD";
/// Cluster used when none is named.
pub const DEFAULT_CLUSTER: &str = "default";
/// Where programs see the store unless told otherwise.
pub const DEFAULT_MOUNT: &str = "/samite";
/// Longest path of a unix socket, in bytes (`sun_path` less its terminator).
pub const SOCKET_PATH_LEN_MAX: usize = 107;

const CLUSTER_NAME_LEN_MAX: usize = 64;
const CLUSTER_FILE_LEN_MAX: usize = 1 << 20;

/// The user's runtime directory: one directory per cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir {
    path: PathBuf,
}

impl RuntimeDir {
    /// The directory that the environment asks for; it need not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the environment names a relative path.
    pub fn for_user() -> Result<Self> {
        let env = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let path = env(ENV_RUNTIME_DIR).map(PathBuf::from).unwrap_or_else(|| {
            let base = env("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into());
            Path::new(&base).join(format!("samite-{}", rustix::process::geteuid().as_raw()))
        });
        Self::at(path)
    }

    /// The runtime directory `path`; it need not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: a relative path.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if !path.is_absolute() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("runtime directory {}: not an absolute path", path.display()),
            ));
        }
        Ok(Self { path })
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of cluster `name`; it need not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: not a cluster name (1 to 64 of letters, digits, `-`, `_`, `.`, not starting with a dot).
    pub fn cluster(&self, name: &str) -> Result<ClusterDir> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty()
            || name.len() > CLUSTER_NAME_LEN_MAX
            || name.starts_with('.')
            || !name.bytes().all(fits)
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "cluster name {name:?}: use 1 to {CLUSTER_NAME_LEN_MAX} letters, digits, '-', '_' or '.', \
                     not starting with a dot"
                ),
            ));
        }
        Ok(ClusterDir { path: self.path.join(name), name: name.to_owned() })
    }

    /// Names of the clusters that have a directory here, sorted. None when there is no runtime directory.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] when the directory is not private to this user; otherwise the error of
    /// the system.
    pub fn clusters(&self) -> Result<Vec<String>> {
        let dir = match open_private_dir(&self.path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let entries = rustix::fs::Dir::read_from(&dir)
            .map_err(|errno| Error::io(format_args!("read {}", self.path.display()), errno))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry
                .map_err(|errno| Error::io(format_args!("read {}", self.path.display()), errno))?;
            if let Ok(name) = entry.file_name().to_str()
                && self.cluster(name).is_ok()
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Makes the directory unless it is there, and checks that it is private.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] when it belongs to another user or is open to others; otherwise the
    /// error of the system.
    pub fn create(&self) -> Result<()> {
        create_private_dir(&self.path)
    }
}

/// The directory of one local cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDir {
    path: PathBuf,
    name: String,
}

impl ClusterDir {
    /// Name of the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the directory lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the cluster's description.
    #[must_use]
    pub fn cluster_file_path(&self) -> PathBuf {
        self.path.join("cluster.json")
    }

    /// Path of the state of the coordinator that is part of the first node.
    #[must_use]
    pub fn map_path(&self) -> PathBuf {
        self.path.join("map")
    }

    /// Where the voter of a node is kept, which keeps the cluster map together with others.
    #[must_use]
    pub fn voter_path(&self, node: NodeId) -> PathBuf {
        self.path.join(format!("{node}.voter"))
    }

    /// Path of a node's log.
    #[must_use]
    pub fn log_path(&self, node: NodeId) -> PathBuf {
        self.path.join(format!("{node}.log"))
    }

    /// Path of the file that tells of a node's faults made on purpose.
    #[must_use]
    pub fn fault_log_path(&self, node: NodeId) -> PathBuf {
        self.path.join(format!("{node}.faults"))
    }

    /// Path of the table of faults by which a node goes when it starts.
    #[must_use]
    pub fn fault_table_path(&self, node: NodeId) -> PathBuf {
        self.path.join(format!("{node}.table"))
    }

    /// Path of a node's unix socket.
    ///
    /// # Errors
    /// [`ErrorKind::NameTooLong`]: over [`SOCKET_PATH_LEN_MAX`] bytes, which the kernel would refuse.
    pub fn socket_path(&self, node: NodeId) -> Result<PathBuf> {
        let path = self.path.join(format!("{node}.sock"));
        let len = path.as_os_str().as_bytes().len();
        if len > SOCKET_PATH_LEN_MAX {
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!(
                    "socket {}: {len} bytes, and a socket path has at most {SOCKET_PATH_LEN_MAX}; \
                     set {ENV_RUNTIME_DIR} to a shorter directory",
                    path.display()
                ),
            ));
        }
        Ok(path)
    }

    /// Makes the directory unless it is there, and checks that it is private.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] when it belongs to another user or is open to others; otherwise the
    /// error of the system.
    pub fn create(&self) -> Result<()> {
        create_private_dir(&self.path)
    }

    /// Checks that the directory is there, is this user's own, and is closed to others.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none; [`ErrorKind::Denied`] when it is not private.
    pub fn check(&self) -> Result<()> {
        if let Some(parent) = self.path.parent() {
            open_private_dir(parent)?;
        }
        open_private_dir(&self.path).map(drop)
    }

    /// Writes the cluster's description, atomically.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write_cluster_file(&self, file: &ClusterFile) -> Result<()> {
        let path = self.cluster_file_path();
        let bytes = serde_json::to_vec_pretty(file).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("write {}: {error}", path.display()))
        })?;
        write_file(&path, &bytes)
    }

    /// Reads the cluster's description.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when no such cluster is up; [`ErrorKind::Denied`] when its directory is not private;
    /// [`ErrorKind::Corrupt`] when the file does not parse.
    pub fn read_cluster_file(&self) -> Result<ClusterFile> {
        self.check().map_err(|error| self.no_such_cluster(error))?;
        let path = self.cluster_file_path();
        let bytes =
            read_file(&path, CLUSTER_FILE_LEN_MAX).map_err(|error| self.no_such_cluster(error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("cluster file {}: {error}", path.display()))
        })
    }

    fn no_such_cluster(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "cluster {}: not up (no {})",
                    self.name,
                    self.cluster_file_path().display()
                ),
            )
        } else {
            error
        }
    }
}

/// Describes a local cluster to its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFile {
    /// Name of the cluster.
    pub cluster: String,
    /// Nodes, ordered by id.
    pub nodes: Vec<NodeEntry>,
    /// When it was started: seconds since 1970-01-01 UTC.
    pub created_s: u64,
    /// How it was started.
    #[serde(default)]
    pub setup: ClusterSetup,
    /// No node of it runs here: `samite attach` has made this description.
    #[serde(default)]
    pub is_attached: bool,
}

/// Opens `path` if it is a real directory, owned by this user and closed to others.
fn open_private_dir(path: &Path) -> Result<rustix::fd::OwnedFd> {
    let what = || format!("runtime directory {}", path.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => Error::new(
            ErrorKind::Denied,
            format!("{}: not a directory of its own (a symbolic link or a file)", what()),
        ),
        errno => Error::io(what(), errno),
    })?;
    let stat = rustix::fs::fstat(&dir).map_err(|errno| Error::io(what(), errno))?;
    let uid = rustix::process::geteuid().as_raw();
    if stat.st_uid != uid {
        return Err(Error::new(
            ErrorKind::Denied,
            format!("{}: belongs to uid {}, not to uid {uid}", what(), stat.st_uid),
        ));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::Denied,
            format!(
                "{}: mode {:04o} lets others in; it must be 0700: `chmod 700 {}`",
                what(),
                stat.st_mode & 0o7777,
                path.display()
            ),
        ));
    }
    Ok(dir)
}

fn create_private_dir(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open_private_dir(path).map(drop),
        Err(errno) => {
            Err(Error::io(format_args!("create runtime directory {}", path.display()), errno))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn files_round_trip_and_stay_private() {
        let scratch = scratch();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        assert!(runtime.clusters().unwrap().is_empty());
        runtime.create().unwrap();
        let cluster = runtime.cluster("one").unwrap();
        assert_eq!(cluster.read_cluster_file().unwrap_err().kind(), ErrorKind::NotFound);
        cluster.create().unwrap();
        cluster.write_key(&[7; 32]).unwrap();
        assert_eq!(cluster.read_keys().unwrap().current().as_bytes(), &[7; 32]);
        let mode = std::fs::metadata(cluster.key_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let file = ClusterFile {
            cluster: "one".into(),
            nodes: vec![NodeEntry::local(
                NodeId(0),
                LocalProcess {
                    pid: 1,
                    start_ticks: 2,
                    socket: cluster.socket_path(NodeId(0)).unwrap(),
                },
            )],
            created_s: 3,
            setup: ClusterSetup::default(),
            is_attached: false,
        };
        cluster.write_cluster_file(&file).unwrap();
        assert_eq!(cluster.read_cluster_file().unwrap(), file);
        assert_eq!(runtime.clusters().unwrap(), ["one"]);
    }

    #[test]
    fn open_or_linked_directories_are_refused() {
        let scratch = scratch();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        runtime.create().unwrap();
        std::fs::set_permissions(runtime.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(runtime.clusters().unwrap_err().kind(), ErrorKind::Denied);
        std::os::unix::fs::symlink(scratch.path(), scratch.path().join("link")).unwrap();
        let linked = RuntimeDir::at(scratch.path().join("link")).unwrap();
        assert_eq!(linked.create().unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn names_and_lengths_are_checked() {
        let runtime = RuntimeDir::at("/tmp/x").unwrap();
        for bad in ["", ".x", "a/b", "a b", &"n".repeat(65)] {
            assert_eq!(runtime.cluster(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        let long = RuntimeDir::at(format!("/{}", "d".repeat(100))).unwrap();
        let error = long.cluster("c").unwrap().socket_path(NodeId(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameTooLong);
        assert_eq!(RuntimeDir::at("x").unwrap_err().kind(), ErrorKind::Invalid);
    }
}
