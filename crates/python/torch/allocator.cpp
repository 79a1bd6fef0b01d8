// PyTorch's allocator over Millpond's pools: a class that derives from PyTorch's own interface, one library for each
// layout of that interface. `scripts/torch-shims` builds them from the headers in PyTorch's wheels.
//
// How one request passes through. PyTorch calls `allocate`; that finds the GPU and its current stream, and asks the
// extension module, by the table of functions in `pool.h`. There the block is entered in the books. Here PyTorch's
// history, trackers and profiler are told. Memory that PyTorch's own allocator has to provide, such as pools with an
// allocator of the program's inside, is left to it.

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "failure.h"
#include "history.h"
#include "left_to_native.h"
#include "names.h"
#include "pinned.h"
#include "pool.h"
#include "sharing.h"

namespace millpond {
namespace {

class MillpondAllocator;
MillpondAllocator* instance = nullptr;

PoolId id_of(MempoolId_t id) {
  return {id.first, id.second};
}

c10::Device device_of(int gpu) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu)};
}

// PyTorch refuses such requests without trying.
constexpr size_t EXBIBYTE = size_t{1} << 60;

// A size as PyTorch's out-of-memory error has it.
std::string size_text(uint64_t bytes) {
  constexpr std::pair<uint64_t, const char*> UNITS[] = {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}};
  for (auto [unit, name] : UNITS) {
    if (bytes > unit) {
      char text[32];
      std::snprintf(text, sizeof text, "%.2f %s", static_cast<double>(bytes) / static_cast<double>(unit), name);
      return text;
    }
  }
  return std::to_string(bytes) + " bytes";
}

// Whether a callback freed memory: CUDA IPC has one, for what other processes let go.
bool run_free_memory_callbacks() {
  bool freed = false;
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return freed;
}


template <typename To>
void copy_all(To& to, const Stat (&from)[3]) {
  for (size_t kind = 0; kind < 3; ++kind) {
    copy(to[kind], from[kind]);
  }
}

void delete_block(void* ptr);

// A block that the program gives up goes back when this ends.
struct GoesBack {
  explicit GoesBack(const Entry& entry) : entry(entry) {}
  GoesBack(const GoesBack&) = delete;
  GoesBack& operator=(const GoesBack&) = delete;
  ~GoesBack() {
    pool->free(&entry);
  }
  const Entry& entry;
};

// What was live in a pool of PyTorch's.
struct Checkpoint : native::AllocatorState {
  explicit Checkpoint(void* live) : live(live) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint() override {
    pool->forget_checkpoint(live);
  }
  void* live;
};

class MillpondAllocator final : public CUDAAllocator {
 public:
  explicit MillpondAllocator(CUDAAllocator* before) : before_(before) {}

  std::string name() override {
    return "millpond";
  }

  void init(int gpus) override {
    before_->init(gpus);
    gpus_ = gpus;
  }

  bool initialized() override {
    return gpus_ > 0;
  }

  // Without it, tensors come from the driver one by one, by PyTorch's own allocator, and go back there.
  void enable(bool value) override {
    before_->enable(value);
    is_enabled_ = value;
  }

  bool isEnabled() const override {
    return is_enabled_;
  }

  // ---- one allocation --------------------------------------------------------------------------------------------

