/* Millpond: a GPU memory pool.
 *
 * Every call that can fail answers a millpond_status; millpond_last_error() has the full message. After a failure
 * nothing has changed, and outputs are null or zero.
 *
 * Handles may be null, garbage or released: they are answered with a status. Other pointers must be null where
 * that is allowed, or valid for the call; texts end with a zero byte. Any thread may call anything at any time.
 * Memory is ordered by streams: it is valid for work ordered after its allocation and before its free.
 *
 * Structs begin with `size`, which is sizeof the struct as the program was compiled, so that programs and
 * libraries of different versions get along.
 *
 * Generated from crates/capi; do not edit. `MILLPOND_WRITE_HEADER=1 cargo test -p millpond-capi --test header`
 * writes it anew.
 */

#ifndef MILLPOND_H
#define MILLPOND_H

#include <stddef.h>
#include <stdint.h>

/* The version that this header is of; millpond_version() says which one the library is. Before 1.0, another minor version is
 * another interface. */
#define MILLPOND_VERSION "0.1.0"
#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0
/* For comparisons: 10203 is 1.2.3. */
#define MILLPOND_VERSION_NUMBER \
    (MILLPOND_VERSION_MAJOR * 10000 + MILLPOND_VERSION_MINOR * 100 + MILLPOND_VERSION_PATCH)

// Memory passes to a stream that is ordered after the free by events that millpond knows of.
#define MILLPOND_REUSE_FOLLOW_EVENT_DEPENDENCIES 1

// Memory passes where the device says that the work before the free is complete.
#define MILLPOND_REUSE_OPPORTUNISTIC 2

// Memory passes by making the allocating stream wait for the freeing one.
#define MILLPOND_REUSE_INTERNAL_DEPENDENCIES 4

// All three.
#define MILLPOND_REUSE_ALL 7

// Each allocation's call stack is kept: microseconds for each, milliseconds for each new one.
#define MILLPOND_RECORD_CALL_SITES 1

// What a call answers: OK, or why nothing was done. The full message, with the figures and what to do next, is
// `millpond_last_error`'s. Numbers never change their meaning; new ones may come.
enum millpond_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    MILLPOND_STATUS_OK = 0,
    // There is no memory for the request, after everything that could be given back was given back.
    MILLPOND_STATUS_OUT_OF_MEMORY = 1,
    // The size overflows, or is more than any device can address.
    MILLPOND_STATUS_SIZE_OVERFLOW = 2,
    // The alignment is no power of two, or larger than a page.
    MILLPOND_STATUS_BAD_ALIGNMENT = 3,
    // The block was freed already.
    MILLPOND_STATUS_DOUBLE_FREE = 4,
    // The pointer lies inside a live block; free takes the pointer that the allocation gave.
    MILLPOND_STATUS_INTERIOR_POINTER = 5,
    // The pointer belongs to another pool.
    MILLPOND_STATUS_WRONG_POOL = 6,
    // The pointer belongs to no pool of the device.
    MILLPOND_STATUS_FOREIGN_POINTER = 7,
    // The stream, event, pool or budget belongs to another context.
    MILLPOND_STATUS_WRONG_DEVICE = 8,
    // The pool was destroyed; it frees what is live but allocates nothing.
    MILLPOND_STATUS_POOL_DESTROYED = 9,
    // The pool was destroyed while blocks were live. It is destroyed: their memory goes back with the last.
    MILLPOND_STATUS_LIVE_BLOCKS = 10,
    // A length that does not match.
    MILLPOND_STATUS_LENGTH_MISMATCH = 11,
    // The workspace has less left than was asked for.
    MILLPOND_STATUS_WORKSPACE_FULL = 12,
    // An option, attribute or struct that makes no sense; the message says which, and what would.
    MILLPOND_STATUS_BAD_OPTION = 13,
    // Allocations go to this memory of a capture already.
    MILLPOND_STATUS_CAPTURE_UNDER_WAY = 14,
    // A recording cannot be written.
    MILLPOND_STATUS_RECORDING = 15,
    // The object was made in the process that this one was forked from. Nothing was done.
    MILLPOND_STATUS_FORKED = 16,
    // The CPU cannot use the pool's memory in place.
    MILLPOND_STATUS_NO_HOST_ACCESS = 17,
    // The pool is not of pinned memory.
    MILLPOND_STATUS_NOT_PINNED = 18,
    // The pool is not of managed memory.
    MILLPOND_STATUS_NOT_MANAGED = 19,
    // The device has too little memory.
    MILLPOND_STATUS_DEVICE_OUT_OF_MEMORY = 20,
    // The device or its driver cannot do this.
    MILLPOND_STATUS_DEVICE_UNSUPPORTED = 21,
    // There is no such device, or no driver for it.
    MILLPOND_STATUS_DEVICE_UNAVAILABLE = 22,
    // The device was given a stream, event, address or size that it does not know.
    MILLPOND_STATUS_DEVICE_INVALID = 23,
    // The driver refused the call, or the device failed.
    MILLPOND_STATUS_DEVICE_FAILED = 24,
    // The pool sleeps: wake it first.
    MILLPOND_STATUS_ASLEEP = 25,
    // The pool cannot sleep; the message says why.
    MILLPOND_STATUS_CANNOT_SLEEP = 26,
    // The file by which processes share a budget cannot be used.
    MILLPOND_STATUS_SHARED_BUDGET = 27,
    // The pool is evicted: restore it first.
    MILLPOND_STATUS_EVICTED = 28,
    // The pool cannot be evicted; the message says why.
    MILLPOND_STATUS_CANNOT_EVICT = 29,
    // The memory cannot be shared with other processes.
    MILLPOND_STATUS_NOT_SHAREABLE = 30,
    // What another process sent is no memory that can be opened.
    MILLPOND_STATUS_BAD_TOKEN = 31,
    // A socket to another process failed.
    MILLPOND_STATUS_SOCKET = 32,
    // The process that shared memory is gone. The memory stays valid.
    MILLPOND_STATUS_OWNER_GONE = 33,
    // An argument that must not be null is.
    MILLPOND_STATUS_NULL_ARGUMENT = 40,
    // The handle is none: garbage, or of another kind of object.
    MILLPOND_STATUS_INVALID_HANDLE = 41,
    // The handle was released.
    MILLPOND_STATUS_RELEASED_HANDLE = 42,
    // The handle cannot be released from within a callback of a call that uses it.
    MILLPOND_STATUS_BUSY = 43,
    // More handles, or calls nested in callbacks, than there can be.
    MILLPOND_STATUS_TOO_MANY = 44,
    // A text is not UTF-8, or not ended.
    MILLPOND_STATUS_BAD_TEXT = 45,
    // A mistake of millpond's own. Please report it with the message.
    MILLPOND_STATUS_INTERNAL = 50,
    // An error that this version of the interface has no number for; the message says which.
    MILLPOND_STATUS_OTHER = 51,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_status millpond_status;
