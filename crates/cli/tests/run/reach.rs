//! Which programs are reached, and what the others are told.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{built, compile, ran, run, sources};
use crate::shared::{command, failure, stderr, stdout};

#[test]
fn the_decay_and_what_is_offloaded_are_the_programs() {
    if built().is_none() {
        return;
    }
    let output = ran(&["--decay", "0.02", "./linked", "idle"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = ran(&["--offload", "optimizer", "sh", "-c", "echo $MILLPOND_OFFLOAD"]);
    assert_eq!(stdout(&output), "optimizer\n");
    let output = ran(&["--decay", "off", "sh", "-c", "echo $MILLPOND_DECAY"]);
    assert_eq!(stdout(&output), "off\n");
}

#[test]
fn a_program_out_of_reach_runs_and_it_is_said() {
    let Some(folder) = built() else { return };
    std::fs::write(folder.join("static.c"), "int main(void) { return 5; }").unwrap();
    compile(folder, &["-static", "static.c", "-o", "static"]);
    let output = ran(&["./static"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stderr(&output).contains("static: it is linked statically"), "{}", stderr(&output));
    let output = ran(&["env", "-i", "true"]);
    assert!(
        output.status.success()
            && stderr(&output).starts_with("millpond: env: it allocated no CUDA memory, unless in a process"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_of_musl_runs_as_it_is_and_so_does_a_child() {
    let Some(folder) = built() else { return };
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return eprintln!("not run: musl-gcc is not installed");
    }
    std::fs::write(folder.join("five.c"), "int main(void) { return 5; }").unwrap();
    let compiled =
        Command::new("musl-gcc").args(["five.c", "-o", "of-musl"]).current_dir(folder).status().unwrap();
    assert!(compiled.success());
    let output = ran(&["./of-musl"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("of-musl: it is linked with musl"), "{}", stderr(&output));
    let output = ran(&["sh", "-c", "./of-musl; echo $?; ./linked leaves"]);
    assert_eq!(stdout(&output), "5\n", "{}", stderr(&output));
    assert!(
        stderr(&output).contains("linked (") && !stderr(&output).contains("Error"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_with_the_address_sanitizer_is_served() {
    let Some(folder) = built() else { return };
    let source = sources().join("linked.c");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-fsanitize=address",
        "-pthread",
        source.to_str().unwrap(),
        "./libcuda.so.1",
        "-o",
        "sanitized",
    ]);
    if !compiler.current_dir(folder).output().unwrap().status.success() {
        return eprintln!("not run: cc has no address sanitizer");
    }
    for case in ["pairs", "reset", "threads"] {
        let output = ran(&["./sanitized", case]);
        assert!(output.status.success(), "{case}: {}", stderr(&output));
        assert!(stderr(&output).contains("sanitized ("), "{case}: {}", stderr(&output));
    }
}

/// A file with capabilities is another user's to run.
#[test]
fn a_file_with_capabilities_is_said_to_be_out_of_reach() {
    let Some(folder) = built() else { return };
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = place.path().join("capable");
    std::fs::copy(folder.join("linked"), &file).unwrap();
    // `cap_chown` as the kernel reads it, version 2.
    let granted = [0x0200_0001_u32, 1, 0, 0, 0].map(u32::to_le_bytes).concat();
    let set = rustix::fs::setxattr(&file, "security.capability", &granted, rustix::fs::XattrFlags::empty());
    let run = run(&[file.to_str().unwrap(), "leaves"]);
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let is_reached =
        other.args(["test", "-x"]).arg(run.get_program()).status().is_ok_and(|status| status.success());
    if set.is_err() || !is_reached {
        return eprintln!(
            "not run: this user cannot give capabilities, or no other user reaches the command"
        );
    }
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(run.get_program())
        .args(run.get_args());
    other.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = stderr(&other.output().unwrap());
    assert!(
        said.contains("capable: its file has capabilities, and the system preloads nothing there"),
        "{said}"
    );
}

#[test]
fn a_missing_library_is_one_clear_sentence() {
    let alone = tempfile::tempdir().unwrap();
    let mut bare = run(&["true"]);
    let mut without =
        |path: &str| failure(&bare.env("MILLPOND_RUN_LIBRARY", alone.path().join(path)).output().unwrap());
    let said = without("none.so");
    assert!(
        said.starts_with("MILLPOND_RUN_LIBRARY names ") && said.ends_with("none.so, which is not there"),
        "{said}"
    );
    let said = without("site-packages/millpond/_run/libmillpond_run.so");
    assert!(said.starts_with("libmillpond_run.so is not in this Python package: `pip install"), "{said}");
    let said = without("");
    assert!(said.ends_with(", which is no file"), "{said}");
    std::fs::write(alone.path().join("cut.so"), "\x7fEL").unwrap();
    let said = without("cut.so");
    assert!(
        said.contains("cut.so is damaged or no library: `cargo build --release -p millpond-run`"),
        "{said}"
    );
    let spaced = alone.path().join("a b.so");
    std::fs::write(&spaced, "").unwrap();
    std::fs::set_permissions(&spaced, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = failure(&bare.env("MILLPOND_RUN_LIBRARY", &spaced).output().unwrap());
    assert!(said.contains("a path with a space or a colon"), "{said}");
}

/// The driver's own allocators, as this command measures them: it opens the driver itself.
#[test]
fn a_program_in_rust_comes_by_the_entry_points() {
    if built().is_none() {
        return;
    }
    let command = command();
    let bench = [
        "bench",
        "--suite",
        "latency",
        "--allocator",
        "stream-ordered,driver",
        "--device",
        "cuda:0",
        "--time",
        "1",
    ];
    let words = [&["--", command.get_program().to_str().unwrap()], &bench[..]].concat();
    let output = ran(&words);
    let said = stderr(&output);
    assert!(stdout(&output).contains("stream-ordered"), "{said}");
    assert!(said.contains(", GPU 0: the pool held ") && !said.contains("beside the pool"), "{said}");
}

#[test]
fn the_kill_switch_leaves_a_program_as_it_is() {
    let print = "echo \"[$LD_PRELOAD$MILLPOND_RUN]\"; exit 7";
    let begin = |disable: &str| {
        let mut run = run(&["--limit", "1GiB", "--", "sh", "-c", print]);
        run.env("MILLPOND_DISABLE", disable).env_remove("LD_PRELOAD").output().unwrap()
    };
    let output = begin("1");
    assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"[]\n"[..]));
    assert_eq!(stderr(&output), "millpond: MILLPOND_DISABLE=1: sh runs as it is, without pool and limit\n");
    if built().is_some() {
        assert!(String::from_utf8_lossy(&begin("0").stdout).contains("libmillpond_run"));
    }
}
