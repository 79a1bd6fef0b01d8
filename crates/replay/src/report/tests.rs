//! The page that is written: the figures in it, what it fetches, which cards it judges, and how long traces are thinned.

use std::collections::HashMap;

use palette::color_difference::{EuclideanDistance, Wcag21RelativeContrast};
use palette::{FromColor, LinSrgb, Oklab, Srgb};

use super::text::prose;
use super::timeline::{Point, thinned};
use super::*;
use crate::fit::{Card, Need};
use crate::fixtures::{GNN, named, recorded};
use crate::read::{self, Limits};
use crate::replay::{FreeWhen, Program, UNLIMITED, on_sim};
use crate::trace::Trace;

fn report(names: &[&str]) -> String {
    report_within(names, UNLIMITED)
}

/// A report of replays within a capacity; what is needed was looked for where there was no limit.
fn report_within(names: &[&str], capacity: u64) -> String {
    report_of(&recorded(GNN), names, capacity)
}

fn report_of(trace: &Trace, names: &[&str], capacity: u64) -> String {
    let program = Program::new(trace, FreeWhen::Completed);
    let mut section = Section::of(trace, &program, vec!["a < b".to_owned()], (Card::all(), 512 << 20));
    for &name in names {
        let choose = named(name);
        let outcome = on_sim(trace, &program, &choose, capacity).unwrap();
        let bytes = outcome.peak_reserved;
        let need = (capacity == UNLIMITED).then_some(Need {
            bytes,
            elsewhere: bytes,
            unlimited: bytes,
            retries: 0,
            decided_at: program.peak_requested().1,
        });
        section.add((trace, &program), &choose, outcome, need).unwrap();
    }
    page_of(&[section])
}

fn page_of(sections: &[Section]) -> String {
    let about = About {
        date: "2026-11-23 06:00:00 UTC".to_owned(),
        version: "9.9".to_owned(),
        command: "millpond replay 'a<b'".to_owned(),
    };
    let mut file = Vec::new();
    write(&about, sections, &mut file).unwrap();
    String::from_utf8(file).unwrap()
}

#[test]
fn a_report_holds_its_figures_and_fetches_nothing() {
    let page = report(&["millpond", "caching"]);
    assert!(page.contains(GNN) && page.contains("a &lt; b"));
    assert!(page.contains("(t3.py:67)"), "call sites");
    for told in [
        "2026-11-23 06:00:00 UTC, millpond 9.9",
        "<code>millpond replay 'a&lt;b'</code>",
        "Recorded: 591 blocks, 1,179 events, 1 stream, ",
        "Reserved and not requested",
        "<h3>Device calls by kind</h3>",
        "<h3>Live at the end: 65.00&nbsp;MiB in 3 blocks</h3>",
        "Optimizer.step#Adam.step",
    ] {
        assert!(page.contains(told), "{told}");
    }
    assert!(!page.contains("<nav>"), "one trace needs no list");
    let own = page.split("</script>").filter(|part| part.len() < 1_000_000).collect::<String>();
    assert!(!own.contains("http"), "nothing but the charts' own script names an address");
    assert!(!own.contains("src="));
}

#[test]
fn the_answer_comes_in_this_order() {
    let page = report(&["millpond", "caching", "stream-ordered"]);
    let places = [
        "a &lt; b",
        "<h3>Live when most is requested",
        "<h3>Grew from step to step",
        "<h3>What each allocator needs",
        "<h3>Memory over time",
        "<h3>Phases",
        "<h3>Reserved and not requested",
        "<h3>What lies where",
        "<h3>Device calls",
        "<h3>Live at the end",
    ]
    .map(|part| page.rfind(part).unwrap_or_else(|| panic!("{part}")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(page.contains("No map: the driver's own pool does not say where its memory lies."));
}

/// The colours that the page gives names, of the light page and of the dark one.
fn colours() -> [HashMap<&'static str, Srgb<u8>>; 2] {
    let page = include_str!("page.html");
    let (light, dark) =
        page.split_once("</style>").unwrap().0.split_once("prefers-color-scheme: dark").unwrap();
    [light, dark].map(|part| {
        let named =
            part.split(['{', ';']).filter_map(|part| part.trim().strip_prefix("--")?.split_once(": "));
        named.filter_map(|(name, colour)| Some((name, colour.parse().ok()?))).collect()
    })
}

/// What readers without red or without green see of a colour: Machado, Oliveira and Fernandes, "A physiologically-based model for
/// simulation of color vision deficiency", 2009, table 1, in linear RGB.
fn seen_by_all(colour: Srgb<u8>) -> [Oklab; 3] {
    const PROTANOPIA: [[f32; 3]; 3] =
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]];
    const DEUTERANOPIA: [[f32; 3]; 3] =
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]];
    let linear: LinSrgb = colour.into_linear();
    let through = |rows: [[f32; 3]; 3]| {
        let [red, green, blue] = rows
            .map(|row| (row[0] * linear.red + row[1] * linear.green + row[2] * linear.blue).clamp(0.0, 1.0));
        Oklab::from_color(LinSrgb::new(red, green, blue))
    };
    [Oklab::from_color(linear), through(PROTANOPIA), through(DEUTERANOPIA)]
}

