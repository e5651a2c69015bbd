//! The measurements as a page, and as a chart.

use std::fmt::Write;

use super::{COST, ScaleMetrics};

/// The page `docs/scale.md`.
#[must_use]
pub fn page(all: &[ScaleMetrics]) -> String {
    let mut page = String::from(
        "# Scale\n\n\
         This page shows how load, messages, failover and rebuild grow with the number of nodes. The nodes\n\
         are simulated: they run the store's own partitions, mirroring (two copies), coordinator and client\n\
         on a model of a network. `cargo run -p samite-sim --release -- --scale 4..512` makes the page.\n\n",
    );
    let _ = writeln!(
        page,
        "The model has {} µs of latency, {:.1} Gbit/s in and out of each node, and {} µs of work for each\n\
         message at both ends. One node's share of the data is {} MiB; values are short in memory and count\n\
         in full on the network.\n",
        COST.latency.as_micros(),
        COST.bytes_per_s * 8.0 / 1e9,
        COST.per_message.as_micros(),
        all.first().map_or(0, |metrics| metrics.node_mib),
    );
    page.push_str(
        "| nodes | partitions | primaries, most / mean | copies, most / mean | files, most / mean | second copies on | messages per create | failover ms | to the busiest node | rebuild ms | without maps ms | map KiB | maps KiB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for metrics in all {
        let _ = writeln!(
            page,
            "| {} | {} | {:.2} | {:.2} | {:.2} | {} nodes | {:.2} | {} | {:.0} % | {} | {} | {} | {} |",
            metrics.nodes,
            metrics.partitions,
            metrics.primaries,
            metrics.members,
            metrics.load,
            metrics.followers,
            metrics.messages_per_create,
            metrics.failover_ms,
            metrics.heir_share * 100.0,
            metrics.rebuild_ms,
            metrics.rebuild_without_maps_ms,
            metrics.map_kib,
            metrics.rebuild_maps_kib,
        );
    }
    page.push_str(
        "\n![Rebuild and failover by nodes](scale.svg)\n\n\
         - *Files*: each node brings 1,000 files, placed by the hash of their names; the column compares the\n\
         busiest node with the mean.\n\
         - *Messages per create*: the request, the forward to the second copy, its acknowledgement and the\n\
         reply; retransmissions would count.\n\
         - *Failover*: from a node's death until a map that gives each of its partitions another primary is\n\
         in use. The lease takes most of this time.\n\
         - *To the busiest node*: the share of the dead node's partitions that one other node leads\n\
         afterwards.\n\
         - *Rebuild*: from `samite node remove --force` until every partition has two good copies again.\n\
         - *Rebuild* falls as nodes are added, because more of them share the work, until each partition of\n\
         the dead node has a source and a destination of its own (32 of them, at 64 nodes). From there on a\n\
         rebuild takes as long as one partition takes on one link, and does not rise: the coordinator sends a\n\
         node that knows a map only the changes since then, and puts all changes within 2 ms into one map.\n\
         With whole maps, 512 nodes took 235 ms.\n\
         - *Without maps*: the same rebuild, if the coordinator's answers had no length. *Map* is the length\n\
         of a whole map, *maps* is what the leader sent during the rebuild, both in KiB.\n\
         - For each map the leader saves the whole of it: at most 1 MiB, which is one value in etcd (1.5 MiB\n\
         are possible there). The coordinator refuses a node or dataset that would make the map longer.\n",
    );
    page
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 48.0;
const TOP: f64 = 24.0;

/// Failover and rebuild over the number of nodes, both axes logarithmic.
#[must_use]
pub fn chart(all: &[ScaleMetrics]) -> String {
    let highest = all.iter().flat_map(|metrics| [metrics.failover_ms, metrics.rebuild_ms]).max();
    let decades = (highest.unwrap_or(1).max(10) as f64).log10().ceil();
    let steps = all.len().saturating_sub(1).max(1) as f64;
    let x = |index: usize| LEFT + (WIDTH - LEFT - 24.0) * index as f64 / steps;
    let y =
        |ms: u64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (ms.max(1) as f64).log10() / decades;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for decade in 0..=decades as u32 {
        let (ms, at) = (10u64.pow(decade), y(10u64.pow(decade)));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{ms} ms</text>",
            WIDTH - 24.0,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (index, metrics) in all.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(index),
            HEIGHT - BOTTOM + 18.0,
            metrics.nodes
        );
    }
    line(
        &mut svg,
        "rebuild",
        "#1f6fb2",
        all.iter().enumerate().map(|(index, f)| (x(index), y(f.rebuild_ms))),
    );
    line(
        &mut svg,
        "rebuild without maps",
        "#5aa469",
        all.iter().enumerate().map(|(index, f)| (x(index), y(f.rebuild_without_maps_ms))),
    );
    line(
        &mut svg,
        "failover",
        "#c2571a",
        all.iter().enumerate().map(|(index, f)| (x(index), y(f.failover_ms))),
    );
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"{}\" text-anchor=\"middle\">nodes</text>\n</svg>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 8.0
    );
    svg
}

fn line(svg: &mut String, name: &str, colour: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<(f64, f64)> = points.collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    if let Some((x, y)) = points.last() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" text-anchor=\"end\">{name}</text>",
            x,
            y - 8.0
        );
    }
}
