//! The costs of the simulated device, in a file: what `millpond probe --cost-table` writes and `millpond replay --cost-table`
//! reads.
//!
//! The file is TOML, and its keys are the fields of [`CostTable`]. A time is a whole number of nanoseconds, a speed one of
//! bytes in a microsecond. A cost by size is a list of pairs, bytes and nanoseconds, by rising bytes. A key that is left out
//! has the built-in value, that of [`CostTable::h200`].

use std::fmt::Write;
use std::path::Path;

use millpond::bindings::read_short_text;
use millpond::device::sim::{BySize, CostTable};
use millpond_bench::Machine;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::{Error, Result, Row, Section, Unit};

/// Bytes and nanoseconds, by rising bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Points(Vec<(u64, u64)>);

impl<'de> Deserialize<'de> for Points {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let points = Vec::<(u64, u64)>::deserialize(from)?;
        if points.is_empty() {
            return Err(D::Error::custom("the list is empty; give pairs of bytes and nanoseconds"));
        }
        match points.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            Some(pair) => {
                let [before, after] = [pair[0].0, pair[1].0];
                Err(D::Error::custom(format!(
                    "{after} bytes come after {before}; sort the pairs by their bytes"
                )))
            }
            None => Ok(Self(points)),
        }
    }
}

/// A key of the file with its value in words of TOML.
struct Key {
    name: &'static str,
    about: &'static str,
    /// What was measured.
    measured: Option<String>,
    /// What the simulated device takes else.
    built_in: String,
}

