// Steps of SGD of a whole network in one kernel, for GPUs with clusters. All blocks run at once, and wait for each other where
// one reads what others wrote.
//
// 64 images keep few of a GPU's multiprocessors busy, so sums are cut into parts. A cluster has 64 rows and COLUMNS columns of a
// product, and each of its SPLIT blocks a part of the sums. The parts are added up in a fixed order, in each other's shared
// memory. What a block does for the weights is done after it says that its part of the product is there.

// What is trained, and by what. `hidden` layers, and the head behind them.
struct Steps {
    // [inputs, outputs] of each layer.
    float* weights[MOST_LAYERS];
    // What each layer reads, [images, inputs]. The first has the images of all steps.
    float* inputs[MOST_LAYERS];
    // The gradient of what each layer writes.
    float* gradients[MOST_LAYERS];
    // The images as bytes, each with its label.
    const unsigned char* rows;
    float* scores;
    double* totals;
    // 0 before.
    unsigned* arrived;
    unsigned hidden, pixels, width, images, steps;
    float factor;
};

#if __CUDA_ARCH__ >= 900 || defined(BENCH)
#define GROUPS (THREADS / 128)
// A block's part of a sum arrives in stages of so many times four numbers.
#define STAGE (QUADS * 4)
// Rows of factors in shared memory, so that what is read at once is in different banks.
#define LEFT_PITCH (STAGES * STAGE + 8)
#define RIGHT_PITCH (COLUMNS + 4)
#define TRANSPOSED_PITCH (PRECISION == 0 ? STAGES * STAGE + 4 : STAGES * STAGE + 8)
// Weights that a block updates at once.
#define DOWN_PITCH (DOWN + 4)
#define ACROSS_PITCH (ACROSS + 4)
// Parts of sums are multiples of so many times four numbers.
#define UNIT (PRECISION == 0 ? 1 : PRECISION == 1 ? 2 : 4)
// Rows of the head's weights that a block updates.
#define HEAD_ROWS 96

#ifdef PROFILE
__device__ long long profile_marks[132][256];
__device__ unsigned profile_sm[132];
#define MARK(step, at)                                                                                                   \
    if (step == 5 && threadIdx.x == 0) profile_marks[blockIdx.y * SPLIT + blockIdx.x][at] = clock64()
#else
#define MARK(step, at)
#endif

// Shared memory, in floats.
constexpr unsigned RIGHT_SIZE = STAGES * STAGE * RIGHT_PITCH > COLUMNS * TRANSPOSED_PITCH ? STAGES * STAGE * RIGHT_PITCH : COLUMNS * TRANSPOSED_PITCH;
constexpr unsigned RIGHT = 64 * LEFT_PITCH, XS = RIGHT + 2 * RIGHT_SIZE, YS = XS + 64 * DOWN_PITCH, SUMS = YS + 64 * ACROSS_PITCH;
static_assert(4 * (SUMS + GROUPS * 64 * COLUMNS) == SHARED_BYTES, "as steps.rs has it");

__device__ __forceinline__ float* shared_at(unsigned at) {
    extern __shared__ float4 shared[];
    return reinterpret_cast<float*>(shared) + at;
}

__device__ __forceinline__ void copy16(const float* to, const float* from, bool is_there) {
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

__device__ __forceinline__ float4 of_rank(const float* at, unsigned rank) {
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

// All blocks wait here for each other: between `arrive`, after which they write nothing that others read before the next one,
// and the first thing that reads what others wrote.
struct Barrier {
    unsigned* arrived;
    unsigned goal;

    __device__ __forceinline__ void arrive() {
#if BARRIER == 1
        cluster_barrier();
        if (threadIdx.x == 0 && blockIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        goal += gridDim.y;
#else
        __syncthreads();
        if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        goal += gridDim.x * gridDim.y;
#endif
    }

    __device__ __forceinline__ void wait() {
        if (threadIdx.x == 0) {
            unsigned now;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
            while (now < goal);
        }
        __syncthreads();
    }
};

#if PRECISION == 1
__device__ __forceinline__ unsigned tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}
#endif

// sums += a b over units of the sums: 8 numbers in TF32, 16 in bfloat16, two after two of each eight. `a` has those of a row, and
// of the row eight below; `b` those of a column.
__device__ __forceinline__ void multiply_add(float* sums, const float2 (&a)[2][2], const float2 (&b)[2]) {
#if PRECISION == 1
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(tf32(a[0][0].x)), "r"(tf32(a[0][1].x)), "r"(tf32(a[0][0].y)), "r"(tf32(a[0][1].y)), "r"(tf32(b[0].x)), "r"(tf32(b[0].y)));
#elif PRECISION == 2
    auto two = [](float2 of) {
        unsigned bits;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(of.y), "f"(of.x));
        return bits;
    };
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(two(a[0][0])), "r"(two(a[0][1])), "r"(two(a[1][0])), "r"(two(a[1][1])), "r"(two(b[0])), "r"(two(b[1])));
#endif
}
// Numbers of a unit, by eight.
#define EIGHTS (PRECISION == 2 ? 2 : 1)

