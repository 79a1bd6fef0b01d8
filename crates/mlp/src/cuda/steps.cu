// Steps of SGD of a whole network in one kernel, for GPUs with clusters. All blocks run at once, and wait for each other where
// one reads what others wrote.
//
// 64 images keep few of a GPU's multiprocessors busy, so sums are cut into parts. A cluster has COLUMNS outputs of each layer, and
// each of its SPLIT blocks a part of the inputs. These weights stay in the block's shared memory for all steps: the block multiplies
// by them, and updates them. The parts of a sum are added up in a fixed order, by the block that they are sent to. Backward, a
// block reads other weights, so each writes its own to a copy in memory.
//
// Activations and gradients are stored as they are read: for each part of the inputs, 64 rows of so many numbers (`pitch`, in which
// what is read at once lies in different banks). So it is copied to shared memory as it is. Gradients are also stored for each COLUMNS.

// What is trained, and by what. `hidden` layers, at least 2, and the head behind them.
struct Steps {
    // [inputs, outputs] of each layer, and for each tile and part the weights that are read backward.
    float* weights[MOST_LAYERS];
    float* copies[MOST_LAYERS];
    // What each layer reads. The first has the images of all steps.
    float* inputs[MOST_LAYERS];
    // The gradient of what each layer writes, by parts and then by tiles; of the head [images, CLASSES].
    float* gradients[MOST_LAYERS];
    // The images as bytes, each with its label.
    const unsigned char* rows;
    float* scores;
    double* totals;
    // 0 before.
    unsigned* arrived;
    unsigned hidden, pixels, width, images, steps;
    // Numbers of a part, and of its rows, of the pixels and of what other layers read.
    unsigned part[2], pitch[2];
    float factor;
};

// out = the images of all steps, as floats and by parts. One block for a row.
extern "C" __global__ void images_by_parts(float* __restrict__ out, const unsigned char* __restrict__ rows, unsigned pixels,
                                           unsigned images, unsigned part, unsigned pitch) {
    unsigned step = blockIdx.x / images, image = blockIdx.x % images;
    const unsigned char* row = rows + (size_t)blockIdx.x * (pixels + 1);
    for (unsigned j = threadIdx.x; j < pixels; j += blockDim.x)
        out[(((size_t)step * SPLIT + j / part) * 64 + image) * pitch + j % part] = row[j] / 255.0f;
}

#if __CUDA_ARCH__ >= 900
// Threads that have a part of a product's sums: in float32 each has 8 rows and 7 columns, else a warp 32 rows and all columns.
#define GROUP 64
#define GROUPS (THREADS / GROUP)
// Floats of a row of weights in shared memory.
#define WEIGHTS_PITCH (COLUMNS + 4)
// Parts of sums are multiples of so many numbers; and by eight.
#define UNIT (PRECISION == 0 ? 4 : PRECISION == 1 ? 8 : 16)
#define EIGHTS (PRECISION == 2 ? 2 : 1)
// Floats of a tile's sums.
#define SUMS (64 * COLUMNS)

__device__ __forceinline__ unsigned address(const float* at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ __forceinline__ float* shared_at(unsigned at) {
    extern __shared__ float4 shared[];
    return reinterpret_cast<float*>(shared) + at;
}

// Copies floats, a multiple of four. All threads of the block do it, and it is one of what `arrived` counts.
__device__ __forceinline__ void copy(float* to, const float* from, unsigned count) {
    for (unsigned c = threadIdx.x * 4; c < count; c += THREADS * 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to + c)), "l"(from + c) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// What this thread copied is there, but for the last LEFT copies.
template <int LEFT>
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Sums that other blocks of the cluster send, counted at the beginning of shared memory.
struct Parts {
    unsigned phase = 0;

    __device__ __forceinline__ static unsigned counter() { return address(shared_at(0)); }

    __device__ __forceinline__ static void begin() {
        if (threadIdx.x == 0)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(counter())
                         : "memory");
    }

    // So many bytes come. One thread says it.
    __device__ __forceinline__ static void expect(unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(counter()), "r"(bytes) : "memory");
    }

    __device__ __forceinline__ static void send(unsigned rank, const float* to, float4 sum) {
        unsigned there, counted;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(to)), "r"(rank));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(counter()), "r"(rank));
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                     "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w), "r"(counted)
                     : "memory");
    }

    // Waits for all that was expected. All threads of the block do.
    __device__ __forceinline__ void wait() {
        unsigned is_there;
        do
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
                "p;\n}"
                : "=r"(is_there)
                : "r"(counter()), "r"(phase)
                : "memory");
        while (!is_there);
        phase ^= 1;
    }
};

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// All blocks wait here for each other: between `arrive`, after which they write nothing that others read before the next one,
// and the first thing that reads what others wrote.
struct Barrier {
    unsigned* arrived;
    unsigned goal;