#else
typedef int32_t millpond_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which device a context is of.
enum millpond_device_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A device that this version has no number for.
    MILLPOND_DEVICE_KIND_UNKNOWN = 0,
    // An NVIDIA GPU.
    MILLPOND_DEVICE_KIND_CUDA = 1,
    // The CPU, with real memory, and threads for streams.
    MILLPOND_DEVICE_KIND_HOST = 2,
    // Nothing: bookkeeping in virtual time.
    MILLPOND_DEVICE_KIND_SIM = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_device_kind millpond_device_kind;
#else
typedef int32_t millpond_device_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What can be asked of a pool one by one, as of CUDA's own pools. Sizes are in bytes.
enum millpond_attribute
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The release threshold. Can be set.
    MILLPOND_ATTRIBUTE_RELEASE_THRESHOLD = 1,
    // Physical bytes held.
    MILLPOND_ATTRIBUTE_RESERVED_CURRENT = 2,
    // Physical bytes held at most. Can be set to 0: all high-water marks start again.
    MILLPOND_ATTRIBUTE_RESERVED_HIGH = 3,
    // Bytes in live blocks.
    MILLPOND_ATTRIBUTE_USED_CURRENT = 4,
    // Bytes in live blocks at most. Can be set to 0: all high-water marks start again.
    MILLPOND_ATTRIBUTE_USED_HIGH = 5,
    // How memory that one stream freed may pass to another: a sum of `MILLPOND_REUSE_…`. Can be set; captures that
    // have begun keep theirs.
    MILLPOND_ATTRIBUTE_REUSE = 6,
    // What memory the pool is of: one of `millpond_memory`.
    MILLPOND_ATTRIBUTE_MEMORY = 7,
    // Whether the CPU can read and write the memory in place: 1 or 0. `millpond_wait_for_host_access` says when it may.
    MILLPOND_ATTRIBUTE_HOST_ACCESS = 8,
    // Whether the pool sleeps: 1 or 0.
    MILLPOND_ATTRIBUTE_IS_ASLEEP = 9,
    // Bytes that the pool gave away to sleep or when it was evicted, and takes again to wake or to be restored.
    MILLPOND_ATTRIBUTE_BYTES_ASLEEP = 10,
    // How many mistakes the pool's guard found: see `millpond_pool_options.guard`.
    MILLPOND_ATTRIBUTE_GUARD_FINDINGS = 11,
    // Whether the pool is evicted: 1 or 0.
    MILLPOND_ATTRIBUTE_IS_EVICTED = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_attribute millpond_attribute;
#else
typedef int32_t millpond_attribute;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A kind of memory.
enum millpond_memory
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The device's own.
    MILLPOND_MEMORY_DEVICE = 0,
    // Page-locked memory of the host. The CPU uses it in place, and the device copies to and from it by itself.
    MILLPOND_MEMORY_PINNED = 1,
    // Memory that moves between the device and the host, to where it is used. The CPU uses it in place.
    MILLPOND_MEMORY_MANAGED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_memory millpond_memory;
#else
typedef int32_t millpond_memory;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where managed memory lies.
enum millpond_place
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // No place, or not the same for all of a block.
    MILLPOND_PLACE_NONE = 0,
    // In the memory of the context's device.
    MILLPOND_PLACE_DEVICE = 1,
    // In the memory of the host.
    MILLPOND_PLACE_HOST = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_place millpond_place;
#else
typedef int32_t millpond_place;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How managed memory will be used. It changes where the bytes lie, and never what they are.
enum millpond_advice
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It is mostly read: the device and the host each have a copy, until one of them writes. The place is not looked at.
    MILLPOND_ADVICE_READ_MOSTLY = 1,
    // It is not. The place is not looked at.
    MILLPOND_ADVICE_NOT_READ_MOSTLY = 2,
    // It is to stay at the place; `MILLPOND_PLACE_NONE`: anywhere.
    MILLPOND_ADVICE_PREFERRED_LOCATION = 3,
    // It stays mapped for the one at the place, so that its first use there is no page fault.
    MILLPOND_ADVICE_ACCESSED_BY = 4,
    // It does not.
    MILLPOND_ADVICE_NOT_ACCESSED_BY = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_advice millpond_advice;
#else
typedef int32_t millpond_advice;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What stood in the way of more memory.
enum millpond_limit
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The device has none left.
    MILLPOND_LIMIT_DEVICE = 0,
    // The pool's hard limit.
    MILLPOND_LIMIT_HARD_LIMIT = 1,
    // The budget that the pool shares with others.
    MILLPOND_LIMIT_BUDGET = 2,
    // The bytes that the pool leaves free on the device.
    MILLPOND_LIMIT_HEADROOM = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_limit millpond_limit;
#else
typedef int32_t millpond_limit;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What becomes of the bytes of a pool that sleeps.
enum millpond_keep
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // They are dropped: after the wake, live blocks have no defined content.
    MILLPOND_KEEP_NOTHING = 0,
    // Those in live blocks are copied to pinned memory of the host, and back by the wake.
    MILLPOND_KEEP_IN_PINNED_MEMORY = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_keep millpond_keep;
#else
typedef int32_t millpond_keep;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How much a message matters.
enum millpond_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Something failed.
    MILLPOND_LOG_LEVEL_ERROR = 1,
    // Something is not as it should be.
    MILLPOND_LOG_LEVEL_WARNING = 2,
    // Something that happens now and then.
    MILLPOND_LOG_LEVEL_INFO = 3,
    // For who looks for a mistake.
    MILLPOND_LOG_LEVEL_DEBUG = 4,
    // Everything.
    MILLPOND_LOG_LEVEL_TRACE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum millpond_log_level millpond_log_level;
#else
typedef int32_t millpond_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A limit on the physical bytes that all pools with this budget hold together. Opaque.
typedef struct millpond_budget millpond_budget;

// Memory for what is captured into CUDA graphs: it stays where it is, and is nobody else's, until the last handle of
// it is released. Opaque.
typedef struct millpond_capture millpond_capture;

// A device with its streams and its pools. Opaque.
typedef struct millpond_context millpond_context;

// A point in a stream's work, made by `millpond_stream_record`. Opaque.
typedef struct millpond_event millpond_event;

// A memory pool. Opaque.
typedef struct millpond_pool millpond_pool;

// A block that several processes use, on either side: what another process needs to open it, or what it was opened
// with. Opaque.
typedef struct millpond_shared millpond_shared;

// A stream that millpond knows: created by it, or registered with it. Opaque.
typedef struct millpond_stream millpond_stream;

// Device memory that is handed out from front to back and taken back all at once. Opaque.
typedef struct millpond_workspace millpond_workspace;

