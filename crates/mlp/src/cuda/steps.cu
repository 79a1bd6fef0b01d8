// Steps of SGD of a whole network in one kernel: `block.cu` says how. Here is what a block does for its weights, the head and its
// loss, and the kernel.

#if __CUDA_ARCH__ >= 900
// Where the copy of a layer has weights of a row that this block owns: from a column on, which may be moved by eight.
struct Copied {
    Number* row;
    unsigned column, part, pitch;

    __device__ __forceinline__ Copied(const Block& block, unsigned layer, unsigned i, unsigned j)
        : part(block.of.part[1]), pitch(block.of.pitch[1]) {
        unsigned number = block.first(layer) + i, of_all = block.tile * COLUMNS + j;
        row =
            block.of.copies[layer] + ((size_t)(number / COLUMNS * SPLIT + of_all / part) * COLUMNS + number % COLUMNS) * pitch;
        column = of_all % part;
    }

    __device__ __forceinline__ Number* at() const { return row + column; }

    // A part has at least eight numbers where this is called.
    __device__ __forceinline__ void move() {
        column += 8;
        if (column >= part) column -= part, row += COLUMNS * pitch;
    }
};

// Takes the weights that this block owns, or gives them back.
template <bool TAKES>
__device__ __forceinline__ void move_weights(const Block& block) {
    const Steps& of = block.of;
    for (unsigned layer = 0; layer < of.hidden && block.has_tile(); ++layer)
        for (unsigned c = threadIdx.x; c < block.count(layer) * (COLUMNS / 4); c += THREADS) {
            unsigned i = c / (COLUMNS / 4), j = c % (COLUMNS / 4) * 4;
            if (j >= block.columns()) continue;
            float4* here = reinterpret_cast<float4*>(block.weights_of(layer) + i * WEIGHTS_PITCH + j);
            float4* there = reinterpret_cast<float4*>(of.weights[layer] + (size_t)(block.first(layer) + i) * of.width +
                                                      block.tile * COLUMNS + j);
            if (!TAKES)
                *there = *here;
            else
                *here = *there;
            if (TAKES && PRECISION == 2) store(block.factor_of(layer) + i * COLUMNS + j, *here);
            if (TAKES && layer > 0) store(Copied(block, layer, i, j).at(), *here);
        }
}

// A step of SGD of this block's weights of a layer: w += factor xT dy. Both factors are there.
__device__ __forceinline__ void update(const Block& block, unsigned layer) {
    const Steps& of = block.of;
    unsigned xs = address(block.xs), ys = address(block.ys);
    float* w = block.weights_of(layer);
    unsigned pitch = block.pitch_of(layer), count = block.count(layer), end = (of.images + UNIT - 1) / UNIT * UNIT;
    if (PRECISION && of.images < end) {
        for (unsigned c = threadIdx.x; c < (end - of.images) * pitch; c += THREADS) block.xs[of.images * pitch + c] = 0;
        for (unsigned c = threadIdx.x; c < (end - of.images) * COLUMNS; c += THREADS) block.ys[of.images * COLUMNS + c] = 0;
        __syncthreads();
    }
#if PRECISION
    unsigned lane = threadIdx.x % 32, i = threadIdx.x / 32 * 16 + lane / 4, t = lane % 4;
    if (i - lane / 4 >= count) return;
    float sums[COLUMNS / 2] = {};
#pragma unroll 4
    for (unsigned k = 0; k < end; k += UNIT) {
#if PRECISION == 2
        unsigned a[4], b[4], below = k + lane / 8 % 2 * 8 + lane % 8;
        load_matrices<true>(a, xs + ((k + lane / 16 * 8 + lane % 8) * pitch + i - lane / 4 + lane / 8 % 2 * 8) * 2);
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 16) {
            load_matrices<true>(b, ys + (below * COLUMNS + j + (j + 8 < COLUMNS ? lane / 16 * 8 : 0)) * 2);
            multiply_add(sums + j / 2, a, b);
            if (j + 8 < COLUMNS) multiply_add(sums + j / 2 + 4, a, b + 2);
        }
#else
        unsigned at = xs + ((k + t) * pitch + i) * 4, below = at + 16 * pitch;
        const float2 a[2] = {float2{load(at), load(below)}, float2{load(at + 32), load(below + 32)}};
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 8) {
            unsigned of = ys + ((k + t) * COLUMNS + j + lane / 4) * 4;
            multiply_add(sums + j / 2, a, float2{load(of), load(of + 16 * COLUMNS)});
        }
