//! Effects of the death of a process.

use std::time::{Duration, Instant};

use libc::{O_CREAT, O_RDWR};

use super::ClaimScene;
use crate::access_path::AccessPath;

type Test = (&'static str, fn(&mut ClaimScene<'_>));

pub const CLAIMS: &[Test] = &[
    ("a-dead-process-blocks-nobody", a_dead_process_blocks_nobody),
    ("one-death-leaves-other-holders", one_death_leaves_other_holders),
];

fn a_dead_process_blocks_nobody(scene: &mut ClaimScene<'_>) {
    let mut victim = scene.victim();
    let dir = scene.path("d");
    victim.mkdir(&dir).expect("mkdir");
    for index in 0..20 {
        let path = format!("{dir}/{index}");
        let file = victim.open(&path, O_CREAT | O_RDWR).expect("create");
        victim.write(file, 0, &vec![1; 1 << (index % 18)]).expect("write");
    }
    victim.kill();
    let start = Instant::now();
    for name in scene.other.list(&dir).expect("list") {
        scene.other.put(&format!("{dir}/{name}"), b"mine").expect("put");
        scene.other.unlink(&format!("{dir}/{name}")).expect("unlink");
    }
    scene.other.rmdir(&dir).expect("rmdir");
    assert!(start.elapsed() < Duration::from_secs(10), "waited for a dead process");
}

fn one_death_leaves_other_holders(scene: &mut ClaimScene<'_>) {
    let path = scene.path("f");
    scene.one.put(&path, &vec![6; 100_000]).expect("put");
    let mine = scene.other.open(&path, O_RDWR).expect("open");
    let mut victim = scene.victim();
    victim.open(&path, O_RDWR).expect("open");
    victim.unlink(&path).expect("unlink");
    victim.kill();
    // Longer than a node remembers a client that is gone.
    std::thread::sleep(Duration::from_millis(2500));
    let data = scene.other.read(mine, 0, 200_000).expect("read");
    assert!(data == vec![6; 100_000], "the file went with another process that had it open");
    scene.other.close(mine).expect("close");
}
