// Chained launches: a kernel's thread blocks may start before the kernel before it on the stream
// has ended (programmatic dependent launch, compute capability 9.0; elsewhere plain launches).
//
// A chained kernel calls wait_for_previous before it touches anything that others write or read;
// that waits for the end of the kernel before it, and so of all before that. What it does earlier,
// such as loading weights, costs no time of its own. It waits for other streams too, if the stream
// was told to wait for them.
#pragma once

#include "kernels/cuda/cuda.cuh"

// A multiprocessor divides its memory between L1 and shared memory for all blocks on it, and only
// when it is empty: kernels that shall run beside each other must want the same, the most shared
// memory.
template <class Kernel> cudaError_t share_most(Kernel kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

template <class... Args, class... Given>
cudaError_t launch_chained(const sp_cuda *c, void (*kernel)(Args...), dim3 grid, dim3 block,
                           size_t shared, Given... args) {
    cudaError_t e = share_most(kernel);
    if (e != cudaSuccess) return e;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = c->stream;
    config.attrs = &early;
    config.numAttrs = c->hopper ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Args>(args)...);
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's blocks may take free multiprocessors from now on.
__device__ __forceinline__ void next_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