#endif
    }
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        unsigned row = i + 8 * below;
        if (row >= count) continue;
        Copied copied(block, layer, row, 2 * t);
        float2* at = reinterpret_cast<float2*>(w + row * WEIGHTS_PITCH + 2 * t);
        float2 now[COLUMNS / 8];
        // All before the first is written: the compiler cannot know that none is in the copy.
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
            const float* sum = sums + 4 * j + 2 * below;
            now[j] = float2{at[4 * j].x + of.factor * sum[0], at[4 * j].y + of.factor * sum[1]};
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
            if (8 * j + 2 * t >= block.columns()) continue;
            at[4 * j] = now[j];
            if (PRECISION == 2) store(block.factor_of(layer) + row * COLUMNS + 8 * j + 2 * t, now[j]);
            if (layer > 0) store(copied.at(), now[j]);
            copied.move();
        }
    }
#else
    // A thread has twice four rows, and four columns.
    constexpr unsigned HALF = 52;
    unsigned i = threadIdx.x / (COLUMNS / 4) * 4, j = threadIdx.x % (COLUMNS / 4) * 4;
    if (i >= HALF) return;
    float sums[32] = {};
#pragma unroll 4
    for (unsigned k = 0; k < of.images; ++k) {
        float4 y = load4(ys + (k * COLUMNS + j) * 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float4 x = load4(xs + (k * pitch + i + half * HALF) * 4);
            const float a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                float* sum = sums + 16 * half + 4 * r;
                sum[0] = fmaf(a[r], y.x, sum[0]);
                sum[1] = fmaf(a[r], y.y, sum[1]);
                sum[2] = fmaf(a[r], y.z, sum[2]);
                sum[3] = fmaf(a[r], y.w, sum[3]);
            }
        }
    }
    if (j >= block.columns()) return;
    float4 now[8];
#pragma unroll
    for (int number = 0; number < 8; ++number) {
        const float* sum = sums + 4 * number;
        unsigned row = i + number / 4 * HALF + number % 4;
        float4 of_row = row < count ? *reinterpret_cast<const float4*>(w + row * WEIGHTS_PITCH + j) : float4{};
        now[number] = float4{of_row.x + of.factor * sum[0], of_row.y + of.factor * sum[1], of_row.z + of.factor * sum[2],
                             of_row.w + of.factor * sum[3]};
    }
#pragma unroll
    for (int number = 0; number < 8; ++number) {
        unsigned row = i + number / 4 * HALF + number % 4;
        if (row >= count) continue;
        *reinterpret_cast<float4*>(w + row * WEIGHTS_PITCH + j) = now[number];
        if (layer > 0) store(Copied(block, layer, row, j).at(), now[number]);
    }
#endif
}

// As above, of this block's part of the head, whose weights nobody keeps.
__device__ __forceinline__ void update_head(Block& block) {
    const Steps& of = block.of;
    const float* dy = reinterpret_cast<const float*>(of.gradients[of.hidden]);
    float* dys = reinterpret_cast<float*>(block.ys);
    unsigned count = block.count(of.hidden), half = threadIdx.x / (THREADS / 2), i = threadIdx.x % (THREADS / 2);
    constexpr unsigned EACH = CLASSES / 2;
    block.load_xs(of.inputs[of.hidden], of.hidden);
    for (unsigned c = threadIdx.x; c < of.images * CLASSES; c += THREADS) dys[c] = dy[c];
    arrived<0>();
    __syncthreads();
    if (i >= count) return;
    float sums[EACH] = {};
#pragma unroll 8
    for (unsigned m = 0; m < of.images; ++m) {
        float x = value(block.xs[m * of.pitch[1] + i]);
#pragma unroll
        for (unsigned c = 0; c < EACH; ++c) sums[c] = fmaf(x, dys[m * CLASSES + half * EACH + c], sums[c]);
    }
    float* w = of.weights[of.hidden] + (size_t)(block.first(of.hidden) + i) * CLASSES + half * EACH;
#pragma unroll
    for (unsigned c = 0; c < EACH; ++c) w[c] += of.factor * sums[c];
}

