//! The report in a real browser: Chromium, which the environment variable `MILLPOND_CHROMIUM` names, or which is
//! looked for on the path. Where there is none, the tests say so and pass.

mod shared;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millpond::Context;
use millpond_replay::choice::Choice;
use millpond_replay::fit::{Card, Need};
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_sim};
use millpond_replay::report::{Section, write};
use millpond_replay::verdict::{Judged, Verdict};

use shared::{GNN, data, only};

const ALLOCATORS: [&str; 3] = ["millpond", "caching", "expandable"];

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("MILLPOND_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let found = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    let found = named.into_iter().chain(found).find(|file| file.is_file());
    if found.is_none() {
        eprintln!(
            "skipped: there is no Chromium; install it (apt-get install chromium) or set MILLPOND_CHROMIUM"
        );
    }
    found
}

/// A report, and the figures that must be found in it.
fn report() -> (String, Vec<String>) {
    let trace = only(&data(GNN));
    let program = Program::new(&trace, FreeWhen::Completed);
    let choice = Choice::default();
    let judged = |name| Judged::of(&trace, &program, &|context| choice.build(name, context)).unwrap();
    let verdict = Verdict::of(&trace, &program, judged("caching"), judged("millpond")).unwrap().lines();
    let mut figures = verdict.clone();
    let mut section = Section::of(&trace, &program, verdict, (Card::all(), 512 << 20));
    for name in ALLOCATORS {
        let choose = |context: &Context| choice.build(name, context);
        let outcome = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        figures.push(format!("{}", millpond::HumanBytes(outcome.peak_reserved)));
        figures.push(format!("{:.3}", outcome.ratio));
        let need = Need { bytes: 10 << 30, unlimited: outcome.peak_reserved, retries: 0 };
        section.add((&trace, &program), &choose, outcome, Some(need)).unwrap();
    }
    let mut page = Vec::new();
    write(&[section], &mut page).unwrap();
    (String::from_utf8(page).unwrap(), figures)
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
    let output = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=20000",
            "--dump-dom",
        ])
        .arg(format!("--window-size={width},12000"))
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .stderr(Stdio::null())
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
        let (root, body) = shown.split_once("<section>").unwrap();
        assert!(!root.contains("data-error="), "{width}: a script failed");
        assert!(root.contains("data-too-wide=\"0\""), "{width}: the page scrolls sideways");
        for figure in &figures {
            assert!(body.contains(figure.as_str()), "{width}: {figure}");
        }
        // Time, a map for each allocator, call sites, sizes.
        let charts = body.matches("<div class=\"chart").count();
        assert_eq!(charts, 1 + ALLOCATORS.len() + 2, "{width}");
        assert_eq!(body.matches("<div class=\"plot-container").count(), charts, "{width}");
        for name in ALLOCATORS.into_iter().chain(["requested"]) {
            assert!(body.contains(&format!(">{name}</text>")), "{width}: no line for {name}");
        }
        assert!(body.contains("over events</button>"), "{width}");
    }
}
