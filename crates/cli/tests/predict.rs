//! `millpond predict` as a user calls it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::shared::{command, read_json, stderr, stdout};
use millpond::{Context, Pool, record};

const MIB: u64 = 1 << 20;

/// Records a job: weights of 8 MiB, activations of 1 MiB for each of the batch, and then a workspace of 24 MiB.
fn job(folder: &Path, batch: u64) -> PathBuf {
    let path = folder.join(format!("{batch}.mprec"));
    let context = Context::host().unwrap();
    let pool = Pool::builder(&context).record(record::Options::new(&path).call_sites(true)).build().unwrap();
    let stream = context.create_stream().unwrap();
    let weights = pool.alloc(8 * MIB, &stream).unwrap();
    for _ in 0..3 {
        let activations = pool.alloc(batch * MIB, &stream).unwrap();
        // SAFETY: the block is this test's, without work.
        unsafe { pool.free(activations, &stream) }.unwrap();
        let workspace = pool.alloc(24 * MIB, &stream).unwrap();
        // SAFETY: as above.
        unsafe { pool.free(workspace, &stream) }.unwrap();
    }
    // SAFETY: as above.
    unsafe { pool.free(weights, &stream) }.unwrap();
    pool.stop_recording().unwrap();
    path
}

fn predict(recordings: &[(&Path, u64)], args: &[&str]) -> Output {
    let named = recordings.iter().map(|(path, size)| format!("{}:batch={size}", path.display()));
    command().args(["predict", "--recording"]).args(named).args(args).output().unwrap()
}

#[test]
fn a_larger_batch_is_predicted_as_it_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let [small, large] = [10, 20].map(|batch| job(folder.path(), batch));
    let json = folder.path().join("p.json");
    let args = ["--scale", "batch=64", "--json", json.to_str().unwrap()];
    let output = predict(&[(&small, 10), (&large, 20)], &args);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    // The workspace was the peak of both, and is no more.
    assert!(
        text.starts_with("batch=64: requests 72.00 MiB at most\nEach batch adds 1.00 MiB to that.\n"),
        "{text}"
    );
    let told = read_json(&json);
    let parts = told["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 2, "{told}");
    assert!(parts[0]["site"].as_str().unwrap().contains("(predict.rs:"), "{told}");
    assert_eq!(parts[0]["bytes"].as_u64(), Some(64 << 20));
    assert!(told["needs"][0]["needs"].as_u64() >= Some(72 << 20), "{told}");
    assert!(told["recordings"][0]["error"].as_f64().unwrap().abs() < 1e-6, "{told}");

    let truth = job(folder.path(), 64);
    let output = predict(&[(&small, 10), (&large, 20), (&truth, 64)], &args);
    assert!(stdout(&output).contains("predicted: from the other recordings alone"), "{}", stdout(&output));
    let told = read_json(&json);
    assert_eq!(told["recordings"][2]["peak_requested"].as_u64(), Some(72 << 20));
    assert!(told["recordings"][2]["error"].as_f64().unwrap().abs() < 1e-6, "{told}");
}

#[test]
fn what_cannot_be_scaled_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let small = job(folder.path(), 10);
    let refused = |recordings: &[(&Path, u64)], scale: &str, said: &str| {
        let output = predict(recordings, &["--scale", scale]);
        assert_eq!(output.status.code(), Some(2), "{scale}");
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    };
    refused(&[(&small, 10)], "batch=20", "add --recording");
    refused(&[(&small, 10), (&small, 20)], "length=20", "give both the same name");
    refused(&[(&small, 10), (&small, 20)], "batch=0", "a number above 0");
    let bare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces/gnn.pickle.zst");
    refused(&[(&bare, 10), (&small, 20)], "batch=30", "names no call sites");
}

