//! Data folders, whole and damaged.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use millpond_mlp::data::{Dataset, SIDE};

const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

fn images(count: u32) -> Vec<u8> {
    let header = [0x0803, count, SIDE as u32, SIDE as u32].map(u32::to_be_bytes).concat();
    let pixels = (0..count as usize * SIDE * SIDE).map(|i| i as u8);
    header.into_iter().chain(pixels).collect()
}

fn labels(count: u32) -> Vec<u8> {
    let header = [0x0801, count].map(u32::to_be_bytes).concat();
    header.into_iter().chain((0..count).map(|i| (i % 10) as u8)).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A good folder: 12 images to train on, 3 to validate with.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in NAMES.iter().zip([images(12), labels(12), images(3), labels(3)]) {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// The error of a good folder in which one file was replaced, with the folder's name taken out.
fn error_with(name: &str, bytes: &[u8]) -> String {
    let dir = folder();
    std::fs::write(dir.path().join(name), bytes).unwrap();
    error_of(dir.path())
}

fn error_of(dir: &Path) -> String {
    Dataset::from_dir(dir).unwrap_err().to_string().replace(&format!("{}/", dir.display()), "")
}

fn with_number(mut bytes: Vec<u8>, at: usize, number: u32) -> Vec<u8> {
    bytes[4 * at..][..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

#[test]
fn the_bundled_digits_are_8000_and_2000_of_ten_classes() {
    let data = Dataset::bundled().unwrap();
    assert_eq!((data.train.labels.len(), data.validation.labels.len()), (8000, 2000));
    assert_eq!(data.train.images.len(), 8000 * SIDE * SIDE);
    for class in 0..10 {
        assert!(data.validation.labels.iter().filter(|&&label| label == class).count() > 100, "{class}");
    }
}

#[test]
fn folders_are_read_gzipped_or_not_with_dotted_names_too() {
    let plain = Dataset::from_dir(folder().path()).unwrap();
    assert_eq!((plain.train.labels.len(), plain.validation.labels.len()), (12, 3));

    let dir = tempfile::tempdir().unwrap();
    for (at, (name, bytes)) in NAMES.iter().zip([images(12), labels(12), images(3), labels(3)]).enumerate() {
        match at {
            0 => std::fs::write(dir.path().join(format!("{name}.gz")), gzip(&bytes)),
            1 => std::fs::write(dir.path().join(name.replace("-idx", ".idx")), bytes),
            2 => {
                std::fs::write(dir.path().join(format!("{}.gz", name.replace("-idx", ".idx"))), gzip(&bytes))
            }
            // Gzipped, whatever its name says.
            _ => std::fs::write(dir.path().join(name), gzip(&bytes)),
        }
        .unwrap();
    }
    let mixed = Dataset::from_dir(dir.path()).unwrap();
    assert_eq!((mixed.train, mixed.validation), (plain.train, plain.validation));
}

#[test]
fn a_truncated_file_says_how_much_should_be_there() {
    let cut = &images(12)[..5000];
    let expected = "train-images-idx3-ubyte: bytes after the header: found 4984 (truncated?), expected 9408, as the \
                    header says";
    assert_eq!(error_with(NAMES[0], cut), expected);
    assert_eq!(
        error_with(NAMES[1], &labels(12)[..6]),
        "train-labels-idx1-ubyte: number of labels: found the end of the file, expected four bytes more"
    );
    assert_eq!(
        error_with(NAMES[3], b""),
        "t10k-labels-idx1-ubyte: magic number: found the end of the file, expected four bytes more"
    );
}

#[test]
fn a_damaged_gzip_stream_is_an_error_of_its_file() {
    let whole = gzip(&images(12));
    let error = error_with(NAMES[0], &whole[..whole.len() / 2]);
    assert!(error.starts_with("train-images-idx3-ubyte: contents: found "), "{error}");
}

#[test]
fn mislabelled_files_say_what_they_are() {
    assert_eq!(
        error_with(NAMES[0], &labels(12)),
        "train-images-idx3-ubyte: magic number: found 0x00000801 (labels), expected 0x00000803 (images)"
    );
    assert_eq!(
        error_with(NAMES[1], &images(12)),
        "train-labels-idx1-ubyte: magic number: found 0x00000803 (images), expected 0x00000801 (labels)"
    );
    assert_eq!(
        error_with(NAMES[2], b"<!DOCTYPE html>"),
        "t10k-images-idx3-ubyte: magic number: found 0x3c21444f (no IDX file of bytes), expected 0x00000803 (images)"
    );
}

#[test]
fn images_of_another_size_are_refused() {
    assert_eq!(
        error_with(NAMES[0], &with_number(images(12), 3, 32)),
        "train-images-idx3-ubyte: image size: found 28 x 32, expected 28 x 28"
    );
}

#[test]
fn hostile_counts_are_believed_only_as_far_as_bytes_go() {
    assert_eq!(
        error_with(NAMES[0], &with_number(images(12), 1, u32::MAX)),
        "train-images-idx3-ubyte: number of images: found 4294967295, expected 1 to 1000000"
    );
    assert_eq!(
        error_with(NAMES[0], &with_number(images(12), 1, 1_000_000)),
        "train-images-idx3-ubyte: bytes after the header: found 9408 (truncated?), expected 784000000, as the header \
         says"
    );
    assert_eq!(
        error_with(NAMES[3], &with_number(labels(3), 1, 0)),
        "t10k-labels-idx1-ubyte: number of labels: found 0, expected 1 to 1000000"
    );
    assert_eq!(
        error_with(NAMES[3], &with_number(labels(3), 1, 2)),
        "t10k-labels-idx1-ubyte: bytes after the header: found more (trailing bytes, or a header that says too \
         little), expected 2, as the header says"
    );
}

#[test]
fn as_many_labels_as_images_and_none_above_nine() {
    let dir = folder();
    std::fs::write(dir.path().join(NAMES[1]), labels(11)).unwrap();
    assert_eq!(
        error_of(dir.path()),
        "train-labels-idx1-ubyte: number of labels: found 11, expected 12, one for each image of \
         train-images-idx3-ubyte"
    );
    let mut bad = labels(3);
    bad[8 + 2] = 10;
    assert_eq!(
        error_with(NAMES[3], &bad),
        "t10k-labels-idx1-ubyte: label: found 10 (label 2), expected 0 to 9"
    );
}

#[test]
fn a_missing_file_is_named_with_what_belongs_there() {
    let dir = folder();
    std::fs::remove_file(dir.path().join(NAMES[2])).unwrap();
    let error = error_of(dir.path());
    assert!(error.starts_with("t10k-images-idx3-ubyte: cannot find the data: no such file"), "{error}");
    assert!(NAMES.iter().all(|name| error.contains(name)), "{error}");
    let error = error_of(Path::new("/no/such/folder"));
    assert!(error.starts_with("/no/such/folder: cannot find the data: no such folder"), "{error}");
}
