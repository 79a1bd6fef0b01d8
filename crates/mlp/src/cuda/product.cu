// A product of few rows, for GPUs with clusters: out[m, n] = sum over k of left[m, k] * right[k, n], or * right[n, k] if RT.
// Then out = max(0, out) if `relu`, and 0 where `mask` is not above 0.
//
// 64 rows keep few of a GPU's multiprocessors busy, so sums are cut into many parts. A block has 64 rows, BN columns, and
// its part of the sums, which arrives in stages and is multiplied meanwhile. SPLIT blocks of a cluster have a part each, and
// so have the two halves of a block's threads. They are added up in a fixed order, in each other's shared memory. N and K
// are multiples of four.
//
// The same launch does steps of SGD of other layers, by blocks beside those of the product.

// One step of SGD of a layer, w += factor * xT dy, by blocks from `first` on.
struct Descent {
    float* w;
    const float* x;
    const float* dy;
    unsigned inputs;
    unsigned outputs;
    unsigned first;
};

// out = left right, or left rightT where mask is above 0.
struct Product {
    float* out;
    const float* left;
    const float* right;
    const float* mask;
    unsigned rows;
    unsigned cols;
    unsigned inner;
    // 1: max(0, out). 2: the right factor is not written by what comes just before.
    unsigned flags;
    unsigned tiles;
};

// What other blocks do beside a product. The last of them adds up the scores of `head`, if there are any.
struct Beside {
    Descent descents[MOST_DESCENTS];
    double* totals;
    const float* scores;
    unsigned count;
    unsigned blocks;
    unsigned images;
    float factor;
};

#if __CUDA_ARCH__ >= 900
#define THREADS 256
// Numbers of a stage, and four times as many at once.
#define STAGE (QUADS * 4)
// Rows of a factor whose sums go along them: an odd number of float4, so that rows are in different banks.
#define PITCH (STAGES * QUADS + 1)
// Rows of a block of weights, likewise.
#define SIDE_PITCH (SIDE + 8)

__device__ __forceinline__ void copy16(const float4* to, const float* from, bool is_there) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All stages but the last LEFT are there.
template <int LEFT>
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
    __syncthreads();
}

__device__ __forceinline__ float4 of_rank(const float4* at, unsigned rank) {
    unsigned mine = (unsigned)__cvta_generic_to_shared(at), theirs;
    float4 value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(theirs)
                 : "memory");
    return value;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ unsigned tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// sums += a b, of 16 x 8 and 8 x 8.
