//! Key lists: key and version of each record that a pass has come to, by partition and key.
//!
//! ```text
//! entry    0 partition u32 │ 4 version u64 │ 12 key len u16 │ 14 key
//! ```
//!
//! They stay on the host that dumps, and go when the dump is whole.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use samite_types::{PartitionId, Result, Version};
use samite_wire::limits::KEY_LEN_MAX;

use crate::{corrupt, io_error};

const BUFFER_LEN: usize = 256 << 10;

/// A key of a key list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedKey {
    pub(crate) partition: PartitionId,
    pub(crate) version: Version,
    pub(crate) key: Vec<u8>,
}

/// A key list that is being written.
#[derive(Debug)]
pub(crate) struct KeyListWriter {
    out: BufWriter<Arc<File>>,
    file: Arc<File>,
    len: u64,
}

impl KeyListWriter {
    /// Goes on behind the first `len` bytes of `file`; the rest goes.
    pub(crate) fn new(file: File, len: u64) -> Result<Self> {
        let failed = |error: std::io::Error| io_error("key list", &error);
        file.set_len(len).map_err(failed)?;
        let mut at = &file;
        at.seek(SeekFrom::Start(len)).map_err(failed)?;
        let file = Arc::new(file);
        Ok(Self { out: BufWriter::with_capacity(BUFFER_LEN, Arc::clone(&file)), file, len })
    }

    pub(crate) fn push(
        &mut self,
        partition: PartitionId,
        key: &[u8],
        version: Version,
    ) -> Result<()> {
        let mut head = [0; 14];
        head[..4].copy_from_slice(&partition.get().to_le_bytes());
        head[4..12].copy_from_slice(&version.get().to_le_bytes());
        // Keys are shorter than that.
        head[12..].copy_from_slice(&(key.len() as u16).to_le_bytes());
        self.len += (head.len() + key.len()) as u64;
        self.out
            .write_all(&head)
            .and_then(|()| self.out.write_all(key))
            .map_err(|error| io_error("key list", &error))
    }

    /// Has all that was written outlive this process; how many bytes that is.
    pub(crate) fn save(&mut self) -> Result<u64> {
        let saved = self.out.flush().and_then(|()| self.file.sync_data());
        saved.map_err(|error| io_error("key list", &error))?;
        Ok(self.len)
    }

    /// The list, to be read.
    pub(crate) fn finish(mut self) -> Result<Arc<File>> {
        self.save()?;
        Ok(self.file)
    }
}

/// The keys of a list, one after the other.
#[derive(Debug)]
pub(crate) struct KeyListReader {
    from: BufReader<ReadAt>,
    /// The next one.
    next: Option<ListedKey>,
}

#[derive(Debug)]
struct ReadAt {
    file: Arc<File>,
    at: u64,
}

impl Read for ReadAt {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buf, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl KeyListReader {
    pub(crate) fn new(file: Arc<File>) -> Result<Self> {
        let from = BufReader::with_capacity(BUFFER_LEN, ReadAt { file, at: 0 });
        let mut list = Self { from, next: None };
        list.next = list.read()?;
        Ok(list)
    }

    /// The next key, which stays the next one.
    pub(crate) const fn peek(&self) -> Option<&ListedKey> {
        self.next.as_ref()
    }

    /// Takes the next key.
    pub(crate) fn take(&mut self) -> Result<Option<ListedKey>> {
        let next = if self.next.is_some() { self.read()? } else { None };
        // A list that begins again would have a pass take what is there for removed.
        if let (Some(last), Some(next)) = (&self.next, &next)
            && (last.partition, &last.key) >= (next.partition, &next.key)
        {
            return Err(corrupt("the key list is out of order"));
        }
        Ok(std::mem::replace(&mut self.next, next))
    }

    fn read(&mut self) -> Result<Option<ListedKey>> {
        let damaged = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => corrupt("the key list is cut short"),
            _ => io_error("key list", &error),
        };
        let mut head = [0; 14];
        if self.from.read(&mut head[..1]).map_err(damaged)? == 0 {
            return Ok(None);
        }
        self.from.read_exact(&mut head[1..]).map_err(damaged)?;
        let len = usize::from(u16::from_le_bytes([head[12], head[13]]));
        if len > KEY_LEN_MAX {
            return Err(corrupt("the key list is damaged"));
        }
        let mut key = vec![0; len];
        self.from.read_exact(&mut key).map_err(damaged)?;
        let partition = PartitionId(u32::from_le_bytes(std::array::from_fn(|i| head[i])));
        let version = Version(u64::from_le_bytes(std::array::from_fn(|i| head[4 + i])));
        Ok(Some(ListedKey { partition, version, key }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_what_was_not_saved_goes() {
        let file = tempfile::tempfile().unwrap();
        let mut list = KeyListWriter::new(file.try_clone().unwrap(), 0).unwrap();
        for (partition, key) in [(0, &b"a"[..]), (0, b"b"), (3, b"")] {
            list.push(PartitionId(partition), key, Version(7)).unwrap();
        }
        let len = list.save().unwrap();
        list.push(PartitionId(4), b"lost", Version(1)).unwrap();
        drop(list);
        let list = KeyListWriter::new(file, len).unwrap().finish().unwrap();
        let mut read = KeyListReader::new(list).unwrap();
        let mut keys = Vec::new();
        while let Some(key) = read.take().unwrap() {
            assert_eq!(key.version, Version(7));
            keys.push((key.partition.get(), key.key));
        }
        assert_eq!(keys, [(0, b"a".to_vec()), (0, b"b".to_vec()), (3, Vec::new())]);
        assert!(read.peek().is_none() && read.take().unwrap().is_none());
    }

    #[test]
    fn a_list_that_begins_again_is_refused() {
        for key in [&b"a"[..], b"b"] {
            let mut list = KeyListWriter::new(tempfile::tempfile().unwrap(), 0).unwrap();
            for key in [b"a", b"b", key] {
                list.push(PartitionId(1), key, Version(7)).unwrap();
            }
            let mut read = KeyListReader::new(list.finish().unwrap()).unwrap();
            assert_eq!(read.take().unwrap().unwrap().key, b"a");
            assert!(read.take().is_err(), "{key:?}");
        }
    }

    #[test]
    fn a_damaged_list_is_refused() {
        for bytes in [&[0; 5][..], &[0xff; 14], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1]] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert!(KeyListReader::new(Arc::new(file)).is_err(), "{bytes:?}");
        }
    }
}