/// What a process of a program that is predicted writes, as the hook in PyTorch does: weights of 1 GiB, and activations of 100 MiB for
/// each of the batch.
pub(crate) const STAND_IN: &str = r#"
import json, os, pickle, sys
batch = int(sys.argv[sys.argv.index("--batch-size") + 1]) if "--batch-size" in sys.argv else 4
folder = os.environ["MILLPOND_PREDICT"]
tag = lambda name: {"name": name, "filename": "tag", "line": 0}
line = {"name": "forward", "filename": "train.py", "line": 7}
events, address = [], 1 << 30
def alloc(size, *tags):
    global address
    frames = [line, *map(tag, tags)]
    events.append({"action": "alloc", "addr": address, "size": size, "stream": 0, "time_us": len(events), "frames": frames})
    address += size + 512
alloc(1 << 30, "embed", "parameter")
for layer in range(batch):
    alloc(100 << 20, f"h.{layer}.mlp", "activation")
snapshot = {"device_traces": [events], "segments": []}
path = os.path.join(folder, "1.pickle")
with open(path, "wb") as file:
    pickle.dump(snapshot, file)
card = os.environ["MILLPOND_CARD"]
answer = {"ended": "steps", "error": None, "recording": path, "torch": "2.11.0", "steps": int(os.environ["MILLPOND_PREDICT_STEPS"]),
          "rank": int(os.environ.get("RANK") or 0), "remarks": [f"the card is {card}"]}
with open(os.path.join(folder, "1.json"), "w") as file:
    json.dump(answer, file)
"#;

/// `millpond predict` of a program with the library that cargo built for this test; `None` where Python is not installed.
pub(crate) fn predicted(program: &str, args: &[&str]) -> Option<Output> {
    predicted_of(program, args, &[])
}

/// The same, of a program with arguments.
fn predicted_of(program: &str, args: &[&str], words: &[&str]) -> Option<Output> {
    let mut predict = prediction(args)?;
    Some(predict.args(["python3", "-c", program]).args(words).output().unwrap())
}

/// The command up to the program; `None` where Python is not installed.
pub(crate) fn prediction(args: &[&str]) -> Option<Command> {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "python3 is not installed");
        eprintln!("not run: python3 is not installed");
        return None;
    }
    let test = std::env::current_exe().unwrap();
    let mut predict = command();
    predict.env("MILLPOND_CARD_LIBRARY", test.parent().unwrap().join("libmillpond_card.so"));
    predict.env_remove("RANK").env_remove("WORLD_SIZE");
    predict.arg("predict").args(args).arg("--");
    Some(predict)
}

#[test]
fn a_program_is_predicted_by_kind_module_and_card() {
    let folder = tempfile::tempdir().unwrap();
    let [json, recording] = ["p.json", "p.pickle"].map(|name| folder.path().join(name));
    let files = ["--json", json.to_str().unwrap(), "--record", recording.to_str().unwrap()];
    let args = [&["--card", "RTX 4090,8GiB", "--steps", "5"], &files[..]].concat();
    let Some(output) = predicted(STAND_IN, &args) else { return };
    let text = stdout(&output);
    for line in [
        "python3, predicted on RTX 4090 (23.64 GiB)",
        "(PyTorch 2.11.0; 5 steps of the optimizer)",
        "requests 1.39 GiB at most",
        "   1.00 GiB  72 %  parameter",
        " 400.00 MiB  28 %  h.*.mlp (4)",
        "the card is RTX 4090|25382879232|8|9|128|1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let told = read_json(&json);
    let rank = &told["ranks"][0];
    assert_eq!(rank["peak_requested"].as_u64(), Some((1024 + 400) << 20));
    assert_eq!(rank["kinds"][1]["name"], "activation");
    assert_eq!(rank["allocators"].as_array().unwrap().len(), 8);
    assert_eq!(rank["allocators"][0]["cards"].as_array().unwrap().len(), 2, "{told}");
    let replayed = command().arg("replay").arg(&recording).output().unwrap();
    assert!(stdout(&replayed).contains("parameter/embed"), "{}", stdout(&replayed));
}

#[test]
fn the_largest_batch_fits_and_one_more_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("p.json");
    let args = ["--card", "8GiB", "--context", "0", "--batch", "auto", "--json", json.to_str().unwrap()];
    let Some(output) = predicted(STAND_IN, &args) else { return };
    assert!(
        stdout(&output).contains("the largest batch that fits with millpond: 71\n"),
        "{}",
        stdout(&output)
    );
    let told = read_json(&json);
    assert_eq!(told["largest_batch"][1]["batch"].as_u64(), Some(71), "{told}");
}