  c10::DataPtr allocate(size_t bytes) override {
    c10::DeviceIndex gpu = current_gpu();
    TORCH_CHECK_WITH(
        OutOfMemoryError, bytes < EXBIBYTE, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(gpu);
    if (C10_UNLIKELY(is_uncached() || left_.takes(gpu, stream))) {
      return before_->allocate(bytes);
    }
    void* ptr = allocate_on(gpu, bytes, stream);
    return {ptr, ptr, &delete_block, device_of(gpu)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_block;
  }

  void* raw_alloc(size_t bytes) override {
    return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(current_gpu()));
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    c10::DeviceIndex gpu = current_gpu();
    if (C10_UNLIKELY(is_uncached() || left_.takes(gpu, stream))) {
      return before_->raw_alloc_with_stream(bytes, stream);
    }
    return allocate_on(gpu, bytes, stream);
  }

  void raw_delete(void* ptr) override {
    if (ptr == nullptr) {
      return;
    }
    Entry entry;
    if (C10_UNLIKELY(!pool->strike(ptr, &entry))) {
      // A forked child drops its parent's tensors, which is no mistake of its own.
      if (!pool->is_forked()) {
        before_->raw_delete(ptr);
      }
      return;
    }
    {
      // Also where one of those who are told throws.
      GoesBack goes_back(entry);
      history_.freed(entry);
      trace_on_gpu(entry, false);
    }
    report(entry, -static_cast<int64_t>(entry.bytes));
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyKind::cudaMemcpyDeviceToDevice));
  }

  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override {
    if (ptr.get() == nullptr) {
      return;
    }
    if (ptr.get_deleter() != &delete_block) {
      // Its own memory, or another library's, with which it does nothing.
      before_->recordStream(ptr, stream);
      return;
    }
    check(pool->record_use(ptr.get(), stream.device_index(), stream.stream()));
  }

  void* getBaseAllocation(void* ptr, size_t* size) override {
    uint64_t bytes = 0;
    void* base = pool->block_at(ptr, &bytes);
    if (base == nullptr) {
      return before_->getBaseAllocation(ptr, size);
    }
    if (size != nullptr) {
      *size = bytes;
    }
    return base;
  }

  // ---- the cache and its limits ----------------------------------------------------------------------------------

  void emptyCache(MempoolId_t id = {0, 0}) override {
    if (id == MempoolId_t{0, 0}) {
      History::Stack stack(history_, RecordContext::ALL);
      check(pool->empty_cache());
    }
    // Of a pool that is in use nothing can be given back; what was released is gone already.
    before_->emptyCache(id);
  }

  void cacheInfo(c10::DeviceIndex gpu, size_t* largest) override {
    *largest = std::max<size_t>(*largest, pool->largest_allocation(gpu));
  }

  double getMemoryFraction(c10::DeviceIndex gpu) override {
    return pool->fraction(gpu);
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex gpu) override {
    TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    check(pool->set_fraction(gpu, fraction));
  }

#if MILLPOND_TORCH >= 210
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }
#endif

  // ---- figures ---------------------------------------------------------------------------------------------------

  DeviceStats getDeviceStats(c10::DeviceIndex gpu) override {
    Figures figures;
    pool->figures(gpu, &figures);
    DeviceStats stats;
    copy_all(stats.allocation, figures.blocks);
    copy_all(stats.active, figures.blocks);
    copy_all(stats.allocated_bytes, figures.allocated);
    copy_all(stats.active_bytes, figures.allocated);
    copy_all(stats.requested_bytes, figures.requested);
    // One page may hold small and large blocks.
    copy(stats.segment[0], figures.pages);
    copy(stats.reserved_bytes[0], figures.reserved);
    stats.num_alloc_retries = figures.retries;
    stats.num_ooms = figures.out_of_memory;
    stats.num_device_alloc = figures.device_allocs;
    stats.num_device_free = figures.device_frees;
    stats.max_split_size = -1;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex gpu) override {
    pool->reset_accumulated(gpu);
  }

  void resetPeakStats(c10::DeviceIndex gpu) override {
    pool->reset_peaks(gpu);
  }

#if MILLPOND_TORCH >= 211
  SnapshotInfo snapshot(MempoolId_t id = {0, 0}, bool include_traces = true) override {
#else
  SnapshotInfo snapshot(MempoolId_t id = {0, 0}) override {
    constexpr bool include_traces = true;
#endif
    bool is_of_pool = id.first != 0 || id.second != 0;
    SnapshotInfo snapshot{};
    // First: the snapshot is an event too, which only the next one shows.
    if (include_traces) {
      snapshot.device_traces = history_.traces(gpus_);
    } else {
      snapshot.device_traces.resize(gpus_);
    }
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      c10::DeviceIndex index = static_cast<c10::DeviceIndex>(gpu);
      if (is_of_pool && left_.has(index, id)) {
#if MILLPOND_TORCH >= 211
        return before_->snapshot(id, include_traces);
#else
        return before_->snapshot(id);
#endif
      }
      add_segments(index, is_of_pool ? &id : nullptr, snapshot.segments);
      Figures figures;
      pool->figures(gpu, &figures);
      history_.snapshot_taken(gpu, figures.allocated[0].current);
    }
    snapshot.external_annotations = history_.annotations();
    snapshot.config_metadata.max_split_size = std::numeric_limits<size_t>::max();
    snapshot.config_metadata.pinned_num_register_threads = 1;
    snapshot.config_metadata.expandable_segments = true;
    return snapshot;
  }

  // ---- history, trackers, observers ------------------------------------------------------------------------------

  bool isHistoryEnabled() override {
    return history_.is_recording();
  }

  void recordHistory(
      bool enabled,
      CreateContextFn gather,
      size_t most,
      RecordContext when,
#if MILLPOND_TORCH >= 211
      bool clear,
      const std::vector<std::string>& skip) override {
#else
      bool clear) override {
    const std::vector<std::string> skip;
#endif
    history_.record(enabled, gather, most, when, clear, skip);
  }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& what) override {
    history_.annotate(current_gpu(), what);
  }

  void pushCompileContext(std::string& context) override {
    History::push_compile_context(context);
  }

  void popCompileContext() override {
    History::pop_compile_context();
  }

