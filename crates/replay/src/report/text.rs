//! Figures and texts as the page has them.

/// Microseconds in a unit that suits them.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us if us < 600e6 => format!("{:.1} s", us / 1e6),
        us if us < 36000e6 => format!("{:.1} min", us / 60e6),
        us => format!("{:.1} h", us / 3600e6),
    }
}

/// A number with its thousands apart.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Sentences as HTML, in which no line ends between a figure and its unit.
pub(super) fn prose(text: &str) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "%"];
    let mut html = String::new();
    let mut ends_in_figure = false;
    for (at, word) in text.split(' ').enumerate() {
        let is_unit = UNITS.contains(&word.trim_end_matches(['.', ',', ':', ';', ')']));
        html += match at {
            0 => "",
            _ if is_unit && ends_in_figure => "&nbsp;",
            _ => " ",
        };
        html += &escaped(word);
        ends_in_figure = word.ends_with(|c: char| c.is_ascii_digit());
    }
    html
}

/// Text as HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