    __device__ __forceinline__ void arrive() {
        __syncthreads();
        if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        goal += gridDim.x * gridDim.y;
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

// sums += a b over a unit of the sums, two numbers of each eight. `a` has those of a row, and of the row eight below; `b` those of
// a column.
__device__ __forceinline__ void multiply_add(float* sums, const float2 (&a)[2][2], const float2 (&b)[2]) {
#if PRECISION == 1
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(tf32(a[0][0].x)), "r"(tf32(a[0][1].x)), "r"(tf32(a[0][0].y)), "r"(tf32(a[0][1].y)), "r"(tf32(b[0].x)),
                   "r"(tf32(b[0].y)));
#elif PRECISION == 2
    auto two = [](float2 of) {
        unsigned bits;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(of.y), "f"(of.x));
        return bits;
    };
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(two(a[0][0])), "r"(two(a[0][1])), "r"(two(a[1][0])), "r"(two(a[1][1])), "r"(two(b[0])), "r"(two(b[1])));
#endif
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// A quarter of the results of a tile's rows: all of them, and those of a block of the cluster.
constexpr unsigned ALL = SUMS / 4, SHARE = ALL / SPLIT;

// This block among the others, and its shared memory.
struct Block {
    const Steps& of;
    unsigned rank = blockIdx.x, tile = blockIdx.y, tiles;
    // The widest rows of a part, and the longest part.
    unsigned pitch, part;
    // The left factor, and sums in its place; the right factor; what the weights are updated by; sums of others; the weights.
    float *left, *right, *xs, *ys, *received, *weights;
    Parts parts;
    // The part of a product's results that this thread writes, four numbers at once.
    bool writes;
    unsigned row, column, place;

    __device__ __forceinline__ explicit Block(const Steps& of) : of(of) {
        tiles = (of.width + COLUMNS - 1) / COLUMNS;
        pitch = max(of.pitch[0], of.pitch[1]), part = max(of.part[0], of.part[1]);
        left = shared_at(8);
        right = left + max(64 * pitch, 2 * SUMS);
        xs = right + COLUMNS * pitch;
        ys = xs + 64 * pitch;
        received = ys + SUMS;
        weights = received + SUMS;
        unsigned at = rank * SHARE + threadIdx.x;
        row = at / (COLUMNS / 4), column = at % (COLUMNS / 4) * 4;
        unsigned of_all = tile * COLUMNS + column;
        writes = threadIdx.x < SHARE && row < of.images && of_all < of.width;
        place = (of_all / of.part[1] * 64 + row) * of.pitch[1] + of_all % of.part[1];
    }

    __device__ __forceinline__ bool has_tile() const { return tile < tiles; }
    __device__ __forceinline__ unsigned columns() const { return min((unsigned)COLUMNS, of.width - tile * COLUMNS); }
    __device__ __forceinline__ float* weights_of(unsigned layer) const { return weights + layer * part * WEIGHTS_PITCH; }
    __device__ __forceinline__ unsigned pitch_of(unsigned layer) const { return of.pitch[layer > 0]; }

    // Numbers of this block's part of what a layer reads, and the first.
    __device__ __forceinline__ unsigned first(unsigned layer) const { return rank * of.part[layer > 0]; }
    __device__ __forceinline__ unsigned count(unsigned layer) const {
        unsigned all = layer > 0 ? of.width : of.pixels;
        return min(of.part[layer > 0], all - min(all, first(layer)));
    }

    // Where this block's part of some rows begins.
    __device__ __forceinline__ const float* part_of(const float* rows, unsigned layer) const {
        return rows + (size_t)rank * 64 * pitch_of(layer);
    }
    __device__ __forceinline__ const float* tile_of(const float* gradients) const {
        return gradients + SPLIT * 64 * of.pitch[1] + tile * SUMS;
    }
    __device__ __forceinline__ const float* images(unsigned step) const {
        return of.inputs[0] + (size_t)step * SPLIT * 64 * of.pitch[0];
    }

