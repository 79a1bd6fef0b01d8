// What programs ask of CUDA's memory: graphs, attributes, pitches, pools of their own, entry points, threads, IPC, resets. It
// ends with status 0 where all of it is as the driver has it.

#include "check.h"

#include <cuda.h>
#include <thread>
#include <vector>

constexpr size_t MIB = 1 << 20;

__global__ void add(int *at, int count, int value) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) at[i] += value;
}

static int first(const int *at) {
    int value;
    OK(cudaMemcpy(&value, at, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static void launch(cudaGraph_t graph, cudaStream_t stream, int times) {
    cudaGraphExec_t ready;
    OK(cudaGraphInstantiate(&ready, graph, 0));
    for (int turn = 0; turn < times; turn++) OK(cudaGraphLaunch(ready, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(ready));
    OK(cudaGraphDestroy(graph));
}

// A graph that allocates for itself, while another thread allocates.
static void graph_with_memory(int *kept, cudaStream_t stream) {
    cudaGraph_t graph;
    int *own;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&own, 4096, stream));
    OK(cudaMemsetAsync(own, 0, 4096, stream));
    add<<<4, 256, 0, stream>>>(own, 1024, 3);
    add<<<4, 256, 0, stream>>>(kept, 1024, 1);
    OK(cudaFreeAsync(own, stream));
    std::thread([] {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        OK(cudaThreadExchangeStreamCaptureMode(&mode));
        cudaStream_t other;
        void *at;
        OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        OK(cudaMallocAsync(&at, MIB, other));
        OK(cudaFreeAsync(at, other));
        OK(cudaStreamDestroy(other));
    }).join();
    OK(cudaStreamEndCapture(stream, &graph));
    launch(graph, stream, 5);
    CHECK(first(kept) == 5);
}

// Other memory is freed while a graph is captured.
static void free_in_a_capture(int *kept, cudaStream_t stream) {
    cudaGraph_t graph;
    int *other;
    OK(cudaMalloc(&other, MIB));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    add<<<4, 256, 0, stream>>>(kept, 1024, 10);
    OK(cudaFree(other));
    OK(cudaStreamEndCapture(stream, &graph));
    launch(graph, stream, 1);
    CHECK(first(kept) == 15);
}

static void shapes() {
    char *rows;
    size_t pitch;
    OK(cudaMallocPitch(&rows, &pitch, 1000, 100));
    OK(cudaMemset2D(rows, pitch, 1, 1000, 100));
    OK(cudaFree(rows));
    cudaPitchedPtr space;
    OK(cudaMalloc3D(&space, make_cudaExtent(100, 20, 10)));
    OK(cudaFree(space.ptr));
    cudaArray_t array;
    const auto format = cudaCreateChannelDesc<float>();
    OK(cudaMallocArray(&array, &format, 256, 256));
    OK(cudaFreeArray(array));
}

static void pools(cudaStream_t stream) {
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t own;
    void *at;
    OK(cudaMemPoolCreate(&own, &props));
    OK(cudaMallocFromPoolAsync(&at, MIB, own, stream));
    OK(cudaFreeAsync(at, stream));
    OK(cudaMemPoolTrimTo(own, 0));
    OK(cudaMemPoolDestroy(own));
    // Each kind of memory is freed by the other kind of call.
    OK(cudaMallocAsync(&at, MIB, stream));
    OK(cudaFree(at));
    OK(cudaMalloc(&at, MIB));
    OK(cudaFreeAsync(at, stream));
    OK(cudaStreamSynchronize(stream));
}

template <class Function> static Function *entry_point(const char *name, int version) {
    void *found;
    cudaDriverEntryPointQueryResult result;
    OK(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
    CHECK(found);
    return reinterpret_cast<Function *>(found);
}

static void entry_points() {
    CUdeviceptr at, start;
    size_t bytes;
    CHECK(!entry_point<CUresult(CUdeviceptr *, size_t)>("cuMemAlloc", 12000)(&at, 5 * MIB));
    const auto range = entry_point<CUresult(CUdeviceptr *, size_t *, CUdeviceptr)>("cuMemGetAddressRange", 12000);
    CHECK(!range(&start, &bytes, at + 1000) && start == at && bytes == 5 * MIB);
    OK(cudaFree(reinterpret_cast<void *>(at)));
}

static void errors(cudaStream_t stream) {
    void *at;
    CHECK(cudaFree(reinterpret_cast<void *>(0x1000)) == cudaErrorInvalidValue);
    CHECK(cudaMalloc(&at, size_t(1) << 45) == cudaErrorMemoryAllocation);
    CHECK(cudaMallocAsync(&at, size_t(1) << 45, stream) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
}

// Threads with streams of their own, which end.
static void streams() {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; thread++) {
        threads.emplace_back([] {
            for (int turn = 0; turn < 20; turn++) {
                cudaStream_t stream;
                int *at, value;
                OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
                OK(cudaMallocAsync(&at, MIB, stream));
                OK(cudaMemsetAsync(at, 0, MIB, stream));
                add<<<4, 256, 0, stream>>>(at, 1024, 7);
                OK(cudaMemcpyAsync(&value, at, sizeof value, cudaMemcpyDeviceToHost, stream));
                OK(cudaFreeAsync(at, stream));
                OK(cudaStreamSynchronize(stream));
                CHECK(value == 7);
                OK(cudaStreamDestroy(stream));
            }
        });
    }
    for (auto &thread : threads) thread.join();
}

int main() {
    int *kept;
    cudaStream_t stream;
    cudaPointerAttributes about;
    OK(cudaMalloc(&kept, 4 * MIB));
    OK(cudaMemset(kept, 0, 4 * MIB));
    OK(cudaPointerGetAttributes(&about, kept + 100));
    CHECK(about.type == cudaMemoryTypeDevice && about.device == 0);
    OK(cudaStreamCreate(&stream));
    graph_with_memory(kept, stream);
    free_in_a_capture(kept, stream);
    shapes();
    pools(stream);
    entry_points();
    errors(stream);
    streams();
    // Memory for other processes: a pool cannot give its own, and the next is the driver's.
    cudaIpcMemHandle_t handle;
    if (cudaIpcGetMemHandle(&handle, kept) != cudaSuccess) {
        CHECK(cudaGetLastError() == cudaErrorNotSupported);
        int *again;
        OK(cudaMalloc(&again, 4 * MIB));
        OK(cudaIpcGetMemHandle(&handle, again));
        OK(cudaFree(again));
    }
    for (int turn = 0; turn < 2; turn++) {
        OK(cudaDeviceReset());
        OK(cudaMalloc(&kept, 4 * MIB));
        OK(cudaMemset(kept, 1, 4 * MIB));
        OK(cudaDeviceSynchronize());
        CHECK(first(kept) == 0x01010101);
    }
    std::puts("all is as the driver has it");
}
