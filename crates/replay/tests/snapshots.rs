//! Reading real snapshots: what they say, and what is said of them when they are damaged.

use std::io::{Read, Write};

use millpond_replay::read::{Limits, read, read_from};

use crate::shared::{GNN, PIPELINE, data, only};

fn plain(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(data(name)).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn a_snapshot_gives_its_blocks_streams_times_and_stacks() {
    let trace = only(&data(GNN));
    assert_eq!(trace.name, GNN);
    assert_eq!((trace.blocks.len(), trace.ops.len()), (591, 591 + 588 + 588));
    assert_eq!(trace.streams, [0]);
    assert!(trace.live_before.is_empty());
    let frames: Vec<_> = trace.stacks.frames(trace.blocks[0].stack).collect();
    assert_eq!((&*frames[0].name, frames[0].line), ("convert", 1370));
    assert_eq!(frames.last().map(|frame| &*frame.name), Some("<module>"));
}

#[test]
fn what_pytorch_reserved_is_read_from_its_segments() {
    let trace = only(&data(PIPELINE));
    assert_eq!(trace.recorded_reserved, Some(11_995_709_440));
    assert_eq!(trace.streams.len(), 6);
}

#[test]
fn a_compressed_file_without_its_right_checksum_is_refused() {
    let bytes = std::fs::read(data(GNN)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pickle.gz");
    // The last eight bytes are the check sum and the length.
    std::fs::write(&path, &bytes[..bytes.len() - 8]).unwrap();
    let error = read(&path, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("damaged.pickle.gz") && error.contains("cut off"), "{error}");
    let mut damaged = bytes;
    *damaged.iter_mut().nth_back(7).unwrap() ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let error = read(&path, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
    let mut damaged = zstd(&plain(GNN));
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let error = read(&path, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
    // Where the compression itself makes no sense any more.
    let mut damaged = zstd(&plain(GNN));
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    std::fs::write(&path, damaged).unwrap();
    let error = read(&path, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("damaged; copy it again") || error.contains("file is damaged"), "{error}");
}

#[test]
fn zstd_and_plain_files_are_read_like_gzipped_ones() {
    let bytes = plain(GNN);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        only(&path)
    };
    let gzipped = only(&data(GNN));
    let zstd = zstd(&bytes);
    // As `pzstd` writes it: each frame behind one that is to be passed over.
    let pzstd = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4], &zstd[..]].concat();
    for trace in [write("a.pickle", &bytes), write("b", &zstd), write("c", &pzstd)] {
        assert_eq!(trace.ops, gzipped.ops);
        assert_eq!(trace.blocks, gzipped.blocks);
    }
}

#[test]
fn a_file_cut_anywhere_says_where() {
    let bytes = plain(PIPELINE);
    for cut in [3, 100, 5_000, bytes.len() / 2, bytes.len() - 1] {
        let said = read_from(&mut &bytes[..cut], "cut", Limits::default()).unwrap_err().to_string();
        assert!(said.starts_with("byte ") && said.contains("the file ends"), "{cut}: {said}");
    }
}

#[test]
fn a_compressed_file_cut_in_its_first_block_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    let zstd = zstd(&plain(GNN));
    for start in [&b"\x1f\x8b\x08"[..], &zstd[..4], &zstd[..1000]] {
        std::fs::write(&path, start).unwrap();
        let said = read(&path, Limits::default()).unwrap_err().to_string();
        assert!(said.contains("cut: ends before its compressed contents do; it was cut off"), "{said}");
    }
}

#[test]
fn no_damaged_file_makes_a_panic() {
    let bytes = plain(GNN);
    // One byte changed, at places spread over the file.
    for at in (2..bytes.len()).step_by(bytes.len() / 400) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        let _ = read_from(&mut &damaged[..], "damaged", Limits::default());
    }
}

#[test]
fn a_small_file_takes_memory_after_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lists");
    let mut file =
        flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
    file.write_all(b"\x80\x04").unwrap();
    (0..100).for_each(|_| file.write_all(&[b']'; 120_000]).unwrap());
    file.finish().unwrap();
    // It says what was wrong with it, and not only that it ended.
    let said = read(&path, Limits::default()).map(drop).unwrap_err().to_string();
    assert!(said.contains("bytes of memory, more than a file of this size should"), "{said}");
    assert_eq!(Limits::default().for_file_of(1000).memory, (512 << 20) + 256_000);
    assert_eq!(Limits::default().for_file_of(1 << 40), Limits::default());
}

#[test]
fn repetition_in_a_file_takes_no_more_memory_than_allowed() {
    let limits = Limits { memory: 1 << 20, ..Limits::default() };
    let said = |bytes: &[u8]| read_from(&mut &*bytes, "x", limits).map(drop).unwrap_err().to_string();
    let header = b"Thread,Time,Action,Pointer,Size,Stream\n";
    let log = [&header[..], &b"1,1:2:3,allocate,1,8,0\n".repeat(10_000)].concat();
    assert!(said(&log).contains("more than 8192 events"), "{}", said(&log));
    // One event, ten thousand times in its list.
    let event = b"\x80\x04}(\x8c\x0ddevice_traces](](}\x94(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01u";
    let list = [&event[..], &b"h\x00".repeat(10_000), b"eeu."].concat();
    assert!(said(&list).contains("more than 8192 events"), "{}", said(&list));
}

#[test]
fn what_is_no_trace_is_refused_with_what_was_expected() {
    let said = |bytes: &[u8]| read_from(&mut &*bytes, "x", Limits::default()).unwrap_err().to_string();
    assert!(said(b"\x7fELF").contains("expected a PyTorch memory snapshot"));
    assert!(said(b"").starts_with("is empty"));
    assert!(said(b"PK\x03\x04\0\0").contains("as torch.save writes"));
    assert!(said(b"\x80\x04].").contains("as torch.cuda.memory_snapshot() returns: it has no history"));
    assert!(said(b"\x80\x04}.").contains("no 'device_traces'"));
    let empty = b"\x80\x04}(\x8c\x0ddevice_traces]u.";
    assert!(said(empty).contains("_record_memory_history"), "{}", said(empty));
    let wrong = b"\x80\x04}(\x8c\x0ddevice_traces](](}(\x8c\x06action\x8c\x05allocueeu.";
    assert_eq!(said(wrong), "device_traces[0][0]: an event without an integer 'addr' and 'size'");
}