    __device__ __forceinline__ void load_left(const float* rows, unsigned layer) const {
        copy(left, part_of(rows, layer), of.images * pitch_of(layer));
    }
    __device__ __forceinline__ void load_right(unsigned layer) const {
        copy(right, of.copies[layer] + (size_t)(tile * SPLIT + rank) * COLUMNS * of.pitch[1], columns() * of.pitch[1]);
    }
    __device__ __forceinline__ void load_xs(const float* rows, unsigned layer) const {
        copy(xs, part_of(rows, layer), of.images * pitch_of(layer));
    }
    __device__ __forceinline__ void load_ys(unsigned layer) const {
        copy(ys, tile_of(of.gradients[layer]), of.images * COLUMNS);
    }
};

// A thread's sums of a tile of 64 x COLUMNS. The right factor is by rows, of WEIGHTS_PITCH, or transposed.
template <bool RT>
struct Tile {
    float sums[COLUMNS] = {};
    unsigned group = threadIdx.x / GROUP, lane = threadIdx.x % 32, m, n;

    __device__ __forceinline__ Tile() {
        m = PRECISION ? threadIdx.x / 32 % 2 * 32 + lane / 4 : threadIdx.x % 64 / 8;
        n = PRECISION ? lane % 4 : lane % 8;
    }

    __device__ __forceinline__ void multiply(const float* left, const float* right, unsigned count, unsigned pitch) {
#if PRECISION
        for (unsigned first = group * UNIT; first < count; first += GROUPS * UNIT) {
            unsigned k = first + 2 * n;
            float2 a[2][2][2], b[2];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int eight = 0; eight < EIGHTS; ++eight)
#pragma unroll
                    for (int below = 0; below < 2; ++below)
                        a[half][eight][below] =
                            *reinterpret_cast<const float2*>(left + (m + 16 * half + 8 * below) * pitch + k + 8 * eight);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 8) {
#pragma unroll
                for (int eight = 0; eight < EIGHTS; ++eight) {
                    unsigned at = k + 8 * eight, column = j + lane / 4;
                    b[eight] = RT ? *reinterpret_cast<const float2*>(right + column * pitch + at)
                                  : float2{right[at * WEIGHTS_PITCH + column], right[(at + 1) * WEIGHTS_PITCH + column]};
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) multiply_add(sums + half * (COLUMNS / 2) + j / 2, a[half], b);
            }
        }
#else
        for (unsigned k = group * UNIT; k < count; k += GROUPS * UNIT) {
            float4 x[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = *reinterpret_cast<const float4*>(left + (m + 8 * i) * pitch + k);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                float4 y;
                if (RT) {
                    y = *reinterpret_cast<const float4*>(right + (n + 8 * j) * pitch + k);
                } else {
                    const float* of = right + k * WEIGHTS_PITCH + n + 8 * j;
                    y = float4{of[0], of[WEIGHTS_PITCH], of[2 * WEIGHTS_PITCH], of[3 * WEIGHTS_PITCH]};
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    float& sum = sums[i * (COLUMNS / 8) + j];
                    sum = fmaf(x[i].w, y.w, fmaf(x[i].z, y.z, fmaf(x[i].y, y.y, fmaf(x[i].x, y.x, sum))));
                }
            }
        }
#endif
    }

    // Adds up the sums of pairs of groups, in two places.
    __device__ __forceinline__ void store(float* to) const {
        to += group % 2 * SUMS;
#pragma unroll
        for (int pair = GROUPS / 2 - 1; pair >= 0; --pair) {
            if (group / 2 == pair) {
#if PRECISION
#pragma unroll
                for (int i = 0; i < COLUMNS; i += 2) {
                    unsigned row = m + i / (COLUMNS / 2) * 16 + i % 4 / 2 * 8, j = i % (COLUMNS / 2) / 4 * 8 + 2 * n;
                    float2& sum = *reinterpret_cast<float2*>(to + row * COLUMNS + j);
                    sum = pair + 1 < GROUPS / 2 ? float2{sum.x + sums[i], sum.y + sums[i + 1]} : float2{sums[i], sums[i + 1]};
                }
#else
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) {
                    float& sum = to[(m + i / (COLUMNS / 8) * 8) * COLUMNS + n + i % (COLUMNS / 8) * 8];
                    sum = pair + 1 < GROUPS / 2 ? sum + sums[i] : sums[i];
                }
#endif
            }
            __syncthreads();
        }
    }
};

