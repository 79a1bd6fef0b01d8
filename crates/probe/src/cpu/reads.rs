//! Reads of a large array by one core: in a row, with strides, and of records.

use std::hint::black_box;

use crate::Result;
use crate::run::{Run, Scale, timed};

/// Fields of a record.
const FIELDS: usize = 8;
const WORD: u64 = size_of::<u32>() as u64;

pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    // A quarter of the largest copy is still much larger than caches are.
    let words = (run.effort.most_bytes / 4 / WORD) as usize;
    let data = vec![1_u32; words];
    for shift in 0..=6 {
        let stride = 1_usize << shift;
        let what = if stride == 1 { "in a row".to_owned() } else { format!("stride {stride}") };
        run.figure(&what, None, Scale::Bytes((words / stride) as u64 * WORD), || {
            timed(|| {
                black_box(strided(black_box(&data), stride));
                Ok(())
            })
        });
    }
    let records = words / FIELDS;
    for (used, pass) in [(2, fields::<2> as fn(&[u32], usize, [usize; 2]) -> u32), (FIELDS, fields::<FIELDS>)]
    {
        let layouts = [("array of structures", [FIELDS, 1]), ("structure of arrays", [1, records])];
        for (layout, distances) in layouts {
            let what = format!("{used} of {FIELDS} fields, {layout}");
            run.figure(&what, None, Scale::Bytes((records * used) as u64 * WORD), || {
                timed(|| {
                    black_box(pass(black_box(&data), records, distances));
                    Ok(())
                })
            });
        }
    }
    Ok(())
}

fn strided(data: &[u32], stride: usize) -> u32 {
    if stride == 1 {
        return data.iter().fold(0, |sum, word| sum.wrapping_add(*word));
    }
    data.iter().step_by(stride).fold(0, |sum, word| sum.wrapping_add(*word))
}

/// The sum of the first `USED` fields of all records, by the distances of two records and of two fields.
fn fields<const USED: usize>(data: &[u32], records: usize, [record, field]: [usize; 2]) -> u32 {
    let mut sums = [0_u32; USED];
    for at in 0..records {
        for (number, sum) in sums.iter_mut().enumerate() {
            *sum = sum.wrapping_add(data[at * record + number * field]);
        }
    }
    sums.iter().fold(0, |sum, other| sum.wrapping_add(*other))
}
