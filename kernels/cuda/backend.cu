// The CUDA backend: opening a device, memory, transfers (design, "Operations and backends").
#include "kernels/cuda/cuda.cuh"

#include <algorithm>
#include <cstring>
#include <nvtx3/nvToolsExt.h>

static const int64_t staging_bytes = 32 << 20;
static const size_t lt_workspace_bytes = 64 << 20;

// ---- memory -------------------------------------------------------------------------------------

static void *allocate(sp_backend *be, int64_t bytes) {
    void *p = NULL;
    sp_cuda *c = (sp_cuda *)be;
    if (cudaMalloc(&p, (size_t)std::max<int64_t>(bytes, 256)) != cudaSuccess) {
        cudaGetLastError(); // out of memory is reported by the caller, with what it was for
        return NULL;
    }
    if (cudaMemsetAsync(p, 0, (size_t)bytes, c->stream) != cudaSuccess) {
        cudaFree(p);
        return NULL;
    }
    return p;
}

static void release(sp_backend *be, void *data) {
    (void)be;
    cudaFree(data); // waits for work that uses it
}

sp_status sp_cuda_scratch(sp_cuda *c, int64_t bytes, const char *what, void **out) {
    if (bytes > c->scratch_bytes) {
        CUDA_TRY(cudaStreamSynchronize(c->stream));
        sp_backend_give(&c->base, c->scratch, c->scratch_bytes);
        c->scratch = NULL;
        c->scratch_bytes = 0;
        SP_TRY(sp_backend_take(&c->base, bytes, what, &c->scratch));
        c->scratch_bytes = bytes;
    }
    *out = c->scratch;
    return SP_OK;
}

// ---- conversion ---------------------------------------------------------------------------------

__device__ __forceinline__ float load_as_float(const void *p, int64_t i, sp_dtype t) {
    if (t == SP_F32) return ((const float *)p)[i];
    if (t == SP_BF16) return __bfloat162float(((const bf16 *)p)[i]);
    return __half2float(((const __half *)p)[i]);
}
__device__ __forceinline__ void store_from_float(void *p, int64_t i, sp_dtype t, float v) {
    if (t == SP_F32)
        ((float *)p)[i] = v;
    else if (t == SP_BF16)
        ((bf16 *)p)[i] = __float2bfloat16(v);
    else
        ((__half *)p)[i] = __float2half(v);
}
__global__ void convert_kernel(void *dst, sp_dtype dst_type, int64_t dst_ld, const void *src,
                               sp_dtype src_type, int64_t src_ld, int64_t rows, int64_t cols) {
    int64_t n = rows * cols;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t r = i / cols, x = i % cols;
        if (dst_type == SP_I32)
            ((int32_t *)dst)[r * dst_ld + x] = ((const int32_t *)src)[r * src_ld + x];
        else
            store_from_float(dst, r * dst_ld + x, dst_type,
                             load_as_float(src, r * src_ld + x, src_type));
    }
}
__global__ void fill_kernel(void *dst, sp_dtype type, int64_t ld, int64_t rows, int64_t cols,
                            float value) {
    int64_t n = rows * cols;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        store_from_float(dst, i / cols * ld + i % cols, type, value);
}

static int grid_for(int64_t n) {
    return (int)std::min<int64_t>(ceil_div(n, 256), 132 * 16);
}

static sp_status convert(sp_cuda *c, void *dst, sp_dtype dst_type, int64_t dst_ld, const void *src,
                         sp_dtype src_type, int64_t src_ld, int64_t rows, int64_t cols) {
    if (dst_type == src_type) {
        size_t size = (size_t)sp_dtype_size(dst_type);
        if (dst_ld == cols && src_ld == cols) { // twice as fast as the same copy row by row
            CUDA_TRY(
                cudaMemcpyAsync(dst, src, rows * cols * size, cudaMemcpyDeviceToDevice, c->stream));
            return SP_OK;
        }
        CUDA_TRY(cudaMemcpy2DAsync(dst, dst_ld * size, src, src_ld * size, cols * size, rows,
                                   cudaMemcpyDeviceToDevice, c->stream));
        return SP_OK;
    }
    convert_kernel<<<grid_for(rows * cols), 256, 0, c->stream>>>(dst, dst_type, dst_ld, src,
                                                                 src_type, src_ld, rows, cols);
    LAUNCHED("convert", "%s [%lld, %lld] to %s", sp_dtype_name(src_type), (long long)rows,
             (long long)cols, sp_dtype_name(dst_type));
    return SP_OK;
}

