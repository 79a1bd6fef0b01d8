//! candle: a small GPT with random weights, which answers requests with a cache of keys and values that grows, or learns.
//!
//! `candle-… generate` or `candle-… train`, on candle's own choice of a stream, the thread's default one; with `stream` behind it, on
//! one that the program makes.

use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{
    AdamW, Embedding, LayerNorm, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, embedding,
    layer_norm, linear_no_bias, loss::cross_entropy, ops::softmax_last_dim,
};
use job::{Job, Numbers, add};

type Result<T> = candle_core::Result<T>;

#[derive(Clone, Copy)]
struct Shape {
    words: usize,
    width: usize,
    heads: usize,
    layers: usize,
    longest: usize,
}

const SERVED: Shape = Shape { words: 16_384, width: 1024, heads: 16, layers: 12, longest: 2048 };
const TRAINED: Shape = Shape { words: 4096, width: 384, heads: 6, layers: 4, longest: 512 };

struct Layer {
    before: [LayerNorm; 2],
    mixes: [Linear; 4],
    widens: Linear,
    narrows: Linear,
}

struct Gpt {
    shape: Shape,
    words: Embedding,
    places: Embedding,
    layers: Vec<Layer>,
    last: LayerNorm,
    out: Linear,
}

/// The keys and values of a layer so far.
type Cache = Option<(Tensor, Tensor)>;

impl Gpt {
    fn new(shape: Shape, vb: &VarBuilder) -> Result<Self> {
        let width = shape.width;
        let layer = |vb: VarBuilder| {
            let mix = |name| linear_no_bias(width, width, vb.pp(name));
            Ok(Layer {
                before: [layer_norm(width, 1e-5, vb.pp("one"))?, layer_norm(width, 1e-5, vb.pp("two"))?],
                mixes: [mix("q")?, mix("k")?, mix("v")?, mix("o")?],
                widens: linear_no_bias(width, 4 * width, vb.pp("widens"))?,
                narrows: linear_no_bias(4 * width, width, vb.pp("narrows"))?,
            })
        };
        Ok(Self {
            shape,
            words: embedding(shape.words, width, vb.pp("words"))?,
            places: embedding(shape.longest, width, vb.pp("places"))?,
            layers: (0..shape.layers).map(|at| layer(vb.pp(format!("layer{at}")))).collect::<Result<_>>()?,
            last: layer_norm(width, 1e-5, vb.pp("last"))?,
            out: linear_no_bias(width, shape.words, vb.pp("out"))?,
        })
    }

    /// The logits of words that begin at a place. With caches, what came before is in them, and what comes now is added.
    fn logits(&self, words: &Tensor, first: usize, mut caches: Option<&mut [Cache]>) -> Result<Tensor> {
        let (batch, length) = words.dims2()?;
        let Shape { width, heads, .. } = self.shape;
        let device = words.device();
        let places = Tensor::arange(first as u32, (first + length) as u32, device)?;
        let mut x = self.words.forward(words)?.broadcast_add(&self.places.forward(&places)?)?;
        let mask: Vec<f32> = (0..length)
            .flat_map(|row| {
                (0..first + length)
                    .map(move |column| if column > first + row { f32::NEG_INFINITY } else { 0.0 })
            })
            .collect();
        let mask = Tensor::from_vec(mask, (length, first + length), device)?;
        let split =
            |t: Tensor| t.reshape((batch, length, heads, width / heads))?.transpose(1, 2)?.contiguous();
        for (at, layer) in self.layers.iter().enumerate() {
            let h = layer.before[0].forward(&x)?;
            let [q, mut k, mut v] = [0, 1, 2].map(|mix| layer.mixes[mix].forward(&h).and_then(split));
            if let Some(caches) = caches.as_deref_mut() {
                if let Some((keys, values)) = &caches[at] {
                    k = Tensor::cat(&[keys, &k?], 2);
                    v = Tensor::cat(&[values, &v?], 2);
                }
                let (Ok(keys), Ok(values)) = (&k, &v) else { return k.and(v) };
                caches[at] = Some((keys.clone(), values.clone()));
            }
            let (q, k, v) = (q?, k?, v?);
            let scores = (q.matmul(&k.t()?.contiguous()?)? * ((width / heads) as f64).powf(-0.5))?;
            let mixed = softmax(&scores.broadcast_add(&mask)?)?.matmul(&v)?;
            let mixed = mixed.transpose(1, 2)?.reshape((batch, length, width))?;
            x = (x + layer.mixes[3].forward(&mixed)?)?;
            let h = layer.before[1].forward(&x)?;
            x = (x + layer.narrows.forward(&layer.widens.forward(&h)?.gelu()?)?)?;
        }
        let x = if caches.is_some() { x.narrow(1, length - 1, 1)? } else { x };
        self.out.forward(&self.last.forward(&x)?)
    }
}