/// What a program finds out about the card, and whether it can use it: answers are a text in the error of a job that failed.
const ASKS: &str = r#"
import ctypes, json, os
cuda = ctypes.CDLL(None)
count, properties, address = ctypes.c_int(), ctypes.create_string_buffer(1008), ctypes.c_void_p()
told = [cuda.cudaGetDeviceCount(ctypes.byref(count)), cuda.cudaGetDeviceProperties(properties, 0)]
told += [cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(50 << 30)), cuda.cudaLaunchKernel(None)]
host = ctypes.create_string_buffer(b"value", 8)
told += [cuda.cudaMemcpy(host, address, ctypes.c_size_t(8), 2), cuda.cudaSetDevice(2), cuda.cudaFree(address)]
free, total = ctypes.c_size_t(), ctypes.c_size_t()
cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(30 << 30))
cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
taken = total.value - free.value >> 30
text = f"{count.value} of {properties.value.decode()}: {told} {host.raw == bytes(8)}, {taken} GiB are taken"
with open(os.environ["MILLPOND_PREDICT"] + "/1.json", "w") as file:
    json.dump({"ended": "failed", "error": text, "remarks": []}, file)
"#;

/// A script that reads, writes, moves and removes files as scripts do, and finds what it did. Its argument is a folder.
const WRITES: &str = include_str!("predict/writes.py");

/// The files of a script, and what is in them.
fn real_files(folder: &Path) -> Vec<(&'static str, &'static str)> {
    let files = [
        ("best.pt", "weights of a week"),
        ("log.txt", "line one\n"),
        ("array.bin", "values"),
        ("config.json", "{}"),
        ("gone.txt", "here"),
        ("sub/inner.txt", "inner"),
        ("tree/leaf/a.txt", "a"),
        ("tree/b.txt", "b"),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    std::os::unix::fs::symlink("best.pt", folder.join("link.pt")).unwrap();
    files.to_vec()
}

/// All that is in a folder: names, kinds, contents, rights and times.
fn everything(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = path.symlink_metadata().unwrap();
        let (rights, changed) = (about.permissions().mode(), about.modified().unwrap());
        let text = if about.is_file() { std::fs::read_to_string(&path).unwrap() } else { String::new() };
        all.push(format!("{} {rights:o} {changed:?} {text}", path.display()));
        if about.is_dir() {
            all.extend(everything(&path));
        }
    }
    all.sort();
    all
}

#[test]
fn what_a_script_writes_is_read_by_it_and_never_kept() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().canonicalize().unwrap();
    real_files(&work);
    let before = everything(&work);
    let json = folder.path().with_extension("json");
    let script = format!("{WRITES}{STAND_IN}");
    let args = ["--json", json.to_str().unwrap()];
    let Some(output) = predicted_of(&script, &args, &[work.to_str().unwrap()]) else { return };
    let text = stdout(&output);
    assert!(text.contains("requests 1.39 GiB at most"), "{text}{}", stderr(&output));
    assert!(stderr(&output).contains("seen\nseen too\n"), "{}", stderr(&output));
    assert_eq!(everything(&work), before);
    assert!(text.contains("python3 wrote 1 file and removed "), "{text}");
    let told = read_json(&json);
    assert_eq!(
        told["not_kept"]["written"][0].as_str(),
        work.join("best.pt").to_str().map(|path| &path[1..]),
        "{told}"
    );
    std::fs::remove_file(json).unwrap();
}

