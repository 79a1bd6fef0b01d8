//! What commands say: on stdout what was asked for, on stderr what is beside it.
//!
//! Nobody listening any more (`millpond train | head -1`) is no error: a command falls silent and finishes, since
//! it may have files to write. Any other failure, such as a full disk, is one once the command is done.
//!
//! A file that goes to stdout (`--json -`) has it for itself: then all that is said is on stderr. With `--quiet` nothing
//! is said but errors, and what a command is there to print.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{Error, ErrorKind, IsTerminal, Result, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond::bindings::is_unshown;

/// Why a line that was said first did not arrive.
static LOST: Mutex<Option<Error>> = Mutex::new(None);

/// Whether stdout is a file's.
static GIVEN_AWAY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Remarks that are kept for the caller instead of being printed; nothing else is said meanwhile.
    static KEPT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs something of which nothing is printed, and returns its remarks beside what came of it.
pub(crate) fn silently<R>(run: impl FnOnce() -> R) -> (R, Vec<String>) {
    KEPT.set(Some(Vec::new()));
    let result = run();
    (result, KEPT.take().unwrap_or_default())
}

/// Whether only errors are said.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Forgets what an earlier command in this process did to stdout.
pub(crate) fn begin() {
    // Relaxed: one thread runs a command.
    GIVEN_AWAY.store(false, Ordering::Relaxed);
    be_quiet(false);
    take_lost();
}

/// Whether to say nothing but errors from now on.
pub(crate) fn be_quiet(quiet: bool) {
    // Relaxed: as in `begin`.
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether nothing but errors is said.
pub(crate) fn is_quiet() -> bool {
    // Relaxed: as in `begin`.
    QUIET.load(Ordering::Relaxed) || KEPT.with_borrow(Option::is_some)
}

/// From now on stdout is for [`Stdout`] alone.
pub(crate) fn give_stdout_away() {
    // Relaxed: as in `begin`.
    GIVEN_AWAY.store(true, Ordering::Relaxed);
}

/// Prints a line to stdout, or to stderr where stdout is a file's.
pub(crate) fn say(line: &str) {
    if is_quiet() {
        return;
    }
    // Relaxed: as in `begin`.
    if GIVEN_AWAY.load(Ordering::Relaxed) {
        return to_stderr(line);
    }
    answer(line);
}

/// Prints to stdout what the command is there to print.
pub(crate) fn answer(text: &str) {
    note_lost(writeln!(std::io::stdout().lock(), "{}", tame(text)));
}

/// Notes why something did not arrive on stdout, unless nobody listens.
pub(crate) fn note_lost(written: Result<()>) {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            lost().get_or_insert(error);
        }
        _ => {}
    }
}

/// Why something that was said since the last time did not arrive, if so.
pub(crate) fn take_lost() -> Option<Error> {
    lost().take()
}

/// Stdout as a file that is written to its end; what does not arrive is noted.
#[derive(Debug)]
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        note_lost(std::io::stdout().lock().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        note_lost(std::io::stdout().lock().flush());
        Ok(())
    }
}

fn lost() -> std::sync::MutexGuard<'static, Option<Error>> {
    // What is behind the lock is whole at any time.
    LOST.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Prints a remark to stderr.
pub(crate) fn remark(line: &str) {
    let is_kept = KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.push(line.to_owned())).is_some());
    if is_kept {
        return;
    }
    if !is_quiet() {
        to_stderr(&on_a_terminal(&tame_line(line)));
    }
}

/// Says on stderr what is being done.
pub(crate) fn note_work(what: &str) {
    to_stderr(&format!("millpond: working: {what}"));
}

fn to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", tame(line));
}

/// Columns that a row of a table may have: those of the terminal, and 80 at least. What is read by a program, or from a file, may have
/// as many as it takes.
pub(crate) fn columns() -> usize {
    let stdout = console::Term::stdout();
    if stdout.is_term() { usize::from(stdout.size().1).max(WIDTH) } else { usize::MAX }
}

/// Columns of a narrow terminal.
pub(crate) const WIDTH: usize = 80;

/// A paragraph for stderr: in lines of the terminal's width. A pipe gets it as one line.
fn on_a_terminal(paragraph: &str) -> Cow<'_, str> {
    if !std::io::stderr().is_terminal() {
        return paragraph.into();
    }
    let (_, columns) = console::Term::stderr().size();
    wrapped(paragraph, columns.into()).into()
}

/// A paragraph in lines of at most `width` columns, as far as its words allow.
pub(crate) fn wrapped(paragraph: &str, width: usize) -> String {
    let mut lines = String::with_capacity(paragraph.len() + 8);
    let mut column = 0;
    for word in paragraph.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

/// Text from files may hold what commands a terminal, or turns the order of what it shows: that is shown, not sent.
fn tame(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_unshown(c) && c != '\n')
}

/// The same of what is one line: a name may have several.
fn tame_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unshown)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_escaped(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
}

/// Prints the error that ends the program to stderr.
pub(crate) fn complain(error: &str) {
    to_stderr(&on_a_terminal(&tame_line(&format!("millpond: {error}"))));
}

/// A table with its columns aligned: the first to the left, the others to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let tame = |row: &Vec<String>| row.iter().map(|cell| tame_line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(tame).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// So many of what is named in the singular: `1 event`, `1,234 events`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// A number with its thousands apart: `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        let shown = [0, 12, 999, 1000, 12_345, 1_234_567].map(thousands);
        assert_eq!(shown, ["0", "12", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn a_paragraph_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), "one two\nthree");
        assert_eq!(wrapped("one two three", 100), "one two three");
        assert_eq!(wrapped("a/path/longer/than/that is kept", 8), "a/path/longer/than/that\nis kept");
    }

    #[test]
    fn one_is_not_many() {
        let shown = [0, 1, 2, 1000].map(|number| count(number, "device call"));
        assert_eq!(shown, ["0 device calls", "1 device call", "2 device calls", "1,000 device calls"]);
    }

    #[test]
    fn what_commands_a_terminal_is_shown_and_not_sent() {
        assert_eq!(
            tame("\u{1b}]0;mine\u{7}\ttwo\nlines\u{9b}2J"),
            "\\u{1b}]0;mine\\u{7}\\ttwo\nlines\\u{9b}2J"
        );
        assert_eq!(tame("Größe 5 %"), "Größe 5 %");
        assert_eq!(tame("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
    }

    #[test]
    fn a_name_makes_no_lines() {
        assert_eq!(tame_line("a\nmillpond: all is well"), "a\\nmillpond: all is well");
        assert_eq!(table(&[vec!["a\nb".to_owned(), "1".to_owned()]]), "a\\nb  1");
    }

    #[test]
    fn a_table_aligns_names_left_and_figures_right() {
        let rows = [vec!["name".to_owned(), "ms".to_owned()], vec!["x".to_owned(), "1234".to_owned()]];
        assert_eq!(table(&rows), "name    ms\nx     1234");
    }
}
