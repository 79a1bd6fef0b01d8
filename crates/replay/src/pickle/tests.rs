use std::cell::Cell;

use super::*;

thread_local! {
    /// Keys that look-ups have compared on this thread.
    static COMPARED: Cell<u64> = const { Cell::new(0) };
}

/// Counts a key that a look-up compares.
pub(super) fn compare() {
    COMPARED.set(COMPARED.get() + 1);
}

struct KeepAll;

impl Fold for KeepAll {
    fn dict(&mut self, _: &Texts, _: &[(Value, Value)]) -> Option<u32> {
        None
    }
}

fn read(bytes: &[u8]) -> Result<(Heap, Value), PickleError> {
    load(&mut &*bytes, Limits { bytes: 64 << 20, values: 4_000_000, memory: 1 << 30 }, &mut KeepAll)
}

fn message(bytes: &[u8]) -> String {
    read(bytes).map(|(_, value)| value).unwrap_err().to_string()
}

#[test]
fn values_come_back_as_another_crate_wrote_them() {
    #[derive(serde::Serialize)]
    struct Row {
        name: &'static str,
        small: u8,
        large: u64,
        negative: i64,
        list: Vec<u32>,
    }
    let row =
        Row { name: "é", small: 7, large: u64::MAX - 1, negative: -70_000, list: vec![1, 300, 70_000] };
    let bytes = serde_pickle::to_vec(&row, Default::default()).unwrap();
    let (heap, root) = read(&bytes).unwrap();
    let number = |key| heap.look_up(root, key).and_then(integer).unwrap();
    assert_eq!(heap.text(heap.look_up(root, "name").unwrap()), Some("é"));
    assert_eq!(number("small"), 7);
    assert_eq!(number("large"), u64::MAX - 1);
    assert_eq!(number("negative") as i64, -70_000);
    let list = heap.items(heap.look_up(root, "list").unwrap()).unwrap();
    assert_eq!(list.iter().map(|&item| integer(item).unwrap()).collect::<Vec<_>>(), [1, 300, 70_000]);
}

#[test]
fn a_pickle_that_would_run_code_is_refused() {
    // What `pickle.dumps` makes of an object whose __reduce__ is (os.system, ("ls",)).
    let hostile = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R.";
    let said = message(hostile);
    assert!(said.contains("calls Python code"), "{said}");
    assert!(said.starts_with("byte 18:"), "{said}");
}

#[test]
fn a_cut_pickle_says_where_it_ends() {
    assert!(
        message(b"\x80\x04]\x94(K").starts_with("byte 6: the file ends"),
        "{}",
        message(b"\x80\x04]\x94(K")
    );
}

#[test]
fn a_million_marks_or_nested_tuples_do_no_harm() {
    let mut marks = vec![b'('; 1 << 20];
    marks.push(b'.');
    assert!(message(&marks).contains("more values than there are"));
    let mut nested = vec![b')'];
    nested.extend(vec![0x85; 1 << 20]);
    nested.push(b'.');
    assert!(read(&nested).is_ok());
}

#[test]
fn no_opcode_takes_more_memory_than_allowed() {
    let limits = Limits { memory: 1 << 20, ..Limits::default() };
    let of =
        |bytes: &[u8]| load(&mut &*bytes, limits, &mut KeepAll).map(drop).map_err(|error| error.to_string());
    let many = |start: &[u8], each: &[u8]| [start, &each.repeat(200_000), b"."].concat();
    let hostile = [
        many(b"", b"N"),      // the stack
        many(b"", b"("),      // marks
        many(b"", b"]"),      // lists
        many(b"", b"}"),      // dicts
        many(b"]", b"\x94"),  // the memo
        many(b"]", b"Na"),    // one list
        many(b"}", b"NNs"),   // one dict
        many(b"", b"N\x850"), // tuples that are let go of
    ];
    for bytes in hostile {
        let said = of(&bytes).unwrap_err();
        assert!(said.contains("the values take more than 1048576 bytes of memory"), "{said}");
    }
    let texts: Vec<u8> =
        (0..200u8).flat_map(|n| [&b"X\x00\x40\x00\x00"[..], &[n / 2; 1 << 14]].concat()).collect();
    assert!(of(&texts).unwrap_err().contains("of memory"), "a hundred texts of 16 KiB");
    assert!(of(&[&texts[..texts.len() / 4], b"."].concat()).is_ok(), "25 of them, each named twice");
    assert!(of(&many(b"N", b"N0")).is_ok(), "one value at a time");
}

