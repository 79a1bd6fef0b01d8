//! The `millpond` command as a user calls it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::shared::{command, failure, keys, millpond, read_json, stdout};

/// A model that trains in a moment.
const SMALL: [&str; 8] = ["--device", "host", "--num-layers", "1", "--feat-dim", "16", "--batch-size", "500"];

fn train_small(args: &[&str]) -> Output {
    millpond(&[&["train"], &SMALL[..], args].concat())
}

#[test]
fn training_writes_over_none_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let refused = |args: &[&str], path: &str, why: &str| {
        let said = failure(&train_small(&[&["--epochs", "1"], args].concat()));
        assert_eq!(said, format!("{path}: {why}; name another file"));
    };
    let (logs, csv, svg) = (at("logs"), at("logs/curves.csv"), at("logs/curves.svg"));
    refused(&["--log-dir", &logs, "--json", &csv], &csv, "is written to already");
    refused(&["--log-dir", &logs, "--record", &svg], &svg, "is written to already");
    assert!(!Path::new(&logs).exists(), "nothing is made before");
    let data = at("data");
    std::fs::create_dir(&data).unwrap();
    let images = at("data/t10k-images-idx3-ubyte.gz");
    std::fs::write(&images, "images").unwrap();
    refused(&["--data", &data, "--json", &images], &images, "is read");
    assert_eq!(std::fs::read(&images).unwrap(), b"images");
}

#[test]
fn json_takes_stdout_and_what_people_read_goes_to_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = command();
        command.args(["train", "--epochs", "1"]).args(SMALL).args(args).current_dir(&dir).output().unwrap()
    };
    let output = run(&["--json", "-"]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["epochs"].as_array().unwrap().len(), 1);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("what the pool did") && said.contains("\n  1/1 "), "{said}");
    for (flag, why) in [("--record", "a recording needs a file"), ("--log-dir", "curves need a folder")] {
        let said = failure(&run(&[flag, "-"]));
        assert_eq!(said, format!("{flag} -: {why}; for one of the name '-' say ./-"));
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn a_file_past_the_limit_of_the_shell_is_an_error_and_nothing_stays() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces/gnn.pickle.zst");
    for flag in ["--json", "--report", "--export-snapshot"] {
        let dir = tempfile::tempdir().unwrap();
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]).arg(command().get_program()).arg("replay");
        limited.arg(&trace).args(["--allocator", "driver", flag, "file"]).current_dir(&dir);
        let said = failure(&limited.output().unwrap());
        assert!(said.starts_with("file: ") && said.contains("File too large"), "{said}");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
}

