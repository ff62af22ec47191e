// ctest: alone=yes
// Backends and tensors: opening, the SGEMM choice, memory accounting, views, conversions.
#include "common/build.h"
#include "common/util.h"
#include "kernels/cpu/cpu.h"
#include "tests/guarded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

static sp_backend *open_cpu(const char *blas, int threads, bool deterministic) {
    sp_backend *be;
    sp_backend_options o = {.name = "cpu",
                            .cpu_blas = blas,
                            .threads = threads,
                            .local_ranks = 1,
                            .deterministic = deterministic};
    assert_ok(sp_backend_open(&o, &be));
    return be;
}

static void opening(void **state) {
    (void)state;
    sp_backend *be = open_cpu("auto", 2, false);
    print_message("           %s\n", sp_backend_description(be));
    assert_string_equal(sp_backend_name(be), "cpu");
    assert_int_equal(sp_backend_storage(be), SP_F32);
    assert_true(sp_backend_matmul_gflops(be) > 0.1);
    assert_non_null(strstr(sp_backend_description(be), "2 threads"));
    sp_backend_close(be);

    sp_backend_options o = {.name = "cuda"};
#if SPARDA_HAVE_CUDA
    sp_status st = sp_backend_open(&o, &be);
    if (st == SP_OK)
        sp_backend_close(be);
    else
        assert_fails(st, SP_ENVIRONMENT, "no usable GPU");
#else
    assert_fails(sp_backend_open(&o, &be), SP_ENVIRONMENT, "built without CUDA");
#endif
    o.name = "tpu";
    assert_fails(sp_backend_open(&o, &be), SP_BAD_INPUT, "unknown backend 'tpu'");
    o = (sp_backend_options){.name = "auto", .threads = -1};
    assert_fails(sp_backend_open(&o, &be), SP_BAD_INPUT, "threads is -1");
    o = (sp_backend_options){.name = "auto", .cpu_blas = "mkl"};
    assert_fails(sp_backend_open(&o, &be), SP_BAD_INPUT, "cpu_blas 'mkl' is not in this build");
    sp_backend_close(NULL);
}