// A part of sums over `inner`, by four numbers.
struct Part {
    unsigned first, quads;

    __device__ __forceinline__ explicit Part(unsigned inner) {
        unsigned all = inner / 4, each = ((all + SPLIT - 1) / SPLIT + UNIT - 1) / UNIT * UNIT;
        first = min(blockIdx.x * each, all);
        quads = min(each, all - first);
    }
};

// out = max(0, left right), or with a mask left rightT where that is above 0. `rows` x `inner` by `inner` x `cols`.
struct Product {
    float* out;
    const float* left;
    const float* right;
    const float* mask;
    unsigned rows, cols, inner;

    __device__ __forceinline__ unsigned across() const { return (cols + COLUMNS - 1) / COLUMNS; }
    __device__ __forceinline__ unsigned tiles() const { return across() * ((rows + 63) / 64); }

    __device__ __forceinline__ void load_left(int stage, unsigned tile) const {
        Part part(inner);
        unsigned m0 = tile / across() * 64, q = stage * QUADS + threadIdx.x % QUADS;
        if (stage * QUADS >= part.quads) return;
        for (unsigned row = threadIdx.x / QUADS; row < 64; row += THREADS / QUADS)
            copy16(shared_at(row * LEFT_PITCH + q * 4), left + (size_t)(m0 + row) * inner + (part.first + q) * 4, q < part.quads && m0 + row < rows);
    }

    __device__ __forceinline__ void load_right(int stage, unsigned tile, unsigned buffer) const {
        Part part(inner);
        unsigned n0 = tile % across() * COLUMNS, to = RIGHT + buffer * RIGHT_SIZE;
        if (stage * QUADS >= part.quads) return;
        if (mask) {
            unsigned q = stage * QUADS + threadIdx.x % QUADS;
            for (unsigned row = threadIdx.x / QUADS; row < COLUMNS; row += THREADS / QUADS)
                copy16(shared_at(to + row * TRANSPOSED_PITCH + q * 4), right + (size_t)(n0 + row) * inner + (part.first + q) * 4, q < part.quads && n0 + row < cols);
        } else {
            for (unsigned i = threadIdx.x; i < STAGE * (COLUMNS / 4); i += THREADS) {
                unsigned k = stage * STAGE + i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4;
                copy16(shared_at(to + k * RIGHT_PITCH + column), right + (size_t)(part.first * 4 + k) * cols + n0 + column, k < part.quads * 4 && n0 + column < cols);
            }
        }
    }
};

// A thread's sums of a tile: in float32 4 rows and 7 columns, else a warp's 16 rows and all columns.
template <bool RT>
struct Tile {
    float sums[COLUMNS / 2];
    unsigned group = threadIdx.x / 128, lane = threadIdx.x % 32, m, n;

    __device__ __forceinline__ Tile() {
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
        m = PRECISION ? threadIdx.x / 32 % 4 * 16 + lane / 4 : threadIdx.x % 128 / 8;
        n = PRECISION ? lane % 4 : lane % 8;
    }

