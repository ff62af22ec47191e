// Backends and tensors: choosing a backend, memory with accounting, views, transfers.
#include "kernels/backend.h"

#include "common/build.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

int64_t sp_dtype_size(sp_dtype t) {
    return t == SP_F32 || t == SP_I32 ? 4 : 2;
}

const char *sp_dtype_name(sp_dtype t) {
    switch (t) {
    case SP_F32:
        return "F32";
    case SP_BF16:
        return "BF16";
    case SP_F16:
        return "F16";
    case SP_I32:
        return "I32";
    }
    return "?";
}

// ---- backend ------------------------------------------------------------------------------------

sp_status sp_backend_open(const sp_backend_options *o, sp_backend **out) {
    *out = NULL;
    const char *name = o->name ? o->name : "auto";
    if (strcmp(name, "auto") != 0 && strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0)
        return sp_error(SP_BAD_INPUT, "unknown backend '%s'; known are auto, cpu and cuda", name);
#if SPARDA_HAVE_CUDA
    if (strcmp(name, "cuda") == 0 || (strcmp(name, "auto") == 0 && sp_cuda_device_present()))
        return sp_cuda_open(o, out);
#else
    if (strcmp(name, "cuda") == 0)
        return sp_error(
            SP_ENVIRONMENT,
            "backend 'cuda' was asked for, but this program was built without CUDA; use "
            "backend 'auto' or 'cpu', or build where the CUDA toolkit is installed");
#endif
    SP_TRY(sp_cpu_open(o, out));
#if SPARDA_HAVE_CUDA
    if (strcmp(name, "auto") == 0) {
        char *more =
            sp_format("%s; no usable GPU here (backend 'cuda' says why)", (*out)->description);
        if (more) free((*out)->description);
        if (more) (*out)->description = more;
    }
#endif
    return SP_OK;
}

sp_status sp_device_of_rank(int local_rank, int visible, int *device) {
    if (local_rank >= visible)
        return sp_error(SP_ENVIRONMENT,
                        "rank %d of this host has no GPU of its own: %d visible; start at most %d "
                        "ranks per host",
                        local_rank, visible, visible);
    *device = local_rank;
    return SP_OK;
}

void sp_backend_close(sp_backend *be) {
    if (be) be->ops->close(be);
}

const char *sp_backend_name(const sp_backend *be) {
    return be->name;
}
const char *sp_backend_description(const sp_backend *be) {
    return be->description;
}
const char *sp_backend_device_id(const sp_backend *be) {
    return be->device_id;
}
const char *sp_backend_blas(const sp_backend *be) {
    return be->blas;
}
double sp_backend_matmul_gflops(sp_backend *be) {
    if (be->matmul_gflops == 0 && be->ops->matmul_rate)
        be->matmul_gflops = be->ops->matmul_rate(be);
    return be->matmul_gflops;
}
void sp_phase_begin(sp_backend *be, const char *name) {
    if (be->ops->phase_begin) be->ops->phase_begin(name);
}
void sp_phase_end(sp_backend *be) {
    if (be->ops->phase_end) be->ops->phase_end();
}
int64_t sp_backend_tile_bytes(const sp_backend *be) {
    return be->tile_bytes;
}
sp_status sp_backend_synchronize(sp_backend *be) {
    return be->ops->synchronize(be);
}
sp_status sp_backend_supports(sp_backend *be, const sp_shapes *s) {
    return be->ops->supports ? be->ops->supports(be, s) : SP_OK;
}
sp_dtype sp_backend_storage(const sp_backend *be) {
    return be->storage;
}

// ---- several GPUs -------------------------------------------------------------------------------

bool sp_backend_has_comm(const sp_backend *be) {
    return be->ops->all_reduce != NULL;
}

sp_status sp_comm_id(sp_backend *be, char id[SP_COMM_ID_BYTES]) {
    return be->ops->comm_id(be, id);
}

sp_status sp_comm_join(sp_backend *be, const char id[SP_COMM_ID_BYTES], int rank, int size,
                       double deadline_s) {
    return be->ops->comm_join(be, id, rank, size, deadline_s);
}

sp_status sp_all_reduce(sp_tensor t) {
    if (!t.backend || !t.data || t.dtype != SP_F32 || t.ld != t.cols)
        return sp_error(SP_ENVIRONMENT,
                        "broken contract in sp_all_reduce: %s [%lld, %lld] with ld %lld is not a "
                        "packed F32 tensor",
                        sp_dtype_name(t.dtype), (long long)t.rows, (long long)t.cols,
                        (long long)t.ld);
    return t.backend->ops->all_reduce(t);
}

int64_t sp_backend_bytes(const sp_backend *be, int64_t *peak) {
    if (peak) *peak = be->peak_bytes;
    return be->bytes;
}

// ---- memory -------------------------------------------------------------------------------------

