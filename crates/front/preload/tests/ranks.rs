//! Settings that ranks of Open MPI get by their number.

use std::process::Command;

use samite_testkit::preload_library as library;

/// The setting in the environment of a program whose launcher said `told` of `ranks`.
fn found(ranks: &str, told: &str) -> Vec<String> {
    let mut command = Command::new("env");
    command.env_clear().env("LD_PRELOAD", library());
    command.env("OMPI_COMM_WORLD_LOCAL_SIZE", ranks).env("OMPI_MCA_mpi_oversubscribe", told);
    let output = command.output().expect("run env");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.starts_with("OMPI_")).map(str::to_owned).collect()
}

#[test]
fn they_hear_that_they_leave_the_node_no_core() {
    let cores = Command::new("getconf").arg("_NPROCESSORS_ONLN").output().expect("run getconf");
    let cores: usize = String::from_utf8_lossy(&cores.stdout).trim().parse().expect("a number");
    for ranks in [cores, cores + 1, 10_000].map(|ranks| ranks.to_string()) {
        let size = format!("OMPI_COMM_WORLD_LOCAL_SIZE={ranks}");
        let mut all = found(&ranks, "0");
        all.sort();
        assert_eq!(all, [size, "OMPI_MCA_mpi_oversubscribe=1".to_owned()]);
    }
}

#[test]
fn else_nothing_changes() {
    for (ranks, told) in
        [("0", "0"), ("none", "0"), ("", "0"), ("1", "1"), ("9999", "7"), ("9999", "01")]
    {
        let all = found(ranks, told);
        assert!(all.contains(&format!("OMPI_MCA_mpi_oversubscribe={told}")), "{ranks}: {all:?}");
    }
}
