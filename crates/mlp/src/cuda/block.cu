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

// out = the images of all steps, as floats and by parts. One block of SPLIT warps for a row: each has a part of it.
extern "C" __global__ void images_by_parts(float* __restrict__ out, const unsigned char* __restrict__ rows, unsigned pixels,
                                           unsigned images, unsigned part, unsigned pitch) {
    unsigned step = blockIdx.x / images, image = blockIdx.x % images, number = threadIdx.x / 32, first = number * part;
    const unsigned char* row = rows + (size_t)blockIdx.x * (pixels + 1) + first;
    float* to = out + (((size_t)step * SPLIT + number) * 64 + image) * pitch;
    for (unsigned j = threadIdx.x % 32; j < part && first + j < pixels; j += 32) to[j] = row[j] / 255.0f;
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
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(tf32(a[0][0].x)), "r"(tf32(a[0][1].x)), "r"(tf32(a[0][0].y)), "r"(tf32(a[0][1].y)), "r"(tf32(b[0].x)),
          "r"(tf32(b[0].y)));
#elif PRECISION == 2
    auto two = [](float2 of) {
        unsigned bits;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(of.y), "f"(of.x));
        return bits;
    };
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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

    __device__ __forceinline__ void multiply(unsigned left, unsigned right, unsigned count, unsigned pitch) {
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
                        a[half][eight][below] = load2(left + ((m + 16 * half + 8 * below) * pitch + k + 8 * eight) * 4);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 8) {
#pragma unroll
                for (int eight = 0; eight < EIGHTS; ++eight) {
                    unsigned at = k + 8 * eight, column = j + lane / 4;
                    if (RT) {
                        b[eight] = load2(right + (column * pitch + at) * 4);
                    } else {
                        unsigned of = right + (at * WEIGHTS_PITCH + column) * 4;
                        b[eight] = float2{load(of), load(of + WEIGHTS_PITCH * 4)};
                    }
                }
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
__device__ __forceinline__ void product(Block& block, unsigned layer, const float* right, const float* mask, float* out,
                                        F meanwhile) {
    const Steps& of = block.of;
    if (threadIdx.x == 0) Parts::expect(SUMS * 4);
    float4 gate = {1.0f, 1.0f, 1.0f, 1.0f};
    if (RT && block.writes) gate = *reinterpret_cast<const float4*>(mask + block.place);
    Tile<RT> tile;
    arrived<1>();
    __syncthreads();
    tile.multiply(address(block.left), address(right), block.count(layer), block.pitch_of(layer));
    __syncthreads();
    tile.store(block.left);
    const float4* sums = reinterpret_cast<const float4*>(block.left);
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
        *reinterpret_cast<float4*>(out + block.place) = sum;
        if (RT)
            *reinterpret_cast<float4*>(out + SPLIT * 64 * of.pitch[1] + block.tile * SUMS + block.row * COLUMNS +
                                       block.column) = sum;
    }
}
#endif