#if MILLPOND_TORCH >= 210
  void setUserMetadata(const std::string& metadata) override {
    History::user_metadata() = metadata;
  }

  std::string getUserMetadata() override {
    return History::user_metadata();
  }
#endif

#if MILLPOND_TORCH >= 214
  bool supportsUserMetadata() override {
    return true;
  }

  void annotateMemory(const void* ptr, const std::string& metadata) override {
    uint64_t bytes = 0;
    void* base = pool->block_at(const_cast<void*>(ptr), &bytes);
    if (base != nullptr) {
      history_.annotated(current_gpu(), base, bytes, metadata);
    }
  }
#endif

#if MILLPOND_TORCH >= 212
  // Nothing is refused before it is tried.
  void attachOomRejectionObserver(native::OomRejectionObserver) override {}

  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override {
    uint64_t bytes = 0;
    return history_.context_of(pool->block_at(const_cast<void*>(ptr), &bytes));
  }
#endif

  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    std::lock_guard<std::mutex> lock(mutex_);
    observers_.push_back(std::move(observer));
  }

  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    history_.track(std::move(tracker));
  }

  // No exception may pass from here: a pool is in the midst of a step.
  void tell_mapped(int gpu, void* at, size_t bytes, bool is_mapped) noexcept {
    try {
      history_.mapped(gpu, at, bytes, is_mapped);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "millpond: who tracks PyTorch's memory failed: %s\n", error.what());
    } catch (...) {
      std::fputs("millpond: who tracks PyTorch's memory failed\n", stderr);
    }
  }

  // ---- pools of PyTorch's ----------------------------------------------------------------------------------------

  void createOrIncrefPool(c10::DeviceIndex gpu, MempoolId_t id, AllocatorInside inside = nullptr) override {
    if (inside && !left_.has(gpu, id)) {
      left_.add(gpu, id);
    }
    if (left_.has(gpu, id)) {
      before_->createOrIncrefPool(gpu, id, std::move(inside));
    } else {
      check(pool->claim_pool(gpu, id_of(id)));
    }
  }

#if MILLPOND_TORCH >= 210
  // A pool without splits has one block in each segment of `cudaMalloc`, which PyTorch's own allocator has.
  void setNoSplit(c10::DeviceIndex gpu, MempoolId_t id) override {
    if (!left_.has(gpu, id)) {
      before_->createOrIncrefPool(gpu, id);
      left_.add(gpu, id);
      pool->release_pool(gpu, id_of(id));
    }
    before_->setNoSplit(gpu, id);
  }
#endif

