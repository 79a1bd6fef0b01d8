//! What lies where in an allocator's memory, as a picture: SVG, which prints as well as it shows.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use crate::replay::Map;

/// Cells of the picture.
const ROWS: usize = 24;
const COLUMNS: usize = 160;

/// Shades between free and live.
const SHADES: u64 = 8;

/// One cell, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// On any page or segment.
    held: u64,
    /// On pages and segments that have a live block.
    in_use: u64,
    /// In live blocks.
    live: u64,
}

impl Cell {
    /// Whether the free part is mostly holes, and how much of the cell is live, in shades. `None` behind the last page.
    fn shade(self) -> Option<(bool, u64)> {
        let share = (self.live * SHADES).checked_div(self.held)?;
        Some((self.in_use - self.live > self.held - self.in_use, share))
    }
}

/// Bytes that a cell of this map stands for.
pub(super) fn cell_bytes(map: &Map) -> u64 {
    let total: u64 = map.backing.iter().map(|(_, bytes)| bytes).sum();
    total.div_ceil((ROWS * COLUMNS) as u64).max(1)
}

/// All pages and segments one behind the other, by rising address, row by row.
pub(super) fn svg(map: &Map) -> String {
    drawn(&cells(map, cell_bytes(map)))
}

/// The same cells as text, of so many bytes each: runs, as how many (if several) and which. A letter names a shade: small
/// where the free part is mostly holes, capital where it is mostly free pages, and a dot what lies behind the last page.
pub(super) fn runs(map: &Map, each: u64) -> String {
    let mut text = String::new();
    for alike in cells(map, each).chunk_by(|one, other| one.shade() == other.shade()) {
        let letter = match alike[0].shade() {
            None => '.',
            Some((is_hole, share)) => char::from((if is_hole { b'a' } else { b'A' }) + share as u8),
        };
        if alike.len() > 1 {
            let _ = write!(text, "{}", alike.len());
        }
        text.push(letter);
    }
    text
}

fn cells(map: &Map, each: u64) -> Vec<Cell> {
    let mut cells = vec![Cell::default(); ROWS * COLUMNS];
    let mut before = 0;
    for &(address, bytes) in &map.backing {
        let end = address + bytes;
        let first = map.live.partition_point(|(at, size)| at + size <= address);
        let mut in_use = false;
        for &(at, size) in map.live[first..].iter().take_while(|(at, _)| *at < end) {
            let (from, to) = (at.max(address), (at + size).min(end));
            add(&mut cells, each, before + from - address..before + to - address, |cell| &mut cell.live);
            in_use = true;
        }
        add(&mut cells, each, before..before + bytes, |cell| &mut cell.held);
        if in_use {
            add(&mut cells, each, before..before + bytes, |cell| &mut cell.in_use);
        }
        before += bytes;
    }
    cells
}

/// Neighbours of one shade are one stroke, and all strokes of one shade one path: the free part's colour, and the live
/// one's over it.
fn drawn(cells: &[Cell]) -> String {
    let mut paths: BTreeMap<(&str, u64), String> = BTreeMap::new();
    for (row, cells) in cells.chunks(COLUMNS).enumerate() {
        let mut column = 0;
        for alike in cells.chunk_by(|one, other| one.shade() == other.shade()) {
            let stroke = format!("M{column} {row}.5h{}", alike.len());
            column += alike.len();
            let Some((is_hole, share)) = alike[0].shade() else { continue };
            if share < SHADES {
                *paths.entry((if is_hole { "hole" } else { "free" }, SHADES)).or_default() += &stroke;
            }
            if share > 0 {
                *paths.entry(("live", share)).or_default() += &stroke;
            }
        }
    }
    let mut svg =
        format!("<svg class=map viewBox=\"0 0 {COLUMNS} {ROWS}\" preserveAspectRatio=none role=img>");
    for ((class, share), strokes) in paths {
        let opacity = share as f64 / SHADES as f64;
        let _ = write!(svg, "<path class={class} opacity=\"{opacity}\" d=\"{strokes}\"/>");
    }
    svg + "</svg>"
}

/// Adds a stretch of bytes to the cells that it lies in.
fn add(cells: &mut [Cell], each: u64, bytes: Range<u64>, part: fn(&mut Cell) -> &mut u64) {
    let mut at = bytes.start;
    while at < bytes.end {
        let number = at / each;
        let end = bytes.end.min((number + 1) * each);
        // A moment may hold a little more than the picture has room for.
        if let Some(cell) = cells.get_mut(number as usize) {
            *part(cell) += end - at;
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_live_blocks_holes_beside_them_and_free_pages() {
        let bytes = (ROWS * COLUMNS) as u64;
        // The first half is one page with a block at its start, the second half is free.
        let map = Map {
            backing: vec![(4096, bytes / 2), (1 << 20, bytes / 2)],
            live: vec![(4096, 160)],
            blocks: vec![0],
        };
        assert_eq!(cell_bytes(&map), 1);
        let svg = svg(&map);
        let strokes = |class: &str| {
            let path = svg.split("<path ").find(|path| path.starts_with(&format!("class={class} ")));
            path.map_or(0, |path| path.matches('M').count())
        };
        assert_eq!(["live", "hole", "free"].map(strokes), [1, ROWS / 2 - 1, ROWS / 2]);
        assert!(svg.contains("<path class=live opacity=\"1\" d=\"M0 0.5h160\"/>"), "{svg}");
        assert_eq!(runs(&map, 1), "160I1760a1920A");
        assert_eq!(runs(&map, 2), "80I880a960A1920.");
    }
}
