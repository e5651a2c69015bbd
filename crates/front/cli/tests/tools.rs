//! The tools beside the data, against the programs that they are named for, on the same files.
#![expect(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use common::{Samite, kill};
use samite_testkit::has;

/// What the tools of GNU print in words that are not the same here.
const ROOT: &str = "/data";

/// Numbers that depend on nothing but their seed.
struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % end as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Files in a directory, and the same in a store of two nodes with small chunks.
struct ToolFiles {
    samite: Samite,
}

impl ToolFiles {
    fn new(mirror: &str) -> Self {
        let samite = Samite::new();
        samite.ok(["up", "--local", "2", "--memory", "128M", "--mirror", mirror]);
        samite.ok(["dataset", "drop", "files"]);
        samite.ok(["dataset", "create", "files", "--chunk", "64K", "--mirror", mirror]);
        let files = Self { samite };
        std::fs::create_dir_all(files.local().join("deep/er")).unwrap();
        files.write("big", text(7, 12_000, "\n").as_bytes());
        files.write("crlf", text(8, 300, "\r\n").as_bytes());
        files.write("empty", b"");
        files.write("nonl", b"foo\nlast foo");
        files.write("one", b"a line\n");
        let mut binary = text(9, 9_000, "\n").into_bytes();
        binary.splice(900..900, *b"\0foo\0bar");
        files.write("binary", &binary);
        let mut late = text(10, 9_000, "\n").into_bytes();
        late.splice(30_000..30_000, *b"x\0y foo\xff\xfe");
        files.write("deep/late", &late);
        files.write("deep/er/long", format!("{}foo\nfoo\n", "ab ".repeat(70_000)).as_bytes());
        let local = files.local().to_str().unwrap().to_owned();
        files.samite.ok(["stage", "in", &local, ROOT]);
        files
    }

    fn local(&self) -> std::path::PathBuf {
        self.samite.scratch().join("data")
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.local().join(name), bytes).unwrap();
    }

    /// The tool of the machine, run where paths are the same as in the store but for their begin.
    fn real(&self, tool: &str, args: &[String]) -> (String, i32) {
        let local = self.local().to_str().unwrap().to_owned();
        let args = args.iter().map(|arg| arg.replace(ROOT, &local));
        let output = Command::new(tool).args(args).env("LC_ALL", "C").output().unwrap();
        let out = output.stdout.escape_ascii().to_string().replace(&local, ROOT);
        (out, output.status.code().unwrap())
    }

    fn run(&self, tool: &str, args: &[String]) -> Output {
        let mut command = self.samite.command([tool]);
        command.args(args).output().unwrap()
    }

    /// The same from both.
    fn compare(&self, tool: &str, args: &[String]) {
        let output = self.run(tool, args);
        let ours = (output.stdout.escape_ascii().to_string(), output.status.code().unwrap());
        let real = self.real(tool, args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(shortened(&ours), shortened(&real), "{tool} {args:?}: {errors}");
        assert!(ours == real, "{tool} {args:?}: they differ behind what is shown");
    }

    fn compare_words(&self, tool: &str, words: &str) {
        let args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        self.compare(tool, &args);
    }
}

fn shortened((text, code): &(String, i32)) -> (&str, i32) {
    (&text[..text.len().min(2000)], *code)
}

/// Lines of words, some of them empty.
fn text(seed: u64, lines: usize, end: &str) -> String {
    let mut random = TestRandom(seed);
    let mut text = String::new();
    for number in 0..lines {
        for _ in 0..random.below(9) {
            let word = random.of(&["foo", "bar", "Foo", "error_9", "of", "a", "xyzzy-1", "\t"]);
            write!(text, "{word} ").unwrap();
        }
        if random.below(50) == 0 {
            write!(text, "line {number}").unwrap();
        }
        text.push_str(end);
    }
    text
}

/// Bytes that the line of `--stats` says were moved between nodes.
fn moved(stderr: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(stderr);
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "moved,").unwrap();
    let number: f64 = words[at - 2].parse().unwrap();
    match words[at - 1] {
        "B" => number as u64,
        "KiB" => (number * 1024.0) as u64,
        unit => panic!("{unit} were moved: {text}"),
    }
}

