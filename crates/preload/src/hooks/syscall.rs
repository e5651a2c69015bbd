//! `syscall`: some programs (libuv, Java's own library) make system calls by number where older libcs have no function.

use std::ffi::{c_int, c_long, c_uint};

use crate::hook::hooks;
use crate::hooks::{copy, descriptors, exec, names, open, reading, space, status};

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
            libc::SYS_fallocate => space::fallocate(to(a), to(b), c, d).into(),
            libc::SYS_ftruncate => space::ftruncate(to(a), b).into(),
            libc::SYS_execve => exec::execve(to(a), to(b), to(c)).into(),
            libc::SYS_execveat => exec::execveat(to(a), to(b), to(c), to(d), to(e)).into(),
            _ => real(number, a, b, c, d, e, f),
        }
    }
}
