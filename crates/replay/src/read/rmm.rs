//! The CSV log of RMM's `logging_resource_adaptor`: `Thread,Time,Action,Pointer,Size,Stream`.
//!
//! It has no device, so all of it is device 0; a free is complete when it is asked for.

use std::io::{self, BufRead, Read};

use csv::StringRecord;

use super::{FormatError, Limits};
use crate::event::{Event, EventKind, StackId};
use crate::trace::TraceBuilder;

const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

pub(super) fn read(source: &mut dyn BufRead, limits: Limits) -> Result<TraceBuilder, FormatError> {
    let lines = ShortLines { source: source.take(limits.bytes), line: 1, length: 0 };
    // RMM quotes nothing. With quotes, a field could go on over any number of lines.
    let mut log =
        csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).quoting(false).from_reader(lines);
    let header = log.headers().map_err(broken)?;
    if header.iter().ne(COLUMNS) {
        let found = header.iter().collect::<Vec<_>>().join(",");
        return wrong(1, format!("the columns are {found}; expected {}", COLUMNS.join(",")));
    }
    let mut builder = TraceBuilder::within(limits.memory);
    builder.is_rmms = true;
    let mut clock = Clock::default();
    let mut record = StringRecord::new();
    while log.read_record(&mut record).map_err(broken)? {
        let line = record.position().map_or(0, csv::Position::line);
        // RMM ends each line, and flushes none: what is in the buffer when a program dies is lost.
        if line == log.get_ref().line {
            builder.remarks.push(format!(
                "the log ends within line {line}, which is left out: the program died, or still logs"
            ));
            break;
        }
        let event = event(&record, &mut clock).or_else(|what| wrong(line, what))?;
        let Some(event) = event else { continue };
        builder.push(event)?;
        if event.kind == EventKind::FreeRequested {
            builder.push(Event { kind: EventKind::FreeCompleted, ..event })?;
        }
    }
    if log.position().byte() >= limits.bytes {
        return wrong(
            log.position().line(),
            format!("more than {} bytes; log a shorter stretch", limits.bytes),
        );
    }
    Ok(builder)
}

/// The longest line; one of RMM's has about 80 bytes.
const LONGEST_LINE: usize = 4096;

/// Refuses a line that is too long: the CSV reader would keep all of it, and a hostile file may be one line.
struct ShortLines<R> {
    source: R,
    /// The line that is being read, from 1, and the bytes of it that were.
    line: u64,
    length: usize,
}

impl<R: Read> Read for ShortLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        for (index, piece) in buffer[..count].split(|&byte| byte == b'\n').enumerate() {
            if index > 0 {
                (self.line, self.length) = (self.line + 1, 0);
            }
            self.length += piece.len();
            if self.length > LONGEST_LINE {
                let Self { line, .. } = self;
                let what = format!("line {line} has more than {LONGEST_LINE} bytes: this is no log of RMM's");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(count)
    }
}

fn event(record: &StringRecord, clock: &mut Clock) -> Result<Option<Event>, String> {
    let [_, time, action, pointer, size, stream] = fields(record)?;
    let kind = match action {
        "allocate" => EventKind::Alloc,
        "free" | "deallocate" => EventKind::FreeRequested,
        "allocate failure" => EventKind::OutOfMemory,
        other => return Err(format!("action '{other}'; expected allocate, free or allocate failure")),
    };
    let size = number(size, "size")?;
    if size > 1 << 48 {
        return Err(format!("{size} bytes are beyond what any device has"));
    }
    // Zero bytes are the null pointer: nothing was allocated.
    if size == 0 && kind != EventKind::OutOfMemory {
        return Ok(None);
    }
    let address = if pointer == "(nil)" { 0 } else { number(pointer, "pointer")? };
    let (stream, time_us) = (number(stream, "stream")?, clock.microseconds(time)?);
    Ok(Some(Event { kind, device: 0, stream, time_us, address, size, stack: StackId::NONE }))
}

fn fields(record: &StringRecord) -> Result<[&str; 6], String> {
    let fields: Vec<_> = record.iter().collect();
    fields.try_into().map_err(|found: Vec<_>| {
        format!("{} fields; expected {}: the log was cut off, or damaged", found.len(), COLUMNS.len())
    })
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{what} '{text}' is no number"))
}

/// Turns times of day into microseconds that go on over midnight.
#[derive(Default)]
struct Clock {
    days: u64,
    last: u64,
}

const MINUTE_US: u64 = 60 * 1_000_000;
const DAY_US: u64 = 24 * 60 * MINUTE_US;

impl Clock {
    /// Times are `HH:MM:SS.ffffff`, or with a colon before the fraction.
    fn microseconds(&mut self, text: &str) -> Result<u64, String> {
        let time = of_day(text).ok_or_else(|| format!("time '{text}'; expected HH:MM:SS.ffffff"))?;
        // Threads may log a little out of order, around midnight too; half a day back is midnight.
        if self.days > 0 && self.last < MINUTE_US && time >= DAY_US - MINUTE_US {
            return Ok((self.days - 1) * DAY_US + time);
        }
        if time + DAY_US / 2 < self.last {
            self.days += 1;
        }
        self.last = time;
        Ok(self.days * DAY_US + time)
    }
}