#if MILLPOND_TORCH >= 211
  void setUseOnOOM(c10::DeviceIndex gpu, MempoolId_t id, bool use_on_oom) override {
#else
  void setUseOnOOM(c10::DeviceIndex gpu, MempoolId_t id) override {
    constexpr bool use_on_oom = true;
#endif
    if (!left_.has(gpu, id)) {
      check(pool->set_use_on_oom(gpu, id_of(id), use_on_oom));
      return;
    }
    // Each MemPool ends with a call for `false`.
    TORCH_CHECK_NOT_IMPLEMENTED(
        !use_on_oom, "millpond leaves this MemPool to PyTorch's own allocator: its memory cannot be used by others");
  }

  void beginAllocateToPool(c10::DeviceIndex gpu, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
    if (left_.has(gpu, id)) {
      before_->beginAllocateToPool(gpu, id, filter);
      left_.begin(gpu, id, std::move(filter));
      return;
    }
    Filter handed_over;
    handed_over.filter = new std::function<bool(cudaStream_t)>(std::move(filter));
    handed_over.takes = [](void* filter, void* stream) {
      try {
        return (*static_cast<std::function<bool(cudaStream_t)>*>(filter))(static_cast<cudaStream_t>(stream));
      } catch (...) {
        // A stream that cannot be asked is not the capture's. The program gets the same error from its next call.
        return false;
      }
    };
    handed_over.drop = [](void* filter) { delete static_cast<std::function<bool(cudaStream_t)>*>(filter); };
    check(pool->begin_pool(gpu, id_of(id), handed_over));
  }

  void endAllocateToPool(c10::DeviceIndex gpu, MempoolId_t id) override {
    if (left_.has(gpu, id)) {
      left_.end(gpu, id);
      before_->endAllocateToPool(gpu, id);
      return;
    }
    TORCH_CHECK(pool->end_pool(gpu, id_of(id)), "endAllocatePool: not currently recording to mempool_id");
  }

  void releasePool(c10::DeviceIndex gpu, MempoolId_t id) override {
    if (left_.has(gpu, id)) {
      if (before_->getPoolUseCount(gpu, id) == 1) {
        left_.remove(gpu, id);
      }
      before_->releasePool(gpu, id);
      return;
    }
    pool->release_pool(gpu, id_of(id));
  }

  int getPoolUseCount(c10::DeviceIndex gpu, MempoolId_t id) override {
    if (left_.has(gpu, id)) {
      return before_->getPoolUseCount(gpu, id);
    }
    int uses = 0;
    check(pool->pool_uses(gpu, id_of(id), &uses));
    return uses;
  }

  bool checkPoolLiveAllocations(
      c10::DeviceIndex gpu,
      MempoolId_t id,
      const std::unordered_set<void*>& expected) override {
    std::vector<void*> list(expected.begin(), expected.end());
    return pool->are_live(gpu, id_of(id), list.data(), list.size());
  }

  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex gpu, MempoolId_t id) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !left_.has(gpu, id), "millpond leaves this MemPool to PyTorch's own allocator, and makes no checkpoint of it");
    return std::make_shared<Checkpoint>(pool->checkpoint(gpu, id_of(id)));
  }

  native::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex gpu,
      std::shared_ptr<native::AllocatorState> state) override {
    auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
    TORCH_CHECK(checkpoint, "setCheckpointPoolState: the state is not from getCheckpointState of millpond");
    History::Stack stack(history_, RecordContext::STATE);
    struct Told {
      MillpondAllocator* self;
      native::CheckpointDelta delta;
      Thrown thrown;
    } told{this, {}, {}};
    Failed* failed = pool->restore(
        gpu,
        checkpoint->live,
        &told,
        [](void* context, const Entry* entry) {
          auto told = static_cast<Told*>(context);
          told->thrown.keep([&] { told->delta.ptrs_freed.push_back(entry->ptr); });
          told->thrown.keep([&] { told->self->history_.freed(*entry); });
          told->thrown.keep([&] { report(*entry, -static_cast<int64_t>(entry->bytes)); });
        },
        [](void* context, const Entry* entry) {
          auto told = static_cast<Told*>(context);
          // First: what owns the block frees it where something is thrown.
          told->thrown.keep([&] {
            told->delta.dataptrs_allocd.emplace_back(entry->ptr, entry->ptr, &delete_block, device_of(entry->gpu));
          });
          told->thrown.keep([&] { told->self->history_.allocated(*entry); });
          told->thrown.keep([&] { report(*entry, static_cast<int64_t>(entry->bytes)); });
        });
    check(failed);
    told.thrown.rethrow();
    return std::move(told.delta);
  }

  // ---- other processes and GPUs ----------------------------------------------------------------------------------

  native::ShareableHandle shareIpcHandle(void* ptr) override {
    uint64_t bytes = 0;
    void* base = pool->block_at(ptr, &bytes);
    return base == nullptr ? before_->shareIpcHandle(ptr) : share(base, ptr);
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    // Others are those that a process made with PyTorch's own allocator.
    return is_ours(handle) ? opened_.open(current_gpu(), handle) : before_->getIpcDevPtr(std::move(handle));
  }

  // PyTorch asks before its first copy between two GPUs. Its kernels then use memory of both, and without access they would end
  // the context.
  void enablePeerAccess(c10::DeviceIndex gpu, c10::DeviceIndex other) override {
    const char* access = std::getenv("MILLPOND_PEER_ACCESS");
    TORCH_CHECK(
        access == nullptr || std::string_view(access) != "0",
        "MILLPOND_PEER_ACCESS=0 keeps each GPU's memory to itself: unset it in a process that copies between GPUs");
    c10::cuda::CUDAGuard guard(gpu);
    cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
  }

  cudaError_t memcpyAsync(
      void* to,
      int to_gpu,
      const void* from,
      int from_gpu,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override {
    // Without peer access, mapped memory can only be copied by the call that names both GPUs.
    if (p2p_enabled || to_gpu == from_gpu) {
      return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_gpu, from, from_gpu, count, stream);
  }

 private:
  bool is_uncached() const {
    // PyTorch's own allocator looks for it too.
    static const bool is_forced = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return is_forced || !is_enabled_;
  }

  void* allocate_on(c10::DeviceIndex gpu, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) {
      return nullptr;
    }
    History::Stack stack(history_, RecordContext::STATE);
    Entry entry;
    Failed* failed = pool->allocate(gpu, bytes, stream, &entry);
    if (C10_UNLIKELY(failed != nullptr)) {
      allocate_again(gpu, bytes, stream, failed, entry);
    }
    try {
      history_.allocated(entry);
      trace_on_gpu(entry, true);
      report(entry, static_cast<int64_t>(entry.bytes));
    } catch (...) {
      // Nobody gets the block.
      if (pool->strike(entry.ptr, &entry)) {
        pool->free(&entry);
      }
      throw;
    }
    return entry.ptr;
  }

  // Throws where the second try fails as well.
  C10_NOINLINE void allocate_again(
      c10::DeviceIndex gpu,
      size_t bytes,
      cudaStream_t stream,
      Failed* failed,
      Entry& entry) {
    if (failed->is_out_of_memory && run_free_memory_callbacks()) {
      pool->forget_failure(failed);
      failed = pool->allocate(gpu, bytes, stream, &entry);
    }
    if (failed == nullptr) {
      return;
    }
    bool is_out_of_memory = failed->is_out_of_memory;
    std::string text = text_of(failed);
    TORCH_CHECK(is_out_of_memory, text);
    uint64_t free = 0, total = 0;
    pool->memory_info(gpu, &free, &total);
    tell_out_of_memory(gpu, bytes, stream, free, total);
    // The first two sentences are PyTorch's: programs look for them.
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        "CUDA out of memory. Tried to allocate ",
        size_text(bytes),
        ". GPU ",
        static_cast<int>(gpu),
        " has a total capacity of ",
        size_text(total),
        " of which ",
        size_text(free),
        " is free. ",
        text);
  }

  void tell_out_of_memory(c10::DeviceIndex gpu, size_t bytes, cudaStream_t stream, uint64_t free, uint64_t total) {
    history_.out_of_memory(gpu, bytes, free, stream);
    Figures figures;
    pool->figures(gpu, &figures);
    c10::reportOutOfMemoryToProfiler(
        static_cast<int64_t>(bytes), figures.allocated[0].current, figures.reserved.current, device_of(gpu));
    std::vector<native::OutOfMemoryObserver> observers;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      observers = observers_;
    }
    for (const auto& observer : observers) {
      observer(gpu, bytes, total, free);
    }
  }

  static void trace_on_gpu(const Entry& entry, bool is_allocation) {
    const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
    if (C10_LIKELY(interpreter == nullptr)) {
      return;
    }
    auto address = reinterpret_cast<uintptr_t>(entry.ptr);
    if (is_allocation) {
      (*interpreter)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, address);
    } else {
      (*interpreter)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, address);
    }
  }

  static void report(const Entry& entry, int64_t bytes) {
    c10::reportMemoryUsageToProfiler(entry.ptr, bytes, entry.allocated, entry.reserved, device_of(entry.gpu));
  }

  // Each range of addresses becomes a segment: its live blocks, and what lies between them as inactive ones. A segment of
  // PyTorch's is of one stream, so a range ends where blocks of another stream begin.
  void add_segments(c10::DeviceIndex gpu, const MempoolId_t* only, std::vector<SegmentInfo>& segments) {
    struct Told {
      MillpondAllocator* self;
      c10::DeviceIndex gpu;
      std::vector<SegmentInfo>& segments;
      size_t end;
      Thrown thrown;
    } told{this, gpu, segments, 0, {}};
    size_t first = segments.size();
    PoolId of_pool = only ? id_of(*only) : PoolId{};
    pool->snapshot(
        gpu,
        only ? &of_pool : nullptr,
        &told,
        [](void* context, const Segment* segment) {
          auto told = static_cast<Told*>(context);
          told->thrown.keep([&] { told->self->add_segment(told->gpu, *segment, told->segments, told->end); });
        },
        [](void* context, const Entry* entry) {
          auto told = static_cast<Told*>(context);
          told->thrown.keep([&] { told->self->add_block(*entry, told->segments, told->end); });
        });
    told.thrown.rethrow();
    for (size_t at = first; at < segments.size(); ++at) {
      SegmentInfo& segment = segments[at];
      size_t end = segment.address;
      for (const BlockInfo& block : segment.blocks) {
        end += block.size;
      }
      add_gap(segment, end, segment.address + segment.total_size);
    }
  }

  static void add_segment(c10::DeviceIndex gpu, const Segment& segment, std::vector<SegmentInfo>& segments, size_t& end) {
    SegmentInfo info;
    info.device = gpu;
    info.address = reinterpret_cast<size_t>(segment.start);
    info.total_size = segment.bytes;
    info.is_large = true;
    info.is_expandable = true;
    info.owner_private_pool_id = {segment.pool.first, segment.pool.second};
    segments.push_back(std::move(info));
    end = reinterpret_cast<size_t>(segment.start);
  }

  // The block lies in the last segment, whose blocks end at `end`.
  void add_block(const Entry& entry, std::vector<SegmentInfo>& segments, size_t& end) {
    size_t start = reinterpret_cast<size_t>(entry.ptr);
    auto stream = static_cast<cudaStream_t>(entry.stream);
    if (segments.back().blocks.empty()) {
      segments.back().stream = stream;
    } else if (segments.back().stream != stream) {
      split_segment(segments, end, start, stream);
      end = start;
    }
    SegmentInfo& segment = segments.back();
    add_gap(segment, end, start);
    BlockInfo block;
    block.size = entry.bytes;
    block.requested_size = entry.requested;
    block.allocated = true;
    block.active = true;
    block.context_when_allocated = history_.context_of(entry.ptr);
    segment.requested_size += entry.requested;
    segment.allocated_size += entry.bytes;
    segment.active_size += entry.bytes;
    segment.blocks.push_back(std::move(block));
    end = start + entry.bytes;
  }

  // Ends the last segment, whose blocks end at `end`, at `start`; the rest of it is the next one.
  static void split_segment(std::vector<SegmentInfo>& segments, size_t end, size_t start, cudaStream_t stream) {
    add_gap(segments.back(), end, start);
    SegmentInfo rest;
    rest.device = segments.back().device;
    rest.address = start;
    rest.total_size = segments.back().address + segments.back().total_size - start;
    rest.stream = stream;
    rest.is_large = true;
    rest.is_expandable = true;
    rest.owner_private_pool_id = segments.back().owner_private_pool_id;
    segments.back().total_size -= rest.total_size;
    segments.push_back(std::move(rest));
  }

  static void add_gap(SegmentInfo& segment, size_t start, size_t end) {
    if (start < end) {
      BlockInfo gap;
      gap.size = end - start;
      segment.blocks.push_back(std::move(gap));
    }
  }

  // PyTorch's own.
  CUDAAllocator* before_;
  std::atomic<int> gpus_{0};
  std::atomic<bool> is_enabled_{true};
  History history_;
  LeftToNative left_;
  OpenedBlocks opened_;
  std::mutex mutex_;
  std::vector<native::OutOfMemoryObserver> observers_;
};