macro_rules! keys {
    (
        numbers { $($number:ident, $number_about:literal, $number_found:expr;)* }
        by_size { $($size:ident, $size_about:literal, $size_found:expr;)* }
    ) => {
        /// The file as it is read.
        #[derive(Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct File {
            $($number: Option<u64>,)*
            $($size: Option<Points>,)*
        }

        impl File {
            /// The costs, of which those that the file lacks are built in.
            fn costs(self) -> CostTable {
                let mut costs = CostTable::h200();
                $(if let Some(number) = self.$number { costs.$number = number; })*
                $(if let Some(Points(points)) = self.$size { costs.$size = BySize { points: points.into() }; })*
                costs
            }
        }

        /// All keys, with what was found in a probe's figures.
        fn keys(found: &Found<'_>) -> Vec<Key> {
            let built_in = CostTable::h200();
            let number = |of: fn(&Found<'_>) -> Option<f64>| of(found).map(|number| (number.round() as u64).to_string());
            let size = |of: fn(&Found<'_>) -> Vec<(u64, u64)>| Some(of(found)).filter(|of| !of.is_empty());
            vec![
                $(Key {
                    name: stringify!($number),
                    about: $number_about,
                    measured: number($number_found),
                    built_in: built_in.$number.to_string(),
                },)*
                $(Key {
                    name: stringify!($size),
                    about: $size_about,
                    measured: size($size_found).map(|points| pairs(&points)),
                    built_in: pairs(&built_in.$size.points),
                },)*
            ]
        }
    };
}

keys! {
    numbers {
        memory_info, "cuMemGetInfo", |found| found.call("ask for free memory");
        reserve, "cuMemAddressReserve", |found| found.call("reserve addresses");
        map, "cuMemMap", |found| found.least_size(Section::Pages, "map");
        alloc_segment, "cuMemAlloc", |found| found.least_size(Section::Segments, "allocate");
        free_segment, "cuMemFree", |found| found.least_size(Section::Segments, "free");
        alloc_async, "cuMemAllocAsync", |found| found.call("allocate in stream order");
        free_async, "cuMemFreeAsync", |found| found.call("free in stream order");
        stream_life, "cuStreamCreate and cuStreamDestroy, each", |found| found.mean(["create a stream", "destroy a stream"]);
        stream_id, "cuStreamGetId", |found| found.call("ask for a stream's number");
        event_life, "cuEventCreate and cuEventDestroy, each", |found| found.mean(["create an event", "destroy an event"]);
        record_event, "cuEventRecord", |found| found.call("record an event");
        query, "cuEventQuery", |found| found.call("query an event");
        wait_event, "cuStreamWaitEvent", |found| found.call("make a stream wait");
        submit, "putting a memset on a stream", |found| found.call("give work to a stream");
        device_bytes_per_us, "bytes in a microsecond, copied on the device", |found| found.copied();
        host_bytes_per_us, "the same from pageable memory", |found| found.speed(Section::Copies, "pageable, to the GPU");
        pinned_bytes_per_us, "the same from pinned memory", |found| found.speed(Section::Copies, "pinned, to the GPU");
        managed_alloc_segment, "cuMemAllocManaged", |found| found.least_size(Section::Segments, "allocate, managed");
        managed_prefetch, "cuMemPrefetchAsync", |found| found.call("prefetch managed memory");
        managed_prefetch_bytes_per_us, "bytes in a microsecond, by it", |found| found.speed(Section::Managed, "prefetch to the GPU");
        managed_advise, "cuMemAdvise", |found| found.call("advise on managed memory");
        managed_fault, "faults on a page of 2 MiB", |_| None;
        managed_fault_bytes_per_us, "bytes in a microsecond, after faults", |found| found.faulted();
        share_page, "cuMemExportToShareableHandle, and its import, each", |_| None;
        peer_bytes_per_us, "bytes in a microsecond, from another GPU", |_| None;
        staged_bytes_per_us, "the same by way of the host", |_| None;
    }
    by_size {
        create_page, "cuMemCreate", |found| found.by_size(Section::Pages, "create");
        set_access, "cuMemSetAccess", |found| found.by_size(Section::Pages, "set access");
        unmap, "cuMemUnmap", |found| found.by_size(Section::Pages, "unmap");
        release_page, "cuMemRelease", |found| found.by_size(Section::Pages, "release");
        pinned_create_page, "cuMemCreate on the host", |found| found.by_size(Section::PinnedPages, "create");
        pinned_set_access, "cuMemSetAccess of such pages", |found| found.by_size(Section::PinnedPages, "set access");
        pinned_alloc_segment, "a segment of pinned memory", |found| found.by_size(Section::Segments, "allocate, pinned");
        set_peer_access, "cuMemSetAccess for each other GPU", |_| Vec::new();
        unmap_with_peers, "cuMemUnmap of a page that another GPU reaches", |_| Vec::new();
    }
}

fn pairs(points: &[(u64, u64)]) -> String {
    let pairs = points.iter().map(|(bytes, ns)| format!("[{bytes}, {ns}]"));
    format!("[{}]", pairs.collect::<Vec<_>>().join(", "))
}

/// The figures of a probe, as costs.
struct Found<'a>(&'a [Row]);

impl Found<'_> {
    fn rows(&self, section: Section, what: &str) -> impl Iterator<Item = &Row> {
        self.0.iter().filter(move |row| row.section == section.name() && row.what == what)
    }

    /// A call that does not depend on a size.
    fn call(&self, what: &str) -> Option<f64> {
        self.rows(Section::Calls, what).next().map(nanoseconds)
    }

    fn mean(&self, of: [&str; 2]) -> Option<f64> {
        let [one, other] = of.map(|what| self.call(what));
        Some((one? + other?) / 2.0)
    }

    /// A call whose size makes no difference, at the smallest.
    fn least_size(&self, section: Section, what: &str) -> Option<f64> {
        self.rows(section, what).min_by_key(|row| row.bytes).map(nanoseconds)
    }

    fn by_size(&self, section: Section, what: &str) -> Vec<(u64, u64)> {
        let points = self
            .rows(section, what)
            .map(|row| (row.bytes.unwrap_or_default(), nanoseconds(row).round() as u64));
        let mut points: Vec<_> = points.collect();
        points.sort_unstable();
        points
    }

    /// Bytes in a microsecond, at the largest size.
    fn speed(&self, section: Section, what: &str) -> Option<f64> {
        let row = self.rows(section, what).max_by_key(|row| row.bytes)?;
        Some((row.median * 1e3).max(1.0))
    }

    /// Those that move after faults. The faults' own time is the built-in one: of whole pages, only the sum is seen.
    fn faulted(&self) -> Option<f64> {
        const PAGE: f64 = (2 << 20) as f64;
        let us = PAGE / self.speed(Section::Managed, "read while the host has it")?;
        let moving = us - CostTable::h200().managed_fault as f64 / 1e3;
        (moving > 0.0).then_some(PAGE / moving)
    }

    /// Those of a copy on the device: half of what it moves, which is read and written.
    fn copied(&self) -> Option<f64> {
        let moved = self.speed(Section::Device, "copy").or_else(|| self.speed(Section::Cores, "copy"));
        moved.map(|moved| moved / 2.0)
    }
}

