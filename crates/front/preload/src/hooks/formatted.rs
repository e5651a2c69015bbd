//! `dprintf`, `wprintf` and their kin: libc formats, and the text goes through the hooks.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, size_t, wchar_t};

use crate::hook::hooks;
use crate::hooks::reading::write;
use crate::hooks::stdio::{is_ours, standard_output};
use crate::hooks::wide::fputws;
use crate::real::errno;
use crate::table;

unsafe extern "C" {
    fn open_wmemstream(text: *mut *mut wchar_t, len: *mut size_t) -> *mut FILE;
    /// `arguments` is a `va_list`, which both platforms hand on as a pointer.
    fn vasprintf(out: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: the program vouches for its format and arguments; libc makes the text.
    let len = unsafe { vasprintf(&raw mut text, format, arguments) };
    let Ok(whole) = usize::try_from(len) else { return -1 };
    let mut done = 0;
    while done < whole {
        // SAFETY: libc's text has `whole` bytes.
        let written = write(fd, unsafe { text.add(done) }.cast(), whole - done);
        match usize::try_from(written) {
            Ok(written @ 1..) => done += written,
            _ if written < 0 && errno() == libc::EINTR => {}
            _ => break,
        }
    }
    // SAFETY: from libc's malloc, and not used again.
    unsafe { libc::free(text.cast()) };
    if done == whole { len } else { -1 }
}

/// Wide characters to a stream: libc makes them in memory.
fn print_wide(stream: *mut FILE, make: impl FnOnce(*mut FILE) -> c_int) -> c_int {
    let (mut text, mut len): (*mut wchar_t, size_t) = (std::ptr::null_mut(), 0);
    // SAFETY: both places live until the memory stream is closed.
    let memory = unsafe { open_wmemstream(&raw mut text, &raw mut len) };
    if memory.is_null() {
        return -1;
    }
    let made = make(memory);
    // SAFETY: opened above; closing it makes the text, which is libc's malloc's.
    unsafe {
        libc::fclose(memory);
        let written = if made < 0 { -1 } else { fputws(text, stream) };
        libc::free(text.cast());
        if written < 0 { -1 } else { made }
    }
}

hooks! {
    fn vfwprintf(stream: *mut FILE, format: *const wchar_t, arguments: *mut c_void) -> c_int {
        if is_ours(stream) {
            return print_wide(stream, |memory| real(memory, format, arguments));
        }
        real(stream, format, arguments)
    }

    fn __vfwprintf_chk(stream: *mut FILE, flag: c_int, format: *const wchar_t, arguments: *mut c_void) -> c_int {
        if is_ours(stream) {
            return print_wide(stream, |memory| real(memory, flag, format, arguments));
        }
        real(stream, flag, format, arguments)
    }

    fn vwprintf(format: *const wchar_t, arguments: *mut c_void) -> c_int {
        vfwprintf(standard_output(), format, arguments)
    }

    fn __vwprintf_chk(flag: c_int, format: *const wchar_t, arguments: *mut c_void) -> c_int {
        __vfwprintf_chk(standard_output(), flag, format, arguments)
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if table::has(fd) { print(fd, format, arguments) } else { real(fd, format, arguments) }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if table::has(fd) { print(fd, format, arguments) } else { real(fd, flag, format, arguments) }
    }
}

// Variadic functions cannot be written in Rust. These make the `va_list` that C's `va_start` would,
// from all registers that can carry arguments and the stack. `named` is how many arguments come
// before the variable ones.
macro_rules! variadic_entry {
    ($name:ident, $hook:ident, $named:literal, $x86:literal, $arm:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub rsp, 216",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "movups [rsp + 48], xmm0",
                "movups [rsp + 64], xmm1",
                "movups [rsp + 80], xmm2",
                "movups [rsp + 96], xmm3",
                "movups [rsp + 112], xmm4",
                "movups [rsp + 128], xmm5",
                "movups [rsp + 144], xmm6",
                "movups [rsp + 160], xmm7",
                "mov dword ptr [rsp + 176], {used}",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 184], rax",
                "mov rax, rsp",
                "mov [rsp + 192], rax",
                concat!("lea ", $x86, ", [rsp + 176]"),
                "call {hook}",
                "add rsp, 216",
                "ret",
                used = const $named * 8,
                hook = sym $hook,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub sp, sp, 240",
                "str x30, [sp, 224]",
                "stp x0, x1, [sp, 32]",
                "stp x2, x3, [sp, 48]",
                "stp x4, x5, [sp, 64]",
                "stp x6, x7, [sp, 80]",
                "stp q0, q1, [sp, 96]",
                "stp q2, q3, [sp, 128]",
                "stp q4, q5, [sp, 160]",
                "stp q6, q7, [sp, 192]",
                "add x9, sp, 240",
                "str x9, [sp]",
                "add x9, sp, 96",
                "str x9, [sp, 8]",
                "add x9, sp, 224",
                "str x9, [sp, 16]",
                "mov w9, {left}",
                "str w9, [sp, 24]",
                "mov w9, -128",
                "str w9, [sp, 28]",
                concat!("mov ", $arm, ", sp"),
                "bl {hook}",
                "ldr x30, [sp, 224]",
                "add sp, sp, 240",
                "ret",
                left = const -(8 - $named) * 8,
                hook = sym $hook,
            )
        }
    };
}

variadic_entry!(wprintf, vwprintf, 1, "rsi", "x1");
variadic_entry!(__wprintf_chk, __vwprintf_chk, 2, "rdx", "x2");
variadic_entry!(fwprintf, vfwprintf, 2, "rdx", "x2");
variadic_entry!(__fwprintf_chk, __vfwprintf_chk, 3, "rcx", "x3");
variadic_entry!(dprintf, vdprintf, 2, "rdx", "x2");
variadic_entry!(__dprintf_chk, __vdprintf_chk, 3, "rcx", "x3");