sp_status sp_backend_take(sp_backend *be, int64_t bytes, const char *what, void **out) {
    *out = be->ops->allocate(be, bytes);
    if (!*out)
        return sp_error(
            SP_ENVIRONMENT,
            "out of memory on backend %s: %s needs %lld bytes (%.2f GiB), %lld bytes are "
            "in use; take shorter sequences or a machine with more memory",
            be->name, what, (long long)bytes, (double)bytes / 0x1p30, (long long)be->bytes);
    be->bytes += bytes;
    if (be->bytes > be->peak_bytes) be->peak_bytes = be->bytes;
    return SP_OK;
}

void sp_backend_give(sp_backend *be, void *data, int64_t bytes) {
    if (!data) return;
    be->ops->release(be, data);
    be->bytes -= bytes;
}

sp_status sp_tensor_alloc(sp_backend *be, sp_dtype t, int64_t rows, int64_t cols, const char *what,
                          sp_tensor *out) {
    *out = (sp_tensor){0};
    int64_t n, bytes;
    if (rows < 0 || cols < 0 || !sp_mul(rows, cols, &n) || !sp_mul(n, sp_dtype_size(t), &bytes))
        return sp_error(SP_ENVIRONMENT, "%s: a tensor of %lld x %lld elements is impossible", what,
                        (long long)rows, (long long)cols);
    void *data;
    SP_TRY(sp_backend_take(be, bytes, what, &data));
    *out = (sp_tensor){be, data, t, rows, cols, cols};
    return SP_OK;
}

void sp_tensor_free(sp_tensor *t) {
    if (t->backend) sp_backend_give(t->backend, t->data, t->rows * t->ld * sp_dtype_size(t->dtype));
    *t = (sp_tensor){0};
}

static void *element(sp_tensor t, int64_t row, int64_t col) {
    return (char *)t.data + (row * t.ld + col) * sp_dtype_size(t.dtype);
}

// A view that does not fit is marked by data = NULL: the operation it is given to refuses it.
sp_tensor sp_tensor_rows(sp_tensor t, int64_t row0, int64_t n) {
    bool fits = row0 >= 0 && n >= 0 && row0 <= t.rows && n <= t.rows - row0;
    t.data = fits ? element(t, row0, 0) : NULL;
    t.rows = n;
    return t;
}

sp_tensor sp_tensor_cols(sp_tensor t, int64_t col0, int64_t n) {
    bool fits = col0 >= 0 && n >= 0 && col0 <= t.cols && n <= t.cols - col0;
    t.data = fits ? element(t, 0, col0) : NULL;
    t.cols = n;
    return t;
}

// ---- transfers ----------------------------------------------------------------------------------

static sp_status check_tensor(const char *call, sp_tensor t) {
    if (t.backend && t.data && t.rows >= 0 && t.cols >= 0 && t.ld >= t.cols) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "broken contract in %s: %s tensor [%lld, %lld] with ld %lld is not one of a "
                    "backend, or a view outside its tensor",
                    call, sp_dtype_name(t.dtype), (long long)t.rows, (long long)t.cols,
                    (long long)t.ld);
}

sp_status sp_upload(sp_tensor dst, const void *src) {
    return sp_upload_raw(dst, dst.dtype == SP_I32 ? SP_I32 : SP_F32, src);
}

sp_status sp_upload_raw(sp_tensor dst, sp_dtype t, const void *src) {
    SP_TRY(check_tensor("sp_upload_raw", dst));
    if ((t == SP_I32) != (dst.dtype == SP_I32))
        return sp_error(SP_ENVIRONMENT, "broken contract in sp_upload_raw: %s into %s",
                        sp_dtype_name(t), sp_dtype_name(dst.dtype));
    return dst.rows && dst.cols ? dst.backend->ops->upload(dst, t, src) : SP_OK;
}

sp_status sp_download(sp_tensor src, void *dst) {
    SP_TRY(check_tensor("sp_download", src));
    return src.rows && src.cols ? src.backend->ops->download(src, dst) : SP_OK;
}

sp_status sp_copy(sp_tensor dst, sp_tensor src) {
    SP_TRY(check_tensor("sp_copy", dst));
    SP_TRY(check_tensor("sp_copy", src));
    if (dst.rows != src.rows || dst.cols != src.cols || dst.backend != src.backend ||
        (dst.dtype == SP_I32) != (src.dtype == SP_I32))
        return sp_error(SP_ENVIRONMENT,
                        "broken contract in sp_copy: from %s [%lld, %lld] to %s [%lld, %lld]",
                        sp_dtype_name(src.dtype), (long long)src.rows, (long long)src.cols,
                        sp_dtype_name(dst.dtype), (long long)dst.rows, (long long)dst.cols);
    return dst.rows && dst.cols ? dst.backend->ops->copy(dst, src) : SP_OK;
}

sp_status sp_fill(sp_tensor dst, float value) {
    SP_TRY(check_tensor("sp_fill", dst));
    if (dst.dtype == SP_I32)
        return sp_error(SP_ENVIRONMENT, "broken contract in sp_fill: a tensor of integers");
    return dst.rows && dst.cols ? dst.backend->ops->fill(dst, value) : SP_OK;
}
