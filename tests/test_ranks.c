// ctest: ranks=2 timeout=120
// Ranks: what a launcher announces, sums in a fixed order, agreement on failures. Run alone, on two
// ranks, and on four (test_ranks4.c).
#include "common/util.h"
#include "kernels/backend.h"
#include "tests/support.h"
#include "train/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const sp_ranks *ranks;

// ---- launchers ----------------------------------------------------------------------------------

static const char *const *fake; // name, value, ..., NULL

static const char *fake_getenv(const char *name) {
    for (int i = 0; fake[i]; i += 2)
        if (strcmp(fake[i], name) == 0) return fake[i + 1];
    return NULL;
}

#define DETECT(...)                                                                                \
    (fake = (const char *const[]){__VA_ARGS__, NULL}, sp_launcher_detect(fake_getenv))

static void test_launchers(void **state) {
    (void)state;
    sp_launcher l = DETECT("HOME", "/root");
    assert_null(l.name);
    l = DETECT("OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "1");
    assert_string_equal(l.name, "Open MPI");
    assert_int_equal(l.size, 2);
    assert_int_equal(l.rank, 1);
    assert_true(l.has_pmi);
    l = DETECT("PMI_SIZE", "2");
    assert_string_equal(l.name, "PMI");
    assert_int_equal(l.size, 2);
    assert_int_equal(l.rank, -1);
    l = DETECT("PMIX_RANK", "3");
    assert_int_equal(l.size, 0);
    assert_int_equal(l.rank, 3);
    l = DETECT("MPI_LOCALRANKID", "1");
    assert_string_equal(l.name, "Hydra");
    l = DETECT("PALS_LOCAL_RANKID", "0");
    assert_string_equal(l.name, "PALS");
    // an inner mpirun wins over the Slurm job around it
    l = DETECT("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "OMPI_COMM_WORLD_SIZE", "2",
               "OMPI_COMM_WORLD_RANK", "0");
    assert_string_equal(l.name, "Open MPI");
    assert_int_equal(l.size, 2);
}

static void test_slurm(void **state) {
    (void)state;
    // a task of a step, without PMI
    sp_launcher l = DETECT("SLURM_NTASKS", "4", "SLURM_PROCID", "2");
    assert_string_equal(l.name, "Slurm");
    assert_int_equal(l.size, 4);
    assert_int_equal(l.rank, 2);
    assert_false(l.has_pmi);
    l = DETECT("SLURM_NTASKS", "4", "SLURM_PROCID", "0", "SLURM_STEP_ID", "0",
               "SLURM_STEP_NUM_TASKS", "4");
    assert_int_equal(l.size, 4);
    // a batch script, an interactive step of one task, an allocation without a step: one process
    assert_null(DETECT("SLURM_NTASKS", "4", "SLURM_PROCID", "0").name);
    l = DETECT("SLURM_NTASKS", "4", "SLURM_PROCID", "0", "SLURM_STEP_ID", "4294967290",
               "SLURM_STEP_NUM_TASKS", "1");
    assert_null(l.name);
    assert_null(DETECT("SLURM_NTASKS", "4", "SLURM_JOB_ID", "17").name);
    assert_null(DETECT("SLURM_NTASKS", "four", "SLURM_PROCID", "2").name); // nonsense is nothing
    l = DETECT("SLURM_NTASKS", "4", "SLURM_PROCID", "2", "PMIX_RANK", "2");
    assert_string_equal(l.name, "PMIx");
}

// ---- collectives --------------------------------------------------------------------------------

static void test_topology(void **state) {
    (void)state;
    assert_in_range(ranks->rank, 0, ranks->size - 1);
    assert_true(ranks->local_size <= ranks->size && ranks->local_rank < ranks->local_size);
    assert_true(strlen(ranks->host) > 0);
    const sp_ranks *again;
    assert_ok(sp_ranks_open(&again));
    assert_ptr_equal(again, ranks);
    int threads = sp_ranks_threads();
    assert_true(threads >= 1);
    assert_true(threads * ranks->local_size <= sysconf(_SC_NPROCESSORS_ONLN) || threads == 1);
    // every rank has its own number
    double *mine = calloc((size_t)ranks->size, sizeof *mine);
    mine[ranks->rank] = 1;
    assert_ok(sp_ranks_sum_doubles(mine, ranks->size));
    for (int r = 0; r < ranks->size; r++) assert_true(mine[r] == 1);
    free(mine);
}

// Value of element i on rank r: magnitudes from 1e-12 to 1e12, so that the order of additions
// shows.
static float element(int r, int64_t i) {
    uint64_t s = (uint64_t)i * 131 + (uint64_t)r;
    float sign = test_uniform(&s, -1, 1);
    return sign * powf(10, test_uniform(&s, -12, 12));
}

static void check_sum(sp_backend *be, int64_t rows, int64_t cols) {
    int64_t n = rows * cols;
    sp_tensor t;
    float *v = malloc((size_t)n * sizeof *v);
    assert_ok(sp_tensor_alloc(be, SP_F32, rows, cols, "sum", &t));
    for (int64_t i = 0; i < n; i++) v[i] = element(ranks->rank, i);
    assert_ok(sp_upload(t, v));
    assert_ok(sp_ranks_sum(&t));
    memset(v, 0xff, (size_t)n * sizeof *v);
    assert_ok(sp_download(t, v));
    for (int64_t i = 0; i < n; i++) {
        double want = 0;
        for (int r = 0; r < ranks->size; r++) want += (double)element(r, i);
        if (v[i] != (float)want)
            fail_msg("[%lld x %lld] element %lld: %a, expected %a", (long long)rows,
                     (long long)cols, (long long)i, v[i], (double)(float)want);
    }
    sp_tensor_free(&t);
    free(v);
}

static void test_sum(void **state) {
    (void)state;
    sp_backend_options o = {.name = "cpu", .cpu_blas = "openblas", .threads = 1, .local_ranks = 1};
    sp_backend *be;
    assert_ok(sp_backend_open(&o, &be));
    check_sum(be, 1, 1); // fewer elements than ranks
    check_sum(be, 3, 5); // does not divide
    check_sum(be, 64, 17);
    check_sum(be, 3, (1 << 20) * 2 + 5); // more than one piece
    sp_backend_close(be);
}

static void test_sum_of_nonfinite(void **state) {
    (void)state;
    double v[3] = {ranks->rank == ranks->size - 1 ? NAN : 1, ranks->rank == 0 ? INFINITY : 0, 2};
    assert_ok(sp_ranks_sum_doubles(v, 3));
    assert_true(isnan(v[0]));
    assert_true(isinf(v[1]));
    assert_true(v[2] == 2.0 * ranks->size);
}

static void test_max_and_broadcast(void **state) {
    (void)state;
    int64_t v[2] = {ranks->rank, -ranks->rank - 5};
    assert_ok(sp_ranks_max(v, 2));
    assert_int_equal(v[0], ranks->size - 1);
    assert_int_equal(v[1], -5);
    char text[32];
    snprintf(text, sizeof text, "from %d", ranks->rank);
    assert_ok(sp_ranks_broadcast(text, sizeof text));
    assert_string_equal(text, "from 0");
    assert_ok(sp_ranks_rest());
}

static void test_agreement(void **state) {
    (void)state;
    assert_ok(sp_ranks_agree(SP_OK));
    assert_true(sp_ranks_reports());
    int last = ranks->size - 1;
    // one rank fails: all learn its status and text, and only it prints
    sp_status mine = SP_OK;
    if (ranks->rank == last) mine = sp_error(SP_BAD_INPUT, "the reason of rank %d", last);
    char want[64];
    snprintf(want, sizeof want, "the reason of rank %d", last);
    assert_fails(sp_ranks_agree(mine), SP_BAD_INPUT, want);
    assert_int_equal(sp_ranks_reports(), ranks->rank == last);
    if (ranks->size > 1) {
        char where[64];
        snprintf(where, sizeof where, "rank %d on ", last);
        assert_non_null(strstr(sp_error_text(), where));
    }
    // all fail, differently: the worst one counts
    mine = ranks->rank == last ? sp_error(SP_ENVIRONMENT, "no memory")
                               : sp_error(SP_BAD_INPUT, "wrong file");
    assert_fails(sp_ranks_agree(mine), SP_ENVIRONMENT, "no memory");
    assert_int_equal(sp_ranks_reports(), ranks->rank == last);
    // all fail alike: one report
    double reports[1];
    mine = sp_error(SP_BAD_INPUT, "same everywhere");
    assert_fails(sp_ranks_agree(mine), SP_BAD_INPUT, "same everywhere");
    reports[0] = sp_ranks_reports();
    assert_ok(sp_ranks_sum_doubles(reports, 1));
    assert_true(reports[0] == 1);
    assert_ok(sp_ranks_agree(SP_OK));
    assert_true(sp_ranks_reports());
}

static void test_same(void **state) {
    (void)state;
    assert_ok(sp_ranks_same("the configuration", "steps: 3\nlr: 1\n"));
    if (ranks->size == 1) return;
    const char *text = ranks->rank == 1 ? "steps: 3\nlr: 2\n" : "steps: 3\nlr: 1\n";
    assert_fails(sp_ranks_same("the configuration", text), SP_BAD_INPUT,
                 "rank 0 has 'lr: 1', this one 'lr: 2'");
    assert_non_null(strstr(sp_error_text(), "rank 1 on "));
}

// A rank that works longer than the deadline of silence is late, not silent.
static void test_late(void **state) {
    (void)state;
    sp_backend_options o = {.name = "cpu", .cpu_blas = "openblas", .threads = 1, .local_ranks = 1};
    sp_backend *be;
    assert_ok(sp_backend_open(&o, &be));
    assert_ok(sp_ranks_connect(be, 1));
    int64_t v = ranks->rank;
    if (ranks->rank == 0) nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL);
    assert_ok(sp_ranks_max(&v, 1));
    assert_int_equal(v, ranks->size - 1);
    assert_ok(sp_ranks_connect(be, 30));
    sp_backend_close(be);
}

