//! The tasks of a job, and what is to be done about each of them.
//!
//! Pure: answers of workers, nodes that are gone and the wish to end come in as calls; which tasks
//! to begin and to ask for is read from it.

use samite_types::{Error, ErrorKind, NodeId, PartitionId};
use samite_worker::messages::{TaskCounts, TaskEnd, TaskProgress};

/// Runs of a task after which the job fails: nodes die under it again and again.
const ATTEMPTS_MAX: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskPhase {
    /// It is to begin.
    Waiting,
    /// It was begun at its node.
    Begun,
    /// Its output is here.
    Done,
}

#[derive(Clone, Debug)]
struct TaskEntry {
    home: PartitionId,
    node: NodeId,
    attempt: u32,
    phase: TaskPhase,
    taken: u64,
    counts: TaskCounts,
}

/// Identifies one run of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskRunId {
    pub task: u32,
    pub attempt: u32,
}

/// What to do with the output in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputUse {
    /// It is new: keep it.
    Keep,
    /// It was kept, or is of a run that does not count.
    Drop,
}

/// How a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobStanding {
    /// There is something to do.
    Runs,
    /// All tasks are done.
    Done,
    /// It is to end without a result.
    Failed(ErrorKind, String),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct TaskTable {
    tasks: Vec<TaskEntry>,
    left: usize,
    failed: Option<(ErrorKind, String)>,
}

impl TaskTable {
    /// Tasks with the partitions that they are to be beside, and the nodes that serve these.
    pub fn new(homes: impl IntoIterator<Item = (PartitionId, NodeId)>) -> Self {
        let entry = |(home, node)| TaskEntry {
            home,
            node,
            attempt: 0,
            phase: TaskPhase::Waiting,
            taken: 0,
            counts: TaskCounts::default(),
        };
        let tasks: Vec<TaskEntry> = homes.into_iter().map(entry).collect();
        let left = tasks.len();
        Self { tasks, left, failed: None }
    }

    /// How the job stands.
    pub fn standing(&self) -> JobStanding {
        match &self.failed {
            Some((kind, words)) => JobStanding::Failed(*kind, words.clone()),
            None if self.left == 0 => JobStanding::Done,
            None => JobStanding::Runs,
        }
    }

