//! The recipes of docs/operate.md, as far as this machine allows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::shared::{command, stderr, stdout};

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/operate").canonicalize().unwrap()
}

/// Says that something is missing; fails where all must be there.
fn has(tool: &str) -> bool {
    let has =
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !has {
        eprintln!("not run: {tool} is not installed");
    }
    has
}

#[test]
fn slurm_makes_a_budget_a_job_and_takes_it_away() {
    let user = rustix::process::geteuid().as_raw();
    if user != 0 || !has("setpriv") {
        eprintln!("not run: Slurm's prolog runs as root");
        return;
    }
    let jobs = tempfile::tempdir().unwrap();
    let own = command();
    let program = Path::new(own.get_program()).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let run = |script: &str, limit: &str| -> Output {
        let mut run = Command::new(recipes().join(script));
        run.env("MILLPOND_JOBS", jobs.path()).env("PATH", &path).env("MILLPOND_JOB_LIMIT", limit);
        run.env("SLURM_JOB_ID", "17").env("SLURM_JOB_UID", user.to_string()).output().unwrap()
    };
    let folder = jobs.path().join("job-17");
    assert_eq!(stdout(&run("slurm-task-prolog", "")), "");
    stdout(&run("slurm-prolog", ""));
    assert!(!folder.exists(), "without a limit there is no budget");
    stdout(&run("slurm-prolog", "40GiB"));
    let said = stdout(&run("slurm-task-prolog", ""));
    assert_eq!(
        said,
        format!("export MILLPOND_BUDGET_DIR={0}\nexport MILLPOND_BUDGET=job\n", folder.display())
    );
    let shown = command().args(["budget", "job"]).env("MILLPOND_BUDGET_DIR", &folder).output().unwrap();
    assert!(stdout(&shown).starts_with("budget job: 0 B of 40.00 GiB held"));
    stdout(&run("slurm-epilog", ""));
    assert!(!folder.exists());
    stdout(&run("slurm-epilog", ""));
}

#[test]
fn alert_rules_are_what_prometheus_takes() {
    if !has("promtool") {
        return;
    }
    let output =
        Command::new("promtool").args(["check", "rules"]).arg(recipes().join("alerts.yaml")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // They ask for what the command tells.
    let rules = fs::read_to_string(recipes().join("alerts.yaml")).unwrap();
    let told = stdout(&command().arg("metrics").output().unwrap());
    for name in rules
        .split(|c: char| !c.is_ascii_lowercase() && c != '_')
        .filter(|word| word.starts_with("millpond_"))
    {
        assert!(told.contains(&format!("# TYPE {name} ")), "{name}");
    }
}

#[test]
fn the_files_start_commands_that_there_are() {
    for file in ["daemonset.yaml", "sidecar.yaml", "millpond-metrics.service"] {
        let text = fs::read_to_string(recipes().join(file)).unwrap();
        let line =
            text.lines().find(|line| line.contains("args: [metrics") || line.starts_with("ExecStart="));
        let line = line.unwrap_or_else(|| panic!("{file}"));
        let words = line.rsplit_once("millpond ").map_or_else(
            || line.trim().trim_start_matches("args: [").trim_end_matches(']').replace([',', '"'], ""),
            |(_, words)| words.to_owned(),
        );
        let output = command().args(words.split_whitespace()).arg("--help").output().unwrap();
        assert!(output.status.success() && words.starts_with("metrics --listen"), "{file}: {words}");
    }
}
