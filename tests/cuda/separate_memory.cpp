// Tells torch, built without CUDA, what its autograd asks about tensors on cuda: the guard of the device gives streams that
// are all alike, and the hooks, between begin_device() and end_device(), that CUDA is there.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

#include <new>

namespace {
struct Hooks final : at::CUDAHooksInterface {
    bool hasCUDA() const override { return true; }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface), "one takes the place of the other");

using Guard = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA, new Guard());

// torch makes the object once and keeps it; it has no members, so that another's functions can take its place.
void *hooks() { return const_cast<at::CUDAHooksInterface *>(&at::detail::getCUDAHooks()); }
} // namespace

extern "C" void begin_device() { new (hooks()) Hooks(); }
extern "C" void end_device() { new (hooks()) at::CUDAHooksInterface(); }
