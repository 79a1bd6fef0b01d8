//! [pprof's format](https://github.com/google/pprof/blob/main/proto/profile.proto): a gzipped protocol buffer. The few
//! messages that a profile needs are written here field by field, so that no generated code is carried along.

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::ExportError;
use super::stacks::at_peak;
use crate::event::Frame;
use crate::replay::Program;
use crate::trace::Trace;

/// Writes what is live when most is requested as a heap profile, which `go tool pprof`, speedscope and Grafana read.
///
/// # Errors
/// Where it cannot be written.
pub fn pprof(trace: &Trace, program: &Program, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut profile = Profile::default();
    profile.string("");
    for (kind, unit) in [("inuse_objects", "count"), ("inuse_space", "bytes")] {
        let (kind, unit) = (profile.string(kind), profile.string(unit));
        profile.message(SAMPLE_TYPE, |value| {
            value.number(1, kind);
            value.number(2, unit);
        });
    }
    for holder in at_peak(trace, program) {
        // The innermost first.
        let locations: Vec<u64> = holder.frames.iter().rev().map(|frame| profile.location(frame)).collect();
        profile.message(SAMPLE, |sample| {
            sample.packed(1, &locations);
            sample.packed(2, &[holder.blocks, holder.bytes]);
        });
    }
    let bytes = profile.string("inuse_space");
    profile.out.number(DEFAULT_SAMPLE_TYPE, bytes);
    let mut zipped = GzEncoder::new(out, Compression::default());
    zipped.write_all(&profile.out.0)?;
    zipped.finish()?.flush()?;
    Ok(())
}

// Fields of `Profile`.
const SAMPLE_TYPE: u64 = 1;
const SAMPLE: u64 = 2;
const LOCATION: u64 = 4;
const FUNCTION: u64 = 5;
const STRING_TABLE: u64 = 6;
const DEFAULT_SAMPLE_TYPE: u64 = 14;

/// A profile as far as it is written. Texts, functions and locations are written once and then known by their numbers.
#[derive(Debug, Default)]
struct Profile {
    out: Fields,
    strings: HashMap<String, u64>,
    functions: HashMap<(u64, u64), u64>,
    locations: HashMap<(u64, u32), u64>,
}

impl Profile {
    fn message(&mut self, field: u64, write: impl FnOnce(&mut Fields)) {
        let mut message = Fields::default();
        write(&mut message);
        self.out.bytes(field, &message.0);
    }

    fn string(&mut self, text: &str) -> u64 {
        let next = self.strings.len() as u64;
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        self.strings.insert(text.to_owned(), next);
        self.out.bytes(STRING_TABLE, text.as_bytes());
        next
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        let (name, file) =
            (self.string(&frame.name), self.string(if frame.is_tag() { "" } else { &frame.file }));
        let next = self.functions.len() as u64 + 1;
        let function = *self.functions.entry((name, file)).or_insert(next);
        if function == next {
            self.message(FUNCTION, |out| {
                out.number(1, function);
                out.number(2, name);
                out.number(4, file);
            });
        }
        let next = self.locations.len() as u64 + 1;
        let location = *self.locations.entry((function, frame.line)).or_insert(next);
        if location == next {
            self.message(LOCATION, |out| {
                out.number(1, location);
                let mut line = Fields::default();
                line.number(1, function);
                line.number(2, frame.line.into());
                out.bytes(4, &line.0);
            });
        }
        location
    }
}

/// The fields of a message, one behind the other.
#[derive(Debug, Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.varint(field << 3);
        self.varint(number);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn packed(&mut self, field: u64, numbers: &[u64]) {
        let mut all = Self::default();
        numbers.iter().for_each(|&number| all.varint(number));
        self.bytes(field, &all.0);
    }
}
