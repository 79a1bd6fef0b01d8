//! The report in a real browser: Chromium, which the environment variable `MILLPOND_CHROMIUM` names, or which is
//! looked for on the path. Where there is none, the tests say so and pass; with `MILLPOND_REQUIRE_TOOLS` they fail.

#[path = "shared/browser.rs"]
mod browser;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millpond::Context;
use millpond_replay::choice::Choice;
use millpond_replay::event::{Event, EventKind, Frame};
use millpond_replay::fit::{Card, Need};
use millpond_replay::possible::Possible;
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_sim};
use millpond_replay::report::{About, Section, write};
use millpond_replay::trace::{Trace, TraceBuilder};
use millpond_replay::verdict::{Judged, Verdict};

use crate::shared::{GNN, PIPELINE, data, only};

const ALLOCATORS: [&str; 3] = ["millpond", "caching", "expandable"];

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("MILLPOND_CHROMIUM").map(PathBuf::from);
    let found = named.filter(|file| file.is_file());
    let found = found.or_else(|| on_path(&["chromium", "chromium-browser", "google-chrome", "chrome"]));
    if found.is_none() {
        skip("there is no Chromium; install it (apt-get install chromium) or set MILLPOND_CHROMIUM");
    }
    found
}

/// Says why a test looks at nothing. Where all tools are to be there, that is a failure.
fn skip(why: &str) {
    assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "{why}");
    eprintln!("skipped: {why}");
}

fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let files =
        std::env::split_paths(&path).flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.into_iter().find(|file| file.is_file())
}

const TRACES: [&str; 2] = [GNN, PIPELINE];

/// A report, and the figures that must be found in it.
fn report() -> (String, Vec<String>) {
    report_of(&TRACES.map(|name| only(&data(name))), &ALLOCATORS)
}

/// A report with all allocators, of a job with call stacks, and of one with tags and long names that leaks.
fn page_with_tags() -> String {
    report_of(&[only(&data(PIPELINE)), leaking()], &millpond_baselines::NAMES).0
}

fn leaking() -> Trace {
    let mut builder = TraceBuilder::default();
    let tags = ["forward/attention_with_rotary_embedding", "optimizer"].map(|tag| {
        let function = "forward_with_a_name_that_says_all_of_what_it_does".to_owned();
        let file = "/home/somebody/projects/model/layers/attention.py".to_owned();
        let frame = builder.stacks.add_frame(Frame { name: function.into(), file: file.into(), line: 1234 });
        let outer = Frame { name: "<module>".into(), file: "/home/somebody/train.py".into(), line: 7 };
        let outer = builder.stacks.add_frame(outer);
        let tag = builder.stacks.add_frame(Frame::of_tag(tag));
        builder.stacks.add_stack(&[frame, outer, tag])
    });
    let mut time_us = 0;
    let mut push = |kind, address, size, stack| {
        time_us += 1000;
        builder.push(Event { kind, device: 0, stream: 0, time_us, address, size, stack }).unwrap();
    };
    for turn in 0..200 {
        push(EventKind::Alloc, 1 << 40, (100 + turn) << 20, tags[0]);
        push(EventKind::Alloc, turn, 3 << 20, tags[1]);
        push(EventKind::FreeCompleted, 1 << 40, (100 + turn) << 20, tags[0]);
    }
    builder.finish("a_leak").remove(0)
}