// A stream of either kind: a `millpond_stream`, or the driver's `CUstream` (the runtime's `cudaStream_t`).
//
// Null is the legacy default stream, as in CUDA, and so is 1; 2 is the calling thread's default stream. A
// `millpond_stream` and a `CUstream` for which one was made (`millpond_stream_register`) are fast. Any other `CUstream` is
// looked up each time, and a free on it records an event at once, since it may be destroyed at any time: register the
// streams that are used often.
typedef void *millpond_any_stream;

// A process under a named budget. Sizes in bytes.
typedef struct {
    // sizeof this struct, as the program was compiled.
    size_t size;
    // What its pools with the budget hold.
    uint64_t held;
    // What is kept for it.
    uint64_t floor;
    // What it holds at most; UINT64_MAX without a claim.
    uint64_t claim;
    // The process.
    uint32_t pid;
    // The name of its program, cut to the field.
    char program[20];
} millpond_tenant;

// Asked when memory is short: it frees what the program can do without, and returns whether to try again (not 0).
// `bytes` is the size of the request. It runs on the allocating thread without locks held. It may free, trim and
// allocate, and the pool does not ask its callbacks for that again. It must not throw, nor release the pool or the
// stream of the allocation.
typedef int32_t (*millpond_reclaim)(size_t bytes, void *data);

// Where the memory is when it ran out; sizes in bytes. Set `size` before the call.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Bytes asked for.
    uint64_t requested;
    // Bytes in live blocks of the pool.
    uint64_t live;
    // Live blocks of the pool.
    uint64_t blocks;
    // Bytes that the pool holds but that are in no live block.
    uint64_t cached;
    // Physical bytes that the pool holds.
    uint64_t reserved;
    // Bytes that other pools of this context hold.
    uint64_t other_pools;
    // Bytes free on the device, as its driver counts.
    uint64_t device_free;
    // Bytes that the device has.
    uint64_t device_total;
    // Bytes of the longest free range.
    uint64_t largest_free;
    // Bytes of the limit that stood in the way; 0 for the device.
    uint64_t limit_bytes;
    // Bytes held under that limit, for a budget; else 0.
    uint64_t limit_held;
    // One of `millpond_limit`.
    int32_t limit;
    // Zero.
    uint32_t reserved_field;
    // The pool's name, cut to the field.
    char pool[64];
} millpond_out_of_memory;

// Told of each request for which there was no memory, before its caller gets the status. Runs on the allocating
// thread without locks held; it must not throw, nor release the pool or the stream of the allocation.
typedef void (*millpond_observe)(const millpond_out_of_memory *report, void *data);

// Whether allocations for work on a stream (a `CUstream`) belong to a capture: not 0 if so. Called for each allocation
// of the pool between begin and end, on the allocating thread without locks held; it must not throw, nor allocate.
typedef int32_t (*millpond_takes)(void *raw, void *data);

// What the host device is made with. Fill with `millpond_host_options_init`.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Bytes of memory that the device has; 0: half of what the process may have.
    size_t capacity;
    // The smallest page in bytes, a power of two; 2 MiB by default, as a GPU.
    size_t granularity;
    // Whether pages can be mapped; 1 by default. 0: as on older or virtual GPUs.
    uint32_t virtual_memory;
    // Zero.
    uint32_t reserved;
} millpond_host_options;

// What a simulated device is made with. Fill with `millpond_sim_options_init`.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Bytes of memory that the device has; 140 GiB by default, as an NVIDIA H200.
    size_t capacity;
    // The smallest page in bytes, a power of two; 2 MiB by default.
    size_t granularity;
    // Whether pages can be mapped; 1 by default.
    uint32_t virtual_memory;
    // Zero.
    uint32_t reserved;
} millpond_sim_options;

// What a device is and can do. Set `size` before the call.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Bytes of memory that the device has.
    size_t total_memory;
    // The smallest page in bytes.
    size_t granularity;
    // One of `millpond_device_kind`.
    int32_t kind;
    // The device's number among its kind.
    int32_t ordinal;
    // Whether pages can be mapped.
    uint32_t virtual_memory;
    // Whether the driver has a stream-ordered allocator of its own.
    uint32_t memory_pools;
    // The device's name, such as "NVIDIA H200", cut to the field.
    char name[128];
} millpond_device_properties;

// Work for a stream of the host device. Must not throw.
typedef void (*millpond_host_work)(void *data);

// Called with its data once a handle that was given up is gone, on any thread, without locks held. It must not throw.
typedef void (*millpond_ended)(void *data);

// Told what the library says: a level (one of `millpond_log_level`), and a text that ends with a zero byte and lives until the
// callback returns. Runs on the thread that says it, without locks held. It must not throw. What the library says meanwhile on
// this thread is not told.
typedef void (*millpond_log)(int32_t level, const char *text, void *data);

// What was said of a block of managed memory, where it is the same of all its pages. Set `size` before the call.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Where it was last prefetched to: one of `millpond_place`.
    int32_t last_prefetch;
    // Its preferred location: one of `millpond_place`.
    int32_t preferred_location;
    // Whether it is mostly read.
    uint32_t read_mostly;
    // Zero.
    uint32_t reserved;
} millpond_residency;

// The options of a pool; sizes in bytes. Fill with `millpond_pool_options_init`, then change what should differ.
typedef struct {
    // sizeof this struct.
    size_t size;
    // A name for errors and reports; null: "pool", or the kind of other memory.
    const char *name;
    // Physical bytes that the pool may hold; SIZE_MAX by default.
    size_t hard_limit;
    // Physical bytes that the pool keeps when something is synchronised through millpond; SIZE_MAX by default.
    size_t release_threshold;
    // Bytes of the device that the pool always leaves free for others; 0 by default.
    size_t headroom;
    // What every address is a multiple of: a power of two from 256 bytes to 2 MiB; 512 by default.
    size_t min_alignment;
    // The smallest physical page, a power of two; 0: the device's granularity.
    size_t smallest_page;
    // The largest physical page, a power of two; 0: 32 MiB.
    size_t largest_page;
    // How memory may pass from stream to stream: a sum of `MILLPOND_REUSE_…`; all by default.
    uint32_t reuse;
    // Whether all GPUs that take memory in the process may use the pool's: 0 by default. 1: as after
    // `cudaDeviceEnablePeerAccess`. For some GPUs: `millpond_pool_allow_access`.
    uint32_t accessible_from_all;
    // A limit that the pool shares with others; null: none.
    millpond_budget *budget;
    // How many bytes more than the most that was ever live the pool may hold to save time. It does so only while moving
    // memory would take a third of the program's time. 0: none; SIZE_MAX, the default: 1/32 of the device's memory,
    // and at most a quarter of what was ever live.
    size_t growth_allowance;
    // What memory the pool is of: one of `millpond_memory`; the device's own by default.
    int32_t memory;
    // The NUMA node of pinned memory; -1, the default: one near the device.
    int32_t node;
    // What of the program's mistakes with memory the pool finds: "all", or words of docs/guard.md with commas between them;
    // null, the default: what MILLPOND_GUARD says.
    const char *guard;
} millpond_pool_options;

