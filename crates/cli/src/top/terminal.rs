//! `millpond top` on a terminal.

use std::io;
use std::time::{Duration, Instant};

use millpond::HumanBytes;
use millpond::live::{SeenPool, SeenProcess, SeenSizes};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::blocks::{ask, by_holder, by_size};
use super::rows::{COLUMNS, Row, SortKey, device, rows};
use super::text::{bytes, counted, holder, of_gpu_in_short, silent};
use crate::error::{Error, Result};
use crate::live::gpus::Gpu;
use crate::live::shares::{Holder, shares};
use crate::live::{PATIENCE, Sight, Watch};
use crate::terminal::Interrupt;

/// How soon a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// Columns of the names of processes and pools, at least.
const NAMES: [u16; 2] = [15, 13];

/// What is drawn for a part of the memory, by how many eighths of it are in live blocks.
const BARS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Runs until the user has enough, or a signal comes.
pub(super) fn run(watch: &Watch, interval: Duration, sort: SortKey, filter: String) -> Result<()> {
    let interrupt = Interrupt::watch();
    let mut sight = watch.look()?;
    sight.keep(Some(&filter));
    let mut view = View { filter, ..View::new(sight, sort) };
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = (|| -> Result<()> {
        while interrupt.signal().is_none() && !view.is_done {
            terminal.draw(|frame| view.draw(frame)).map_err(failed)?;
            let until = view.sight.at + interval;
            if !wait(&mut view, until, &interrupt).map_err(failed)? {
                let mut sight = watch.look()?;
                sight.keep(Some(&view.filter));
                view.take(sight);
            }
        }
        Ok(())
    })();
    ratatui::try_restore().map_err(failed)?;
    ended
}

fn failed(source: io::Error) -> Error {
    Error::Io { path: "the terminal".into(), action: "draw on it", source }
}

/// Until a key is pressed, which the view is told of (`true`), or it is time for another look.
fn wait(view: &mut View, until: Instant, interrupt: &Interrupt) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if event::poll(left.min(TICK))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => view.press(key),
                Event::Resize(..) => {}
                _ => continue,
            }
            return Ok(true);
        }
        if left.is_zero() || interrupt.signal().is_some() {
            return Ok(false);
        }
    }
}

/// What is shown, and what the keys do to it.
#[derive(Debug)]
struct View {
    sight: Sight,
    before: Option<Sight>,
    sort: SortKey,
    /// The selected pool: its process and number.
    selected: Option<(u32, u64)>,
    /// Of the selected pool, where it is open.
    open: Option<Opened>,
    /// Whether a trim waits for a yes.
    asks: bool,
    /// Only pools are shown of which this is said.
    filter: String,
    /// Whether keys are letters of it.
    types: bool,
    /// What the last key came to.
    said: String,
    is_done: bool,
}

/// What is known of the pool that is open.
type Opened = std::result::Result<SeenSizes, String>;

impl View {
    fn new(sight: Sight, sort: SortKey) -> Self {
        let mut view = Self {
            sight,
            before: None,
            sort,
            selected: None,
            open: None,
            asks: false,
            filter: String::new(),
            types: false,
            said: String::new(),
            is_done: false,
        };
        view.select(0);
        view
    }

