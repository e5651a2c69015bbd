//! A crash or an error may come in any call: the frames found after it are those that were written,
//! from the oldest one that was not dropped to at least the last that was acknowledged.

use std::sync::Arc;

use proptest::prelude::*;
use samite_log::memory::{CallFault, MemoryDisk};
use samite_log::{FrameBatch, LogDisk, LogSettings, OpenLog};
use samite_types::{ErrorKind, Result};

const SETTINGS: LogSettings = LogSettings { id: 0x1234_5678_9abc_def0, segment_len: 4096 };

#[derive(Clone, Debug)]
enum Step {
    /// Frames of these lengths, as one batch, tried so often.
    Write(Vec<usize>, u32),
    /// So much of what is there is dropped, in percent.
    Drop(u64),
    /// Opened again without a crash.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (
            prop::collection::vec(prop_oneof![4 => 0..200usize, 1 => 0..3000usize], 1..6),
            1..3u32,
        )
            .prop_map(|(lens, tries)| Step::Write(lens, tries)),
        2 => (0..=100u64).prop_map(Step::Drop),
        1 => Just(Step::Reopen),
    ]
}

/// The payload of frame `sequence` in life `life`, of `len` bytes.
fn payload(sequence: u64, life: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 31 + sequence * 7 + life * 13) as u8).collect()
}

struct Subject {
    disk: MemoryDisk,
    log: Option<OpenLog>,
    /// The payload of every frame that was given a number.
    frames: Vec<Vec<u8>>,
    /// Frames that were acknowledged, and those that need not be there.
    acknowledged: u64,
    dropped: u64,
    life: u64,
}

impl Subject {
    fn new(seed: u64) -> Self {
        let disk = MemoryDisk::new(seed);
        Self { disk, log: None, frames: Vec::new(), acknowledged: 0, dropped: 0, life: 0 }
    }