#[test]
fn help_fails_on_a_full_disk_not_a_closed_pipe() {
    for args in [&["--help"][..], &["--version"], &["train", "--help"], &["help", "replay"], &["info"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command();
        let said = failure(&command.args(args).stdout(full).output().unwrap());
        assert!(said.starts_with("stdout: cannot write to it: No space left"), "{args:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn training_prints_a_line_an_epoch_and_the_pools_account() {
    let text = stdout(&train_small(&["--epochs", "2"]));
    let epochs = text.lines().filter(|line| line.starts_with("  1/2 ") || line.starts_with("  2/2 "));
    assert_eq!(epochs.count(), 2, "{text}");
    for part in [
        "device: host",
        "data:   bundled digits, 8,000 images to learn from",
        "what the pool did",
        "reserved at most",
        "calls saved",
        "pinned memory",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.is_ascii(), "a pipe gets plain lines: {text}");
}

#[test]
fn json_of_one_allocator_is_an_object_with_these_keys() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    // What was there before is replaced.
    std::fs::write(&file, "x".repeat(100_000)).unwrap();
    stdout(&train_small(&["--epochs", "2", "--json", file.to_str().unwrap()]));
    let run = read_json(&file);
    assert_eq!(keys(&run), ["allocator", "device", "epochs", "peak_requested", "peak_reserved"]);
    assert_eq!((run["device"].as_str(), run["allocator"].as_str()), (Some("host"), Some("millpond")));
    let epochs = run["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 2);
    for (at, epoch) in epochs.iter().enumerate() {
        assert_eq!(
            keys(epoch),
            ["device_calls", "epoch", "train_loss", "val_accuracy", "val_loss", "wall_ms"]
        );
        assert_eq!(epoch["epoch"].as_u64(), Some(at as u64 + 1));
        let accuracy = epoch["val_accuracy"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&accuracy));
        assert!(epoch["train_loss"].as_f64().unwrap() > 0.0 && epoch["wall_ms"].as_f64().unwrap() > 0.0);
    }
    assert!(epochs[0]["device_calls"].as_u64().unwrap() > 0);
    assert_eq!(epochs[1]["device_calls"].as_u64(), Some(0));
    let [requested, reserved] = ["peak_requested", "peak_reserved"].map(|key| run[key].as_u64().unwrap());
    assert!(0 < requested && requested <= reserved, "{requested}, {reserved}");
}

#[test]
fn all_allocators_give_equal_losses_in_list_and_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    let text =
        stdout(&train_small(&["--epochs", "1", "--allocator", "all", "--json", file.to_str().unwrap()]));
    let runs = read_json(&file);
    let names: Vec<_> =
        runs.as_array().unwrap().iter().map(|run| run["allocator"].as_str().unwrap()).collect();
    assert_eq!(names, millpond_baselines::NAMES);
    let loss = |run: &Value| run["epochs"][0]["val_loss"].as_f64().unwrap().to_bits();
    assert!(runs.as_array().unwrap().iter().all(|run| loss(run) == loss(&runs[0])));
    let rows = text.lines().skip_while(|line| !line.starts_with("allocator  ")).skip(1);
    let rows: Vec<_> = rows.take_while(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), names.len(), "{text}");
    assert!(rows.iter().zip(&names).all(|(row, name)| row.starts_with(name)), "{text}");
    assert!(text.contains("equal to the last bit"), "{text}");
    assert!(text.lines().count() <= 25, "{text}");
}

#[test]
fn captured_steps_give_the_losses_of_eager_ones() {
    let dir = tempfile::tempdir().unwrap();
    let losses = |steps: &str| {
        let file = dir.path().join(steps);
        let args = ["--epochs", "2", "--steps", steps, "--json", file.to_str().unwrap()];
        let text = stdout(&train_small(&args));
        let epochs = read_json(&file)["epochs"].as_array().unwrap().clone();
        let bits = |epoch: &Value, key: &str| epoch[key].as_f64().unwrap().to_bits();
        let of = |epoch: &Value| [bits(epoch, "train_loss"), bits(epoch, "val_loss")];
        (epochs.iter().map(of).collect::<Vec<_>>(), text.contains("pinned memory"))
    };
    let ((eager, pins), (captured, captured_pins)) = (losses("eager"), losses("captured"));
    assert_eq!(captured, eager);
    assert_eq!((pins, captured_pins), (true, false), "the data set is on the device");
}

#[test]
fn a_file_of_settings_is_overridden_by_flags() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    std::fs::write(&file, "epochs = 3\nallocator = \"binned\"\nfeat_dim = 8\n").unwrap();
    let text = stdout(&train_small(&[file.to_str().unwrap(), "--epochs", "1"]));
    assert!(text.contains("what binned did") && text.contains("1 hidden layer of 16,"), "{text}");
    assert!(text.contains(", 1 epoch,"), "{text}");
}