// What a recording has done. Set `size` before the call.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Events recorded, of all pools that record to this file.
    uint64_t events;
    // Events dropped because too much waited for the disk. The file says so, too.
    uint64_t dropped;
    // Bytes written.
    uint64_t bytes;
    // Whether anything is, or was, recorded: 1 or 0. If not, all fields are zero.
    uint32_t recorded;
    // Zero.
    uint32_t reserved;
    // Why the last write failed, cut to the field; empty if it did not. What could not be written is tried again.
    char failure[256];
    // The file, cut to the field. Its name may have the process's number, where another process held the one asked for.
    char path[1024];
} millpond_recording;

// A figure that moves: where it is, and the highest it has been since the last reset.
typedef struct {
    // Now.
    uint64_t current;
    // At most.
    uint64_t high;
} millpond_level;

// Device calls by kind, counted since the pool was built.
typedef struct {
    // Address ranges reserved (`cuMemAddressReserve`).
    uint64_t reserve;
    // Address ranges given back (`cuMemAddressFree`).
    uint64_t unreserve;
    // Pages created (`cuMemCreate`).
    uint64_t create;
    // Mappings made (`cuMemMap`).
    uint64_t map;
    // Access rights set (`cuMemSetAccess`).
    uint64_t set_access;
    // Mappings removed (`cuMemUnmap`).
    uint64_t unmap;
    // Pages released (`cuMemRelease`).
    uint64_t release;
    // Plain allocations (`cuMemAlloc`, or `cuMemAllocAsync` where an allocator uses that).
    uint64_t alloc;
    // Plain frees (`cuMemFree`, or `cuMemFreeAsync`).
    uint64_t free;
    // Zeros: room for kinds that come.
    uint64_t reserved[7];
} millpond_device_calls;

// What a pool did and holds; sizes in bytes. Set `size` before the call.
typedef struct {
    // sizeof this struct.
    size_t size;
    // Bytes asked for, in live blocks.
    millpond_level requested;
    // Bytes in live blocks, rounded to the pool's minimum alignment, and below 1 MiB to one of eight size
    // classes in each doubling.
    millpond_level allocated;
    // Physical bytes held from the device.
    millpond_level reserved;
    // Live blocks.
    millpond_level blocks;
    // Allocations since the pool was built.
    uint64_t allocations;
    // Frees since the pool was built.
    uint64_t frees;
    // Allocations that found memory ready, without a device call that moves memory.
    uint64_t hits;
    // Allocations that had to map, remap or create.
    uint64_t misses;
    // Allocations for which the pool made the stream wait for another.
    uint64_t stream_waits;
    // Pages taken from a free range to back another address.
    uint64_t pages_remapped;
    // Times that memory ran out and something was given back or waited for, and the request tried again.
    uint64_t retries;
    // Requests that ended in an out-of-memory error.
    uint64_t out_of_memory;
    // Device calls by kind.
    millpond_device_calls calls;
    // Bytes held but in no live block.
    uint64_t cached;
    // 1 - requested / reserved, now: the share of the memory held that nobody asked for. 0 where nothing is live.
    double fragmentation;
} millpond_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Waits until the CPU may use the block in place: for the work given to `stream` so far, which is ordered after all work
// on the block. With `to_write` not 0, it also waits for recorded uses, such as copies on other streams. Work that is given
// later sees what the CPU wrote. NO_HOST_ACCESS where the CPU cannot reach the memory.
millpond_status millpond_wait_for_host_access(millpond_pool *pool,
                                              const void *ptr,
                                              millpond_any_stream stream,
                                              int32_t to_write);

// Makes later work on `stream`, the block's own, wait for the recorded uses of the block: before it is written anew. The
// host does not wait.
millpond_status millpond_wait_for_uses(millpond_pool *pool,
                                       const void *ptr,
                                       millpond_any_stream stream);

// Copies the first `bytes` bytes of one block to another, each of any pool of the device or of another GPU, on `to_stream`. That
// first waits for the work given to `from_stream` so far, and for recorded uses of `to`. The use of `from` is recorded: its free
// waits for the copy. The host waits for nothing.
millpond_status millpond_copy_block(millpond_pool *to_pool,
                                    void *to,
                                    millpond_any_stream to_stream,
                                    millpond_pool *from_pool,
                                    const void *from,
                                    millpond_any_stream from_stream,
                                    size_t bytes);

// A budget of `bytes`.
millpond_status millpond_budget_create(size_t bytes, millpond_budget **out);

// A budget of a fraction (0 to 1) of the device's memory.
millpond_status millpond_budget_fraction(millpond_context *context, double fraction, millpond_budget **out);

// The limit, and what the pools hold now, in bytes. Either output may be null.
millpond_status millpond_budget_read(millpond_budget *budget, size_t *limit, size_t *held);

// The limit of a named budget, for all processes, or of any other. What the pools hold beyond it stays theirs until they
// give it back; those of a named budget do so at once with what is free.
millpond_status millpond_budget_set_limit(millpond_budget *budget,
                                          size_t bytes);

// A budget of `bytes` that all processes of this user share which give the same name: 1 to 64 letters, digits, '-' and
// '_'. The first process sets the limit; for those that join later, it is what it is. A process that lacks memory asks
// the others, and their free memory goes back. A process that ends in any way gives up what it held. docs/budgets.md
// says more.
millpond_status millpond_budget_named(const char *name,
                                      size_t bytes,
                                      millpond_budget **out);

// The named budget, with the limit that it has; null where no process has it.
millpond_status millpond_budget_find(const char *name, millpond_budget **out);

// Keeps `bytes` of a named budget for this process; 0 at first. Other processes do not take them, and it need not give
// them back.
millpond_status millpond_budget_set_floor(millpond_budget *budget,
                                          size_t bytes);

// The most that this process takes of a named budget; the limit at first.
millpond_status millpond_budget_set_claim(millpond_budget *budget, size_t bytes);

// How long a request of this process waits until other processes free memory, before it fails; 50 ms at first. With 0
// it waits for their answers only: what is free already goes back.
millpond_status millpond_budget_set_patience(millpond_budget *budget,
                                             uint64_t milliseconds);

// The processes that have a named budget, this one too; none for a budget without a name. Writes at most `room` of them,
// each of `size` bytes, which is sizeof the struct. `count` gets how many there are. `tenants` may be null if `room` is 0.
millpond_status millpond_budget_tenants(millpond_budget *budget,
                                        millpond_tenant *tenants,
                                        size_t size,
                                        size_t room,
                                        size_t *count);

// Gives up the handle. The pools keep the budget.
millpond_status millpond_budget_release(millpond_budget *budget);

// Registers a callback that is asked when memory is short, after everything the pool can do itself. `id` gets what
// `millpond_pool_remove_reclaim` takes. The callback and its data must stay valid until it is removed, or the pool
// is gone.
millpond_status millpond_pool_on_reclaim(millpond_pool *pool,
                                         millpond_reclaim reclaim,
                                         void *data,
                                         uint64_t *id);

