// See machine.h.
#include "kernels/machine.h"

#include "common/build.h"
#include "common/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The first line of a small file, "" if there is none.
static void read_line(char *path, char *out, size_t room) {
    *out = 0;
    FILE *f = path ? fopen(path, "r") : NULL;
    if (f) {
        if (!fgets(out, (int)room, f)) *out = 0;
        fclose(f);
    }
    out[strcspn(out, "\n")] = 0;
    free(path);
}

void sp_gpu_facts_read(const char *sysfs, sp_gpu_facts *out) {
    // Transfers per second and lane, in units of 0.5 GT/s, of generations 1 to 6.
    static const int speed[] = {5, 10, 16, 32, 64, 128};
    char text[64];
    const char *pci = out->pci;
    read_line(sp_format("%s/module/nvidia/version", sysfs), out->driver, sizeof out->driver);
    read_line(sp_format("%s/bus/pci/devices/%s/current_link_speed", sysfs, pci), text, sizeof text);
    out->pcie_generation = 0;
    for (int i = 0; i < 6; i++) // "32.0 GT/s PCIe"
        if ((int)(2 * strtod(text, NULL) + 0.5) == speed[i]) out->pcie_generation = i + 1;
    read_line(sp_format("%s/bus/pci/devices/%s/current_link_width", sysfs, pci), text, sizeof text);
    out->pcie_width = atoi(text);
    read_line(sp_format("%s/bus/pci/devices/%s/numa_node", sysfs, pci), text, sizeof text);
    out->numa_node = *text ? atoi(text) : -1;
}

bool sp_gpu_facts_of(const sp_backend *be, sp_gpu_facts *out) {
#if SPARDA_HAVE_CUDA
    if (strcmp(sp_backend_name(be), "cuda") != 0 || !sp_cuda_facts(be, out)) return false;
    sp_gpu_facts_read("/sys", out);
    return true;
#else
    (void)be, (void)out;
    return false;
#endif
}
