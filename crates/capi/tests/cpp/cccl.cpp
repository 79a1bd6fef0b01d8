// Where CCCL is, StreamResource is one of its resources.
#include <millpond.hpp>

#ifdef MILLPOND_HAS_CCCL
static_assert(cuda::mr::resource<millpond::StreamResource>);
static_assert(cuda::mr::resource_with<millpond::StreamResource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<millpond::StreamResource, cuda::mr::host_accessible>);
#elif defined(EXPECT_CCCL)
#error "CCCL was not found"
#endif

int main() {}