fn nanoseconds(row: &Row) -> f64 {
    if row.unit == Unit::Microseconds { row.median * 1e3 } else { row.median }
}

/// The file of a probe's figures. What was not measured stands there as a comment, with the built-in value.
pub fn written(machine: &Machine, rows: &[Row]) -> String {
    let keys = keys(&Found(rows));
    let mut text = String::from("# What memory calls cost here, for `millpond replay --cost-table`.\n");
    for line in machine.to_string().lines() {
        let _ = writeln!(text, "# {line}");
    }
    text += "#\n# Nanoseconds; of lists, pairs of bytes and nanoseconds. What is left out has the built-in value, an H200's.\n";
    for Key { name, about, measured, .. } in &keys {
        if let Some(value) = measured {
            let _ = writeln!(text, "{name} = {value} # {about}");
        }
    }
    let missing: Vec<_> = keys.iter().filter(|key| key.measured.is_none()).collect();
    if !missing.is_empty() {
        text += "\n# Not measured here; the built-in values:\n";
    }
    for Key { name, about, built_in, .. } in missing {
        let _ = writeln!(text, "# {name} = {built_in} # {about}");
    }
    text
}

/// The costs in a file.
///
/// # Errors
/// [`Error::Unreadable`], and [`Error::CostTable`] with line, key, and what is wrong.
pub fn read(path: &Path) -> Result<CostTable> {
    let text =
        read_short_text(path, 1).map_err(|source| Error::Unreadable { path: path.to_owned(), source })?;
    let file = toml::from_str::<File>(&text);
    file.map(File::costs)
        .map_err(|error| Error::CostTable { path: path.to_owned(), what: one_line(&error, &text) })
}

