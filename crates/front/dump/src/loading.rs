//! Loads: the segments of a dump, in their order, into datasets that are made for them.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};

use samite_client::scan::ScanOptions;
use samite_client::{Client, ClientOperation, Dataset};
use samite_fs::FileSystem;
use samite_types::{Error, ErrorKind, PartitionId, Redundancy, Result};
use samite_wire::access::DatasetAccess;
use samite_wire::control::{BackendSpec, DatasetSpec, DistributionKind, DurabilityKind};
use samite_wire::op::{Action, Operation, ValueData};
use serde::{Deserialize, Serialize};

use crate::manifest::DatasetManifest;
use crate::merging::KeptRecords;
use crate::record_placing::{MARK_KEY, PlacedRecord, RecordPlacing};
use crate::segment::{RecordReader, SegmentHeader};
use crate::source::{DumpSource, SegmentSource};
use crate::{TransferProgress, corrupt};

/// Records that travel together, at most, and bytes of their values, about.
const BATCH_RECORDS: usize = 1024;
const BATCH_LEN: usize = 4 << 20;
/// Batches that are on their way at a time.
const THREADS: usize = 4;

/// What to load, and how.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Names of datasets of the dump, and of those that they become; none: all, under their names.
    pub datasets: Vec<(String, String)>,
    /// Datasets that are there are dropped first.
    pub replace: bool,
    /// What there is of a dump that is not finished will do.
    pub unfinished: bool,
    /// Nodes that are to hold each record, if not as many as they did.
    pub redundancy: Option<Redundancy>,
    /// What a restart of all nodes is to leave, if not what it did.
    pub durability: Option<DurabilityKind>,
    /// How chunks are to spread, if not as they did.
    pub distribution: Option<DistributionKind>,
    /// What is to hold the records, if not what did.
    pub backend: Option<BackendSpec>,
    /// The datasets are given back to the users to whom they belonged: root may.
    pub keep_owners: bool,
}

/// What a load has come to.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// The datasets.
    pub datasets: Vec<LoadedDataset>,
    /// Records that were written, or removed again.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// It went on where another one had stopped.
    pub is_continued: bool,
}

/// A dataset that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedDataset {
    /// Name in the dump.
    pub from: String,
    /// Name in the cluster.
    pub name: String,
}

/// How far a load is: the value of a record in the dataset itself, which stands until it is whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LoadMark {
    dump: u64,
    dataset: u32,
    /// The first segment that is not loaded: pass, number.
    next: (u32, u64),
    /// All datasets of the load are whole: what is left is to remove these notes.
    #[serde(default)]
    is_done: bool,
}

/// A dataset that is being loaded.
struct LoadingDataset {
    at: usize,
    dataset: Dataset,
    placing: RecordPlacing,
    mark: LoadMark,
}