fn report_of(traces: &[Trace], allocators: &[&'static str]) -> (String, Vec<String>) {
    let choice = Choice::default();
    let (mut sections, mut figures) = (Vec::new(), Vec::new());
    for trace in traces {
        let program = Program::new(trace, FreeWhen::Completed);
        let judged = |name| Judged::of(trace, &program, &|context| choice.build(name, context)).unwrap();
        let verdict =
            Verdict::of(trace, &program, ["caching", "millpond"].map(judged), None, Possible::of(&program))
                .unwrap()
                .lines();
        figures.extend(verdict.clone());
        let mut section = Section::of(trace, &program, verdict, (Card::all(), 512 << 20));
        for &name in allocators {
            let choose = |context: &Context| choice.build(name, context);
            let outcome = on_sim(trace, &program, &choose, UNLIMITED).unwrap();
            figures.push(format!("{}", millpond::HumanBytes(outcome.peak_reserved)));
            figures.push(format!("{:.3}", outcome.ratio));
            let (bytes, unlimited) = (10 << 30, outcome.peak_reserved);
            let decided_at = program.peak_requested().1;
            let need = Need { bytes, elsewhere: bytes, unlimited, retries: 0, decided_at };
            section.add((trace, &program), &choose, outcome, Some(need)).unwrap();
        }
        sections.push(section);
    }
    let (date, version, command) = ("2026-11-23".into(), "0.1.0".into(), "millpond replay".into());
    let mut page = Vec::new();
    write(&About { date, version, command }, &sections, &mut page).unwrap();
    (String::from_utf8(page).unwrap(), figures)
}

/// Chromium, about to open a file with a profile of its own in this folder.
fn opening(chromium: &Path, folder: &Path) -> Command {
    let mut command = Command::new(chromium);
    command.args(browser::arguments(folder)).arg("--virtual-time-budget=20000").stderr(Stdio::null());
    command
}

/// How many charts a page has.
fn charts(page: &str) -> usize {
    page.matches("<div class=chart ").count()
}

/// The page once its charts are drawn, in a window so high that every chart is seen. What went wrong stands in the attributes of
/// its root. A chart is drawn when the browser sees it, which takes a busy machine a while: it is waited for.
fn opened(chromium: &Path, page: &str, width: u32) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    let note = "<script>onerror = what => { document.documentElement.dataset.error = what; };</script>";
    std::fs::write(&file, page.replacen("<title>", &format!("{note}<title>"), 1)).unwrap();
    let mut browser = browser::Browser::start(chromium, folder.path());
    browser.open(&file, browser::Screen { width, height: 12_000, is_phone: false, is_dark: false });
    let html = browser.run(
        "(async () => {
            const root = document.documentElement;
            const count = name => document.querySelectorAll(name).length;
            const drawn = () => count('.plot-container') >= count('.chart');
            for (let looks = 0; looks < 600 && !drawn() && !root.dataset.error; looks++)
                await new Promise(done => setTimeout(done, 100));
            root.dataset.tooWide = root.scrollWidth - innerWidth;
            return root.outerHTML;
        })()",
    );
    html.as_str().unwrap().replace("&nbsp;", " ")
}

#[test]
fn browsers_wide_and_narrow_show_figures_and_every_chart() {
    let Some(chromium) = chromium() else { return };
    let (page, figures) = report();
    for width in [1280, 500] {
        let shown = opened(&chromium, &page, width);
        // Past plotly's own script, which holds any text.
        let (root, body) = shown.split_once("<header>").unwrap();
        let error =
            root.split_once("data-error=").map(|(_, error)| error.chars().take(100).collect::<String>());
        assert_eq!(error, None, "{width}: a script failed");
        assert!(root.contains("data-too-wide=\"0\""), "{width}: the page scrolls sideways");
        for figure in &figures {
            assert!(body.contains(figure.as_str()), "{width}: {figure}");
        }
        assert_eq!(body.matches("<svg class=\"map\"").count(), TRACES.len() * ALLOCATORS.len(), "{width}");
        assert_eq!(body.matches("<div class=\"plot-container").count(), charts(&page), "{width}");
        for name in ALLOCATORS.into_iter().chain(["requested"]) {
            // A chart names it beside the line's end, or in a legend; tables have cells with it.
            let labels = body.split("<text ").filter_map(|text| text.split_once("</text>"));
            let named = labels.filter(|(text, _)| {
                text.contains(&format!(">{name}<"))
                    || text.contains(&format!("> {name}<"))
                    || text.ends_with(name)
            });
            assert_eq!(named.count(), TRACES.len(), "{width}: no line for {name}");
        }
        assert!(body.contains("over events</button>"), "{width}");
    }
}