    __device__ __forceinline__ void multiply(int stage, unsigned quads, const float* right) {
        const float* left = shared_at(0);
        if (stage * QUADS >= quads) return;
#if PRECISION
        unsigned end = min(quads, (stage + 1) * QUADS);
        for (unsigned q = stage * QUADS + group * 2 * EIGHTS; q < end; q += GROUPS * 2 * EIGHTS) {
            unsigned k = q * 4 + 2 * n;
            float2 a[2][2], b[2];
#pragma unroll
            for (int eight = 0; eight < EIGHTS; ++eight)
#pragma unroll
                for (int below = 0; below < 2; ++below)
                    a[eight][below] = *reinterpret_cast<const float2*>(left + (m + 8 * below) * LEFT_PITCH + k + 8 * eight);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 8) {
#pragma unroll
                for (int eight = 0; eight < EIGHTS; ++eight) {
                    unsigned at = k + 8 * eight, column = j + lane / 4;
                    b[eight] = RT ? *reinterpret_cast<const float2*>(right + column * TRANSPOSED_PITCH + at)
                                  : float2{right[at * RIGHT_PITCH + column], right[(at + 1) * RIGHT_PITCH + column]};
                }
                multiply_add(sums + j / 2, a, b);
            }
        }
#else
        unsigned end = min(quads, (stage + 1) * QUADS);
        for (unsigned q = stage * QUADS + group; q < end; q += GROUPS) {
            float4 x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const float4*>(left + (m + 16 * i) * LEFT_PITCH + 4 * q);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                float4 y;
                if (RT) {
                    y = *reinterpret_cast<const float4*>(right + (n + 8 * j) * TRANSPOSED_PITCH + 4 * q);
                } else {
                    const float* of = right + 4 * q * RIGHT_PITCH + n + 8 * j;
                    y = float4{of[0], of[RIGHT_PITCH], of[2 * RIGHT_PITCH], of[3 * RIGHT_PITCH]};
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& sum = sums[i * (COLUMNS / 8) + j];
                    sum = fmaf(x[i].w, y.w, fmaf(x[i].z, y.z, fmaf(x[i].y, y.y, fmaf(x[i].x, y.x, sum))));
                }
            }
        }
#endif
    }

    // Puts the sums where the group's are.
    __device__ __forceinline__ void store() const {
        float* to = shared_at(SUMS + group * 64 * COLUMNS);
#if PRECISION
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i += 2)
            *reinterpret_cast<float2*>(to + (m + i % 4 / 2 * 8) * COLUMNS + i / 4 * 8 + 2 * n) = float2{sums[i], sums[i + 1]};
#else
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) to[(m + i / (COLUMNS / 8) * 16) * COLUMNS + n + i % (COLUMNS / 8) * 8] = sums[i];
#endif
    }
};

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// The tile of a product that this cluster has, once its left factor can be read. `is_ready`: the right factor is on its way.
// `beside` loads what is wanted later, and `meanwhile` what is wanted in registers.
template <bool RT, class F, class G>
__device__ __forceinline__ void product(const Product& of, unsigned number, unsigned buffer, bool is_ready, F beside, G meanwhile) {
    Tile<RT> tile;
    Part part(of.inner);
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        if (!is_ready) of.load_right(stage, number, buffer);
        of.load_left(stage, number);
        end_stage();
    }
    beside();
    end_stage();
    // What this thread writes in the end.
    constexpr unsigned SHARE = 64 * COLUMNS / 4 / SPLIT;
    unsigned n0 = number % of.across() * COLUMNS, m0 = number / of.across() * 64;
    unsigned share = blockIdx.x * SHARE + threadIdx.x, row = m0 + share / (COLUMNS / 4), column = n0 + share % (COLUMNS / 4) * 4;
    bool has = threadIdx.x < SHARE && row < of.rows && column < of.cols;
    size_t at = (size_t)row * of.cols + column;
    float4 gate = {1.0f, 1.0f, 1.0f, 1.0f};
    if (RT && has) gate = *reinterpret_cast<const float4*>(of.mask + at);
    const float* right = shared_at(RIGHT + buffer * RIGHT_SIZE);
    arrived<4>();
    tile.multiply(0, part.quads, right);
    arrived<3>();
    tile.multiply(1, part.quads, right);
    arrived<2>();
    tile.multiply(2, part.quads, right);
    arrived<1>();
    tile.multiply(3, part.quads, right);
    tile.store();
    __syncthreads();
    float4* sums = reinterpret_cast<float4*>(shared_at(SUMS));
    for (unsigned i = threadIdx.x; i < 64 * COLUMNS / 4; i += THREADS) {
        float4 sum = sums[i];
#pragma unroll
        for (unsigned group = 1; group < GROUPS; ++group) sum = sum + sums[group * 64 * COLUMNS / 4 + i];
        sums[i] = sum;
    }
    meanwhile();
    cluster_barrier();
    if (has) {
        float4 sum = of_rank(shared_at(SUMS + 4 * share), 0);
#pragma unroll
        for (unsigned from = 1; from < SPLIT; ++from) sum = sum + of_rank(shared_at(SUMS + 4 * share), from);
        auto result = [](float sum, float gate) { return RT ? (gate > 0.0f ? sum : 0.0f) : (sum > 0.0f ? sum : 0.0f); };
        sum = float4{result(sum.x, gate.x), result(sum.y, gate.y), result(sum.z, gate.z), result(sum.w, gate.w)};
        *reinterpret_cast<float4*>(of.out + at) = sum;
    }
}

