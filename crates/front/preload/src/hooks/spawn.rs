//! `posix_spawn`, `vfork`, `system` and `popen`.
//!
//! libc's `posix_spawn` works on descriptors and paths past the hooks. Where its file actions touch the store, it is done here with
//! `fork` and `exec`; everywhere else libc's own is called with the environment that the next program needs.

use std::ffi::{c_char, c_int, c_short, c_void};
use std::os::fd::{AsFd, OwnedFd};

use libc::{AT_FDCWD, FILE, mode_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::hook::hooks;
use crate::hooks::descriptors::{close, closefrom, dup2};
use crate::hooks::exec::{self, ProgramEnvironment, execve, execvpe, prepare_child};
use crate::hooks::exit::_exit;
use crate::hooks::open::open;
use crate::hooks::unreached;
use crate::hooks::working_directory::{chdir, fchdir};
use crate::path_class::classify;
use crate::real::errno;
use crate::store_location::{PathRoom, PathRoute};
use crate::{cwd, foreign, table};

/// Number above which the pipe of a child's error lies, away from the numbers that file actions use.
const ERROR_PIPE_FLOOR: c_int = 200;
/// The error of a child that could not become its program.
const EXIT_NOT_RUN: c_int = 127;

/// One file action, as glibc keeps it (`struct __spawn_action`, not changed since 2000).
#[repr(C)]
#[derive(Clone, Copy)]
struct SpawnAction {
    tag: c_int,
    padding: c_int,
    fd: c_int,
    new_fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
}

const DO_CLOSE: c_int = 0;
const DO_DUP2: c_int = 1;
const DO_OPEN: c_int = 2;
const DO_CHDIR: c_int = 3;
const DO_FCHDIR: c_int = 4;
const DO_CLOSEFROM: c_int = 5;
const DO_TCSETPGRP: c_int = 6;

impl SpawnAction {
    /// The path of [`DO_CHDIR`], which lies where other actions have their descriptors.
    fn directory(&self) -> *const c_char {
        let low = u64::from(self.fd.cast_unsigned());
        let high = u64::from(self.new_fd.cast_unsigned());
        std::ptr::with_exposed_provenance((low | high << 32) as usize)
    }

    /// Whether libc could not do it.
    fn concerns_store(&self) -> bool {
        match self.tag {
            DO_CLOSE | DO_FCHDIR | DO_TCSETPGRP => table::has(self.fd),
            DO_DUP2 => table::has(self.fd) || table::has(self.new_fd),
            DO_OPEN => table::has(self.fd) || is_in_store(self.path),
            DO_CHDIR => cwd::is_inside() || is_in_store(self.directory()),
            _ => table::each_from(0).next().is_some(),
        }
    }

    /// Does it, in the child.
    fn run(&self) -> Result<(), Errno> {
        let outcome = match self.tag {
            // A number that is not open is no error here (POSIX).
            DO_CLOSE => {
                close(self.fd);
                0
            }
            DO_DUP2 if self.fd == self.new_fd => clear_close_on_exec(self.fd),
            DO_DUP2 => dup2(self.fd, self.new_fd),
            DO_OPEN => return self.run_open(),
            DO_CHDIR => chdir(self.directory()),
            DO_FCHDIR => fchdir(self.fd),
            DO_CLOSEFROM => {
                closefrom(self.fd);
                0
            }
            DO_TCSETPGRP => {
                // SAFETY: any number may be given.
                unsafe { libc::tcsetpgrp(self.fd, libc::getpgrp()) }
            }
            _ => return Err(Errno::INVAL),
        };
        if outcome < 0 { Err(Errno::from_raw_os_error(errno())) } else { Ok(()) }
    }

    fn run_open(&self) -> Result<(), Errno> {
        close(self.fd);
        let fd = open(self.path, self.flags, self.mode);
        if fd < 0 {
            return Err(Errno::from_raw_os_error(errno()));
        }
        if fd != self.fd {
            if dup2(fd, self.fd) < 0 {
                return Err(Errno::from_raw_os_error(errno()));
            }
            close(fd);
        }
        Ok(())
    }
}

fn clear_close_on_exec(fd: c_int) -> c_int {
    crate::hooks::descriptors::fcntl(fd, libc::F_SETFD, 0)
}

fn is_in_store(path: *const c_char) -> bool {
    let mut room = PathRoom::new();
    matches!(classify(AT_FDCWD, path, &mut room), PathRoute::Store(_))
}

fn actions<'a>(list: *const posix_spawn_file_actions_t) -> &'a [SpawnAction] {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct SpawnHead {
        allocated: c_int,
        used: c_int,
        actions: *const SpawnAction,
    }
    foreign::get(list.cast::<SpawnHead>())
        .and_then(|head| foreign::array(head.actions, head.used).ok())
        .unwrap_or(&[])
}

struct SpawnRequest<'a> {
    path: *const c_char,
    along_path: bool,
    actions: &'a [SpawnAction],
    attributes: *const posix_spawnattr_t,
    arguments: *const *const c_char,
    environment: *const *const c_char,
}

