//! Figures, recordings and reports, and that nothing else stays.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millpond_replay::trace::Block;

use super::{PACKAGE, built, python, ran, run, sources};
use crate::shared::{command, read_json, stderr, stdout};

#[test]
fn nothing_needs_a_temporary_folder_and_nothing_stays() {
    let modules = [&PACKAGE[..], &[("torch", "print('torch loaded')")]].concat();
    let missing = [("TMPDIR", "/no/such/folder")];
    let Some(output) = python(&modules, "import torch", &missing) else { return };
    assert_eq!(stdout(&output), "torch loaded\ntorch enabled\n", "{}", stderr(&output));
    if built().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = run(&["sh", "-c", "./linked leaves; echo ready; read line"]);
    command.env("TMPDIR", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_exit_status_is_the_programs_where_figures_cannot_be_written() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    for status in [0, 7] {
        let output = ran(&["--json", "/dev/full", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains("/dev/full: cannot write"), "{}", stderr(&output));
    }
}

#[test]
fn figures_and_a_recording_are_written() {
    if built().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, record, report) = (at("run.json"), at("run.mprec"), at("run.html"));
    let files = ["--json", &json, "--record", &record, "--report", &report];
    for (mode, case) in [("--pool", "pairs"), ("--watch", "passes")] {
        let output = ran(&[&[mode], &files[..], &["--", "./linked", case]].concat());
        stdout(&output);
        let told = read_json(Path::new(&json));
        assert_eq!((told["program"].as_str(), told["status"].as_u64()), (Some("linked"), Some(0)));
        let pool = &told["processes"][0]["pools"][0];
        let replayed =
            stdout(&command().args(["replay", &record, "--allocator", "millpond"]).output().unwrap());
        let blocks = format!("{} blocks", pool["allocations"]);
        assert!(replayed.contains(&blocks), "{mode}: {blocks}: {replayed}");
        let page = std::fs::read_to_string(&report).unwrap();
        assert!(page.contains("</html>"), "{mode}");
        std::fs::remove_file(&report).unwrap();
    }
}

#[test]
fn a_program_that_allocates_nothing_is_told_that_nothing_is_recorded() {
    if built().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [record, report] = ["run.mprec", "run.html"].map(|name| dir.path().join(name));
    let files = ["--record", record.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let with = |program: &[&str]| ran(&[&files[..], &["--"], program].concat());
    let nothing = "millpond: nothing was recorded: no pool was asked for GPU memory; ";
    let said = stderr(&with(&["true"]));
    assert!(said.contains(&format!("{nothing}{} is not there; ", record.display())), "{said}");
    assert!(said.contains("it allocated no CUDA memory, unless in a process that is out of reach"), "{said}");
    assert_eq!(stderr(&ran(&["--quiet", files[0], files[1], "true"])), "");
    // Nothing is taken for what an earlier run recorded.
    stdout(&with(&["./linked", "pairs"]));
    std::fs::remove_file(&report).unwrap();
    let said = stderr(&with(&["true"]));
    assert!(said.contains(&format!("{nothing}{} is as it was before; ", record.display())), "{said}");
    assert!(said.contains(&format!("{} is not written", report.display())) && !report.exists(), "{said}");
    // A name that the process makes its own.
    let own = dir.path().join("own.%p");
    let files = ["--record", own.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let said = stderr(&ran(&[&files[..], &["./linked", "pairs"]].concat()));
    assert!(report.exists() && !said.contains("nothing was recorded"), "{said}");
}

/// The blocks of each recording.
fn blocks(paths: &[PathBuf]) -> Vec<usize> {
    let read = |path: &PathBuf| millpond_replay::read::read(path, Default::default()).unwrap_or_default();
    paths.iter().map(|path| read(path).iter().map(|trace| trace.blocks.len()).sum()).collect()
}

#[test]
fn processes_one_after_another_have_a_recording_each() {
    if built().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [record, page] = ["run.mprec", "run.html"].map(|name| dir.path().join(name));
    let files = ["--record", record.to_str().unwrap(), "--report", page.to_str().unwrap()];
    let recordings = || {
        let entries = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension() != page.extension()).collect::<Vec<_>>()
    };
    // The last one records as two programs of the same process.
    let script = "./linked leaves; ./linked pairs; ./linked leaves; ./linked executes";
    let output = ran(&[&files[..], &["--", "sh", "-c", script]].concat());
    let (said, first) = (stderr(&output), recordings());
    assert_eq!(first.len(), 5, "{first:?}: {said}");
    let line = said.lines().find(|line| line.starts_with("millpond: recorded to ")).expect("it says so");
    assert!(first.iter().all(|path| line.contains(path.to_str().unwrap())), "{first:?}: {line}");
    let mut found = blocks(&first);
    found.sort_unstable();
    // What a program did just before it executed another one may be missing.
    assert!(found[1..4] == [1; 3] && found[4] > 1, "{found:?}");
    // The page is that of the longest.
    let longest = first.iter().find(|path| blocks(&[path.to_path_buf()])[0] > 1).unwrap();
    assert!(said.contains(&format!("{} shows {}, the longest", page.display(), longest.display())), "{said}");
    // Another run takes the name, and keeps what has it as before.
    let said = stderr(&ran(&[&files[..2], &["--", "./linked", "leaves"]].concat()));
    assert!(said.contains(&format!("millpond: recorded to {}\n", record.display())), "{said}");
    let second = recordings();
    assert_eq!(second.len(), 6, "{second:?}");
    assert!(
        first.iter().all(|path| second.contains(path))
            && second.contains(&record.with_extension("mprec.old"))
    );
    // What is replaced now is told.
    let said = stderr(&ran(&[&files[..2], &["--", "./linked", "leaves"]].concat()));
    assert!(said.contains("run.mprec.old is replaced: %p in the name"), "{said}");
}

#[test]
fn a_file_that_is_no_recording_stops_the_run_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let [thesis, old] = ["thesis.tex", "thesis.tex.old"].map(|name| dir.path().join(name));
    std::fs::write(&thesis, "ten years of work").unwrap();
    let refused = |named: &Path| {
        let output = ran(&["--record", thesis.to_str().unwrap(), "echo", "begun"]);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{}", stderr(&output));
        let expected = format!("{} exists and is not a recording: name another file", named.display());
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    };
    refused(&thesis);
    std::fs::write(&thesis, b"\x89MPREC\r\n").unwrap();
    std::fs::write(&old, "the year before").unwrap();
    refused(&old);
}

#[test]
fn nobody_says_that_a_device_has_a_recording() {
    if built().is_none() || !Path::new("/dev/full").exists() {
        return;
    }
    let said = stderr(&ran(&["--record", "/dev/full", "./linked", "leaves"]));
    assert!(said.contains("cannot record to /dev/full") && !said.contains("recorded to /dev/full"), "{said}");
}

#[test]
fn a_report_is_not_read_from_a_pipe() {
    let refused = ran(&["--record", "/dev/null", "--report", "x.html", "true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("/dev/null: a report is read from the recording, which needs to be a file"),
        "{}",
        stderr(&refused)
    );
}

/// Whatever container or library asks the driver for it.
#[test]
fn call_sites_are_the_functions_of_a_program_in_cpp() {
    let Some(folder) = built() else { return };
    let source = sources().join("../cpp/sites.cpp");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-g1", "-O1"]).arg(source).args(["./libcuda.so.1", "-o", "sites"]);
    match compiler.current_dir(folder).output() {
        Ok(output) => assert!(output.status.success(), "{}", stderr(&output)),
        Err(_) => {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "g++ is not installed");
            return eprintln!("not run: g++ is not installed");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.mprec");
    let mut run = run(&["--record", record.to_str().unwrap(), "--", "./sites"]);
    stdout(&run.env("MILLPOND_RECORD_CALL_SITES", "1").output().unwrap());
    let read = millpond_replay::read::read(&record, Default::default()).unwrap();
    let [trace] = &read[..] else { panic!("one pool, not {}", read.len()) };
    let innermost = |block: &Block| trace.stacks.frames(block.stack).next().map(|frame| &*frame.name);
    let sites: Vec<_> = trace.blocks.iter().map(innermost).collect();
    assert_eq!(sites, [Some("nn::Layer<float>::Layer"), Some("fill"), Some("plain")]);
}
