//! A voter on flash.
//!
//! ```text
//! magic 8 bytes | version u32 | record (voter's number, all that it is) | records (writes since), one after another
//! record: length u32 | CRC-32C of these 4 bytes u32 | CRC-32C of what follows u32 | bytes of postcard
//! ```
//!
//! Numbers are little-endian. Each group of writes is one record, synced before any message that
//! rests on it is sent. A last record that is cut short, or zeros at the end, were never synced,
//! and are dropped; any other damage is an error, for a voter that has forgotten something might
//! vote twice. Space for later records is set aside, in the file and in one for the next
//! configuration: a voter votes on a full disk, too.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use samite_types::{Error, ErrorKind, Result};

use super::configuration::VoterId;
use super::journal::{JournalWrite, VoterState};
use super::voter::VoterOutput;

const MAGIC: &[u8; 8] = b"SAMIVOTE";
const VERSION: u32 = 1;
const HEADER_LEN: usize = MAGIC.len() + 4;
/// Length of a record, and checksums of it and of the record.
const PREFIX_LEN: usize = 12;
/// Space that is set aside for a file that outlives the machine's power.
const SPACE_LEN: u64 = 4 << 20;
/// Longest record.
const RECORD_MAX: usize = 256 << 20;

/// The file of a node's voter.
#[derive(Debug)]
pub struct VoterFile {
    path: PathBuf,
    /// It has to outlive the machine's power, not its processes alone.
    is_synced: bool,
    /// Open at its end; `None`: there is none.
    file: Option<File>,
}

impl VoterFile {
    /// The file at `path`, and the voter in it, if there is one.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged. It cannot be read.
    pub fn open(path: &Path, is_synced: bool) -> Result<(Self, Option<(VoterId, VoterState)>)> {
        let mut this = Self { path: path.to_owned(), is_synced, file: None };
        let mut bytes = Vec::new();
        let mut file = match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == IoKind::NotFound => return Ok((this, None)),
            file => this.io("open", file)?,
        };
        let read = file.read_to_end(&mut bytes);
        this.io("read", read)?;
        let damaged = |words: &str| {
            let hint = "where most voters are whole, remove it, and this node is given a new one";
            let words = format!("voter {}: {words}; {hint}", path.display());
            Error::new(ErrorKind::Corrupt, words)
        };
        let (len, voter) = Self::parse(&bytes).map_err(damaged)?;
        if len < bytes.len() {
            let cut = file.set_len(len as u64).and_then(|()| file.sync_all());
            this.io("cut", cut)?;
        }
        this.set_space_aside(&file);
        this.file = Some(file);
        Ok((this, Some(voter)))
    }

    /// A voter begins.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn begin(&mut self, voter: &(VoterId, VoterState)) -> Result<()> {
        let written = self.replace(voter);
        self.file = Some(self.io("write", written)?);
        Ok(())
    }

    /// Carries out the writes to flash of an output.
    ///
    /// # Errors
    /// It is not there, or only in part: nothing of this output may be sent, and the voter has to be opened again.
    pub fn write(&mut self, output: &VoterOutput) -> Result<()> {
        if output.is_retired {
            self.file = None;
            let _ = std::fs::remove_file(self.fresh_path());
            let removed = std::fs::remove_file(&self.path);
            return self.io("remove", removed);
        }
        if let Some(whole) = &output.whole {
            self.begin(whole)?;
        }
        if output.writes.is_empty() {
            return Ok(());
        }
        let record = record(&output.writes);
        let Some(file) = &mut self.file else {
            return Err(Error::new(ErrorKind::Internal, "a voter without a file writes"));
        };
        let written = file.write_all(&record);
        let synced = written.and_then(|()| if self.is_synced { file.sync_data() } else { Ok(()) });
        self.io("write", synced)
    }

    /// The voter in the bytes of a file, and how many of them are of use: a last record that was cut short is not.
    ///
    /// # Errors
    /// The damage in them.
    pub fn parse(
        bytes: &[u8],
    ) -> std::result::Result<(usize, (VoterId, VoterState)), &'static str> {
        let rest = bytes.strip_prefix(MAGIC).ok_or("not the file of a voter")?;
        let (version, mut rest) = rest.split_first_chunk().ok_or("cut short")?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err("written by another version");
        }
        // It was written whole before it got its name.
        let first = next(rest)?.ok_or("cut short")?;
        let unreadable = |_| "a record cannot be read";
        let (id, mut kept): (VoterId, VoterState) =
            postcard::from_bytes(first).map_err(unreadable)?;
        let mut len = HEADER_LEN + PREFIX_LEN + first.len();
        rest = &rest[PREFIX_LEN + first.len()..];
        while let Some(content) = next(rest)? {
            let writes: Vec<JournalWrite> = postcard::from_bytes(content).map_err(unreadable)?;
            writes.into_iter().for_each(|write| kept.write(write));
            len += PREFIX_LEN + content.len();
            rest = &rest[PREFIX_LEN + content.len()..];
        }
        Ok((len, (id, kept)))
    }

    fn replace(&self, whole: &(VoterId, VoterState)) -> std::io::Result<File> {
        let fresh = self.fresh_path();
        let mut options = OpenOptions::new();
        // Its space is there already, if it is.
        let mut file = options.write(true).create(true).truncate(false).mode(0o600).open(&fresh)?;
        if file.metadata()?.len() > 0 {
            file.set_len(0)?;
        }
        file.write_all(MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.write_all(&record(whole))?;
        if self.is_synced {
            file.sync_all()?;
        }
        std::fs::rename(&fresh, &self.path)?;
        if let (true, Some(dir)) = (self.is_synced, self.path.parent()) {
            File::open(dir)?.sync_all()?;
        }
        self.set_space_aside(&file);
        Ok(file)
    }

    fn fresh_path(&self) -> PathBuf {
        let mut fresh = self.path.clone().into_os_string();
        fresh.push(".new");
        fresh.into()
    }

    /// Sets space aside, as far as there is some: behind the contents of the voter's file, and in a
    /// file for the next one.
    fn set_space_aside(&self, file: &File) {
        if !self.is_synced {
            return;
        }
        let options =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).clone();
        let next = options.open(self.fresh_path());
        for file in std::iter::once(file).chain(&next) {
            let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, SPACE_LEN);
        }
    }

    fn io<T>(&self, what: &str, result: std::io::Result<T>) -> Result<T> {
        result.map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            Error::io(format_args!("{what} {}", self.path.display()), errno)
        })
    }
}

