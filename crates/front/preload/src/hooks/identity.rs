//! User and groups of the program: libc changes them, and this library reads them again afterwards.

use std::ffi::{c_int, c_void};

use libc::{gid_t, mode_t, size_t, uid_t};

use crate::hook::hooks;
use crate::real::NextSymbol;
use crate::store;

fn changed<T>(outcome: T) -> T {
    store::identity_changed();
    outcome
}

/// User and group of the calling thread for files.
pub fn file_system_ids() -> (u32, u32) {
    static USER: NextSymbol = NextSymbol::new(c"setfsuid");
    static GROUP: NextSymbol = NextSymbol::new(c"setfsgid");
    type Set = extern "C" fn(u32) -> c_int;
    // An id that is none changes nothing; the answer is the one that is set.
    let ask = |symbol: &NextSymbol| {
        // SAFETY: both symbols have this signature in libc.
        let set = unsafe { std::mem::transmute::<*mut c_void, Set>(symbol.address()) };
        set(u32::MAX).cast_unsigned()
    };
    (ask(&USER), ask(&GROUP))
}

hooks! {
    fn umask(mask: mode_t) -> mode_t {
        store::set_umask(mask);
        real(mask)
    }

    fn setuid(uid: uid_t) -> c_int { changed(real(uid)) }

    fn seteuid(uid: uid_t) -> c_int { changed(real(uid)) }

    fn setreuid(ruid: uid_t, euid: uid_t) -> c_int { changed(real(ruid, euid)) }

    fn setresuid(ruid: uid_t, euid: uid_t, suid: uid_t) -> c_int { changed(real(ruid, euid, suid)) }

    fn setfsuid(uid: uid_t) -> c_int {
        store::identity_is_the_threads_own();
        real(uid)
    }

    fn setgid(gid: gid_t) -> c_int { changed(real(gid)) }

    fn setegid(gid: gid_t) -> c_int { changed(real(gid)) }

    fn setregid(rgid: gid_t, egid: gid_t) -> c_int { changed(real(rgid, egid)) }

    fn setresgid(rgid: gid_t, egid: gid_t, sgid: gid_t) -> c_int { changed(real(rgid, egid, sgid)) }

    fn setfsgid(gid: gid_t) -> c_int {
        store::identity_is_the_threads_own();
        real(gid)
    }

    fn setgroups(count: size_t, groups: *const gid_t) -> c_int { changed(real(count, groups)) }

    fn initgroups(user: *const std::ffi::c_char, group: gid_t) -> c_int { changed(real(user, group)) }
}
