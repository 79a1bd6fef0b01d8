// What PyTorch's memory history is made of: the last allocations and frees, with the stacks that PyTorch gathers.
//
// While nothing is recorded and nobody tracks, a request costs one load here.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "names.h"
#include "pool.h"

namespace millpond {

using Context = std::shared_ptr<c10::GatheredContext>;

class History {
 public:
  void record(
      bool enabled,
      CreateContextFn gather,
      size_t most,
      RecordContext when,
      bool clear,
      const std::vector<std::string>& skip) {
    TORCH_CHECK(
        when == RecordContext::NEVER || gather, "recordHistory: a function that gathers contexts is needed");
    std::lock_guard<std::mutex> lock(mutex_);
    is_recording_ = enabled;
    gather_ = enabled ? gather : nullptr;
    when_ = enabled ? when : RecordContext::NEVER;
    most_ = std::max<size_t>(most, 1);
    skip_ = std::unordered_set<std::string>(skip.begin(), skip.end());
    if (clear || !enabled) {
      traces_.clear();
      annotations_.clear();
    }
    if (!enabled) {
      contexts_.clear();
    }
    is_on_ = is_recording_ || !trackers_.empty();
  }

  bool is_recording() const {
    return is_recording_;
  }

  void track(AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
    is_on_ = true;
  }

  // Within an allocation or what gives pages back: the caller's stack, gathered before the pool's lock is taken. Events of
  // pages have it, since they are told of with the lock held, and who gathers a stack waits for Python.
  class Stack {
   public:
    Stack(History& history, RecordContext least) {
      if (C10_UNLIKELY(history.is_on_)) {
        gathered_ = history.gather(least);
        before_ = std::exchange(present(), &gathered_);
        is_present_ = true;
      }
    }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    ~Stack() {
      if (C10_UNLIKELY(is_present_)) {
        present() = before_;
      }
    }

    // The calling thread's; null outside of all.
    static Context of_thread() {
      return present() ? *present() : nullptr;
    }

   private:
    static const Context*& present() {
      thread_local const Context* present = nullptr;
      return present;
    }

    Context gathered_;
    const Context* before_ = nullptr;
    bool is_present_ = false;
  };

  // Within a `Stack`.
  void allocated(const Entry& entry) {
    if (!is_on_) {
      return;
    }
    Context context = Stack::of_thread();
    std::lock_guard<std::mutex> lock(mutex_);
    if (context) {
      contexts_[entry.ptr] = context;
    }
    note(Action::ALLOC, entry.ptr, entry, std::move(context));
  }

  void freed(const Entry& entry) {
    if (!is_on_) {
      return;
    }
    Context context = gather(RecordContext::ALL);
    std::lock_guard<std::mutex> lock(mutex_);
    note(Action::FREE_REQUESTED, entry.ptr, entry, context);
    Context allocated;
    if (auto found = contexts_.find(entry.ptr); found != contexts_.end()) {
      allocated = std::move(found->second);
      contexts_.erase(found);
    }
    // What is freed may be allocated again at once, in stream order.
    note(Action::FREE_COMPLETED, entry.ptr, entry, context ? context : allocated);
  }

  // The address of such an event is what the GPU has free, as native has it.
  void out_of_memory(int gpu, size_t bytes, size_t free, void* stream) {
    if (!is_on_) {
      return;
    }
    Context context = Stack::of_thread();
    Entry entry{};
    entry.gpu = gpu;
    entry.requested = bytes;
    entry.stream = stream;
    std::lock_guard<std::mutex> lock(mutex_);
    note(Action::OOM, reinterpret_cast<void*>(free), entry, std::move(context));
  }

  // A page that is mapped now, or unmapped next. Called with the lock of a pool held.
  void mapped(int gpu, void* at, size_t bytes, bool is_mapped) {
    note_bare(is_mapped ? Action::SEGMENT_MAP : Action::SEGMENT_UNMAP, gpu, at, bytes);
  }

  void snapshot_taken(int gpu, size_t active) { note_bare(Action::SNAPSHOT, gpu, nullptr, active); }