/// Loads a dump. A load that was cut short goes on when it is called again.
///
/// # Errors
/// `NotFound`: there is no such dump, or dataset in it. `Invalid`: it is not finished, or a dataset
/// cannot be as it was in this cluster. `Exists`: a dataset is there and has records. `Corrupt`: a
/// segment is damaged, which the words name; nothing of it is loaded. `Io`; as
/// [`Dataset::execute`].
pub fn load(
    client: &Client,
    source: DumpSource,
    options: &LoadOptions,
    progress: &TransferProgress,
) -> Result<LoadReport> {
    let mut source = SegmentSource::open(source, options.unfinished)?;
    let mut loading = Vec::new();
    let mut report = LoadReport::default();
    let wanted = wanted(&source.manifest.datasets, options)?;
    // Before anything is made.
    let is_done = is_done(client, source.manifest.id, &wanted, options)?;
    for (at, name) in &wanted {
        check_room(client, name, (source.manifest.id, *at as u32), (options, is_done))?;
    }
    for (at, name) in wanted {
        let manifest = &source.manifest.datasets[at];
        if is_done && read_mark(&client.dataset(&name)?)?.is_none() {
            report.is_continued = true;
            report.datasets.push(LoadedDataset { from: manifest.spec.name.clone(), name });
            continue;
        }
        let one =
            LoadingDataset::begin(client, source.manifest.id, (at, manifest), &name, options)?;
        report.is_continued |= one.mark.next != (0, 0);
        report.datasets.push(LoadedDataset { from: manifest.spec.name.clone(), name });
        loading.push(one);
    }
    loop {
        let is_wanted = |(dataset, pass, number): (usize, u32, u64)| {
            loading.iter().any(|one| one.at == dataset && one.mark.next <= (pass, number))
        };
        let Some((header, body)) = source.next_segment(&is_wanted)? else { break };
        let mut of_it = loading.iter_mut().filter(|one| one.at == header.dataset as usize);
        let one = of_it.next().ok_or(ErrorKind::Internal)?;
        let (records, bytes) = one.take_segment(&header, &body, progress)?;
        report.records += records;
        report.bytes += bytes;
    }
    let skipped = report.is_continued || loading.len() < source.manifest.datasets.len();
    if !options.unfinished {
        source.check_end(skipped)?;
    }
    for one in &loading {
        one.put_in_place(client, &source.manifest.datasets[one.at])?;
    }
    // A load that is killed from here on finds a note that all of it is there, or no note.
    for one in &mut loading {
        one.mark.is_done = true;
        one.save()?;
    }
    for one in loading {
        let manifest = &source.manifest.datasets[one.at];
        one.finish(client, manifest, options)?;
    }
    Ok(report)
}

/// Positions of the datasets that are wanted, and their names in the cluster.
fn wanted(datasets: &[DatasetManifest], options: &LoadOptions) -> Result<Vec<(usize, String)>> {
    if options.datasets.is_empty() {
        let all = datasets.iter().map(|dataset| dataset.spec.name.clone());
        return Ok(all.enumerate().collect());
    }
    let mut wanted: Vec<(usize, String)> = Vec::new();
    for (from, name) in &options.datasets {
        let at = datasets.iter().position(|dataset| dataset.spec.name == *from);
        let at = at.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("the dump has no dataset {from}"))
        })?;
        if wanted.iter().any(|(other, taken)| *other == at || taken == name) {
            return Err(Error::new(ErrorKind::Invalid, format!("dataset {name} is named twice")));
        }
        wanted.push((at, name.clone()));
    }
    Ok(wanted)
}