/// One that can be learned through, unlike candle's kernel for it.
fn softmax(scores: &Tensor) -> Result<Tensor> {
    if scores.track_op() { candle_nn::ops::softmax(scores, D::Minus1) } else { softmax_last_dim(scores) }
}

fn random_words(
    numbers: &mut Numbers,
    shape: (usize, usize),
    words: usize,
    device: &Device,
) -> Result<Tensor> {
    let values: Vec<u32> = (0..shape.0 * shape.1).map(|_| numbers.within(0, words - 1) as u32).collect();
    Tensor::from_vec(values, shape, device)
}

/// Requests one after the other: a batch of prompts, then the likeliest words.
fn generate(gpt: &Gpt, device: &Device) -> Result<u64> {
    let (mut numbers, mut checksum) = (Numbers::new(5), 0);
    for _ in 0..20 {
        let (batch, length, more) = (numbers.within(1, 6), numbers.within(16, 1024), numbers.within(16, 96));
        let mut caches: Vec<Cache> = vec![None; gpt.layers.len()];
        let mut input = random_words(&mut numbers, (batch, length), gpt.shape.words, device)?;
        let mut first = 0;
        for _ in 0..more {
            let likeliest = gpt.logits(&input, first, Some(&mut caches))?.argmax(D::Minus1)?;
            first += input.dim(1)?;
            let chosen: Vec<f32> =
                likeliest.flatten_all()?.to_vec1::<u32>()?.iter().map(|word| *word as f32).collect();
            checksum = add(checksum, &chosen);
            input = likeliest;
        }
    }
    device.synchronize()?;
    Ok(checksum)
}

/// Steps of varying batch and length.
fn train(device: &Device) -> Result<u64> {
    device.set_seed(9)?;
    let variables = VarMap::new();
    let gpt = Gpt::new(TRAINED, &VarBuilder::from_varmap(&variables, DType::F32, device))?;
    let mut optimizer = AdamW::new(in_order(&variables), ParamsAdamW { lr: 1e-4, ..Default::default() })?;
    let (mut numbers, mut checksum) = (Numbers::new(13), 0);
    for _ in 0..60 {
        let shape = (numbers.within(1, 12), numbers.within(16, 256));
        let input = random_words(&mut numbers, shape, TRAINED.words, device)?;
        let target = random_words(&mut numbers, shape, TRAINED.words, device)?.flatten_all()?;
        let logits = gpt.logits(&input, 0, None)?.flatten_to(1)?;
        let loss = cross_entropy(&logits, &target)?;
        optimizer.backward_step(&loss)?;
        checksum = add(checksum, &[loss.to_scalar::<f32>()?]);
    }
    device.synchronize()?;
    Ok(checksum)
}

/// A `HashMap` has another order in each run.
fn in_order(variables: &VarMap) -> Vec<Var> {
    let named = variables.data().lock().expect("no panic");
    let mut named: Vec<_> = named.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    named.into_iter().map(|(_, variable)| variable.clone()).collect()
}

/// Runs the job.
pub fn main() -> job::Outcome {
    let what = std::env::args().nth(1).unwrap_or_default();
    let makes_stream = std::env::args().nth(2).is_some_and(|stream| stream == "stream");
    let device = if makes_stream { Device::new_cuda_with_stream(0)? } else { Device::new_cuda(0)? };
    match what.as_str() {
        "generate" => {
            let job = Job::new("candle generate")?;
            job.run(|| {
                device.set_seed(7)?;
                let variables = VarMap::new();
                let gpt = Gpt::new(SERVED, &VarBuilder::from_varmap(&variables, DType::F32, &device))?;
                Ok(generate(&gpt, &device)?)
            })
        }
        "train" => Job::new("candle train")?.run(|| Ok(train(&device)?)),
        _ => Err("candle-… generate|train".into()),
    }
}