// Adds up losses and hits in an order that is always the same, by a warp.
__device__ __forceinline__ void add_up(const Steps& of) {
    double loss = 0.0, hits = 0.0;
    for (unsigned image = threadIdx.x; image < of.images; image += 32)
        loss += (double)of.scores[2 * image], hits += (double)of.scores[2 * image + 1];
    for (unsigned to = 16; to > 0; to /= 2) loss += __shfl_xor_sync(~0u, loss, to), hits += __shfl_xor_sync(~0u, hits, to);
    if (threadIdx.x == 0) of.totals[0] += loss, of.totals[1] += hits;
}

// The head, its loss and its gradients, of an image: dy = (softmax(x w) - onehot(label)) / images, dx = dy wT where x > 0.
struct Head {
    static constexpr unsigned EACH = 4;
    float2 w[EACH][CLASSES / 2];
    unsigned place[EACH];

    __device__ __forceinline__ explicit Head(const Steps& of) {
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number) {
            unsigned i = threadIdx.x + number * THREADS;
            place[number] = i / of.part[1] * 64 * of.pitch[1] + i % of.part[1];
        }
    }

    __device__ __forceinline__ void load(const Steps& of) {
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number) {
            unsigned i = threadIdx.x + number * THREADS;
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c)
                w[number][c] =
                    i < of.width ? reinterpret_cast<const float2*>(of.weights[of.hidden] + (size_t)i * CLASSES)[c] : float2{};
        }
    }

    __device__ __forceinline__ void run(const Block& block, unsigned image, unsigned label) {
        const Steps& of = block.of;
        float *sums = block.received, *gradient = sums + THREADS / 32 * CLASSES;
        const Number* x = of.inputs[of.hidden] + image * of.pitch[1];
        float z[CLASSES] = {}, xs[EACH];
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number)
            xs[number] = threadIdx.x + number * THREADS < of.width ? value(x[place[number]]) : 0.0f;
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number)
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c) {
                z[2 * c] = fmaf(xs[number], w[number][c].x, z[2 * c]);
                z[2 * c + 1] = fmaf(xs[number], w[number][c].y, z[2 * c + 1]);
            }
        // Each half of the lanes adds up half of the classes.
        unsigned lane = threadIdx.x % 32;
        float half[CLASSES / 2];
#pragma unroll
        for (unsigned c = 0; c < CLASSES / 2; ++c) {
            float mine = lane < 16 ? z[c] : z[c + CLASSES / 2], theirs = lane < 16 ? z[c + CLASSES / 2] : z[c];
            half[c] = mine + __shfl_xor_sync(~0u, theirs, 16);
        }
#pragma unroll
        for (unsigned c = 0; c < CLASSES / 2; ++c)