__device__ __forceinline__ void multiply_add(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A block's part of a product. Half of the threads take every other float4 of the sums, or every other eight numbers.
// In float32 a thread has 4 rows and 8 columns; in TF32 a warp has 16 rows and all columns.
template <int BN, bool RT, bool TF32>
struct Tile {
    static constexpr int ROW = BN / 4;
    const float4* left;
    const float4* right;
    float sums[TF32 ? BN / 2 : 32];
    unsigned half = threadIdx.x / 128, lane = threadIdx.x % 32, m, n;

    __device__ __forceinline__ Tile(const float4* shared) : left(shared), right(shared + 64 * PITCH) {
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
        m = TF32 ? threadIdx.x / 32 % 4 * 16 + lane / 4 : threadIdx.x % 128 / 8;
        n = TF32 ? lane % 4 : lane % 8;
    }

    // Sends a stage of the right factor on its way: `first` is the part's first float4, `quads` how many it has.
    __device__ __forceinline__ void load_right(int stage, const float* b, unsigned first, unsigned quads, unsigned n0,
                                               unsigned N, unsigned K) const {
        if (RT) {
            unsigned q = stage * QUADS + threadIdx.x % QUADS;
            for (unsigned row = threadIdx.x / QUADS; row < BN; row += THREADS / QUADS)
                copy16(&right[row * PITCH + q], b + (size_t)(n0 + row) * K + (first + q) * 4, q < quads && n0 + row < N);
        } else {
            for (unsigned i = threadIdx.x; i < STAGE * ROW; i += THREADS) {
                unsigned k = stage * STAGE + i / ROW, column = n0 + i % ROW * 4;
                copy16(&right[stage * STAGE * ROW + i], b + (size_t)(first * 4 + k) * N + column, k < quads * 4 && column < N);
            }
        }
    }

    __device__ __forceinline__ void load_left(int stage, const float* a, unsigned first, unsigned quads, unsigned m0,
                                              unsigned M, unsigned K) const {
        unsigned q = stage * QUADS + threadIdx.x % QUADS;
        for (unsigned row = threadIdx.x / QUADS; row < 64; row += THREADS / QUADS)
            copy16(&left[row * PITCH + q], a + (size_t)(m0 + row) * K + (first + q) * 4, q < quads && m0 + row < M);
    }

    __device__ __forceinline__ void multiply(int stage, unsigned quads) {
        unsigned begin = stage * QUADS, end = min(quads, begin + QUADS);
        if constexpr (TF32) {
            const float *x = reinterpret_cast<const float*>(left) + m * PITCH * 4 + n, *y = reinterpret_cast<const float*>(right);
            for (unsigned k = begin * 4 + 8 * half; k < end * 4; k += 16) {
                const unsigned a[4] = {tf32(x[k]), tf32(x[8 * PITCH * 4 + k]), tf32(x[k + 4]), tf32(x[8 * PITCH * 4 + k + 4])};
#pragma unroll
                for (int j = 0; j < BN; j += 8) {
                    const float* b = RT ? y + (j + lane / 4) * PITCH * 4 + k + n : y + (k + n) * BN + j + lane / 4;
                    multiply_add(sums + j / 2, a, tf32(b[0]), tf32(b[RT ? 4 : 4 * BN]));
                }
            }
        } else {
            for (unsigned q = begin + half; q < end; q += 2) {
                float4 x[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) x[i] = left[(m + 16 * i) * PITCH + q];
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    if (RT) {
                        float4 y = right[(n + 8 * j) * PITCH + q];
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            float& sum = sums[8 * i + j];
                            sum = fmaf(x[i].w, y.w, fmaf(x[i].z, y.z, fmaf(x[i].y, y.y, fmaf(x[i].x, y.x, sum))));
                        }
                    } else {
                        // Four columns for one of the four numbers.
                        int k = j / 2, to = j % 2 * 4;
                        float4 y = right[(4 * q + k) * ROW + to * 2 + n];
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            float value = k == 0 ? x[i].x : k == 1 ? x[i].y : k == 2 ? x[i].z : x[i].w;
                            float* sum = sums + 8 * i + to;
                            sum[0] = fmaf(value, y.x, sum[0]);
                            sum[1] = fmaf(value, y.y, sum[1]);
                            sum[2] = fmaf(value, y.z, sum[2]);
                            sum[3] = fmaf(value, y.w, sum[3]);
                        }
                    }
                }
            }
        }
    }

    // Calls `with` for each sum of this thread, with its place in the block.
    template <class F>
    __device__ __forceinline__ void each(F with) {
        if constexpr (TF32) {
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) with(sums[i], (m + i % 4 / 2 * 8) * BN + i / 4 * 8 + 2 * n + i % 2);
        } else {
#pragma unroll
            for (int i = 0; i < 32; ++i)
                with(sums[i], (m + i / 8 * 16) * BN + (RT ? n + i % 8 * 8 : i % 8 / 4 * 32 + 4 * n + i % 4));
        }
    }
};