#[test]
fn grep_prints_what_the_real_one_does() {
    if !has("grep") {
        return;
    }
    let files = ToolFiles::new("1");
    for words in [
        "-n line /data/big",
        "-c foo /data/big /data/empty /data/nonl",
        "-b -o line.[0-9]* /data/big",
        "-A2 -B1 -n line /data/big /data/crlf",
        "-C1 line.1 /data/big",
        "-m2 -n line /data/big",
        "foo /data/binary",
        "-c foo /data/binary",
        "-a -n line /data/binary",
        "-n foo /data/deep/er/long",
        "foo /none /data/nonl",
        "-q foo /none /data/nonl",
        "-s foo /none",
        "foo /data",
        "-c foo /data",
        "-l foo /data/big /data/one /data/binary",
        "-L foo /data/big /data/one /data/empty",
        "-q foo /data/big",
        "-q nothing /data/big",
        "-w -i -o foo /data/nonl",
        "-v -c . /data/big",
        "-x -n of /data/big",
        "-E -n (line|xyzzy-1.line).1 /data/big",
        "-F -c . /data/big",
        "-h foo /data/nonl /data/one",
        "-H last /data/nonl",
        "-e foo -e last /data/nonl",
        "-m0 foo /data/big",
    ] {
        files.compare_words("grep", words);
    }
    // In the order of path bytes, which is not that of the real one.
    for words in ["-r foo /data/deep/er", "-rc --include=l* foo /data/deep/er"] {
        files.compare_words("grep", words);
    }
    let listed = files.samite.ok(["grep", "-rl", "foo", "/data"]);
    let all = ["big", "binary", "crlf", "deep/er/long", "deep/late", "nonl"];
    let all: String = all.iter().map(|name| format!("/data/{name}\n")).collect();
    assert_eq!(listed, all);
    assert_eq!(files.samite.ok(["grep", "-rl", "foo", "/"]), all);
}

#[test]
fn random_searches_print_what_the_real_one_does() {
    if !has("grep") {
        return;
    }
    let files = ToolFiles::new("1");
    let mut random = TestRandom(11);
    let cases = std::env::var("SAMITE_TOOL_CASES").ok().and_then(|text| text.parse().ok());
    for _ in 0..cases.unwrap_or(200) {
        let mut args: Vec<String> = Vec::new();
        for option in ["-i", "-v", "-w", "-x", "-n", "-b", "-H", "-h", "-a"] {
            if random.below(5) == 0 {
                args.push(option.into());
            }
        }
        let is_word_line = args.contains(&"-w".into()) && args.contains(&"-x".into());
        args.push(random.of(&["-c", "-l", "-L", "-q", "-s", "-s", "-s", "-o"]).to_owned());
        if is_word_line {
            // Here they differ, which the kernels say.
            args.retain(|arg| arg != "-w");
        }
        args.push(random.of(&["-E", "-G", "-F"]).to_owned());
        for option in ["-A", "-B", "-C", "-m"] {
            if random.below(6) == 0 {
                args.push(format!("{option}{}", random.below(4)));
            }
        }
        for _ in 0..=random.below(2) {
            let patterns =
                ["foo", "line", "^of", "1$", "[0-9]", "xyz*y", "ab", "o\\|9", "(a|of) f", ".", ""];
            args.push("-e".into());
            args.push(random.of(&patterns).to_owned());
        }
        for _ in 0..=random.below(3) {
            let name = random.of(&[
                "big",
                "crlf",
                "empty",
                "nonl",
                "one",
                "binary",
                "deep/late",
                "deep/er/long",
            ]);
            args.push(format!("{ROOT}/{name}"));
        }
        files.compare("grep", &args);
    }
}

#[test]
fn grep_and_wc_move_no_more_than_lines_at_boundaries() {
    let files = ToolFiles::new("1");
    for args in [["grep", "-c"], ["grep", "-n"], ["wc", "-w"]] {
        let args = [args[0], args[1], "--stats"];
        let pattern = if args[0] == "grep" { Some("line") } else { None };
        let all = args.into_iter().chain(pattern).chain(["/data/big"]);
        let output = files.samite.command(all).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(moved(&output.stderr), 0, "{output:?}");
    }
}

