//! Processes that are named for good: nothing here can signal a stranger.
//!
//! A pid alone names the process that has it now. A [`NodeProcess`] holds a pidfd, opened first and
//! *then* checked against known facts of the process (its start time, or its command line), so a
//! pid that was used again fails the check, and a process that ends later makes the pidfd useless
//! instead of dangerous.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use samite_client::runtime::LocalProcess;

/// One process, whatever becomes of its pid.
#[derive(Debug)]
pub struct NodeProcess {
    pid: u32,
    pidfd: OwnedFd,
}

impl NodeProcess {
    /// The process `pid`, if `is_it` says so about it once there is a pidfd of it.
    pub fn open(pid: u32, is_it: impl FnOnce(u32) -> bool) -> Option<Self> {
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        let process = Self { pid, pidfd };
        (is_it(pid) && process.is_alive()).then_some(process)
    }

    /// The process that had `pid` when its start time was `start_ticks`.
    pub fn started_at(pid: u32, start_ticks: u64) -> Option<Self> {
        Self::open(pid, |pid| self::start_ticks(pid) == Some(start_ticks))
    }

    /// The process that is named so.
    pub fn of(process: &LocalProcess) -> Option<Self> {
        Self::started_at(process.pid, process.start_ticks)
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has not ended yet. A zombie has.
    pub fn is_alive(&self) -> bool {
        !self.wait(Duration::ZERO)
    }

    /// Whether it was killed and some of it has not ended yet: a thread waits in the kernel, or its
    /// memory is being given back.
    pub fn is_dying(&self) -> bool {
        let state = stat_field(Path::new(&format!("/proc/{}/stat", self.pid)), 3);
        if state.is_some_and(|state| matches!(&*state, "X" | "Z")) {
            return true;
        }
        let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", self.pid)) else {
            return true;
        };
        // A process that ends has no address space any more.
        if !status.lines().any(|line| line.starts_with("VmSize:")) {
            return true;
        }
        let pending = |line: &str| {
            let (name, signals) = line.split_once(':')?;
            let signals = u64::from_str_radix(signals.trim(), 16);
            matches!(name, "SigPnd" | "ShdPnd").then_some(signals.ok()?)
        };
        let kill = 1 << (Signal::KILL.as_raw() - 1);
        status.lines().filter_map(pending).any(|all| all & kill != 0)
    }

    /// Sends a signal; nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Stops it, at most within `timeout`; says whether all of it stands still. The signal goes to
    /// one thread, which stops the others, but only once it gets a core.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.signal(Signal::STOP);
        let until = Instant::now() + timeout;
        while !stands_still(self.pid) {
            if Instant::now() >= until || !self.is_alive() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits until it has ended, at most for `timeout`; says whether it has.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return false,
                Ok(_) => {
                    self.reap();
                    return true;
                }
            }
        }
    }

    /// Lets the kernel forget it if it is our own child; another's is its parent's business.
    fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
    }
}

/// Start time of process `pid` in clock ticks since boot; `None` when there is none.
pub fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(Path::new(&format!("/proc/{pid}/stat")), 22)?.parse().ok()
}

/// How a process has ended that nobody has waited for yet, in words. `None`: it is not known, or
/// lives.
pub fn exit_status(pid: u32, start_ticks: u64) -> Option<String> {
    let stat = Path::new("/proc").join(pid.to_string()).join("stat");
    if self::start_ticks(pid) != Some(start_ticks) || stat_field(&stat, 3)? != "Z" {
        return None;
    }
    let status: i32 = stat_field(&stat, 52)?.parse().ok()?;
    Some(match status & 0x7f {
        0 => format!("ended with exit code {}", status >> 8 & 0xff),
        signal => format!("was killed by signal {signal}{}", signal_name(signal)),
    })
}

/// The name of a signal that ends processes, to be put after its number.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => " (SIGHUP)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGSYS => " (SIGSYS)",
        _ => "",
    }
}

/// A field of proc(5)'s `stat`, counted from 1, behind the name.
fn stat_field(stat: &Path, number: usize) -> Option<String> {
    let stat = std::fs::read(stat).ok()?;
    // The second field is the program's name in parentheses, and may contain spaces and parentheses
    // itself.
    let after_name = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
    let text = std::str::from_utf8(after_name).ok()?;
    text.split_ascii_whitespace().nth(number - 3).map(str::to_owned)
}

/// Whether every thread of a process is stopped. One that has ended meanwhile does nothing any
/// more, either.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let state = stat_field(&thread.path().join("stat"), 3);
        state.is_none_or(|state| matches!(&*state, "T" | "t" | "X" | "Z"))
    })
}

