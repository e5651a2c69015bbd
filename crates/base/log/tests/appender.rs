//! The thread of a log: frames that it says are on flash are, many frames share a write, and a disk
//! that is full or broken is said to be.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use samite_log::memory::{CallFault, MemoryDisk};
use samite_log::storage::StorageNote;
use samite_log::{DirDisk, FrameNeed, LogAppender, LogDisk, LogSettings, OpenLog, checkpoint};
use samite_types::fault::FaultSwitch;
use samite_types::{ErrorKind, NodeId};

const PATIENCE: Duration = Duration::from_secs(20);

fn settings(segment_len: u64) -> LogSettings {
    LogSettings { id: 77, segment_len }
}

fn start(disk: &Arc<dyn LogDisk>, settings: LogSettings) -> (LogAppender, mpsc::Receiver<()>) {
    let log = OpenLog::open(Arc::clone(disk), settings, &mut |_, _| Ok(())).expect("a log");
    let (woken, wakes) = mpsc::channel();
    let appender = LogAppender::start("log", log, move || {
        let _ = woken.send(());
    })
    .expect("a log");
    (appender, wakes)
}

fn count(disk: &Arc<dyn LogDisk>, settings: LogSettings) -> u64 {
    let mut frames = 0;
    OpenLog::open(Arc::clone(disk), settings, &mut |_, _| {
        frames += 1;
        Ok(())
    })
    .expect("a log");
    frames
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn frames_are_durable_when_it_says_so_and_share_writes() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn LogDisk> = Arc::new(DirDisk::new(&dir.path().join("a/b"), None).unwrap());
    let (mut appender, wakes) = start(&disk, settings(1 << 20));
    for _ in 0..100 {
        for _ in 0..10 {
            appender.admit(100, FrameNeed::Ordinary).unwrap();
            appender.add(|out| out.extend_from_slice(&[5; 100]));
        }
        appender.submit();
    }
    let last = appender.next();
    while appender.durable() < last {
        wakes.recv_timeout(PATIENCE).unwrap();
    }
    let numbers = appender.metrics();
    assert_eq!((numbers.frames, last), (1000, 1001));
    assert!(numbers.batches <= 100 && numbers.len >= 1 << 20, "{numbers:?}");
    appender.add(|out| out.push(1));
    drop(appender);
    assert_eq!(count(&disk, settings(1 << 20)), 1001, "dropping it writes what there is");
}

#[test]
fn a_full_disk_refuses_what_has_no_place_and_goes_on_when_there_is_some() {
    let memory = MemoryDisk::new(1);
    // Three segments and the manifest.
    memory.set_capacity(Some(3 * 4096 + 8192));
    let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
    let (mut appender, _wakes) = start(&disk, settings(4096));
    let mut added = 0;
    let refused = loop {
        match appender.admit(1000, FrameNeed::Ordinary) {
            Ok(()) => {
                appender.add(|out| out.extend_from_slice(&[1; 1000]));
                appender.submit();
                added += 1;
                assert!(added < 100);
            }
            Err(ErrorKind::Busy) => std::thread::sleep(Duration::from_millis(1)),
            Err(kind) => break kind,
        }
    };
    assert_eq!(refused, ErrorKind::NoSpace);
    assert!((6..=12).contains(&added), "{added}");
    until("what was accepted is written", || appender.durable() == appender.next());
    memory.set_capacity(None);
    until("it goes on", || appender.admit(1000, FrameNeed::Ordinary).is_ok());
    appender.add(|out| out.extend_from_slice(&[1; 1000]));
    drop(appender);
    assert_eq!(count(&disk, settings(4096)), added + 1);
}

/// Adds frames for `need` until one is refused. How many there were.
fn add_until_refused(appender: &mut LogAppender, need: FrameNeed) -> (u64, ErrorKind) {
    let mut added = 0;
    loop {
        match appender.admit(8, need) {
            Ok(()) => {
                appender.add(|out| out.extend_from_slice(&[1; 8]));
                appender.submit();
                added += 1;
                assert!(added < 10_000);
            }
            Err(ErrorKind::Busy) => std::thread::sleep(Duration::from_millis(1)),
            Err(kind) => return (added, kind),
        }
    }
}

