//! `syscall`: some programs (libuv, Java's own library) make system calls by number where older libcs have no function.

use std::ffi::{c_int, c_long, c_uint};

use crate::caller;
use crate::hook::hooks;
use crate::hooks::{
    copy, descriptors, directories, exec, exit, kernel_aio, locks, names, open, reading, space,
    splice, status,
};

/// An argument as the type that the function takes. All arguments travel in whole registers.
trait Argument {
    fn from_register(raw: c_long) -> Self;
}

impl<T> Argument for *const T {
    fn from_register(raw: c_long) -> Self {
        std::ptr::with_exposed_provenance(raw.cast_unsigned() as usize)
    }
}

impl<T> Argument for *mut T {
    fn from_register(raw: c_long) -> Self {
        std::ptr::with_exposed_provenance_mut(raw.cast_unsigned() as usize)
    }
}

impl Argument for c_int {
    fn from_register(raw: c_long) -> Self {
        // The kernel, too, looks at the lower half.
        raw as Self
    }
}

impl Argument for c_uint {
    fn from_register(raw: c_long) -> Self {
        raw as Self
    }
}

impl Argument for c_long {
    fn from_register(raw: c_long) -> Self {
        raw
    }
}

impl Argument for usize {
    fn from_register(raw: c_long) -> Self {
        raw.cast_unsigned() as Self
    }
}

fn to<T: Argument>(raw: c_long) -> T {
    T::from_register(raw)
}

hooks! {
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        match number {
            libc::SYS_openat => open::openat(to(a), to(b), to(c), to(d)).into(),
            libc::SYS_close => descriptors::close(to(a)).into(),
            libc::SYS_close_range => descriptors::close_range(to(a), to(b), to(c)).into(),
            libc::SYS_dup3 => descriptors::dup3(to(a), to(b), to(c)).into(),
            libc::SYS_read => reading::read(to(a), to(b), to(c)) as c_long,
            libc::SYS_write => reading::write(to(a), to(b), to(c)) as c_long,
            libc::SYS_pread64 => reading::pread(to(a), to(b), to(c), d) as c_long,
            libc::SYS_pwrite64 => reading::pwrite(to(a), to(b), to(c), d) as c_long,
            libc::SYS_preadv2 => reading::preadv2(to(a), to(b), to(c), d, to(f)) as c_long,
            libc::SYS_pwritev2 => reading::pwritev2(to(a), to(b), to(c), d, to(f)) as c_long,
            libc::SYS_statx => status::statx(to(a), to(b), to(c), to(d), to(e)).into(),
            libc::SYS_newfstatat => status::fstatat(to(a), to(b), to(c), to(d)).into(),
            libc::SYS_faccessat2 => status::faccessat(to(a), to(b), to(c), to(d)).into(),
            libc::SYS_renameat2 => names::renameat2(to(a), to(b), to(c), to(d), to(e)).into(),
            libc::SYS_unlinkat => names::unlinkat(to(a), to(b), to(c)).into(),
            libc::SYS_mkdirat => names::mkdirat(to(a), to(b), to(c)).into(),
            libc::SYS_readlinkat => names::readlinkat(to(a), to(b), to(c), to(d)) as c_long,
            libc::SYS_copy_file_range => {
                copy::copy_file_range(to(a), to(b), to(c), to(d), to(e), to(f)) as c_long
            }
            libc::SYS_splice => splice::splice(to(a), to(b), to(c), to(d), to(e), to(f)) as c_long,
            libc::SYS_sendfile => copy::sendfile(to(a), to(b), to(c), to(d)) as c_long,
            libc::SYS_fallocate => space::fallocate(to(a), to(b), c, d).into(),
            libc::SYS_ftruncate => space::ftruncate(to(a), b).into(),
            libc::SYS_io_submit => {
                let kernel = |count, requests: *const *mut kernel_aio::KernelRequest| real(number, a, count, requests.addr() as c_long, d, e, f);
                kernel_aio::submit_by_number((to(a), b, to(c)), kernel).unwrap_or_else(|| real(number, a, b, c, d, e, f))
            }
            libc::SYS_io_getevents => {
                let kernel = |least, count, out: *mut kernel_aio::KernelEvent, timeout: *mut libc::timespec| {
                    real(number, a, least, count, out.addr() as c_long, timeout.addr() as c_long, f)
                };
                kernel_aio::events_by_number((to(a), b, c), (to(d), to(e)), kernel)
                    .unwrap_or_else(|| real(number, a, b, c, d, e, f))
            }
            libc::SYS_getdents64 => directories::getdents64(to(a), to(b), to(c)) as c_long,
            libc::SYS_openat2 => open::openat2(to(a), to(b), to(c), to(d), || real(number, a, b, c, d, e, f)),
            libc::SYS_fcntl => descriptors::fcntl(to(a), to(b), c.cast_unsigned()).into(),
            libc::SYS_flock => locks::flock(to(a), to(b)).into(),
            libc::SYS_lseek => reading::lseek(to(a), b, to(c)),
            libc::SYS_readv => reading::readv(to(a), to(b), to(c)) as c_long,
            libc::SYS_writev => reading::writev(to(a), to(b), to(c)) as c_long,
            libc::SYS_fstat => status::fstat(to(a), to(b)).into(),
            libc::SYS_fsync => space::fsync(to(a)).into(),
            libc::SYS_fdatasync => space::fdatasync(to(a)).into(),
            libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setfsuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups => {
                caller::identity_is_the_threads_own();
                real(number, a, b, c, d, e, f)
            }
            libc::SYS_exit_group => {
                exit::_exit(to(a));
                0
            }
            libc::SYS_execve => exec::execve(to(a), to(b), to(c)).into(),
            libc::SYS_execveat => exec::execveat(to(a), to(b), to(c), to(d), to(e)).into(),
            _ => real(number, a, b, c, d, e, f),
        }
    }
}
