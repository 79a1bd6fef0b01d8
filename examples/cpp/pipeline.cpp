// Batches go to the device, through a kernel, and back, with and without overlap. Each lane is a stream with buffers of its
// own: while one lane computes, another uploads, and a third downloads. The host waits only for the lane that it needs.
// It checks every element of every batch, compares the times, and prints what each lane did when. On a GPU, or the CPU as a
// device. The GPU's kernel is PTX, and the driver is loaded when it runs, so that no toolkit is needed.
//
//   c++ -std=c++17 -O2 pipeline.cpp $(pkg-config --cflags --libs millpond) -ldl -o pipeline && ./pipeline
#include <millpond.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using millpond::Buffer;
using Clock = std::chrono::steady_clock;
using Function = std::function<void()>;

/// What runs on a device's streams.
struct Machine {
    millpond::Context context;
    /// Applies `step` so many times to each element of a buffer, in the order of its stream.
    std::function<void(const millpond::Stream &, Buffer<unsigned> &, unsigned rounds)> kernel;
    /// Runs a function of the CPU in stream order.
    std::function<void(const millpond::Stream &, Function)> host_function;
    std::size_t elements;
    int batches;
};

/// Knuth's generator, without its upper half.
static unsigned step(unsigned element) { return element * 1664525U + 1013904223U; }

/// No two batches are the same, nor two elements of one.
static unsigned input(int batch, std::size_t at) {
    return static_cast<unsigned>(batch) * 0x9e3779b9U + static_cast<unsigned>(at);
}

/// `step` so many times: a product and a sum, as each step is.
struct Steps {
    explicit Steps(unsigned times) : rounds(times), factor(by_steps(1) - by_steps(0)), sum(by_steps(0)) {}
    unsigned operator()(unsigned element) const { return element * factor + sum; }

    unsigned rounds, factor, sum;

private:
    unsigned by_steps(unsigned element) const {
        for (unsigned round = 0; round < rounds; ++round) element = step(element);
        return element;
    }
};

/// When the work of each batch began, was uploaded, computed and downloaded: four stamps each.
using Timeline = std::vector<std::pair<int, std::shared_ptr<Clock::time_point>>>;

/// A stream, and the buffers of a batch that is on its way.
class Lane {
public:
    Lane(const Machine &machine, const millpond::Pool &pool, const millpond::Pool &pinned)
        : machine_(machine), stream_(machine.context), staging_(pinned, machine.elements, stream_),
          on_device_(pool, machine.elements, stream_), results_(pinned, machine.elements, stream_) {
        for (Buffer<unsigned> *const buffer : {&staging_, &on_device_, &results_}) buffer->fill_bytes(0);
    }

    /// Upload, compute and download: none of them waits on the host. The host writes one element of `every`.
    void start(int batch, const Steps &steps, std::size_t every, Timeline *timeline) {
        unsigned *const staging = staging_.host_data();
        for (std::size_t at = 0; at < machine_.elements; at += every) staging[at] = input(batch, at);
        stamp(batch, timeline);
        on_device_.copy_from_pinned(staging_);
        stamp(batch, timeline);
        machine_.kernel(stream_, on_device_, steps.rounds);
        stamp(batch, timeline);
        on_device_.copy_to_pinned(results_);
        stamp(batch, timeline);
        batch_ = batch;
    }

    /// Waits for the lane, and looks at what came back.
    void check(const Steps &steps, std::size_t every) {
        if (batch_ < 0) return;
        const unsigned *const results = std::as_const(results_).host_data();
        for (std::size_t at = 0; at < machine_.elements; at += every) {
            if (results[at] != steps(input(batch_, at))) {
                throw std::runtime_error("batch " + std::to_string(batch_) + " came back with other bytes");
            }
        }
        batch_ = -1;
    }

    /// How long a call takes on the stream.
    double seconds(const std::function<void(Lane &)> &call) {
        millpond::synchronize(machine_.context, stream_);
        const auto began = Clock::now();
        call(*this);
        millpond::synchronize(machine_.context, stream_);
        return std::chrono::duration<double>(Clock::now() - began).count();
    }

