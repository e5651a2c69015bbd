//! Which programs a preloaded library does not reach.
//!
//! `samite run` shows the store to a program through the loader, so a program that the loader does
//! not start, or for which it ignores the user's settings, sees nothing of it. Better to say so
//! than to let it fail on a path that is not there.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};

/// Silences the line about programs that do not see the store, when set to anything.
pub const ENV_QUIET: &str = "SAMITE_QUIET";

/// Why a program does not see the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenReason {
    /// Statically linked.
    Static,
    /// Made by Go, which makes its system calls itself.
    Go,
    /// Runs with another user's or group's rights.
    SetId,
    /// For another processor than the library.
    Foreign,
}

impl fmt::Display for HiddenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "is statically linked",
            Self::Go => "is a Go program",
            Self::SetId => "runs with the rights of its owner",
            Self::Foreign => "is for another processor",
        })
    }
}

/// Bytes looked at: the header of a program, and the notes that follow it.
const HEAD_LEN: usize = 8 << 10;
const HEADER_LEN: usize = 64;
const ENTRY_LEN: usize = 56;
const CLASS_64: u8 = 2;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;

/// Why the program at `path` does not see the store; `None`: it does, or it is not a program that can be looked at.
#[must_use]
pub fn hidden(path: &[u8]) -> Option<HiddenReason> {
    let file =
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut head = vec![0; HEAD_LEN];
    let len = rustix::io::read(&file, &mut head).ok()?;
    let head = &head[..len];
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if is_set_id(&file) { Some(HiddenReason::SetId) } else { of_program(head) }
}

fn is_set_id(file: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let is_set = |bit: u32, id: u32, own: u32| stat.st_mode & bit != 0 && id != own;
    is_set(0o4000, stat.st_uid, rustix::process::getuid().as_raw())
        || (stat.st_mode & 0o010 != 0
            && is_set(0o2000, stat.st_gid, rustix::process::getgid().as_raw()))
}

/// The contents of a program's head.
fn of_program(head: &[u8]) -> Option<HiddenReason> {
    if *head.get(4)? != CLASS_64 || u16_at(head, 18)? != MACHINE {
        return Some(HiddenReason::Foreign);
    }
    let (table, count) = (usize::try_from(u64_at(head, 32)?).ok()?, usize::from(u16_at(head, 56)?));
    if usize::from(u16_at(head, 54)?) != ENTRY_LEN || table < HEADER_LEN {
        return None;
    }
    let mut is_static = true;
    for index in 0..count {
        let entry = head.get(table.checked_add(index * ENTRY_LEN)?..)?.get(..ENTRY_LEN)?;
        match u32_at(entry, 0)? {
            INTERPRETER => is_static = false,
            NOTE if is_go(head, entry).unwrap_or(false) => return Some(HiddenReason::Go),
            _ => {}
        }
    }
    is_static.then_some(HiddenReason::Static)
}

/// Whether a segment of notes begins with Go's.
fn is_go(head: &[u8], entry: &[u8]) -> Option<bool> {
    let start = usize::try_from(u64_at(entry, 8)?).ok()?;
    Some(head.get(start.checked_add(12)?..)?.starts_with(b"Go\0\0"))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one segment of each kind in `segments`, and `note` behind them.
    fn program(machine: u16, segments: &[u32], note: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&(HEADER_LEN as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&(ENTRY_LEN as u16).to_le_bytes());
        bytes[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        let notes = (HEADER_LEN + segments.len() * ENTRY_LEN) as u64;
        for kind in segments {
            let mut entry = [0; ENTRY_LEN];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            entry[8..16].copy_from_slice(&notes.to_le_bytes());
            bytes.extend(entry);
        }
        bytes.extend([0; 12]);
        bytes.extend(note);
        bytes
    }

    #[test]
    fn tells_programs_apart() {
        assert_eq!(of_program(&program(MACHINE, &[INTERPRETER, NOTE], b"GNU\0")), None);
        assert_eq!(of_program(&program(MACHINE, &[1, NOTE], b"GNU\0")), Some(HiddenReason::Static));
        assert_eq!(
            of_program(&program(MACHINE, &[INTERPRETER, NOTE], b"Go\0\0")),
            Some(HiddenReason::Go)
        );
        assert_eq!(of_program(&program(3, &[INTERPRETER], b"")), Some(HiddenReason::Foreign));
    }

    #[test]
    fn half_a_program_is_none() {
        let whole = program(MACHINE, &[1, INTERPRETER, NOTE], b"Go\0\0");
        for len in 0..whole.len() {
            // Whatever it answers, it does so without a panic.
            let _ = of_program(&whole[..len]);
        }
        let mut wrong = whole;
        wrong[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of_program(&wrong), None);
    }

    #[test]
    fn this_program_is_reached() {
        assert_eq!(hidden(b"/proc/self/exe"), None);
        assert_eq!(hidden(b"/etc/hostname"), None);
        assert_eq!(hidden(b"/nonexistent"), None);
    }
}