static sp_status copy(sp_tensor dst, sp_tensor src) {
    return convert(sp_cuda_of(dst), dst.data, dst.dtype, dst.ld, src.data, src.dtype, src.ld,
                   dst.rows, dst.cols);
}

static sp_status fill(sp_tensor dst, float value) {
    sp_cuda *c = sp_cuda_of(dst);
    fill_kernel<<<grid_for(dst.rows * dst.cols), 256, 0, c->stream>>>(dst.data, dst.dtype, dst.ld,
                                                                      dst.rows, dst.cols, value);
    LAUNCHED("fill", "[%lld, %lld]", (long long)dst.rows, (long long)dst.cols);
    return SP_OK;
}

// ---- transfers: through two pinned buffers in turn, so that the host copies into one while the
// other is on its way; the source may be a file mapping ------------------------------------------

static sp_status upload(sp_tensor dst, sp_dtype type, const void *src) {
    sp_cuda *c = sp_cuda_of(dst);
    int64_t size = sp_dtype_size(type), row_bytes = dst.cols * size;
    bool direct = type == dst.dtype;
    if (row_bytes > staging_bytes)
        return sp_error(SP_ENVIRONMENT, "a row of %lld bytes exceeds the transfer buffer of %lld",
                        (long long)row_bytes, (long long)staging_bytes);
    int64_t rows_at_once = staging_bytes / row_bytes;
    void *raw = NULL;
    if (!direct)
        SP_TRY(sp_cuda_scratch(c, 2 * round_up(staging_bytes, 256), "transfer buffers", &raw));
    int turn = 0;
    for (int64_t r = 0; r < dst.rows; r += rows_at_once, turn ^= 1) {
        int64_t rows = std::min(rows_at_once, dst.rows - r);
        CUDA_TRY(cudaEventSynchronize(c->staged[turn]));
        memcpy(c->staging[turn], (const uint8_t *)src + r * row_bytes, (size_t)(rows * row_bytes));
        uint8_t *at = (uint8_t *)dst.data + r * dst.ld * sp_dtype_size(dst.dtype);
        if (direct) {
            CUDA_TRY(cudaMemcpy2DAsync(at, dst.ld * size, c->staging[turn], row_bytes, row_bytes,
                                       rows, cudaMemcpyHostToDevice, c->stream));
        } else {
            uint8_t *landing = (uint8_t *)raw + turn * round_up(staging_bytes, 256);
            CUDA_TRY(cudaMemcpyAsync(landing, c->staging[turn], (size_t)(rows * row_bytes),
                                     cudaMemcpyHostToDevice, c->stream));
            SP_TRY(convert(c, at, dst.dtype, dst.ld, landing, type, dst.cols, rows, dst.cols));
        }
        CUDA_TRY(cudaEventRecord(c->staged[turn], c->stream));
    }
    return SP_OK;
}

static sp_status download(sp_tensor src, void *dst) {
    sp_cuda *c = sp_cuda_of(src);
    sp_dtype type = src.dtype == SP_I32 ? SP_I32 : SP_F32;
    int64_t row_bytes = src.cols * 4;
    if (row_bytes > staging_bytes)
        return sp_error(SP_ENVIRONMENT, "a row of %lld bytes exceeds the transfer buffer of %lld",
                        (long long)row_bytes, (long long)staging_bytes);
    int64_t rows_at_once = staging_bytes / row_bytes;
    void *raw = NULL;
    if (src.dtype != type) SP_TRY(sp_cuda_scratch(c, staging_bytes, "transfer buffer", &raw));
    for (int64_t r = 0; r < src.rows; r += rows_at_once) {
        int64_t rows = std::min(rows_at_once, src.rows - r);
        uint8_t *at = (uint8_t *)src.data + r * src.ld * sp_dtype_size(src.dtype);
        int64_t ld_bytes = src.ld * 4;
        if (raw) {
            SP_TRY(convert(c, raw, type, src.cols, at, src.dtype, src.ld, rows, src.cols));
            at = (uint8_t *)raw;
            ld_bytes = row_bytes;
        }
        CUDA_TRY(cudaEventSynchronize(c->staged[0]));
        CUDA_TRY(cudaMemcpy2DAsync(c->staging[0], row_bytes, at, ld_bytes, row_bytes, rows,
                                   cudaMemcpyDeviceToHost, c->stream));
        CUDA_TRY(cudaStreamSynchronize(c->stream));
        memcpy((uint8_t *)dst + r * row_bytes, c->staging[0], (size_t)(rows * row_bytes));
    }
    return SP_OK;
}