impl SpawnRequest<'_> {
    fn concerns_store(&self) -> bool {
        self.actions.iter().any(SpawnAction::concerns_store)
            || (!self.along_path && is_in_store(self.path))
    }

    /// `fork`, the actions, `exec`. The error that the child met, or its process id.
    fn run(&self) -> Result<pid_t, Errno> {
        let (reader, low) = pipe_with(PipeFlags::CLOEXEC)?;
        let writer = rustix::io::fcntl_dupfd_cloexec(&low, ERROR_PIPE_FLOOR)?;
        drop(low);
        // SAFETY: the child runs hooks only, all of which may run after fork.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(Errno::from_raw_os_error(errno()));
        }
        if child == 0 {
            let failed = self.become_child();
            // The parent takes the end of the pipe for success, and then reads the exit status.
            let _ = rustix::io::write(writer.as_fd(), &failed.raw_os_error().to_ne_bytes());
            _exit(EXIT_NOT_RUN);
        }
        drop(writer);
        match read_error(&reader) {
            None => Ok(child),
            Some(failed) => {
                // SAFETY: the child is ours, and is ending.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                Err(failed)
            }
        }
    }

    fn become_child(&self) -> Errno {
        if let Err(failed) = self.set_attributes() {
            return failed;
        }
        for action in self.actions {
            if let Err(failed) = action.run() {
                return failed;
            }
        }
        if self.along_path {
            execvpe(self.path, self.arguments, self.environment);
        } else {
            execve(self.path, self.arguments, self.environment);
        }
        Errno::from_raw_os_error(errno())
    }

    fn set_attributes(&self) -> Result<(), Errno> {
        if self.attributes.is_null() {
            return Ok(());
        }
        // SAFETY: the program vouches for its attributes; the structures filled here are numbers.
        unsafe {
            let mut flags: c_short = 0;
            libc::posix_spawnattr_getflags(self.attributes, &raw mut flags);
            let has = |flag: c_int| c_int::from(flags) & flag != 0;
            if has(libc::POSIX_SPAWN_SETSIGDEF) {
                self.reset_signals();
            }
            if has(libc::POSIX_SPAWN_SETSCHEDULER) || has(libc::POSIX_SPAWN_SETSCHEDPARAM) {
                return Err(Errno::NOSYS);
            }
            if has(POSIX_SPAWN_SETSID) && libc::setsid() < 0 {
                return Err(Errno::from_raw_os_error(errno()));
            }
            if has(libc::POSIX_SPAWN_SETPGROUP) {
                let mut group = 0;
                libc::posix_spawnattr_getpgroup(self.attributes, &raw mut group);
                if libc::setpgid(0, group) < 0 {
                    return Err(Errno::from_raw_os_error(errno()));
                }
            }
            if has(libc::POSIX_SPAWN_RESETIDS)
                && (libc::setegid(libc::getgid()) < 0 || libc::seteuid(libc::getuid()) < 0)
            {
                return Err(Errno::from_raw_os_error(errno()));
            }
            if has(libc::POSIX_SPAWN_SETSIGMASK) {
                let mut mask = std::mem::zeroed();
                libc::posix_spawnattr_getsigmask(self.attributes, &raw mut mask);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            }
        }
        Ok(())
    }

    /// Gives the signals that the program asks for their default action.
    fn reset_signals(&self) {
        const SIGNALS: c_int = 64;
        // SAFETY: as in `set_attributes`.
        unsafe {
            let mut defaults = std::mem::zeroed();
            libc::posix_spawnattr_getsigdefault(self.attributes, &raw mut defaults);
            for signal in 1..=SIGNALS {
                if libc::sigismember(&raw const defaults, signal) == 1 {
                    libc::signal(signal, libc::SIG_DFL);
                }
            }
        }
    }
}