// Removes a callback that was registered through this handle, and waits for calls of it that other threads are in.
// Within a callback it does not wait, and the data must stay valid for those calls. `BAD_OPTION` if it was removed
// before.
millpond_status millpond_pool_remove_reclaim(millpond_pool *pool,
                                             uint64_t id);

// Registers a callback that is told when memory ran out. `id` gets what `millpond_pool_remove_out_of_memory` takes.
// The callback and its data must stay valid until it is removed, or the pool is gone.
millpond_status millpond_pool_on_out_of_memory(millpond_pool *pool,
                                               millpond_observe observe,
                                               void *data,
                                               uint64_t *id);

// Removes a callback that was registered through this handle, and waits for calls of it that other threads are in.
// Within a callback it does not wait, and the data must stay valid for those calls. `BAD_OPTION` if it was removed
// before.
millpond_status millpond_pool_remove_out_of_memory(millpond_pool *pool,
                                                   uint64_t id);

// The account of this thread's last failure, if it was that memory ran out; else BAD_OPTION.
millpond_status millpond_last_out_of_memory(millpond_out_of_memory *report);

// Makes memory for captures. It holds nothing yet.
millpond_status millpond_capture_create(millpond_pool *pool, millpond_capture **out);

// Another handle of the same memory, for another graph that shares it. Graphs that share memory are replayed in the
// order of their captures, and never at the same time.
millpond_status millpond_capture_share(millpond_capture *capture,
                                       millpond_capture **out);

// Until `millpond_capture_end`, the pool's allocations for work on `stream`, and on streams that are part of the same
// capture, come from this memory. Call it before the capture begins, or after if no other thread uses pools meanwhile.
// CAPTURE_UNDER_WAY where another call, through any handle of the memory, has not ended.
millpond_status millpond_capture_begin(millpond_capture *capture,
                                       millpond_any_stream stream);

// As `millpond_capture_begin`, for allocations on streams of which `takes` says so. It and its data must stay valid
// until `millpond_capture_end`.
millpond_status millpond_capture_begin_where(millpond_capture *capture,
                                             millpond_takes takes,
                                             void *data);

// Ends what `millpond_capture_begin` began, and waits for calls of `takes` that other threads are in. Call it once the
// capture has ended, through the handle that began. Until then, unregistered streams that were allocated on must exist.
// BAD_OPTION where nothing began.
millpond_status millpond_capture_end(millpond_capture *capture);

// Physical bytes that the memory holds, and bytes in live blocks of it. Each output may be null.
millpond_status millpond_capture_read(millpond_capture *capture, size_t *reserved, size_t *used);

// Gives up the handle, and ends what began through it. The last handle of a memory says that its graphs will not be
// launched again: the host waits for the device, and what is free goes back; blocks that are live stay valid until
// they are freed. While another capture is under way, that is put off until it ends.
millpond_status millpond_capture_release(millpond_capture *capture);

// Opens the NVIDIA GPU with this ordinal. Every context of one GPU in this process is the same device: pools and
// streams made from one may be used with the other.
millpond_status millpond_context_cuda(int32_t ordinal,
                                      millpond_context **out);

// Opens the CPU as a device: real memory, real streams, no GPU needed. Every context opened by this call in this
// process is the same device.
millpond_status millpond_context_host(millpond_context **out);

// Fills options of the host device with the defaults. `size` is sizeof the struct.
millpond_status millpond_host_options_init(millpond_host_options *options, size_t size);

// Makes a host device of its own with these options (null: the defaults).
millpond_status millpond_context_host_with(const millpond_host_options *options, millpond_context **out);

// Fills options of a simulated device with the defaults. `size` is sizeof the struct.
millpond_status millpond_sim_options_init(millpond_sim_options *options, size_t size);

// Makes a simulated device with these options (null: the defaults): it keeps no bytes and is deterministic.
millpond_status millpond_context_sim(const millpond_sim_options *options, millpond_context **out);

// Gives up the handle. The device stays open as long as a pool, a stream or another context of it is.
millpond_status millpond_context_release(millpond_context *context);

// Waits for all work on the device, then lets its pools give back what lies above their release thresholds.
millpond_status millpond_context_synchronize(millpond_context *context);

// Free and total memory of the device in bytes, as its driver counts. Either output may be null.
millpond_status millpond_context_memory_info(millpond_context *context, size_t *free, size_t *total);

// What the device is and can do.
millpond_status millpond_context_properties(millpond_context *context,
                                            millpond_device_properties *properties);

// Sets `bytes` bytes of device memory at `at` to the low byte of `value`, in stream order.
millpond_status millpond_memset(millpond_context *context,
                                void *at,
                                int32_t value,
                                size_t bytes,
                                millpond_any_stream stream);

// Copies from host memory to the device, in stream order. `from` has been read when this returns.
millpond_status millpond_copy_from_host(millpond_context *context,
                                        void *to,
                                        const void *from,
                                        size_t bytes,
                                        millpond_any_stream stream);

// Copies from the device to host memory, in stream order, and waits for it.
millpond_status millpond_copy_to_host(millpond_context *context,
                                      void *to,
                                      const void *from,
                                      size_t bytes,
                                      millpond_any_stream stream);

// Copies between memory of the device's pools, of any kind, in stream order: the host does not wait. The ranges do
// not overlap. Who frees one of them on another stream records the use first.
millpond_status millpond_copy(millpond_context *context,
                              void *to,
                              const void *from,
                              size_t bytes,
                              millpond_any_stream stream);

// As `millpond_memset`, of a live block of the pool, of which `at` need not be the start. EVICTED or ASLEEP where its memory is
// away. Behind a restore's copies, whatever stream they are on.
millpond_status millpond_pool_memset(millpond_pool *pool,
                                     void *at,
                                     int32_t value,
                                     size_t bytes,
                                     millpond_any_stream stream);

// As `millpond_copy_from_host`, likewise.
millpond_status millpond_pool_copy_from_host(millpond_pool *pool,
                                             void *to,
                                             const void *from,
                                             size_t bytes,
                                             millpond_any_stream stream);

// As `millpond_copy_to_host`, likewise.
millpond_status millpond_pool_copy_to_host(millpond_pool *pool,
                                           void *to,
                                           const void *from,
                                           size_t bytes,
                                           millpond_any_stream stream);

// Runs `work(data)` in stream order, on the stream's thread: a kernel of the host device, which may read and
// write device memory. It must not call millpond. DEVICE_UNSUPPORTED on other devices.
millpond_status millpond_host_launch(millpond_context *context,
                                     millpond_any_stream stream,
                                     millpond_host_work work,
                                     void *data);

// Gives up the event. Streams that wait for it still do.
millpond_status millpond_event_release(millpond_event *event);

