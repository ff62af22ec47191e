// The CPU backend: opening, memory, transfers, scratch, and the table of its operations.
#include "kernels/cpu/cpu.h"

#include "common/util.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

enum { ALIGNMENT = 64 };

// ---- opening ------------------------------------------------------------------------------------

// The processor's name, or the machine type where the system does not tell.
static char *processor_name(void) {
    char line[512], *name = NULL;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !name && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + (colon[1] == ' ');
        colon[strcspn(colon, "\n")] = 0;
        name = sp_strdup(colon);
    }
    if (f) fclose(f);
    struct utsname u;
    if (!name) name = sp_strdup(uname(&u) == 0 ? u.machine : "unknown processor");
    return name;
}

static int usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return omp_get_num_procs();
}

sp_status sp_cpu_open(const sp_backend_options *o, sp_backend **out) {
    sp_status st = SP_OK;
    char *processor = NULL;
    sp_sgemm_choice choice;
    sp_cpu *cpu = NULL;
    if (o->threads < 0)
        return sp_error(SP_BAD_INPUT, "threads is %d; it must be 0 (all cores) or positive",
                        o->threads);
    SP_GO(sp_alloc(&cpu, 1, sizeof *cpu, "the CPU backend"));
    int ranks = o->local_ranks > 0 ? o->local_ranks : 1;
    cpu->threads = o->threads ? o->threads : (int)sp_max(1, usable_cores() / ranks);
    // Libraries that make parallel regions of their own, outside ours, use no more than this.
    omp_set_num_threads(cpu->threads);
    SP_GO(sp_sgemm_choose(o->cpu_blas, cpu->threads, o->deterministic, &choice));
    // Threads that share a core were each measured while they had it for themselves.
    if (cpu->threads > usable_cores()) choice.gflops *= (double)usable_cores() / cpu->threads;
    cpu->vec = sp_vector_best();
    cpu->sgemm = choice.run;
    cpu->base = (struct sp_backend){.ops = &sp_cpu_operations,
                                    .name = "cpu",
                                    .blas = choice.name,
                                    .matmul_gflops = choice.gflops,
                                    .storage = SP_F32,
                                    .tile_bytes = 2 << 20};
    processor = processor_name();
    cpu->base.description = sp_format(
        "cpu: %s, %d thread%s, %s loops, %s at %.0f GFLOP/s (SGEMM)", processor ? processor : "?",
        cpu->threads, cpu->threads == 1 ? "" : "s", cpu->vec->isa, choice.label, choice.gflops);
    if (!cpu->base.description) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    *out = &cpu->base;
    cpu = NULL;
done:
    free(processor);
    free(cpu);
    return st;
}

static sp_status cpu_synchronize(sp_backend *be) {
    (void)be; // every operation is finished when it returns
    return SP_OK;
}

static void cpu_close(sp_backend *be) {
    sp_cpu *cpu = (sp_cpu *)be;
    sp_backend_give(be, cpu->shared, cpu->shared_bytes);
    sp_backend_give(be, cpu->private_all, cpu->private_bytes * cpu->threads);
    free(be->description);
    free(cpu);
}

// ---- memory -------------------------------------------------------------------------------------

static void *cpu_allocate(sp_backend *be, int64_t bytes) {
    (void)be;
    if (bytes > INT64_MAX - ALIGNMENT) return NULL;
    size_t whole = (size_t)sp_round_up(sp_max(bytes, 1), ALIGNMENT);
    // Else the kernel gives it, and ends the process when it is used.
    if (whole > (size_t)64 << 20 && (int64_t)whole > sp_host_available()) return NULL;
    void *p = aligned_alloc(ALIGNMENT, whole);
    if (p) memset(p, 0, whole);
    return p;
}

static void cpu_release(sp_backend *be, void *data) {
    (void)be;
    free(data);
}

sp_status sp_cpu_scratch(sp_cpu *cpu, int64_t floats_per_thread) {
    int64_t bytes = sp_round_up(floats_per_thread * (int64_t)sizeof(float), ALIGNMENT);
    if (bytes <= cpu->private_bytes) return SP_OK;
    sp_backend_give(&cpu->base, cpu->private_all, cpu->private_bytes * cpu->threads);
    cpu->private_all = NULL;
    cpu->private_bytes = 0;
    SP_TRY(sp_backend_take(&cpu->base, bytes * cpu->threads, "scratch of the threads",
                           &cpu->private_all));
    cpu->private_bytes = bytes;
    return SP_OK;
}

