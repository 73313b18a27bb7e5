//! The program `lease-conformance` as a user meets it: a process with arguments, an exit status and output.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::timeline::{MarkKind, SpanKind, Timeline};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lease-conformance")).args(args).output().unwrap()
}

/// The same, not started by Cargo.
fn by_itself(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lease-conformance")).args(args).env_remove("CARGO").output().unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A run that costs little: no pause, no server.
const SMALL: &[&str] = &["run", "--backend", "memory", "--destination", "sqlite", "--case", "exclusion/s"];

#[test]
fn a_usage_error_exits_64_and_says_what_to_write() {
    for (args, says) in [
        (&["--frobnicate"][..], "unexpected argument"),
        (&["run", "--backend", "radis"], "there are memory, sqlite, redis"),
        (&["run", "--backend", "redis=http://u:s3cret@h/"], "begins with redis:"),
        (&["run", "--backend", "redis=redis://u:s3cret@h/?namespace=x"], "leave them out"),
        (&["run", "--backend", "redis=redis://u:s3cret@h/?epoch=x"], "whole number"),
        (&["run", "--backend", "memory", "--backend", "memory"], "twice"),
        (&["run", "--destination", "memory"], "there are sqlite, redis"),
        (&["run", "--trials", "0"], "--trials"),
        (&["run", "--seed", "x"], "--seed"),
        (&["run", "--backend", "memory", "--case", "no/such"], "no case begins with"),
        (&["explain", "no/such"], "no case begins with"),
        (&["render", "report.json", "--format", "pdf"], "markdown"),
    ] {
        let output = program(args);
        assert_eq!(status(&output), 64, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_report_that_could_not_be_written_is_found_before_the_run() {
    for option in ["--json", "--markdown", "--html", "--junit"] {
        let output = program(&[SMALL, &[option, "/nowhere/report"]].concat());
        assert_eq!((status(&output), stdout(&output)), (3, ""));
        assert!(stderr(&output).contains("no folder /nowhere"), "{}", stderr(&output));
    }
}

#[test]
fn help_and_version_are_answers() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let output = program(args);
        assert_eq!(status(&output), 0);
        assert!(stdout(&output).contains("lease-conformance") && output.stderr.is_empty());
    }
    let help = program(&["--help"]);
    assert!(!stdout(&help).contains("  worker") && !stdout(&help).contains("write-and-wait"), "{}", stdout(&help));
}

#[test]
fn every_case_is_listed_and_explained() {
    let list = program(&["list"]);
    for case in lease_conformance::cases() {
        assert!(stdout(&list).contains(case.id));
        let output = program(&["explain", case.id]);
        assert_eq!(status(&output), 0);
        assert!(stdout(&output).contains(case.title) && stdout(&output).contains(case.explain));
    }
    assert!(stdout(&list).contains("memory       ready"), "{}", stdout(&list));
}

#[cfg(not(feature = "etcd"))]
#[test]
fn what_was_asked_for_and_is_compiled_out_exits_3_and_names_feature_and_packages() {
    let asked = program(&["run", "--backend", "etcd", "--destination", "sqlite"]);
    assert_eq!(status(&asked), 3);
    for word in ["--features etcd", "protobuf-compiler", "libprotobuf-dev", "etcd-server"] {
        assert!(stdout(&asked).contains(word), "{}", stdout(&asked));
    }
    let mut args = SMALL.to_vec();
    args.extend(["--destination", "etcd"]);
    assert_eq!(status(&program(&args)), 3, "a destination that was asked for by name");
}

#[test]
fn a_run_on_memory_and_sqlite_is_green_and_its_report_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let markdown = folder.path().join("matrix.md");
    let args = ["run", "--backend", "memory", "--backend", "sqlite", "--destination", "sqlite", "--seed", "7"];
    let files = ["--json", json.to_str().unwrap(), "--markdown", markdown.to_str().unwrap()];
    let output = program(&[&args[..], &files].concat());
    assert_eq!(status(&output), 0, "{}\n{}", stdout(&output), stderr(&output));
    for text in [stdout(&output), stderr(&output)] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "control characters where nobody sees colour");
        assert!(text.lines().all(|line| line.chars().count() <= 120 || !line.contains('─')), "a table too wide");
    }
    assert!(stdout(&output).trim_end().ends_with(markdown.to_str().unwrap()), "it ends with where the files are");

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&report["schema"], &report["seed"]), (&Value::from(1), &Value::from(7)));
    assert_eq!(report["missing"], Value::Array(Vec::new()));
    for (backend, name) in report["backends"].as_array().unwrap().iter().zip(["memory", "sqlite"]) {
        assert_eq!(backend["name"], name);
        assert!(backend["server_version"].is_string() && backend["claims"].is_array());
        assert!(backend["limits"]["min_ttl_ms"].is_u64());
    }
    let cells = report["cells"].as_array().unwrap();
    assert!(cells.iter().all(|cell| ["case", "backend", "verdict"].iter().all(|key| cell[key].is_string())));
    the_stale_write_has_its_evidence(cells);

    the_pictures_show_what_the_verdicts_say(cells);
    pages_have_every_cell(&json, cells);
    renders_and_differs(&output, &json, &markdown);
}