fn record(content: &impl serde::Serialize) -> Vec<u8> {
    // Nothing of it is a map or a number that cannot be written down.
    let bytes = postcard::to_stdvec(content).unwrap_or_default();
    let mut record = Vec::with_capacity(PREFIX_LEN + bytes.len());
    let len = (bytes.len() as u32).to_le_bytes();
    record.extend(len);
    record.extend(crc_fast::crc32_iscsi(&len).to_le_bytes());
    record.extend(crc_fast::crc32_iscsi(&bytes).to_le_bytes());
    record.extend(bytes);
    record
}

/// The record at the start of these bytes; `None`: it is cut short.
fn next(bytes: &[u8]) -> std::result::Result<Option<&[u8]>, &'static str> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_LEN>() else { return Ok(None) };
    let number = |at: usize| {
        u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]])
    };
    if crc_fast::crc32_iscsi(&prefix[..4]) != number(4) {
        let is_blank = bytes.iter().all(|byte| *byte == 0);
        let damaged = "the length of a record does not match its checksum";
        return if is_blank { Ok(None) } else { Err(damaged) };
    }
    let len = number(0) as usize;
    if len > RECORD_MAX {
        return Err("a record is longer than one can be");
    }
    let Some(content) = rest.get(..len) else { return Ok(None) };
    if crc_fast::crc32_iscsi(content) != number(8) {
        // The very end may never have been synced.
        let is_last = rest.len() == len;
        return if is_last { Ok(None) } else { Err("a record does not match its checksum") };
    }
    Ok(Some(content))
}

#[cfg(test)]
mod tests {
    use samite_types::NodeId;

    use super::*;
    use crate::quorum::{RegisterChange, StateRegister, VoterConfiguration};