void delete_block(void* ptr) {
  instance->raw_delete(ptr);
}

std::string last_error;

} // namespace
} // namespace millpond

// Makes the pools of this table PyTorch's allocator, of pinned memory too if that is wanted. Returns null, or why that
// cannot be.
extern "C" __attribute__((visibility("default"))) const char* millpond_torch_install(
    const millpond::Table* table,
    bool of_pinned_memory) {
  using namespace millpond;
  try {
    if (table->bytes != sizeof(Table)) {
      return "the shim is of another version of millpond";
    }
    pool = table;
    // For ever: tensors are freed until the process ends.
    static auto* shared = new std::shared_ptr<CUDAAllocator>(instance = new MillpondAllocator(native::get()));
    pool->watch_pages([](int gpu, void* at, uint64_t bytes, bool is_mapped) {
      instance->tell_mapped(gpu, at, bytes, is_mapped);
    });
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(*shared);
    // By this one `torch.accelerator` finds it.
    c10::SetAllocator(c10::DeviceType::CUDA, instance, std::numeric_limits<uint8_t>::max());
    if (of_pinned_memory) {
      static auto* pinned = new PinnedAllocator;
      at::setHostAllocator(c10::DeviceType::CUDA, pinned, std::numeric_limits<uint8_t>::max());
    }
    return nullptr;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
    return last_error.c_str();
  } catch (const std::exception& error) {
    last_error = error.what();
    return last_error.c_str();
  }
}
