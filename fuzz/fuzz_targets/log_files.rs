//! Files on flash with any content: a log, its manifest and a checkpoint that are read give frames
//! or an error, and a log that was opened can be opened again.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use samite_log::memory::MemoryDisk;
use samite_log::{LogDisk, OpenLog, LogSettings, checkpoint};

const SETTINGS: LogSettings = LogSettings { id: 7, segment_len: 64 << 10 };

fn file(disk: &MemoryDisk, name: &str, bytes: &[u8]) {
    let file = disk.create(name).expect("a name that is free");
    file.write_at(0, bytes).expect("a disk without limits");
}

fuzz_target!(|input: (&[u8], &[u8], &[u8], Option<&[u8]>)| {
    let (first, second, copy, manifest) = input;
    let disk = MemoryDisk::new(1);
    file(&disk, "log-0000000000000001", first);
    file(&disk, "log-0000000000000003", second);
    file(&disk, "copy", copy);
    if let Some(manifest) = manifest {
        file(&disk, "manifest", manifest);
    }
    let _ = checkpoint::read_all(&disk, SETTINGS.id, "copy", &mut |_| Ok(()));
    let disk: Arc<dyn LogDisk> = Arc::new(disk);
    let read = || {
        let mut frames = Vec::new();
        let opened = OpenLog::open(Arc::clone(&disk), SETTINGS, &mut |number, bytes| {
            frames.push((number, bytes.to_vec()));
            Ok(())
        });
        opened.ok().map(|_| frames)
    };
    if let Some(frames) = read() {
        assert_eq!(read(), Some(frames), "what was cleared was no part of it");
    }
});
