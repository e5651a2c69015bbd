//! One worker process: its start, what it answers, its end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Gid, Resource, Rlimit, Signal, Uid};
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::worker::{WORKER_HEADER_LEN, WorkerFrameHeader, WorkerKind};

use super::identity::WorkerIdentity;
use super::{WorkerConfig, WorkerLimits};
use crate::mutex::lock;

/// Time that a worker has to end by itself.
const END_PATIENCE: Duration = Duration::from_secs(2);
const END_LOOK: Duration = Duration::from_millis(2);
/// A log that is longer is begun anew at the next start.
const LOG_LEN_MAX: u64 = 1 << 20;
/// Bytes of its end in which the last line is looked for.
const LAST_LINE_LEN: u64 = 400;
/// Programs that modules could want; workers get no other part of the node's environment.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// See the module.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    child: Mutex<Child>,
    socket: UnixStream,
    log: PathBuf,
}

impl WorkerProcess {
    /// Starts it.
    ///
    /// # Errors
    /// Those of the system, in words.
    pub(super) fn start(
        node: NodeId,
        kind: WorkerKind,
        identity: &WorkerIdentity,
        config: &WorkerConfig,
    ) -> Result<Self> {
        let failed = |error: io::Error| {
            let uid = identity.uid();
            Error::new(ErrorKind::Io, format!("start the {kind} worker of uid {uid}: {error}"))
        };
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let log_name = format!("{node}.worker-{kind}-{}.log", identity.uid());
        let log_path = config.log_dir.join(log_name);
        let log = log_file(&log_path).map_err(failed)?;
        let mut command = Command::new(&config.program);
        let limits = config.limits;
        command
            .args(["worker", "--kind", kind.name(), "--node", &node.get().to_string()])
            .args(["--cores", &limits.cores.to_string()])
            .args(["--task-seconds", &limits.task_time.as_secs().to_string()]);
        match identity {
            WorkerIdentity::Own(_) => command.args(&config.arguments),
            WorkerIdentity::Other(_) => command.args(config.guest_arguments.iter().flatten()),
        };
        command
            .env_clear()
            .env("PATH", PATH)
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(log.try_clone().map_err(failed)?))
            .stderr(Stdio::from(log));
        if let WorkerIdentity::Other(uid) = identity {
            let user = ProcessUser::of(*uid)?;
            // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
            unsafe { command.pre_exec(move || user.become_it()) };
        }
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        unsafe { command.pre_exec(move || confine(&limits, parent)) };
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child: Mutex::new(child), socket, log: log_path })
    }

    pub(super) fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    pub(super) const fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Waits for its end, and brings it about when that takes long. How it has ended, in words.
    pub(super) fn end(&self) -> String {
        let mut child = lock(&self.child);
        let until = Instant::now() + END_PATIENCE;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.code().is_some_and(|code| code != 0) => {
                    let words = last_line(&self.log).unwrap_or_default();
                    return format!("{}: {words}", how(status));
                }
                Ok(Some(status)) => return how(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(END_LOOK),
                Ok(None) => break,
                Err(error) => return format!("has ended: {error}"),
            }
        }
        let _ = child.kill();
        child.wait().map_or_else(|error| format!("was killed: {error}"), how)
    }
}

/// A user as the machine knows him.
struct ProcessUser {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl ProcessUser {
    fn of(uid: u32) -> Result<Self> {
        let unknown = || {
            let words = format!("uid {uid} is no user of the node's host: it has no worker there");
            Error::new(ErrorKind::Denied, words)
        };
        let user = uzers::get_user_by_uid(uid).ok_or_else(unknown)?;
        let gid = user.primary_group_id();
        let groups = uzers::get_user_groups(user.name(), gid).unwrap_or_default();
        let groups = groups.iter().map(|group| Gid::from_raw(group.gid())).collect();
        Ok(Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), groups })
    }

    /// For the forked process, which has one thread.
    fn become_it(&self) -> io::Result<()> {
        rustix::thread::set_thread_groups(&self.groups)?;
        rustix::thread::set_thread_res_gid(self.gid, self.gid, self.gid)?;
        rustix::thread::set_thread_res_uid(self.uid, self.uid, self.uid)?;
        Ok(())
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(0)) => "has ended".to_owned(),
        (None, code) => format!("has ended with exit code {}", code.unwrap_or(-1)),
    }
}

/// Makes of the forked process what a worker is to be.
fn confine(limits: &WorkerLimits, parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()) != parent as i32 {
        // It has died already.
        return Err(io::ErrorKind::Interrupted.into());
    }
    let most = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(Resource::Data, most(limits.memory_bytes))?;
    rustix::process::setrlimit(Resource::Core, most(0))?;
    rustix::process::nice(limits.niceness)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    close_others();
    Ok(())
}

/// Leaves no descriptor but the first three to the program, and no signal blocked.
fn close_others() {
    // SAFETY: system calls with plain numbers and a local set, which `sigemptyset` initializes
    // before it is read; descriptors are closed at exec, when nothing of this process is left to
    // use them. Old kernels refuse that; what the node opens is closed at exec anyway.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// Reads one answer from a worker.
///
/// # Errors
/// The worker has ended, or says what makes no sense.
pub(super) fn read_answer(socket: &mut UnixStream) -> io::Result<(u64, Vec<u8>)> {
    let mut header = [0; WORKER_HEADER_LEN];
    socket.read_exact(&mut header)?;
    let header = WorkerFrameHeader::decode(&header).map_err(io::Error::other)?;
    let mut answer = vec![0; header.len as usize];
    socket.read_exact(&mut answer)?;
    Ok((header.request, answer))
}

/// What a worker prints is a file of its own.
fn log_file(path: &Path) -> io::Result<File> {
    let is_long = path.metadata().is_ok_and(|meta| meta.len() > LOG_LEN_MAX);
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    if is_long {
        drop(options.clone().write(true).truncate(true).open(path)?);
    }
    options.append(true).open(path)
}

/// The last line of it, if there is one.
fn last_line(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LAST_LINE_LEN))).ok()?;
    let mut end = Vec::new();
    file.take(LAST_LINE_LEN).read_to_end(&mut end).ok()?;
    let text = String::from_utf8_lossy(&end);
    text.lines().next_back().filter(|line| !line.is_empty()).map(str::to_owned)
}