fn of_day(text: &str) -> Option<u64> {
    let mut parts = text.split([':', '.']);
    let mut part = |below: u64| parts.next()?.parse().ok().filter(|&value: &u64| value < below);
    let seconds = (part(24)? * 60 + part(60)?) * 60 + part(61)?;
    let fraction = match parts.next() {
        Some(digits) if digits.len() <= 6 => digits.parse::<u64>().ok()? * 10u64.pow(6 - digits.len() as u32),
        Some(digits) => digits.get(..6)?.parse().ok()?,
        None => 0,
    };
    parts.next().is_none().then_some(seconds * 1_000_000 + fraction)
}

fn broken(error: csv::Error) -> FormatError {
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        csv::ErrorKind::Utf8 { .. } => {
            FormatError::Log { line, what: "text that is not UTF-8: the log is damaged".to_owned() }
        }
        kind => FormatError::Log { line, what: format!("{kind:?}") },
    }
}

fn wrong<T>(line: u64, what: impl Into<String>) -> Result<T, FormatError> {
    Err(FormatError::Log { line, what: what.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{OpKind, Trace};

    const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
        140,11:31:52.083242,allocate,0x7f00,1024,0\n\
        140,11:31:52.083300,allocate,0x7f80,512,0x5\n\
        141,11:31:53:000001,free,0x7f00,1024,0x5\n\
        141,11:31:53.000002,allocate failure,(nil),4096,0\n";

    fn one(log: &str) -> Result<Trace, FormatError> {
        super::super::read_from(&mut log.as_bytes(), "log", Limits::default())
            .map(|mut traces| traces.remove(0))
    }

    #[test]
    fn a_log_gives_its_blocks_streams_and_times() {
        let trace = one(LOG).unwrap();
        assert_eq!(trace.blocks.iter().map(|block| block.size).collect::<Vec<_>>(), [1024, 512, 4096]);
        assert_eq!(trace.streams, [0, 5]);
        assert_eq!(trace.wall_us, 916_760);
        assert_eq!(trace.ops.last().map(|op| (op.kind, op.block)), Some((OpKind::FreeCompleted, 2)));
        assert_eq!(trace.recorded_ooms[0].size, 4096);
    }

    #[test]
    fn time_goes_on_over_midnight() {
        let log = "Thread,Time,Action,Pointer,Size,Stream\n1,23:59:59.9,allocate,0x10,8,0\n1,00:00:00.1,free,0x10,8,0\n";
        assert_eq!(one(log).unwrap().wall_us, 200_000);
        let late = "2,23:59:59.95,allocate,0x20,8,0\n1,00:00:00.2,free,0x20,8,0\n";
        assert_eq!(one(&format!("{log}{late}")).unwrap().wall_us, 300_000, "another thread was late");
    }

    #[test]
    fn a_log_from_a_spreadsheet_is_read_as_it_was() {
        let (plain, through) =
            (one(LOG).unwrap(), one(&format!("\u{feff}{}", LOG.replace('\n', "\r\n"))).unwrap());
        assert_eq!((plain.ops, plain.blocks, plain.wall_us), (through.ops, through.blocks, through.wall_us));
    }

    #[test]
    fn a_log_that_was_cut_is_read_up_to_its_last_whole_line() {
        let whole = one(LOG).unwrap();
        let line = "141,11:31:53.000003,allocate,0x7f00,1024,0x5";
        for cut in 1..=line.len() {
            let trace = one(&format!("{LOG}{}", &line[..cut])).unwrap();
            assert_eq!((&trace.ops, &trace.blocks), (&whole.ops, &whole.blocks), "{cut}");
            let said = "the log ends within line 6, which is left out: the program died, or still logs";
            assert_eq!(trace.remarks, [said], "{cut}");
        }
        assert!(whole.remarks.is_empty());
        assert_eq!(one(&format!("{LOG}{line}\n")).unwrap().blocks.len(), whole.blocks.len() + 1);
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        let said = |line: &str| one(&format!("{LOG}{line}\n")).unwrap_err().to_string();
        assert_eq!(
            said("1,1:2:3,grow,0x0,1,0"),
            "line 6: action 'grow'; expected allocate, free or allocate failure"
        );
        assert!(said("1,1:2:3,free,0xq,1,0").starts_with("line 6: pointer '0xq' is no number"));
        assert!(said("1,25:00:00,free,0x1,1,0").starts_with("line 6: time '25:00:00'"));
        assert!(said("1,1:2:3,fr").starts_with("line 6: 3 fields; expected 6"));
    }

    #[test]
    fn an_endless_line_is_refused_before_it_fills_memory() {
        let mut endless = LOG.as_bytes().chain(io::repeat(b'1').take(1 << 40));
        let mut source = io::BufReader::new(&mut endless);
        let error = super::super::read_from(&mut source, "log", Limits::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot be read: line 6 has more than 4096 bytes: this is no log of RMM's"
        );
        let quoted = format!("{LOG}1,\"1:2:3\n{}", "1\n".repeat(3));
        assert!(one(&quoted).unwrap_err().to_string().starts_with("line 6: 2 fields"));
    }

    #[test]
    fn text_that_is_no_utf8_is_reported() {
        let mut log = LOG.as_bytes().to_vec();
        log.extend_from_slice(b"1,1:2:3,fr\xffe,0x1,1,0\n");
        let error = super::super::read_from(&mut &log[..], "log", Limits::default()).unwrap_err();
        assert_eq!(error.to_string(), "line 6: text that is not UTF-8: the log is damaged");
    }
}