// Whether the work before the event is complete: 1 or 0. Does not wait.
millpond_status millpond_event_query(millpond_event *event, int32_t *out);

// Waits until the work before the event is complete, then lets the pools of the device give back what lies above
// their release thresholds.
millpond_status millpond_event_synchronize(millpond_event *event);

// The driver's handle (`CUevent`), valid until the event is released.
millpond_status millpond_event_raw(millpond_event *event, void **out);

// Has the memory of a tag (`millpond_pool_tagged`) serve its pool for a while. Behind all work that streams were given so far, the
// bytes of live blocks are copied to pinned memory of the host. From the end of the copies on, the pages serve other addresses of
// the pool. The host does not wait. `moved` gets the bytes that the pool got; it may be null.
//
// The memory must not be used until `millpond_pool_restore`: the addresses lead nowhere soon. Allocations are answered with
// EVICTED; blocks may be freed. After a failure all is as before.
//
// Of a stream without `millpond_stream_register`, only the work before the last call that named it is known, unless it is `stream`:
// order the rest before `stream`. Where another thread uses its own default stream, the host waits for the device once.
millpond_status millpond_pool_evict(millpond_pool *tag,
                                    millpond_any_stream stream,
                                    size_t *moved);

// Ends an eviction: takes memory again, maps it where it was, and copies the bytes back. Later work on `stream` comes behind the
// copies: have other streams wait for that one first. After OUT_OF_MEMORY the tag is evicted as before: make room, and try again. A
// pool that is not evicted stays as it is.
millpond_status millpond_pool_restore(millpond_pool *tag,
                                      millpond_any_stream stream);

// Begins a restore, which then only has its stream wait: the copies run beside other work until then.
millpond_status millpond_pool_restore_ahead(millpond_pool *tag);

// As `millpond_pool_restore_ahead`, for as much of the tag as the pool has free memory. It can be called again as more becomes
// free; the rest comes with `millpond_pool_restore`. `away` gets the bytes that are still away; it may be null.
millpond_status millpond_pool_restore_free(millpond_pool *tag,
                                           size_t *away);

// The message of this thread's last call that failed, with the figures and what to do next; empty if none did.
// Never null. Valid until the thread's next call that fails. A call that succeeds leaves it as it is.
const char *millpond_last_error(void);

// The status of this thread's last call that failed; OK if none did.
millpond_status millpond_last_status(void);

// As `millpond_alloc_aligned`, of a block that holds its pool and its stream: after `millpond_pool_give_up` and
// `millpond_stream_give_up`, both handles stay valid for it. Zero bytes give null, which holds them, too. Free it by
// `millpond_free_held` with the same pool and stream, once for each allocation.
millpond_status millpond_alloc_held(millpond_pool *pool,
                                    size_t bytes,
                                    size_t align,
                                    millpond_any_stream stream,
                                    void **out);

// Frees a block of `millpond_alloc_held`, or null, and ends its hold in any case. Where its stream is gone, it waits for the
// device first. What else fails is counted (`millpond_failed_frees`) and logged. In a forked child it does nothing.
void millpond_free_held(millpond_pool *pool,
                        void *ptr,
                        millpond_any_stream stream);

// Lets a block that was allocated otherwise hold its pool and its stream, as one of `millpond_alloc_held` does.
void millpond_hold(millpond_pool *pool,
                   millpond_any_stream stream);

// Ends the hold of a block of `millpond_alloc_held`, without freeing it: it is as one of `millpond_alloc` then.
void millpond_end_hold(millpond_pool *pool,
                       millpond_any_stream stream);

// Gives up the handle of a pool, as `millpond_pool_release` does, but only once no block of `millpond_alloc_held` is left that
// holds it. Then `ended` is called with `data`, perhaps before this returns; not after a failure. It may be null.
millpond_status millpond_pool_give_up(millpond_pool *pool,
                                      millpond_ended ended,
                                      void *data);

// The same for a stream.
millpond_status millpond_stream_give_up(millpond_stream *stream, millpond_ended ended, void *data);

// As `millpond_free`, for whoever cannot fail, as a destructor. Where the stream is gone, it waits for the device first. What
// else fails is counted (`millpond_failed_frees`) and logged. In a forked child it does nothing.
void millpond_free_or_log(millpond_pool *pool,
                          void *ptr,
                          millpond_any_stream stream);

// How many frees by `millpond_free_or_log` and `millpond_free_held` failed since the process began.
uint64_t millpond_failed_frees(void);

// Lets `log` be told what the library says up to `level` (one of `millpond_log_level`), in place of the one before. Null: nobody.
// Then warnings that cannot wait go to the standard error. Returns after calls of the one before that other threads are in, but
// not within a callback. `BAD_OPTION` where the program has a subscriber of Rust's `tracing`, which is told.
millpond_status millpond_set_log(int32_t level,
                                 millpond_log log,
                                 void *data);

// Ends what `millpond_set_log` began with this data. Where another one took its place, that goes on. Returns after calls that
// other threads are in, but not within a callback.
millpond_status millpond_end_log(const void *data);

// Moves a block of managed memory to a place (one of `millpond_place`) in the order of `stream`, which may be any: no byte
// changes. On a GPU, the call takes most of the time of the move. NOT_MANAGED for other memory.
millpond_status millpond_prefetch(millpond_pool *pool,
                                  const void *ptr,
                                  int32_t place,
                                  millpond_any_stream stream);

// Says how a block of managed memory will be used (one of `millpond_advice`, and of `millpond_place`). It holds for the
// system's pages that are the block's alone, until it is taken back: do that before the block is freed.
millpond_status millpond_advise(millpond_pool *pool,
                                const void *ptr,
                                int32_t advice,
                                int32_t place);

// Takes back all advice on a block of managed memory, so that whoever gets the memory next does not have it.
millpond_status millpond_take_back_advice(millpond_pool *pool, const void *ptr);

// Where a block of managed memory was last prefetched to, and the advice on it. It may lie elsewhere by now.
millpond_status millpond_block_residency(millpond_pool *pool, const void *ptr, millpond_residency *residency);

// Allocates `bytes` for work on `stream`, aligned to the pool's minimum alignment (512 bytes by default). Zero
// bytes give null. `*out` is null after a failure.
millpond_status millpond_alloc(millpond_pool *pool,
                               size_t bytes,
                               millpond_any_stream stream,
                               void **out);

// Frees a block after the work given to `stream` so far, and to the streams of recorded uses. Null is freed at no
// cost. After a failure nothing changed.
millpond_status millpond_free(millpond_pool *pool,
                              void *ptr,
                              millpond_any_stream stream);

// Frees a block of any pool of this device, also of one that was destroyed or whose last handle was released.
millpond_status millpond_context_free(millpond_context *context, void *ptr, millpond_any_stream stream);

// Allocates at an address that is a multiple of `align` bytes, a power of two up to the device's granularity
// (2 MiB).
millpond_status millpond_alloc_aligned(millpond_pool *pool,
                                       size_t bytes,
                                       size_t align,
                                       millpond_any_stream stream,
                                       void **out);

