//! The jobs. Sizes are those of real models; each starts with its weights and ends with all of it freed but
//! what a process keeps.

use super::job::{GeneratedJob, JobBlock};

const MIB: u64 = 1 << 20;

/// Half precision.
const HALF: u64 = 2;

/// Tokens that a language model knows.
const VOCABULARY: u64 = 32_000;

pub(super) fn lora(job: &mut GeneratedJob) {
    let (layers, width) = (job.pick(16..=40), 512 * job.pick(4..=10));
    let (rank, limit) = (8 * job.pick(1..=8), job.pick(512..=4096));
    let weights: Vec<_> = (0..layers).map(|_| job.alloc(12 * width * width * HALF)).collect();
    let adapters: Vec<_> = (0..layers * 4).map(|_| job.alloc(2 * width * rank * HALF)).collect();
    let mut moments: Vec<JobBlock> = Vec::new();
    for step in 0..30 {
        let tokens = job.pick(limit / 4..=limit) * job.pick(1..=4);
        let mut checkpoints = Vec::new();
        for _ in 0..layers {
            checkpoints.push(job.alloc(tokens * width * HALF));
            let inside = layer(job, tokens, width);
            job.free_all(inside);
        }
        let logits = job.alloc(tokens * VOCABULARY * 4);
        // There, and back to the last layer.
        job.multiply(2 * 2 * tokens * VOCABULARY * width);
        let mut gradients = Vec::new();
        while let Some(checkpoint) = checkpoints.pop() {
            // The layer's inside again, then its gradients.
            let inside = layer(job, tokens, width);
            // Of the weights, which are frozen, there are none.
            job.multiply(layer_operations(tokens, width));
            gradients.extend((0..4).map(|_| job.alloc(2 * width * rank * HALF)));
            job.free_all(inside.into_iter().rev());
            job.free(checkpoint);
        }
        job.free(logits);
        if step == 0 {
            // Adam's moments are born at the end of the first step and stay.
            moments.extend((0..layers * 8).map(|_| job.alloc(2 * width * rank * 4)));
        }
        job.free_all(gradients);
    }
    job.free_all(moments);
    job.free_all(adapters);
    job.free_all(weights);
}

/// Activations inside one transformer layer: attention and MLP.
fn layer(job: &mut GeneratedJob, tokens: u64, width: u64) -> Vec<JobBlock> {
    job.multiply(layer_operations(tokens, width));
    [3, 1, 1, 4, 4, 1].into_iter().map(|times| job.alloc(times * tokens * width * HALF)).collect()
}

/// Operations of a layer's 12 weight matrices, each `width` squared, on so many tokens: an addition and a
/// multiplication for each weight and token.
fn layer_operations(tokens: u64, width: u64) -> u64 {
    2 * 12 * width * width * tokens
}

pub(super) fn experts(job: &mut GeneratedJob) {
    let (layers, experts, width) = (job.pick(6..=16), 1 << job.pick(3..=6), 256 * job.pick(4..=8));
    let weights: Vec<_> = (0..layers * experts).map(|_| job.alloc(2 * width * width * HALF)).collect();
    for _ in 0..12 {
        let tokens = job.pick(2048..=16_384);
        let mut saved = Vec::new();
        for _ in 0..layers {
            saved.push(job.alloc(tokens * width * HALF));
            let mut left = 2 * tokens;
            for expert in 0..experts {
                let fair = 2 * left / (experts - expert);
                let share = if expert + 1 == experts { left } else { job.pick(0..=fair.min(left)) };
                left -= share;
                // An expert's two matrices, for the tokens that it gets.
                job.multiply(2 * 2 * width * width * share);
                let gathered = job.alloc(share * width * HALF);
                saved.push(job.alloc(share * 2 * width * HALF));
                saved.push(job.alloc(share * width * HALF));
                job.free(gathered);
            }
        }
        // Two gradients, each as much work as the way there: spread over the activations.
        let back = 2 * layers * 2 * 2 * width * width * 2 * tokens / saved.len() as u64;
        while let Some(activation) = saved.pop() {
            job.multiply(back);
            let gradient = job.alloc(2 * width * width * HALF);
            job.free(activation);
            job.free(gradient);
        }
    }
    job.free_all(weights);
}

pub(super) fn kv_cache(job: &mut GeneratedJob) {
    let (layers, token) = (job.pick(8..=32), 128 * job.pick(8..=32) * HALF);
    let weights: Vec<_> = (0..layers).map(|_| job.alloc(job_size(token))).collect();
    let mut requests: Vec<(u64, u64, Vec<JobBlock>)> = Vec::new();
    for _ in 0..600 {
        if requests.len() < 8 || job.pick(0..=40) == 0 {
            let (prompt, answer) = (job.pick(16..=2000), job.pick(20..=400));
            job.multiply(layers * layer_operations(prompt, token / HALF));
            let caches = (0..layers).map(|_| job.alloc(2 * prompt * token)).collect();
            requests.push((prompt, answer, caches));
        }
        let chosen = job.dice.usize(0..requests.len());
        let (length, left, caches) = &mut requests[chosen];
        *length += 1;
        *left -= 1;
        for cache in caches.iter_mut() {
            // One token has to go through all weights.
            job.read(job_size(token));
            // `torch.cat`: the longer block exists before the shorter one goes.
            let longer = job.alloc(2 * *length * token);
            let scores = job.alloc(*length * 64);
            job.free(std::mem::replace(cache, longer));
            job.free(scores);
        }
        if *left == 0 {
            let (_, _, caches) = requests.swap_remove(chosen);
            job.free_all(caches);
        }
    }
    job.free_all(requests.into_iter().flat_map(|(_, _, caches)| caches));
    job.free_all(weights);
}