const POSIX_SPAWN_SETSID: c_int = 0x80;

fn read_error(pipe: &OwnedFd) -> Option<Errno> {
    let mut raw = [0; 4];
    loop {
        match rustix::io::read(pipe, &mut raw) {
            Ok(4) => return Some(Errno::from_raw_os_error(i32::from_ne_bytes(raw))),
            Err(Errno::INTR) => {}
            _ => return None,
        }
    }
}

/// Whether a child must be told anything of the store.
fn has_something_to_hand_on() -> bool {
    cwd::is_inside() || table::each_from(0).next().is_some()
}

fn spawn(
    spawn: &SpawnRequest<'_>,
    child: *mut pid_t,
    real: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    if !spawn.concerns_store() {
        unreached::tell(spawn.path, spawn.arguments, spawn.environment);
        if has_something_to_hand_on() {
            prepare_child();
        }
        return real(ProgramEnvironment::new(spawn.environment).as_ptr());
    }
    match spawn.run() {
        Ok(pid) => {
            if !child.is_null() {
                // A pid that cannot be stored is no reason to fail; null means that the program does not want it.
                let _ = foreign::put(child, pid);
            }
            0
        }
        Err(failed) => failed.raw_os_error(),
    }
}

/// Runs a function of libc that starts a shell with the process's own environment.
fn with_environment<T>(run: impl FnOnce() -> T) -> T {
    if !has_something_to_hand_on() {
        return run();
    }
    prepare_child();
    let before = exec::current();
    let environment = ProgramEnvironment::new(before);
    exec::set_current(environment.as_ptr());
    let outcome = run();
    exec::set_current(before);
    outcome
}

hooks! {
    fn posix_spawn(
        child: *mut pid_t, path: *const c_char, list: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *const c_char, environment: *const *const c_char,
    ) -> c_int {
        let asked = SpawnRequest { path, along_path: false, actions: actions(list), attributes, arguments, environment };
        spawn(&asked, child, |environment| real(child, path, list, attributes, arguments, environment))
    }

    fn posix_spawnp(
        child: *mut pid_t, file: *const c_char, list: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *const c_char, environment: *const *const c_char,
    ) -> c_int {
        let asked = SpawnRequest { path: file, along_path: true, actions: actions(list), attributes, arguments, environment };
        spawn(&asked, child, |environment| real(child, file, list, attributes, arguments, environment))
    }

    // A child of vfork uses its parent's memory, and with it this library's tables. POSIX lets
    // vfork be fork. And a child of _Fork runs no handlers, so its locks would stay as they are.
    fn vfork = __vfork = _Fork () -> pid_t {
        // SAFETY: fork has no precondition of its own.
        unsafe { libc::fork() }
    }

    fn daemon(stay: c_int, keep_streams: c_int) -> c_int {
        let outcome = real(stay, keep_streams);
        if outcome == 0 && keep_streams == 0 {
            // libc sent the standard descriptors to /dev/null with its own dup2.
            for fd in 0..=2 {
                drop(table::remove(fd));
            }
        }
        if outcome == 0 && stay == 0 {
            cwd::leave_store();
        }
        outcome
    }

    fn login_tty(fd: c_int) -> c_int {
        let outcome = real(fd);
        if outcome == 0 {
            // As in `daemon`.
            for fd in 0..=2 {
                drop(table::remove(fd));
            }
        }
        outcome
    }

    fn forkpty(terminal: *mut c_int, name: *mut c_char, how: *const c_void, size: *const c_void) -> pid_t {
        let child = real(terminal, name, how, size);
        if child == 0 {
            for fd in 0..=2 {
                drop(table::remove(fd));
            }
        }
        child
    }

    fn system(command: *const c_char) -> c_int {
        with_environment(|| real(command))
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        with_environment(|| real(command, mode))
    }
}
