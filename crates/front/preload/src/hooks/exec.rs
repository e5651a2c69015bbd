//! `exec`: open files of the store, the working directory and this library go on into the next program.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Write;
use std::sync::atomic::Ordering;

use libc::AT_FDCWD;
use rustix::io::Errno;

use crate::hook::{attempt, hooks};
use crate::hooks::program::{self, ProgramFile};
use crate::hooks::space::settle_all;
use crate::hooks::unreached;
use crate::path_class::classify;
use crate::real::set_errno;
use crate::start_environment::{self, CWD, FDS, LOCKS};
use crate::store_location::{PathRoom, PathRoute, way_out};
use crate::{cwd, hook, locks, raw, store, table};

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// An environment for the next program: the program's own, and what this library needs there.
pub struct ProgramEnvironment {
    pointers: Vec<*const c_char>,
    /// Strings that `pointers` leads to.
    made: Vec<CString>,
}

impl ProgramEnvironment {
    /// From the environment that the program gives, null for none.
    pub fn new(given: *const *const c_char) -> Self {
        let mut environment = Self { pointers: Vec::new(), made: Vec::new() };
        let lasting = start_environment::lasting();
        let mut missing: Vec<&CStr> =
            lasting.map(|lasting| lasting.variables.clone()).unwrap_or_default();
        let mut library = lasting.and_then(|lasting| lasting.library);
        for entry in strings(given) {
            let bytes = entry.to_bytes();
            if [FDS, CWD, LOCKS].iter().any(|ours| bytes.starts_with(ours)) {
                continue;
            }
            if let (Some(list), Some(ours)) = (bytes.strip_prefix(PRELOAD), library) {
                library = None;
                if !list.windows(ours.len()).any(|part| part == ours) {
                    environment.add(&[PRELOAD, ours, b":", list]);
                    continue;
                }
            }
            missing.retain(|kept| name(kept.to_bytes()) != name(bytes));
            environment.pointers.push(entry.as_ptr());
        }
        environment.pointers.extend(missing.iter().map(|kept| kept.as_ptr()));
        if let Some(ours) = library {
            environment.add(&[PRELOAD, ours]);
        }
        if let Some(list) = inherited_list() {
            environment.add(&[FDS, list.as_bytes()]);
        }
        if cwd::is_inside() {
            environment.add(&[CWD, &cwd::path()]);
        }
        environment.pointers.push(std::ptr::null());
        environment
    }

    /// The next program is this process: it goes on with the process's locks.
    fn hand_on_locks(&mut self) {
        if let Some(text) = locks::hand_on() {
            self.pointers.pop();
            self.add(&[LOCKS, text.as_bytes()]);
            self.pointers.push(std::ptr::null());
        }
    }

    fn add(&mut self, parts: &[&[u8]]) {
        // No part has a NUL: they come from C strings, paths and numbers.
        if let Ok(entry) = CString::new(parts.concat()) {
            self.pointers.push(entry.as_ptr());
            self.made.push(entry);
        }
    }

    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

fn name(entry: &[u8]) -> &[u8] {
    entry.split(|byte| *byte == b'=').next().unwrap_or(entry)
}

/// The strings of a null-terminated array of the program's.
pub fn strings<'a>(array: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    let mut next = array;
    std::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the program vouches for its array, which ends with null.
        let entry = unsafe { *next };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above; this was not the end.
        next = unsafe { next.add(1) };
        // SAFETY: as above; the entries are strings.
        Some(unsafe { CStr::from_ptr(entry) })
    })
}

/// `fd:session.slot.keep_alive,…`, with the keep-alive socket last, of every open file that
/// survives;
/// `None` when there is none.
fn inherited_list() -> Option<String> {
    let mut list = String::new();
    for (fd, open) in table::each_from(0) {
        if open.slot().state().is_some() && !raw::closes_on_exec(fd) {
            let id = table::slot_id(&open);
            // Writing to a String does not fail.
            let line = open.locks.keep_alive_socket();
            let _ = write!(list, "{fd}:{}.{}.{line},", id.session, id.slot);
        }
    }
    (!list.is_empty()).then_some(list)
}

/// Before this process becomes another program: that one finds everything described and settled.
fn prepare() {
    // A failure here shows in the next program as EBADF; the exec itself goes on.
    let _ = attempt(|| {
        store::flush_at_end();
        table::describe_all();
        let _ = settle_all();
        let_go_of_closing();
        Ok(())
    });
}