// Allocates, and sets all bytes to zero in stream order.
millpond_status millpond_alloc_zeroed(millpond_pool *pool,
                                      size_t bytes,
                                      millpond_any_stream stream,
                                      void **out);

// Notes that work on `stream` uses the block: the free will wait for all work given to `stream` by then. The host never
// waits. With a `CUstream` that is not registered, the free waits for the work given to it so far. Null is ignored.
millpond_status millpond_record_use(millpond_pool *pool,
                                    void *ptr,
                                    millpond_any_stream stream);

// Bytes asked for in the live block that starts at `ptr`; 0 for null.
millpond_status millpond_size_of(millpond_pool *pool, const void *ptr, size_t *out);

// Fills a pool's options with the defaults. `size` is sizeof the struct.
millpond_status millpond_pool_options_init(millpond_pool_options *options, size_t size);

// Lets the GPU of another context use all memory of the pool at its addresses: what there is, and what comes. It costs about
// 40 µs for each page, and 1 ms for the first one (H100), and as much more for new pages. DEVICE_UNSUPPORTED for a GPU that does
// not reach the memory, and for a device that cannot work together with the pool's.
millpond_status millpond_pool_allow_access(millpond_pool *pool,
                                           millpond_context *peer);

// Takes the access of another context's GPU back, from all memory of the pool. Waits for all work of that GPU. Memory in
// segments stays within its reach. BAD_OPTION for a pool that is for all GPUs.
millpond_status millpond_pool_take_back_access(millpond_pool *pool,
                                               millpond_context *peer);

// Lets the GPU of another context use one block. Its pages get access, about 40 µs for each that has none (H100), and keep it for
// later blocks. Null is ignored.
millpond_status millpond_allow_access(millpond_pool *pool,
                                      const void *ptr,
                                      millpond_context *peer);

// Whether the GPU of another context may use a block: 1 or 0. Of memory in segments: whether all of the pool's is for it.
millpond_status millpond_is_accessible_from(millpond_pool *pool,
                                            const void *ptr,
                                            millpond_context *peer,
                                            uint32_t *out);

// Builds a pool of the device with these options (null: the defaults). No memory is taken yet.
millpond_status millpond_pool_create(millpond_context *context,
                                     const millpond_pool_options *options,
                                     millpond_pool **out);

// A handle of the device's default pool, which is built with the default options when it is first asked for.
// Release it as any other; the pool stays.
millpond_status millpond_context_default_pool(millpond_context *context, millpond_pool **out);

// A handle of the pool that code without a preference should use: the one last set, else the default one.
// Release it as any other; the pool stays.
millpond_status millpond_context_current_pool(millpond_context *context, millpond_pool **out);

// Makes `pool` the current one; null goes back to the default pool. The context keeps the pool, also when its
// handle is released.
millpond_status millpond_context_set_current_pool(millpond_context *context, millpond_pool *pool);

// Gives up the handle. With a pool's last handle the pool goes: the host waits for pending work on its memory. If
// blocks are still live then, their memory goes back when the last of them is freed (`millpond_context_free`).
millpond_status millpond_pool_release(millpond_pool *pool);

// Destroys the pool for all its handles: it allocates no more. Waits for pending work on its memory. Answers
// LIVE_BLOCKS where blocks are live; the pool is destroyed all the same. The handle must still be released.
millpond_status millpond_pool_destroy(millpond_pool *pool);

// Takes memory from the device in advance, so that blocks of `bytes` in all can be allocated on `stream` without a
// device call. What is free in the pool counts. Several threads prepare pinned memory.
millpond_status millpond_pool_reserve(millpond_pool *pool,
                                      size_t bytes,
                                      millpond_any_stream stream);

// Free and total bytes of the memory that the pool is of, as its driver counts. Either output may be null.
millpond_status millpond_pool_memory_info(millpond_pool *pool, size_t *free, size_t *total);

// Gives free memory back to the device until at most `bytes_to_keep` are reserved, as far as no pending work uses
// it. Does not wait. `released` gets the bytes given back; it may be null.
millpond_status millpond_pool_trim(millpond_pool *pool,
                                   size_t bytes_to_keep,
                                   size_t *released);

// Lets the high-water marks start again from where the figures are now.
millpond_status millpond_pool_reset_high_water(millpond_pool *pool);

// Recounts every invariant of the pool, for tests. INTERNAL where one is broken; the message says which.
millpond_status millpond_pool_check(millpond_pool *pool);

// The pool's name, ended with a zero byte and cut to `capacity` bytes. `length` gets the whole name's length
// without the zero. `name` may be null where `capacity` is 0, and `length` may be null.
millpond_status millpond_pool_name(millpond_pool *pool, char *name, size_t capacity, size_t *length);

// What a guard found, as a text: the finding with this number, from 0 on. It is cut, and `length` set, as for
// `millpond_pool_name`. BAD_OPTION where there are not so many (`MILLPOND_ATTRIBUTE_GUARD_FINDINGS`).
millpond_status millpond_pool_guard_finding(millpond_pool *pool,
                                            size_t number,
                                            char *finding,
                                            size_t capacity,
                                            size_t *length);

// Reads an attribute (one of `millpond_attribute`).
millpond_status millpond_pool_get(millpond_pool *pool, int32_t attribute, uint64_t *out);

// Sets an attribute (one of `millpond_attribute` that can be set).
millpond_status millpond_pool_set(millpond_pool *pool, int32_t attribute, uint64_t value);

// Starts recording what the pool does to a file, for `millpond replay`: blocks that are live now first. `%p` in the
// path becomes the process's number. `flags` is 0 or a sum of `MILLPOND_RECORD_…`. A recording that runs is stopped.
// RECORDING if the file cannot be written; the pool records nothing then. docs/recording.md has the rest.
millpond_status millpond_pool_start_recording(millpond_pool *pool,
                                              const char *path,
                                              uint32_t flags);

// Stops recording once all is written, and says what was recorded; `recording` may be null. The pool's end does the
// same. RECORDING if the file's last part could not be written.
millpond_status millpond_pool_stop_recording(millpond_pool *pool,
                                             millpond_recording *recording);

// The recording that runs.
millpond_status millpond_pool_recording(millpond_pool *pool, millpond_recording *recording);

// Files what this thread does with pools under a name, in recordings, until `millpond_tag_end`. Tags nest.
millpond_status millpond_tag_begin(const char *name);

// Ends the tag that this thread began last. BAD_OPTION where there is none.
millpond_status millpond_tag_end(void);

// Whether two handles stand for the same context, pool or stream (1 or 0): each `millpond_context_default_pool` gives
// another handle of one pool. A `CUstream` may stand for a stream.
millpond_status millpond_is_same(const void *one,
                                 const void *other,
                                 int32_t *out);