/// Runs in the child before it becomes a node of a mirrored store or a member of its etcd: a
/// session of its own, otherwise as [`detach`].
///
/// The kernel divides cores among sessions first (sched(7), autogroup), so the node is heard at
/// once however many threads crowd the cores: the node that takes over from one that dies must not
/// wait in line behind the programs that wait for it.
///
/// # Errors
/// Those of the system calls.
pub fn detach_apart() -> std::io::Result<()> {
    rustix::process::setsid()?;
    take_all_signals();
    leave_descriptors();
    Ok(())
}

/// Runs in the child before it becomes a node or the daemon of a mount: a process group of its own,
/// which no key and no hang-up of the terminal reaches, and no descriptor of the process that
/// started it, which would wait for the end of a pipe that it holds open.
///
/// It stays in the session: a node in one of its own would have as much of the core that it shares
/// with a rank of a job as all that job's ranks together have of theirs, and neither could yield to
/// the other.
///
/// # Errors
/// Those of the system calls.
pub fn detach() -> std::io::Result<()> {
    rustix::process::setpgid(None, None)?;
    take_all_signals();
    leave_descriptors();
    Ok(())
}

/// A process that waits for its own orderly end in a thread blocks these signals, and a child would
/// inherit that.
fn take_all_signals() {
    // SAFETY: both calls are safe between fork and exec; the set is a local that `sigemptyset` initializes before it is
    // read.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

fn leave_descriptors() {
    // SAFETY: a system call with plain numbers; it closes descriptors at exec, when nothing of this process is left to
    // use them. Old kernels refuse, and then the descriptors stay open: a nuisance, no danger.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// This user's processes whose command line is `samite node --dir DIR …`.
///
/// This finds the nodes of an `up` that was killed before it could write their pids down.
pub fn nodes_serving(dir: &Path) -> Vec<NodeProcess> {
    find(|args| match args {
        [b"node", b"--dir", arg, ..] => is_same_dir(Path::new(OsStr::from_bytes(arg)), dir),
        _ => false,
    })
}

/// This user's processes whose command line is `etcd --data-dir DIR/NAME …`.
pub fn etcd_in(dir: &Path) -> Vec<NodeProcess> {
    find(|args| match args {
        [b"--data-dir", arg, ..] => {
            let parent = Path::new(OsStr::from_bytes(arg)).parent();
            parent.is_some_and(|parent| is_same_dir(parent, dir))
        }
        _ => false,
    })
}

/// This user's processes whose first three arguments pass.
fn find(is_it: impl Fn(&[&[u8]]) -> bool) -> Vec<NodeProcess> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| is_own_with(pid, &is_it))
        .filter_map(|pid| NodeProcess::open(pid, |pid| is_own_with(pid, &is_it)))
        .collect()
}

fn is_own_with(pid: u32, is_it: impl Fn(&[&[u8]]) -> bool) -> bool {
    let proc = format!("/proc/{pid}");
    let uid = rustix::process::geteuid().as_raw();
    if !std::fs::metadata(&proc).is_ok_and(|metadata| metadata.uid() == uid) {
        return false;
    }
    let Ok(line) = std::fs::read(format!("{proc}/cmdline")) else { return false };
    let args: Vec<&[u8]> = line.split(|&byte| byte == 0).skip(1).take(3).collect();
    is_it(&args)
}

/// Equal as text, also when it is gone, or the same directory by another path.
fn is_same_dir(a: &Path, b: &Path) -> bool {
    let id = |path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    a == b || id(a).is_some_and(|found| Some(found) == id(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_and_never_mistaken() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ticks = start_ticks(child.id()).unwrap();
        assert!(NodeProcess::started_at(child.id(), ticks + 1).is_none());
        let process = NodeProcess::started_at(child.id(), ticks).unwrap();
        assert!(!process.wait(Duration::from_millis(10)));
        assert_eq!(exit_status(child.id(), ticks), None, "it lives");
        child.kill().unwrap();
        while exit_status(child.id(), ticks).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = exit_status(child.id(), ticks);
        assert_eq!(said.as_deref(), Some("was killed by signal 9 (SIGKILL)"));
        assert!(process.wait(Duration::from_secs(10)));
        assert!(!process.is_alive());
        let _ = child.wait();
        assert!(NodeProcess::started_at(child.id(), ticks).is_none());
    }

    #[test]
    fn a_process_that_is_detached_takes_signals_that_its_starter_blocks() {
        // Only of this thread, and of what it starts.
        // SAFETY: the set is a local that `sigemptyset` initializes before any other use.
        unsafe {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        }
        for detach in [detach as fn() -> _, detach_apart] {
            let mut command = std::process::Command::new("grep");
            command.args(["SigBlk", "/proc/self/status"]);
            // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
            unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, detach) };
            let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
            assert_eq!(said, "SigBlk:\t0000000000000000\n");
        }
    }

    #[test]
    fn strangers_are_not_nodes() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(nodes_serving(Path::new("/nowhere")).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
