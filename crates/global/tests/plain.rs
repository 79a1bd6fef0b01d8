//! The same program without the line: its memory is the driver's.

mod jobs;

#[test]
fn without_the_line_memory_is_the_drivers() {
    jobs::succeeds("program_pairs", &[]);
}

#[test]
#[ignore = "a program, run by the test above"]
fn program_pairs() {
    let _context = jobs::pairs();
    assert_eq!(jobs::drivers_allocations(), 300);
    assert_eq!(jobs::calls(&[c"cuMemCreate"]), 0);
}
