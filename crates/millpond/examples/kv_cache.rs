//! A server that answers requests in batches: their prompts are packed into one buffer, and each request has rows of a cache that
//! grows with it. Parts of buffers are written and copied in stream order, without `unsafe`. A model's kernels would be launched
//! where the example copies.
//!
//! `cargo run -p millpond --example kv_cache`

use millpond::{Buffer, Context, Pool, Result, Stream};

/// Numbers that the model keeps of each token.
const ROW: usize = 64;

/// What the model keeps of one request's tokens.
struct Cache {
    rows: Buffer<f32>,
    tokens: usize,
}

impl Cache {
    fn new(pool: &Pool, stream: &Stream) -> Result<Self> {
        Ok(Self { rows: Buffer::zeroed(pool, 8 * ROW, stream)?, tokens: 0 })
    }

    /// Adds what the model computed for some tokens, and makes room where there is none.
    fn append(&mut self, computed: millpond::BufferView<'_, f32>) -> Result<()> {
        let (start, end) = (self.tokens * ROW, self.tokens * ROW + computed.len());
        if end > self.rows.len() {
            self.rows.resize(end.next_power_of_two())?;
        }
        self.rows.slice_mut(start..end)?.copy_from(computed)?;
        self.tokens = end / ROW;
        Ok(())
    }
}

/// Puts prompts behind each other into one buffer; each is followed by zeros up to `longest`.
fn pack(prompts: &[Vec<u32>], longest: usize, batch: &mut Buffer<u32>) -> Result<()> {
    for (row, prompt) in prompts.iter().enumerate() {
        let mut row = batch.slice_mut(row * longest..(row + 1) * longest)?;
        let (mut tokens, mut padding) = row.split_at_mut(prompt.len())?;
        tokens.copy_from_slice(prompt)?;
        padding.set_zero()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let device = Context::cuda(0).or_else(|_| Context::host())?;
    // No request sees what another one left in its block.
    let pool = Pool::builder(&device).name("server").zeroed(true).build()?;
    let (load, compute) = (pool.create_stream()?, pool.create_stream()?);

    let prompts = [vec![1, 2, 3], vec![4], vec![5, 6, 7, 8, 9]];
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let mut batch = Buffer::<u32>::uninit(&pool, prompts.len() * longest, &load)?;
    pack(&prompts, longest, &mut batch)?;
    assert_eq!(batch.slice(longest..2 * longest)?.to_vec()?, [4, 0, 0, 0, 0]);

    // The model's numbers for the whole batch: here as many as its tokens have, each row filled with its token.
    let batch = batch.on_stream(&compute)?;
    let mut computed = Buffer::<f32>::uninit(&pool, batch.len() * ROW, &compute)?;
    for (at, token) in batch.to_vec()?.into_iter().enumerate() {
        computed.slice_mut(at * ROW..(at + 1) * ROW)?.fill(token as f32)?;
    }

    let mut caches = Vec::new();
    for (row, prompt) in prompts.iter().enumerate() {
        let mut cache = Cache::new(&pool, &compute)?;
        let start = row * longest * ROW;
        // Token by token, as a model that generates does.
        for at in 0..prompt.len() {
            cache.append(computed.slice(start + at * ROW..start + (at + 1) * ROW)?)?;
        }
        caches.push(cache);
    }
    // The longest prompt's tokens go on, until its cache has to grow.
    for _ in 0..6 {
        let last = caches[2].rows.slice(..ROW)?.try_clone()?;
        caches[2].append(last.as_view())?;
    }
    assert_eq!((caches[2].tokens, caches[2].rows.len()), (11, 16 * ROW));
    let first = caches[2].rows.slice(..ROW)?.to_vec()?;
    assert!(first.iter().all(|number| *number == 5.0));
    println!("{} tokens cached\n{}", caches.iter().map(|cache| cache.tokens).sum::<usize>(), pool.stats());
    Ok(())
}