#pragma unroll
            for (unsigned to = 8; to > 0; to /= 2) half[c] += __shfl_xor_sync(~0u, half[c], to);
        if (lane % 16 == 0)
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c)
                sums[threadIdx.x / 32 * CLASSES + lane / 16 * (CLASSES / 2) + c] = half[c];
        __syncthreads();
        if (threadIdx.x < 32) {
            // A lane has one logit. Subtracting the largest keeps exp from overflowing.
            float logit = 0.0f;
            if (lane < CLASSES)
                for (unsigned warp = 0; warp < THREADS / 32; ++warp) logit += sums[warp * CLASSES + lane];
            float top = __shfl_sync(~0u, logit, lane < CLASSES ? lane : 0);
            for (unsigned to = 16; to > 0; to /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, to));
            float exponential = lane < CLASSES ? expf(logit - top) : 0.0f;
            float sum = exponential;
            for (unsigned to = 16; to > 0; to /= 2) sum += __shfl_xor_sync(~0u, sum, to);
            float wanted = __shfl_sync(~0u, logit, label);
            unsigned best = __ffs(__ballot_sync(~0u, lane < CLASSES && logit == top)) - 1;
            if (lane < CLASSES) {
                float d = (exponential / sum - (lane == label ? 1.0f : 0.0f)) / (float)of.images;
                gradient[lane] = d;
                reinterpret_cast<float*>(of.gradients[of.hidden])[image * CLASSES + lane] = d;
            }
            if (lane == 0) {
                of.scores[2 * image] = logf(sum) + top - wanted;
                of.scores[2 * image + 1] = best == label ? 1.0f : 0.0f;
            }
        }
        __syncthreads();
        Number *dx = of.gradients[of.hidden - 1], *by_tiles = dx + SPLIT * 64 * of.pitch[1];
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number) {
            unsigned i = threadIdx.x + number * THREADS;
            if (i >= of.width) continue;
            float d = 0.0f;
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c)
                d += gradient[2 * c] * w[number][c].x + gradient[2 * c + 1] * w[number][c].y;
            d = xs[number] > 0.0f ? d : 0.0f;
            dx[place[number] + image * of.pitch[1]] = ::number(d);
            by_tiles[i / COLUMNS * SUMS + image * COLUMNS + i % COLUMNS] = ::number(d);
        }
    }
};

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS, 1) steps(const __grid_constant__ Steps of) {
    Block block(of);
    Barrier barrier{of.arrived, 0};
    unsigned number = blockIdx.y * SPLIT + blockIdx.x, hidden = of.hidden;
    bool has_tile = block.has_tile();
    Head head(of);
    Parts::begin();
    move_weights<true>(block);
    cluster_barrier();
    if (has_tile) block.load_left(block.images(0), 0);
    for (unsigned step = 0; step < of.steps; ++step) {
        for (unsigned layer = 0; layer < hidden; ++layer) {
            // One cluster has updated the head.
            if (layer > 0) block.wait(barrier, block.tiles);
            if (has_tile) {
                if (layer > 0) block.load_left(of.inputs[layer], layer);
                if (layer == 1)
                    block.load_right(hidden - 1);
                else
                    end_copies();
                product<false>(block, layer, block.factor_of(layer), nullptr, of.inputs[layer + 1], [] {});
                // Others write there once this block has arrived.
                arrived<0>();
            }
            barrier.arrive();
        }
        {
            unsigned label = 0;
            if (number < of.images) {
                head.load(of);
                label = of.rows[((size_t)step * of.images + number) * (of.pixels + 1) + of.pixels];
            }
            if (has_tile) block.load_xs(of.inputs[hidden - 1], hidden - 1);
            barrier.wait_for_all();
            if (number < of.images) head.run(block, number, label);
            barrier.arrive();
        }
        for (unsigned layer = hidden - 1; layer > 0; --layer) {
            if (layer == hidden - 1)
                barrier.wait_for_all();
            else
                block.wait(barrier, block.tile);
            if (has_tile) {
                block.load_left(of.gradients[layer], layer);
                block.load_ys(layer);
                auto load_next = [&] {
                    if (layer > 1) block.load_right(layer - 1);
                };
                product<true>(block, layer, block.right, of.inputs[layer], of.gradients[layer - 1], load_next);
                // Others write there once this block has arrived.
                arrived<0>();
            }
            barrier.arrive();
            if (has_tile) {
                if (layer == 1 && step + 1 < of.steps) block.load_left(block.images(step + 1), 0);
                update(block, layer);
                __syncthreads();
                block.load_xs(layer > 1 ? of.inputs[layer - 1] : block.images(step), layer - 1);
            }
            if (layer == hidden - 1 && block.tile == block.tiles) {
                update_head(block);
                if (block.rank == 0 && threadIdx.x < 32) add_up(of);
            }
        }
        // So that no block writes what layers read before others have read it for their updates.
        barrier.wait_for_all();
        if (has_tile) {
            block.load_ys(0);
            arrived<0>();
            __syncthreads();
            update(block, 0);
        }
        __syncthreads();
    }
    move_weights<false>(block);
}
#else
extern "C" __global__ void steps() {}
#endif