// A step of SGD of a layer, w += factor xT dy: a block of DOWN x ACROSS weights.
struct Update {
    float* w;
    const float* x;
    const float* dy;
    unsigned images, inputs, outputs;
    float factor;
#if PRECISION
    static constexpr int EACH = ACROSS / 8 / (THREADS / 256);
    using Weights = float2;
    Weights weights[2 * EACH];
#else
    static constexpr int EACH = 512 / THREADS;
    using Weights = float4;
    Weights weights[4 * EACH];
#endif

    __device__ __forceinline__ unsigned across() const { return (outputs + ACROSS - 1) / ACROSS; }
    __device__ __forceinline__ unsigned tiles() const { return across() * ((inputs + DOWN - 1) / DOWN); }

    __device__ __forceinline__ void load_x(unsigned tile, unsigned m0) const {
        unsigned i0 = tile / across() * DOWN;
        for (unsigned c = threadIdx.x; c < 64 * (DOWN / 4); c += THREADS) {
            unsigned row = c / (DOWN / 4), q = c % (DOWN / 4) * 4;
            copy16(shared_at(XS + row * DOWN_PITCH + q), x + (size_t)(m0 + row) * inputs + i0 + q, m0 + row < images && i0 + q < inputs);
        }
    }

    __device__ __forceinline__ void load_dy(unsigned tile, unsigned m0) const {
        unsigned j0 = tile % across() * ACROSS;
        for (unsigned c = threadIdx.x; c < 64 * (ACROSS / 4); c += THREADS) {
            unsigned row = c / (ACROSS / 4), q = c % (ACROSS / 4) * 4;
            copy16(shared_at(YS + row * ACROSS_PITCH + q), dy + (size_t)(m0 + row) * outputs + j0 + q, m0 + row < images && j0 + q < outputs);
        }
    }

    // Where a thread's weights are: the place of the first, or null. In float32 four rows of four, and so many times; else pairs.
    __device__ __forceinline__ float* place(unsigned tile, int number) const {
        unsigned i0 = tile / across() * DOWN, j0 = tile % across() * ACROSS;
#if PRECISION
        unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        unsigned i = warp % 8 * 16 + lane / 4 + number % 2 * 8, j = j0 + (warp / 8 * EACH + number / 2) * 8 + lane % 4 * 2;
        bool has = i < DOWN && i0 + i < inputs && j < outputs;
#else
        unsigned i = threadIdx.x / (ACROSS / 4) * 4 + number / 4 * (DOWN / EACH) + number % 4, j = j0 + threadIdx.x % (ACROSS / 4) * 4;
        bool has = threadIdx.x / (ACROSS / 4) < DOWN / 4 / EACH && i0 + i < inputs && j < outputs;
#endif
        return has ? w + (size_t)(i0 + i) * outputs + j : nullptr;
    }

    __device__ __forceinline__ void load_weights(unsigned tile) {
#pragma unroll
        for (int number = 0; number < int(sizeof(weights) / sizeof(Weights)); ++number) {
            const float* at = place(tile, number);
            weights[number] = at ? *reinterpret_cast<const Weights*>(at) : Weights{};
        }
    }