#[test]
fn a_list_that_holds_itself_is_read() {
    let (heap, root) = read(b"\x80\x04]\x94h\x00a.").unwrap();
    assert_eq!(heap.items(root), Some(&[root][..]));
}

#[test]
fn of_equal_keys_the_last_counts_and_keys_that_are_no_text_are_passed_over() {
    let (heap, root) =
        read(b"\x80\x04}(\x8c\x01aK\x01K\x05K\x06\x8c\x01aK\x02\x8c\x01bK\x03u\x8c\x01bK\x04s.").unwrap();
    let number = |key| heap.look_up(root, key).and_then(integer);
    assert_eq!(["a", "b", "c"].map(number), [Some(2), Some(4), None]);
}

#[test]
fn a_large_dict_that_stands_many_times_costs_few_comparisons_each_time() {
    const KEYS: u32 = 2000;
    const TIMES: usize = 1000;
    // {"device_traces": [], "segments": [segment] * TIMES}, where the segment has KEYS keys of its own.
    let text = |name: &str| [&[0x8c, name.len() as u8], name.as_bytes()].concat();
    let field = |name: &str, value: &[u8]| [&text(name), value].concat();
    let padding = (0..KEYS).flat_map(|key| field(&format!("k{key}"), b"N"));
    let segment: Vec<u8> = [&b"}("[..], &field("address", b"M\0\x10"), &field("total_size", b"M\0\x10")]
        .concat()
        .into_iter()
        .chain(padding)
        .chain(*b"u")
        .collect();
    let segments = [&b"]("[..], &segment, &b"2".repeat(TIMES - 1), b"e"].concat();
    let file =
        [b"\x80\x04}(", &field("device_traces", b"]")[..], &field("segments", &segments), b"u."].concat();
    COMPARED.set(0);
    // Nothing happened in it, which is found out once all of it was looked at.
    assert!(crate::read::read_from(&mut &*file, "snapshot", crate::read::Limits::default()).is_err());
    let (compared, each) = (COMPARED.get(), u64::from(KEYS.ilog2()) + 1);
    // Five keys of a segment, and four of the snapshot.
    assert!(compared <= (5 * TIMES as u64 + 4) * each, "{compared} comparisons for {TIMES} segments");
}

#[test]
fn a_string_longer_than_the_file_takes_no_memory() {
    assert!(message(b"X\xff\xff\xff\x7f").contains("longer than 1 MiB"));
    assert!(message(b"B\xff\xff\xff\xffabc.").contains("the file ends"));
}

#[test]
fn the_limits_hold() {
    let bytes = vec![b'N'; 1000];
    let limits = |bytes, values| Limits { bytes, values, memory: 1 << 30 };
    let said = |limits| load(&mut &*bytes, limits, &mut KeepAll).unwrap_err().to_string();
    assert!(said(limits(100, 1 << 20)).contains("more than 100 bytes"));
    assert!(said(limits(1 << 20, 100)).contains("more than 100 values"));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }
}

#[test]
fn equal_lists_of_dicts_are_kept_once() {
    // [[{}, {}], [the same two], [one of them]], and the second list gets one more.
    let first = b"\x80\x04](]\x94(}\x94}\x94e";
    let others = b"]\x94(h\x01h\x02e](h\x01eh\x03h\x01ae.";
    let (heap, root) = read(&[&first[..], others].concat()).unwrap();
    let lists = heap.items(root).unwrap();
    let id = |at: usize| {
        let Value::Items(number) = lists[at] else { panic!("{:?}", lists[at]) };
        heap.list_id(number)
    };
    let of = |at: usize| heap.items(lists[at]).unwrap();
    assert_eq!((of(0).len(), of(1).len(), of(2).len()), (2, 3, 1));
    assert_eq!((of(1)[..2].to_vec(), of(1)[2]), (of(0).to_vec(), of(2)[0]));
    assert!(id(0) != id(1) && id(0) != id(2), "one was appended to");

    let (heap, root) = read(&[&first[..], b"]\x94(h\x01h\x02ee."].concat()).unwrap();
    let [Value::Items(one), Value::Items(other)] = *heap.items(root).unwrap() else { panic!("two lists") };
    assert!(one != other && heap.list_id(one) == heap.list_id(other));
}