// This block's part of a product with the factor on the left, and then its part of the result: max(0, ...), or with a mask 0 where
// that is not above 0. After the left factor, at most one other thing was copied. `meanwhile` is called once the factors were read.
template <bool RT, class F>
__device__ __forceinline__ void product(Block& block, unsigned layer, const float* right, const float* mask, float* out,
                                        F meanwhile) {
    const Steps& of = block.of;
    if (threadIdx.x == 0) Parts::expect(SUMS * 4);
    float4 gate = {1.0f, 1.0f, 1.0f, 1.0f};
    if (RT && block.writes) gate = *reinterpret_cast<const float4*>(mask + block.place);
    Tile<RT> tile;
    arrived<1>();
    __syncthreads();
    tile.multiply(block.left, right, block.count(layer), block.pitch_of(layer));
    __syncthreads();
    meanwhile();
    tile.store(block.left);
    const float4* sums = reinterpret_cast<const float4*>(block.left);
#pragma unroll
    for (unsigned i = threadIdx.x; i < ALL; i += THREADS)
        Parts::send(i / SHARE, block.received + 4 * (block.rank * SHARE + i % SHARE), sums[i] + sums[ALL + i]);
    block.parts.wait();
    if (block.writes) {
        const float4* received = reinterpret_cast<const float4*>(block.received) + threadIdx.x;
        float4 sum = received[0];
#pragma unroll
        for (unsigned from = 1; from < SPLIT; ++from) sum = sum + received[from * SHARE];
        auto result = [](float sum, float gate) { return RT ? (gate > 0.0f ? sum : 0.0f) : (sum > 0.0f ? sum : 0.0f); };
        sum = float4{result(sum.x, gate.x), result(sum.y, gate.y), result(sum.z, gate.z), result(sum.w, gate.w)};
        *reinterpret_cast<float4*>(out + block.place) = sum;
        if (RT)
            *reinterpret_cast<float4*>(out + SPLIT * 64 * of.pitch[1] + block.tile * SUMS + block.row * COLUMNS +
                                       block.column) = sum;
    }
}

// Where the copy of a layer has weights of a row that this block owns: from a column on, which may be moved by eight.
struct Copied {
    float* row;
    unsigned column, part, pitch;

    __device__ __forceinline__ Copied(const Block& block, unsigned layer, unsigned i, unsigned j)
        : part(block.of.part[1]), pitch(block.of.pitch[1]) {
        unsigned number = block.first(layer) + i, of_all = block.tile * COLUMNS + j;
        row =
            block.of.copies[layer] + ((size_t)(number / COLUMNS * SPLIT + of_all / part) * COLUMNS + number % COLUMNS) * pitch;
        column = of_all % part;
    }

    __device__ __forceinline__ float* at() const { return row + column; }

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
            if (TAKES && layer > 0) *reinterpret_cast<float4*>(Copied(block, layer, i, j).at()) = *here;
        }
}

