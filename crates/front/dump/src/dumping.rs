//! Dumps: passes until one was carried out while nothing changed.

use std::sync::Arc;
use std::time::Duration;

use samite_client::{Client, Dataset, DatasetFreeze};
use samite_placement::ClusterMap;
use samite_types::{
    Clock, Deadline, Entropy, Error, ErrorKind, Result, SystemClock, SystemEntropy,
};
use samite_wire::control::DurabilityKind;
use samite_wire::op::Operation;

use crate::manifest::{DatasetManifest, DumpManifest, FORMAT};
use crate::pass::LastKeys;
use crate::segment::{DumpFrameKind, SEGMENT_LEN};
use crate::sink::{DumpDestination, DumpSink};
use crate::{TransferProgress, corrupt};

/// How often it is tried to carry out a pass while the datasets are frozen.
const FREEZES_MAX: usize = 5;

/// How to dump.
#[derive(Clone, Copy, Debug)]
pub struct DumpOptions {
    /// Freeze nothing: each record is as it was at some time while the dump lasted.
    pub live: bool,
    /// For how long changes of the datasets may have to wait at a time.
    pub pause_max: Duration,
    /// Bytes after which a segment ends, at most [`SEGMENT_LEN`]: what is done again when the dump
    /// is cut short, and the memory that dump and load need.
    pub segment_len: usize,
}

impl Default for DumpOptions {
    /// Of one moment; 10 s; the longest segments.
    fn default() -> Self {
        Self { live: false, pause_max: Duration::from_secs(10), segment_len: SEGMENT_LEN }
    }
}

/// What a dump has come to.
#[derive(Clone, Debug, Default)]
pub struct DumpReport {
    /// Names of the datasets.
    pub datasets: Vec<String>,
    /// Records, those included that came again in a later pass.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Most passes over a dataset.
    pub passes: usize,
    /// For how long changes had to wait in the end.
    pub pause: Duration,
    /// It went on where another one had stopped.
    pub is_continued: bool,
}

/// A dump under way.
pub(crate) struct DumpRun<'a> {
    pub(crate) sink: DumpSink,
    pub(crate) manifest: DumpManifest,
    pub(crate) lists: Vec<LastKeys>,
    pub(crate) progress: &'a TransferProgress,
    pub(crate) segment_len: usize,
    frozen: Option<FrozenDatasets>,
}

/// All datasets of the dump, frozen.
struct FrozenDatasets {
    freezes: Vec<DatasetFreeze>,
    since: Duration,
    until: Deadline,
}

/// Dumps the datasets of these names. A dump that is in the directory and not finished goes on.
///
/// # Errors
/// `Exists`: there is a whole dump. `Invalid`: the one that is there is of other datasets.
/// `NotFound`, `Denied`: a dataset. `Busy`: it changes so much that no pass ends within the longest
/// pause. `Lost`, and as [`Dataset::scan`]. `Io`, `NoSpace`: the destination.
pub fn dump(
    client: &Client,
    names: &[String],
    destination: DumpDestination,
    options: &DumpOptions,
    progress: &TransferProgress,
) -> Result<DumpReport> {
    let (sink, begun) = DumpSink::open(destination)?;
    let map = client.refresh_map()?;
    let is_continued = begun.is_some();
    let manifest = match begun {
        Some(begun) => continued(begun, names, &map, options)?,
        None => begin(client, names, &map, options)?,
    };
    let lists = manifest.datasets.iter().map(|_| None).collect();
    let mut run =
        DumpRun { sink, manifest, lists, progress, segment_len: options.segment_len, frozen: None };
    run.sink.save(&run.manifest, DumpFrameKind::Begin)?;
    let datasets = run.open(client)?;
    for (at, dataset) in datasets.iter().enumerate() {
        if run.manifest.datasets[at].passes.is_empty() {
            run.first_pass(at, dataset)?;
        } else {
            run.take_up_list(at)?;
        }
    }
    let pause = if options.live { Duration::ZERO } else { run.settle(&datasets, options)? };
    run.check_nodes(client)?;
    run.finish(pause, is_continued)
}

fn begin(
    client: &Client,
    names: &[String],
    map: &ClusterMap,
    options: &DumpOptions,
) -> Result<DumpManifest> {
    let datasets = names.iter().map(|name| {
        let dataset = client.dataset(name)?;
        let map = client.map()?;
        let data = map.dataset_by_id(dataset.id()).ok_or(ErrorKind::NotFound)?;
        let root = samite_fs::MARKER_KEY;
        let root = Operation::get(dataset.partition_of(root), root);
        Ok(DatasetManifest {
            id: data.id,
            spec: data.spec.clone(),
            wheel: data.wheel.clone(),
            partitions: map.partitions(),
            is_files: dataset.execute_one(root.into())?.is_done(),
            passes: Vec::new(),
            progress: None,
        })
    });
    Ok(DumpManifest {
        format: FORMAT,
        id: SystemEntropy.next_u64(),
        cluster: map.cluster().to_owned(),
        live: options.live,
        finished: false,
        nodes: map.nodes().iter().map(|info| (info.node.get(), info.incarnation)).collect(),
        datasets: datasets.collect::<Result<_>>()?,
    })
}