// ---- tensor maps --------------------------------------------------------------------------------

sp_status sp_cuda_map(sp_cuda *c, sp_tensor t, int box_rows, CUtensorMap *out) {
    cuuint64_t dims[2] = {(cuuint64_t)t.cols, (cuuint64_t)t.rows};
    cuuint64_t strides[1] = {(cuuint64_t)t.ld * 2};
    cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, ones[2] = {1, 1};
    CUresult r =
        c->encode_map(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, t.data, dims, strides, box, ones,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS) return SP_OK;
    return sp_error(
        SP_ENVIRONMENT, "CUDA: no tensor map for [%lld, %lld] ld %lld at %p, box %d: error %d",
        (long long)t.rows, (long long)t.cols, (long long)t.ld, t.data, box_rows, (int)r);
}

// ---- opening ------------------------------------------------------------------------------------

static void close_backend(sp_backend *be) {
    sp_cuda *c = (sp_cuda *)be;
    sp_cuda_comm_leave(be, false);
    if (c->stream) cudaStreamSynchronize(c->stream);
    sp_cuda_matmul_close(c);
    if (c->lt) cublasLtDestroy(c->lt);
    cudaFree(c->lt_workspace);
    cudaFree(c->scratch);
    cudaFree(c->sums);
    cudaFree(c->flag);
    cudaFreeHost(c->host_sums);
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(c->staging[i]);
        if (c->staged[i]) cudaEventDestroy(c->staged[i]);
    }
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c->base.description);
    free(c);
}

static sp_status synchronize(sp_backend *be) {
    CUDA_TRY(cudaStreamSynchronize(((sp_cuda *)be)->stream));
    return SP_OK;
}

static void phase_begin(const char *name) {
    nvtxRangePushA(name);
}
static void phase_end(void) {
    nvtxRangePop();
}

static sp_status supports(sp_backend *be, const sp_shapes *s) {
    const sp_cuda *c = (const sp_cuda *)be;
    SP_TRY(sp_cuda_importance_supported(s->heads, s->fine, s->deployed));
    SP_TRY(sp_cuda_attention_supported(s->heads));
    SP_TRY(sp_cuda_selection_supported(c, ceil_div(s->tokens, s->block)));
    return sp_cuda_kl_supported(c, sp_windows(s->deployed, s->tokens), s->topk,
                                s->block / s->deployed.stride);
}

static const sp_operations operations = {
    .close = close_backend,
    .synchronize = synchronize,
    .supports = supports,
    .matmul_rate = sp_cuda_matmul_rate,
    .phase_begin = phase_begin,
    .phase_end = phase_end,
    .allocate = allocate,
    .release = release,
    .upload = upload,
    .download = download,
    .copy = copy,
    .fill = fill,
    .embed = sp_cuda_embed,
    .rmsnorm = sp_cuda_rmsnorm,
    .linear = sp_cuda_linear,
    .rope = sp_cuda_rope,
    .residual_add = sp_cuda_residual_add,
    .swiglu = sp_cuda_swiglu,
    .cis = sp_cuda_cis,
    .dense_attention = sp_cuda_dense_attention,
    .sparse_attention = sp_cuda_sparse_attention,
    .compress_keys = sp_cuda_compress_keys,
    .importance = sp_cuda_importance,
    .forecast_scores = sp_cuda_forecast_scores,
    .block_scores = sp_cuda_block_scores,
    .select_blocks = sp_cuda_select_blocks,
    .cis_blocks = sp_cuda_cis_blocks,
    .extend_lists = sp_cuda_extend_lists,
    .forecast_lists = sp_cuda_forecast_lists,
    .kl = sp_cuda_kl,
    .grad_weight = sp_cuda_grad_weight,
    .scale = sp_cuda_scale,
    .sum = sp_cuda_sum,
    .sum_squares = sp_cuda_sum_squares,
#if SPARDA_HAVE_NCCL
    .comm_id = sp_cuda_comm_id,
    .comm_join = sp_cuda_comm_join,
    .all_reduce = sp_cuda_all_reduce,
#endif
    .adamw = sp_cuda_adamw,
};

// Whether this build can run on a card: has its code, or PTX that the driver translates.
__global__ void probe_kernel(void) {}
static bool has_code(void) {
    cudaFuncAttributes a;
    bool found = cudaFuncGetAttributes(&a, probe_kernel) == cudaSuccess;
    cudaGetLastError();
    return found;
}