    void upload() { on_device_.copy_from_pinned(staging_); }
    void compute(unsigned rounds) { machine_.kernel(stream_, on_device_, rounds); }

private:
    void stamp(int batch, Timeline *timeline) {
        if (timeline == nullptr) return;
        auto at = std::make_shared<Clock::time_point>();
        timeline->emplace_back(batch, at);
        machine_.host_function(stream_, [at] { *at = Clock::now(); });
    }

    const Machine &machine_;
    millpond::Stream stream_;
    Buffer<unsigned> staging_, on_device_, results_;
    int batch_ = -1;
};

/// Seconds that the batches take on so many lanes.
static double run(const Machine &machine, std::size_t lanes, int batches, const Steps &steps, std::size_t every,
                  Timeline *timeline = nullptr) {
    const millpond::Pool pool(machine.context), pinned = machine.context.pinned();
    std::vector<std::unique_ptr<Lane>> all;
    while (all.size() < lanes) all.push_back(std::make_unique<Lane>(machine, pool, pinned));
    machine.context.synchronize();
    const auto began = Clock::now();
    for (int batch = 0; batch < batches; ++batch) {
        Lane &lane = *all[static_cast<std::size_t>(batch) % lanes];
        lane.check(steps, every);
        lane.start(batch, steps, every, timeline);
    }
    for (const auto &lane : all) lane->check(steps, every);
    return std::chrono::duration<double>(Clock::now() - began).count();
}

/// Where copy and kernel take equally long, overlap gains most.
static unsigned rounds_as_long_as_a_copy(const Machine &machine) {
    constexpr unsigned tried = 64;
    Lane lane(machine, millpond::Pool(machine.context), machine.context.pinned());
    double copy = 1e9, kernel = 1e9;
    for (int turn = 0; turn < 3; ++turn) {
        copy = std::min(copy, lane.seconds([](Lane &on) { on.upload(); }));
        kernel = std::min(kernel, lane.seconds([](Lane &on) { on.compute(tried); }));
    }
    return static_cast<unsigned>(std::clamp(tried * copy / kernel, 1.0, 1e6));
}

/// Seconds from the timeline's first moment to each of its moments.
static std::vector<double> seconds_of(const Timeline &timeline) {
    Clock::time_point first = Clock::time_point::max();
    for (const auto &[batch, at] : timeline) first = std::min(first, *at);
    std::vector<double> found;
    for (const auto &[batch, at] : timeline) found.push_back(std::chrono::duration<double>(*at - first).count());
    return found;
}

/// A row for each lane, in which 72 columns are `width` seconds.
static void print(const Timeline &timeline, std::size_t lanes, double width) {
    const std::vector<double> seconds = seconds_of(timeline);
    const double all = *std::max_element(seconds.begin(), seconds.end());
    const auto column = [&](double at) { return static_cast<std::size_t>(at / width * 72 + 0.5); };
    std::printf("\nin %.2f ms\n", 1e3 * all);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
        std::string row(column(all), ' ');
        for (std::size_t stamp = 0; stamp + 1 < seconds.size(); ++stamp) {
            const std::size_t phase = stamp % 4, from = column(seconds[stamp]), to = column(seconds[stamp + 1]);
            if (phase == 3 || static_cast<std::size_t>(timeline[stamp].first) % lanes != lane) continue;
            row.replace(from, to - from, to - from, "ukd"[phase]);
        }
        row.erase(row.find_last_not_of(' ') + 1);
        std::printf("lane %zu  %s\n", lane + 1, row.c_str());
    }
}

/// What a stream calls with a `Function`.
static void call_and_delete(void *data) {
    const std::unique_ptr<Function> kept(static_cast<Function *>(data));
    (*kept)();
}

/// The CPU as a device: kernels are functions.
static Machine cpu() {
    const millpond::Context context = millpond::Context::host();
    const auto host_function = [context](const millpond::Stream &stream, Function function) {
        auto kept = std::make_unique<Function>(std::move(function));
        millpond::check(millpond_host_launch(context.get(), stream.get(), call_and_delete, kept.get()));
        kept.release();
    };
    const auto kernel = [host_function](const millpond::Stream &stream, Buffer<unsigned> &buffer, unsigned rounds) {
        host_function(stream, [at = buffer.data(), count = buffer.size(), rounds] {
            for (std::size_t part = 0; part < count; part += 4096) { // parts that fit in the CPU's cache
                for (unsigned round = 0; round < rounds; ++round) {
                    const std::size_t end = std::min(count, part + 4096);
                    for (std::size_t index = part; index < end; ++index) at[index] = step(at[index]);
                }
            }
        });
    };
    return {context, kernel, host_function, 1 << 20, 18};
}

