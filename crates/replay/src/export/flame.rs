//! What is live when most is requested, as a flame graph: a row for each caller and its callees below it, each as wide as
//! what it holds.
//!
//! One SVG, for a browser and for the report. Every part is an SVG of its own inside of it, at a share of its width. So the
//! browser lays it out anew for any width, and cuts names off where parts end. A click on a part makes it as wide as the
//! picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use millpond::HumanBytes;

use super::ExportError;
use super::stacks::{Holder, at_peak, named};
use crate::replay::Program;
use crate::sites::is_runtime;
use crate::trace::Trace;

/// Pixels of a row.
const ROW: usize = 18;

/// Rows; the innermost frames of deeper stacks are left out.
const MOST_ROWS: usize = 96;

/// Parts of less than this share of all are left out.
const LEAST: f64 = 0.0005;

/// Writes the flame graph as a file of its own.
///
/// # Errors
/// Where it cannot be written.
pub fn flame(trace: &Trace, program: &Program, out: &mut dyn Write) -> Result<(), ExportError> {
    let Some(picture) = svg(trace, program) else {
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\"><text y=\"16\">nothing was live</text></svg>"
        )?;
        return Ok(());
    };
    let style =
        format!(":root{{color-scheme:light dark}}{STYLE} @media (prefers-color-scheme: dark) {{ {DARK} }}");
    let begin = format!("<svg xmlns=\"http://www.w3.org/2000/svg\"><style>{style}</style>");
    writeln!(out, "{begin}{picture}<script><![CDATA[{SCRIPT}]]></script></svg>")?;
    Ok(())
}

/// How parts look, also in a report.
pub(crate) const STYLE: &str = "svg.flame{font:12px sans-serif}.flame rect{fill:#f3b36b;stroke:#fff}.flame .tag rect{fill:#8fc1e3}\
.flame .runtime rect{fill:#d9d9d6}.flame svg{cursor:pointer}.flame text{fill:#1b1b1b}";

/// The same on a dark page.
pub(crate) const DARK: &str = ".flame rect{fill:#8a5a1e;stroke:#161616}.flame .tag rect{fill:#2f5f80}.flame .runtime rect{fill:#444}.flame text{fill:#eee}";

/// A function among those that one caller calls.
#[derive(Debug, Default)]
struct CallNode {
    bytes: u64,
    blocks: u64,
    class: &'static str,
    callees: BTreeMap<String, CallNode>,
}

/// The picture; `None` where nothing is live.
pub(crate) fn svg(trace: &Trace, program: &Program) -> Option<String> {
    let mut all = CallNode::default();
    let mut rows = 1;
    for Holder { frames, bytes, blocks } in at_peak(trace, program) {
        let mut part = &mut all;
        (part.bytes, part.blocks) = (part.bytes + bytes, part.blocks + blocks);
        rows = rows.max(1 + frames.len().min(MOST_ROWS - 1));
        for frame in frames.iter().take(MOST_ROWS - 1) {
            part = part.callees.entry(named(frame)).or_default();
            (part.bytes, part.blocks) = (part.bytes + bytes, part.blocks + blocks);
            part.class = match () {
                () if frame.is_tag() => "tag",
                () if is_runtime(frame) && !frame.file.is_empty() => "runtime",
                () => "own",
            };
        }
    }
    if all.bytes == 0 {
        return None;
    }
    let height = rows * ROW;
    let mut out = format!(
        "<svg class=\"flame\" width=\"100%\" height=\"{height}\" role=\"img\"><title>Live at the peak, by call stack</title>"
    );
    draw(&all, "live at the peak", (0, 0), all.bytes, &mut out);
    out += "</svg>";
    Some(out)
}

/// Draws a part `from` so many bytes from the left, and its callees below it, the largest first.
fn draw(part: &CallNode, name: &str, (row, from): (usize, u64), all: u64, out: &mut String) {
    let share = |bytes: u64| bytes as f64 * 100.0 / all as f64;
    if share(part.bytes) < LEAST * 100.0 {
        return;
    }
    let (x, width, y) = (share(from), share(part.bytes), row * ROW);
    let name = xml(name);
    let blocks = if part.blocks == 1 { "block" } else { "blocks" };
    let _ = write!(
        out,
        "<svg class=\"{}\" x=\"{x:.4}%\" y=\"{y}\" width=\"{width:.4}%\" height=\"{ROW}\"><title>{name}: {}, {width:.1} %, in {} \
         {blocks}</title><rect width=\"100%\" height=\"{ROW}\"/><text x=\"3\" y=\"13\">{name}</text></svg>",
        part.class,
        HumanBytes(part.bytes),
        part.blocks,
    );
    let mut callees: Vec<_> = part.callees.iter().collect();
    callees.sort_by_key(|(_, callee)| std::cmp::Reverse(callee.bytes));
    let mut from = from;
    for (name, callee) in callees {
        draw(callee, name, (row + 1, from), all, out);
        from += callee.bytes;
    }
}

/// Text as XML takes it, whatever a function is called.
fn xml(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Makes a part that is clicked as wide as its picture. It stands behind all pictures of a page.
pub(crate) const SCRIPT: &str = "for(const flame of document.querySelectorAll('svg.flame')){const parts=[...flame.querySelectorAll('svg')];\
const at=new Map(parts.map(part=>[part,['x','width'].map(name=>parseFloat(part.getAttribute(name)))]));\
parts.forEach(part=>part.addEventListener('click',()=>{const [left,wide]=at.get(part);at.forEach(([x,width],other)=>{\
const around=x<=left+1e-3&&x+width>=left+wide-1e-3,inside=x>=left-1e-3&&x+width<=left+wide+1e-3;\
other.style.display=around||inside?'':'none';other.setAttribute('x',around?'0%':(x-left)/wide*100+'%');\
other.setAttribute('width',around?'100%':width/wide*100+'%');});}));}";