sp_status sp_cpu_shared_scratch(sp_cpu *cpu, int64_t floats, float **out) {
    int64_t bytes = floats * (int64_t)sizeof(float);
    if (bytes > cpu->shared_bytes || !cpu->shared) {
        sp_backend_give(&cpu->base, cpu->shared, cpu->shared_bytes);
        cpu->shared = NULL;
        cpu->shared_bytes = 0;
        SP_TRY(sp_backend_take(&cpu->base, bytes, "shared scratch", &cpu->shared));
        cpu->shared_bytes = bytes;
    }
    *out = cpu->shared;
    return SP_OK;
}

// ---- transfers ----------------------------------------------------------------------------------

// n elements, from and to any of the float types; integers only to integers.
static void convert(void *dst, sp_dtype to, const void *src, sp_dtype from, int64_t n) {
    if (to == from) {
        memcpy(dst, src, (size_t)(n * sp_dtype_size(to)));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float x;
        uint16_t half;
        if (from == SP_F32) {
            memcpy(&x, (const char *)src + 4 * i, 4);
        } else { // raw bytes of a file need not be aligned
            memcpy(&half, (const char *)src + 2 * i, 2);
            x = from == SP_BF16 ? sp_bf16_to_f32(half) : sp_f16_to_f32(half);
        }
        if (to == SP_F32) {
            ((float *)dst)[i] = x;
        } else {
            half = to == SP_BF16 ? sp_f32_to_bf16(x) : sp_f32_to_f16(x);
            ((uint16_t *)dst)[i] = half;
        }
    }
}

static char *row_of(sp_tensor t, int64_t row) {
    return (char *)t.data + row * t.ld * sp_dtype_size(t.dtype);
}

static sp_status cpu_upload(sp_tensor dst, sp_dtype src_type, const void *src) {
    int64_t row_bytes = dst.cols * sp_dtype_size(src_type);
    for (int64_t r = 0; r < dst.rows; r++)
        convert(row_of(dst, r), dst.dtype, (const char *)src + r * row_bytes, src_type, dst.cols);
    return SP_OK;
}

static sp_status cpu_download(sp_tensor src, void *dst) {
    sp_dtype to = src.dtype == SP_I32 ? SP_I32 : SP_F32;
    for (int64_t r = 0; r < src.rows; r++)
        convert((char *)dst + r * src.cols * 4, to, row_of(src, r), src.dtype, src.cols);
    return SP_OK;
}

static sp_status cpu_copy(sp_tensor dst, sp_tensor src) {
    sp_cpu *cpu = sp_cpu_of(dst);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < src.rows; r++)
        convert(row_of(dst, r), dst.dtype, row_of(src, r), src.dtype, src.cols);
    return SP_OK;
}

static sp_status cpu_fill(sp_tensor dst, float value) {
    sp_cpu *cpu = sp_cpu_of(dst);
    char one[4];
    convert(one, dst.dtype, &value, SP_F32, 1);
    int64_t size = sp_dtype_size(dst.dtype);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < dst.rows; r++) {
        char *row = row_of(dst, r);
        if (size == 4)
            for (int64_t c = 0; c < dst.cols; c++) memcpy(row + 4 * c, one, 4);
        else
            for (int64_t c = 0; c < dst.cols; c++) memcpy(row + 2 * c, one, 2);
    }
    return SP_OK;
}

const sp_operations sp_cpu_operations = {
    .close = cpu_close,
    .synchronize = cpu_synchronize,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .upload = cpu_upload,
    .download = cpu_download,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .embed = sp_cpu_embed,
    .rmsnorm = sp_cpu_rmsnorm,
    .linear = sp_cpu_linear,
    .rope = sp_cpu_rope,
    .residual_add = sp_cpu_residual_add,
    .swiglu = sp_cpu_swiglu,
    .cis = sp_cpu_cis,
    .dense_attention = sp_cpu_dense_attention,
    .sparse_attention = sp_cpu_sparse_attention,
    .compress_keys = sp_cpu_compress_keys,
    .importance = sp_cpu_importance,
    .forecast_scores = sp_cpu_forecast_scores,
    .block_scores = sp_cpu_block_scores,
    .select_blocks = sp_cpu_select_blocks,
    .cis_blocks = sp_cpu_cis_blocks,
    .extend_lists = sp_cpu_extend_lists,
    .forecast_lists = sp_cpu_forecast_lists,
    .kl = sp_cpu_kl,
    .grad_weight = sp_cpu_grad_weight,
    .scale = sp_cpu_scale,
    .sum = sp_cpu_sum,
    .sum_squares = sp_cpu_sum_squares,
    .adamw = sp_cpu_adamw,
};