template <int BN, bool RT, bool TF32>
__device__ __forceinline__ void product(const Product& of, unsigned number) {
    extern __shared__ float4 shared[];
    Tile<BN, RT, TF32> tile(shared);
    const float *a = of.left, *b = of.right, *mask = of.mask;
    unsigned M = of.rows, N = of.cols, K = of.inner;
    bool relu = of.flags & 1, is_early = of.flags & 2;
    unsigned rank = blockIdx.x, across = (N + BN - 1) / BN;
    unsigned n0 = number % across * BN, m0 = number / across * 64;
    unsigned all = K / 4, each = (all + SPLIT - 1) / SPLIT;
    each += each % 2;
    unsigned first = min(rank * each, all), quads = min(each, all - first);
    // The weights may be loaded while what comes before still runs, unless that writes them.
    if (is_early)
        for (int stage = 0; stage < STAGES; ++stage) tile.load_right(stage, b, first, quads, n0, N, K);
    follow();
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        if (!is_early) tile.load_right(stage, b, first, quads, n0, N, K);
        tile.load_left(stage, a, first, quads, m0, M, K);
        end_stage();
    }
    // What this thread adds up in the end: four results.
    constexpr unsigned SHARE = 64 * BN / 4 / SPLIT;
    unsigned share = rank * SHARE + threadIdx.x, row = m0 + share / (BN / 4), column = n0 + share % (BN / 4) * 4;
    size_t at = (size_t)row * N + column;
    bool has = threadIdx.x < SHARE && row < M && column < N;
    float4 gate = mask && has ? *reinterpret_cast<const float4*>(mask + at) : float4{1.0f, 1.0f, 1.0f, 1.0f};
    static_assert(STAGES == 4);
    arrived<3>();
    tile.multiply(0, quads);
    arrived<2>();
    tile.multiply(1, quads);
    arrived<1>();
    tile.multiply(2, quads);
    arrived<0>();
    tile.multiply(3, quads);
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);
    if (tile.half == 1) tile.each([=](float sum, unsigned at) { sums[at] = sum; });
    __syncthreads();
    if (tile.half == 0) tile.each([=](float sum, unsigned at) { sums[at] += sum; });
    cluster_barrier();
    if (has) {
        float4 sum = of_rank(shared + share, 0);
#pragma unroll
        for (unsigned from = 1; from < SPLIT; ++from) {
            float4 part = of_rank(shared + share, from);
            sum = float4{sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
        }
        auto result = [=](float sum, float gate) { return gate > 0.0f && !(relu && sum < 0.0f) ? sum : 0.0f; };
        sum = float4{result(sum.x, gate.x), result(sum.y, gate.y), result(sum.z, gate.z), result(sum.w, gate.w)};
        *reinterpret_cast<float4*>(of.out + at) = sum;
    }
    // The sums are read by others until here.
    cluster_barrier();
}