#[test]
fn on_a_full_disk_a_log_goes_on_where_it_was_and_keeps_the_last_space_for_what_frees() {
    let segment_len = 1 << 14;
    let memory = MemoryDisk::new(1);
    let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
    let (mut appender, _wakes) = start(&disk, settings(segment_len));
    memory.set_capacity(Some(0));
    let (mut written, refused) = add_until_refused(&mut appender, FrameNeed::Ordinary);
    assert_eq!(refused, ErrorKind::NoSpace);
    // A restart leaves the files on the disk as they are: no space is given up, and none is needed.
    for (need, frames) in
        [(FrameNeed::Small, 16), (FrameNeed::Essential, 8), (FrameNeed::Essential, 0)]
    {
        drop(appender);
        memory.crash();
        (appender, _) = start(&disk, settings(segment_len));
        assert!(appender.blocked().is_none());
        assert_eq!(appender.shortage().map(|error| error.kind()), Some(ErrorKind::NoSpace));
        assert_eq!(add_until_refused(&mut appender, FrameNeed::Ordinary), (0, ErrorKind::NoSpace));
        // Frames of 32 bytes, of a quarter of the 1024 that are reserved.
        let (added, refused) = add_until_refused(&mut appender, need);
        assert!((frames / 2..=frames).contains(&added), "{added} {need:?}");
        assert_eq!(refused, ErrorKind::NoSpace);
        written += added;
    }
    // A frame that is added without asking still has its place.
    appender.add(|out| out.extend_from_slice(&[1; 8]));
    appender.submit();
    until("it is written", || appender.durable() == appender.next());
    memory.set_capacity(None);
    until("it goes on", || appender.admit(1000, FrameNeed::Ordinary).is_ok());
    drop(appender);
    assert_eq!(count(&disk, settings(segment_len)), written + 1);
}

#[test]
fn what_was_set_aside_is_found_again_where_there_is_no_space_for_another() {
    let memory = MemoryDisk::new(1);
    let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
    let (appender, _wakes) = start(&disk, settings(4096));
    let len = appender.metrics().len;
    drop(appender);
    memory.set_capacity(Some(0));
    memory.crash();
    // Its name was never synced, so it may be there or not.
    let is_there = disk.list().unwrap().iter().any(|name| name == "spare");
    let (appender, _wakes) = start(&disk, settings(4096));
    assert_eq!((appender.trouble().is_none(), appender.blocked().is_none()), (is_there, is_there));
    if is_there {
        assert_eq!(appender.metrics().len, len);
    }
}

#[test]
fn where_there_is_no_space_for_a_whole_segment_a_small_one_will_do() {
    let memory = MemoryDisk::new(1);
    let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
    // The manifest and a part of a segment.
    memory.set_capacity(Some(8192 + 6000));
    let (mut appender, _wakes) = start(&disk, settings(1 << 16));
    assert!(appender.blocked().is_none());
    assert_eq!(appender.trouble().map(|error| error.kind()), Some(ErrorKind::NoSpace));
    let (added, refused) = add_until_refused(&mut appender, FrameNeed::Essential);
    assert!(added > 50 && refused == ErrorKind::NoSpace, "{added}");
    memory.set_capacity(None);
    until("it goes on", || appender.admit(30_000, FrameNeed::Ordinary).is_ok());
    appender.add(|out| out.resize(out.len() + 30_000, 1));
    drop(appender);
    assert_eq!(count(&disk, settings(1 << 16)), added + 1);
    // With none at all it is said that there is no way to go on.
    let empty = MemoryDisk::new(2);
    empty.set_capacity(Some(8192));
    let disk: Arc<dyn LogDisk> = Arc::new(empty);
    let (appender, _wakes) = start(&disk, settings(1 << 16));
    assert!(appender.blocked().is_some());
}

#[test]
fn what_could_not_be_written_is_written_later_and_nothing_is_said_to_be_there_before() {
    for op in 0..4 {
        let memory = MemoryDisk::new(2);
        let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
        let (mut appender, _wakes) = start(&disk, settings(1 << 16));
        for index in 0..20 {
            if index == 10 {
                (1..=3).for_each(|call| {
                    memory.trouble_at(memory.calls() + op + call, CallFault::Error);
                });
            }
            until("there is room", || appender.admit(10, FrameNeed::Ordinary).is_ok());
            appender.add(|out| out.extend_from_slice(&[1; 10]));
            appender.submit();
            let next = appender.next();
            until("written", || appender.durable() == next);
        }
        until("the trouble is over", || appender.trouble().is_none());
        drop(appender);
        memory.crash();
        assert_eq!(count(&disk, settings(1 << 16)), 20);
    }
}

