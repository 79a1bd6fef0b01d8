use std::path::Path;

use super::timeline::thinned;
use super::*;
use crate::read::{self, Limits};
use crate::replay::{FreeWhen, UNLIMITED, on_sim};

fn report(names: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gnn_stacks.pickle.gz");
    let trace = read::read(&path, Limits::default()).unwrap().remove(0);
    let program = Program::new(&trace, FreeWhen::Completed);
    let mut section = Section::of(&trace, &program, vec!["a < b".to_owned()], 512 << 20);
    for &name in names {
        let choose = |context: &millpond::Context| millpond_baselines::by_name(name, context);
        let outcome = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
        let smallest = Some(outcome.peak_reserved);
        section.add((&trace, &program), &choose, outcome, smallest).unwrap();
    }
    let mut file = Vec::new();
    write(&[section], &mut file).unwrap();
    String::from_utf8(file).unwrap()
}

#[test]
fn a_report_holds_its_figures_and_fetches_nothing() {
    let page = report(&["millpond", "caching"]);
    assert!(page.contains("gnn_stacks.pickle.gz") && page.contains("a &lt; b"));
    assert!(page.contains("(t3.py:67)"), "call sites");
    let own = page.split("</script>").filter(|part| part.len() < 1_000_000).collect::<String>();
    assert!(!own.contains("http"), "nothing but the charts' own script names an address");
    assert!(!own.contains("src="));
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
