//! Wrong usage: one line that names the flag, the file or the line, and exit status 2. Files that are not there or
//! not what they should be: the same with exit status 1.

use std::path::Path;

use crate::shared::{command, millpond, stderr};

/// What is called, the exit status, and what the line begins with.
type Wrong<'a> = (&'a [&'a str], i32, &'a str);

const TRAIN: [Wrong<'_>; 34] = [
    (&["--epochs", "0"], 2, "--epochs: 0 is outside 1 to 100,000"),
    (&["--epochs", "-1"], 2, "--epochs: -1 is outside 1 to 100,000"),
    (&["--epochs", "100001"], 2, "--epochs: 100001 is outside 1 to 100,000"),
    (&["--epochs", "many"], 2, "--epochs: 'many' is not a whole number from 1 to 100,000"),
    (&["--epochs", ""], 2, "--epochs: '' is not a whole number"),
    (&["--epochs"], 2, "--epochs: its value is missing"),
    (&["--epochs", "1", "--epochs", "2"], 2, "--epochs: it is given twice"),
    (&["--batch-size", "0"], 2, "--batch-size: 0 is outside 1 to 65,536"),
    (&["--num-layers", "257"], 2, "--num-layers: 257 is outside 1 to 256"),
    (&["--feat-dim", "1.5"], 2, "--feat-dim: '1.5' is not a whole number from 1 to 65,536"),
    (&["--learning-rate", "0"], 2, "--learning-rate: 0 is not a number above 0"),
    (&["--learning-rate", "-0.5"], 2, "--learning-rate: -0.5 is not a number above 0"),
    (&["--learning-rate", "nan"], 2, "--learning-rate: NaN is not a number above 0"),
    (&["--learning-rate", "fast"], 2, "--learning-rate: 'fast' is not a number above 0"),
    (&["--seed", "-1"], 2, "--seed: '-1' is not a whole number from 0 on"),
    (&["--device", "gpu"], 2, "--device: 'gpu' is not auto, host, cuda or cuda:N"),
    (&["--device", "sim"], 2, "--device: 'sim' is not auto, host, cuda or cuda:N"),
    (&["--allocator", "jemalloc"], 2, "--allocator: 'jemalloc' is not one of millpond, "),
    (&["--allocator", ""], 2, "--allocator: its value is missing, one of millpond, "),
    (&["--allocator", "millpond,binned"], 2, "--allocator: 'millpond,binned' is not one of"),
    (&["--precision", "half"], 2, "--precision: 'half' is not float32, tf32 or bfloat16"),
    (&["--steps", "graph"], 2, "--steps: 'graph' is not auto, eager or captured"),
    (
        &["--epohcs", "1"],
        2,
        "--epohcs: there is no such flag. Did you mean --epochs? `millpond train --help` says",
    ),
    (&["a.toml", "b.toml"], 2, "b.toml: it is one too many. `millpond train --help` says"),
    (&["--json", ""], 2, "--json: its value is missing"),
    (&["--record", "-"], 2, "--record -: a recording needs a file"),
    (&["--log-dir", "-"], 2, "--log-dir -: curves need a folder"),
    (&["--allocator", "driver", "--record", "x"], 2, "--record is for the pool: add --allocator millpond"),
    (&["--json", "x", "--record", "x"], 2, "x: is written to already; name another file"),
    (&["no.toml"], 1, "no.toml: cannot read the settings: No such file"),
    (&["folder"], 1, "folder: cannot read the settings: Is a directory"),
    (&["--data", "nowhere"], 1, "nowhere: cannot find the data: no such folder"),
    (&["--data", "file"], 1, "file: cannot find the data: it is not a folder"),
    (&["--json", "nowhere/x.json"], 1, "nowhere/x.json: cannot write it: No such file"),
];