#[test]
fn wc_prints_what_the_real_one_does() {
    if !has("wc") {
        return;
    }
    let files = ToolFiles::new("1");
    for words in [
        "/data/big",
        "-l /data/big",
        "-c /data/big /data/empty",
        "-lwcmL /data/big /data/crlf /data/binary /data/nonl",
        "-w /data/deep/er/long /none",
        "-L /data/deep/late",
        "/data /data/one",
    ] {
        files.compare_words("wc", words);
    }
}

#[test]
fn words_are_counted_and_files_summed_up() {
    let files = ToolFiles::new("1");
    let big = std::fs::read_to_string(files.local().join("big")).unwrap();
    let mut counts = std::collections::BTreeMap::new();
    big.split_ascii_whitespace().for_each(|word| *counts.entry(word).or_insert(0_u64) += 1);
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let expected: String = counts.iter().map(|(word, count)| format!("{count} {word}\n")).collect();
    assert_eq!(files.samite.ok(["count", "-k", "0", "/data/big"]), expected);
    let first: String = expected.split_inclusive('\n').take(3).collect();
    assert_eq!(files.samite.ok(["count", "-k", "3", "/data/big"]), first);
    if has("sha256sum") {
        let (real, _) = files.real("sha256sum", &["/data/big".into(), "/data/empty".into()]);
        let ours = files.samite.ok(["sum", "-a", "sha256", "/data/big", "/data/empty"]);
        assert_eq!(ours.as_bytes().escape_ascii().to_string(), real);
    }
    // Of the digits 1 to 9, as every CRC-32C has it.
    files.samite.ok_with(["put", "-", "/digits"], b"123456789");
    assert_eq!(files.samite.ok(["sum", "/digits"]), "e3069283  /digits\n");
}

#[test]
fn sort_prints_what_the_real_one_does() {
    if !has("sort") {
        return;
    }
    let files = ToolFiles::new("1");
    for words in [
        "/data/big",
        "-r /data/big /data/nonl",
        "-u /data/big",
        "-s -k2,2 /data/big /data/crlf",
        "-n -k3 /data/big",
        "-f -b /data/crlf",
        "-t_ -k2n,2 /data/big",
        "-V /data/deep/late",
        "-h /data/nonl /data/empty",
        "/data/deep/er/long",
        "/data/empty",
        "-u -k1,1 /data/big /data/one",
        "/data/binary",
        "/none",
        "-C /data/big",
        "-C /data/one",
    ] {
        files.compare_words("sort", words);
    }
    files.samite.ok(["sort", "-o", "/sorted", "/data/big"]);
    files.samite.ok(["sort", "-c", "/sorted"]);
    let sorted = files.samite.ok(["cat", "/sorted"]).as_bytes().escape_ascii().to_string();
    assert_eq!(sorted, files.real("sort", &["/data/big".into()]).0);
    // Onto itself, and nothing else is left.
    files.samite.ok(["sort", "-r", "-o", "/sorted", "/sorted"]);
    assert_eq!(files.samite.ok(["ls", "-a", "/"]), "data\nsorted\n");
    assert!(files.samite.fails(1, ["sort", "-c", "/sorted"]).contains("disorder"));
}