/// The parser's message without its drawing, with the line and the key that it is about.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let message =
        error.message().trim().replace('\n', "; ").replace("expected u64", "expected a whole number");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return message;
    };
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let written = text.lines().nth(line - 1).unwrap_or_default();
    match written.split_once('=') {
        Some((key, _)) if !message.contains("unknown field") => {
            format!("line {line}: {}: {message}", key.trim())
        }
        _ => format!("line {line}: {}", message.replace("unknown field", "unknown key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_not_read_without_end() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(
            error
                .starts_with("/dev/zero: cannot read the costs: it has more than 1 MiB: name another file; "),
            "{error}"
        );
    }

    fn row(section: Section, what: &str, bytes: Option<u64>, unit: Unit, median: f64) -> Row {
        let what = what.to_owned();
        Row {
            section: section.name(),
            what,
            bytes,
            unit,
            median,
            least: median,
            most: median,
            samples: 3,
            peak: None,
        }
    }

    fn machine() -> Machine {
        Machine {
            version: "0.1.0",
            processor: "a fast one".to_owned(),
            cores: 2,
            device: "cuda:0".to_owned(),
            driver: None,
            date: "2026-11-23".to_owned(),
            command: "millpond probe".to_owned(),
        }
    }

    fn read_text(text: &str) -> Result<CostTable> {
        let path =
            std::env::temp_dir().join(format!("millpond-costs-{}-{}.toml", std::process::id(), text.len()));
        std::fs::write(&path, text).unwrap();
        let costs = read(&path);
        std::fs::remove_file(&path).unwrap();
        costs
    }

    #[test]
    fn what_was_measured_comes_back_and_the_rest_is_built_in() {
        let rows = [
            row(Section::Pages, "create", Some(32 << 20), Unit::Microseconds, 20.5),
            row(Section::Pages, "create", Some(2 << 20), Unit::Microseconds, 10.0),
            row(Section::Pages, "map", Some(2 << 20), Unit::Microseconds, 0.75),
            row(Section::Calls, "query an event", None, Unit::Nanoseconds, 99.6),
            row(Section::Calls, "create an event", None, Unit::Nanoseconds, 100.0),
            row(Section::Calls, "destroy an event", None, Unit::Nanoseconds, 300.0),
            row(Section::Copies, "pinned, to the GPU", Some(4096), Unit::GigabytesPerSecond, 1.0),
            row(Section::Copies, "pinned, to the GPU", Some(1 << 30), Unit::GigabytesPerSecond, 55.25),
            row(Section::Managed, "read while the host has it", None, Unit::GigabytesPerSecond, 20.971_52),
            row(Section::Device, "copy", Some(1 << 30), Unit::GigabytesPerSecond, 4000.0),
        ];
        let text = written(&machine(), &rows);
        let mut expected = CostTable::h200();
        expected.create_page.points = vec![(2 << 20, 10_000), (32 << 20, 20_500)].into();
        (expected.map, expected.query, expected.event_life) = (750, 100, 200);
        (expected.pinned_bytes_per_us, expected.device_bytes_per_us) = (55_250, 2_000_000);
        // 100 µs a page, of which 30 are the faults'.
        expected.managed_fault_bytes_per_us = 29_959;
        assert_eq!(read_text(&text).unwrap(), expected, "{text}");
        assert!(text.contains("\n# device: cuda:0\n"), "{text}");
        assert!(
            text.contains("\n# Not measured here; the built-in values:\n# memory_info = 2000 #"),
            "{text}"
        );
        assert!(text.contains("\n# unmap = [[2097152, 16000], "), "{text}");
    }

    #[test]
    fn every_cost_is_a_key_of_the_file() {
        let fields = format!("{:?}", CostTable::free());
        let fields = fields.split(&['{', ','][..]).filter_map(|part| part.split_once(": "));
        let fields: Vec<_> = fields.map(|(name, _)| name.trim()).filter(|name| *name != "points").collect();
        let mut keys: Vec<_> = keys(&Found(&[])).iter().map(|key| key.name).collect();
        keys.sort_unstable();
        for field in &fields {
            assert!(keys.binary_search(field).is_ok(), "{field} has no key");
        }
        assert_eq!(fields.len(), keys.len());
    }

    #[test]
    fn no_figures_give_the_built_in_costs() {
        assert_eq!(read_text(&written(&machine(), &[])).unwrap(), CostTable::h200());
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_key() {
        for (text, expected) in [
            ("map = 1\nmapp = 2\n", "line 2: unknown key `mapp`, expected one of `memory_info`"),
            ("map = -1\n", "line 1: map: invalid value: integer `-1`, expected a whole number"),
            ("map = \"fast\"\n", "line 1: map: invalid type: string \"fast\", expected a whole number"),
            ("\nunmap = []\n", "line 2: unmap: the list is empty; give pairs"),
            ("unmap = [[2, 1], [1, 1]]\n", "line 1: unmap: 1 bytes come after 2; sort the pairs"),
            ("unmap = 5\n", "line 1: unmap: invalid type: integer `5`, expected a sequence"),
            ("map 5\n", "line 1: "),
            ("map = 1\nmap = 2\n", "line 2: map: duplicate key"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(&format!(".toml: cannot read the costs: {expected}")), "{text}: {error}");
            assert!(error.ends_with("; millpond probe --cost-table FILE writes one"), "{text}: {error}");
        }
    }
}
