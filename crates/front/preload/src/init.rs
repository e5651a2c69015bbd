//! Start of the library in a process, and what it takes from the environment.
//!
//! | variable | meaning |
//! |---|---|
//! | `SAMITE_CLUSTER`, `SAMITE_RUNTIME_DIR`, … | the store to use; kept for every program started from here |
//! | `SAMITE_MOUNT` | absolute path under which the store appears |
//! | `SAMITE_FDS` | open files of the store that the program inherits: `fd:session.slot.lifeline,…`, with the keep-alive socket last |
//! | `SAMITE_LOCKS` | file locks that the process had before `exec` |
//! | `SAMITE_CWD` | its working directory, when that is in the store |
//!
//! The last three are set by the hooks of `exec` and taken out again here, so that they never go
//! stale. The variables of Open MPI's launcher on its ranks are for [`ranks`](crate::ranks).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::io::Errno;
use samite_client::runtime::{
    ClusterDir, DEFAULT_CLUSTER, DEFAULT_MOUNT, ENV_CLUSTER, ENV_MOUNT, ENV_RUNTIME_DIR, RuntimeDir,
};
use samite_client::{Client, ClientOptions, ENV_TRANSPORT, parse_transport};
use samite_types::Result;
use xxhash_rust::xxh3::xxh3_64;

use crate::hooks::stdio;
use crate::ranks::LauncherRanks;
use crate::session::SlotId;
use crate::table::DescriptionUse;
use crate::{cwd, fork_lock, hook, locks, mapped, path_class, session, store, table};

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

/// The state that [`start`] kept; `None` before.
pub fn lasting() -> Option<&'static LastingEnvironment> {
    LASTING_KEPT.get()
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

/// Called by the loader before the program's `main`. Touches no store, and makes no system call unless descriptors were inherited or this is a rank of Open MPI.
extern "C" fn start(_argc: c_int, _argv: *mut *mut c_char, envp: *mut *mut c_char) {
    // A panic is answered with EIO; the default hook would print it into the program's output.
    std::panic::set_hook(Box::new(|_| {}));
    // Nor must one reach the loader; without the parts that were not set up, every call goes to
    // libc.
    let _ = std::panic::catch_unwind(|| {
        // Before any thread can touch the store: a fork that libc has begun does not ask for handlers again.
        watch_forks();
        let environment = InitEnvironment::take(envp);
        path_class::set_prefix(environment.mount);
        environment.ranks.make_room();
        if let Some(path) = environment.cwd {
            cwd::enter_store(path);
        }
        if let Some(fds) = environment.fds {
            inherit(fds);
        }
        if let Some(text) = environment.locks {
            locks::inherit(text);
        }
        // Set once: the loader calls this once.
        let _ = LASTING_KEPT.set(environment.lasting);
    });
}

struct InitEnvironment {
    mount: &'static [u8],
    fds: Option<&'static [u8]>,
    locks: Option<&'static [u8]>,
    cwd: Option<&'static [u8]>,
    ranks: LauncherRanks,
    lasting: LastingEnvironment,
}

impl InitEnvironment {
    /// Reads the environment, and takes the variables out that are for this program only.
    /// Everything is copied: a program may write over its first environment.
    fn take(envp: *mut *mut c_char) -> Self {
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
    let hash = xxh3_64(&cluster()?.read_key()?);
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

/// Takes over the open files of the program before `exec`.
fn inherit(list: &[u8]) {
    const SESSIONS: usize = session::SESSIONS_MAX;
    // Number of a session there → its number here.
    let mut sessions: [Option<u32>; SESSIONS] = [None; SESSIONS];
    let mut known: Vec<(SlotId, DescriptionUse)> = Vec::new();
    for (fd, there, lifeline) in list.split(|byte| *byte == b',').filter_map(parse) {
        let Some(session) = sessions.get_mut(there.session as usize) else { continue };
        if session.is_none() {
            *session = session::attach(fd);
        }
        let Some(session) = *session else { continue };
        let id = SlotId { session, slot: there.slot };
        let open = match known.iter().find(|(other, _)| *other == id) {
            Some((_, open)) => Some(open.clone()),
            None => table::take_over(id),
        };
        if let Some(open) = open {
            open.locks.inherit(lifeline);
            known.push((id, open.clone()));
            // A number beyond the table cannot have been put in the list.
            let _ = table::set(fd, open);
        }
    }
    if !known.is_empty() {
        for fd in 0..=2 {
            stdio::redirect(fd);
        }
    }
}

/// `fd:session.slot.lifeline`: the last one is the keep-alive socket.
fn parse(entry: &[u8]) -> Option<(c_int, SlotId, c_int)> {
    let text = std::str::from_utf8(entry).ok()?;
    let (fd, rest) = text.split_once(':')?;
    let (session, rest) = rest.split_once('.')?;
    let (slot, lifeline) = rest.split_once('.')?;
    let id = SlotId { session: session.parse().ok()?, slot: slot.parse().ok()? };
    Some((fd.parse().ok()?, id, lifeline.parse().ok()?))
}

/// Asks libc to tell of forks.
///
/// It calls the handlers that were registered last first before a fork, and last after it. An
/// allocator that locks itself for a fork (jemalloc) asks at its first allocation: that has to come
/// before, or it would be locked whenever the handlers here allocate or wait for a thread that
/// does.
fn watch_forks() {
    drop(std::hint::black_box(Box::new(0_u8)));
    type Handler = extern "C" fn();
    unsafe extern "C" {
        safe fn __register_atfork(
            prepare: Option<Handler>,
            parent: Option<Handler>,
            child: Option<Handler>,
            object: *mut c_void,
        ) -> c_int;
    }
    // Fails without memory only; then a child has no descriptors of the store, and says EBADF.
    let _ = __register_atfork(
        Some(before_fork),
        Some(after_fork_parent),
        Some(after_fork_child),
        std::ptr::null_mut(),
    );
}

extern "C" fn before_fork() {
    // A signal handler may fork while its thread is at work on the store, with locks taken and memory half allocated: then
    // nothing is sent or described before.
    let is_inside = hook::is_busy();
    if !is_inside {
        // An open file that cannot be described cannot be handed on by the child over `exec`.
        let _ = hook::attempt(|| {
            // Failures are told by later calls.
            store::send_early();
            table::describe_all();
            table::share_locks();
            Ok::<_, Errno>(())
        });
    }
    fork_lock::close(is_inside);
    table::hold_for_child();
    if !is_inside && !fork_lock::is_lost() {
        mapped::before_fork();
    }
}

extern "C" fn after_fork_parent() {
    if !hook::is_busy() && !fork_lock::is_lost() {
        mapped::after_fork(false);
    }
    fork_lock::open();
}

extern "C" fn after_fork_child() {
    fork_lock::reset_in_child();
    let is_inside = hook::is_busy();
    hook::in_child(|| {
        session::after_fork_child();
        if !is_inside && !fork_lock::is_lost() {
            mapped::after_fork(true);
        }
        table::after_fork_child();
        locks::after_fork_child();
        store::after_fork_child();
    });
}
