// Micro-benchmarks of the operations (bench.h).
#include "kernels/bench.h"

sp_status sp_bench_operation(sp_backend *be, const char *name, json_t *results) {
    (void)be, (void)results;
    return sp_error(SP_BAD_INPUT, "no benchmark of '%s' in this build", name);
}