    // Once x, dy and the weights are there, or on their way.
    __device__ __forceinline__ void finish(unsigned tile) {
        const float *xs = shared_at(XS), *ys = shared_at(YS);
#if PRECISION
        float sums[4 * EACH] = {};
        unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = warp % 8 * 16 + lane / 4;
#else
        float sums[16 * EACH] = {};
        unsigned i = threadIdx.x / (ACROSS / 4) * 4, j = threadIdx.x % (ACROSS / 4) * 4;
#endif
        for (unsigned m0 = 0; m0 < images; m0 += 64) {
            if (m0 > 0) {
                __syncthreads();
                load_x(tile, m0);
                load_dy(tile, m0);
                end_stage();
            }
            arrived<0>();
#if PRECISION
            if (i < DOWN)
#pragma unroll 2
                for (unsigned k0 = 0; k0 < 64; k0 += 8 * EIGHTS) {
                    float2 a[2][2], b[2];
#pragma unroll
                    for (int eight = 0; eight < EIGHTS; ++eight) {
                        const float* of = xs + (k0 + 8 * eight + lane % 4 * 2) * DOWN_PITCH + i;
                        a[eight][0] = float2{of[0], of[DOWN_PITCH]};
                        a[eight][1] = float2{of[8], of[DOWN_PITCH + 8]};
                    }
#pragma unroll
                    for (int n = 0; n < EACH; ++n) {
#pragma unroll
                        for (int eight = 0; eight < EIGHTS; ++eight) {
                            const float* of = ys + (k0 + 8 * eight + lane % 4 * 2) * ACROSS_PITCH + (warp / 8 * EACH + n) * 8 + lane / 4;
                            b[eight] = float2{of[0], of[ACROSS_PITCH]};
                        }
                        multiply_add(sums + 4 * n, a, b);
                    }
                }
#else
            if (i < DOWN / EACH)
#pragma unroll 8
                for (int k = 0; k < 64; ++k) {
                    float4 y = *reinterpret_cast<const float4*>(ys + k * ACROSS_PITCH + j);
#pragma unroll
                    for (int part = 0; part < EACH; ++part) {
                        float4 x = *reinterpret_cast<const float4*>(xs + k * DOWN_PITCH + i + part * (DOWN / EACH));
                        const float a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                        for (int r = 0; r < 4; ++r) {
                            float* sum = sums + 16 * part + 4 * r;
                            sum[0] = fmaf(a[r], y.x, sum[0]);
                            sum[1] = fmaf(a[r], y.y, sum[1]);
                            sum[2] = fmaf(a[r], y.z, sum[2]);
                            sum[3] = fmaf(a[r], y.w, sum[3]);
                        }
                    }
                }
#endif
        }
#pragma unroll
        for (int number = 0; number < int(sizeof(weights) / sizeof(Weights)); ++number) {
            float* at = place(tile, number);
            if (!at) continue;
#if PRECISION
            // Of a thread's four sums, two are in each of two rows.
            const float* sum = sums + number / 2 * 4 + number % 2 * 2;
            *reinterpret_cast<float2*>(at) = float2{weights[number].x + factor * sum[0], weights[number].y + factor * sum[1]};
#else
            const float* sum = sums + 4 * number;
            float4 of = weights[number];
            *reinterpret_cast<float4*>(at) = float4{of.x + factor * sum[0], of.y + factor * sum[1], of.z + factor * sum[2], of.w + factor * sum[3]};
#endif
        }
    }
};

// The head's: 64 rows of the weights at once. Each thread has a row and a class.
__device__ __forceinline__ void update_head(const Steps& of, unsigned i0) {
    const float *x = of.inputs[of.hidden], *dy = of.gradients[of.hidden];
    for (unsigned number = threadIdx.x; number < HEAD_ROWS * CLASSES; number += THREADS) {
        unsigned i = i0 + number % HEAD_ROWS, c = number / HEAD_ROWS;
        if (i >= of.width) continue;
        float sum = 0.0f;
#pragma unroll 16
        for (unsigned m = 0; m < of.images; ++m) sum = fmaf(x[(size_t)m * of.width + i], dy[m * CLASSES + c], sum);
        of.weights[of.hidden][(size_t)i * CLASSES + c] += of.factor * sum;
    }
}