static void test_devices(void **state) {
    (void)state;
    static const char ids[][SP_RANKS_ID] = {"GPU-a", "", "GPU-b", "GPU-a", "", "GPU-c", "GPU-a"};
    static const int first[] = {-1, -1, -1, 0, -1, -1, 0};
    for (int r = 0; r < 7; r++) assert_int_equal(sp_ranks_same_device(ids[0], 7, r), first[r]);
}

// A backend that says it computes on this GPU. All ranks learn which two have the same one.
static void test_one_gpu_for_two(void **state) {
    (void)state;
    sp_backend_options o = {.name = "cpu", .cpu_blas = "openblas", .threads = 1, .local_ranks = 1};
    sp_backend *be;
    assert_ok(sp_backend_open(&o, &be));
    assert_string_equal(sp_backend_device_id(be), "");
    snprintf(be->device_id, sizeof be->device_id, "GPU-%04d", ranks->rank);
    assert_ok(sp_ranks_connect(be, 30));
    snprintf(be->device_id, sizeof be->device_id, "GPU-0000");
    if (ranks->size > 1) {
        assert_fails(sp_ranks_connect(be, 30), SP_ENVIRONMENT, "computes on GPU-0000, as rank 0");
        assert_non_null(strstr(sp_error_text(), "rank 1 on "));
    } else {
        assert_ok(sp_ranks_connect(be, 30));
    }
    sp_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers),
        cmocka_unit_test(test_slurm),
        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_sum_of_nonfinite),
        cmocka_unit_test(test_max_and_broadcast),
        cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_one_gpu_for_two),
    };
    if (sp_ranks_open(&ranks) != SP_OK) {
        fprintf(stderr, "%s\n", sp_error_text());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) sp_ranks_abort(1); // the others may be waiting
    sp_ranks_close();
    return failed;
}
