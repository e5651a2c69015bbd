//! Programs that lie in the store: the kernel can only run files of its own, so they are copied to memory first.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use samite_fs::{OpenFile, OpenFlags};

use crate::store::errno;
use crate::store_location::StoreLocation;
use crate::table::OpenDescription;
use crate::{caller, store};

const X_OK: u32 = 1;
const ELF: &[u8] = b"\x7fELF";
/// Longest first line of a script, in bytes, as in Linux.
const LINE_LEN_MAX: usize = 255;
const COPY_LEN: usize = 1 << 20;

/// A file in memory that the kernel can run or map.
pub struct MemoryFile {
    file: OwnedFd,
    path: CString,
}

impl MemoryFile {
    /// A path to it, in this process and while it is open.
    pub fn path(&self) -> &CString {
        &self.path
    }

    /// Keeps it open for the life of this process.
    pub fn keep(self) -> CString {
        std::mem::forget(self.file);
        self.path
    }
}

/// The kind of a program file.
pub enum ProgramFile {
    /// Something for the kernel.
    Binary(MemoryFile),
    /// Something for an interpreter.
    Script { interpreter: CString, option: Option<CString> },
}

/// Loads the program at `place`.
pub fn load(place: &StoreLocation<'_>) -> Result<ProgramFile, Errno> {
    let at = place.at()?;
    let file = store::call_as(|fs, caller| {
        fs.access(caller, at, X_OK, true)?;
        fs.open_file(caller, at, OpenFlags::reading(), 0)
    })?;
    program(&file)
}

/// Loads the program behind a descriptor.
pub fn load_open(open: &OpenDescription) -> Result<ProgramFile, Errno> {
    let (file, caller) = (open.file()?, caller::context());
    file.access(&caller, X_OK).map_err(|error| errno(&error))?;
    let file = file.open_again(&caller, OpenFlags::reading());
    program(&file.map_err(|error| errno(&error))?)
}

fn program(file: &OpenFile) -> Result<ProgramFile, Errno> {
    let mut head = [0; LINE_LEN_MAX];
    let len = file.read_at(&mut head, 0).map_err(|error| errno(&error))?;
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line);
    }
    if !head.starts_with(ELF) {
        return Err(Errno::NOEXEC);
    }
    copy_to_memory(file).map(ProgramFile::Binary)
}

/// `#!interpreter option`: everything after the first gap is one option.
fn script(line: &[u8]) -> Result<ProgramFile, Errno> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line).trim_ascii();
    let gap = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let (interpreter, option) = line.split_at(gap);
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::NOEXEC);
    if interpreter.is_empty() {
        return Err(Errno::NOEXEC);
    }
    let option = option.trim_ascii();
    Ok(ProgramFile::Script {
        interpreter: text(interpreter)?,
        option: if option.is_empty() { None } else { Some(text(option)?) },
    })
}

/// Copies a whole file of the store to memory.
pub fn copy_to_memory(file: &OpenFile) -> Result<MemoryFile, Errno> {
    let memory = rustix::fs::memfd_create(c"samite-program", MemfdFlags::CLOEXEC)?;
    let mut room = vec![0; COPY_LEN];
    let mut at = 0;
    loop {
        let len = file.read_at(&mut room, at).map_err(|error| errno(&error))?;
        if len == 0 {
            break;
        }
        let mut rest = &room[..len];
        while !rest.is_empty() {
            let written = rustix::io::write(memory.as_fd(), rest)?;
            rest = &rest[written..];
        }
        at += len as u64;
    }
    let path = CString::new(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    Ok(MemoryFile { file: memory, path: path.map_err(|_| Errno::INVAL)? })
}
