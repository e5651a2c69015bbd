//! Start of the library in a process: what it inherits over `exec`, and that it hears of forks.

use std::ffi::{c_char, c_int, c_void};

use rustix::io::Errno;

use crate::hooks::stdio;
use crate::session::SlotId;
use crate::start_environment::{self, StartEnvironment};
use crate::table::DescriptionUse;
use crate::{cwd, fork_lock, hook, locks, mapped, mount_prefix, session, store, table};

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
        let environment = StartEnvironment::take(envp);
        mount_prefix::set_prefix(environment.mount);
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
        start_environment::keep(environment.lasting);
    });
}

/// Takes over the open files of the program before `exec`.
fn inherit(list: &[u8]) {
    const SESSIONS: usize = session::SESSIONS_MAX;
    // Number of a session there → its number here.
    let mut sessions: [Option<u32>; SESSIONS] = [None; SESSIONS];
    let mut known: Vec<(SlotId, DescriptionUse)> = Vec::new();
    for (fd, there, keep_alive) in list.split(|byte| *byte == b',').filter_map(parse) {
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
            open.locks.inherit(keep_alive);
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

/// `fd:session.slot.keep_alive`: the last one is the keep-alive socket.
fn parse(entry: &[u8]) -> Option<(c_int, SlotId, c_int)> {
    let text = std::str::from_utf8(entry).ok()?;
    let (fd, rest) = text.split_once(':')?;
    let (session, rest) = rest.split_once('.')?;
    let (slot, keep_alive) = rest.split_once('.')?;
    let id = SlotId { session: session.parse().ok()?, slot: slot.parse().ok()? };
    Some((fd.parse().ok()?, id, keep_alive.parse().ok()?))
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