    /// A voter's file after some rounds with two others that hear nothing, and its contents each
    /// time something was written.
    fn written(path: &Path) -> Vec<(usize, (VoterId, VoterState))> {
        let nodes = [NodeId(0), NodeId(1), NodeId(2)];
        let mut hosts: Vec<_> = nodes.iter().map(|node| host(*node, &nodes)).collect();
        let (mut file, none) = VoterFile::open(path, true).unwrap();
        assert!(none.is_none());
        file.begin(&hosts[0].saved().unwrap()).unwrap();
        let len = || std::fs::metadata(path).unwrap().len() as usize;
        let mut states = vec![(len(), hosts[0].saved().unwrap())];
        for round in 0..60 {
            if round % 7 == 0 {
                let _ = hosts[0].propose(RegisterChange::Remove(0));
            }
            hosts.iter_mut().for_each(super::super::VoterHost::tick);
            loop {
                let mut sent = Vec::new();
                for (host, node) in hosts.iter_mut().zip(nodes) {
                    let output = host.output(99);
                    if node == nodes[0] {
                        file.write(&output).unwrap();
                    }
                    sent.extend(output.messages.into_iter().map(|(to, bytes)| (node, to, bytes)));
                }
                states.push((len(), hosts[0].saved().unwrap()));
                if sent.is_empty() {
                    break;
                }
                for (from, to, bytes) in sent {
                    hosts[to.get() as usize].receive(from, &bytes).unwrap();
                }
            }
        }
        states
    }

    fn host(node: NodeId, nodes: &[NodeId]) -> super::super::VoterHost {
        let first = VoterConfiguration::first(nodes).unwrap();
        let id = first.voter_in(node).unwrap().id;
        let kept = Some((id, VoterState::new(first, StateRegister::default())));
        super::super::VoterHost::new((node, 7), kept, nodes.to_vec()).unwrap()
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_what_was_synced_last() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("voter");
        let states = written(&path);
        let bytes = std::fs::read(&path).unwrap();
        assert!(states.last().unwrap().0 > states[0].0 + 200, "something was written");
        let first = states[0].0;
        for len in 0..=bytes.len() {
            let parsed = VoterFile::parse(&bytes[..len]);
            if len < first {
                assert!(parsed.is_err(), "{len}: it was never whole");
                continue;
            }
            let (kept_len, voter) = parsed.unwrap();
            let (_, expected) = states.iter().rev().find(|(at, _)| *at <= kept_len).unwrap();
            assert_eq!(voter, *expected, "{len}");
            assert!(states.iter().all(|(at, _)| *at <= kept_len || *at > len), "{len}: too short");
        }
    }

    #[test]
    fn a_file_that_was_cut_goes_on() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("voter");
        let states = written(&path);
        let len = states.last().unwrap().0 as u64;
        File::options().write(true).open(&path).unwrap().set_len(len - 3).unwrap();
        let (mut file, voter) = VoterFile::open(&path, false).unwrap();
        let (id, mut kept) = voter.unwrap();
        let write = JournalWrite::Decided(1);
        kept.write(write.clone());
        file.write(&VoterOutput { writes: vec![write], ..VoterOutput::default() }).unwrap();
        drop(file);
        assert_eq!(VoterFile::open(&path, false).unwrap().1, Some((id, kept)));
    }

    #[test]
    fn damage_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("voter");
        let states = written(&path);
        let bytes = std::fs::read(&path).unwrap();
        // The last record may be one that was never synced.
        let lens: Vec<usize> = states.iter().map(|(len, _)| *len).collect();
        let last = lens.iter().rev().find(|len| **len < bytes.len()).copied().unwrap();
        for at in 0..last {
            let mut bent = bytes.clone();
            bent[at] ^= 0x41;
            let parsed = VoterFile::parse(&bent);
            assert!(parsed.is_err(), "byte {at}: {parsed:?}");
        }
        let mut grown = bytes.clone();
        grown.extend([0; 100]);
        assert_eq!(VoterFile::parse(&grown).unwrap().0, bytes.len(), "zeros were never synced");
        let mut bent = bytes.clone();
        bent[states[0].0 + PREFIX_LEN] ^= 1;
        std::fs::write(&path, &bent).unwrap();
        let error = VoterFile::open(&path, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("a record does not match its checksum"));
    }

    #[test]
    fn space_is_set_aside_for_a_full_disk() {
        use std::os::unix::fs::MetadataExt as _;
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("voter");
        let _ = written(&path);
        let next = scratch.path().join("voter.new");
        for path in [&path, &next] {
            let meta = std::fs::metadata(path).unwrap();
            assert!(meta.blocks() * 512 >= SPACE_LEN, "{}: {meta:?}", path.display());
        }
        assert_eq!(std::fs::metadata(&next).unwrap().len(), 0);
    }

    #[test]
    fn who_is_replaced_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("voter");
        let _ = written(&path);
        let (mut file, _) = VoterFile::open(&path, true).unwrap();
        file.write(&VoterOutput { is_retired: true, ..VoterOutput::default() }).unwrap();
        assert!(!path.exists());
        assert!(VoterFile::open(&path, true).unwrap().1.is_none());
    }
}
