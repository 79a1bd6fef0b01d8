// Where CCCL is, StreamResource is one of its resources.
#include <millpond_resources.hpp>

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

#if defined(MILLPOND_HAS_CCCL)
// Registered streams: kept, and given.
static_assert(std::is_constructible_v<millpond::StreamResource, const millpond::Pool &, std::vector<millpond::Stream>>);
void *on_a_registered_stream(millpond::StreamResource &resource, const millpond::Stream &stream) {
    void *found = resource.allocate(stream, 16);
    resource.deallocate(stream, found, 16);
    return found;
}
#endif

int main() {}
