//! The script that draws the charts of reports: [plotly.js](https://plotly.com/javascript/), with lines and bars. It is
//! a part of each report, so that a report works offline.
//!
//! `plotly-basic.min.js.gz` is `plotly-basic.min.js` of the npm package `plotly.js-basic-dist-min` 4.1.1,
//! compressed. Its licence is in `LICENSE-plotly`.

use std::io::{self, Write};

static COMPRESSED: &[u8] = include_bytes!("plotly-basic.min.js.gz");

/// Writes the element `<script>` that defines `Plotly`: 1.2 MB.
///
/// # Errors
/// Where it cannot be written.
pub fn write_script(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"<script>")?;
    io::copy(&mut flate2::read::GzDecoder::new(COMPRESSED), out)?;
    out.write_all(b"</script>")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_script_is_whole_and_ends_where_it_should() {
        let mut html = Vec::new();
        super::write_script(&mut html).unwrap();
        let html = String::from_utf8(html).unwrap();
        assert_eq!(html.len(), 1_191_749 + "<script></script>".len());
        assert_eq!(html.matches("</script").count(), 1);
    }
}