#[test]
fn folders_of_a_prediction_are_the_users_alone() {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libmillpond_card.so");
    let tells = "import os, stat; folder = os.environ['MILLPOND_PREDICT']; print(oct(stat.S_IMODE(os.stat(folder).st_mode)))";
    let script = format!("{tells}\n{STAND_IN}");
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", "umask 0; exec \"$0\" predict -- python3 -c \"$1\""])
        .arg(command().get_program())
        .arg(script);
    let output = shell.env("MILLPOND_CARD_LIBRARY", library).output().unwrap();
    assert!(stderr(&output).contains("0o700\n"), "{}", stderr(&output));
}

#[test]
fn with_write_through_a_script_writes_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    real_files(folder.path());
    let script = format!("import sys; open(sys.argv[1] + '/best.pt', 'w').write('zeros')\n{STAND_IN}");
    let words = [folder.path().to_str().unwrap()];
    let Some(output) = predicted_of(&script, &["--write-through"], &words) else { return };
    assert!(!stdout(&output).contains("nothing of that is kept"), "{}", stdout(&output));
    assert_eq!(std::fs::read_to_string(folder.path().join("best.pt")).unwrap(), "zeros");
}

/// Past the C library's functions: by the number of the call.
const PAST_THE_LIBRARY: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
# Which version of Landlock the system has.
if libc.syscall(444, None, 0, 1) < 2:
    print("not tried: this system has no Landlock", file=sys.stderr)
else:
    file = libc.syscall(257, -100, (sys.argv[1] + "/best.pt").encode(), 0o1001, 0)
    assert file == -1 and ctypes.get_errno() == 13, (file, ctypes.get_errno())
"#;

#[test]
fn what_comes_past_the_library_is_refused_by_the_system() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let before = real_files(folder.path());
    let script = format!("{PAST_THE_LIBRARY}{STAND_IN}");
    let Some(output) = predicted_of(&script, &[], &[folder.path().to_str().unwrap()]) else { return };
    stdout(&output);
    assert_eq!(std::fs::read_to_string(folder.path().join(before[0].0)).unwrap(), before[0].1);
}

#[test]
fn a_program_finds_a_card_that_does_nothing() {
    let Some(output) = predicted(ASKS, &["--ranks", "2", "--card", "A100"]) else { return };
    let said = crate::shared::failure(&output);
    // All calls succeed, but for the choice of a third card.
    assert!(said.contains("2 of A100: [0, 0, 0, 0, 0, 101, 0] True, 30 GiB are taken"), "{said}");
}

/// Asks cuFFT and cuSOLVER for workspaces, as PyTorch does, and hears of them as the hook does.
const WORKSPACES: &str = r#"
import ctypes, json, os
card, told = ctypes.CDLL(None), []
tell = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t)(lambda library, bytes: told.append((library, bytes)))
card.millpond_card_tell(tell)
bytes, on_host, elements, plan = ctypes.c_size_t(7), ctypes.c_size_t(7), ctypes.c_int(7), ctypes.c_int()
size, pointer = ctypes.c_longlong, ctypes.c_void_p
real, complex = 0, 4
lengths = (size * 1)(1024)
answers = [card.cufftCreate(ctypes.byref(plan))]
answers += [card.cufftXtMakePlanMany(plan, 1, lengths, None, size(1), size(1024), real, None, size(1), size(513), complex, size(64),
                                     ctypes.byref(bytes), complex)]
found = [bytes.value]
answers += [card.cusolverDnXsyevd_bufferSize(pointer(), pointer(), 1, 0, size(100), real, pointer(), size(100), real, pointer(), real,
                                             ctypes.byref(bytes), ctypes.byref(on_host))]
found += [bytes.value, on_host.value]
answers += [card.cusolverDnDgetrf_bufferSize(pointer(), 100, 50, pointer(), 100, ctypes.byref(elements)), card.cusolverDnDgetrf()]
found += [elements.value]
with open(os.environ["MILLPOND_PREDICT"] + "/1.json", "w") as file:
    json.dump({"ended": "failed", "error": f"{answers} {found} {told}", "remarks": []}, file)
"#;