    fn rows(&self) -> Vec<Row<'_>> {
        rows(&self.sight, self.before.as_ref(), self.sort)
    }

    /// Where the selected pool stands.
    fn at(&self) -> Option<usize> {
        let (pid, number) = self.selected?;
        self.rows().iter().position(|row| (row.pid, row.pool.number) == (pid, number))
    }

    /// Selects the row that stands so many below.
    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let at = self.at().unwrap_or(0).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|row| (row.pid, row.pool.number));
    }

    fn pool(&self) -> Option<(&SeenProcess, &SeenPool)> {
        let (pid, number) = self.selected?;
        let process = self.sight.processes.iter().find(|process| process.pid == pid)?;
        Some((process, process.pools.iter().find(|pool| pool.number == number)?))
    }

    fn take(&mut self, sight: Sight) {
        self.before = Some(std::mem::replace(&mut self.sight, sight));
        if self.at().is_none() {
            (self.open, self.asks) = (None, false);
            self.select(0);
        }
        if self.open.is_some() {
            self.look_inside();
        }
    }

    fn look_inside(&mut self) {
        self.open = self.pool().map(|(process, pool)| ask(process, pool, PATIENCE));
    }

    fn press(&mut self, key: KeyEvent) {
        self.said.clear();
        if std::mem::take(&mut self.asks) {
            if key.code == KeyCode::Char('y') {
                self.trim();
            }
            return;
        }
        if self.types && self.typed(key.code) {
            return;
        }
        match key.code {
            KeyCode::Char('/') => self.types = true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => self.is_done = true,
            KeyCode::Char('q') => self.is_done = true,
            KeyCode::Esc if self.open.is_none() => self.is_done = true,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.open = None,
            KeyCode::Enter | KeyCode::Right => self.look_inside(),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('t') => self.asks = self.pool().is_some(),
            _ => {}
        }
    }

    /// Takes a key as a part of the filter; `false` where it is none. The filter is for the next look.
    fn typed(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Enter => self.types = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.types = false;
            }
            _ => return false,
        }
        true
    }

    fn move_by(&mut self, by: isize) {
        self.select(by);
        if self.open.is_some() {
            self.look_inside();
        }
    }

    fn trim(&mut self) {
        let Some((process, pool)) = self.pool() else { return };
        self.said = match process.trim(pool.number, 0, PATIENCE * 4) {
            Ok(0) => nothing_back(pool),
            Ok(bytes) => format!("{} gave {} back", pool.name, HumanBytes(bytes)),
            Err(error) => error.to_string(),
        };
    }

    // ---- drawing ---------------------------------------------------------------------------------

    fn draw(&self, frame: &mut Frame<'_>) {
        let gpus = self.gpus(frame.area());
        let heights = [
            Constraint::Length(1),
            Constraint::Length(gpus.height() as u16),
            Constraint::Min(3),
            Constraint::Length(1),
        ];
        let [head, top, middle, foot] = Layout::vertical(heights).areas(frame.area());
        frame.render_widget(
            Line::from(vec!["millpond top".bold(), format!("  {}", counted(&self.sight)).into()]),
            head,
        );
        let sorted = Line::from(format!("by {} ", self.sort.name())).alignment(Alignment::Right);
        frame.render_widget(sorted, head);
        frame.render_widget(gpus, top);
        match (&self.open, self.pool()) {
            (Some(open), Some((process, pool))) => draw_pool(frame, middle, (process, pool), open),
            _ => self.draw_rows(frame, middle),
        }
        frame.render_widget(self.foot(), foot);
    }

    /// What GPUs say, in at most half of the area.
    fn gpus(&self, area: Rect) -> Text<'_> {
        let gpus = match &self.sight.gpus {
            Err(why) => return Text::from(format!("GPUs: no figures, since {why}").dim()),
            Ok(gpus) => gpus,
        };
        let room = usize::from(area.height / 2);
        let lines: Vec<_> = gpus.iter().flat_map(|gpu| self.of_gpu(gpu, area.width)).collect();
        if lines.len() <= room {
            return Text::from(lines);
        }
        let short = gpus.iter().map(|gpu| Line::from(of_gpu_in_short(gpu)));
        Text::from_iter(short.take(room.max(1)))
    }

    /// A line for the GPU, a bar as wide as all of its memory, and a line for each part.
    fn of_gpu(&self, gpu: &Gpu, width: u16) -> Vec<Line<'static>> {
        let shares = shares(gpu, &self.sight.processes);
        let wide = width.saturating_sub(2);
        let cells = |bytes: i64| {
            let part = bytes.max(0) as f64 / gpu.total.max(1) as f64;
            (part.min(1.0) * f64::from(wide)) as usize
        };
        let bar =
            shares.iter().map(|share| Span::styled("█".repeat(cells(share.bytes)), color(share.holder)));
        let mut lines = vec![Line::from(of_gpu_in_short(gpu)), Line::from_iter(bar)];
        lines.extend(shares.iter().map(|share| {
            let text = format!("  {:>10}  {}", bytes(share.bytes), holder(share));
            Line::from(Span::styled(text, color(share.holder)))
        }));
        lines
    }

    fn draw_rows(&self, frame: &mut Frame<'_>, area: Rect) {
        let silent = silent(&self.sight);
        let silent_lines = if silent.is_empty() { 0 } else { silent.lines().count() as u16 };
        let [area, below] =
            Layout::vertical([Constraint::Min(2), Constraint::Length(silent_lines)]).areas(area);
        frame.render_widget(Text::from(silent).yellow(), below);
        let rows = self.rows();
        if rows.is_empty() {
            frame.render_widget(Paragraph::new("no running program of this user has a pool"), area);
            return;
        }
        // As many columns as there is room for, with a space before each.
        let room = area.width.saturating_sub(NAMES.iter().sum::<u16>() + 1);
        let ends = COLUMNS.iter().scan(0, |end, column| {
            *end += column.width + 1;
            Some(*end)
        });
        let shown = &COLUMNS[..ends.take_while(|end| *end <= room).count()];
        let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
        let titles = ["process", "pool"].map(Cell::from).into_iter();
        let titles = titles.chain(shown.iter().map(|column| right(column.title.to_owned())));
        let lines = rows.iter().map(|row| {
            let names =
                [Cell::from(format!("{} {}", row.pid, row.program)), Cell::from(row.pool.name.as_str())];
            TableRow::new(names.into_iter().chain(shown.iter().map(|column| right((column.of)(row)))))
        });
        let widths = NAMES.map(Constraint::Min).into_iter();
        let widths = widths.chain(shown.iter().map(|column| Constraint::Length(column.width)));
        let table = Table::new(lines, widths)
            .header(TableRow::new(titles).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(self.at()));
    }

    fn foot(&self) -> Line<'_> {
        if self.asks
            && let Some((process, pool)) = self.pool()
        {
            let question = format!("Give back what {} of {} caches? y/n", pool.name, process.pid);
            return Line::from(question.bold());
        }
        if !self.said.is_empty() {
            return Line::from(self.said.as_str().bold());
        }
        if self.types || !self.filter.is_empty() && self.open.is_none() {
            let end = if self.types { "█  Enter keeps it, Esc shows all" } else { "  / changes it" };
            return Line::from(format!("filter: {}{end}", self.filter));
        }
        let keys = if self.open.is_some() {
            "Esc back  t trim  ↑↓ next pool  q end"
        } else {
            "↑↓ select  Enter open  t trim  s sort  / filter  q end"
        };
        Line::from(keys.dim())
    }
}

