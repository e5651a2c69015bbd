//! Answers as replies to the kernel, where it may keep nothing of them.

use std::time::Duration;

use fuser::{
    Errno, FileAttr, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr,
};

use crate::kernel::Answer;

/// How long the kernel may rely on an answer without a delegation.
pub const TTL: Duration = Duration::ZERO;
/// Inode numbers are never used again.
pub const GENERATION: Generation = Generation(0);

/// A name's file.
pub fn entry(answer: Answer<FileAttr>, reply: ReplyEntry) {
    match answer {
        Ok(attr) => reply.entry(&TTL, &attr, GENERATION),
        Err(errno) => reply.error(errno),
    }
}

/// Attributes.
pub fn attributes(answer: Answer<FileAttr>, reply: ReplyAttr) {
    match answer {
        Ok(attr) => reply.attr(&TTL, &attr),
        Err(errno) => reply.error(errno),
    }
}

/// Nothing.
pub fn empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// How much was written.
pub fn written(answer: Answer<usize>, reply: ReplyWrite) {
    match answer {
        Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
        Err(errno) => reply.error(errno),
    }
}

/// An extended attribute, or how long it is.
pub fn value(answer: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer {
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(errno),
    }
}
