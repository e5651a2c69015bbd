//! The thread of a log: what is told to be on flash is, many frames share a write, and a disk that is full or broken is said to be.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use samite_log::memory::{MemoryDisk, Trouble};
use samite_log::storage::Storage;
use samite_log::{
    Appender, DirDisk, Disk, DiskFault, DiskFaults, DiskOp, Log, Settings, checkpoint,
};
use samite_types::ErrorKind;

const PATIENCE: Duration = Duration::from_secs(20);

fn settings(segment_len: u64) -> Settings {
    Settings { id: 77, segment_len }
}

fn start(disk: &Arc<dyn Disk>, settings: Settings) -> (Appender, mpsc::Receiver<()>) {
    let log = Log::open(Arc::clone(disk), settings, &mut |_, _| Ok(())).expect("a log");
    let (woken, wakes) = mpsc::channel();
    let appender = Appender::start("log", log, move || {
        let _ = woken.send(());
    })
    .expect("a log");
    (appender, wakes)
}

fn count(disk: &Arc<dyn Disk>, settings: Settings) -> u64 {
    let mut frames = 0;
    Log::open(Arc::clone(disk), settings, &mut |_, _| {
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
    let disk: Arc<dyn Disk> = Arc::new(DirDisk::new(&dir.path().join("a/b"), None).unwrap());
    let (mut appender, wakes) = start(&disk, settings(1 << 20));
    for _ in 0..100 {
        for _ in 0..10 {
            appender.admit(100).unwrap();
            appender.add(|out| out.extend_from_slice(&[5; 100]));
        }
        appender.submit();
    }
    let last = appender.next();
    while appender.durable() < last {
        wakes.recv_timeout(PATIENCE).unwrap();
    }
    let figures = appender.figures();
    assert_eq!((figures.frames, last), (1000, 1001));
    assert!(figures.batches <= 100 && figures.len >= 1 << 20, "{figures:?}");
    appender.add(|out| out.push(1));
    drop(appender);
    assert_eq!(count(&disk, settings(1 << 20)), 1001, "dropping it writes what there is");
}

#[test]
fn a_full_disk_refuses_what_has_no_place_and_goes_on_when_there_is_some() {
    let memory = MemoryDisk::new(1);
    memory.set_capacity(Some(3 * 4096));
    let disk: Arc<dyn Disk> = Arc::new(memory.clone());
    let (mut appender, _wakes) = start(&disk, settings(4096));
    let mut added = 0;
    let refused = loop {
        match appender.admit(1000) {
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
    assert!(appender.broken().is_none());
    memory.set_capacity(None);
    until("it goes on", || appender.admit(1000).is_ok());
    appender.add(|out| out.extend_from_slice(&[1; 1000]));
    drop(appender);
    assert_eq!(count(&disk, settings(4096)), added + 1);
}

#[test]
fn a_log_that_cannot_sync_takes_nothing_more_and_keeps_what_it_acknowledged() {
    let memory = MemoryDisk::new(2);
    let disk: Arc<dyn Disk> = Arc::new(memory.clone());
    let (mut appender, _wakes) = start(&disk, settings(1 << 16));
    for index in 0..20 {
        if index == 10 {
            memory.trouble_at(memory.calls() + 2, Trouble::Error);
        }
        if appender.admit(10).is_err() {
            break;
        }
        appender.add(|out| out.extend_from_slice(&[1; 10]));
        appender.submit();
        let next = appender.next();
        until("written or broken", || appender.durable() == next || appender.broken().is_some());
    }
    assert_eq!(appender.broken().unwrap().kind(), ErrorKind::Io);
    assert_eq!(appender.admit(10), Err(ErrorKind::Io));
    assert_eq!(appender.durable(), 11);
    drop(appender);
    memory.crash();
    assert!((10..=11).contains(&count(&disk, settings(1 << 16))));
}

#[test]
fn injected_faults_reach_a_directory() {
    struct Torn;
    impl DiskFaults for Torn {
        fn before(&self, op: DiskOp) -> (Duration, Option<DiskFault>) {
            let fault =
                matches!(op, DiskOp::Write(len) if len > 500).then_some(DiskFault::Torn(300));
            (Duration::ZERO, fault)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DirDisk::new(dir.path(), Some(Arc::new(Torn))).unwrap());
    let (mut appender, _wakes) = start(&disk, settings(1 << 16));
    for len in [100, 1000] {
        appender.add(|out| out.resize(out.len() + len, 1));
        appender.submit();
        until("written or broken", || {
            appender.durable() == appender.next() || appender.broken().is_some()
        });
    }
    assert!(appender.broken().unwrap().message().contains("injected"));
    drop(appender);
    assert_eq!(count(&disk, settings(1 << 16)), 1);
}

#[test]
fn a_directory_keeps_its_id_and_is_not_taken_for_anothers() {
    let disk = MemoryDisk::new(5);
    let like = Storage { id: 5, node: 1, shards: 2 };
    assert_eq!(Storage::open(&disk, like).unwrap(), like);
    disk.crash();
    assert_eq!(Storage::open(&disk, Storage { id: 6, ..like }).unwrap().id, 5);
    for other in [Storage { node: 2, ..like }, Storage { shards: 1, ..like }] {
        assert_eq!(Storage::open(&disk, other).unwrap_err().kind(), ErrorKind::Invalid);
    }
    disk.rot("storage", 9, 1);
    assert_eq!(Storage::open(&disk, like).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_checkpoint_is_whole_or_not_there() {
    let memory = MemoryDisk::new(6);
    let disk: Arc<dyn Disk> = Arc::new(memory.clone());
    let write = || {
        let mut writer = checkpoint::Writer::create(Arc::clone(&disk), 9, "c")?;
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
        memory.trouble_at(memory.calls() + call, Trouble::Stop);
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
