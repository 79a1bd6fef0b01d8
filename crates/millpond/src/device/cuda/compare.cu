// Whether a byte in a range is another than it should be. scripts/kernels makes compare.ptx of this.

// Sets `found` to 1 if any of `bytes` bytes at `at`, a multiple of 16, is not `value`.
extern "C" __global__ void differs(const unsigned char *at, unsigned long long bytes, unsigned int value, unsigned int *found) {
    const unsigned int four = value * 0x01010101u;
    const uint4 *words = reinterpret_cast<const uint4 *>(at);
    const unsigned long long count = bytes / 16;
    const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
    const unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int other = 0;
    for (unsigned long long word = first; word < count; word += threads) {
        const uint4 is = words[word];
        other |= (is.x ^ four) | (is.y ^ four) | (is.z ^ four) | (is.w ^ four);
    }
    for (unsigned long long byte = count * 16 + first; byte < bytes; byte += threads) {
        other |= at[byte] ^ value;
    }
    if (other != 0) {
        *found = 1;
    }
}