const TRAIN_FILES: [Wrong<'_>; 4] = [
    (&["--json", "folder"], 1, "folder: cannot write it: Is a directory"),
    (&["--log-dir", "file"], 1, "file: cannot create the log folder: File exists"),
    (&["--record", "folder"], 1, "folder: cannot write it: Is a directory"),
    (&["--data", "folder"], 1, "folder/train-images-idx3-ubyte: cannot find the data: no such file"),
];

const BENCH: [Wrong<'_>; 14] = [
    (&["--time", "0"], 2, "--time: 0 is outside 1 to 60,000"),
    (&["--time", "-5"], 2, "--time: -5 is outside 1 to 60,000"),
    (&["--time", "long"], 2, "--time: 'long' is not a whole number from 1 to 60,000"),
    (&["--suite", "fast"], 2, "--suite: 'fast' is not one of latency, "),
    (&["--suite", "latency,"], 2, "--suite: its value is missing"),
    (&["--allocator", "jemalloc"], 2, "--allocator: 'jemalloc' is not one of millpond, "),
    (&["--device", "gpu"], 2, "--device: no device is called 'gpu'"),
    (&["--memory", "fast"], 2, "--memory: 'fast' is not one of device, pinned, managed"),
    (
        &["--memory", "pinned", "--allocator", "millpond,binned"],
        2,
        "--memory pinned is for millpond: binned takes device memory only",
    ),
    (&["x"], 2, "x: it is one too many"),
    (&["--json", "x", "--report", "x"], 2, "x: is written to already; name another file"),
    (&["--json", "-", "--report", "-"], 2, "- (standard output): is written to already"),
    (&["--json", "folder"], 1, "folder: cannot write it: Is a directory"),
    (&["--report", "nowhere/x.html"], 1, "nowhere/x.html: cannot write it: No such file"),
];

const PROBE: [Wrong<'_>; 7] = [
    (&["--device", "sim"], 2, "--device sim: it keeps no bytes; name auto, cuda, cuda:N or host"),
    (&["--device", "gpu"], 2, "--device: no device is called 'gpu'"),
    (&["--quick=yes"], 2, "--quick: it takes no value"),
    (&["x"], 2, "x: it is one too many"),
    (&["--json", "x", "--cost-table", "x"], 2, "x: is written to already; name another file"),
    (&["--json", "folder"], 1, "folder: cannot write it: Is a directory"),
    (&["--cost-table", "nowhere/x.toml"], 1, "nowhere/x.toml: cannot write it: No such file"),
];

const SOAK: [Wrong<'_>; 8] = [
    (&["--operations", "0"], 2, "--operations: '0' is no number above 0, up to 1e15"),
    (&["--operations", "many"], 2, "--operations: 'many' is no number above 0"),
    (&["--minutes", "-1"], 2, "--minutes: '-1' is no number above 0, up to 1e5"),
    (&["--faults", "1"], 2, "--faults: '1' is no chance from 0 to below 1, such as 1e-3"),
    (&["--streams", "9"], 2, "--streams: "),
    (&["--device", "gpu"], 2, "--device: no device is called 'gpu'"),
    (&["--program", "7"], 2, "--program 7: name the --seed, too"),
    (&["--json", "folder"], 1, "folder: cannot write it: Is a directory"),
];