    /// Opens the log and compares what is there.
    fn open(&mut self) -> Result<()> {
        self.log = None;
        let (mut first, mut found) = (None, 0);
        let disk: Arc<dyn LogDisk> = Arc::new(self.disk.clone());
        let frames = &self.frames;
        let log = OpenLog::open(disk, SETTINGS, &mut |sequence, bytes| {
            first.get_or_insert(sequence);
            assert_eq!(bytes, &frames[sequence as usize - 1][..], "frame {sequence}");
            found = sequence;
            Ok(())
        })?;
        let first = first.unwrap_or(log.next());
        assert!(first <= self.dropped + 1, "from {first}, dropped below {}", self.dropped + 1);
        assert!(log.next() > self.acknowledged, "{} acknowledged", self.acknowledged);
        assert!(found == 0 || log.next() == found + 1);
        assert!(log.next() <= self.frames.len() as u64 + 1);
        self.frames.truncate(log.next() as usize - 1);
        self.acknowledged = log.next() - 1;
        self.life += 1;
        self.log = Some(log);
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let Some(log) = &mut self.log else { return self.open() };
        match step {
            Step::Reopen => self.open(),
            Step::Drop(percent) => {
                let kept = self.acknowledged - self.dropped;
                self.dropped += kept * percent / 100;
                log.drop_below(self.dropped + 1)
            }
            Step::Write(lens, tries) => {
                let mut batch = FrameBatch::default();
                for len in lens {
                    let bytes = payload(self.frames.len() as u64, self.life, *len);
                    batch.add(|out| out.extend_from_slice(&bytes));
                    self.frames.push(bytes);
                }
                let mut written = log.prepare();
                for _ in 0..*tries {
                    written = log.write(&mut batch);
                    // Frames written before an error are on flash all the same.
                    assert!(log.next() > self.acknowledged);
                    self.acknowledged = log.next() - 1;
                    if written.is_ok() {
                        break;
                    }
                }
                written
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_acknowledged_is_lost_wherever_it_stops(
        seed: u64,
        rounds in prop::collection::vec(
            (prop::collection::vec(step(), 1..20), 1..80u64, prop::bool::ANY),
            1..5,
        ),
    ) {
        let mut subject = Subject::new(seed);
        for (steps, call, stops) in rounds {
            let trouble = if stops { CallFault::Stop } else { CallFault::Error };
            subject.disk.trouble_at(subject.disk.calls() + call, trouble);
            for step in &steps {
                if let Err(error) = subject.step(step) {
                    prop_assert_ne!(error.kind(), ErrorKind::Corrupt, "{}", error);
                    break;
                }
            }
            subject.disk.crash();
            subject.open().expect("what a crash leaves can be opened");
        }
    }
}

/// A log of three batches; the byte after each.
fn three_batches(disk: &MemoryDisk) -> Vec<Vec<u8>> {
    let disk: Arc<dyn LogDisk> = Arc::new(disk.clone());
    let mut log = OpenLog::open(disk, SETTINGS, &mut |_, _| Ok(())).expect("a new log");
    let mut frames = Vec::new();
    for batch_index in 0..3 {
        let mut batch = FrameBatch::default();
        for index in 0..3 {
            let bytes = payload(index, batch_index, 20);
            batch.add(|out| out.extend_from_slice(&bytes));
            frames.push(bytes);
        }
        log.write(&mut batch).expect("written");
    }
    frames
}

#[test]
fn rot_is_reported_wherever_a_later_batch_proves_it() {
    let name = "log-0000000000000001";
    let frame_len = 24 + 24;
    for at in 0..32 + 9 * frame_len {
        let disk = MemoryDisk::new(1);
        let frames = three_batches(&disk);
        disk.rot(name, at, (at % 8) as u8);
        let mut found = Vec::new();
        let again: Arc<dyn LogDisk> = Arc::new(disk.clone());
        let opened = OpenLog::open(again, SETTINGS, &mut |_, bytes| {
            found.push(bytes.to_vec());
            Ok(())
        });
        assert_eq!(found, frames[..found.len()], "nothing wrong is handed out");
        let is_padding = at >= 32 && (at - 32) % frame_len >= 24 + 20;
        if is_padding {
            assert_eq!(opened.unwrap().next(), 10);
        } else if at < 32 + 6 * frame_len {
            let error = opened.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
            assert!(error.message().contains(name), "{error}");
        } else {
            // Nothing tells the last batch from a torn one.
            assert!(opened.unwrap().next() >= 7, "byte {at}");
        }
    }
}

#[test]
fn a_missing_segment_is_reported() {
    let disk = MemoryDisk::new(3);
    let shared: Arc<dyn LogDisk> = Arc::new(disk.clone());
    let mut log = OpenLog::open(Arc::clone(&shared), SETTINGS, &mut |_, _| Ok(())).unwrap();
    for _ in 0..10 {
        let mut batch = FrameBatch::default();
        batch.add(|out| out.resize(out.len() + 3000, 1));
        log.write(&mut batch).unwrap();
    }
    drop(log);
    disk.remove("log-0000000000000004").unwrap();
    let error = OpenLog::open(shared, SETTINGS, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("missing"), "{error}");
}

#[test]
fn the_numbers_go_on_after_everything_was_dropped() {
    let disk: Arc<dyn LogDisk> = Arc::new(MemoryDisk::new(4));
    for life in 0..5 {
        let mut log = OpenLog::open(Arc::clone(&disk), SETTINGS, &mut |_, _| Ok(())).unwrap();
        assert_eq!(log.next(), life * 2 + 1);
        for _ in 0..2 {
            let mut batch = FrameBatch::default();
            batch.add(|out| out.resize(out.len() + 3000, 1));
            log.write(&mut batch).unwrap();
        }
        log.drop_below(log.next()).unwrap();
        assert!(log.len() <= 3 * SETTINGS.segment_len);
    }
}

#[test]
fn a_segment_cut_short_anywhere_in_its_header_is_reported() {
    const NAME: &str = "log-0000000000000001";
    let made = MemoryDisk::new(5);
    let mut log = OpenLog::open(Arc::new(made.clone()), SETTINGS, &mut |_, _| Ok(())).unwrap();
    let mut batch = FrameBatch::default();
    batch.add(|out| out.resize(out.len() + 10, 1));
    log.write(&mut batch).unwrap();
    drop(log);
    let mut header = [0; 32];
    made.open(NAME).unwrap().read_at(0, &mut header).unwrap();
    // To be opened by the log that it is of, and by another one.
    for id in [SETTINGS.id, SETTINGS.id + 1] {
        for len in 0..header.len() {
            let disk = MemoryDisk::new(6);
            disk.create(NAME).unwrap().write_at(0, &header[..len]).unwrap();
            let opened =
                OpenLog::open(Arc::new(disk), LogSettings { id, ..SETTINGS }, &mut |_, _| Ok(()));
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corrupt, "{len} B");
        }
    }
}

/// Writes, drops and opens again: in one place or another it takes every kind of change there is.
fn busy_life(subject: &mut Subject) -> Result<()> {
    subject.open()?;
    for round in 0..3 {
        for len in [1500, 100, 3000, 1200] {
            subject.step(&Step::Write(vec![len, 700], 1))?;
        }
        subject.step(&Step::Drop(60 + round * 20))?;
        subject.step(&Step::Reopen)?;
    }
    Ok(())
}

#[test]
fn each_call_of_a_busy_life_can_be_the_last_or_fail() {
    let mut all = Subject::new(0);
    busy_life(&mut all).unwrap();
    let calls = all.disk.calls();
    assert!(calls > 100, "{calls}");
    for call in 1..=calls {
        for (seed, trouble) in (0..6).flat_map(|it| [(it, CallFault::Stop), (it, CallFault::Error)])
        {
            let mut subject = Subject::new(seed);
            subject.disk.trouble_at(call, trouble);
            let lived = busy_life(&mut subject);
            // That a spare cannot be removed is no error, for one.
            assert!(lived.is_err() || trouble == CallFault::Error, "call {call}");
            // As when the process ends alone, and then when the machine does.
            if trouble == CallFault::Error {
                subject.open().unwrap_or_else(|error| panic!("call {call}: {error}"));
            }
            subject.disk.crash();
            subject.open().unwrap_or_else(|error| panic!("call {call}, {seed}: {error}"));
            subject.step(&Step::Write(vec![3000, 2000], 1)).unwrap();
            subject.disk.crash();
            subject.open().unwrap_or_else(|error| panic!("call {call}, {seed}, again: {error}"));
        }
    }
}

fn opened(disk: &MemoryDisk) -> Result<OpenLog> {
    OpenLog::open(Arc::new(disk.clone()), SETTINGS, &mut |_, _| Ok(()))
}

/// A log that was used and closed, of frames 4 to 7, each in a segment of its own.
fn four_segments() -> MemoryDisk {
    let disk = MemoryDisk::new(7);
    let mut log = opened(&disk).expect("a new log");
    for _ in 1..=7 {
        let mut batch = FrameBatch::default();
        batch.add(|out| out.resize(out.len() + 3000, 1));
        log.write(&mut batch).expect("written");
    }
    log.drop_below(4).expect("dropped");
    assert_eq!((log.first(), log.next()), (4, 8));
    disk
}

#[track_caller]
fn refused(disk: &MemoryDisk, name: &str, words: &str) {
    let error = opened(disk).expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains(name) && error.message().contains(words), "{error}");
}

#[test]
fn a_log_whose_first_or_newest_segment_is_missing_is_refused() {
    for number in [4, 7] {
        let disk = four_segments();
        let name = format!("log-{number:016x}");
        disk.remove(&name).unwrap();
        refused(&disk, &name, "the file is missing");
    }
    let disk = four_segments();
    for number in 4..=7 {
        disk.remove(&format!("log-{number:016x}")).unwrap();
    }
    refused(&disk, "log-0000000000000004", "the file is missing");
    // Before there was a frame nothing is missed.
    let disk = MemoryDisk::new(8);
    assert_eq!(opened(&disk).unwrap().next(), 1);
    assert_eq!(opened(&disk).unwrap().next(), 1);
}

#[test]
fn a_log_that_was_cut_is_refused() {
    let name = "log-0000000000000007";
    for len in [33, 1000, 3056, 4095] {
        let disk = four_segments();
        disk.open(name).unwrap().truncate(len).unwrap();
        refused(&disk, name, "4096 bytes were set aside");
    }
    // Also one that was opened since.
    let disk = four_segments();
    drop(opened(&disk).unwrap());
    disk.open(name).unwrap().truncate(3100).unwrap();
    refused(&disk, name, "4096 bytes were set aside");
}

#[test]
fn a_log_from_before_there_were_manifests_is_taken_once() {
    let disk = four_segments();
    disk.remove("manifest").unwrap();
    // Its newest segment had been cut behind the last frame.
    disk.open("log-0000000000000007").unwrap().truncate(3056).unwrap();
    let log = opened(&disk).unwrap();
    assert_eq!((log.first(), log.next()), (4, 8));
    disk.crash();
    disk.remove("log-0000000000000004").unwrap();
    refused(&disk, "log-0000000000000004", "the file is missing");
}

#[test]
fn a_torn_batch_leaves_nothing_that_later_frames_lead_to() {
    for seed in 0..200 {
        let disk = MemoryDisk::new(seed);
        let mut log = opened(&disk).unwrap();
        let write = |log: &mut OpenLog, byte| {
            let mut batch = FrameBatch::default();
            (0..3).for_each(|_| _ = batch.add(|out| out.resize(out.len() + 1000, byte)));
            log.write(&mut batch)
        };
        // Into a segment that is there: only the sync stops.
        let mut one = FrameBatch::default();
        one.add(|out| out.push(1));
        log.write(&mut one).unwrap();
        disk.trouble_at(disk.calls() + 2, CallFault::Stop);
        write(&mut log, 2).unwrap_err();
        disk.crash();
        let mut log = opened(&disk).unwrap();
        let before = log.next();
        let mut batch = FrameBatch::default();
        batch.add(|out| out.resize(out.len() + 1000, 3));
        log.write(&mut batch).unwrap();
        assert_eq!(opened(&disk).unwrap().next(), before + 1, "seed {seed}");
    }
}
