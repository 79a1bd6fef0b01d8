//! Wrong flags.

use super::ran;
use crate::shared::{failure, stderr};

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let wrong = [
        (&[][..], "<PROGRAM> is missing"),
        (&["--wach", "true"], "--wach: there is no such flag. Did you mean --watch?"),
        (&["--watch", "--limit", "1GiB", "true"], "--watch and --limit exclude each other"),
        (&["--limit", "much", "true"], "--limit: "),
        (&["--limit", "1GiB", "--record", "x", "true"], "--record and --report are for --pool and --watch"),
        (&["--limit", "1GiB", "--async-free", "true"], "--async-free is for the pool"),
        (&["--limit", "1GiB", "--top", "true"], "--top is for the pool"),
        (&["--limit", "1GiB", "--decay", "1", "true"], "--decay is for the pool"),
        (&["--limit", "1GiB", "--offload", "optimizer", "true"], "--offload is for the pool"),
        (&["--offload", "model", "true"], "--offload: 'model' is not one of optimizer"),
        (&["--decay", "soon", "true"], "--decay: 'soon' is no time"),
        (&["--watch", "--top", "true"], "--watch and --top exclude each other"),
        (&["--budget", "gpu0", "true"], "--"),
        (&["--json", "-", "true"], "--json -: the program has standard output"),
        (&["--json", "/dev/stdout", "true"], "--json /dev/stdout: this is standard output; the program has"),
        (&["--record", "/dev/stdout", "true"], "--record /dev/stdout: this is standard output; a recording"),
        (&["--json", "x", "--report", "x", "true"], "x: is written to already"),
    ];
    for (arguments, said) in wrong {
        let output = ran(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(failure(&output).starts_with(said), "{arguments:?}: {}", stderr(&output));
    }
}
