// What the benchmarks of serving take, also for a build without CUDA, which can only say it; and
// what they have in common.
#include "infer/bench.h"

#include "common/build.h"
#include "common/json.h"
#include "common/log.h"

const char sp_bench_decode_usage[] =
    "sparda bench decode [options]      decode steps of every way of serving\n"
    "  --base DIR       model (default data/tiny-base); random weights do: sparda data "
    "synth-model\n"
    "  --layers N       run N layers: the base's first, its middle ones in turn, its last\n"
    "  --context N      tokens of each sequence (default 131072)\n"
    "  --batch LIST     sequences (default 4,8,16)\n"
    "  --slots LIST     slots of a sequence and head (default and least: k)\n"
    "  --miss M         share of new units in a step's lists (default 0.20)\n"
    "  --modes LIST     dense, sparse-resident, sparse-offload, forecast-resident,\n"
    "                   forecast-inline, sparda, infinigen; default all\n"
    "  --steps N        timed steps (default 64), after --warmup N (default 16)\n"
    "  --transfer NAME  auto, kernel, wide, resident, bulk, batch, loop, gather; --ctas N\n"
    "  --home-gib G     pinned memory for blocks; less than the whole is shared by layers "
    "(default\n"
    "                   the whole)\n"
    "  --host-gib G     host memory that may be pinned (default what the system says is free)\n"
    "  --json FILE      results as JSON; '-' writes them to stdout\n";

const char sp_bench_transfer_usage[] =
    "sparda bench transfer [options]    copies from pinned memory into slots\n"
    "  --units LIST     lengths of lists (default 8,32,128,512,2048,8192)\n"
    "  --ctas LIST      thread blocks of the kernels (default 4,8,16,32,64)\n"
    "  --kinds LIST     kernel, wide, bulk, batch, loop, gather; default all\n"
    "  --unit-bytes N   default 32768\n"
    "  --pool-gib G     pinned memory that units come from (default 8)\n"
    "  --repeats N      lists (default 20)\n"
    "  --matmul N       1: also beside matrix products\n"
    "  --json FILE      results as JSON; '-' writes them to stdout\n";

sp_status sp_bench_on_gpu(sp_gpu_bench *run, const void *arguments, const char *json) {
    sp_backend *be = NULL;
    json_t *results = json_array();
    sp_status st = SP_OK;
    SP_GO(sp_backend_open(&(sp_backend_options){.name = "cuda", .local_ranks = 1}, &be));
    sp_info("sparda %s (%s, %s)", SPARDA_VERSION, SPARDA_GIT, SPARDA_BUILD_TYPE);
    sp_info("backend     %s", sp_backend_description(be));
    SP_GO(run(be, arguments, results));
    if (json) SP_GO(sp_json_write(json, results));
done:
    json_decref(results);
    sp_backend_close(be);
    return st;
}