/// Descriptions of which no descriptor survives end here.
fn let_go_of_closing() {
    mark_survivors();
    for (_, open) in table::each_from(0) {
        let survives = open.survives.load(Ordering::Relaxed);
        if survives {
            open.share();
        }
        open.locks.set_survives(survives);
        if !survives && !open.is_gone.swap(true, Ordering::Relaxed) {
            locks::process_closes(&open);
            open.let_go_at_exit();
        }
    }
}

/// After an `exec` that failed: as before.
fn take_back() {
    for (_, open) in table::each_from(0) {
        if open.is_gone.swap(false, Ordering::Relaxed) {
            open.slot().open_reference();
        }
        open.locks.set_survives(true);
    }
    locks::take_back();
}

fn mark_survivors() {
    for (_, open) in table::each_from(0) {
        open.survives.store(false, Ordering::Relaxed);
    }
    for (fd, open) in table::each_from(0) {
        if !raw::closes_on_exec(fd) {
            open.survives.store(true, Ordering::Relaxed);
        }
    }
}

/// Before libc makes a child that runs another program at once, without a `fork` that would be seen
/// here: the descriptors that survive are the child's too.
pub fn prepare_child() {
    // As in `prepare`.
    let _ = attempt(|| {
        table::describe_all();
        let _ = settle_all();
        mark_survivors();
        for (_, open) in table::each_from(0) {
            if open.survives.swap(false, Ordering::Relaxed) {
                open.share();
                open.slot().open_reference();
            }
        }
        Ok(())
    });
}

/// libc's function behind the hook that was called.
type Real<'a> = &'a dyn Fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;

/// Longest chain of scripts that run scripts.
const INTERPRETERS_MAX: u32 = 4;

/// Becomes the program at `path`, relative to `dirfd`.
fn become_program(
    (dirfd, path): (c_int, *const c_char),
    arguments: *const *const c_char,
    environment: *const *const c_char,
    depth: u32,
    real: Real<'_>,
) -> c_int {
    let mut room = PathRoom::new();
    let place = match classify(dirfd, path, &mut room) {
        PathRoute::Real => return run(path, arguments, environment, real),
        PathRoute::Elsewhere(path) => return run(path, arguments, environment, real),
        PathRoute::Store(place) => place,
    };
    let program = attempt(|| program::load(&place));
    if let Some(outside) = way_out(&place, &program) {
        return run(outside.as_ptr(), arguments, environment, real);
    }
    match program {
        Ok(ProgramFile::Binary(file)) => run(file.path().as_ptr(), arguments, environment, real),
        Ok(ProgramFile::Script { interpreter, option }) if depth < INTERPRETERS_MAX => {
            let mut new: Vec<*const c_char> = vec![interpreter.as_ptr()];
            new.extend(option.as_ref().map(|option| option.as_ptr()));
            new.push(path);
            new.extend(strings(arguments).skip(1).map(CStr::as_ptr));
            new.push(std::ptr::null());
            let interpreter = (AT_FDCWD, interpreter.as_ptr());
            become_program(interpreter, new.as_ptr(), environment, depth + 1, real)
        }
        Ok(ProgramFile::Script { .. }) => hook::answer(Err(Errno::LOOP)),
        Err(errno) => hook::answer(Err(errno)),
    }
}

