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
// All of that is stored rounded, since products would round it. With bfloat16, so are the weights that products read, beside those
// that are updated.

#if PRECISION == 2
typedef unsigned short Number;
#else
typedef float Number;
#endif

// Rounded as the GPU does it: with TF32, halves away from zero.
__device__ __forceinline__ Number number(float of) {
#if PRECISION
    unsigned bits = __float_as_uint(of);
#endif
#if PRECISION == 2
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#elif PRECISION == 1
    return __uint_as_float((bits + 0x1000) & ~0x1fffu);
#else
    return of;
#endif
}

// What is trained, and by what. `hidden` layers, at least 2, and the head behind them.
struct Steps {
    // [inputs, outputs] of each layer, and for each tile and part the weights that are read backward.
    float* weights[MOST_LAYERS];
    Number* copies[MOST_LAYERS];
    // What each layer reads. The first has the images of all steps.
    Number* inputs[MOST_LAYERS];
    // The gradient of what each layer writes, by parts and then by tiles; of the head floats, [images, CLASSES].
    Number* gradients[MOST_LAYERS];
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

// out = the images of all steps, by parts. One block of SPLIT warps for a row: each has a part of it.
extern "C" __global__ void images_by_parts(Number* __restrict__ out, const unsigned char* __restrict__ rows, unsigned pixels,
                                           unsigned images, unsigned part, unsigned pitch) {
    unsigned step = blockIdx.x / images, image = blockIdx.x % images, part_of_row = threadIdx.x / 32,
             first = part_of_row * part;
    const unsigned char* row = rows + (size_t)blockIdx.x * (pixels + 1) + first;
    Number* to = out + (((size_t)step * SPLIT + part_of_row) * 64 + image) * pitch;
    for (unsigned j = threadIdx.x % 32; j < part && first + j < pixels; j += 32) to[j] = number(row[j] / 255.0f);
}

#if __CUDA_ARCH__ >= 900
// Threads that have a part of a product's sums: in float32 each has 8 rows and 7 columns, else a warp 32 rows and all columns.
#define GROUP 64
#define GROUPS (THREADS / GROUP)
// Floats of a row of weights in shared memory.
#define WEIGHTS_PITCH (PRECISION == 2 ? COLUMNS : COLUMNS + 4)
// Parts of sums are multiples of so many numbers.
#define UNIT (PRECISION == 0 ? 4 : PRECISION == 1 ? 8 : 16)
// Floats of a tile's sums.
#define SUMS (64 * COLUMNS)

__device__ __forceinline__ unsigned address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ __forceinline__ float* shared_at(unsigned at) {
    extern __shared__ float4 shared[];
    return reinterpret_cast<float*>(shared) + at;
}

// Copies numbers, whole 16 bytes. All threads of the block do it, and it is one of what `arrived` counts.
__device__ __forceinline__ void copy(Number* to, const Number* from, unsigned count) {
    constexpr unsigned AT_ONCE = 16 / sizeof(Number);
    for (unsigned c = threadIdx.x * AT_ONCE; c < count; c += THREADS * AT_ONCE)
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

// Loads from shared memory. NVRTC computes pointers there with 64 bits, and each on its own: that took a tenth of the time.
__device__ __forceinline__ float load(unsigned at) {
    float of;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(of) : "r"(at));
    return of;
}

__device__ __forceinline__ float2 load2(unsigned at) {
    float2 of;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(of.x), "=f"(of.y) : "r"(at));
    return of;
}

__device__ __forceinline__ float4 load4(unsigned at) {
    float4 of;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(of.x), "=f"(of.y), "=f"(of.z), "=f"(of.w) : "r"(at));
    return of;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Blocks wait here for those of some clusters: between `arrive`, after which they write nothing that others read before the next
// one, and the first thing that reads what others wrote. Each cluster counts its arrivals, in a line of memory of its own.
struct Barrier {
    unsigned* arrived;
    unsigned goal;

