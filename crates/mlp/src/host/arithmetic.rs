//! The arithmetic of the operations, on plain row-major slices. Each element is computed in one fixed order, so
//! that the same inputs give the same bits wherever they lie and however many threads there are.

use gemm_common::Parallelism;
use rayon::prelude::*;

use crate::{TOTAL_CORRECT, TOTAL_LOSS};

/// Rows or columns that one thread takes of a product: fewer would spend more on packing than they save.
const LEAST_PANEL: usize = 64;

/// Elements that one thread takes of a vector operation: below this, waking a thread costs more than it saves.
const CHUNK: usize = 1 << 15;

/// The sizes and strides of a product `out[m, n] = left[m, k] · right[k, n]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    m: usize,
    n: usize,
    k: usize,
    /// From one row to the next, and from one column to the next, in elements.
    left: [isize; 2],
    right: [isize; 2],
    /// Whether threads take rows of the output, or else columns.
    by_rows: bool,
    /// Whether it is computed as the product of the transposed matrices. The kernels copy their left factor, unless it is
    /// small, to where its vectors lie one after another.
    transposed: bool,
}

// How products are cut and turned: by the fastest of the four ways for 64 x 784 over 784 (docs/lab/train.md).
impl Product {
    /// `left · right`, of matrices of these shapes.
    pub(super) fn plain(left: (usize, usize), right: (usize, usize)) -> Self {
        let strides = |cols: usize| [cols as isize, 1];
        let (m, n, k) = (left.0, right.1, left.1);
        let (left, right) = (strides(left.1), strides(right.1));
        Self { m, n, k, left, right, by_rows: false, transposed: true }
    }

    /// `left · rightᵀ`, of matrices of these shapes.
    pub(super) fn right_transposed(left: (usize, usize), right: (usize, usize)) -> Self {
        let plain = Self::plain(left, (right.1, right.0));
        Self { right: [1, right.1 as isize], transposed: false, ..plain }
    }

    /// `leftᵀ · right`, of matrices of these shapes.
    pub(super) fn left_transposed(left: (usize, usize), right: (usize, usize)) -> Self {
        let plain = Self::plain((left.1, left.0), right);
        Self { left: [1, left.1 as isize], by_rows: true, ..plain }
    }

    /// Computes the product, a panel of rows or columns on each thread. `finish` gets each row of a panel when that is done:
    /// where in `out` it begins, and the elements.
    ///
    /// gemm's own parallelism measured slower for these sizes (64 x 784 x 784 on 2 cores: 900 µs against 690 µs).
    pub(super) fn run(
        &self,
        out: &mut [f32],
        (left, right): (&[f32], &[f32]),
        finish: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        self.scaled(out, (left, right), (0.0, 1.0), finish);
    }

    /// `out += factor · left · right`.
    pub(super) fn add(&self, out: &mut [f32], factors: (&[f32], &[f32]), factor: f32) {
        self.scaled(out, factors, (1.0, factor), |_, _| {});
    }

    /// `out = kept · out + factor · left · right`; with 0, `out` is not read.
    fn scaled(
        &self,
        out: &mut [f32],
        factors: (&[f32], &[f32]),
        scales: (f32, f32),
        finish: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        assert!(
            out.len() == self.m * self.n
                && factors.0.len() == self.m * self.k
                && factors.1.len() == self.k * self.n
        );
        let length = if self.by_rows { self.m } else { self.n };
        let panels = rayon::current_num_threads().min(length.div_ceil(LEAST_PANEL)).max(1);
        // Panels begin at whole vectors of 16 floats, so that only the last has a ragged edge.
        let width = length.div_ceil(panels).next_multiple_of(16);
        let out = Shared { first: out.as_mut_ptr() };
        let finish = &finish;
        let panel = move |start: usize| {
            let panel = (start, width.min(length - start));
            self.panel(out, factors, scales, panel);
            let (rows, columns) = if self.by_rows { (panel, (0, self.n)) } else { ((0, self.m), panel) };
            for row in rows.0..rows.0 + rows.1 {
                let at = row * self.n + columns.0;
                // SAFETY: within `out`, and only this panel's, as in `panel`.
                finish(at, unsafe { std::slice::from_raw_parts_mut(out.at(at), columns.1) });
            }
        };
        // The first panel is this thread's: it need not wake another one for it.
        rayon::in_place_scope(|scope| {
            for start in (width..length).step_by(width) {
                scope.spawn(move |_| panel(start));
            }
            panel(0);
        });
    }

