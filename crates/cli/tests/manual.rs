//! Completions, manual pages, and how the command looks on a terminal.

use std::process::{Command, Stdio};

use crate::shared::{command, millpond, stderr, stdout};

#[test]
fn completions_name_commands_flags_and_values() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&millpond(&["completions", shell]));
        for part in ["train", "epochs", "fail-if-oom"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    let quiet = stdout(&millpond(&["completions", "bash", "--quiet"]));
    assert_eq!(quiet, stdout(&millpond(&["completions", "bash"])));
}

#[test]
fn bash_completes_what_the_script_says() {
    let script = stdout(&millpond(&["completions", "bash"]));
    let ask = "COMP_WORDS=(millpond train --ep); COMP_CWORD=2; _millpond millpond --ep train; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "--epochs\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    stdout(&millpond(&["man", pages.to_str().unwrap()]));
    let mut names: Vec<_> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let commands = [
        "-bench",
        "-budget",
        "-completions",
        "-diff",
        "-fetch",
        "-info",
        "-leaks",
        "-man",
        "-metrics",
        "-plan",
        "-predict",
        "-probe",
        "-replay",
        "-run",
        "-soak",
        "-top",
        "-train",
        "",
    ];
    assert_eq!(names, commands.map(|command| format!("millpond{command}.1")));
    for name in names {
        let page = std::fs::read_to_string(pages.join(&name)).unwrap();
        assert!(page.contains(".SH EXAMPLES\n.nf\n  ") && page.contains("Millpond "), "{name}: {page}");
        assert!(!page.contains(".SH EXTRA"), "{name}: {page}");
        // Files that are installed, and no others.
        assert!(!page.contains("docs/"), "{name}: {page}");
        let has_variables = ["", "-run", "-train", "-budget", "-top", "-metrics", "-replay", "-leaks"];
        let has = has_variables.iter().any(|of| name == format!("millpond{of}.1"));
        assert_eq!(page.contains(".SH ENVIRONMENT\n.TP\n\\fBMILLPOND_"), has, "{name}: {page}");
    }
    let page = std::fs::read_to_string(pages.join("millpond-replay.1")).unwrap();
    let synopsis = page.split(".SH SYNOPSIS\n").nth(1).unwrap().lines().next().unwrap().replace("\\", "");
    for part in ["[fB--capacityfR fISIZEfR]", "[fB--cost-tablefR fIFILE.tomlfR]", "[fB--verifyfR]"] {
        assert!(synopsis.contains(part), "{part}: {synopsis}");
    }
}

#[test]
fn help_is_asked_for_in_any_way() {
    let help = stdout(&millpond(&["--help"]));
    for asked in [&["help"][..], &["help", "--help"], &["help", "-h"]] {
        assert_eq!(stdout(&millpond(asked)), help, "{asked:?}");
    }
    assert_eq!(stdout(&millpond(&["help", "replay", "--help"])), stdout(&millpond(&["replay", "--help"])));
}

#[test]
fn no_output_into_a_pipe_commands_a_terminal() {
    let small = ["train", "--device", "host", "--num-layers", "1", "--feat-dim", "8", "--epochs", "2"];
    let bench = ["bench", "--device", "sim", "--time", "1", "--suite", "throughput"];
    for args in [&["--help"][..], &["train", "--help"], &["info"], &small, &bench, &["train", "--epohcs"]] {
        let output = command().args(args).output().unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let control = said.iter().find(|&&byte| byte.is_ascii_control() && byte != b'\n');
        assert_eq!(control, None, "{args:?}: {}", String::from_utf8_lossy(&said));
    }
}

/// What the command writes to a terminal of 80 columns. `None` where there is no `script` to make one.
fn on_a_terminal(arguments: &str) -> Option<String> {
    let run = format!("stty cols 80 rows 24; {} {arguments}", env!("CARGO_BIN_EXE_millpond"));
    let mut script = Command::new("script");
    script
        .args(["-qefc", &run, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    let output = script.output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_terminal_of_80_columns_shows_progress_and_no_longer_lines() {
    let model = "train --device host --num-layers 2 --feat-dim 512 --epochs 2";
    let Some(all) = on_a_terminal(model) else { return };
    assert!(all.contains(" images/s  ") && all.contains(" left"), "{all:?}");
    let visible = |line: &str| line.replace("\u{1b}[2K", "").chars().filter(|c| !c.is_control()).count();
    for arguments in [model, "train --allocator jemalloc", "info", "replay --help", "train --data nowhere"] {
        let said = on_a_terminal(arguments).unwrap();
        let longest = said.split(['\n', '\r']).map(visible).max();
        assert!(longest <= Some(80), "{arguments}: {longest:?}: {said}");
    }
    let quiet = on_a_terminal(&format!("{model} --quiet")).unwrap();
    assert_eq!(quiet, "");
}

#[test]
fn no_color_is_obeyed() {
    let run = format!("NO_COLOR=1 {} --help", env!("CARGO_BIN_EXE_millpond"));
    let Ok(output) = Command::new("script").args(["-qefc", &run, "/dev/null"]).stdin(Stdio::null()).output()
    else {
        return;
    };
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Usage") && !said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn the_version_is_one_line() {
    let version = stdout(&millpond(&["--version"]));
    assert!(version.starts_with("millpond 0.") && version.lines().count() == 1, "{version}");
    assert!(stderr(&millpond(&["--version"])).is_empty());
}