#[test]
fn nine_lines_and_three_areas_can_be_told_apart_by_all_readers() {
    for colours in colours() {
        let back = colours["back"].into_format::<f32>();
        let lines: Vec<_> = millpond_baselines::NAMES.into_iter().chain(["requested"]).collect();
        for names in [&lines[..], &["live", "hole", "free"]] {
            for (at, one) in names.iter().enumerate() {
                let contrast = colours[one].into_format::<f32>().relative_contrast(back);
                assert!(contrast >= 3.0, "{one}: {contrast}");
                for other in &names[..at] {
                    let apart = seen_by_all(colours[one]).into_iter().zip(seen_by_all(colours[other]));
                    let apart = apart.map(|(one, other)| one.distance(other)).fold(f32::MAX, f32::min);
                    // A difference of 0.02 is just seen.
                    assert!(apart >= 0.12, "{one} and {other}: {apart}");
                }
            }
        }
        for text in ["text", "faint", "yes"] {
            assert!(colours[text].into_format::<f32>().relative_contrast(back) >= 4.5, "{text}");
        }
    }
}

#[test]
fn no_line_ends_between_a_figure_and_its_unit() {
    assert_eq!(prose("needs 1.00 MiB, 5 % <less> of B."), "needs 1.00&nbsp;MiB, 5&nbsp;% &lt;less&gt; of B.");
}

#[test]
fn one_segment_is_not_called_many() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.000000,allocate,0x200,512,0x0\n";
    let trace = read::read_from(&mut log.as_bytes(), "log", Limits::default()).unwrap().remove(0);
    assert!(report_of(&trace, &["driver"], UNLIMITED).contains(">driver: 512 B in 1 page or segment."));
}

#[test]
fn cards_are_judged_only_where_the_need_is_known() {
    let table = |page: &str| {
        page.split("What each allocator needs").nth(1).unwrap().split("</table>").next().unwrap().to_owned()
    };
    let of_cards = table(&report(&["millpond"]));
    assert!(of_cards.contains("<th>141") && of_cards.contains("class=yes>yes"), "{of_cards}");
    let of_one_capacity = table(&report_within(&["millpond"], 5 << 30));
    assert!(of_one_capacity.contains("out of memory at event 24"), "{of_one_capacity}");
    assert!(!of_one_capacity.contains("<th>141") && !of_one_capacity.contains(">no"), "{of_one_capacity}");
}

#[test]
fn thinning_keeps_the_highest_and_the_lowest() {
    let point = |time_us: u64| {
        let spike = if time_us == 77_777 { 1 << 40 } else { 5 };
        let reserved = if time_us == 55_555 { 0 } else { 1 << 41 };
        Point { event: time_us as usize, time_us, requested: spike, reserved }
    };
    let points: Vec<_> = (0..1_000_000).map(point).collect();
    let thin = thinned(&points);
    assert!(thin.len() < 10_000);
    assert!(thin.contains(&points[77_777]) && thin.contains(&points[55_555]));
    assert!(thin.is_sorted_by_key(|point| point.time_us));
}

#[test]
fn several_traces_are_listed_first() {
    let sections: Vec<_> = ["one", "two"]
        .map(|name| {
            let trace = Trace { name: name.to_owned(), ..recorded(GNN) };
            let program = Program::new(&trace, FreeWhen::Completed);
            Section::of(&trace, &program, vec!["Needs <1 GiB.".to_owned()], (Card::all(), 0))
        })
        .into();
    let page = page_of(&sections);
    let list = page.split("<nav>").nth(1).unwrap().split("</nav>").next().unwrap();
    assert!(
        list.contains("<a href=\"#trace-1\">two</a> <span class=no>Needs &lt;1&nbsp;GiB.</span>"),
        "{list}"
    );
    assert!(page.contains("<section id=trace-1><h2>two</h2>"));
}

#[test]
fn a_job_that_mostly_waits_is_shown_over_events() {
    let log = |times: &[&str]| {
        let line = |time: &&str| format!("1,10:00:{time},allocate,0x{}00,512,0x0\n", time.replace('.', ""));
        let log: String = times.iter().map(line).collect();
        let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{log}");
        read::read_from(&mut log.as_bytes(), "log", Limits::default()).unwrap().remove(0)
    };
    let steady: Vec<String> = (0..500).map(|at| format!("{:02}.{:03}", at / 100, at % 100 * 10)).collect();
    let steady: Vec<&str> = steady.iter().map(String::as_str).collect();
    assert!(!timeline::is_idle(&log(&steady)));
    assert!(timeline::is_idle(&log(&[&steady[..], &["40.000"]].concat())));
    // The longest time that a snapshot may hold.
    let mut damaged = log(&steady);
    (damaged.ops.last_mut().unwrap().time_us, damaged.wall_us) = (u64::MAX, u64::MAX);
    assert!(timeline::is_idle(&damaged));
}
