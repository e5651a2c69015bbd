//! Metrics by the command line: `samite up --metrics`, what a scraper reads, and what status tells.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::Samite;
use serde_json::Value;

/// A node of `samite status --json`.
fn node(samite: &Samite, number: usize) -> Value {
    let status: Value = serde_json::from_str(&samite.ok(["status", "--json"])).unwrap();
    status["nodes"][number].clone()
}

/// HOST:PORT at which a node serves its metrics.
fn port(samite: &Samite, number: usize) -> String {
    let node = node(samite, number);
    let address = node["metrics_address"].as_str().unwrap();
    address.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap().into()
}

/// The answer to a scraper.
fn scrape(mut connection: impl std::io::Read + std::io::Write) -> String {
    connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// The number of a line of the text.
fn number(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

/// The sum over the nodes.
fn sum(texts: &[String], series: &str) -> f64 {
    texts.iter().map(|text| number(text, series)).sum()
}

#[test]
fn a_scraper_and_status_see_requests_counted() {
    let samite = Samite::new();
    let said = samite.ok(["up", "--local", "2", "--memory", "64M", "--metrics", "127.0.0.1:0"]);
    let ports = [port(&samite, 0), port(&samite, 1)];
    assert!(ports.iter().all(|port| said.contains(&format!("http://{port}/metrics"))), "{said}");
    let scrape_all = || ports.clone().map(|port| scrape(TcpStream::connect(port).unwrap()));
    let before = scrape_all();
    assert!(before[0].contains("# TYPE samite_requests_total counter\n"));
    let large = samite.scratch().join("large");
    std::fs::write(&large, vec![7; 3_000_000]).unwrap();
    samite.ok(["kv", "put", "key", "value"]);
    samite.ok(["kv", "get", "key"]);
    samite.ok(["put", large.to_str().unwrap(), "/large"]);
    assert_eq!(samite.ok(["cat", "/large"]).len(), 3_000_000);
    samite.ok(["ls", "/"]);
    let after = scrape_all();
    let uid = rustix::process::getuid().as_raw();
    for (series, least) in [
        ("samite_requests_received_total".to_owned(), 5.0),
        ("samite_requests_total{kind=\"read\"}".to_owned(), 1.0),
        ("samite_requests_total{kind=\"list\"}".to_owned(), 1.0),
        ("samite_requests_total{kind=\"write\"}".to_owned(), 2.0),
        ("samite_requests_total{kind=\"control\"}".to_owned(), 1.0),
        ("samite_request_duration_seconds_count{kind=\"write\"}".to_owned(), 0.0),
        ("samite_records".to_owned(), 2.0),
        ("samite_written_bytes_total".to_owned(), 3_000_000.0),
        ("samite_read_bytes_total".to_owned(), 3_000_000.0),
        ("samite_memory_used_bytes".to_owned(), 3_000_000.0),
        (format!("samite_user_requests_total{{uid=\"{uid}\"}}"), 2.0),
        (format!("samite_user_written_bytes_total{{uid=\"{uid}\"}}"), 3_000_000.0),
    ] {
        let grown = sum(&after, &series) - sum(&before, &series);
        assert!(grown >= least, "{series}: {grown}");
    }
    assert!(sum(&after, "samite_request_duration_seconds_count{kind=\"write\"}") > 0.0);
    let files = "samite_dataset_written_bytes_total{dataset=\"files\"}";
    assert!(sum(&after, files) >= 3_000_000.0);
    let told = node(&samite, 0);
    let metrics = told["metrics"].as_array().unwrap();
    let names: Vec<&str> = metrics.iter().map(|sample| sample["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"samite_requests_total") && names.len() < 1000, "{names:?}");
    let records = metrics.iter().find(|sample| sample["name"] == "samite_records").unwrap();
    assert_eq!(records["value"], told["status"]["records"]);
    assert!(told["status"]["used_bytes"].is_u64());
}

#[test]
fn a_scraper_that_says_nothing_does_not_stop_the_next() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "64M", "--metrics"]);
    let port = port(&samite, 0);
    let mut silent = TcpStream::connect(&port).unwrap();
    let mut slow = TcpStream::connect(&port).unwrap();
    slow.write_all(b"GET /metrics HTT").unwrap();
    let begun = Instant::now();
    samite.ok(["kv", "put", "key", "value"]);
    let text = scrape(TcpStream::connect(&port).unwrap());
    assert_eq!(number(&text, "samite_coordinator_leads"), 1.0);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    for gone in [&mut silent, &mut slow] {
        // Closed, or reset because something was not read.
        assert!(matches!(gone.read(&mut [0]), Ok(0) | Err(_)));
    }
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn a_unix_socket_is_the_users_own_and_bad_addresses_are_refused() {
    let samite = Samite::new();
    let path = samite.scratch().join("metrics");
    let address = format!("unix:{}", path.display());
    for (bad, words) in [
        ("0.0.0.0:9100", "not a loopback address"),
        ("192.168.7.7:0", "not a loopback address"),
        ("somewhere:9100", "127.0.0.1:PORT"),
        ("unix:relative", "begins with /"),
    ] {
        let said = samite.fails(2, ["up", "--local", "1", "--metrics", bad]);
        assert!(said.contains(words), "{said}");
        let dir = samite.runtime().join("x");
        let dir = dir.to_str().unwrap();
        let args = ["node", "--dir", dir, "--node", "0", "--nodes", "1", "--metrics", bad];
        assert!(samite.fails(2, args).contains(words));
    }
    let said = samite.fails(2, ["up", "--local", "2", "--metrics", "127.0.0.1:65535"]);
    assert!(said.contains("no port is left for n1"), "{said}");
    samite.ok(["up", "--local", "1", "--memory", "64M", "--metrics", &address]);
    let socket = samite.scratch().join("metrics.n0");
    assert_eq!(node(&samite, 0)["metrics_address"], format!("unix:{}", socket.display()));
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = scrape(UnixStream::connect(&socket).unwrap());
    assert!(number(&text, "samite_uptime_seconds") > 0.0);
    samite.ok(["down"]);
    assert!(!socket.exists());
    samite.ok(["up", "--local", "1", "--memory", "64M"]);
    assert_eq!(node(&samite, 0)["metrics_address"], Value::Null);
}