    fn panel(
        &self,
        out: Shared,
        (left, right): (&[f32], &[f32]),
        (kept, factor): (f32, f32),
        (start, width): (usize, usize),
    ) {
        let (mut left, mut right) = (left.as_ptr(), right.as_ptr());
        let (mut m, mut n, from) = (self.m, self.n, start as isize);
        // From one column to the next, and from one row to the next, as the kernels take them.
        let [mut out_by, mut left_by, mut right_by] =
            [[self.n as isize, 1], self.left, self.right].map(|[row, column]| [column, row]);
        // SAFETY: `scaled` checked the lengths against the sizes, and the strides are those of dense matrices of
        // these sizes, so that every access is in bounds; the panels write disjoint rows or columns of `out`, which
        // `scaled` has borrowed mutably; inputs and output are different slices.
        unsafe {
            let out = if self.by_rows {
                (m, left) = (width, left.offset(from * left_by[1]));
                out.at(start * self.n)
            } else {
                (n, right) = (width, right.offset(from * right_by[0]));
                out.at(start)
            };
            if self.transposed {
                (m, n, left, right) = (n, m, right, left);
                (left_by, right_by) = (right_by, left_by);
                [&mut out_by, &mut left_by, &mut right_by].into_iter().for_each(|by| by.reverse());
            }
            let ([out_column, out_row], [left_column, left_row], [right_column, right_row]) =
                (out_by, left_by, right_by);
            gemm_f32::gemm::f32::get_gemm_fn()(
                m,
                n,
                self.k,
                out,
                out_column,
                out_row,
                kept != 0.0,
                left,
                left_column,
                left_row,
                right,
                right_column,
                right_row,
                kept,
                factor,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// The first element of a matrix, to be shared by threads that write different rows or columns of it.
#[derive(Debug, Clone, Copy)]
struct Shared {
    first: *mut f32,
}

impl Shared {
    /// # Safety
    /// The matrix has as many elements.
    unsafe fn at(&self, index: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(index) }
    }
}

// SAFETY: the pointer is only used by `Product::scaled`, whose panels write disjoint parts.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// `to = from / 255`, row by row. Behind the pixels of a row is a label, which is left out.
pub(super) fn images(to: &mut [f32], from: &[u8], pixels: usize) {
    let rows = to.par_chunks_mut(pixels).zip(from.par_chunks(pixels + 1));
    rows.with_min_len(CHUNK / pixels.max(1) + 1).for_each(|(to, from)| {
        to.iter_mut().zip(from).for_each(|(to, &pixel)| *to = f32::from(pixel) / 255.0);
    });
}

/// `max(0, y)`, in place.
pub(super) fn relu(y: &mut [f32]) {
    y.iter_mut().for_each(|y| *y = y.max(0.0));
}

/// Zeroes the gradient where the ReLU's output was zero.
pub(super) fn mask_where_zero(gradient: &mut [f32], output: &[f32]) {
    let pairs = gradient.iter_mut().zip(output);
    pairs.for_each(|(gradient, &output)| *gradient = if output > 0.0 { *gradient } else { 0.0 });
}

/// `v = momentum · v + gradient`.
pub(super) fn accelerate(v: &mut [f32], gradient: &[f32], momentum: f32) {
    v.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).for_each(|(v, gradient)| {
        v.iter_mut().zip(gradient).for_each(|(v, &gradient)| *v = momentum * *v + gradient);
    });
}

/// `w −= rate · gradient`.
pub(super) fn descend(w: &mut [f32], gradient: &[f32], rate: f32) {
    w.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).for_each(|(w, gradient)| {
        w.iter_mut().zip(gradient).for_each(|(w, &gradient)| *w -= rate * gradient);
    });
}

/// Adds the rows' losses and correct answers to the totals.
pub(super) fn score(logits: &[f32], labels: impl Iterator<Item = usize>, classes: usize, totals: &mut [f64]) {
    for (row, label) in logits.chunks_exact(classes).zip(labels) {
        let (largest, at) = largest(row);
        let sum: f32 = row.iter().map(|&logit| (logit - largest).exp()).sum();
        totals[TOTAL_LOSS] += f64::from(sum.ln() + largest - row[label]);
        totals[TOTAL_CORRECT] += f64::from(u8::from(at == label));
    }
}

/// `(softmax(logits) − onehot(label)) / of`.
pub(super) fn cross_entropy_gradient(
    to: &mut [f32],
    logits: &[f32],
    labels: impl Iterator<Item = usize>,
    (classes, of): (usize, usize),
) {
    let scale = 1.0 / of as f32;
    for ((to, row), label) in to.chunks_exact_mut(classes).zip(logits.chunks_exact(classes)).zip(labels) {
        let (largest, _) = largest(row);
        to.iter_mut().zip(row).for_each(|(to, &logit)| *to = (logit - largest).exp());
        let sum: f32 = to.iter().sum();
        to.iter_mut().for_each(|to| *to *= scale / sum);
        to[label] -= scale;
    }
}

/// The largest value and where it is first.
fn largest(row: &[f32]) -> (f32, usize) {
    row.iter().enumerate().fold(
        (f32::NEG_INFINITY, 0),
        |best, (at, &value)| {
            if value > best.0 { (value, at) } else { best }
        },
    )
}