// Adds up losses and hits, in an order that is always the same. At most as many as threads.
__device__ __forceinline__ void add_up(const Steps& of) {
    double(*sums)[THREADS] = reinterpret_cast<double(*)[THREADS]>(shared_at(XS));
    __syncthreads();
    for (unsigned which = 0; which < 2; ++which) {
        double sum = 0.0;
        for (unsigned row = threadIdx.x; row < of.images; row += THREADS) sum += (double)of.scores[2 * row + which];
        sums[which][threadIdx.x] = sum;
    }
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            for (unsigned which = 0; which < 2; ++which) sums[which][threadIdx.x] += sums[which][threadIdx.x + half];
    }
    if (threadIdx.x < 2) of.totals[threadIdx.x] += sums[threadIdx.x][0];
}

// The head, its loss and its gradients, of an image: dy = (softmax(x w) - onehot(label)) / images, dx = dy wT where x > 0.
struct Head {
    static constexpr unsigned EACH = (STAGES * STAGE * SPLIT + THREADS - 1) / THREADS;
    float2 w[EACH][CLASSES / 2];

    __device__ __forceinline__ void load(const Steps& of) {
#pragma unroll
        for (unsigned part = 0; part < EACH; ++part) {
            unsigned i = threadIdx.x + part * THREADS;
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c)
                w[part][c] = i < of.width ? reinterpret_cast<const float2*>(of.weights[of.hidden] + (size_t)i * CLASSES)[c] : float2{};
        }
    }

    __device__ __forceinline__ void run(const Steps& of, unsigned image, unsigned label) {
        float* sums = shared_at(XS);
        float* gradient = sums + THREADS / 32 * CLASSES;
        const float* x = of.inputs[of.hidden] + (size_t)image * of.width;
        float z[CLASSES] = {}, value[EACH];
#pragma unroll
        for (unsigned part = 0; part < EACH; ++part) {
            unsigned i = threadIdx.x + part * THREADS;
            value[part] = i < of.width ? x[i] : 0.0f;
        }
#pragma unroll
        for (unsigned part = 0; part < EACH; ++part)
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c) {
                z[2 * c] = fmaf(value[part], w[part][c].x, z[2 * c]);
                z[2 * c + 1] = fmaf(value[part], w[part][c].y, z[2 * c + 1]);
            }
#pragma unroll
        for (unsigned c = 0; c < CLASSES; ++c)
            for (unsigned to = 16; to > 0; to /= 2) z[c] += __shfl_xor_sync(~0u, z[c], to);
        unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (unsigned c = 0; c < CLASSES; ++c)
            if (lane == c) sums[threadIdx.x / 32 * CLASSES + c] = z[c];
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
                of.gradients[of.hidden][image * CLASSES + lane] = d;
            }
            if (lane == 0) {
                of.scores[2 * image] = logf(sum) + top - wanted;
                of.scores[2 * image + 1] = best == label ? 1.0f : 0.0f;
            }
        }
        __syncthreads();
        float* dx = of.gradients[of.hidden - 1] + (size_t)image * of.width;
#pragma unroll
        for (unsigned part = 0; part < EACH; ++part) {
            unsigned i = threadIdx.x + part * THREADS;
            if (i >= of.width) continue;
            float d = 0.0f;
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c) d += gradient[2 * c] * w[part][c].x + gradient[2 * c + 1] * w[part][c].y;
            dx[i] = value[part] > 0.0f ? d : 0.0f;
        }
    }
};

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS, 1) steps(const __grid_constant__ Steps of) {
    Barrier barrier{of.arrived, 0};
    unsigned blocks = gridDim.x * gridDim.y, block = blockIdx.y * SPLIT + blockIdx.x, cluster = blockIdx.y, hidden = of.hidden;
    unsigned buffer = 0;
    auto nothing = [] {};
    auto forward = [&](unsigned layer, const float* images) {
        return Product{of.inputs[layer + 1], layer > 0 ? of.inputs[layer] : images, of.weights[layer], nullptr, of.images, of.width, layer > 0 ? of.width : of.pixels};
    };
    auto backward = [&](unsigned layer) {
        return Product{of.gradients[layer - 1], of.gradients[layer], of.weights[layer], of.inputs[layer], of.images, of.width, of.width};
    };
    // Sends the weights of the product after this one on their way.
    auto load_ahead = [&](const Product& next) {
        if (cluster < next.tiles())
            for (int stage = 0; stage < STAGES; ++stage) next.load_right(stage, cluster, buffer ^ 1);
    };
#ifdef PROFILE
    if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(profile_sm[block]));
