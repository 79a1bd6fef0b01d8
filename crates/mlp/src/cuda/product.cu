// A product of few rows, for GPUs with clusters: out[m, n] = sum over k of left[m, k] * right[k, n], or * right[n, k] if RT.
// Then out = max(0, out) if `relu`, and 0 where `mask` is not above 0.
//
// 64 rows keep few of a GPU's multiprocessors busy, so sums are cut into many parts. A block has 64 rows, BN columns, and
// its part of the sums: all of that is loaded at once, and multiplied as it arrives. SPLIT blocks of a cluster have a part
// each, and so have GROUPS of threads in it (PARTS below). They are added up in a fixed order, in each other's shared memory.
// N and K are multiples of four.
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
// A part of a sum is at most STAGES * QUADS * 4 long. An odd pitch keeps rows in different banks.
#define PITCH (STAGES * QUADS + 1)
// So it does with rows of a block of weights.
#define SIDE_PITCH (SIDE + 8)

__device__ __forceinline__ void copy16(const float4* to, const void* from, bool is_there) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

__device__ __forceinline__ float of_rank(const float* at, unsigned rank) {
    unsigned mine = (unsigned)__cvta_generic_to_shared(at), theirs;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs) : "memory");
    return value;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int LEFT>
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
    __syncthreads();
}

__device__ __forceinline__ unsigned tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

template <int BN, int PARTS, bool RT, bool TF32>
struct Tile {
    static constexpr int THREADS = (TF32 ? 128 : 16 * (BN / 4)) * PARTS;
    static constexpr int FOURS = 64 * PITCH + (RT ? BN * PITCH : STAGES * QUADS * 4 * (BN / 4));
    float4* left;
    float4* right;
    float sums[TF32 ? BN / 8 * 4 : 16];

    // Sends the right factor's part on its way.
    __device__ __forceinline__ void load_right(const float* b, unsigned first, unsigned quads, unsigned n0, unsigned N,
                                               unsigned K) {
        if (RT) {
            unsigned q = threadIdx.x % 8;
            for (unsigned at = q; q < QUADS && at < STAGES * QUADS; at += QUADS)
                for (unsigned row = threadIdx.x / 8; row < BN; row += THREADS / 8)
                    copy16(&right[row * PITCH + at], b + (size_t)(n0 + row) * K + (first + at) * 4, at < quads && n0 + row < N);
        } else {
            for (unsigned i = threadIdx.x; i < STAGES * QUADS * 4 * (BN / 4); i += THREADS) {
                unsigned k = i / (BN / 4), n = i % (BN / 4) * 4;
                copy16(&right[i], b + (size_t)(first * 4 + k) * N + n0 + n, k < quads * 4 && n0 + n < N);
            }
        }
    }

    // Sends stage `s` of the left factor's part on its way.
    __device__ __forceinline__ void load_left(int s, const float* a, unsigned first, unsigned quads, unsigned m0, unsigned M,
                                              unsigned K) {
        unsigned q = threadIdx.x % 8, at = s * QUADS + q;
        if (q < QUADS)
            for (unsigned row = threadIdx.x / 8; row < 64; row += THREADS / 8)
                copy16(&left[row * PITCH + at], a + (size_t)(m0 + row) * K + (first + at) * 4, at < quads && m0 + row < M);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    __device__ __forceinline__ void add(int s, unsigned quads) {
        unsigned end = min(quads, (unsigned)((s + 1) * QUADS));
        if constexpr (!TF32) {
            unsigned group = threadIdx.x / (16 * (BN / 4)), t = threadIdx.x % (16 * (BN / 4));
            unsigned ng = t % (BN / 4), mg = t / (BN / 4);
            for (unsigned q = s * QUADS + group; q < end; q += PARTS) {
                float4 x[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) x[i] = left[(mg + 16 * i) * PITCH + q];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    y[j] = RT ? right[(ng + (BN / 4) * j) * PITCH + q] : right[(4 * q + j) * (BN / 4) + ng];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (RT) {
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            float& sum = sums[4 * i + j];
                            sum = fmaf(x[i].x, y[j].x, sum);
                            sum = fmaf(x[i].y, y[j].y, sum);
                            sum = fmaf(x[i].z, y[j].z, sum);
                            sum = fmaf(x[i].w, y[j].w, sum);
                        }
                    } else {
                        const float xs[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
                        for (int k = 0; k < 4; ++k) {
                            sums[4 * i] = fmaf(xs[k], y[k].x, sums[4 * i]);
                            sums[4 * i + 1] = fmaf(xs[k], y[k].y, sums[4 * i + 1]);
                            sums[4 * i + 2] = fmaf(xs[k], y[k].z, sums[4 * i + 2]);
                            sums[4 * i + 3] = fmaf(xs[k], y[k].w, sums[4 * i + 3]);
                        }
                    }
                }
            }
        }
    }