// As nvidia-smi -L shows it.
static void write_id(const cudaUUID_t &uuid, char id[48]) {
    char *at = id + snprintf(id, 48, "GPU");
    for (int i = 0; i < 16; i++) {
        const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        at += snprintf(at, (size_t)(id + 48 - at), "%s%02x", dash ? "-" : "",
                       (unsigned)(unsigned char)uuid.bytes[i]);
    }
}

static sp_status open_device(sp_cuda *c, int device, bool portable) {
    cudaDeviceProp prop;
    CUDA_TRY(cudaSetDevice(device));
    CUDA_TRY(cudaGetDeviceProperties(&prop, device));
    c->device = device;
    write_id(prop.uuid, c->base.device_id);
    c->sms = prop.multiProcessorCount;
    c->shared_most = (int64_t)prop.sharedMemPerBlockOptin - 1024; // a kernel has variables besides
    if (!has_code())
        return sp_error(
            SP_ENVIRONMENT,
            "GPU %d (%s) has compute capability %d.%d; this build has code for " SPARDA_CUDA_CODE
            " (CMake option SPARDA_CUDA_ARCHITECTURES); backend 'cpu' needs no GPU",
            device, prop.name, prop.major, prop.minor);
    c->hopper = SPARDA_HAVE_HOPPER && prop.major == 9 && prop.minor == 0 && !portable;
    CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    if (cublasLtCreate(&c->lt) != CUBLAS_STATUS_SUCCESS)
        return sp_error(SP_ENVIRONMENT, "cuBLASLt cannot be started on GPU %d (%s)", device,
                        prop.name);
    CUDA_TRY(cudaMalloc(&c->lt_workspace, lt_workspace_bytes));
    CUDA_TRY(cudaMalloc(&c->sums, 1024 * sizeof(double)));
    CUDA_TRY(cudaMalloc(&c->flag, sizeof(int)));
    CUDA_TRY(cudaMemset(c->flag, 0, sizeof(int)));
    CUDA_TRY(cudaMallocHost(&c->host_sums, 1024 * sizeof(double)));
    for (int i = 0; i < 2; i++) {
        CUDA_TRY(cudaMallocHost(&c->staging[i], staging_bytes));
        CUDA_TRY(cudaEventCreateWithFlags(&c->staged[i], cudaEventDisableTiming));
    }
    cudaDriverEntryPointQueryResult found;
    CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&c->encode_map,
                                              12000, cudaEnableDefault, &found));
    int driver = 0;
    CUDA_TRY(cudaDriverGetVersion(&driver));
    c->base.description = sp_format(
        "cuda: GPU %d %s, compute capability %d.%d, %d multiprocessors, %.0f GiB, driver for CUDA "
        "%d.%d, bf16 storage, %s kernels, cuBLASLt %zu",
        device, prop.name, prop.major, prop.minor, c->sms, (double)prop.totalGlobalMem / 0x1p30,
        driver / 1000, driver % 1000 / 10, c->hopper ? "Hopper" : "portable", cublasLtGetVersion());
    if (!c->base.description) return sp_error(SP_ENVIRONMENT, "out of memory");
    return SP_OK;
}

extern "C" bool sp_cuda_device_present(void) {
    int n = 0;
    bool present = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
    cudaGetLastError();
    return present && has_code();
}

// CUDA calls an absent driver one that is too old.
static const char *why_none(cudaError_t found) {
    int driver = 0;
    if (found == cudaSuccess) return "none is visible";
    bool absent = cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0;
    return absent ? "no NVIDIA driver is installed" : cudaGetErrorString(found);
}

extern "C" sp_status sp_cuda_open(const sp_backend_options *o, sp_backend **out) {
    *out = NULL;
    int n = 0;
    cudaError_t found = cudaGetDeviceCount(&n);
    if (found != cudaSuccess || n == 0)
        return sp_error(SP_ENVIRONMENT,
                        "no usable GPU on this host: %s; what takes a --backend or "
                        "the option backend can do without, by 'cpu'",
                        why_none(found));
    int device = 0;
    SP_TRY(sp_device_of_rank(o->local_rank, n, &device));
    sp_cuda *c;
    SP_TRY(sp_alloc(&c, 1, sizeof *c, "the CUDA backend"));
    c->base.ops = &operations;
    c->base.name = "cuda";
    c->base.blas = "";
    c->base.storage = SP_BF16;
    c->base.tile_bytes = (int64_t)512 << 20;
    sp_status st = open_device(c, device, o->portable_kernels);
    if (st != SP_OK) {
        close_backend(&c->base);
        return st;
    }
    *out = &c->base;
    return SP_OK;
}