    /// Nodes at which there is something to do.
    pub fn nodes(&self) -> Vec<NodeId> {
        let open = self.tasks.iter().filter(|task| task.phase != TaskPhase::Done);
        let mut nodes: Vec<NodeId> = open.map(|task| task.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Whether data that tasks of a node are to be beside are served by another one now.
    pub fn has_moved(&self, node: NodeId, server: impl Fn(PartitionId) -> Option<NodeId>) -> bool {
        let open =
            self.tasks.iter().filter(|task| task.node == node && task.phase != TaskPhase::Done);
        open.map(|task| server(task.home)).any(|now| now.is_some_and(|now| now != node))
    }

    /// Takes the next tasks to begin at a node, so that at most `most` of it are begun.
    pub fn begin(&mut self, node: NodeId, most: usize) -> Vec<TaskRunId> {
        if self.standing() != JobStanding::Runs {
            return Vec::new();
        }
        let at_node = |task: &&mut TaskEntry| task.node == node;
        let begun = |task: &TaskEntry| task.node == node && task.phase == TaskPhase::Begun;
        let room = most.saturating_sub(self.tasks.iter().filter(|task| begun(task)).count());
        let mut runs = Vec::new();
        for (number, task) in (0_u32..).zip(&mut self.tasks) {
            if runs.len() >= room {
                break;
            }
            if at_node(&task) && task.phase == TaskPhase::Waiting {
                task.phase = TaskPhase::Begun;
                runs.push(TaskRunId { task: number, attempt: task.attempt });
            }
        }
        runs
    }

    /// A task could not be begun now.
    pub fn put_back(&mut self, run: TaskRunId) {
        if let Some(task) = self.current(run) {
            task.phase = TaskPhase::Waiting;
        }
    }

    /// The tasks to ask for at a node, and the last batch of each that has come.
    pub fn begun(&self, node: NodeId) -> Vec<(TaskRunId, u64)> {
        let tasks = (0_u32..).zip(&self.tasks);
        let begun = tasks.filter(|(_, task)| task.node == node && task.phase == TaskPhase::Begun);
        let run = |(number, task): (u32, &TaskEntry)| {
            (TaskRunId { task: number, attempt: task.attempt }, task.taken)
        };
        begun.map(run).collect()
    }

    /// A worker has told how far a task is. Whether its output is new.
    pub fn progress(&mut self, run: TaskRunId, told: &TaskProgress) -> OutputUse {
        let Some(task) = self.current(run).filter(|task| task.phase == TaskPhase::Begun) else {
            return OutputUse::Drop;
        };
        let is_new = told.batch > task.taken;
        task.taken = task.taken.max(told.batch);
        task.counts = told.counts;
        let node = task.node;
        match &told.end {
            Some(TaskEnd::Done) => {
                task.phase = TaskPhase::Done;
                self.left -= 1;
            }
            Some(TaskEnd::Failed(kind, words)) => {
                let kind = ErrorKind::from_code(*kind).unwrap_or(ErrorKind::Internal);
                let words = format!("task {} on {node}: {words}", run.task);
                self.fail(&Error::new(kind, words));
            }
            None => {}
        }
        if is_new { OutputUse::Keep } else { OutputUse::Drop }
    }

    /// A node is gone, or is another process: what was begun there, and not finished, begins anew
    /// at the node that serves its data now. Returns the tasks whose output so far does not count.
    pub fn node_lost(
        &mut self,
        node: NodeId,
        server: impl Fn(PartitionId) -> Option<NodeId>,
    ) -> Vec<u32> {
        let mut again = Vec::new();
        let mut is_hopeless = false;
        for (number, task) in (0_u32..).zip(&mut self.tasks) {
            if task.node != node || task.phase == TaskPhase::Done {
                continue;
            }
            let next = server(task.home).unwrap_or(node);
            // One whose begin was not answered may have begun.
            if task.phase == TaskPhase::Begun || next != node {
                task.attempt += 1;
                is_hopeless |= task.attempt >= ATTEMPTS_MAX;
                task.taken = 0;
                task.counts = TaskCounts::default();
                again.push(number);
            }
            (task.phase, task.node) = (TaskPhase::Waiting, next);
        }
        if is_hopeless {
            let words = format!("a task was begun {ATTEMPTS_MAX} times, and its nodes were lost");
            self.fail(&Error::new(ErrorKind::Unavailable, words));
        }
        again
    }

    /// Tasks whose output is not needed any more: they count as done.
    pub fn drop_tasks(&mut self, is_unneeded: impl Fn(u32) -> bool) {
        for (number, task) in (0_u32..).zip(&mut self.tasks) {
            if task.phase != TaskPhase::Done && is_unneeded(number) {
                task.phase = TaskPhase::Done;
                self.left -= 1;
            }
        }
    }

    /// The job is to end without a result. The first reason counts.
    pub fn fail(&mut self, error: &Error) {
        if self.standing() == JobStanding::Runs {
            self.failed = Some((error.kind(), error.message().to_owned()));
        }
    }

    /// Tasks that are done, and all.
    pub fn done(&self) -> (usize, usize) {
        (self.tasks.len() - self.left, self.tasks.len())
    }

    /// Of all tasks together.
    pub fn counts(&self) -> TaskCounts {
        let mut sum = TaskCounts::default();
        self.tasks.iter().for_each(|task| sum.add(&task.counts));
        sum
    }

    /// Where each task ran last, how often it was begun before, and its counts.
    pub fn tasks(&self) -> impl Iterator<Item = (NodeId, u32, TaskCounts)> + '_ {
        self.tasks.iter().map(|task| (task.node, task.attempt, task.counts))
    }

    fn current(&mut self, run: TaskRunId) -> Option<&mut TaskEntry> {
        let task = self.tasks.get_mut(run.task as usize)?;
        (task.attempt == run.attempt).then_some(task)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use samite_worker::messages::PieceOutput;

    use super::*;

    const NODES: u32 = 3;

    /// What happens next.
    #[derive(Clone, Debug)]
    enum TableEvent {
        Begin(u32),
        /// A task of the node gives a batch; the answer is lost or comes, once or twice.
        Gives(u32, usize, u8),
        Ends(u32, usize),
        /// The node is lost, and another one serves its partitions.
        Lost(u32, u32),
    }

    fn events() -> impl Strategy<Value = Vec<TableEvent>> {
        let node = 0..NODES;
        let event = prop_oneof![
            node.clone().prop_map(TableEvent::Begin),
            (node.clone(), 0..6_usize, 0..3_u8)
                .prop_map(|(node, at, times)| TableEvent::Gives(node, at, times)),
            (node.clone(), 0..6_usize).prop_map(|(node, at)| TableEvent::Ends(node, at)),
            (node.clone(), node).prop_map(|(node, to)| TableEvent::Lost(node, to)),
        ];
        proptest::collection::vec(event, 0..120)
    }

    fn told(batch: u64, end: Option<TaskEnd>) -> TaskProgress {
        let output = vec![PieceOutput { piece: 0, bytes: Vec::new() }];
        TaskProgress { counts: TaskCounts::default(), batch, output, end }
    }

    /// The tasks, and the workers as they are: what each run has given. What is kept of a task that
    /// is done is all that its last run has given, once.
    struct TableModel {
        table: TaskTable,
        servers: BTreeMap<u32, u32>,
        given: BTreeMap<(u32, u32), u64>,
        kept: BTreeMap<u32, u64>,
        done: BTreeMap<u32, u32>,
    }

    impl TableModel {
        fn apply(&mut self, event: &TableEvent) {
            match *event {
                TableEvent::Begin(node) => {
                    for run in self.table.begin(NodeId(node), 2) {
                        assert!(!self.done.contains_key(&run.task), "done, and begun again");
                        self.given.insert((run.task, run.attempt), 0);
                    }
                    assert!(self.table.begun(NodeId(node)).len() <= 2);
                }
                TableEvent::Gives(node, at, times) => {
                    let Some((run, taken)) = self.table.begun(NodeId(node)).get(at).copied() else {
                        return;
                    };
                    let given = self.given.get_mut(&(run.task, run.attempt)).unwrap();
                    if *given == taken {
                        *given += 1;
                    }
                    let batch = *given;
                    (0..times).for_each(|_| self.hear(run, &told(batch, None)));
                }
                TableEvent::Ends(node, at) => {
                    let Some((run, taken)) = self.table.begun(NodeId(node)).get(at).copied() else {
                        return;
                    };
                    let given = self.given[&(run.task, run.attempt)];
                    // A worker tells the end with the last batch.
                    self.hear(run, &told(given.max(taken), Some(TaskEnd::Done)));
                    self.done.insert(run.task, run.attempt);
                }
                TableEvent::Lost(node, to) => {
                    self.servers.values_mut().for_each(|server| {
                        if *server == node {
                            *server = to;
                        }
                    });
                    let servers = &self.servers;
                    let server = |home: PartitionId| Some(NodeId(servers[&home.get()]));
                    for task in self.table.node_lost(NodeId(node), server) {
                        self.kept.insert(task, 0);
                    }
                }
            }
        }

        fn hear(&mut self, run: TaskRunId, told: &TaskProgress) {
            if self.table.progress(run, told) == OutputUse::Keep {
                *self.kept.entry(run.task).or_default() += 1;
            }
        }
    }

    proptest! {
        #[test]
        fn every_task_is_done_once_and_its_output_is_that_of_one_run(
            events in events(),
            tasks in 1..8_u32,
        ) {
            let homes = (0..tasks).map(|task| (PartitionId(task), NodeId(task % NODES)));
            let mut model = TableModel {
                table: TaskTable::new(homes),
                servers: (0..tasks).map(|task| (task, task % NODES)).collect(),
                given: BTreeMap::new(),
                kept: BTreeMap::new(),
                done: BTreeMap::new(),
            };
            for event in &events {
                model.apply(event);
            }
            // From now on all goes well.
            for _ in 0..tasks * 2 {
                for node in 0..NODES {
                    model.apply(&TableEvent::Begin(node));
                    model.apply(&TableEvent::Gives(node, 0, 1));
                    model.apply(&TableEvent::Ends(node, 0));
                }
            }
            match model.table.standing() {
                JobStanding::Done => {
                    prop_assert_eq!(model.done.len(), tasks as usize);
                    for (task, attempt) in &model.done {
                        let kept = model.kept.get(task).copied().unwrap_or(0);
                        prop_assert_eq!(kept, model.given[&(*task, *attempt)], "task {}", task);
                    }
                }
                JobStanding::Failed(kind, _) => {
                    prop_assert_eq!(kind, ErrorKind::Unavailable);
                    prop_assert!(model.table.tasks().any(|(_, again, _)| again >= ATTEMPTS_MAX));
                }
                JobStanding::Runs => prop_assert!(false, "it does not end"),
            }
            let (done, all) = model.table.done();
            prop_assert_eq!((done <= all, all), (true, tasks as usize));
        }
    }

    #[test]
    fn a_task_that_fails_ends_the_job_and_the_first_reason_counts() {
        let mut table = TaskTable::new([(PartitionId(0), NodeId(1)), (PartitionId(1), NodeId(1))]);
        let runs = table.begin(NodeId(1), 9);
        let end = |words: &str| Some(TaskEnd::Failed(ErrorKind::Denied.code(), words.into()));
        table.progress(runs[0], &told(0, end("first")));
        table.progress(runs[1], &told(0, end("second")));
        let expected = JobStanding::Failed(ErrorKind::Denied, "task 0 on n1: first".into());
        assert_eq!(table.standing(), expected);
        assert_eq!(table.begin(NodeId(1), 9), []);
    }
}