#[test]
fn names_are_found_and_sizes_added_up_as_by_the_real_ones() {
    if !has("find") || !has("du") {
        return;
    }
    let files = ToolFiles::new("1");
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.split("\\n").map(str::to_owned).collect();
        lines.sort();
        lines
    };
    for words in [
        "/data",
        "/data -type f -size +10k",
        "/data -type f -size -2",
        "/data -name l*",
        "/data -iname BIG -o -name one",
        "/data ! -name *a* -type f",
        "/data -maxdepth 1 -mindepth 1",
        "/data -empty",
        "/data/deep -newer /data/one -type d -name nothing",
        "/data -mtime +1",
        "/data -type f -links 1 -mtime 0",
    ] {
        let args: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let ours = files.run("find", &args);
        let real = files.real("find", &args);
        assert_eq!(ours.status.code(), Some(real.1), "find {words}: {ours:?}");
        let ours = ours.stdout.escape_ascii().to_string();
        assert_eq!(sorted(ours), sorted(real.0), "find {words}");
    }
    for words in ["-ab /data/big", "-bc /data/big /data/one /data/empty", "-b -h /data/big"] {
        files.compare_words("du", words);
    }
    // Directories take other space here; the order is that of bytes.
    let all = files.samite.ok(["du", "-ab", "/data/deep"]);
    let paths: Vec<&str> = all.lines().filter_map(|line| line.split('\t').nth(1)).collect();
    assert_eq!(paths, ["/data/deep/er/long", "/data/deep/er", "/data/deep/late", "/data/deep"]);
    assert!(files.samite.fails(1, ["find", "/none"]).contains("No such file or directory"));
}

#[test]
fn records_are_made_sorted_and_checked() {
    let samite = Samite::up(2);
    samite.ok(["gen", "120000", "/records"]);
    assert_eq!(samite.ok(["ls", "-a", "/"]), "records\n");
    let output = samite.command(["valsort", "/records"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let unsorted = String::from_utf8(output.stdout).unwrap();
    samite.ok(["sort", "--record", "100", "--key", "0:10", "-o", "/sorted", "/records"]);
    let sorted = samite.ok(["valsort", "/sorted"]);
    let checksum = |text: &str| {
        text.lines().find(|line| line.starts_with("Checksum")).map(str::to_owned).unwrap()
    };
    assert_eq!(checksum(&sorted), checksum(&unsorted));
    assert!(sorted.contains("Records: 120000\n"), "{sorted}");
    assert_eq!(samite.ok(["ls", "-a", "/"]), "records\nsorted\n");
    let text = samite.ok(["gen", "-a", "0", "/none"]);
    assert_eq!((text.as_str(), samite.ok(["wc", "-c", "/none"]).as_str()), ("", "0 /none\n"));
}

/// A node dies in the middle: the result is right, or there is none.
#[test]
fn a_killed_node_leaves_a_whole_result_or_none() {
    let files = ToolFiles::new("2");
    let expected = files.samite.ok(["sort", "/data/big"]);
    let counted = files.samite.ok(["grep", "-c", "foo", "/data/big"]);
    let mut sorting = files.samite.command(["sort", "-o", "/sorted", "/data/big"]).spawn().unwrap();
    let counting = files.samite.command(["grep", "-c", "foo", "/data/big"]);
    let counting = spawn(counting);
    kill(files.samite.pids("default")[1]);
    let is_sorted = sorting.wait().unwrap().success();
    let counting = counting.wait_with_output().unwrap();
    if counting.status.success() {
        assert_eq!(String::from_utf8_lossy(&counting.stdout), counted);
    }
    let names = files.samite.ok(["ls", "/"]);
    assert_eq!(names.contains("sorted"), is_sorted, "{names}");
    if is_sorted {
        assert_eq!(files.samite.ok(["cat", "/sorted"]), expected);
    }
    // It goes on with one node.
    assert_eq!(files.samite.ok(["grep", "-c", "foo", "/data/big"]), counted);
}

fn spawn(mut command: Command) -> std::process::Child {
    command.stdout(std::process::Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_tool_names_what_it_cannot_do() {
    let samite = Samite::up(1);
    let said = samite.fails(2, ["grep", "foo"]);
    assert!(said.contains("standard input is not read"), "{said}");
    let said = samite.fails(2, ["grep", "foo", "relative"]);
    assert!(said.contains("starts at its root"), "{said}");
    samite.fails(2, ["grep", "\\(a\\)\\1", "/none"]);
    samite.fails(2, ["sort", "-hn", "/none"]);
    let said = samite.fails(2, ["grep", "foo", "/none"]);
    assert_eq!(said, "samite: grep: /none: No such file or directory\n");
    let said = samite.fails(1, ["wc", "/none"]);
    assert_eq!(said, "samite: wc: /none: No such file or directory\n");
    assert!(Path::new(&samite.runtime()).exists());
}
