// What cuBLASLt does not do. Matrices are row-major and dense; see kernels.rs for the launches.
// No header: NVRTC compiles this text alone.

// A row of a batch has the pixels of an image, and then its label.

// out[i, j] = rows[i, j] / 255. One block for a row of the output.
extern "C" __global__ void images(float* __restrict__ out, const unsigned char* __restrict__ rows, unsigned pixels) {
    const unsigned char* image = rows + (size_t)blockIdx.x * (pixels + 1);
    float* row = out + (size_t)blockIdx.x * pixels;
    for (unsigned j = threadIdx.x; j < pixels; j += blockDim.x) row[j] = image[j] / 255.0f;
}

// rows[i] = data[order[next + i]], each of `row` bytes. One block for a row. What the order does not have is left as it is.
extern "C" __global__ void gather(unsigned char* __restrict__ rows, const unsigned char* __restrict__ data, unsigned row,
                                  const unsigned* __restrict__ order, unsigned count, unsigned images,
                                  const unsigned* __restrict__ next) {
    unsigned place = *next + blockIdx.x;
    if (place >= count || order[place] >= images) return;
    const unsigned char* from = data + (size_t)order[place] * row;
    unsigned char* to = rows + (size_t)blockIdx.x * row;
    for (unsigned j = threadIdx.x; j < row; j += blockDim.x) to[j] = from[j];
}

extern "C" __global__ void advance(unsigned* next, unsigned by) { *next += by; }

// dx[i] = x[i] > 0 ? sum over p of parts[p, i] : 0, four at a time and the tail by the first threads. With
// several parts `count` is a multiple of four.
extern "C" __global__ void relu_gradient(float* __restrict__ dx, const float* __restrict__ parts,
                                         size_t number, const float* __restrict__ x, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t fours = count / 4;
    if (i < fours) {
        float4 at = reinterpret_cast<const float4*>(x)[i];
        float4 d = reinterpret_cast<const float4*>(parts)[i];
        for (size_t p = 1; p < number; ++p) {
            float4 next = reinterpret_cast<const float4*>(parts + p * count)[i];
            d.x += next.x;
            d.y += next.y;
            d.z += next.z;
            d.w += next.w;
        }
        d.x = at.x > 0.0f ? d.x : 0.0f;
        d.y = at.y > 0.0f ? d.y : 0.0f;
        d.z = at.z > 0.0f ? d.z : 0.0f;
        d.w = at.w > 0.0f ? d.w : 0.0f;
        reinterpret_cast<float4*>(dx)[i] = d;
    }
    size_t tail = fours * 4 + i;
    if (tail < count && i < 4) dx[tail] = x[tail] > 0.0f ? parts[tail] : 0.0f;
}

// One block, which is what makes the sums come out the same every time. A thread takes every blockDim-th row;
// blockDim is a power of two. `gradient` may be null: then only the totals are made. The mean is over `of` images.
extern "C" __global__ void cross_entropy(float* __restrict__ gradient, double* __restrict__ totals,
                                         const float* __restrict__ logits,
                                         const unsigned char* __restrict__ rows, unsigned pixels,
                                         unsigned count, unsigned classes, unsigned of) {
    __shared__ double losses[MAX_THREADS];
    __shared__ unsigned hits[MAX_THREADS];
    double loss = 0.0;
    unsigned correct = 0;
    for (unsigned row = threadIdx.x; row < count; row += blockDim.x) {
        const float* z = logits + (size_t)row * classes;
        unsigned label = rows[(size_t)row * (pixels + 1) + pixels];
        unsigned best = 0;
        float top = z[0];
        float wanted = 0.0f;
        for (unsigned c = 0; c < classes; ++c) {
            float value = z[c];
            if (value > top) {
                top = value;
                best = c;
            }
            if (c == label) wanted = value;
        }
        // Subtracting the largest keeps exp from overflowing.
        float sum = 0.0f;
        for (unsigned c = 0; c < classes; ++c) sum += expf(z[c] - top);
        loss += (double)(logf(sum) + top - wanted);
        correct += best == label;
        if (gradient) {
            float* g = gradient + (size_t)row * classes;
            for (unsigned c = 0; c < classes; ++c)
                g[c] = (expf(z[c] - top) / sum - (c == label ? 1.0f : 0.0f)) / (float)of;
        }
    }
    losses[threadIdx.x] = loss;
    hits[threadIdx.x] = correct;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            losses[threadIdx.x] += losses[threadIdx.x + half];
            hits[threadIdx.x] += hits[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        totals[0] += losses[0];
        totals[1] += (double)hits[0];
    }
}

// The pointers travel as a launch parameter, so that one launch updates every layer without a table in memory.
struct Layers {
    float* weights[MAX_LAYERS];
    const float* gradients[MAX_LAYERS];
    float* velocities[MAX_LAYERS];
    size_t count[MAX_LAYERS];
};

// weights -= rate * gradients; with velocities, these are momentum * velocities + gradients before, and take the
// gradients' place. blockIdx.y is the layer.
extern "C" __global__ void update(const __grid_constant__ Layers layers, float rate, float momentum) {
    float* weights = layers.weights[blockIdx.y];
    const float* gradients = layers.gradients[blockIdx.y];
    float* velocities = layers.velocities[blockIdx.y];
    size_t count = layers.count[blockIdx.y];
    size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t fours = count / 4;
    for (size_t i = first; i < fours; i += stride) {
        float4 w = reinterpret_cast<float4*>(weights)[i];
        float4 g = reinterpret_cast<const float4*>(gradients)[i];
        if (velocities) {
            float4 v = reinterpret_cast<float4*>(velocities)[i];
            g.x = momentum * v.x + g.x;
            g.y = momentum * v.y + g.y;
            g.z = momentum * v.z + g.z;
            g.w = momentum * v.w + g.w;
            reinterpret_cast<float4*>(velocities)[i] = g;
        }
        w.x -= rate * g.x;
        w.y -= rate * g.y;
        w.z -= rate * g.z;
        w.w -= rate * g.w;
        reinterpret_cast<float4*>(weights)[i] = w;
    }
    if (first < count % 4) {
        size_t i = fours * 4 + first;
        float g = gradients[i];
        if (velocities) velocities[i] = g = momentum * velocities[i] + g;
        weights[i] -= rate * g;
    }
}