#[test]
fn libraries_that_look_for_a_driver_have_workspaces_that_are_told() {
    let Some(output) = predicted(WORKSPACES, &[]) else { return };
    let said = crate::shared::failure(&output);
    let eigen = 4 * (1 + 6 * 100 + 2 * 100 * 100);
    let whole = 100 * 50 + 100 * 128;
    let found = format!(
        "[0, 0, 0, 0, 0] [{0}, {eigen}, 0, {whole}] [(1, {0}), (2, {eigen}), (2, {1})]",
        64 * 513 * 8,
        8 * whole
    );
    assert!(said.contains(&found), "{found}: {said}");
}

/// Stands for a PyTorch without CUDA, which is refused as soon as it is watched.
const TORCH: &str = "
import sys
from unittest.mock import MagicMock
torch = MagicMock(__spec__=__spec__)
torch.backends.cuda.is_built.return_value = False
sys.modules['torch'] = torch
";

#[test]
fn a_program_that_asks_for_torch_before_it_imports_it_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("torch.py"), TORCH).unwrap();
    for asks in ["pass", "importlib.util.find_spec('torch')"] {
        let script =
            format!("import importlib.util, sys; sys.path.insert(0, sys.argv[1]); {asks}; import torch");
        let Some(output) = predicted_of(&script, &[], &[folder.path().to_str().unwrap()]) else { return };
        assert!(
            stderr(&output).contains("this PyTorch is built without CUDA"),
            "{asks}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn what_the_figures_would_be_misread_without_is_said_first() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("p.json");
    let script = STAND_IN
        .replace("\"remarks\"", "\"first\": [\"no optimizer took a step\"], \"remarks\"")
        .replace("\"steps\", \"error\"", "\"ended\", \"error\"");
    let args = ["--json", json.to_str().unwrap()];
    let Some(output) = predicted(&format!("{script}raise SystemExit(3)"), &args) else { return };
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2..4], ["But: no optimizer took a step", "But: python3 ended with status 3"], "{text}");
    assert!(lines[4].starts_with("requests "), "{text}");
    let first = &read_json(&json)["ranks"][0]["first"];
    assert_eq!(first.as_array().unwrap().len(), 2, "{first}");
}

#[test]
fn each_rank_is_predicted() {
    let Some(output) = predicted(STAND_IN, &["--ranks", "2"]) else { return };
    let text = stdout(&output);
    assert!(text.contains("\nRank 0\n") && text.contains("\nRank 1\n"), "{text}");
    assert!(text.contains("the card is H100|84934656000|9|0|132|2"), "{text}");
}

#[test]
fn processes_of_one_rank_are_told_apart() {
    let second = STAND_IN.replace("\"1.pickle\"", "\"2.pickle\"").replace("\"1.json\"", "\"2.json\"");
    let Some(output) = predicted(&format!("{STAND_IN}{second}"), &[]) else { return };
    let text = stdout(&output);
    assert!(text.contains("\nProcess 1\n") && text.contains("\nProcess 2\n"), "{text}");
    assert!(text.contains("process  requested") && !text.contains("Rank"), "{text}");
}

#[test]
fn what_cannot_be_predicted_says_why_in_one_line() {
    let answer = |ended: &str, error: &str| {
        format!(
            "import json, os\nwith open(os.environ['MILLPOND_PREDICT'] + '/1.json', 'w') as file:\n    json.dump({{'ended': \
             '{ended}', 'error': '{error}', 'remarks': []}}, file)\n"
        )
    };
    let refused = |program: &str, args: &[&str], status: i32, said: &str| {
        let Some(output) = predicted(program, args) else { return };
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(crate::shared::failure(&output).contains(said), "{}", stderr(&output));
    };
    refused(&answer("refused", "train.py:3: say --item"), &[], 2, "train.py:3: say --item");
    refused(&answer("failed", "ValueError: no"), &[], 1, "python3: ValueError: no; nothing is predicted");
    refused("pass", &[], 2, "it allocated nothing on a card by PyTorch");
    refused("raise SystemExit(3)", &[], 1, "it ended with status 3 before it told of an allocation");
    refused("import os; os.kill(os.getpid(), 11)", &[], 1, "signal 11 ended it before");
    refused(STAND_IN, &["--card", "1GiB", "--batch", "auto"], 2, "a batch of 1 does not fit a card of 1 GiB");
    refused(STAND_IN, &["--batch", "0"], 2, "should be a number above 0, or auto");
    refused(STAND_IN, &["--selected", "2"], 2, "a part from 0 to 1");
    refused(STAND_IN, &["--card", "Voodoo"], 2, "no card that Millpond knows");
    let launcher = command().args(["predict", "--", "torchrun", "train.py"]).output().unwrap();
    assert_eq!(launcher.status.code(), Some(2), "{}", stderr(&launcher));
    let neither = command().arg("predict").output().unwrap();
    assert_eq!(neither.status.code(), Some(2), "{}", stderr(&neither));
}

