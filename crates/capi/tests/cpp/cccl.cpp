// Where CCCL is, StreamResource is one of its resources.
#include <millpond.hpp>

#if defined(MILLPOND_HAS_CCCL) && CCCL_VERSION < 3001000
static_assert(cuda::mr::async_resource<millpond::StreamResource>);
static_assert(cuda::mr::async_resource_with<millpond::StreamResource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::async_resource_with<millpond::StreamResource, cuda::mr::host_accessible>);
static_assert(cuda::mr::async_resource_with<millpond::HostStreamResource, cuda::mr::device_accessible>);
static_assert(cuda::mr::async_resource_with<millpond::HostStreamResource, cuda::mr::host_accessible>);
#elif defined(MILLPOND_HAS_CCCL)
static_assert(cuda::mr::resource<millpond::StreamResource>);
static_assert(cuda::mr::resource_with<millpond::StreamResource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<millpond::StreamResource, cuda::mr::host_accessible>);
static_assert(cuda::mr::resource_with<millpond::HostStreamResource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<millpond::HostStreamResource, cuda::mr::host_accessible>);
#ifdef MILLPOND_HAS_RMM
static_assert(cuda::mr::resource_with<millpond::RmmResource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<millpond::RmmResource, cuda::mr::host_accessible>);
#endif
#elif defined(EXPECT_CCCL)
#error "CCCL was not found"
#endif

int main() {}
