//! The report in a real browser: Chromium, which the environment variable `MILLPOND_CHROMIUM` names, or which is
//! looked for on the path. Where there is none, the tests say so and pass.

mod shared;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millpond::Context;
use millpond_replay::choice::Choice;
use millpond_replay::fit::{Card, Need};
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_sim};
use millpond_replay::report::{About, Section, write};
use millpond_replay::verdict::{Judged, Verdict};

use shared::{GNN, PIPELINE, data, only};

const ALLOCATORS: [&str; 3] = ["millpond", "caching", "expandable"];

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("MILLPOND_CHROMIUM").map(PathBuf::from);
    let found = named.filter(|file| file.is_file());
    let found = found.or_else(|| on_path(&["chromium", "chromium-browser", "google-chrome", "chrome"]));
    if found.is_none() {
        eprintln!(
            "skipped: there is no Chromium; install it (apt-get install chromium) or set MILLPOND_CHROMIUM"
        );
    }
    found
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
    let choice = Choice::default();
    let (mut sections, mut figures) = (Vec::new(), Vec::new());
    for trace in TRACES.map(|name| only(&data(name))) {
        let program = Program::new(&trace, FreeWhen::Completed);
        let judged = |name| Judged::of(&trace, &program, &|context| choice.build(name, context)).unwrap();
        let verdict = Verdict::of(&trace, &program, judged("caching"), judged("millpond")).unwrap().lines();
        figures.extend(verdict.clone());
        let mut section = Section::of(&trace, &program, verdict, (Card::all(), 512 << 20));
        for name in ALLOCATORS {
            let choose = |context: &Context| choice.build(name, context);
            let outcome = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
            figures.push(format!("{}", millpond::HumanBytes(outcome.peak_reserved)));
            figures.push(format!("{:.3}", outcome.ratio));
            let need = Need { bytes: 10 << 30, unlimited: outcome.peak_reserved, retries: 0 };
            section.add((&trace, &program), &choose, outcome, Some(need)).unwrap();
        }
        sections.push(section);
    }
    let (date, version, command) = ("2026-11-23".into(), "0.1.0".into(), "millpond replay".into());
    let mut page = Vec::new();
    write(&About { date, version, command }, &sections, &mut page).unwrap();
    (String::from_utf8(page).unwrap(), figures)
}

/// Chromium, about to open a file with a profile of its own in this folder.
fn browser(chromium: &Path, folder: &Path) -> Command {
    let mut command = Command::new(chromium);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=20000",
        ])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .stderr(Stdio::null());
    command
}

/// The page as it is once its scripts have run, in a window so high that every chart is seen. What went wrong
/// stands in the attributes of its body.
fn opened(chromium: &Path, page: &str, width: u32) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    let note = "<script>onerror = what => { document.documentElement.dataset.error = what; };</script>";
    let measure = "<script>setTimeout(() => { const root = document.documentElement; \
        root.dataset.tooWide = root.scrollWidth - innerWidth; }, 5000);</script></body>";
    let page = page.replacen("<title>", &format!("{note}<title>"), 1).replacen("</body>", measure, 1);
    std::fs::write(&file, page).unwrap();
    let output = browser(chromium, folder.path())
        .arg("--dump-dom")
        .arg(format!("--window-size={width},12000"))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{} failed", chromium.display());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn browsers_wide_and_narrow_show_figures_and_every_chart() {
    let Some(chromium) = chromium() else { return };
    let (page, figures) = report();
    for width in [1280, 500] {
        let shown = opened(&chromium, &page, width);
        // Past plotly's own script, which holds any text.
        let (root, body) = shown.split_once("<header>").unwrap();
        assert!(!root.contains("data-error="), "{width}: a script failed");
        assert!(root.contains("data-too-wide=\"0\""), "{width}: the page scrolls sideways");
        for figure in &figures {
            assert!(body.contains(figure.as_str()), "{width}: {figure}");
        }
        assert_eq!(body.matches("<svg class=\"map\"").count(), TRACES.len() * ALLOCATORS.len(), "{width}");
        assert_eq!(body.matches("<div class=\"plot-container").count(), TRACES.len(), "{width}");
        for name in ALLOCATORS.into_iter().chain(["requested"]) {
            assert_eq!(
                body.matches(&format!(">{name}</text>")).count(),
                TRACES.len(),
                "{width}: no line for {name}"
            );
        }
        assert!(body.contains("over events</button>"), "{width}");
    }
}

#[test]
fn every_chart_is_on_paper() {
    let Some(chromium) = chromium() else { return };
    let Some(pdftotext) = on_path(&["pdftotext"]) else {
        eprintln!("skipped: there is no pdftotext; install it (apt-get install poppler-utils)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let [page, pdf] = ["report.html", "report.pdf"].map(|name| folder.path().join(name));
    std::fs::write(&page, report().0).unwrap();
    let printed = browser(&chromium, folder.path())
        .arg(format!("--print-to-pdf={}", pdf.display()))
        .arg(format!("file://{}", page.display()))
        .status()
        .unwrap();
    assert!(printed.success());
    let text = Command::new(pdftotext).arg("-layout").arg(&pdf).arg("-").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    // The title of the chart's axis, which stands nowhere else.
    let axes = text.lines().filter(|line| ["seconds", "events"].contains(&line.trim())).count();
    assert_eq!(axes, TRACES.len(), "{text}");
}