/// A dump that goes on.
fn continued(
    begun: DumpManifest,
    names: &[String],
    map: &ClusterMap,
    options: &DumpOptions,
) -> Result<DumpManifest> {
    let known: Vec<&String> = begun.datasets.iter().map(|dataset| &dataset.spec.name).collect();
    let invalid = |words: &str| {
        let words = format!("the dump that is there cannot go on: {words}; remove it first");
        Err(Error::new(ErrorKind::Invalid, words))
    };
    if begun.cluster != map.cluster() {
        return invalid(&format!("it is of cluster {}", begun.cluster));
    }
    if known.len() != names.len() || names.iter().any(|name| !known.contains(&name)) {
        return invalid("it is of other datasets");
    }
    if begun.live != options.live {
        return invalid(if begun.live { "it is live" } else { "it is not live" });
    }
    for dataset in &begun.datasets {
        let now = map.dataset(&dataset.spec.name);
        if now.is_none_or(|now| now.id != dataset.id) {
            return invalid(&format!("dataset {} was made anew", dataset.spec.name));
        }
    }
    if let Some(name) = begun_anew(&begun, map) {
        return invalid(&format!("dataset {name} may have begun anew: nodes were started again"));
    }
    Ok(begun)
}

/// A dataset in memory whose versions may have begun anew, as so many nodes were started again.
fn begun_anew<'m>(manifest: &'m DumpManifest, map: &ClusterMap) -> Option<&'m str> {
    let is_there = |&&(node, incarnation): &&(u32, u64)| {
        map.nodes().iter().any(|info| (info.node.get(), info.incarnation) == (node, incarnation))
    };
    let gone = manifest.nodes.iter().filter(|node| !is_there(node)).count();
    let may_be_lost = |dataset: &&DatasetManifest| {
        dataset.spec.durability == DurabilityKind::Memory
            && usize::from(dataset.spec.redundancy.get()) <= gone
    };
    manifest.datasets.iter().find(may_be_lost).map(|dataset| dataset.spec.name.as_str())
}

impl DumpRun<'_> {
    fn open(&self, client: &Client) -> Result<Vec<Dataset>> {
        let open = |dataset: &DatasetManifest| {
            let found = client.dataset(&dataset.spec.name)?;
            if found.id() == dataset.id {
                return Ok(found);
            }
            let words = format!("dataset {}: it was made anew", dataset.spec.name);
            Err(Error::new(ErrorKind::NotFound, words))
        };
        self.manifest.datasets.iter().map(open).collect()
    }

    /// Takes up the key list that the last whole pass has left.
    fn take_up_list(&mut self, at: usize) -> Result<()> {
        let dataset = &self.manifest.datasets[at];
        let pass = dataset.passes.len() as u32 - 1;
        let list = self.sink.key_list(&dataset.spec.name, pass)?;
        if dataset.passes[0].records > 0 && list.metadata().is_ok_and(|found| found.len() == 0) {
            return Err(corrupt(format!("dataset {}: its key list is gone", dataset.spec.name)));
        }
        self.lists[at] = Some(Arc::new(list));
        Ok(())
    }

    /// Carries out passes until all datasets were frozen during one; for how long they were.
    fn settle(&mut self, datasets: &[Dataset], options: &DumpOptions) -> Result<Duration> {
        for _ in 0..FREEZES_MAX {
            let mut freezes = Vec::with_capacity(datasets.len());
            for dataset in datasets {
                let name = &dataset.spec().name;
                let frozen = dataset.freeze();
                freezes.push(frozen.map_err(|error| {
                    error.context(format_args!("freeze dataset {name} for the dump"))
                })?);
            }
            let (since, until) = (SystemClock.monotonic(), Deadline::after(options.pause_max));
            self.frozen = Some(FrozenDatasets { freezes, since, until });
            for (at, dataset) in datasets.iter().enumerate() {
                self.next_pass(at, dataset)?;
            }
            if let Some(FrozenDatasets { freezes, since, .. }) = self.frozen.take()
                && freezes.iter().all(|freeze| freeze.check().is_ok())
            {
                return Ok(SystemClock.monotonic().saturating_sub(since));
            }
        }
        let words = format!(
            "{FREEZES_MAX} passes have taken longer than {} s each: allow a longer pause, or a live dump",
            options.pause_max.as_secs_f32(),
        );
        Err(Error::new(ErrorKind::Busy, words))
    }

    /// Lets changes go on when they have waited as long as they may: the pass goes on, and another
    /// one will follow.
    pub(crate) fn thaw_if_late(&mut self) {
        let is_late = |frozen: &mut FrozenDatasets| {
            frozen.until.remaining().is_none()
                || frozen.freezes.iter().any(|freeze| freeze.told().is_err())
        };
        drop(self.frozen.take_if(is_late));
    }

    fn check_nodes(&self, client: &Client) -> Result<()> {
        match begun_anew(&self.manifest, &*client.refresh_map()?) {
            Some(name) => {
                let words = format!(
                    "dataset {name} may have begun anew while it was dumped: nodes were started again"
                );
                Err(Error::new(ErrorKind::Lost, words))
            }
            None => Ok(()),
        }
    }

    fn finish(mut self, pause: Duration, is_continued: bool) -> Result<DumpReport> {
        self.manifest.finished = true;
        self.sink.save(&self.manifest, DumpFrameKind::End)?;
        self.sink.clear(&self.manifest);
        let mut report = DumpReport { pause, is_continued, ..DumpReport::default() };
        for dataset in &self.manifest.datasets {
            report.datasets.push(dataset.spec.name.clone());
            report.passes = report.passes.max(dataset.passes.len());
            for pass in &dataset.passes {
                report.records += pass.records;
                report.bytes += pass.bytes;
                report.segments += pass.segments;
            }
            self.sink.drop_key_list(&dataset.spec.name, dataset.passes.len() as u32 - 1);
        }
        Ok(report)
    }
}
