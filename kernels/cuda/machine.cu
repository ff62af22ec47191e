// What the CUDA runtime says about the card of a backend (kernels/machine.h).
#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "kernels/machine.h"
}

#include <cstdio>

extern "C" bool sp_cuda_facts(const sp_backend *be, sp_gpu_facts *out) {
    const sp_cuda *c = (const sp_cuda *)be;
    cudaDeviceProp prop;
    *out = {};
    if (cudaGetDeviceProperties(&prop, c->device) != cudaSuccess ||
        cudaDriverGetVersion(&out->cuda) != cudaSuccess ||
        cudaRuntimeGetVersion(&out->cuda_built) != cudaSuccess)
        return false;
    snprintf(out->name, sizeof out->name, "%s", prop.name);
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", (unsigned)prop.pciDomainID & 0xffffu,
             (unsigned)prop.pciBusID & 0xffu, (unsigned)prop.pciDeviceID & 0xffu);
    out->multiprocessors = prop.multiProcessorCount;
    out->memory_gib = (double)prop.totalGlobalMem / 0x1p30;
    out->numa_node = -1;
    return true;
}