    __device__ __forceinline__ void arrive() {
        __syncthreads();
        if (threadIdx.x == 0)
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived + 32 * blockIdx.y) : "memory");
        goal += SPLIT;
    }

    // Waits for the clusters from the first to the last, for another, and for its own.
    __device__ __forceinline__ void wait(unsigned first, unsigned last, unsigned other) {
        if (threadIdx.x < 32) {
            unsigned now, cluster = first + threadIdx.x;
            const unsigned* at = arrived + 32 * (cluster <= last ? cluster : threadIdx.x == 31 ? other : blockIdx.y);
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
            while (now < goal);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void wait_for_all() { wait(0, gridDim.y - 1, blockIdx.y); }
};

#if PRECISION == 1
// sums += a b over a unit of the sums, two numbers of each eight. `a` has those of a row, and of the row eight below; `b` those of
// a column.
__device__ __forceinline__ void multiply_add(float* sums, const float2 (&a)[2], float2 b) {
    auto bits = [](float of) { return __float_as_uint(of); };
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(bits(a[0].x)), "r"(bits(a[1].x)), "r"(bits(a[0].y)), "r"(bits(a[1].y)), "r"(bits(b.x)), "r"(bits(b.y)));
}
#elif PRECISION == 2
// The same, of matrices of 16 x 16 and of 16 x 8.
__device__ __forceinline__ void multiply_add(float* sums, const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8, maybe transposed: each eight lanes say where the rows of one are.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&of)[4], unsigned at) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(of[0]), "=r"(of[1]), "=r"(of[2]), "=r"(of[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(of[0]), "=r"(of[1]), "=r"(of[2]), "=r"(of[3])
                     : "r"(at));
}
#endif

