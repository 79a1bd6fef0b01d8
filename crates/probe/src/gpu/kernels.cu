// What `millpond probe` reads a GPU's memory with. After a change: scripts/probe-kernels, which makes kernels.ptx.
//
// What is read goes into a sum. If that is one certain number, it is written: so the compiler leaves no read out.

typedef unsigned int u32;
typedef unsigned long long u64;

// Reads in flight for each thread.
#define AT_ONCE 8
#define RARE 0x9e3779b9u

__device__ u32 sink;

__device__ __forceinline__ u32 sum(u32 word) { return word; }
__device__ __forceinline__ u32 sum(uint4 words) { return words.x + words.y + words.z + words.w; }

// All threads together read `count` elements, `stride` apart.
template <typename T> __device__ __forceinline__ void read(const T *from, u64 count, u64 stride) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 total = 0;
    for (; at + (AT_ONCE - 1) * step < count; at += AT_ONCE * step) {
        T found[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) found[i] = from[(at + i * step) * stride];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) total += sum(found[i]);
    }
    for (; at < count; at += step) total += sum(from[at * stride]);
    if (total == RARE) sink = total;
}

extern "C" __global__ void read_wide(const uint4 *from, u64 count) { read(from, count, 1); }

extern "C" __global__ void read_strided(const u32 *from, u64 count, u64 stride) { read(from, count, stride); }

// The first `USED` fields of each record, by the distances of two records and of two fields.
template <int USED> __device__ __forceinline__ void read_fields(const u32 *from, u64 records, u64 record, u64 field) {
    const int each = AT_ONCE / USED;
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 total = 0;
    for (; at + (each - 1) * step < records; at += each * step) {
        u32 found[each * USED];
#pragma unroll
        for (int i = 0; i < each * USED; i++) {
            found[i] = from[(at + i / USED * step) * record + i % USED * field];
        }
#pragma unroll
        for (int i = 0; i < each * USED; i++) total += found[i];
    }
    for (; at < records; at += step) {
        for (int i = 0; i < USED; i++) total += from[at * record + i * field];
    }
    if (total == RARE) sink = total;
}

extern "C" __global__ void read_2_fields(const u32 *from, u64 records, u64 record, u64 field) {
    read_fields<2>(from, records, record, field);
}

extern "C" __global__ void read_8_fields(const u32 *from, u64 records, u64 record, u64 field) {
    read_fields<8>(from, records, record, field);
}

// A chain of addresses: each of `nodes` (a power of two), `apart` words from the one before, has the address of the next.
extern "C" __global__ void make_chain(u64 *chain, u64 nodes, u64 apart, u64 a, u64 c) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 node = (u64)blockIdx.x * blockDim.x + threadIdx.x; node < nodes; node += step) {
        chain[node * apart] = (u64)(chain + ((node * a + c) & (nodes - 1)) * apart);
    }
}

// One thread follows a chain, from the address in `at`, and leaves there the one that it came to.
extern "C" __global__ void chase(u64 *at, u64 steps) {
    u64 now = *at;
#pragma unroll 1
    for (u64 step = 0; step < steps; step += 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(now));
    }
    *at = now;
}

// The same in shared memory. One thread follows what all have made.
extern "C" __global__ void chase_shared(u64 *at, u64 steps, u64 a, u64 c) {
    __shared__ u32 chain[1024];
    const u32 first = (u32)__cvta_generic_to_shared(chain);
    for (u32 node = threadIdx.x; node < 1024; node += blockDim.x) {
        chain[node] = first + 4 * (u32)((node * a + c) & 1023);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    u32 now = first;
#pragma unroll 1
    for (u64 step = 0; step < steps; step += 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(now));
    }
    *at = now;
}