/// What a reader needs to believe a cell of the matrix.
fn the_stale_write_has_its_evidence(cells: &[Value]) {
    let guarded = |cell: &&Value| cell["case"] == "fencing/pause-past-ttl/guarded" && cell["backend"] == "sqlite";
    let guarded: Vec<_> = cells.iter().filter(guarded).collect();
    assert_eq!(guarded.len(), 2, "the same store and a separate one");
    for cell in guarded {
        let evidence = &cell["evidence"];
        assert_eq!(evidence["mode"], "process");
        assert_ne!(evidence["pid_a"], evidence["pid_b"]);
        assert_eq!((&evidence["state_while_stopped"], &evidence["state_before_resume"]), (&"T".into(), &"T".into()));
        assert!(evidence["pause_ms"].as_u64().unwrap() >= evidence["granted_ttl_ms"].as_u64().unwrap());
        let token = |of: &str| evidence[of].as_str().unwrap().parse::<lease_core::FencingToken>().unwrap();
        assert!(token("token_a") < token("token_b"));
        assert!(evidence["content_after"].is_string() && !evidence["mark_after"].is_null());
    }
}

/// Every stale write that landed has a picture, and one that was refused, on each backend; and no picture has two holders.
fn the_pictures_show_what_the_verdicts_say(cells: &[Value]) {
    let mut guarded = Vec::new();
    for cell in cells.iter().filter(|cell| cell["case"].as_str().unwrap().starts_with("fencing/pause-past-ttl/")) {
        let timeline: Option<Timeline> = serde_json::from_value(cell["timeline"].clone()).unwrap();
        let landed = cell["verdict"] == "control_landed";
        assert!(!landed || timeline.is_some(), "no picture of {cell}");
        let Some(timeline) = timeline else { continue };
        let has = |kind: MarkKind| timeline.marks.iter().any(|mark| mark.kind == kind);
        assert_eq!((has(MarkKind::StaleCommitted), has(MarkKind::Refused)), (landed, !landed), "{timeline:?}");
        assert!(has(MarkKind::Granted) && has(MarkKind::Lost), "{timeline:?}");
        assert_eq!(timeline.two_holders(), [], "{timeline:?}");
        let span = |kind: SpanKind, lane: &str| {
            let mut spans = timeline.spans.iter();
            spans.find(|span| span.kind == kind && span.lane == lane).unwrap()
        };
        let (a, b) = (span(SpanKind::Held, "worker A"), span(SpanKind::Held, "worker B"));
        let stopped = span(SpanKind::Stopped, "worker A");
        assert!(stopped.from_ms > a.from_ms && stopped.from_ms < a.until_ms && stopped.until_ms > b.from_ms);
        if !landed {
            guarded.push(cell["backend"].as_str().unwrap());
        }
    }
    assert_eq!(guarded, ["memory", "sqlite"], "one to compare with for each");
}

/// The pages that are made of a report: each cell is there, and each link leads somewhere.
fn pages_have_every_cell(json: &Path, cells: &[Value]) {
    let [page, xml, folder] = ["page.html", "junit.xml", "pictures"].map(|name| json.with_file_name(name));
    let [page_at, xml_at, folder_at] = [&page, &xml, &folder].map(|path| path.to_str().unwrap());
    let output = program(&["render", json.to_str().unwrap(), "--html", page_at, "--junit", xml_at, "--svg", folder_at]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).starts_with("page in ") && stdout(&output).lines().count() == 1, "{}", stdout(&output));

    let page = std::fs::read_to_string(page).unwrap();
    let values = |key: &str| -> BTreeSet<String> {
        page.split(&format!(" {key}=\"")).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    let (links, ids) = (values("href"), values("id"));
    assert!(links.iter().all(|link| ids.contains(link.strip_prefix('#').unwrap())), "{links:?}");
    assert_eq!(page.matches("<details class=\"cell\"").count(), cells.len());
    let bodies = page.split("<div class=\"body\" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    for id in bodies {
        assert!(links.contains(&format!("#{id}")), "no link to {id}");
    }
    let drawn = cells.iter().filter(|cell| !cell["timeline"].is_null()).count();
    assert_eq!((std::fs::read_dir(folder).unwrap().count(), page.matches("<svg").count()), (drawn, drawn));
    assert!(drawn >= 2 * 3);
    assert_eq!(std::fs::read_to_string(xml).unwrap().matches("<testcase").count(), cells.len());
}

