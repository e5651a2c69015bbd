//! What the library takes from the environment of its process at the start.
//!
//! | variable | meaning |
//! |---|---|
//! | `SAMITE_CLUSTER`, `SAMITE_RUNTIME_DIR`, … | the store to use; kept for every program started from here |
//! | `SAMITE_MOUNT` | absolute path under which the store appears |
//! | `SAMITE_FDS` | open files of the store that the program inherits: `fd:session.slot.keep_alive,…`, with the keep-alive socket last |
//! | `SAMITE_LOCKS` | file locks that the process had before `exec` |
//! | `SAMITE_CWD` | its working directory, when that is in the store |
//!
//! The last three are set by the hooks of `exec` and taken out again here, so that they never go
//! stale. The variables of Open MPI's launcher on its ranks are for [`ranks`](crate::ranks).

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::sync::OnceLock;

use samite_client::runtime::{
    ClusterDir, DEFAULT_CLUSTER, DEFAULT_MOUNT, ENV_CLUSTER, ENV_MOUNT, ENV_RUNTIME_DIR, RuntimeDir,
};
use samite_client::{Client, ClientOptions, ENV_TRANSPORT, parse_transport};
use samite_types::Result;
use xxhash_rust::xxh3::xxh3_64;

use crate::ranks::LauncherRanks;

/// Open files that an `exec` hands on.
pub const FDS: &[u8] = b"SAMITE_FDS=";
/// Locks of the process that an `exec` hands on.
pub const LOCKS: &[u8] = b"SAMITE_LOCKS=";
/// Working directory in the store that an `exec` hands on.
pub const CWD: &[u8] = b"SAMITE_CWD=";
/// Variables that every program started from here gets too.
const LASTING: &[u8] = b"SAMITE_";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libsamite_preload";

/// The part of the environment that programs started from here must have, as NUL-terminated strings; and this library's path.
pub struct LastingEnvironment {
    /// `SAMITE_*=…`.
    pub variables: Vec<&'static CStr>,
    /// Path by which the loader was told of this library.
    pub library: Option<&'static [u8]>,
}

static LASTING_KEPT: OnceLock<LastingEnvironment> = OnceLock::new();

/// Keeps it for the programs that are started from here. Called once, when the library has started.
pub fn keep(lasting: LastingEnvironment) {
    // Set once: the loader starts the library once.
    let _ = LASTING_KEPT.set(lasting);
}

/// The state that [`keep`] was given; `None` before.
pub fn lasting() -> Option<&'static LastingEnvironment> {
    LASTING_KEPT.get()
}

/// The variables that count at the start.
pub struct StartEnvironment {
    /// Mount prefix: an absolute path without a slash at its end.
    pub mount: &'static [u8],
    /// The value of `SAMITE_FDS`.
    pub fds: Option<&'static [u8]>,
    /// The value of `SAMITE_LOCKS`.
    pub locks: Option<&'static [u8]>,
    /// The value of `SAMITE_CWD`: a path below the store's root.
    pub cwd: Option<&'static [u8]>,
    /// The ranks of a launcher that this process is one of.
    pub ranks: LauncherRanks,
    /// For the programs that are started from here.
    pub lasting: LastingEnvironment,
}

impl StartEnvironment {
    /// Reads the environment, and takes the variables out that are for this program only.
    /// Everything is copied: a program may write over its first environment.
    pub fn take(envp: *mut *mut c_char) -> Self {
        let mut found = Self {
            mount: DEFAULT_MOUNT.as_bytes(),
            fds: None,
            locks: None,
            cwd: None,
            ranks: LauncherRanks::default(),
            lasting: LastingEnvironment { variables: Vec::new(), library: None },
        };
        if envp.is_null() {
            return found;
        }
        let (mut from, mut to) = (envp, envp);
        loop {
            // SAFETY: the loader's environment ends with a null pointer, where this loop ends too.
            let entry = unsafe { *from };
            let stays = entry.is_null() || {
                // SAFETY: entries are NUL-terminated strings.
                found.visit(unsafe { CStr::from_ptr(entry) })
            };
            if let Some(entry) = NonNull::new(entry) {
                // SAFETY: as above; they are the process's own, and nobody takes them away before `main`.
                unsafe { found.ranks.visit(entry) };
            }
            if stays {
                // SAFETY: `to` never overtakes `from`.
                unsafe {
                    *to = entry;
                    to = to.add(1);
                }
            }
            if entry.is_null() {
                return found;
            }
            // SAFETY: not at the end yet.
            from = unsafe { from.add(1) };
        }
    }

    fn visit(&mut self, entry: &CStr) -> bool {
        let bytes = entry.to_bytes();
        if let Some(list) = bytes.strip_prefix(PRELOAD) {
            let ours = list
                .split(|byte| matches!(byte, b':' | b' '))
                .find(|path| path.windows(LIBRARY.len()).any(|part| part == LIBRARY));
            self.lasting.library = ours.map(|path| &*path.to_vec().leak());
        } else if bytes.starts_with(LASTING) {
            let kept: &'static CStr = Box::leak(entry.to_owned().into_boxed_c_str());
            let bytes = kept.to_bytes();
            if let Some(fds) = bytes.strip_prefix(FDS) {
                self.fds = Some(fds);
                return false;
            }
            if let Some(text) = bytes.strip_prefix(LOCKS) {
                self.locks = Some(text);
                return false;
            }
            if let Some(path) = bytes.strip_prefix(CWD) {
                self.cwd = Some(path);
                return false;
            }
            if let Some(mount) = value(bytes, ENV_MOUNT)
                && mount.first() == Some(&b'/')
            {
                let end = mount.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
                if end > 0 {
                    self.mount = &mount[..end];
                }
            }
            self.lasting.variables.push(kept);
        }
        true
    }
}

fn value<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Connects to the cluster that the environment named at the start.
pub fn client() -> Result<Client> {
    let transport = named(ENV_TRANSPORT).map(parse_transport).transpose()?;
    Client::from_cluster_dir(&cluster()?, ClientOptions { transport, ..ClientOptions::default() })
}

/// A number that tells the cluster from all others, earlier ones of its name included.
pub fn cluster_hash() -> Result<u64> {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let hash = xxh3_64(&cluster()?.read_id()?);
    Ok(*KNOWN.get_or_init(|| hash))
}

/// A variable of the environment at the start.
fn named(name: &str) -> Option<&'static str> {
    let lasting = lasting()?;
    let value = lasting.variables.iter().find_map(|entry| value(entry.to_bytes(), name))?;
    std::str::from_utf8(value).ok().filter(|value| !value.is_empty())
}

/// The directory of the cluster that the environment named at the start.
pub fn cluster() -> Result<ClusterDir> {
    let runtime = match named(ENV_RUNTIME_DIR) {
        Some(path) => RuntimeDir::at(path)?,
        None => RuntimeDir::for_user()?,
    };
    runtime.cluster(named(ENV_CLUSTER).unwrap_or(DEFAULT_CLUSTER))
}
