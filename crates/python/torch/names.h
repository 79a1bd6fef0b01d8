// PyTorch's types by one name each, where versions of PyTorch differ. `MILLPOND_TORCH` is the version: 211 for 2.11.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace millpond {

namespace native = c10::cuda::CUDACachingAllocator;

using c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::MempoolId_t;
using native::AllocatorTraceTracker;
using native::BlockInfo;
using native::CreateContextFn;
using native::CUDAAllocator;
using native::RecordContext;
using native::SegmentInfo;
using native::SnapshotInfo;
using native::TraceEntry;
using AnnotationEntry = decltype(SnapshotInfo::external_annotations)::value_type;
using Action = TraceEntry::Action;

// An allocator of the program's that a MemPool takes its memory from.
#if MILLPOND_TORCH >= 211
using AllocatorInside = std::shared_ptr<CUDAAllocator>;
#else
using AllocatorInside = CUDAAllocator*;
#endif

} // namespace millpond
