// Choice of the SGEMM: OpenBLAS and, where built in, oneDNN. Distributions' OpenBLAS may not know a
// processor newer than itself and then takes its slowest kernels, so both are measured at start.
//
// Parallel work is cut by us, each piece is one call that must stay on its thread: OpenBLAS is told
// so once; oneDNN (on OpenMP) stays on the thread inside a parallel region, or if the region that
// could be made has one thread.
#include "kernels/cpu/sgemm.h"

#include "common/build.h"
#include "common/log.h"
#include "common/util.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if SPARDA_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

static void run_openblas(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a,
                         int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                         int64_t ldc) {
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                (blasint)m, (blasint)n, (blasint)k, 1.0f, a, (blasint)lda, b, (blasint)ldb, beta, c,
                (blasint)ldc);
}

#if SPARDA_HAVE_ONEDNN
static void run_onednn(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a,
                       int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                       int64_t ldc) {
    dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
}
#endif

enum { CANDIDATES = 2 }; // in order of preference
// How much faster a later candidate must be: noise shall not change the numbers of a run.
static const double clearly = 1.15;

// OpenBLAS takes a buffer of this size for every thread that calls it and, refused, asks again for
// ever. So we ask first.
static const int64_t openblas_buffer = 129 << 20;

static bool openblas_has_room(int threads) {
    size_t bytes = (size_t)(threads * openblas_buffer);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return false;
    munmap(p, bytes);
    return true;
}

// So many threads may call OpenBLAS at once: it has two buffers for each thread that it was built
// for. Beyond them it warns and makes an auxiliary table, and then may crash.
static int openblas_callers(void) {
    int threads = 0;
    const char *built_for = strstr(openblas_get_config(), "MAX_THREADS=");
    if (built_for) sscanf(built_for, "MAX_THREADS=%d", &threads);
    return 2 * (threads ? threads : 1);
}

// Whether `threads` may call OpenBLAS at once; else why not.
static sp_status openblas_serves(int threads) {
    int most = openblas_callers();
    if (threads > most)
        return sp_error(SP_BAD_INPUT,
                        "threads is %d, and this OpenBLAS serves at most %d; lower it, or use "
                        "cpu_blas onednn where that is built in",
                        threads, most);
    if (!openblas_has_room(threads))
        return sp_error(SP_ENVIRONMENT,
                        "out of memory for the buffers of OpenBLAS: %d threads of %lld MiB; raise "
                        "the limit (ulimit -v) or lower 'threads'",
                        threads, (long long)(openblas_buffer >> 20));
    return SP_OK;
}

static int candidates(sp_sgemm_choice list[CANDIDATES]) {
    int n = 0;
#if SPARDA_HAVE_ONEDNN
    const dnnl_version_t *v = dnnl_version();
    list[n] = (sp_sgemm_choice){.name = "onednn", .run = run_onednn};
    snprintf(list[n].label, sizeof list[n].label, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    n++;
#endif
    openblas_set_num_threads(1);
    list[n] = (sp_sgemm_choice){.name = "openblas", .run = run_openblas};
    char version[64] = "";
    sscanf(openblas_get_config(), "OpenBLAS %63s", version);
    snprintf(list[n].label, sizeof list[n].label, "OpenBLAS %s, core %s", version,
             openblas_get_corename());
    n++;
    return n;
}

// All four transpositions with odd sizes against scalar products in double.
static bool is_right(sp_sgemm_fn *run) {
    enum { M = 37, N = 29, K = 53, LD = 61 };
    static const float beta[] = {0, 1};
    float a[LD * LD], b[LD * LD], c[M * LD], c0[M * LD];
    uint32_t state = 12345;
    for (int i = 0; i < LD * LD; i++) {
        a[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
        b[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
    }
    memcpy(c0, a, sizeof c0);
    for (int variant = 0; variant < 8; variant++) {
        bool ta = variant & 1, tb = variant & 2;
        float be = beta[variant >> 2];
        memcpy(c, c0, sizeof c);
        run(ta, tb, M, N, K, a, LD, b, LD, be, c, LD);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                double want = (double)be * c0[i * LD + j];
                for (int k = 0; k < K; k++)
                    want += (double)(ta ? a[k * LD + i] : a[i * LD + k]) *
                            (tb ? b[j * LD + k] : b[k * LD + j]);
                if (!(fabs(c[i * LD + j] - want) < 1e-4)) return false;
            }
    }
    return true;
}

// GFLOP/s of pieces like those of sp_linear, on all threads at once: the sum over the threads of
// each one's fastest call, so that other programs on the machine disturb it little.
static sp_status measure(sp_sgemm_choice *choice, int threads) {
    enum { M = 128, N = 256, K = 256, CALLS = 16 };
    enum { EACH = M * K + N * K + M * N };
    const double flop = 2.0 * M * N * K;
    float *data;
    SP_TRY(sp_alloc(&data, (int64_t)threads * EACH, sizeof(float), "the SGEMM measurement"));
    for (int64_t i = 0; i < (int64_t)threads * EACH; i++) data[i] = (float)(i % 17) * 0.1f - 0.8f;
    double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
    {
        float *a = data + (int64_t)omp_get_thread_num() * EACH, *b = a + M * K, *c = b + N * K;
        double best = INFINITY;
        for (int i = 0; i < CALLS; i++) {
            double start = sp_now();
            choice->run(false, true, M, N, K, a, K, b, K, 0, c, N);
            double seconds = sp_now() - start;
            if (i >= 2 && seconds < best) best = seconds; // the first calls warm up
        }
        rate += flop / best;
    }
    free(data);
    choice->gflops = 1e-9 * rate;
    return SP_OK;
}

sp_status sp_sgemm_choose(const char *name, int threads, bool deterministic, sp_sgemm_choice *out) {
    bool any = !name || strcmp(name, "auto") == 0;
    sp_sgemm_choice list[CANDIDATES];
    int n = candidates(list);
    *out = (sp_sgemm_choice){0};
    for (int i = 0; i < n; i++) {
        if (!any && strcmp(list[i].name, name) != 0) continue;
        sp_status st = list[i].run == run_openblas ? openblas_serves(threads) : SP_OK;
        if (st != SP_OK && !out->run) return st;
        if (st != SP_OK) { // another library is there
            sp_warn("OpenBLAS is not used: %s", sp_error_text());
            sp_error_clear();
            continue;
        }
        if (!is_right(list[i].run)) {
            if (!any)
                return sp_error(SP_ENVIRONMENT,
                                "%s computes wrong matrix products on this machine; set cpu_blas "
                                "to auto or to another library",
                                list[i].label);
            sp_warn("%s computes wrong matrix products on this machine and is not used",
                    list[i].label);
            continue;
        }
        SP_TRY(measure(&list[i], threads));
        bool better = out->run && !deterministic && list[i].gflops > clearly * out->gflops;
        if (!out->run || better) *out = list[i];
    }
    if (out->run) return SP_OK;
    if (any)
        return sp_error(SP_ENVIRONMENT,
                        "no matrix library computes right products on this machine");
    return sp_error(SP_BAD_INPUT, "cpu_blas '%s' is not in this build; it has: auto%s%s%s%s", name,
                    ", ", list[0].name, n > 1 ? ", " : "", n > 1 ? list[1].name : "");
}