#if PRECISION == 2
__device__ __forceinline__ float value(Number of) { return __uint_as_float((unsigned)of << 16); }
__device__ __forceinline__ unsigned two(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
__device__ __forceinline__ void store(Number* at, float2 of) { *reinterpret_cast<unsigned*>(at) = two(of.x, of.y); }
__device__ __forceinline__ void store(Number* at, float4 of) {
    *reinterpret_cast<uint2*>(at) = uint2{two(of.x, of.y), two(of.z, of.w)};
}
#else
__device__ __forceinline__ float value(Number of) { return of; }
__device__ __forceinline__ void store(Number* at, float2 of) { *reinterpret_cast<float2*>(at) = float2{number(of.x), number(of.y)}; }
__device__ __forceinline__ void store(Number* at, float4 of) {
#if PRECISION == 1
    of = float4{number(of.x), number(of.y), number(of.z), number(of.w)};
#endif
    *reinterpret_cast<float4*>(at) = of;
}
#endif

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// A quarter of the results of a tile's rows: all of them, and those of a block of the cluster.
constexpr unsigned ALL = SUMS / 4, SHARE = ALL / SPLIT;

// This block among the others, and its shared memory.
struct Block {
    const Steps& of;
    unsigned rank = blockIdx.x, tile = blockIdx.y, tiles;
    // The widest rows of a part, and the longest part.
    unsigned pitch, part;
    // The left factor, and sums in its place; the right factor; what the weights are updated by; sums of others; the weights, and
    // with bfloat16 those that products read.
    Number *left, *right, *xs, *ys, *rounded;
    float *sums, *received, *weights;
    Parts parts;
    // The part of a product's results that this thread writes, four numbers at once.
    bool writes;
    unsigned row, column, place;

    __device__ __forceinline__ explicit Block(const Steps& of) : of(of) {
        tiles = (of.width + COLUMNS - 1) / COLUMNS;
        pitch = max(of.pitch[0], of.pitch[1]), part = max(of.part[0], of.part[1]);
        sums = shared_at(8);
        left = reinterpret_cast<Number*>(sums);
        right = left + max(64 * pitch, (unsigned)(2 * SUMS * sizeof(float) / sizeof(Number)));
        xs = right + COLUMNS * pitch;
        ys = xs + 64 * pitch;
        received = reinterpret_cast<float*>(ys + SUMS);
        weights = received + SUMS;
        rounded = reinterpret_cast<Number*>(weights + of.hidden * part * WEIGHTS_PITCH);
        unsigned at = rank * SHARE + threadIdx.x;
        row = at / (COLUMNS / 4), column = at % (COLUMNS / 4) * 4;
        unsigned of_all = tile * COLUMNS + column;
        writes = threadIdx.x < SHARE && row < of.images && of_all < of.width;
        place = (of_all / of.part[1] * 64 + row) * of.pitch[1] + of_all % of.part[1];
    }

    __device__ __forceinline__ bool has_tile() const { return tile < tiles; }
    __device__ __forceinline__ unsigned columns() const { return min((unsigned)COLUMNS, of.width - tile * COLUMNS); }
    __device__ __forceinline__ float* weights_of(unsigned layer) const { return weights + layer * part * WEIGHTS_PITCH; }
    // The weights as products read them.
    __device__ __forceinline__ Number* factor_of(unsigned layer) const {
#if PRECISION == 2
        return rounded + layer * part * COLUMNS;
#else
        return weights_of(layer);
#endif
    }
    __device__ __forceinline__ unsigned pitch_of(unsigned layer) const { return of.pitch[layer > 0]; }

    // Numbers of this block's part of what a layer reads, and the first.
    __device__ __forceinline__ unsigned first(unsigned layer) const { return rank * of.part[layer > 0]; }
    __device__ __forceinline__ unsigned count(unsigned layer) const {
        unsigned all = layer > 0 ? of.width : of.pixels;
        return min(of.part[layer > 0], all - min(all, first(layer)));
    }

    // Waits for who writes this block's part of what layers but the first read. These are also who read the copies of what it
    // updates. Another cluster may be waited for, too.
    __device__ __forceinline__ void wait(Barrier& barrier, unsigned other) const {
        unsigned first = this->first(1);
        if (count(1) > 0)
            barrier.wait(first / COLUMNS, (first + count(1) - 1) / COLUMNS, other);
        else
            barrier.wait(tile, tile, other);
    }

    // Where this block's part of some rows begins.
    __device__ __forceinline__ const Number* part_of(const Number* rows, unsigned layer) const {
        return rows + (size_t)rank * 64 * pitch_of(layer);
    }
    __device__ __forceinline__ const Number* tile_of(const Number* gradients) const {
        return gradients + SPLIT * 64 * of.pitch[1] + tile * SUMS;
    }
    __device__ __forceinline__ const Number* images(unsigned step) const {
        return of.inputs[0] + (size_t)step * SPLIT * 64 * of.pitch[0];
    }

    __device__ __forceinline__ void load_left(const Number* rows, unsigned layer) const {
        copy(left, part_of(rows, layer), of.images * pitch_of(layer));
    }
    __device__ __forceinline__ void load_right(unsigned layer) const {
        copy(right, of.copies[layer] + (size_t)(tile * SPLIT + rank) * COLUMNS * of.pitch[1], columns() * of.pitch[1]);
    }
    __device__ __forceinline__ void load_xs(const Number* rows, unsigned layer) const {
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

    __device__ __forceinline__ void multiply(unsigned left, unsigned right, unsigned count, unsigned pitch) {
#if PRECISION == 2
        unsigned below = threadIdx.x / 32 % 2 * 32 + lane % 16, beside = lane / 8 % 2 * 8;
        for (unsigned k = group * UNIT; k < count; k += GROUPS * UNIT) {
            unsigned a[2][4], b[4];
#pragma unroll
            for (int half = 0; half < 2; ++half)
                load_matrices<false>(a[half], left + ((below + 16 * half) * pitch + k + lane / 16 * 8) * 2);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 16) {
                // The last eight columns have none beside them.
                unsigned column = j + (j + 8 < COLUMNS ? lane / 16 * 8 : 0);
                if (RT)
                    load_matrices<false>(b, right + ((column + lane % 8) * pitch + k + beside) * 2);
                else
                    load_matrices<true>(b, right + ((k + beside + lane % 8) * COLUMNS + column) * 2);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float* to = sums + half * (COLUMNS / 2) + j / 2;
                    multiply_add(to, a[half], b);
                    if (j + 8 < COLUMNS) multiply_add(to + 4, a[half], b + 2);
                }
            }
        }
#elif PRECISION == 1
        for (unsigned first = group * UNIT; first < count; first += GROUPS * UNIT) {
            unsigned k = first + 2 * n;
            float2 a[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int below = 0; below < 2; ++below)
                    a[half][below] = load2(left + ((m + 16 * half + 8 * below) * pitch + k) * 4);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 8) {
                unsigned column = j + lane / 4, of = right + (k * WEIGHTS_PITCH + column) * 4;
                float2 b = RT ? load2(right + (column * pitch + k) * 4)
                              : float2{number(load(of)), number(load(of + WEIGHTS_PITCH * 4))};
#pragma unroll
                for (int half = 0; half < 2; ++half) multiply_add(sums + half * (COLUMNS / 2) + j / 2, a[half], b);
            }
        }
#else
        for (unsigned k = group * UNIT; k < count; k += GROUPS * UNIT) {
            float4 x[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = load4(left + ((m + 8 * i) * pitch + k) * 4);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                float4 y;
                if (RT) {
                    y = load4(right + ((n + 8 * j) * pitch + k) * 4);
                } else {
                    unsigned of = right + (k * WEIGHTS_PITCH + n + 8 * j) * 4, next = WEIGHTS_PITCH * 4;
                    y = float4{load(of), load(of + next), load(of + 2 * next), load(of + 3 * next)};
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
// that is not above 0. After the left factor, at most one other thing was copied. `meanwhile` is called once the factors
// were read.
template <bool RT, class F>
__device__ __forceinline__ void product(Block& block, unsigned layer, const Number* right, const Number* mask, Number* out,
                                        F meanwhile) {
    const Steps& of = block.of;
    if (threadIdx.x == 0) Parts::expect(SUMS * 4);
    float4 gate = {1.0f, 1.0f, 1.0f, 1.0f};
    if (RT && block.writes) {
        const Number* at = mask + block.place;
#if PRECISION == 2
        uint2 of = *reinterpret_cast<const uint2*>(at);
        gate = float4{value(of.x & 0xffff), value(of.x >> 16), value(of.y & 0xffff), value(of.y >> 16)};
#else
        gate = *reinterpret_cast<const float4*>(at);
#endif
    }
    Tile<RT> tile;
    arrived<1>();
    __syncthreads();
    tile.multiply(address(block.left), address(right), block.count(layer), block.pitch_of(layer));
    __syncthreads();
    tile.store(block.sums);
    const float4* sums = reinterpret_cast<const float4*>(block.sums);
#pragma unroll
    for (unsigned i = threadIdx.x; i < ALL; i += THREADS)
        Parts::send(i / SHARE, block.received + 4 * (block.rank * SHARE + i % SHARE), sums[i] + sums[ALL + i]);
    meanwhile();
    block.parts.wait();
    if (block.writes) {
        const float4* received = reinterpret_cast<const float4*>(block.received) + threadIdx.x;
        float4 sum = received[0];
#pragma unroll
        for (unsigned from = 1; from < SPLIT; ++from) sum = sum + received[from * SHARE];
        auto result = [](float sum, float gate) { return RT ? (gate > 0.0f ? sum : 0.0f) : (sum > 0.0f ? sum : 0.0f); };
        sum = float4{result(sum.x, gate.x), result(sum.y, gate.y), result(sum.z, gate.z), result(sum.w, gate.w)};
        store(out + block.place, sum);
        if (RT) store(out + SPLIT * 64 * of.pitch[1] + block.tile * SUMS + block.row * COLUMNS + block.column, sum);
    }
}
#endif