#endif
    for (unsigned step = 0; step < of.steps; ++step) {
        const float* images = of.inputs[0] + (size_t)step * of.images * of.pixels;
        const unsigned char* rows = of.rows + (size_t)step * of.images * (of.pixels + 1);
        unsigned mark = 0;
        for (unsigned layer = 0; layer < hidden; ++layer) {
            Product now = forward(layer, images);
            MARK(step, mark++);
            barrier.wait();
            MARK(step, mark++);
            bool is_first = true;
            for (unsigned tile = cluster; tile < now.tiles(); tile += gridDim.y) {
                if (!is_first) cluster_barrier();
                auto ahead = [&] {
                    if (!is_first) return;
                    if (layer + 1 < hidden) load_ahead(forward(layer + 1, images));
                    else if (hidden > 1) load_ahead(backward(hidden - 1));
                };
                product<false>(now, tile, buffer, is_first && layer > 0, ahead, nothing);
                is_first = false;
            }
            buffer ^= 1;
            MARK(step, mark++);
            barrier.arrive();
        }
        {
            Head head;
            if (block < of.images) head.load(of);
            MARK(step, mark++);
            barrier.wait();
            MARK(step, mark++);
            for (unsigned image = block; image < of.images; image += blocks)
                head.run(of, image, rows[(size_t)image * (of.pixels + 1) + of.pixels]);
            MARK(step, mark++);
            barrier.arrive();
        }
        for (unsigned layer = hidden - 1;; --layer) {
            Update update{of.weights[layer], layer > 0 ? of.inputs[layer] : images, of.gradients[layer], of.images, layer > 0 ? of.width : of.pixels, of.width, of.factor};
            bool has = block < update.tiles(), is_first = true;
            // Until here, others may read what the layer above was updated by.
            __syncthreads();
            if (layer == 0 && has) {
                update.load_x(block, 0);
                update.load_weights(block);
            }
            MARK(step, mark++);
            barrier.wait();
            MARK(step, mark++);
            auto beside = [&] {
                if (!is_first) return;
                if (has) {
                    update.load_x(block, 0);
                    update.load_dy(block, 0);
                }
                if (layer > 1) load_ahead(backward(layer - 1));
            };
            auto meanwhile = [&] {
                if (is_first && has) update.load_weights(block);
            };
            if (layer > 0) {
                Product now = backward(layer);
                for (unsigned tile = cluster; tile < now.tiles(); tile += gridDim.y) {
                    if (!is_first) cluster_barrier();
                    product<true>(now, tile, buffer, is_first, beside, meanwhile);
                    is_first = false;
                }
                if (is_first) {
                    beside();
                    end_stage();
                    meanwhile();
                }
                buffer ^= 1;
                MARK(step, mark++);
                barrier.arrive();
            } else if (has) {
                update.load_dy(block, 0);
                end_stage();
            }
            for (unsigned tile = block; tile < update.tiles(); tile += blocks) {
                if (tile != block) {
                    __syncthreads();
                    update.load_x(tile, 0);
                    update.load_dy(tile, 0);
                    end_stage();
                    update.load_weights(tile);
                }
                update.finish(tile);
            }
            if (layer == hidden - 1) {
                unsigned last = blocks - 1 - block;
                if (last * HEAD_ROWS < of.width) update_head(of, last * HEAD_ROWS);
                if (last == (of.width + HEAD_ROWS - 1) / HEAD_ROWS % blocks) add_up(of);
            }
            MARK(step, mark++);
            if (layer == 0) break;
        }
        barrier.arrive();
        buffer = 0;
    }
}
#else
extern "C" __global__ void steps() {}
#endif