/// `step`, so many times, for each element.
static const char *const STEPS = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry steps(.param .u64 data, .param .u32 count, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [rounds];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %d1, %d1;
    mul.wide.u32 %d2, %r6, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r7, [%d3];
LOOP:
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra STORE;
    mad.lo.u32 %r7, %r7, 1664525, 1013904223;
    sub.u32 %r2, %r2, 1;
    bra LOOP;
STORE:
    st.global.u32 [%d3], %r7;
DONE:
    ret;
}
)";

/// A function of the driver. Its results are 0, or an error's number.
template <class... Arguments>
static std::function<void(Arguments...)> driver(const char *name) {
    static void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    void *const found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return [name, call = reinterpret_cast<int (*)(Arguments...)>(found)](Arguments... arguments) {
        const int result = call(arguments...);
        if (result != 0) throw std::runtime_error(std::string(name) + ": error " + std::to_string(result));
    };
}

/// The first GPU.
static Machine gpu(const millpond::Context &context) {
    int device = 0;
    void *primary = nullptr, *module = nullptr, *function = nullptr;
    driver<int *, int>("cuDeviceGet")(&device, 0);
    driver<void **, int>("cuDevicePrimaryCtxRetain")(&primary, device); // for the rest of the program
    driver<void *>("cuCtxSetCurrent")(primary);
    driver<void **, const void *>("cuModuleLoadData")(&module, STEPS);
    driver<void **, void *, const char *>("cuModuleGetFunction")(&function, module, "steps");
    const auto launch = driver<void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                               void **, void **>("cuLaunchKernel");
    const auto kernel = [launch, function](const millpond::Stream &stream, Buffer<unsigned> &buffer, unsigned rounds) {
        unsigned *data = buffer.data();
        unsigned count = static_cast<unsigned>(buffer.size());
        void *parameters[] = {&data, &count, &rounds};
        launch(function, (count + 1023) / 1024, 1, 1, 1024, 1, 1, 0, stream.raw(), parameters, nullptr);
    };
    const auto launch_host = driver<void *, void (*)(void *), void *>("cuLaunchHostFunc");
    const auto host_function = [launch_host](const millpond::Stream &stream, Function function_of_host) {
        auto kept = std::make_unique<Function>(std::move(function_of_host));
        launch_host(stream.raw(), call_and_delete, kept.get());
        kept.release();
    };
    return {context, kernel, host_function, 16 << 20, 64};
}

static Machine open_machine() {
    std::optional<millpond::Context> first;
    try {
        first = millpond::Context::cuda(0);
    } catch (const millpond::Error &) {
        return cpu(); // no GPU
    }
    return gpu(*first);
}

int main() {
    constexpr std::size_t lanes = 3, few = 4096; // few elements: the host must not take longer than the device
    constexpr int shown = 9;
    const Machine machine = open_machine();
    const Steps steps(rounds_as_long_as_a_copy(machine));
    run(machine, lanes, machine.batches, steps, 1);
    std::printf("%d batches of %zu MiB on %s: every element came back right\n", machine.batches,
                machine.elements * sizeof(unsigned) >> 20, machine.context.properties().name);
    const double one = run(machine, 1, machine.batches, steps, few);
    const double three = run(machine, lanes, machine.batches, steps, few);
    std::printf("one after the other  %8.2f ms\noverlapped           %8.2f ms  %.2f times as fast\n", 1e3 * one,
                1e3 * three, one / three);
    std::printf("\n%d batches over time: u uploads, k runs the kernel, d downloads\n", shown);
    Timeline alone, together;
    run(machine, 1, shown, steps, few, &alone);
    run(machine, lanes, shown, steps, few, &together);
    double width = 0;
    for (const Timeline *timeline : {&alone, &together}) {
        for (const double at : seconds_of(*timeline)) width = std::max(width, at);
    }
    print(alone, 1, width);
    print(together, lanes, width);
}