#[test]
fn curves_make_their_folder_and_replace_those_of_earlier_runs() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("a/b");
    for epochs in ["2", "1"] {
        stdout(&train_small(&["--epochs", epochs, "--log-dir", logs.to_str().unwrap()]));
    }
    let csv = std::fs::read_to_string(logs.join("curves.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(
        csv.starts_with("allocator,epoch,train_loss,val_loss,val_accuracy,wall_ms,device_calls\nmillpond,1,")
    );
    let svg = std::fs::read_to_string(logs.join("curves.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let memory = std::fs::read_to_string(logs.join("memory.svg")).unwrap();
    assert!(memory.contains("weights: 49.62 KiB at most") && memory.contains("backward"), "{memory}");
}

/// A folder with a `python3` that is this shell script.
fn python(script: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("python3");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

fn compared(python: &Path, args: &[&str]) -> Output {
    let path = format!("{}:{}", python.display(), std::env::var("PATH").unwrap());
    let mut command = command();
    command.env("PATH", path).args(["train", "--compare", "pytorch"]).args(SMALL).args(args);
    command.output().unwrap()
}

#[test]
fn without_pytorch_a_comparison_is_refused() {
    let none = python("echo 'No module named torch' >&2; exit 1");
    let output = compared(none.path(), &[]);
    assert_eq!(output.status.code(), Some(2));
    let expected = "--compare pytorch: python3 has no PyTorch: `pip install torch`, or activate the environment that has it";
    assert_eq!(failure(&output), expected);
    let output = compared(none.path(), &["--resume", "--save", "x"]);
    assert!(failure(&output).starts_with("--compare is for a training of one process from its beginning"));
}

/// What the script gets is checked by one that stands for Python; `docs/train.md` has what PyTorch answered.
#[test]
fn pytorch_trains_the_same_and_is_shown_beside() {
    let answers = r#"
case "$2" in "import torch"*) echo 2.99; exit ;; esac
test "$(wc -c <"$3/weights")" -eq $((4 * (784 * 16 + 16 * 10))) || exit 3
test "$(wc -c <"$3/orders")" -eq $((4 * 8000 * 2)) || exit 3
test "$(wc -c <"$3/train-images")" -eq $((784 * 8000)) || exit 3
test "$(wc -c <"$3/validation-labels")" -eq 2000 || exit 3
grep -q '"device":"cpu"' "$3/task" || exit 3
if test "$4" = compiled; then echo 'first line'; echo 'no compiler here' >&2; exit 1; fi
for epoch in 1 2; do
    echo '{"epoch": '$epoch', "train_loss": 0.5, "val_loss": 0.25, "val_accuracy": 0.75, "wall_ms": 1500.0, "device_calls": 0}'
done
echo '{"peak_requested": 0, "peak_reserved": 3145728}'"#;
    let (torch, dir) = (python(answers), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let output =
        compared(torch.path(), &["--epochs", "2", "--json", &at("run.json"), "--log-dir", &at("logs")]);
    let text = stdout(&output);
    assert!(text.contains("trains with PyTorch 2.99, compiled\n  left out: no compiler here\n"), "{text}");
    let row = "PyTorch eager      1.50 s    1.50 s   1.50 s     3.00 MiB   0.2500   75.00 %";
    assert!(text.contains(row) && text.contains("what its process grew by"), "{text}");
    let runs = read_json(Path::new(&at("run.json")));
    let names: Vec<_> =
        runs.as_array().unwrap().iter().map(|run| run["allocator"].as_str().unwrap()).collect();
    assert_eq!(names, ["millpond", "PyTorch eager"]);
    let svg = std::fs::read_to_string(at("logs/curves.svg")).unwrap();
    assert!(svg.contains("PyTorch eager, validation") && svg.contains("millpond, training"));
}

#[test]
fn a_place_that_cannot_be_written_is_found_before_training() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("logs");
    let output = train_small(&["--log-dir", below.to_str().unwrap()]);
    let error = failure(&output);
    assert!(error.starts_with(&format!("{}: cannot create the log folder", below.display())), "{error}");
    assert!(output.stdout.is_empty());
    let output = train_small(&["--json", dir.path().to_str().unwrap()]);
    let error = failure(&output);
    assert!(error.starts_with(&format!("{}: cannot write it", dir.path().display())), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_data_folder_that_is_not_there_is_named() {
    let error = failure(&train_small(&["--data", "/no/such/folder"]));
    assert!(error.starts_with("/no/such/folder: cannot find the data: no such folder"), "{error}");
}

#[test]
fn training_that_diverges_says_so() {
    let error = failure(&train_small(&["--learning-rate", "1e30"]));
    assert!(error.contains("training diverged; try a smaller learning rate"), "{error}");
}

#[test]
fn a_gpu_that_is_not_there_is_one_readable_message() {
    // No machine has so many.
    for args in [&["train", "--device", "cuda:999"][..], &["bench", "--device", "cuda:999"]] {
        let error = failure(&millpond(args));
        assert!(error.contains("driver") || error.contains("GPU"), "{error}");
        assert!(error.contains("`--device host`") || !error.contains("driver"), "{error}");
        assert!(error.len() < 240, "{error}");
    }
}

#[test]
fn info_shows_the_host_device_and_is_json_when_asked() {
    let text = stdout(&millpond(&["info"]));
    assert!(text.contains("host: ") && text.contains("CUDA: "), "{text}");
    let memory = text.lines().skip_while(|line| !line.starts_with("host:")).nth(1).unwrap();
    assert!(memory.contains("memory") && memory.ends_with(", half of this machine's"), "{text}");
    let info: Value = serde_json::from_str(&stdout(&millpond(&["info", "--json"]))).unwrap();
    assert_eq!(keys(&info), ["cuda", "devices", "no_cuda", "version"]);
    assert!(info["cuda"].is_null() != info["no_cuda"].is_null());
    let host = info["devices"].as_array().unwrap().last().unwrap();
    assert_eq!(host["device"].as_str(), Some("host"));
    assert!(host["memory_total"].as_u64().unwrap() >= host["memory_free"].as_u64().unwrap());
    assert!(host["virtual_memory"].as_bool().unwrap());
    assert_eq!(host["memory"], "device");
}

#[test]
fn info_shows_other_memory_when_asked() {
    let text = stdout(&millpond(&["info", "--memory", "managed"]));
    assert!(text.contains(", managed memory\n") && text.contains("the CPU uses it in place"), "{text}");
    let text = stdout(&millpond(&["info", "--memory", "pinned"]));
    assert!(text.contains(", pinned memory\n") && text.contains("the CPU uses it in place"), "{text}");
    let info: Value =
        serde_json::from_str(&stdout(&millpond(&["info", "--memory", "pinned", "--json"]))).unwrap();
    let host = info["devices"].as_array().unwrap().last().unwrap();
    assert_eq!((host["memory"].as_str(), host["host_access"].as_bool()), (Some("pinned"), Some(true)));
    assert!(host["no_memory"].is_null() && host["granularity"].as_u64().unwrap() >= 4096);
    for node in host["numa_nodes"].as_array().unwrap() {
        assert!(node["total"].as_u64() >= node["free"].as_u64(), "{node}");
    }
    assert_eq!(host["node_can_be_chosen"], false, "this device has one pinned memory");
}

#[test]
fn a_training_that_was_recorded_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let [file, json] = ["run.mprec", "replay.json"].map(|name| dir.path().join(name));
    let [path, json_path] = [&file, &json].map(|path| path.to_str().unwrap());
    let said = stdout(&train_small(&["--record", path]));
    assert!(said.contains(&format!("millpond replay {path}")), "{said}");
    stdout(&millpond(&["replay", path, "--allocator", "millpond", "--json", json_path]));
    let replayed = read_json(&json);
    assert!(replayed[0]["allocators"][0]["events"].as_u64().unwrap() > 100, "{replayed}");
    assert!(replayed[0]["allocators"][0]["peak_requested"].as_u64().unwrap() > 0);
    let error = failure(&train_small(&["--allocator", "driver", "--record", path]));
    assert!(error.contains("--record is for the pool"), "{error}");
}

#[test]
fn a_pipe_that_closes_stops_no_run_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    let mut child = command()
        .arg("train")
        .args(SMALL)
        .args(["--epochs", "2", "--json", file.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(read_json(&file)["epochs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_training_is_kept_below_a_limit() {
    let said = failure(&train_small(&["--epochs", "1", "--limit", "1MiB"]));
    assert!(
        said.contains("out of memory") && said.contains("the pools of its budget hold 0 B of 1.00 MiB"),
        "{said}"
    );
    stdout(&train_small(&["--epochs", "1", "--limit", "50%"]));
    let wrong = failure(&train_small(&["--epochs", "1", "--limit", "lots"]));
    assert!(wrong.starts_with("--limit: 'lots' is no amount of memory"), "{wrong}");
    let other = failure(&train_small(&["--allocator", "all", "--limit", "1GiB"]));
    assert!(other.contains("--limit is for the pool"), "{other}");
}
