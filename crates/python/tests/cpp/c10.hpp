// The part of PyTorch's c10/util/Exception.h that throwing its errors needs: same names, same bases, same constructors.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace c10 {

struct SourceLocation {
    const char* function;
    const char* file;
    uint32_t line;
};

class Error : public std::exception {
    std::string message_;
    std::string location_;

  public:
    Error(SourceLocation location, std::string message);
    const char* what() const noexcept override;
};

class OutOfMemoryError : public Error {
    using Error::Error;
};

namespace detail {
[[noreturn]] void torchCheckFail(const char* function, const char* file, uint32_t line, const char* message);
}

}  // namespace c10
