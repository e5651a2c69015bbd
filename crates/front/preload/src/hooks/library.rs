//! `dlopen` of a library that lies in the store: the loader maps files of the kernel's only, so it is copied to memory first.

use std::ffi::{CString, c_char, c_void};

use libc::AT_FDCWD;
use samite_fs::OpenFlags;

use crate::hook::attempt;
use crate::hooks::program::{MemoryFile, copy_to_memory};
use crate::path_class::classify;
use crate::real::NextSymbol;
use crate::store_location::{PathRoom, PathRoute};
use crate::{foreign, store};

/// The function with which `dlopen` goes on.
#[repr(C)]
struct DlopenStep {
    path: *const c_char,
    function: *mut c_void,
}

/// Decides for the entry point below.
extern "C" fn choose(path: *const c_char) -> DlopenStep {
    static NEXT: NextSymbol = NextSymbol::new(c"dlopen");
    // A bare name is looked up along the loader's own path.
    let is_path = foreign::text(path).is_ok_and(|path| path.contains(&b'/'));
    let copy = if is_path { to_memory(path) } else { None };
    // For what cannot be copied, the loader says what it says of a file that is not there. A copy's name lives as long as
    // the copy, which is as long as the process.
    let path = copy.map_or(path, |copy| copy.into_raw().cast_const());
    DlopenStep { path, function: NEXT.address() }
}

/// A path to a copy of a library of the store; `None`: it is not one, or cannot be read.
fn to_memory(path: *const c_char) -> Option<CString> {
    let mut room = PathRoom::new();
    let PathRoute::Store(place) = classify(AT_FDCWD, path, &mut room) else { return None };
    let copy = attempt(|| {
        let at = place.at()?;
        let file = store::call_as(|fs, caller| fs.open_file(caller, at, OpenFlags::reading(), 0))?;
        copy_to_memory(&file)
    });
    // The loader tells libraries apart by path and inode, so each copy keeps its number.
    copy.ok().map(MemoryFile::keep)
}

// The loader looks a name up along the search path of the library that called `dlopen`, which it knows by the return
// address. So libc's function must be jumped to, not called.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn dlopen() {
    std::arch::naked_asm!(
        "sub rsp, 24",
        "mov [rsp], rsi",
        "call {choose}",
        "mov rsi, [rsp]",
        "add rsp, 24",
        "mov rdi, rax",
        "jmp rdx",
        choose = sym choose,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn dlopen() {
    std::arch::naked_asm!(
        "stp x30, x1, [sp, -16]!",
        "bl {choose}",
        "mov x16, x1",
        "ldp x30, x1, [sp], 16",
        "br x16",
        choose = sym choose,
    )
}