// Lets other processes open a live block. They find there what the work given to `stream` so far writes. They reach
// the whole pages that the block lies on. The block stays allocated as long as the handle, or another process that
// has it open, also when it is freed meanwhile.
millpond_status millpond_share(millpond_pool *pool,
                               const void *ptr,
                               millpond_any_stream stream,
                               millpond_shared **out);

// Sends a shared block over a connected Unix socket (SOCK_STREAM), to one process for each call. The socket stays open.
millpond_status millpond_shared_send(millpond_shared *shared,
                                     int socket);

// Waits for what another process sends over a Unix socket, and opens it for work on `stream`. That comes after what the
// other process gave its stream before it shared the block, or recorded since. Free the block with
// `millpond_context_free`, and release the handle: then the other process may use the memory for something else.
millpond_status millpond_shared_receive(millpond_context *context,
                                        int socket,
                                        millpond_any_stream stream,
                                        void **ptr,
                                        size_t *bytes,
                                        millpond_shared **out);

// A handle of the pool that an opened block is of, for calls that take a pool. Release it as any other.
millpond_status millpond_shared_pool(millpond_shared *shared, millpond_pool **out);

// Lets the block's event stand for all work given to `stream` so far. Tell the other process then, over the socket for
// example. OWNER_GONE where the process that shared the block is gone.
millpond_status millpond_shared_record(millpond_shared *shared,
                                       millpond_any_stream stream);

// Makes later work on `stream` wait for what the block's event stands for now, whichever process recorded it. The host
// does not wait.
millpond_status millpond_shared_wait(millpond_shared *shared,
                                     millpond_any_stream stream);

// Gives up the handle. The block is freed apart from it, on either side.
millpond_status millpond_shared_release(millpond_shared *shared);

// Gives all of the pool's memory back to the device, with that of its tags. Live blocks stay, and `millpond_pool_wake`
// brings them back to where they were, so that captured graphs can be replayed. `keep` is one of `millpond_keep`.
// `released` gets the bytes given back; it may be null.
//
// Waits for the device. The memory must not be used until the pool is awake. Allocations are answered with ASLEEP; blocks
// may be freed. After a failure, the pool is awake, or sleeps and holds some memory still. Both can be tried again.
millpond_status millpond_pool_sleep(millpond_pool *pool,
                                    int32_t keep,
                                    size_t *released);

// Ends a sleep, with that of the pool's tags: returns once all bytes are in place. After OUT_OF_MEMORY the pool sleeps as
// before: make room, and try again. A pool that is awake stays as it is.
millpond_status millpond_pool_wake(millpond_pool *pool);

// A handle of the part of the pool for a tag, to be put to sleep on its own: a pool with the same options, under the same
// hard limit, made when the tag is first named. It lives as long as the pool. Release the handle as any other.
millpond_status millpond_pool_tagged(millpond_pool *pool,
                                     const char *tag,
                                     millpond_pool **out);

// Gives the pinned memory back that sleeps and evictions left for the next one, of the pool and its tags. Those that sleep or
// are evicted keep theirs.
// `released` gets the bytes given back; it may be null.
millpond_status millpond_pool_trim_staging(millpond_pool *pool,
                                           size_t *released);

// What the pool did and holds. Takes no lock.
millpond_status millpond_pool_stats(millpond_pool *pool, millpond_stats *stats);

// A status in words, such as "double free". Never null, and for any number.
const char *millpond_status_name(int32_t status);

// The library's version, such as "0.1.0".
const char *millpond_version(void);

// Creates a stream. Releasing the handle destroys it; work already given to it still runs.
millpond_status millpond_stream_create(millpond_context *context, millpond_stream **out);

// Registers a `CUstream` of the device (null or 1: the legacy default stream) for the fast path, which calls with the
// `CUstream` itself then take, too. The stream must not be destroyed before all handles registered for it, and all workspaces
// made with these, are released: what was freed on it could be used by others too early. 2 is the calling thread's default
// stream: on another thread its handle frees late but safely, and other calls with it are DEVICE_INVALID.
millpond_status millpond_stream_register(millpond_context *context,
                                         void *raw,
                                         millpond_stream **out);

// Gives up the handle. A stream that millpond created is destroyed, once nothing made on it is left. One that was
// registered may be destroyed by its owner. The host does not wait for the stream's work.
millpond_status millpond_stream_release(millpond_stream *stream);

// The driver's handle (`CUstream`) of a stream, for launches and driver calls. Valid until the stream is released.
millpond_status millpond_stream_raw(millpond_stream *stream,
                                    void **out);

// The stream's identity, which the device never gives to another (`cuStreamGetId`).
millpond_status millpond_stream_id(millpond_stream *stream, uint64_t *out);

// Records an event after all work given to the stream so far.
millpond_status millpond_stream_record(millpond_context *context,
                                       millpond_any_stream stream,
                                       millpond_event **out);

// Makes later work on the stream wait for the event. The host does not wait.
millpond_status millpond_stream_wait(millpond_context *context,
                                     millpond_any_stream stream,
                                     millpond_event *event);

// Makes later work on the stream wait for all work given to `other` so far. The host does not wait.
millpond_status millpond_stream_wait_for(millpond_context *context,
                                         millpond_any_stream stream,
                                         millpond_any_stream other);

// Waits until all work given to the stream so far is complete, then lets the pools of the device give back what
// lies above their release thresholds.
millpond_status millpond_stream_synchronize(millpond_context *context,
                                            millpond_any_stream stream);

// Whether all work given to the stream so far is complete: 1 or 0. Does not wait.
millpond_status millpond_stream_is_idle(millpond_context *context, millpond_any_stream stream, int32_t *out);

// Takes a block of `bytes` from the pool.
millpond_status millpond_workspace_create(millpond_pool *pool,
                                          size_t bytes,
                                          millpond_any_stream stream,
                                          millpond_workspace **out);

// Hands out `bytes` with no defined content, for work on the workspace's stream, until the next reset. Aligned to 512 bytes.
millpond_status millpond_workspace_alloc(millpond_workspace *workspace,
                                         size_t bytes,
                                         void **out);

// The same at a multiple of `align` bytes, a power of two up to the device's granularity (2 MiB).
millpond_status millpond_workspace_alloc_aligned(millpond_workspace *workspace,
                                                 size_t bytes,
                                                 size_t align,
                                                 void **out);

// Takes everything back. What was handed out before must not be used by work given to the stream later.
millpond_status millpond_workspace_reset(millpond_workspace *workspace);

// Bytes taken from the pool, handed out since the last reset, and handed out at most between two resets. Each
// output may be null.
millpond_status millpond_workspace_read(millpond_workspace *workspace,
                                        size_t *capacity,
                                        size_t *used,
                                        size_t *high_water);

// Gives up the workspace, and frees its block after the work given to its stream so far.
millpond_status millpond_workspace_release(millpond_workspace *workspace);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MILLPOND_H */