/// What was printed can be rendered again from the report, and reports can be compared.
fn renders_and_differs(output: &Output, json: &Path, markdown: &Path) {
    let report = json.to_str().unwrap();
    let rendered = program(&["render", report]);
    assert_eq!(status(&rendered), 0);
    assert!(stdout(output).starts_with(stdout(&rendered)), "{}", stdout(&rendered));
    let matrix = program(&["render", report, "--format", "markdown"]);
    assert_eq!(stdout(&matrix), std::fs::read_to_string(markdown).unwrap());
    assert!(stdout(&matrix).contains("| **sqlite** |"), "{}", stdout(&matrix));

    assert_eq!(status(&program(&["diff", report, report])), 0);
    let changed = json.with_file_name("changed.json");
    let text = std::fs::read_to_string(json).unwrap();
    std::fs::write(&changed, text.replacen("\"verdict\": \"kept\"", "\"verdict\": \"broken\"", 1)).unwrap();
    let diff = program(&["diff", report, changed.to_str().unwrap()]);
    assert_eq!(status(&diff), 1);
    assert!(stdout(&diff).trim_end().ends_with("kept -> broken"), "{}", stdout(&diff));
    assert_eq!(stdout(&diff).lines().count(), 1);

    let readme = json.with_file_name("README.md");
    std::fs::write(&readme, "# x\n<!-- matrix:begin -->\nold\n<!-- matrix:end -->\ny\n").unwrap();
    let step = |check: &[&str]| {
        let args = ["readme", readme.to_str().unwrap(), "--report", report];
        status(&program(&[&args[..], check].concat()))
    };
    assert_eq!((step(&["--check"]), step(&[]), step(&["--check"])), (1, 0, 0));
    let written = std::fs::read_to_string(&readme).unwrap();
    assert!(written.starts_with("# x\n") && written.ends_with("\ny\n") && !written.contains("old"));
}

#[test]
fn a_report_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let render = || program(&["render", file.to_str().unwrap()]);
    assert_eq!(status(&render()), 3, "no such file");
    for (text, says) in [("{", "no report"), (r#"{"schema":99,"seed":1,"backends":[],"cells":[]}"#, "schema 99")] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(status(&render()), 64);
        assert!(stderr(&render()).contains(says), "{}", stderr(&render()));
    }
}

#[test]
fn a_verdict_that_differs_from_the_expected_one_is_red_and_a_stale_exception_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("expected.toml");
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        program(&[SMALL, &["--expected", file.to_str().unwrap()]].concat())
    };
    let cases = |verdict: &str| {
        let line = |case: &str| format!("\"exclusion/{case}\" = \"{verdict}\"\n");
        format!("[cases]\n{}", ["second-client", "same-client", "same-label"].map(line).concat())
    };
    assert_eq!(status(&run(&cases("kept"))), 0);

    let red = run(&cases("broken"));
    assert_eq!(status(&red), 1);
    assert!(
        stdout(&red).contains("expected: broken") && stdout(&red).contains("repeat: cargo run -p conformance-tests")
    );
    let by_itself = by_itself(&[SMALL, &["--expected", file.to_str().unwrap()]].concat());
    assert!(stdout(&by_itself).contains(concat!(
        "repeat: ",
        env!("CARGO_BIN_EXE_lease-conformance"),
        " run --backend"
    )));

    let unknown = run("[cases]\n");
    assert_eq!(status(&unknown), 1, "a case that the file does not know");

    let stale = "[[exception]]\ncase = \"exclusion/same-client\"\nbackend = \"memory\"\ndestination = \"sqlite\"\n\
                 verdict = \"honest_no\"\nreason = \"x\"\n";
    let with_destinations = stale.replace("destination = \"sqlite\"\n", "").replace("memory", "sqlite");
    assert_eq!(status(&run(&format!("{}{with_destinations}", cases("kept")))), 0, "sqlite was not run");
    let gone = run("[cases]\n\"exclusion/gone\" = \"kept\"\n");
    assert_eq!(status(&gone), 64);
    assert!(stderr(&gone).contains("no case `exclusion/gone`"), "{}", stderr(&gone));
}

#[test]
fn the_same_seed_is_reported_and_no_terminal_means_no_colour_whatever_the_environment_says() {
    let output = Command::new(env!("CARGO_BIN_EXE_lease-conformance"))
        .args(SMALL)
        .args(["--seed", "42"])
        .env("TERM", "xterm-256color")
        .env("CLICOLOR_FORCE", "1")
        .output()
        .unwrap();
    assert_eq!(status(&output), 0);
    assert!(stdout(&output).contains("seed 42"));
    assert!(
        !stdout(&output).contains('\u{1b}') && !stderr(&output).contains('\u{1b}') && !stderr(&output).contains('\r')
    );
}
