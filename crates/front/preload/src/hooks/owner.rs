//! Commands of `fcntl` about the process that is told of a file by signals: their values are kept,
//! as the kernel keeps them for any file, and without effect, as nothing ever happens to a regular
//! file that its owner would be told of. Leases are refused, as on other file systems over a
//! network.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::c_ulong;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};

use crate::foreign;
use crate::table::OpenDescription;

const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

const PROCESS: c_int = 1;
const GROUP: c_int = 2;
const SIGNALS: c_int = 64;

/// `struct f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Owner {
    kind: c_int,
    number: c_int,
}

fn set(open: &OpenDescription, owner: Owner) -> Result<c_int, Errno> {
    let known = match Pid::from_raw(owner.number.max(0)) {
        None if owner.number < 0 => Err(Errno::SRCH),
        None => Ok(()),
        Some(group) if owner.kind == GROUP => test_kill_process_group(group),
        Some(process) => test_kill_process(process),
    };
    if matches!(known, Err(Errno::SRCH)) {
        return Err(Errno::SRCH);
    }
    let slot = open.slot();
    slot.owner_kind.store(owner.kind.cast_unsigned(), Ordering::Relaxed);
    slot.owner.store(owner.number.cast_unsigned(), Ordering::Relaxed);
    Ok(0)
}

fn get(open: &OpenDescription) -> Owner {
    let slot = open.slot();
    let kind = slot.owner_kind.load(Ordering::Relaxed).cast_signed();
    Owner { kind, number: slot.owner.load(Ordering::Relaxed).cast_signed() }
}

/// Commands that are not about descriptors as such.
pub fn control(open: &OpenDescription, command: c_int, argument: c_ulong) -> Result<c_int, Errno> {
    // The kernel, too, looks at the lower half.
    let number = argument as c_int;
    let structure = std::ptr::with_exposed_provenance_mut::<Owner>(argument as usize);
    match command {
        libc::F_SETOWN if number == c_int::MIN => Err(Errno::INVAL),
        libc::F_SETOWN if number < 0 => set(open, Owner { kind: GROUP, number: -number }),
        libc::F_SETOWN => set(open, Owner { kind: PROCESS, number }),
        libc::F_GETOWN => {
            let owner = get(open);
            Ok(if owner.kind == GROUP { -owner.number } else { owner.number })
        }
        F_SETOWN_EX => {
            let owner = foreign::get(structure.cast_const()).ok_or(Errno::FAULT)?;
            if (0..=GROUP).contains(&owner.kind) { set(open, owner) } else { Err(Errno::INVAL) }
        }
        F_GETOWN_EX => foreign::put(structure, get(open)).map(|()| 0),
        F_SETSIG if !(0..=SIGNALS).contains(&number) => Err(Errno::INVAL),
        F_SETSIG => {
            open.slot().signal.store(number.cast_unsigned(), Ordering::Relaxed);
            Ok(0)
        }
        F_GETSIG => Ok(open.slot().signal.load(Ordering::Relaxed).cast_signed()),
        libc::F_GETLEASE => Ok(libc::F_UNLCK),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => Err(Errno::BADF),
        _ => Err(Errno::INVAL),
    }
}
