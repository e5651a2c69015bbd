//! Where a dump comes from.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;

use samite_types::{Error, ErrorKind, Result};

use crate::manifest::{DumpManifest, PassManifest};
use crate::segment::{DumpFrameKind, SegmentHeader, read_frame};
use crate::sink::{read_manifest, segment_name};
use crate::{corrupt, io_error};

/// Where a dump is.
pub enum DumpSource {
    /// In this directory.
    Directory(PathBuf),
    /// In a stream.
    Stream(Box<dyn Read + Send>),
}

impl fmt::Debug for DumpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// Position of a segment: dataset, pass, number.
type SegmentPosition = (usize, u32, u64);

/// A dump that is being read.
pub(crate) struct SegmentSource {
    pub(crate) manifest: DumpManifest,
    from: SourceKind,
    /// What was read of each dataset and pass.
    seen: Vec<Vec<PassManifest>>,
}

enum SourceKind {
    Directory { path: PathBuf, left: VecDeque<SegmentPosition> },
    Stream { from: BufReader<Box<dyn Read + Send>>, count: u64 },
}

impl SegmentSource {
    /// Begins to read. `unfinished`: what there is of a dump that is not whole will do.
    ///
    /// # Errors
    /// `NotFound`: there is no dump. `Invalid`: it is not finished. `Corrupt`. `Io`.
    pub(crate) fn open(source: DumpSource, unfinished: bool) -> Result<Self> {
        match source {
            DumpSource::Directory(path) => Self::open_directory(path, unfinished),
            DumpSource::Stream(from) => {
                let mut from = BufReader::new(from);
                let first = read_frame(&mut from);
                let first = first.map_err(|error| error.context("the stream's manifest"))?;
                let Some((header, body)) = first else {
                    return Err(corrupt("the stream is empty"));
                };
                if header.kind != DumpFrameKind::Begin {
                    return Err(corrupt("the stream does not begin with a manifest"));
                }
                let manifest = DumpManifest::decode(&body)?;
                let seen = manifest.datasets.iter().map(|_| Vec::new()).collect();
                Ok(Self { manifest, from: SourceKind::Stream { from, count: 0 }, seen })
            }
        }
    }

