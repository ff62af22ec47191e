// The GPU that a backend runs on, for reports (inference.md 5.5, "machine").
#ifndef SPARDA_KERNELS_MACHINE_H
#define SPARDA_KERNELS_MACHINE_H

#include "kernels/kernels.h"

typedef struct sp_gpu_facts {
    char name[128], pci[16]; // pci: "0000:19:00.0"
    char driver[64];         // its version; "" if unknown
    int multiprocessors;
    double memory_gib;
    int cuda, cuda_built;            // that the driver offers; that this program has. 13000 is 13.0
    int pcie_generation, pcie_width; // of the link as it is now; 0 if unknown
    int numa_node;                   // -1 if there is none or it is unknown
} sp_gpu_facts;

// False for a backend without a GPU.
bool sp_gpu_facts_of(const sp_backend *be, sp_gpu_facts *out);

// What Linux tells below `sysfs` ("/sys") about the driver and about the device out->pci: driver,
// link and NUMA node.
void sp_gpu_facts_read(const char *sysfs, sp_gpu_facts *out);

// Only where SPARDA_HAVE_CUDA (kernels/cuda/machine.cu): all but what sp_gpu_facts_read finds.
bool sp_cuda_facts(const sp_backend *be, sp_gpu_facts *out);

#endif