  void annotate(c10::DeviceIndex gpu, const std::vector<std::pair<std::string, std::string>>& what) {
    if (!is_recording_) {
      return;
    }
    AnnotationEntry entry(gpu, c10::getApproximateTime());
    for (const auto& [name, value] : what) {
      entry.recordUserMetadata(name, value);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    push(annotations_, std::move(entry));
  }

#if MILLPOND_TORCH >= 214
  void annotated(c10::DeviceIndex gpu, void* ptr, size_t bytes, const std::string& metadata) {
    note_bare(Action::ANNOTATE, gpu, ptr, bytes, metadata);
  }
#endif

  // The stack of a live block's allocation, if it was gathered.
  Context context_of(void* ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = contexts_.find(ptr);
    return found == contexts_.end() ? nullptr : found->second;
  }

  // Events by GPU, with the time since 1970 in microseconds.
  std::vector<std::vector<TraceEntry>> traces(size_t gpus) {
    auto to_unix = clock_.makeConverter();
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::vector<TraceEntry>> traces(std::max(gpus, traces_.size()));
    for (size_t gpu = 0; gpu < traces_.size(); ++gpu) {
      for (TraceEntry entry : traces_[gpu]) {
        entry.time_.t_ = to_unix(entry.time_.approx_t_) / 1000;
        traces[gpu].push_back(std::move(entry));
      }
    }
    return traces;
  }

  std::vector<AnnotationEntry> annotations() {
    auto to_unix = clock_.makeConverter();
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<AnnotationEntry> annotations(annotations_.begin(), annotations_.end());
    for (AnnotationEntry& entry : annotations) {
      entry.time_.t_ = to_unix(entry.time_.approx_t_) / 1000;
    }
    return annotations;
  }

  static void push_compile_context(std::string context) {
    compile_contexts().push_back(std::move(context));
  }

  static void pop_compile_context() {
    if (!compile_contexts().empty()) {
      compile_contexts().pop_back();
    }
  }

  static std::string& user_metadata() {
    thread_local std::string metadata;
    return metadata;
  }

 private:
  static std::vector<std::string>& compile_contexts() {
    thread_local std::vector<std::string> contexts;
    return contexts;
  }

  // Without the lock: it may call Python.
  Context gather(RecordContext least) {
    CreateContextFn gather = gather_;
    return gather && when_.load() >= least ? gather() : nullptr;
  }

  template <typename T>
  void push(std::deque<T>& entries, T entry) {
    entries.push_back(std::move(entry));
    while (entries.size() > most_) {
      entries.pop_front();
    }
  }

  // What has no stream.
  void note_bare(
      Action action,
      int gpu,
      void* address,
      size_t bytes,
      const std::string& metadata = user_metadata()) {
    if (!is_on_) {
      return;
    }
    Entry entry{};
    entry.gpu = gpu;
    entry.requested = bytes;
    std::lock_guard<std::mutex> lock(mutex_);
    note(action, address, entry, Stack::of_thread(), metadata);
  }

  // With the lock.
  void note(
      Action action,
      void* address,
      const Entry& entry,
      Context context,
      const std::string& metadata = user_metadata()) {
    const auto& contexts = compile_contexts();
    TraceEntry trace(
        action,
        static_cast<c10::DeviceIndex>(entry.gpu),
        reinterpret_cast<size_t>(address),
        entry.requested,
        static_cast<cudaStream_t>(entry.stream),
        MempoolId_t{entry.pool.first, entry.pool.second},
        c10::getApproximateTime(),
        when_.load() >= RecordContext::ALLOC ? std::move(context) : nullptr,
#if MILLPOND_TORCH >= 210
        contexts.empty() ? "N/A" : contexts.back(),
        metadata);
#else
        contexts.empty() ? "N/A" : contexts.back());
#endif
    for (const auto& tracker : trackers_) {
      tracker(trace);
    }
    if (!is_recording_ || skip_.count(name_of(action)) > 0) {
      return;
    }
    if (traces_.size() <= static_cast<size_t>(entry.gpu)) {
      traces_.resize(entry.gpu + 1);
    }
    push(traces_[entry.gpu], std::move(trace));
  }

  static const char* name_of(Action action) {
    switch (action) {
      case Action::ALLOC:
        return "alloc";
      case Action::FREE_REQUESTED:
        return "free_requested";
      case Action::FREE_COMPLETED:
        return "free_completed";
      case Action::SEGMENT_MAP:
        return "segment_map";
      case Action::SEGMENT_UNMAP:
        return "segment_unmap";
      case Action::SNAPSHOT:
        return "snapshot";
      case Action::OOM:
        return "oom";
      default:
        return "";
    }
  }

  std::atomic<bool> is_on_{false};
  std::atomic<bool> is_recording_{false};
  std::atomic<CreateContextFn> gather_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  c10::ApproximateClockToUnixTimeConverter clock_;

  std::mutex mutex_;
  size_t most_ = 1;
  std::unordered_set<std::string> skip_;
  std::vector<std::deque<TraceEntry>> traces_;
  std::deque<AnnotationEntry> annotations_;
  std::unordered_map<void*, Context> contexts_;
  std::vector<AllocatorTraceTracker> trackers_;
};

} // namespace millpond
