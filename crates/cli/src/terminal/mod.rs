//! What every command does with a terminal: says lines, draws tables, shows that it works, and hears Ctrl-C.
//!
//! | file | concern |
//! | --- | --- |
//! | `screen` | lines on stdout and stderr; tables, counts, paragraphs |
//! | `progress_lines` | what is being done, in lines, where no terminal shows a bar |
//! | `interrupt` | Ctrl-C |
//! | `heard` | who hears a signal; one that nobody hears ends the command |

mod heard;
mod interrupt;
mod progress_lines;
mod screen;

pub(crate) use self::heard::{Hearing, SIGNALS, be_the_command, before_ending, ignored};
pub(crate) use self::interrupt::{Interrupt, Signal};
pub(crate) use self::progress_lines::ProgressLines;
pub(crate) use self::screen::{
    Stdout, WIDTH, answer, be_quiet, begin, columns, complain, count, give_stdout_away, is_quiet, note_lost,
    remark, say, silently, table, take_lost, thousands, wrapped,
};