    fn open_directory(path: PathBuf, unfinished: bool) -> Result<Self> {
        let Some(mut manifest) = read_manifest(&path)? else {
            let words = format!("{}: there is no dump", path.display());
            return Err(Error::new(ErrorKind::NotFound, words));
        };
        if !manifest.finished && !unfinished {
            let words =
                format!("{}: the dump is not finished: run samite dump again", path.display());
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        for dataset in &mut manifest.datasets {
            dataset.passes.extend(dataset.progress.take().map(|progress| progress.done));
        }
        let mut left = VecDeque::new();
        for (at, dataset) in manifest.datasets.iter().enumerate() {
            for (pass, done) in (0..).zip(&dataset.passes) {
                left.extend((0..done.segments).map(|number| (at, pass, number)));
            }
        }
        let seen = manifest.datasets.iter().map(|_| Vec::new()).collect();
        Ok(Self { manifest, from: SourceKind::Directory { path, left }, seen })
    }

    /// The next segment that `is_wanted`, whole and checked, and words that name it.
    ///
    /// # Errors
    /// `Corrupt`, naming it: it is damaged, or not where it belongs. `Io`.
    pub(crate) fn next_segment(
        &mut self,
        is_wanted: &dyn Fn(SegmentPosition) -> bool,
    ) -> Result<Option<(SegmentHeader, Vec<u8>)>> {
        match &mut self.from {
            SourceKind::Directory { path, left } => {
                while let Some(position) = left.pop_front() {
                    if !is_wanted(position) {
                        continue;
                    }
                    let (dataset, pass, number) = position;
                    let name = &self.manifest.datasets[dataset].spec.name;
                    let path = path.join(segment_name(name, pass, number));
                    let segment = read_file(&path)
                        .and_then(|(header, body)| {
                            check(&header, &self.manifest, position).map(|()| (header, body))
                        })
                        .map_err(|error| error.context(path.display()))?;
                    self.note(&segment.0, &segment.1)?;
                    return Ok(Some(segment));
                }
                Ok(None)
            }
            SourceKind::Stream { .. } => self.next_of_stream(is_wanted),
        }
    }

    fn next_of_stream(
        &mut self,
        is_wanted: &dyn Fn(SegmentPosition) -> bool,
    ) -> Result<Option<(SegmentHeader, Vec<u8>)>> {
        loop {
            let SourceKind::Stream { from, count } = &mut self.from else { return Ok(None) };
            *count += 1;
            let name = format!("segment {count} of the stream");
            let (header, body) = match read_frame(from) {
                Ok(Some(read)) => read,
                Ok(None) => return Ok(None),
                Err(error) => return Err(error.context(name)),
            };
            if header.kind == DumpFrameKind::End {
                self.manifest = DumpManifest::decode(&body)?;
                return Ok(None);
            }
            let passes = self.seen.get(header.dataset as usize);
            let passes = passes.ok_or_else(|| corrupt(format!("{name}: of no dataset")))?;
            let number = passes.get(header.pass as usize).map_or(0, |pass| pass.segments);
            let position = (header.dataset as usize, header.pass, number);
            check(&header, &self.manifest, position).map_err(|error| error.context(name))?;
            self.note(&header, &body)?;
            if is_wanted(position) {
                return Ok(Some((header, body)));
            }
        }
    }

    /// Adds up what was read.
    fn note(&mut self, header: &SegmentHeader, body: &[u8]) -> Result<()> {
        let passes = &mut self.seen[header.dataset as usize];
        let pass = header.pass as usize;
        if pass > passes.len() + PASSES_AHEAD_MAX {
            return Err(corrupt("the dump has too many passes"));
        }
        if passes.len() <= pass {
            passes.resize(pass + 1, PassManifest::default());
        }
        passes[pass].add(header.records.into(), body.len() as u64, header.checksum);
        Ok(())
    }

    /// Whether all was read that the manifest at the end tells of; `skipped`: some segments were
    /// not looked at.
    pub(crate) fn check_end(&self, skipped: bool) -> Result<()> {
        let is_stream = matches!(self.from, SourceKind::Stream { .. });
        if is_stream && !self.manifest.finished {
            let words =
                "the stream is cut short: what came is loaded, and the datasets are not whole";
            return Err(corrupt(words));
        }
        if skipped && !is_stream {
            return Ok(());
        }
        for (dataset, seen) in self.manifest.datasets.iter().zip(&self.seen) {
            let none = PassManifest::default();
            for (at, pass) in dataset.passes.iter().enumerate() {
                let seen = seen.get(at).unwrap_or(&none);
                let told = (pass.segments, pass.records, pass.digest);
                if (seen.segments, seen.records, seen.digest) != told {
                    let name = &dataset.spec.name;
                    return Err(corrupt(format!("dataset {name}: segments are missing")));
                }
            }
        }
        Ok(())
    }
}

/// Passes without a segment that may come before one with some.
const PASSES_AHEAD_MAX: usize = 64;

fn read_file(path: &std::path::Path) -> Result<(SegmentHeader, Vec<u8>)> {
    let mut file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => corrupt("the segment is missing"),
        _ => io_error("open", &error),
    })?;
    let segment = read_frame(&mut file)?.ok_or_else(|| corrupt("it is empty"))?;
    match file.read(&mut [0]) {
        Ok(0) => Ok(segment),
        Ok(_) => Err(corrupt("there is something behind its end")),
        Err(error) => Err(io_error("read", &error)),
    }
}

/// Whether a segment is the one at its position.
fn check(header: &SegmentHeader, manifest: &DumpManifest, position: SegmentPosition) -> Result<()> {
    let is_there = header.kind == DumpFrameKind::Segment
        && header.dump == manifest.id
        && (header.dataset as usize, header.pass, header.number) == position;
    if is_there { Ok(()) } else { Err(corrupt("it is another segment, or of another dump")) }
}