    // Tensor cores: all of the part at once. A warp has 16 rows; `quads` is even.
    __device__ __forceinline__ void multiply(unsigned quads) {
        unsigned warp = threadIdx.x / 32, group = warp / 4, m = warp % 4 * 16, lane = threadIdx.x % 32;
        unsigned g = lane / 4, t = lane % 4;
        const float* x = reinterpret_cast<const float*>(left);
        const float* y = reinterpret_cast<const float*>(right);
        for (unsigned k = 8 * group; k < quads * 4; k += 8 * PARTS) {
            unsigned a0 = tf32(x[(m + g) * PITCH * 4 + k + t]), a1 = tf32(x[(m + g + 8) * PITCH * 4 + k + t]);
            unsigned a2 = tf32(x[(m + g) * PITCH * 4 + k + t + 4]), a3 = tf32(x[(m + g + 8) * PITCH * 4 + k + t + 4]);
#pragma unroll
            for (int j = 0; j < BN / 8; ++j) {
                unsigned b0 = tf32(RT ? y[(8 * j + g) * PITCH * 4 + k + t] : y[(k + t) * BN + 8 * j + g]);
                unsigned b1 = tf32(RT ? y[(8 * j + g) * PITCH * 4 + k + t + 4] : y[(k + t + 4) * BN + 8 * j + g]);
                float* c = sums + 4 * j;
                asm volatile(
                    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
            }
        }
    }

    // Writes the sums of this thread where the cluster adds them up.
    __device__ __forceinline__ void store(float* to) {
        if constexpr (TF32) {
            unsigned warp = threadIdx.x / 32, m = warp % 4 * 16, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
            to += warp / 4 * 64 * BN;
#pragma unroll
            for (int j = 0; j < BN / 8; ++j) {
                to[(m + g) * BN + 8 * j + 2 * t] = sums[4 * j];
                to[(m + g) * BN + 8 * j + 2 * t + 1] = sums[4 * j + 1];
                to[(m + g + 8) * BN + 8 * j + 2 * t] = sums[4 * j + 2];
                to[(m + g + 8) * BN + 8 * j + 2 * t + 1] = sums[4 * j + 3];
            }
        } else {
            unsigned group = threadIdx.x / (16 * (BN / 4)), t = threadIdx.x % (16 * (BN / 4));
            unsigned ng = t % (BN / 4), mg = t / (BN / 4);
            to += group * 64 * BN;
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    to[(mg + 16 * i) * BN + (RT ? ng + (BN / 4) * j : 4 * ng + j)] = sums[4 * i + j];
        }
    }
};

template <int BN, int PARTS, bool RT, bool TF32>
__device__ __forceinline__ void product(float* out, const float* a, const float* b,
                                        const float* mask, unsigned M, unsigned N, unsigned K, bool relu,
                                        bool is_early) {
    using T = Tile<BN, PARTS, RT, TF32>;
    extern __shared__ float4 shared[];
    T tile;
    tile.left = shared;
    tile.right = shared + 64 * PITCH;
#pragma unroll
    for (float& sum : tile.sums) sum = 0.0f;
    unsigned rank = blockIdx.x, across = (N + BN - 1) / BN;
    unsigned n0 = blockIdx.y % across * BN, m0 = blockIdx.y / across * 64;
    unsigned all = K / 4, each = (all + SPLIT - 1) / SPLIT;
    if (TF32) each += each % 2;
    unsigned first = min(rank * each, all), quads = min(each, all - first);
    // The weights may be loaded while the kernel before still runs, unless that one writes them.
    if (is_early) tile.load_right(b, first, quads, n0, N, K);
    follow();
    if (!is_early) tile.load_right(b, first, quads, n0, N, K);
#pragma unroll
    for (int s = 0; s < STAGES; ++s) tile.load_left(s, a, first, quads, m0, M, K);
    if (TF32) {
        arrived<0>();
        tile.multiply(quads + quads % 2);
    } else {
        arrived<3>();
        tile.add(0, quads);
        arrived<2>();
        tile.add(1, quads);
        arrived<1>();
        tile.add(2, quads);
        arrived<0>();
        tile.add(3, quads);
    }
    float* parts = reinterpret_cast<float*>(shared);
    __syncthreads();
    tile.store(parts);
    cluster_barrier();
    constexpr unsigned SHARE = (64 * BN + SPLIT - 1) / SPLIT;
    for (unsigned i = threadIdx.x; i < SHARE; i += T::THREADS) {
        unsigned e = rank * SHARE + i, m = m0 + e / BN, n = n0 + e % BN;
        if (e >= 64 * BN || m >= M || n >= N) continue;
        float sum = 0.0f;
#pragma unroll
        for (unsigned from = 0; from < SPLIT; ++from)
#pragma unroll
            for (unsigned group = 0; group < PARTS; ++group) sum += of_rank(parts + group * 64 * BN + e, from);
        size_t at = (size_t)m * N + n;
        if (mask) sum = mask[at] > 0.0f ? sum : 0.0f;
        out[at] = relu ? fmaxf(sum, 0.0f) : sum;
    }
    // The parts are read by others until here.
    cluster_barrier();
}

// A block of SIDE x SIDE weights. Inputs and outputs are multiples of four.
template <bool TF32>
__device__ __forceinline__ void descend(const Descent& of, unsigned M, float factor, unsigned i0, unsigned j0) {
    extern __shared__ float4 shared[];
    float* xs = reinterpret_cast<float*>(shared);
    float* ys = xs + SIDE * SIDE_PITCH;
    constexpr int THREADS = TF32 ? 256 : 128;
    float* w = of.w;
    const float *x = of.x, *dy = of.dy;
    unsigned I = of.inputs, J = of.outputs;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[TF32 ? 4 : 8][4] = {};
    for (unsigned m0 = 0; m0 < M; m0 += 64) {
        if (m0 > 0) __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            for (unsigned c = threadIdx.x; c < 32 * (SIDE / 4); c += THREADS) {
                unsigned row = half * 32 + c / (SIDE / 4), q = c % (SIDE / 4) * 4;
                bool has = m0 + row < M;
                copy16(reinterpret_cast<float4*>(xs + row * SIDE_PITCH + q), x + (size_t)(m0 + row) * I + i0 + q, has && i0 + q < I);
                copy16(reinterpret_cast<float4*>(ys + row * SIDE_PITCH + q), dy + (size_t)(m0 + row) * J + j0 + q, has && j0 + q < J);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 0) arrived<1>(); else arrived<0>();
            if constexpr (TF32) {
                // A warp has 16 rows and 32 columns.
                unsigned g = lane / 4, t = lane % 4, i = warp % 4 * 16, j = warp / 4 * 32;
#pragma unroll
                for (int k = half * 32; k < half * 32 + 32; k += 8) {
                    const float* a = xs + (k + t) * SIDE_PITCH + i + g;
                    unsigned a0 = tf32(a[0]), a1 = tf32(a[8]), a2 = tf32(a[4 * SIDE_PITCH]), a3 = tf32(a[4 * SIDE_PITCH + 8]);
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        const float* b = ys + (k + t) * SIDE_PITCH + j + 8 * n + g;
                        unsigned b0 = tf32(b[0]), b1 = tf32(b[4 * SIDE_PITCH]);
                        float* c = sums[n];
                        asm volatile(
                            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
                    }
                }
            } else {
                // A thread has 8 rows and 4 columns, a warp 64 and 16.
                unsigned ig = lane % 8 * 4, jg = (warp * 4 + lane / 8) * 4;
#pragma unroll 8
                for (int k = half * 32; k < half * 32 + 32; ++k) {
                    float4 low = *reinterpret_cast<const float4*>(xs + k * SIDE_PITCH + ig);
                    float4 high = *reinterpret_cast<const float4*>(xs + k * SIDE_PITCH + 32 + ig);
                    float4 d = *reinterpret_cast<const float4*>(ys + k * SIDE_PITCH + jg);
                    const float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        sums[i][0] = fmaf(a[i], d.x, sums[i][0]);
                        sums[i][1] = fmaf(a[i], d.y, sums[i][1]);
                        sums[i][2] = fmaf(a[i], d.z, sums[i][2]);
                        sums[i][3] = fmaf(a[i], d.w, sums[i][3]);
                    }
                }
            }
        }
    }
    if constexpr (TF32) {
        unsigned g = lane / 4, t = lane % 4, i = i0 + warp % 4 * 16 + g, j = j0 + warp / 4 * 32 + 2 * t;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (i + 8 * half >= I || j + 8 * n >= J) continue;
                float2* at = reinterpret_cast<float2*>(w + (size_t)(i + 8 * half) * J + j + 8 * n);
                float2 old = *at;
                old.x += factor * sums[n][2 * half];
                old.y += factor * sums[n][2 * half + 1];
                *at = old;
            }
    } else {
        unsigned ig = lane % 8 * 4, jg = (warp * 4 + lane / 8) * 4;
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            unsigned i = i0 + r / 4 * 32 + ig + r % 4, j = j0 + jg;
            if (i >= I || j >= J) continue;
            float4* at = reinterpret_cast<float4*>(w + (size_t)i * J + j);
            float4 old = *at;
            old.x += factor * sums[r][0];
            old.y += factor * sums[r][1];
            old.z += factor * sums[r][2];
            old.w += factor * sums[r][3];
            *at = old;
        }
    }
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
    double(*sums)[256] = reinterpret_cast<double(*)[256]>(shared);
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
    follow();
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

#define PRODUCT(name, BN, RT, TF32)                                                                                    \
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(Tile<BN, GROUPS, RT, TF32>::THREADS)    \
        name(float* out, const float* left, const float* right,                  \
             const float* mask, unsigned M, unsigned N, unsigned K, unsigned flags, unsigned tiles,        \
             const __grid_constant__ Beside beside) {                                                                   \
        if (blockIdx.y < tiles)                                                                                         \
            product<BN, GROUPS, RT, TF32>(out, left, right, mask, M, N, K, flags & 1, flags & 2);                       \
        else                                                                                                            \
            beside_a_product<TF32>(beside, (blockIdx.y - tiles) * SPLIT + blockIdx.x);                                  \
    }
#else
#define PRODUCT(name, BN, RT, TF32) extern "C" __global__ void name() {}
#endif

PRODUCT(product, COLUMNS, false, false)
PRODUCT(product_transposed, COLUMNS, true, false)
PRODUCT(product_tf32, COLUMNS_TF32, false, true)
PRODUCT(product_tf32_transposed, COLUMNS_TF32, true, true)