const OTHERS: [Wrong<'_>; 15] = [
    (
        &["replay", "x", "--capacity", "24x"],
        2,
        "--capacity: expected a size such as 24GiB, 512MiB or 8000000000",
    ),
    (
        &["replay", "x", "--context", "512"],
        2,
        "--context: 512 without a unit is 512 bytes; did you mean 512MiB?",
    ),
    (
        &["replay", "x", "--card", "RTX 4091"],
        2,
        "--card: 'RTX 4091' is no card that Millpond knows; give its size",
    ),
    (&["budget", "x", "--limit", "40"], 2, "--limit: 40 without a unit is 40 bytes; did you mean 40GiB?"),
    (&["swim"], 2, "swim: there is no such command. `millpond --help` lists them"),
    (&["trian"], 2, "trian: there is no such command. Did you mean train? "),
    (&["--loud"], 2, "--loud: there is no such flag. `millpond --help` says what there is"),
    (&["info", "--jsno"], 2, "--jsno: there is no such flag. Did you mean --json? "),
    (&["info", "--memory", "gpu"], 2, "--memory: 'gpu' is not one of device, pinned, managed"),
    (&["budget", "x", "--limit", "50%"], 2, "--limit: a part is of one GPU, which is not known here"),
    (&["budget", "a/b"], 1, "budget: the name is 'a/b': use 1 to 64 letters, digits"),
    (&["budget", "nobody-has-it"], 1, "there is no budget 'nobody-has-it': a program that names it makes it"),
    (&["fetch"], 2, "<DATASET>, <DIR> is missing; `millpond fetch --help` has examples"),
    (&["fetch", "cifar", "."], 2, "<DATASET>: 'cifar' is not one of mnist"),
    (&["fetch", "mnist", "file"], 1, "file: cannot create the folder: File exists"),
];

#[test]
fn wrong_usage_is_one_line_that_names_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let train = TRAIN.iter().chain(&TRAIN_FILES).map(|wrong| ("train", wrong));
    let all = train.chain(BENCH.iter().map(|wrong| ("bench", wrong)));
    let all = all.chain(PROBE.iter().map(|wrong| ("probe", wrong)));
    let all = all.chain(SOAK.iter().map(|wrong| ("soak", wrong)));
    for (name, (args, status, expected)) in all.chain(OTHERS.iter().map(|wrong| ("", wrong))) {
        let words = [name].into_iter().filter(|name| !name.is_empty()).chain(args.iter().copied());
        let output = command().args(words).current_dir(&dir).output().unwrap();
        let said = stderr(&output);
        let line = said.strip_prefix("millpond: ").unwrap_or_else(|| panic!("{name} {args:?}: {said}"));
        assert!(line.starts_with(expected), "{name} {args:?}: {line}");
        assert_eq!(
            (output.status.code(), said.lines().count()),
            (Some(*status), 1),
            "{name} {args:?}: {said}"
        );
        assert!(output.stdout.is_empty(), "{name} {args:?}: nothing is done before");
    }
    let mut left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["file", "folder"], "nothing is left behind");
}

#[test]
fn a_wrong_file_of_settings_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    for (text, expected) in [
        (
            "device = \"gpu\"\n",
            "line 1: device: 'gpu' is not auto, host, cuda or cuda:N with the GPU's number",
        ),
        ("\n# so many\nepochs = 0\n", "line 3: epochs: 0 is outside 1 to 100,000"),
        ("epochs = \"ten\"", "line 1: epochs: invalid type: string \"ten\", expected a whole number"),
        ("bach_size = 1", "line 1: unknown key `bach_size`, expected one of `num_layers`"),
        ("allocator = \"jemalloc\"", "line 1: allocator: 'jemalloc' is not one of millpond, "),
        ("epochs 3", "line 1: "),
        ("epochs = 3\nepochs = 4\n", "line 2: epochs: duplicate key"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = command().args(["train", "run.toml"]).current_dir(&dir).output().unwrap();
        let said = stderr(&output);
        assert!(said.starts_with(&format!("millpond: run.toml: {expected}")), "{text}: {said}");
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{text}: {said}");
    }
    std::fs::write(&file, b"data = \"\xff\"").unwrap();
    let said = stderr(&command().args(["train", "run.toml"]).current_dir(&dir).output().unwrap());
    assert!(said.starts_with("millpond: run.toml: cannot read the settings: "), "{said}");
}

#[test]
fn no_command_at_all_shows_the_help() {
    let output = millpond(&[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("Usage: millpond") && said.contains("millpond train"), "{said}");
    assert!(!Path::new("x").exists());
}