/// A layer's weights, from the bytes of one token in it.
fn job_size(token: u64) -> u64 {
    let width = token / HALF;
    12 * width * width * HALF
}

pub(super) fn diffusion(job: &mut GeneratedJob) {
    let (channels, levels) = (64 * job.pick(3..=6), job.pick(3..=4));
    let weights: Vec<_> =
        (0..levels * 12).map(|at| job.alloc(9 * channels * channels * (1 << (at / 12)) * HALF)).collect();
    for _ in 0..40 {
        let (batch, side) = (job.pick(1..=8), 8 * job.pick(32..=128));
        let latent = job.alloc(batch * 4 * side * side / 64 * 4);
        let mut skips = Vec::new();
        let at = |level: u64| batch * channels * (level + 1) * (side >> level) * (side >> level) / 4 * HALF;
        for level in 0..levels {
            for _ in 0..3 {
                block(job, (at(level), channels * (level + 1)), (side >> (level + 3)).pow(2));
                skips.push(job.alloc(at(level)));
            }
        }
        for level in (0..levels).rev() {
            for _ in 0..3 {
                let Some(skip) = skips.pop() else { break };
                let joined = job.alloc(2 * at(level));
                job.free(skip);
                block(job, (at(level), channels * (level + 1)), (side >> (level + 3)).pow(2));
                job.free(joined);
            }
        }
        job.free_all(skips);
        job.free(latent);
    }
    // The decoder turns the last latent into an image, at full size.
    let image = job.alloc(512 * MIB);
    job.free(image);
    job.free_all(weights);
}

/// A residual block with attention: workspace and temporaries of `bytes`, which have so many channels.
fn block(job: &mut GeneratedJob, (bytes, channels): (u64, u64), tokens: u64) {
    // Two convolutions of 3 by 3.
    job.multiply(2 * 2 * 9 * channels * bytes / HALF);
    let workspace = job.pick(1..=64) * MIB;
    let inside = [job.alloc(bytes), job.alloc(workspace), job.alloc(bytes), job.alloc(tokens * tokens / 8)];
    job.free_all(inside);
}

pub(super) fn never_repeats(job: &mut GeneratedJob) {
    let base = job.alloc(job_size(4096));
    let mut stack: Vec<JobBlock> = Vec::new();
    for _ in 0..6000 {
        let deep = stack.len() as u64;
        if job.pick(0..=40) > deep {
            // As many blocks of each order of magnitude.
            let order = job.pick(9..=29);
            let size = job.pick(1 << order..=2 << order);
            stack.push(job.alloc(size));
        } else if let Some(held) = stack.pop() {
            job.free(held);
        }
    }
    job.free_all(stack);
    job.free(base);
}

pub(super) fn long_among_short(job: &mut GeneratedJob) {
    let one_in = job.pick(20..=200);
    let mut stay = Vec::new();
    let mut short: Vec<JobBlock> = Vec::new();
    for _ in 0..8000 {
        let order = job.pick(12..=27);
        let size = job.pick(1 << order..=2 << order);
        let held = job.alloc(size);
        if job.pick(1..=one_in) == 1 {
            stay.push(held);
        } else {
            short.push(held);
        }
        if short.len() > 48 {
            let at = job.dice.usize(0..short.len());
            let held = short.swap_remove(at);
            job.free(held);
        }
        if stay.len() > 60 {
            let at = job.dice.usize(0..stay.len());
            let held = stay.swap_remove(at);
            job.free(held);
        }
    }
    job.free_all(short);
    job.free_all(stay);
}

pub(super) fn pipeline(job: &mut GeneratedJob) {
    let streams = job.pick(2..=6);
    let weights: Vec<_> = (0..streams).map(|stream| job.alloc_on(stream, 256 * MIB)).collect();
    let mut under_way: std::collections::VecDeque<JobBlock> = Default::default();
    for batch in 0..1500 {
        let stream = batch % streams;
        let rows = job.pick(1000..=60_000);
        let input = job.alloc_on(streams, rows * 1024);
        let inside = [job.alloc_on(stream, rows * 4096), job.alloc_on(stream, rows * 2048)];
        let output = job.alloc_on(stream, rows * 512);
        job.free_all(inside);
        // Other streams use input and output for a while: their frees complete some batches later.
        under_way.extend([input, output]);
        while under_way.len() > 40 {
            let Some(held) = under_way.pop_front() else { break };
            job.free(held);
        }
    }
    job.free_all(under_way);
    job.free_all(weights);
}
