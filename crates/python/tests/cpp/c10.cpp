// Stands for libc10.so.
#include "c10.hpp"

namespace c10 {

Error::Error(SourceLocation location, std::string message)
    : message_(std::move(message)), location_(std::string(location.function) + " at " + location.file) {}

const char* Error::what() const noexcept { return message_.c_str(); }

void detail::torchCheckFail(const char* function, const char* file, uint32_t line, const char* message) {
    throw Error({function, file, line}, message);
}

}  // namespace c10