/// Why a trim gave nothing back.
fn nothing_back(pool: &SeenPool) -> String {
    let (name, stats) = (&pool.name, &pool.stats);
    match stats.cached() {
        0 => format!("{name} gave nothing back: all that it holds is live"),
        cached => {
            let cached = HumanBytes(cached);
            format!("{name} gave nothing back: its {cached} lie on pages with live blocks, or wait for work")
        }
    }
}

fn color(holder: Holder) -> Color {
    match holder {
        Holder::Pools => Color::Blue,
        Holder::OutsideThePools => Color::Cyan,
        Holder::OtherProcesses => Color::Yellow,
        Holder::NotListed => Color::DarkGray,
    }
}

fn draw_pool(frame: &mut Frame<'_>, area: Rect, (process, pool): (&SeenProcess, &SeenPool), open: &Opened) {
    let mut lines = vec![Line::from(vec![
        pool.name.as_str().bold(),
        format!("  of {} {}, on {}", process.pid, process.program, device(pool)).into(),
    ])];
    lines.extend(pool.stats.to_string().lines().map(|line| Line::from(line.to_owned())));
    lines.push(Line::default());
    match open {
        Err(why) => lines.push(Line::from(why.clone().yellow())),
        Ok(sizes) => {
            lines.push(Line::from("Its memory by address: █ is all in live blocks, · is cached".bold()));
            let wide = usize::from(area.width.max(1));
            lines.extend(sizes.map.chunks(wide).map(|part| {
                Line::from(part.iter().map(|eighths| BARS[usize::from(*eighths).min(8)]).collect::<String>())
            }));
            lines.push(Line::default());
            lines.push(Line::from("Live blocks by size".bold()));
            lines.extend(by_size(sizes).into_iter().map(Line::from));
            if !sizes.holders.is_empty() {
                lines.push(Line::default());
                lines.push(Line::from("Live blocks by tag and call stack".bold()));
                lines.extend(by_holder(sizes).into_iter().map(Line::from));
            }
        }
    }
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use millpond::device::DeviceIdentity;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn process(pid: u32, program: &str, pools: &[(&str, u64)]) -> SeenProcess {
        let mut process = SeenProcess::default();
        (process.pid, process.program, process.answers) = (pid, program.to_owned(), true);
        process.pools.extend(pools.iter().zip(1..).map(|((name, reserved), number)| {
            let mut pool = SeenPool::default();
            (pool.number, pool.name, pool.device) = (number, (*name).to_owned(), "cuda:0".to_owned());
            pool.identity = Some(DeviceIdentity([1; 16]));
            pool.stats.reserved.current = *reserved;
            pool
        }));
        process
    }

    fn sight(processes: Vec<SeenProcess>) -> Sight {
        let uuid = DeviceIdentity([1; 16]).to_string();
        let (total, used) = (140 << 30, 20 << 30);
        let gpu = Gpu {
            number: 0,
            name: "NVIDIA H200".to_owned(),
            uuid,
            total,
            used,
            processes: vec![(7, 13 << 30)],
        };
        Sight::of(processes, Ok(vec![gpu]))
    }

    fn view() -> View {
        View::new(
            sight(vec![process(7, "python", &[("small", 1 << 30), ("large", 11 << 30)])]),
            SortKey::Reserved,
        )
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let lines = terminal.backend().buffer().content.chunks(width.into());
        lines
            .map(|line| {
                line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n"
            })
            .collect()
    }

    fn press(view: &mut View, code: KeyCode) {
        view.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn what_a_gpu_uses_is_told_by_holder() {
        let shown = drawn(&view(), 100, 20);
        assert!(shown.starts_with("millpond top  2 pools, 1 process"), "{shown}");
        for line in [
            "GPU 0 NVIDIA H200: 20.00 GiB of 140.00 GiB used",
            "12.00 GiB  pools of 7 python",
            "1.00 GiB  7 python, outside the pools",
            "7.00 GiB  not listed by process",
        ] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter() {
        let (narrow, wide) = (drawn(&view(), 80, 20), drawn(&view(), 200, 20));
        for title in ["process", "pool", "reserved", "requested", "cached", "hits/s", "misses/s"] {
            assert!(narrow.contains(title), "{title}: {narrow}");
        }
        assert!(!narrow.contains("errors") && wide.contains("errors"), "{wide}");
        for (width, height) in [(1, 1), (10, 4), (40, 8), (500, 3)] {
            drawn(&view(), width, height);
        }
    }

    #[test]
    fn many_gpus_leave_room_for_the_pools() {
        let mut view = view();
        let Ok(gpus) = &mut view.sight.gpus else { unreachable!() };
        *gpus = (0..8).map(|number| Gpu { number, ..gpus[0].clone() }).collect();
        let shown = drawn(&view, 80, 24);
        assert!(
            shown.contains("GPU 7 NVIDIA H200") && shown.contains("large") && shown.contains("q end"),
            "{shown}"
        );
        assert!(drawn(&view, 80, 100).contains("not listed by process"));
    }

    #[test]
    fn the_selection_stays_with_its_pool() {
        let mut view = view();
        assert_eq!(view.selected, Some((7, 2)), "the largest is the first");
        press(&mut view, KeyCode::Down);
        press(&mut view, KeyCode::Down);
        assert_eq!(view.selected, Some((7, 1)));
        view.take(sight(vec![
            process(6, "a", &[("more", 12 << 30)]),
            process(7, "python", &[("small", 1 << 30)]),
        ]));
        assert_eq!((view.selected, view.at()), (Some((7, 1)), Some(1)));
        view.take(sight(vec![process(6, "a", &[("more", 12 << 30)])]));
        assert_eq!(view.selected, Some((6, 1)), "its process has ended");
        view.take(sight(Vec::new()));
        assert_eq!(view.selected, None);
        [KeyCode::Enter, KeyCode::Char('t'), KeyCode::Char('y')]
            .into_iter()
            .for_each(|key| press(&mut view, key));
        assert!(drawn(&view, 80, 20).contains("no running program of this user has a pool"));
    }

    #[test]
    fn a_trim_needs_a_yes() {
        let mut view = view();
        press(&mut view, KeyCode::Char('t'));
        assert!(drawn(&view, 80, 20).contains("Give back what large of 7 caches? y/n"));
        press(&mut view, KeyCode::Char('q'));
        assert!(!view.asks && !view.is_done && view.said.is_empty());
        press(&mut view, KeyCode::Char('t'));
        press(&mut view, KeyCode::Char('y'));
        // The process is made up.
        assert!(drawn(&view, 80, 20).contains("the process is gone"));
    }

    #[test]
    fn a_filter_is_typed() {
        let mut view = view();
        "/large".chars().for_each(|letter| press(&mut view, KeyCode::Char(letter)));
        assert!(drawn(&view, 80, 20).contains("filter: large█"));
        press(&mut view, KeyCode::Enter);
        let mut next = sight(vec![process(7, "python", &[("small", 1 << 30), ("large", 11 << 30)])]);
        next.keep(Some(&view.filter));
        view.take(next);
        let shown = drawn(&view, 80, 20);
        assert!(shown.contains("large") && !shown.contains("small") && shown.contains("1 pool"), "{shown}");
        press(&mut view, KeyCode::Char('/'));
        press(&mut view, KeyCode::Esc);
        assert!(view.filter.is_empty() && !view.is_done);
    }

    #[test]
    fn a_trim_that_gave_nothing_back_says_why() {
        let mut pool = SeenPool::default();
        pool.name = "weights".to_owned();
        assert_eq!(nothing_back(&pool), "weights gave nothing back: all that it holds is live");
        pool.stats.reserved.current = 5 << 20;
        assert!(nothing_back(&pool).contains("its 5.00 MiB lie on pages with live blocks"));
    }

    #[test]
    fn what_commands_a_terminal_is_not_drawn() {
        let mut view = view();
        view.sight.processes[0].program = "a\u{1b}[2Jb\u{7}".to_owned();
        view.sight.processes[0].answers = false;
        assert!(!drawn(&view, 80, 20).chars().any(|c| c.is_control() && c != '\n'));
    }

    #[test]
    fn a_pool_that_is_open_shows_its_blocks() {
        let mut view = view();
        let mut sizes = SeenSizes::default();
        sizes.map = vec![0, 8, 4, 200];
        view.open = Some(Ok(sizes));
        let shown = drawn(&view, 80, 24);
        assert!(shown.contains("large  of 7 python, on cuda:0") && shown.contains("·█▄█"), "{shown}");
        press(&mut view, KeyCode::Esc);
        assert!(view.open.is_none() && !view.is_done);
        press(&mut view, KeyCode::Esc);
        assert!(view.is_done);
    }
}