#[test]
fn injected_faults_reach_a_directory_and_end() {
    for fault in ["torn", "error", "full"] {
        let dir = tempfile::tempdir().unwrap();
        let faults = FaultSwitch::new(NodeId(1), None);
        let disk = DirDisk::new(dir.path(), Some(Arc::clone(&faults))).unwrap();
        let disk: Arc<dyn LogDisk> = Arc::new(disk);
        let (mut appender, _wakes) = start(&disk, settings(1 << 16));
        let add = |appender: &mut LogAppender| {
            appender.add(|out| out.resize(out.len() + 1000, 1));
            appender.submit();
        };
        add(&mut appender);
        until("written", || appender.durable() == 2);
        faults.set(Some(format!("disk {fault} 100% 1").parse().unwrap()));
        add(&mut appender);
        until("it is in trouble", || appender.trouble().is_some());
        assert!(appender.trouble().unwrap().message().contains("injected"));
        assert_eq!(appender.durable(), 2);
        until("it refuses more", || {
            matches!(
                appender.admit(1, FrameNeed::Ordinary),
                Err(ErrorKind::Io | ErrorKind::NoSpace)
            )
        });
        faults.set(None);
        until("written after all", || appender.durable() == 3);
        drop(appender);
        assert_eq!(count(&disk, settings(1 << 16)), 2, "{fault}");
    }
}

#[test]
fn a_directory_keeps_its_id_and_is_not_taken_for_anothers() {
    let disk = MemoryDisk::new(5);
    let like = StorageNote { id: 5, node: 1, shards: 2 };
    assert_eq!(StorageNote::open(&disk, like).unwrap(), like);
    disk.crash();
    assert_eq!(StorageNote::open(&disk, StorageNote { id: 6, ..like }).unwrap().id, 5);
    for other in [StorageNote { node: 2, ..like }, StorageNote { shards: 1, ..like }] {
        assert_eq!(StorageNote::open(&disk, other).unwrap_err().kind(), ErrorKind::Invalid);
    }
    disk.rot("storage", 9, 1);
    assert_eq!(StorageNote::open(&disk, like).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_checkpoint_is_whole_or_not_there() {
    let memory = MemoryDisk::new(6);
    let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
    let write = || {
        let mut writer = checkpoint::CheckpointWriter::create(Arc::clone(&disk), 9, "c")?;
        for index in 0..40u32 {
            writer.add(&vec![index as u8; 1 + index as usize * 5000])?;
        }
        writer.finish()
    };
    let read = || {
        let mut frames = 0u32;
        checkpoint::read_all(&*disk, 9, "c", &mut |bytes| {
            assert_eq!(bytes, vec![frames as u8; 1 + frames as usize * 5000]);
            frames += 1;
            Ok(())
        })
        .map(|_| frames)
    };
    let mut before = 0;
    for call in 1.. {
        memory.trouble_at(memory.calls() + call, CallFault::Stop);
        let written = write();
        memory.crash();
        match &written {
            Ok(_) => assert_eq!(read().unwrap(), 40),
            Err(_) => assert!(matches!(
                read().map_err(|error| error.kind()),
                Err(ErrorKind::NotFound) | Ok(40)
            )),
        }
        before += 1;
        if written.is_ok() {
            break;
        }
    }
    assert!(before > 5);
    memory.rot("c", 200_000, 3);
    assert_eq!(read().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_large_checkpoint_leaves_the_last_of_the_disk_to_small_ones() {
    let memory = MemoryDisk::new(7);
    let disk: Arc<dyn LogDisk> = Arc::new(memory.clone());
    let write = |name, len| {
        let mut writer = checkpoint::CheckpointWriter::create(Arc::clone(&disk), 9, name)?;
        for _ in 0..len / 1000 {
            if let Err(error) = writer.add(&[1; 1000]) {
                writer.discard()?;
                return Err(error);
            }
        }
        writer.finish()
    };
    memory.set_capacity(Some(8 << 20));
    write("a", 2 << 20).unwrap();
    let error = write("b", 3 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(disk.list().unwrap(), ["a"], "what it had is given up");
    disk.sync().unwrap();
    write("c", 1 << 20).unwrap();
    write("d", 2 << 20).unwrap_err();
    write("e", 100 << 10).unwrap();
}