/// The page on a laptop and on a phone, in the light and in the dark. `MILLPOND_SCREENSHOTS` names a folder for pictures of it.
#[test]
fn on_every_screen_nothing_overlaps_is_cut_or_too_faint() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    std::fs::write(&file, page_with_tags()).unwrap();
    let mut browser = browser::Browser::start(&chromium, folder.path());
    let pictures = std::env::var_os("MILLPOND_SCREENSHOTS").map(PathBuf::from);
    for (name, width, height, is_phone) in [("laptop", 1280, 800, false), ("phone", 390, 844, true)] {
        for is_dark in [false, true] {
            browser.open(&file, browser::Screen { width, height, is_phone, is_dark });
            let wrong = browser.run(include_str!("shared/layout.js"));
            if let Some(folder) = &pictures {
                let name = format!("{name}-{}.png.base64", if is_dark { "dark" } else { "light" });
                std::fs::write(folder.join(name), browser.picture()).unwrap();
            }
            assert_eq!(browser.run("innerWidth"), width);
            let wrong: Vec<_> =
                wrong.as_array().unwrap().iter().filter_map(serde_json::Value::as_str).collect();
            assert!(wrong.is_empty(), "{name}, dark: {is_dark}:\n{}", wrong.join("\n"));
        }
    }
}

#[test]
fn every_chart_is_on_paper() {
    let Some(chromium) = chromium() else { return };
    let Some(pdftotext) = on_path(&["pdftotext"]) else {
        skip("there is no pdftotext; install it (apt-get install poppler-utils)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let [page, pdf] = ["report.html", "report.pdf"].map(|name| folder.path().join(name));
    let report = report().0;
    std::fs::write(&page, &report).unwrap();
    let printed = opening(&chromium, folder.path())
        .arg(format!("--print-to-pdf={}", pdf.display()))
        .arg(format!("file://{}", page.display()))
        .status()
        .unwrap();
    assert!(printed.success());
    let text = Command::new(pdftotext).arg("-layout").arg(&pdf).arg("-").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    // The title of the chart's axis, which stands nowhere else.
    let axes = text.lines().filter(|line| ["seconds", "events"].contains(&line.trim())).count();
    assert_eq!(axes, charts(&report), "{text}");
}

#[test]
fn the_map_follows_its_slider_and_names_blocks() {
    let Some(chromium) = chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    std::fs::write(&file, report_of(&[only(&data(GNN))], &ALLOCATORS).0).unwrap();
    let mut browser = browser::Browser::start(&chromium, folder.path());
    browser.open(&file, browser::Screen { width: 1280, height: 800, is_phone: false, is_dark: false });
    let told = browser.run(
        "(() => {
            const figure = document.querySelector('figure:has(input)');
            const [svg, slider, told, named] =
                ['svg', 'input', '.told', '.named'].map(name => figure.querySelector(name));
            const [first, peak] = [told.textContent, svg.innerHTML];
            slider.value = 30;
            slider.dispatchEvent(new Event('input'));
            const { x, y, width, height } = svg.getBoundingClientRect();
            const names = new Set();
            for (let row = 0; row < 24; row++)
                for (let column = 0; column < 160; column += 4) {
                    const [clientX, clientY] = [x + (column + 0.5) / 160 * width, y + (row + 0.5) / 24 * height];
                    svg.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY }));
                    names.add(named.textContent);
                }
            return [first, told.textContent, String(svg.innerHTML !== peak), ...names];
        })()",
    );
    let told: Vec<_> = told.as_array().unwrap().iter().filter_map(serde_json::Value::as_str).collect();
    assert!(
        told[0].starts_with("when the request is served that decides what is needed (event "),
        "{told:?}"
    );
    assert!(told[1].starts_with("after ") && told[1].contains(" held, "), "{told:?}");
    assert_eq!(told[2], "true", "the map is another one");
    assert!(told[3..].iter().any(|name| name.contains("MiB: ") && name.contains("(t3.py:")), "{told:?}");
    assert!(told[3..].contains(&"No large block lies here."), "{told:?}");
}