fn run(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    real: Real<'_>,
) -> c_int {
    unreached::tell(path, arguments, environment);
    prepare();
    let mut environment = ProgramEnvironment::new(environment);
    environment.hand_on_locks();
    let failed = real(path, arguments, environment.as_ptr());
    take_back();
    failed
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// The program's own environment.
pub fn current() -> *const *const c_char {
    // SAFETY: libc's variable; a program that changes it while another thread runs exec is beyond help.
    unsafe { environ }
}

/// Lets libc see another environment.
pub fn set_current(environment: *const *const c_char) {
    // SAFETY: as above.
    unsafe { environ = environment };
}

/// Where `execvp` looks when there is no `PATH`.
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";

/// `execvp`: the first program of that name along `PATH`, shell scripts without `#!` included.
fn search(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let Ok(name) = crate::foreign::text(file) else { return execve(file, arguments, environment) };
    if name.is_empty() {
        set_errno(libc::ENOENT);
        return -1;
    }
    if name.contains(&b'/') {
        return execute_or_shell(file, arguments, environment);
    }
    let path = strings(current())
        .find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="))
        .unwrap_or(PATH_DEFAULT);
    let mut denied = false;
    for directory in path.split(|byte| *byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        let Ok(candidate) = CString::new([directory, b"/", name].concat()) else { continue };
        execute_or_shell(candidate.as_ptr(), arguments, environment);
        match crate::real::errno() {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return -1,
        }
    }
    set_errno(if denied { libc::EACCES } else { libc::ENOENT });
    -1
}

/// Runs a file; one in no known format is given to the shell, as POSIX asks of `execvp`.
fn execute_or_shell(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let failed = execve(path, arguments, environment);
    if crate::real::errno() != libc::ENOEXEC {
        return failed;
    }
    let shell = c"/bin/sh";
    let mut new: Vec<*const c_char> = vec![shell.as_ptr(), path];
    new.extend(strings(arguments).skip(1).map(CStr::as_ptr));
    new.push(std::ptr::null());
    execve(shell.as_ptr(), new.as_ptr(), environment)
}

/// The arguments that the `execl` entry points gather, from registers and stack.
///
/// `registers` has `count` of them, `stack` the rest; a null ends the list. For `execle`, the environment follows it.
extern "C" fn gather_execl(
    path: *const c_char,
    registers: *const *const c_char,
    stack: *const *const c_char,
    kind: c_int,
) -> c_int {
    const IN_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 5 } else { 7 };
    let argument = |index: usize| {
        // SAFETY: the caller passed arguments up to a null one, which ends the loops below.
        unsafe {
            if index < IN_REGISTERS {
                *registers.add(index)
            } else {
                *stack.add(index - IN_REGISTERS)
            }
        }
    };
    let mut arguments = Vec::new();
    while let next = argument(arguments.len())
        && !next.is_null()
    {
        arguments.push(next);
    }
    let after = arguments.len() + 1;
    arguments.push(std::ptr::null());
    match kind {
        EXECL => execve(path, arguments.as_ptr(), current()),
        EXECLE => execve(path, arguments.as_ptr(), argument(after).cast()),
        _ => search(path, arguments.as_ptr(), current()),
    }
}

const EXECL: c_int = 0;
const EXECLE: c_int = 1;
const EXECLP: c_int = 2;

// Variadic functions cannot be written in Rust. These lay the register arguments out in memory, and hand them on with the
// address of those on the stack.
macro_rules! execl_entry {
    ($name:ident, $kind:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub rsp, 56",
                "mov [rsp], rsi",
                "mov [rsp + 8], rdx",
                "mov [rsp + 16], rcx",
                "mov [rsp + 24], r8",
                "mov [rsp + 32], r9",
                "mov rsi, rsp",
                "lea rdx, [rsp + 64]",
                "mov ecx, {kind}",
                "call {gather}",
                "add rsp, 56",
                "ret",
                kind = const $kind,
                gather = sym gather_execl,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub sp, sp, 80",
                "str x30, [sp, 64]",
                "stp x1, x2, [sp]",
                "stp x3, x4, [sp, 16]",
                "stp x5, x6, [sp, 32]",
                "str x7, [sp, 48]",
                "mov x1, sp",
                "add x2, sp, 80",
                "mov w3, {kind}",
                "bl {gather}",
                "ldr x30, [sp, 64]",
                "add sp, sp, 80",
                "ret",
                kind = const $kind,
                gather = sym gather_execl,
            )
        }
    };
}

execl_entry!(execl, EXECL);
execl_entry!(execle, EXECLE);
execl_entry!(execlp, EXECLP);

hooks! {
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        become_program((AT_FDCWD, path), arguments, environment, 0, &|path, arguments, environment| {
            real(path, arguments, environment)
        })
    }

    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        execve(path, arguments, current())
    }

    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        search(file, arguments, current())
    }

    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        search(file, arguments, environment)
    }

    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        if table::has(fd) {
            return match attempt(|| {
                let open = table::get(fd).ok_or(Errno::BADF)?;
                program::load_open(&open)
            }) {
                Ok(ProgramFile::Binary(file)) => execve(file.path().as_ptr(), arguments, environment),
                Ok(ProgramFile::Script { .. }) => hook::answer(Err(Errno::NOEXEC)),
                Err(failed) => hook::answer(Err(failed)),
            };
        }
        run(std::ptr::null(), arguments, environment, &|_, arguments, environment| real(fd, arguments, environment))
    }

    fn execveat(dirfd: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int {
        if flags & libc::AT_EMPTY_PATH != 0 && crate::foreign::get(path).unwrap_or(0) == 0 {
            return fexecve(dirfd, arguments, environment);
        }
        become_program((dirfd, path), arguments, environment, 0, &|path, arguments, environment| {
            real(dirfd, path, arguments, environment, flags)
        })
    }
}
