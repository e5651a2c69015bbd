//! User and groups of the program: libc changes them, and this library reads them again afterwards.

use std::ffi::c_int;

use libc::{gid_t, mode_t, size_t, uid_t};

use crate::caller;
use crate::hook::hooks;

fn changed<T>(outcome: T) -> T {
    caller::identity_changed();
    outcome
}

hooks! {
    fn umask(mask: mode_t) -> mode_t {
        caller::set_umask(mask);
        real(mask)
    }

    fn setuid(uid: uid_t) -> c_int { changed(real(uid)) }

    fn seteuid(uid: uid_t) -> c_int { changed(real(uid)) }

    fn setreuid(ruid: uid_t, euid: uid_t) -> c_int { changed(real(ruid, euid)) }

    fn setresuid(ruid: uid_t, euid: uid_t, suid: uid_t) -> c_int { changed(real(ruid, euid, suid)) }

    fn setfsuid(uid: uid_t) -> c_int {
        caller::identity_is_the_threads_own();
        real(uid)
    }

    fn setgid(gid: gid_t) -> c_int { changed(real(gid)) }

    fn setegid(gid: gid_t) -> c_int { changed(real(gid)) }

    fn setregid(rgid: gid_t, egid: gid_t) -> c_int { changed(real(rgid, egid)) }

    fn setresgid(rgid: gid_t, egid: gid_t, sgid: gid_t) -> c_int { changed(real(rgid, egid, sgid)) }

    fn setfsgid(gid: gid_t) -> c_int {
        caller::identity_is_the_threads_own();
        real(gid)
    }

    fn setgroups(count: size_t, groups: *const gid_t) -> c_int { changed(real(count, groups)) }

    fn initgroups(user: *const std::ffi::c_char, group: gid_t) -> c_int { changed(real(user, group)) }
}