// A block of SIDE x SIDE weights. Inputs and outputs are multiples of four.
template <bool TF32>
__device__ __forceinline__ void descend(const Descent& of, unsigned M, float factor, unsigned i0, unsigned j0) {
    extern __shared__ float4 shared[];
    float *xs = reinterpret_cast<float*>(shared), *ys = xs + SIDE * SIDE_PITCH;
    unsigned I = of.inputs, J = of.outputs, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // In float32 a thread has 4 x 4 weights, and in TF32 a warp 16 x 32: of a thread's 16, pairs lie beside each other.
    unsigned i = TF32 ? warp % 4 * 16 + lane / 4 : (lane % 8 + 8 * (warp % 2)) * 4;
    unsigned j = TF32 ? warp / 4 * 32 + lane % 4 * 2 : (lane / 8 + 4 * (warp / 2)) * 4;
    auto place = [=](int pair) {
        unsigned row = i0 + i + (TF32 ? pair % 2 * 8 : pair / 2), column = j0 + j + (TF32 ? pair / 2 * 8 : pair % 2 * 2);
        return row < I && column < J ? reinterpret_cast<float2*>(of.w + (size_t)row * J + column) : nullptr;
    };
    float sums[16] = {};
    float2 weights[8];
    for (unsigned m0 = 0; m0 < M; m0 += 64) {
        if (m0 > 0) __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            for (unsigned c = threadIdx.x; c < 32 * (SIDE / 4); c += THREADS) {
                unsigned row = half * 32 + c / (SIDE / 4), q = c % (SIDE / 4) * 4;
                bool has = m0 + row < M;
                float4 *x = reinterpret_cast<float4*>(xs + row * SIDE_PITCH + q), *y = reinterpret_cast<float4*>(ys + row * SIDE_PITCH + q);
                copy16(x, of.x + (size_t)(m0 + row) * I + i0 + q, has && i0 + q < I);
                copy16(y, of.dy + (size_t)(m0 + row) * J + j0 + q, has && j0 + q < J);
            }
            end_stage();
        }
        if (m0 == 0)
#pragma unroll
            for (int pair = 0; pair < 8; ++pair) {
                const float2* at = place(pair);
                weights[pair] = at ? *at : float2{0.0f, 0.0f};
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 0) arrived<1>();
            else arrived<0>();
            if constexpr (TF32) {
#pragma unroll
                for (int k = half * 32; k < half * 32 + 32; k += 8) {
                    const float *x = xs + (k + lane % 4) * SIDE_PITCH + i, *y = ys + (k + lane % 4) * SIDE_PITCH + warp / 4 * 32 + lane / 4;
                    const unsigned a[4] = {tf32(x[0]), tf32(x[8]), tf32(x[4 * SIDE_PITCH]), tf32(x[4 * SIDE_PITCH + 8])};
#pragma unroll
                    for (int n = 0; n < 4; ++n) multiply_add(sums + 4 * n, a, tf32(y[8 * n]), tf32(y[4 * SIDE_PITCH + 8 * n]));
                }
            } else {
#pragma unroll 8
                for (int k = half * 32; k < half * 32 + 32; ++k) {
                    float4 x = *reinterpret_cast<const float4*>(xs + k * SIDE_PITCH + i);
                    float4 y = *reinterpret_cast<const float4*>(ys + k * SIDE_PITCH + j);
                    const float a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        sums[4 * r] = fmaf(a[r], y.x, sums[4 * r]);
                        sums[4 * r + 1] = fmaf(a[r], y.y, sums[4 * r + 1]);
                        sums[4 * r + 2] = fmaf(a[r], y.z, sums[4 * r + 2]);
                        sums[4 * r + 3] = fmaf(a[r], y.w, sums[4 * r + 3]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int pair = 0; pair < 8; ++pair)
        if (float2* at = place(pair))
            *at = float2{weights[pair].x + factor * sums[2 * pair], weights[pair].y + factor * sums[2 * pair + 1]};
}

// As descend, for the few outputs of the head: 64 rows of the weights. Each thread has a row, and some of the outputs.
__device__ __forceinline__ void descend_head(const Descent& of, unsigned M, float factor, unsigned i0) {
    unsigned i = i0 + threadIdx.x % SIDE;
    if (i >= of.inputs) return;
    for (unsigned j = threadIdx.x / SIDE; j < of.outputs; j += blockDim.x / SIDE) {
        float sum = 0.0f;
#pragma unroll 8
        for (unsigned m = 0; m < M; ++m) sum = fmaf(of.x[(size_t)m * of.inputs + i], of.dy[m * of.outputs + j], sum);
        of.w[(size_t)i * of.outputs + j] += factor * sum;
    }
}

// Adds up losses and hits, in an order that is always the same.
__device__ __forceinline__ void add_up(double* totals, const float* scores, unsigned count) {
    extern __shared__ float4 shared[];
    double(*sums)[THREADS] = reinterpret_cast<double(*)[THREADS]>(shared);
    for (unsigned of = 0; of < 2; ++of) {
        double sum = 0.0;
        for (unsigned row = threadIdx.x; row < count; row += blockDim.x) sum += (double)scores[2 * row + of];
        sums[of][threadIdx.x] = sum;
    }
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            for (unsigned of = 0; of < 2; ++of) sums[of][threadIdx.x] += sums[of][threadIdx.x + half];
    }
    if (threadIdx.x < 2) totals[threadIdx.x] += sums[threadIdx.x][0];
}

template <bool TF32>
__device__ __forceinline__ void beside_a_product(const Beside& beside, unsigned block) {
    if (block >= beside.blocks) {
        if (block == beside.blocks && beside.scores) add_up(beside.totals, beside.scores, beside.images);
        return;
    }
    unsigned at = 0;
    while (at + 1 < beside.count && block >= beside.descents[at + 1].first) ++at;
    const Descent& of = beside.descents[at];
    block -= of.first;
    if (of.outputs % 4 != 0) return descend_head(of, beside.images, beside.factor, block * SIDE);
    unsigned across = (of.outputs + SIDE - 1) / SIDE;
    descend<TF32>(of, beside.images, beside.factor, block / across * SIDE, block % across * SIDE);
}

#define PRODUCT(name, BN, RT, TF32)                                                                                      \
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS, 3)                               \
        name(const __grid_constant__ Product of, const __grid_constant__ Beside beside) {                                \
        if (blockIdx.y < of.tiles) return product<BN, RT, TF32>(of, blockIdx.y);                                         \
        follow();                                                                                                        \
        beside_a_product<TF32>(beside, (blockIdx.y - of.tiles) * SPLIT + blockIdx.x);                                    \
    }
#else
#define PRODUCT(name, BN, RT, TF32) extern "C" __global__ void name() {}
#endif

PRODUCT(product, COLUMNS, false, false)
PRODUCT(product_transposed, COLUMNS, true, false)
PRODUCT(product_tf32, COLUMNS_TF32, false, true)
PRODUCT(product_tf32_transposed, COLUMNS_TF32, true, true)
