//! `millpond predict` as a user calls it.

mod shared;

use std::path::{Path, PathBuf};
use std::process::Output;

use millpond::{Context, Pool, record};
use shared::{command, read_json, stderr, stdout};

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