// A step of SGD of this block's weights of a layer: w += factor xT dy. Both factors are there.
__device__ __forceinline__ void update(const Block& block, unsigned layer) {
    const Steps& of = block.of;
    const float *xs = block.xs, *ys = block.ys;
    float* w = block.weights_of(layer);
    unsigned pitch = block.pitch_of(layer), count = block.count(layer), end = (of.images + UNIT - 1) / UNIT * UNIT;
    if (PRECISION && of.images < end) {
        for (unsigned c = threadIdx.x; c < (end - of.images) * pitch; c += THREADS) block.xs[of.images * pitch + c] = 0.0f;
        for (unsigned c = threadIdx.x; c < (end - of.images) * COLUMNS; c += THREADS) block.ys[of.images * COLUMNS + c] = 0.0f;
        __syncthreads();
    }
#if PRECISION
    unsigned lane = threadIdx.x % 32, i = threadIdx.x / 32 * 16 + lane / 4, t = lane % 4;
    if (i - lane / 4 >= count) return;
    float sums[COLUMNS / 2] = {};
#pragma unroll 2
    for (unsigned k0 = 0; k0 < end; k0 += UNIT) {
        float2 a[2][2], b[2];
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            const float* at = xs + (k0 + 8 * eight + t) * pitch + i;
            a[eight][0] = float2{at[0], at[4 * pitch]};
            a[eight][1] = float2{at[8], at[4 * pitch + 8]};
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 8) {
#pragma unroll
            for (int eight = 0; eight < EIGHTS; ++eight) {
                const float* at = ys + (k0 + 8 * eight + t) * COLUMNS + j + lane / 4;
                b[eight] = float2{at[0], at[4 * COLUMNS]};
            }
            multiply_add(sums + j / 2, a, b);
        }
    }
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        unsigned row = i + 8 * below;
        if (row >= count) continue;
        Copied copied(block, layer, row, 2 * t);
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 8) {
            if (j + 2 * t >= block.columns()) continue;
            float2* at = reinterpret_cast<float2*>(w + row * WEIGHTS_PITCH + j + 2 * t);
            const float* sum = sums + j / 2 + 2 * below;
            float2 now = {at->x + of.factor * sum[0], at->y + of.factor * sum[1]};
            *at = now;
            if (layer > 0) *reinterpret_cast<float2*>(copied.at()) = now;
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
        float4 y = *reinterpret_cast<const float4*>(ys + k * COLUMNS + j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float4 x = *reinterpret_cast<const float4*>(xs + k * pitch + i + half * HALF);
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
#pragma unroll
    for (int number = 0; number < 8; ++number) {
        unsigned row = i + number / 4 * HALF + number % 4;
        if (row >= count || j >= block.columns()) continue;
        const float* sum = sums + 4 * number;
        float4* at = reinterpret_cast<float4*>(w + row * WEIGHTS_PITCH + j);
        float4 now = {at->x + of.factor * sum[0], at->y + of.factor * sum[1], at->z + of.factor * sum[2],
                      at->w + of.factor * sum[3]};
        *at = now;
        if (layer > 0) *reinterpret_cast<float4*>(Copied(block, layer, row, j).at()) = now;
    }
#endif
}

// As above, of this block's part of the head, whose weights nobody keeps.
__device__ __forceinline__ void update_head(Block& block) {
    const Steps& of = block.of;
    const float* dy = of.gradients[of.hidden];
    unsigned count = block.count(of.hidden), half = threadIdx.x / (THREADS / 2), i = threadIdx.x % (THREADS / 2);
    constexpr unsigned EACH = CLASSES / 2;
    block.load_xs(of.inputs[of.hidden], of.hidden);
    for (unsigned c = threadIdx.x; c < of.images * CLASSES; c += THREADS) block.ys[c] = dy[c];
    arrived<0>();
    __syncthreads();
    if (i >= count) return;
    float sums[EACH] = {};
#pragma unroll 8
    for (unsigned m = 0; m < of.images; ++m) {
        float value = block.xs[m * of.pitch[1] + i];
#pragma unroll
        for (unsigned c = 0; c < EACH; ++c) sums[c] = fmaf(value, block.ys[m * CLASSES + half * EACH + c], sums[c]);
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
        float *sums = block.ys, *gradient = sums + THREADS / 32 * CLASSES;
        const float* x = of.inputs[of.hidden] + image * of.pitch[1];
        float z[CLASSES] = {}, value[EACH];
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number)
            value[number] = threadIdx.x + number * THREADS < of.width ? x[place[number]] : 0.0f;
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number)
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c) {
                z[2 * c] = fmaf(value[number], w[number][c].x, z[2 * c]);
                z[2 * c + 1] = fmaf(value[number], w[number][c].y, z[2 * c + 1]);
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
        float *dx = of.gradients[of.hidden - 1], *by_tiles = dx + SPLIT * 64 * of.pitch[1];
#pragma unroll
        for (unsigned number = 0; number < EACH; ++number) {
            unsigned i = threadIdx.x + number * THREADS;
            if (i >= of.width) continue;
            float d = 0.0f;
#pragma unroll
            for (unsigned c = 0; c < CLASSES / 2; ++c)
                d += gradient[2 * c] * w[number][c].x + gradient[2 * c + 1] * w[number][c].y;
            d = value[number] > 0.0f ? d : 0.0f;
            dx[place[number] + image * of.pitch[1]] = d;
            by_tiles[i / COLUMNS * SUMS + image * COLUMNS + i % COLUMNS] = d;
        }
    }
};

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS, 1) steps(const __grid_constant__ Steps of) {
    Block block(of);
    Barrier barrier{of.arrived, 0};
    unsigned number = blockIdx.y * SPLIT + blockIdx.x, hidden = of.hidden;
    bool has_tile = block.has_tile();
    auto nothing = [] {};
    Head head(of);
    Parts::begin();
    move_weights<true>(block);
    cluster_barrier();
    if (has_tile) block.load_left(block.images(0), 0);
    for (unsigned step = 0; step < of.steps; ++step) {
        for (unsigned layer = 0; layer < hidden; ++layer) {
            if (layer > 0) barrier.wait();
            if (has_tile) {
                if (layer > 0) block.load_left(of.inputs[layer], layer);
                if (layer == 1)
                    block.load_right(hidden - 1);
                else
                    end_copies();
                product<false>(block, layer, block.weights_of(layer), nullptr, of.inputs[layer + 1], nothing);
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
            barrier.wait();
            if (number < of.images) head.run(block, number, label);
            barrier.arrive();
        }
        for (unsigned layer = hidden - 1; layer > 0; --layer) {
            barrier.wait();
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
        barrier.wait();
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
