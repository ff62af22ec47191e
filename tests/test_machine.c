// What sysfs tells about a GPU (kernels/machine.h), from a folder made by hand.
#include "common/util.h"
#include "kernels/machine.h"
#include "tests/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static void write_line(const char *folder, const char *name, const char *text) {
    char *path = sp_format("%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
    free(path);
}

static void facts_of_a_folder(void **state) {
    (void)state;
    static const char *const folders[] = {
        "module",  "module/nvidia",   "bus",
        "bus/pci", "bus/pci/devices", "bus/pci/devices/0000:19:00.0"};
    const char *root = test_tmpdir();
    char *device = sp_format("%s/bus/pci/devices/0000:19:00.0", root);
    char *module = sp_format("%s/module/nvidia", root);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = sp_format("%s/%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0755), 0);
        free(path);
    }
    sp_gpu_facts f = {.pci = "0000:19:00.0", .multiprocessors = 132};
    // Nothing is there: nothing is known, and the rest stays.
    sp_gpu_facts_read(root, &f);
    assert_string_equal(f.driver, "");
    assert_true(f.pcie_generation == 0 && f.pcie_width == 0 && f.numa_node == -1);
    write_line(module, "version", "580.159.04");
    write_line(device, "current_link_width", "16");
    write_line(device, "numa_node", "1");
    static const char *const speeds[] = {"2.5 GT/s PCIe",  "5.0 GT/s PCIe",  "8.0 GT/s PCIe",
                                         "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};
    for (int i = 0; i < 6; i++) {
        write_line(device, "current_link_speed", speeds[i]);
        sp_gpu_facts_read(root, &f);
        assert_int_equal(f.pcie_generation, i + 1);
    }
    write_line(device, "current_link_speed", "Unknown");
    sp_gpu_facts_read(root, &f);
    assert_int_equal(f.pcie_generation, 0);
    assert_string_equal(f.driver, "580.159.04");
    assert_true(f.pcie_width == 16 && f.numa_node == 1 && f.multiprocessors == 132);
    free(device), free(module);
}

static void the_cpu_is_no_gpu(void **state) {
    (void)state;
    sp_gpu_facts f;
    assert_false(sp_gpu_facts_of(test_backend(), &f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_of_a_folder),
        cmocka_unit_test(the_cpu_is_no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