/// Whether a load of this dump was killed when all of it was there: one of the datasets says so.
fn is_done(
    client: &Client,
    dump: u64,
    wanted: &[(usize, String)],
    options: &LoadOptions,
) -> Result<bool> {
    for (_, name) in wanted.iter().filter(|_| !options.replace) {
        let mark = match client.dataset(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            found => read_mark(&found?)?,
        };
        if mark.is_some_and(|mark| mark.dump == dump && mark.is_done) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a dataset of this name can be made, or be gone on with, or has nothing in it.
fn check_room(
    client: &Client,
    name: &str,
    load: (u64, u32),
    (options, is_done): (&LoadOptions, bool),
) -> Result<()> {
    let dataset = match client.dataset(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if options.replace {
        return Ok(());
    }
    let words = match read_mark(&dataset)? {
        Some(mark) if (mark.dump, mark.dataset) == load => return Ok(()),
        Some(_) => "another dump was loaded into it, and not to the end",
        None if is_done => return Ok(()),
        None if has_records(&dataset)? => "it is there and has records",
        None => return Ok(()),
    };
    Err(Error::new(ErrorKind::Exists, format!("dataset {name}: {words}; nothing was loaded")))
}

impl LoadingDataset {
    fn begin(
        client: &Client,
        dump: u64,
        (at, manifest): (usize, &DatasetManifest),
        name: &str,
        options: &LoadOptions,
    ) -> Result<Self> {
        // There are fewer datasets than that.
        let fresh = LoadMark { dump, dataset: at as u32, next: (0, 0), is_done: false };
        let (dataset, mark) = match client.dataset(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (client.create_dataset(&wanted_spec(manifest, name, options))?, None)
            }
            found => {
                let dataset = found?;
                let mark = read_mark(&dataset)?;
                let is_ours = mark
                    .as_ref()
                    .is_some_and(|mark| (mark.dump, mark.dataset) == (dump, fresh.dataset));
                let spec = wanted_spec(manifest, name, options);
                let fits = spec.is_same_policy(dataset.spec());
                if is_ours || !options.replace && fits {
                    (dataset, mark.filter(|_| is_ours))
                } else {
                    drop_dataset(client, &dataset, options)?;
                    (client.create_dataset(&spec)?, None)
                }
            }
        };
        let placing = RecordPlacing::new(manifest, &dataset, &*client.map()?)?;
        let one = Self { at, dataset, placing, mark: mark.unwrap_or(fresh) };
        one.save()?;
        Ok(one)
    }

    /// Notes how far it is.
    fn save(&self) -> Result<()> {
        let value = serde_json::to_vec(&self.mark).map_err(|_| ErrorKind::Internal)?;
        let partition = self.dataset.partition_of(MARK_KEY);
        let put = Action::Put { key: MARK_KEY, data: ValueData::Inline(&value) };
        let put = ClientOperation::new(Operation::new(partition, [put]));
        self.dataset.execute_one(put)?.into_results("note how far the load is").map(drop)
    }

    /// Loads a segment; how many records and bytes it has.
    fn take_segment(
        &mut self,
        header: &SegmentHeader,
        body: &[u8],
        progress: &TransferProgress,
    ) -> Result<(u64, u64)> {
        let segment = || format!("segment {} of pass {}", header.number, header.pass);
        // All of it is looked at before any of it is written.
        let mut reader = RecordReader::new(body);
        while let Some(record) = reader.next_record()? {
            self.placing.place(&record).map_err(|error| error.context(segment()))?;
        }
        let mut reader = RecordReader::new(body);
        let mut batches = vec![RecordBatch::default()];
        let mut bytes = 0;
        while let Some(record) = reader.next_record()? {
            bytes += record.value.unwrap_or_default().len() as u64;
            let (partition, key) = match self.placing.place(&record)? {
                PlacedRecord::At(partition) => (partition, Cow::Borrowed(record.key)),
                PlacedRecord::Kept(partition, key) => (partition, Cow::Owned(key)),
                PlacedRecord::Nowhere => continue,
            };
            if batches.last().is_none_or(RecordBatch::is_full) {
                batches.push(RecordBatch::default());
            }
            if let Some(batch) = batches.last_mut() {
                batch.push(partition, key, record.value);
            }
        }
        send_all(&self.dataset, &batches, progress)?;
        self.mark.next = (header.pass, header.number + 1);
        self.save()?;
        Ok((header.records.into(), bytes))
    }

    /// All segments are there: puts in place what was kept.
    fn put_in_place(&self, client: &Client, manifest: &DatasetManifest) -> Result<()> {
        KeptRecords::new(&self.dataset, &self.placing).put_in_place()?;
        if manifest.is_files {
            // Files that were open and had no name: those who had them open are not here.
            let files = FileSystem::open(client, &self.dataset.spec().name)?;
            files.remove_unreferenced()?;
        }
        Ok(())
    }

    /// All datasets are whole: gives this one to its users, and removes the note.
    fn finish(
        self,
        client: &Client,
        manifest: &DatasetManifest,
        options: &LoadOptions,
    ) -> Result<()> {
        let DatasetAccess { owner, mode } = manifest.spec.access;
        let owner = options.keep_owners.then_some(owner);
        client.set_access(&self.dataset.spec().name, owner, Some(mode))?;
        let partition = self.dataset.partition_of(MARK_KEY);
        let done = Operation::new(partition, [Action::Delete { key: MARK_KEY }]);
        self.dataset.execute_one(done.into())?.into_results("end the load").map(drop)
    }
}

/// Drops a dataset that is to go, or in which there is nothing.
fn drop_dataset(client: &Client, dataset: &Dataset, options: &LoadOptions) -> Result<()> {
    let name = &dataset.spec().name;
    if options.replace {
        return client.drop_dataset(name);
    }
    // So that nobody puts something there in between.
    let _frozen = dataset.freeze()?;
    if has_records(dataset)? {
        let words = format!("dataset {name}: it is there and has records; nothing was loaded");
        return Err(Error::new(ErrorKind::Exists, words));
    }
    client.drop_dataset(name)
}

/// The dataset as it is to be, for its owner alone until it is whole.
fn wanted_spec(manifest: &DatasetManifest, name: &str, options: &LoadOptions) -> DatasetSpec {
    let was = manifest.spec.clone();
    DatasetSpec {
        name: name.to_owned(),
        redundancy: options.redundancy.unwrap_or(was.redundancy),
        durability: options.durability.unwrap_or(was.durability),
        distribution: options.distribution.clone().unwrap_or(was.distribution),
        backend: options.backend.clone().unwrap_or(was.backend),
        access: DatasetAccess::default(),
        ..was
    }
}

fn read_mark(dataset: &Dataset) -> Result<Option<LoadMark>> {
    let get = Operation::get(dataset.partition_of(MARK_KEY), MARK_KEY);
    let outcome = dataset.execute_one(get.into())?;
    if !outcome.is_done() {
        return match outcome.into_results("look for a load") {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Ok(None),
        };
    }
    let results = outcome.into_results("look for a load")?;
    let value = match results.first() {
        Some(samite_client::OwnedResult::Value { data, .. }) => data.as_slice(),
        _ => &[],
    };
    let mark = serde_json::from_slice(value);
    mark.map(Some).map_err(|_| corrupt("the note on how far the load is is damaged"))
}

/// Whether there is something in a dataset. The root directory of files, which is made before there
/// are any, is nothing.
fn has_records(dataset: &Dataset) -> Result<bool> {
    let scan = dataset.scan(&ScanOptions { values: false, ..ScanOptions::default() })?;
    let mut cursor = scan.cursor();
    while cursor.advance()? {
        if cursor.record().key != samite_fs::MARKER_KEY {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends batches, some at a time. No key is in two of them.
fn send_all(
    dataset: &Dataset,
    batches: &[RecordBatch<'_>],
    progress: &TransferProgress,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = batch.send(dataset, progress) {
                // The others end, too.
                next.store(batches.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS.min(batches.len())).map(|_| scope.spawn(work)).collect();
        let own = work();
        let join = |other: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(own, |first, other| first.and(other))
    })
}

/// A record on its way: partition, key, and value unless it is to go.
type RecordToWrite<'b> = (PartitionId, Cow<'b, [u8]>, Option<&'b [u8]>);

/// Records on their way.
#[derive(Default)]
struct RecordBatch<'b> {
    records: Vec<RecordToWrite<'b>>,
    bytes: usize,
}

impl<'b> RecordBatch<'b> {
    fn push(&mut self, partition: PartitionId, key: Cow<'b, [u8]>, value: Option<&'b [u8]>) {
        self.bytes += value.unwrap_or_default().len();
        self.records.push((partition, key, value));
    }

    fn is_full(&self) -> bool {
        self.records.len() >= BATCH_RECORDS || self.bytes >= BATCH_LEN
    }

    fn send(&self, dataset: &Dataset, progress: &TransferProgress) -> Result<()> {
        let mut operations = Vec::with_capacity(self.records.len());
        for (partition, key, value) in &self.records {
            let action = match value {
                Some(value) => Action::Put { key, data: ValueData::Inline(value) },
                None => Action::Delete { key },
            };
            operations.push(ClientOperation::new(Operation::new(*partition, [action])));
        }
        if operations.is_empty() {
            return Ok(());
        }
        for outcome in dataset.execute(&mut operations, dataset.client().deadline())? {
            outcome.into_results("write a record of the dump")?;
        }
        progress.add(self.records.len() as u64, self.bytes as u64);
        Ok(())
    }
}