#[test]
fn a_files_name_that_is_no_text_is_told_as_it_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("p.json");
    let script = format!("open(b'n\\xff.txt', 'wb').close()\n{STAND_IN}");
    let Some(output) = predicted(&script, &["--json", json.to_str().unwrap()]) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let told = read_json(&json);
    assert!(told["not_kept"]["written"][0].as_str().unwrap().ends_with("n\u{fffd}.txt"), "{told}");
}

#[test]
fn the_command_within_a_predicted_program_is_left_out_or_refused() {
    let run = "import subprocess, sys; sys.exit(subprocess.run([sys.argv[1], 'run', '--', sys.executable, '-c', sys.argv[2]]).returncode)";
    let program = command().get_program().to_str().unwrap().to_owned();
    let Some(output) = predicted_of(run, &[], &[&program, STAND_IN]) else { return };
    assert!(stdout(&output).contains("requests 1.39 GiB at most"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("millpond: under millpond predict: python3 runs as it is"),
        "{}",
        stderr(&output)
    );
    let predict = run.replace("'run'", "'predict'");
    let refused = predicted_of(&predict, &[], &[&program, STAND_IN]).unwrap();
    assert!(stderr(&refused).contains("leave the outer one out"), "{}", stderr(&refused));
}

#[test]
fn a_full_temporary_folder_is_said() {
    let place = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let mut alone = Command::new("unshare");
    alone.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    if !alone
        .arg("mount -t tmpfs -o size=1m tmpfs \"$0\"")
        .arg(place.path())
        .status()
        .is_ok_and(|it| it.success())
    {
        eprintln!("not run: no file system can be mounted here");
        return;
    }
    let fills = "open('filler', 'wb').write(bytes(2 << 20))";
    let mut alone = Command::new("unshare");
    alone.args(["--user", "--map-root-user", "--mount", "sh", "-c"]).arg(
        "mount -t tmpfs -o size=1m tmpfs \"$TMPDIR\" && \"$0\" predict -- python3 -c \"$1\"; ls -A \"$TMPDIR\"",
    );
    alone.arg(command().get_program()).arg(fills).env("TMPDIR", place.path());
    alone.env("MILLPOND_CARD_LIBRARY", test.parent().unwrap().join("libmillpond_card.so"));
    let output = alone.output().unwrap();
    let full = format!("millpond: python3: {} is full, where what it writes goes", place.path().display());
    assert!(stderr(&output).contains(&full), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "the folder goes all the same");
}

#[test]
fn a_prediction_writes_over_no_file_of_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    std::fs::write(&script, STAND_IN).unwrap();
    let script = script.to_str().unwrap();
    for flag in ["--record", "--json"] {
        let Some(mut predict) = prediction(&[flag, script]) else { return };
        let said = crate::shared::failure(&predict.args(["python3", script]).output().unwrap());
        assert_eq!(said, format!("{script}: is read; name another file"));
    }
    assert_eq!(std::fs::read_to_string(script).unwrap(), STAND_IN);
}

#[test]
fn a_recording_that_cannot_be_written_is_refused_before_the_program_runs() {
    let Some(output) = predicted("print('ran')", &["--record", "/no/such/folder/a.pickle"]) else { return };
    let said = crate::shared::failure(&output);
    assert!(said.starts_with("/no/such/folder/a.pickle: cannot write it: "), "{said}");
}