// Each library can be forced; both give right products through sp_linear's pieces.
static void libraries(void **state) {
    (void)state;
    const char *names[] = {"openblas", "onednn"};
    for (int i = 0; i < 1 + SPARDA_HAVE_ONEDNN; i++) {
        sp_backend *be = open_cpu(names[i], 1, false);
        assert_string_equal(sp_backend_blas(be), names[i]);
        assert_non_null(strstr(sp_backend_description(be), i ? "oneDNN" : "OpenBLAS"));
        uint64_t seed = 1;
        float *xv = test_values(&seed, 150 * 70, -1, 1), *wv = test_values(&seed, 300 * 70, -1, 1);
        test_guarded x = test_input(be, xv, 150, 70), w = test_input(be, wv, 300, 70);
        test_guarded out = test_output(be, 150, 300);
        assert_ok(sp_linear(x.t, w.t, out.t));
        float *got = test_take(&out, names[i]);
        for (int t = 0; t < 150; t++)
            for (int n = 0; n < 300; n++) {
                double want = 0;
                for (int k = 0; k < 70; k++) want += (double)xv[t * 70 + k] * wv[n * 70 + k];
                assert_true(fabs(got[t * 300 + n] - want) < 2e-5);
            }
        test_drop(&x), test_drop(&w);
        free(xv), free(wv), free(got);
        sp_backend_close(be);
    }
    // With `deterministic` the choice does not depend on a clock.
    for (int i = 0; i < 3; i++) {
        sp_backend *be = open_cpu("auto", 1, true);
        assert_string_equal(sp_backend_blas(be), SPARDA_HAVE_ONEDNN ? "onednn" : "openblas");
        sp_backend_close(be);
    }
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double thread_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

// OpenBLAS starts its threads when it is loaded, whether they will be used or not, and they look
// for work for some 30 ms before they sleep.
static void wait_for_idle_threads(void) {
    const struct timespec pause = {.tv_nsec = 20000000};
    for (int n = 0; n < 500; n++) {
        double all = cpu_seconds(), mine = thread_seconds();
        nanosleep(&pause, NULL);
        if (cpu_seconds() - all - (thread_seconds() - mine) < 0.001) return;
    }
    fail_msg("other threads were busy for 10 s");
}

// With one thread no library uses threads of its own: all of the process's time is this thread's.
static void one_thread_is_one_thread(void **state) {
    (void)state;
    wait_for_idle_threads();
    const char *names[] = {"openblas", "onednn"};
    for (int i = 0; i < 1 + SPARDA_HAVE_ONEDNN; i++) {
        sp_backend *be = open_cpu(names[i], 1, false);
        test_guarded x = test_output(be, 512, 512), out = test_output(be, 512, 512);
        assert_ok(sp_fill(x.t, 1));
        double all = cpu_seconds(), mine = thread_seconds();
        for (int n = 0; n < 10; n++) assert_ok(sp_linear(x.t, x.t, out.t));
        all = cpu_seconds() - all;
        mine = thread_seconds() - mine;
        if (all - mine > 0.2 * all + 0.01)
            fail_msg("%s: %g s of %g s were spent in other threads", names[i], all - mine, all);
        sp_tensor_free(&x.whole), sp_tensor_free(&out.whole);
        sp_backend_close(be);
    }
}

static void accounting(void **state) {
    (void)state;
    sp_backend *be = open_cpu("auto", 1, true);
    int64_t peak, before = sp_backend_bytes(be, &peak);
    sp_tensor a, b;
    assert_ok(sp_tensor_alloc(be, SP_F32, 10, 7, "a", &a));
    assert_ok(sp_tensor_alloc(be, SP_BF16, 10, 7, "b", &b));
    assert_int_equal(sp_backend_bytes(be, &peak), before + 280 + 140);
    sp_tensor_free(&a);
    assert_null(a.data);
    sp_tensor_free(&a); // harmless
    assert_int_equal(sp_backend_bytes(be, &peak), before + 140);
    assert_int_equal(peak, before + 420);
    sp_tensor_free(&b);
    assert_fails(sp_tensor_alloc(be, SP_F32, INT64_MAX / 8, 4, "weights", &a), SP_ENVIRONMENT,
                 "weights");
#ifndef SPARDA_SANITIZE // whose allocator ends the process instead
    assert_fails(sp_tensor_alloc(be, SP_F32, INT64_MAX / 64, 4, "weights", &a), SP_ENVIRONMENT,
                 "weights");
#endif
    assert_fails(sp_tensor_alloc(be, SP_F32, -1, 4, "weights", &a), SP_ENVIRONMENT, "weights");
    assert_ok(sp_tensor_alloc(be, SP_F32, 0, 4, "nothing", &a));
    assert_non_null(a.data);
    assert_ok(sp_fill(a, 1));
    sp_tensor_free(&a);
    sp_backend_close(be);
}

// A tensor of 2^32 + 2^12 elements, of which only the first and the last rows have memory: an
// offset that is cut to 32 bits lands on the first rows or on nothing.
static void offsets_beyond_32_bits(void **state) {
    (void)state;
    enum { COLS = 1 << 12, LAST = 1 << 20, EDGE = 1 << 16 };
    const size_t whole = (size_t)(LAST + 1) * COLS * sizeof(float);
    char *p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) skip(); // a limit on address space
    assert_int_equal(mprotect(p, EDGE, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(mprotect(p + whole - EDGE, EDGE, PROT_READ | PROT_WRITE), 0);
    sp_backend *be = open_cpu("auto", 1, true);
    sp_tensor t = {be, p, SP_F32, LAST + 1, COLS, COLS};
    sp_tensor first = sp_tensor_rows(t, 0, 1), last = sp_tensor_rows(t, LAST, 1), row;
    float v[COLS], got[COLS], zero[COLS] = {0};
    for (int i = 0; i < COLS; i++) v[i] = (float)(i % 251);
    assert_ptr_equal(last.data, p + whole - sizeof(float) * COLS);
    assert_ok(sp_upload(last, v));
    assert_ok(sp_download(first, got));
    assert_memory_equal(got, zero, sizeof got);
    assert_ok(sp_copy(first, last));
    assert_ok(sp_download(first, got));
    assert_memory_equal(got, v, sizeof got);
    // as a lookup: the last word of a large vocabulary
    int32_t id = LAST;
    sp_tensor ids;
    assert_ok(sp_tensor_alloc(be, SP_I32, 1, 1, "ids", &ids));
    assert_ok(sp_upload(ids, &id));
    assert_ok(sp_tensor_alloc(be, SP_F32, 1, COLS, "row", &row));
    assert_ok(sp_embed(ids, t, 2, row));
    assert_ok(sp_download(row, got));
    for (int i = 0; i < COLS; i++) assert_true(got[i] == 2 * v[i]);
    sp_tensor_free(&row);
    sp_tensor_free(&ids);
    sp_backend_close(be);
    munmap(p, whole);
}

static void views(void **state) {
    (void)state;
    sp_backend *be = open_cpu("auto", 1, true);
    sp_tensor t, other;
    float v[20], got[20];
    for (int i = 0; i < 20; i++) v[i] = (float)i;
    assert_ok(sp_tensor_alloc(be, SP_F32, 4, 5, "t", &t));
    for (int64_t r = 0; r < 4; r++) assert_true(sp_row_f32(t, r)[4] == 0); // zero-filled
    assert_ok(sp_upload(t, v));
    sp_tensor view = sp_tensor_cols(sp_tensor_rows(t, 1, 2), 2, 3);
    assert_ok(sp_download(view, got));
    const float want[] = {7, 8, 9, 12, 13, 14};
    assert_memory_equal(got, want, sizeof want);
    assert_ok(sp_upload(view, v));
    assert_ok(sp_download(t, got));
    assert_true(got[7] == 0 && got[14] == 5 && got[6] == 6 && got[10] == 10);
    assert_ok(sp_tensor_alloc(be, SP_F32, 2, 3, "other", &other));
    assert_ok(sp_copy(other, view));
    assert_ok(sp_download(other, got));
    assert_memory_equal(got, v, 6 * sizeof *v);
    assert_ok(sp_fill(view, -1));
    assert_ok(sp_download(t, got));
    assert_true(got[7] == -1 && got[14] == -1 && got[6] == 6 && got[5] == 5);

    assert_fails(sp_upload(sp_tensor_rows(t, 3, 2), v), SP_ENVIRONMENT, "view outside its tensor");
    assert_fails(sp_download(sp_tensor_cols(t, -1, 2), got), SP_ENVIRONMENT, "view outside");
    assert_fails(sp_copy(other, t), SP_ENVIRONMENT, "broken contract in sp_copy");
    assert_fails(sp_upload_raw(t, SP_I32, v), SP_ENVIRONMENT, "I32 into F32");
    assert_fails(sp_residual_add(other, sp_tensor_rows(t, 3, 2), 1), SP_ENVIRONMENT,
                 "broken contract in sp_residual_add");
    sp_backend *second = open_cpu("auto", 1, true);
    sp_tensor foreign;
    assert_ok(sp_tensor_alloc(second, SP_F32, 2, 3, "foreign", &foreign));
    assert_fails(sp_residual_add(other, foreign, 1), SP_ENVIRONMENT, "one backend");
    sp_tensor_free(&foreign), sp_tensor_free(&other), sp_tensor_free(&t);
    sp_backend_close(second);
    sp_backend_close(be);
}

static void conversions(void **state) {
    (void)state;
    sp_backend *be = open_cpu("auto", 1, true);
    // Values with their nearest bf16 and f16; ties go to even.
    const float values[] = {1,     -2.5f, 1.00390625f, 1.01171875f, 65504,
                            65520, 1e-8f, 6e-8f,       0,           3e38f};
    const float bf16[] = {1, -2.5f, 1, 1.015625f, 65536, 65536, 0, 0, 0, 0};
    const float f16[] = {1,        -2.5f, 1.00390625f, 1.01171875f, 65504,
                         INFINITY, 0,     0x1p-24f,    0,           INFINITY};
    float got[10];
    sp_tensor t, raw;
    assert_ok(sp_tensor_alloc(be, SP_BF16, 2, 5, "bf16", &t));
    assert_ok(sp_upload(t, values));
    assert_ok(sp_download(t, got));
    for (int i = 0; i < 9; i++)
        if (i != 6 && i != 7 && got[i] != bf16[i])
            fail_msg("bf16 of %g is %g", (double)values[i], (double)got[i]);
    assert_true(fabsf(got[6] - 1e-8f) < 1e-10f && fabsf(got[9] - 3e38f) < 1e36f);
    sp_tensor_free(&t);
    assert_ok(sp_tensor_alloc(be, SP_F16, 2, 5, "f16", &t));
    assert_ok(sp_upload(t, values));
    assert_ok(sp_download(t, got));
    for (int i = 0; i < 10; i++)
        if (got[i] != f16[i]) fail_msg("f16 of %g is %g", (double)values[i], (double)got[i]);

    // Raw bytes at an odd address, as in a checkpoint.
    assert_ok(sp_tensor_alloc(be, SP_F32, 2, 2, "raw", &raw));
    const uint16_t halves[] = {0x3c00, 0xc100, 0x0001, 0x7bff}; // 1, -2.5, 2^-24, 65504
    char bytes[1 + sizeof halves];
    memcpy(bytes + 1, halves, sizeof halves);
    assert_ok(sp_upload_raw(raw, SP_F16, bytes + 1));
    assert_ok(sp_download(raw, got));
    assert_true(got[0] == 1 && got[1] == -2.5f && got[2] == 0x1p-24f && got[3] == 65504);
    const uint16_t bf[] = {0x3f80, 0xc020, 0x0000, 0x7f80};
    memcpy(bytes + 1, bf, sizeof bf);
    assert_ok(sp_upload_raw(raw, SP_BF16, bytes + 1));
    assert_ok(sp_download(raw, got));
    assert_true(got[0] == 1 && got[1] == -2.5f && got[2] == 0 && got[3] == INFINITY);
    // Every f16 survives a round trip.
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = sp_f16_to_f32((uint16_t)h);
        uint16_t back = sp_f32_to_f16(f);
        if (isnan(f) ? (back & 0x7c00) != 0x7c00 || !(back & 0x3ff) : back != h)
            fail_msg("f16 0x%04x comes back as 0x%04x", h, back);
    }
    sp_tensor_free(&raw), sp_tensor_free(&t);
    sp_backend_close(be);
}

// The CUDA backend asks this with the number of GPUs it sees.
static void device_of_a_rank(void **state) {
    (void)state;
    int device = -1;
    assert_ok(sp_device_of_rank(0, 1, &device));
    assert_int_equal(device, 0);
    assert_ok(sp_device_of_rank(3, 4, &device));
    assert_int_equal(device, 3);
    assert_fails(sp_device_of_rank(4, 4, &device), SP_ENVIRONMENT,
                 "rank 4 of this host has no GPU of its own: 4 visible; start at most 4 ranks");
    assert_fails(sp_device_of_rank(0, 0, &device), SP_ENVIRONMENT, "0 visible");
    assert_int_equal(device, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(libraries),
        cmocka_unit_test(one_thread_is_one_thread),
        cmocka_unit_test(accounting),
        cmocka_unit_test(offsets_beyond_32_bits),
        cmocka_unit_test(device_of_a_rank),
        cmocka_unit_test(views),
        cmocka_unit_test(conversions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
