// Block-sparse attention (training.md 6.1, 6.2). Blocks of 64 keys: the kernels with matrix
// products of sparse_attention_sm90.cuh on Hopper, of sparse_attention_sm80.cuh elsewhere. Other
// blocks: attention.cuh.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sparse_attention_sm80.cuh"
#include "kernels/cuda/sparse_attention_sm90.cuh"

using sparse::Entry;
using sparse::Params;
using sparse_sm90::Layout;

// Queries with their heads: [rows][q_heads][d] as a 3-D map, boxes of `queries` x G x 64.
static sp_status query_map(sp_cuda *c, sp_heads heads, sp_tensor q, int queries, CUtensorMap *out) {
    cuuint64_t dims[3] = {(cuuint64_t)heads.head_dim, (cuuint64_t)heads.q_heads,
                          (cuuint64_t)q.rows};
    cuuint64_t strides[2] = {(cuuint64_t)heads.head_dim * 2, (cuuint64_t)q.ld * 2};
    cuuint32_t box[3] = {64, (cuuint32_t)(heads.q_heads / heads.kv_heads), (cuuint32_t)queries};
    cuuint32_t ones[3] = {1, 1, 1};
    CUresult r =
        c->encode_map(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, q.data, dims, strides, box, ones,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "CUDA: no tensor map for queries [%lld, %lld] ld %lld: error %d",
                    (long long)q.rows, (long long)q.cols, (long long)q.ld, (int)r);
}

// Blocks that the lists of `queries` queries can name together; 0: no lists, dense.
static int union_capacity(int64_t queries, int64_t listed, int64_t nb) {
    return (int)(queries * listed < nb ? queries * listed : nb);
}

// The unions of the lists of every W * (64/G) queries and the bias, in scratch; fills all of `p`.
template <int W>
static sp_status unite(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor bias,
                       sp_tensor lists, sp_tensor out, Params *p) {
    int G = (int)(heads.q_heads / heads.kv_heads), per = 64 / G, queries = per * W;
    int64_t nb = ceil_div(q0 + q.rows, 64), listed = lists.cols / heads.kv_heads;
    int capacity = union_capacity(queries, listed, nb);
    int64_t groups = ceil_div(q.rows, queries), at = groups * heads.kv_heads;
    int64_t keys = bias.data ? nb * 64 : 0; // of the bias, a row a KV head
    void *scratch;
    SP_TRY(sp_cuda_scratch(c,
                           4 * keys * heads.kv_heads + at * (capacity * (int64_t)sizeof(Entry) + 4),
                           "unions of block lists", &scratch));
    float *of_keys = (float *)scratch;
    Entry *entries = (Entry *)(of_keys + keys * heads.kv_heads);
    int *counts = (int *)(entries + at * capacity);
    size_t shared = (size_t)nb * 4;
    if (lists.data) {
        CUDA_TRY(cudaFuncSetAttribute(sparse::union_kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)(shared > 48 << 10 ? shared : 48 << 10)));
        sparse::union_kernel<<<dim3((unsigned)groups, (unsigned)heads.kv_heads),
                               sparse::UNION_THREADS, shared, c->stream>>>(
            (const int32_t *)lists.data, lists.ld, (int)listed, (int)q.rows, queries, (int)nb,
            capacity, entries, counts);
        LAUNCHED("union_kernel", "%lld rows, %lld blocks", (long long)q.rows, (long long)nb);
    }
    if (keys) {
        sparse::bias_kernel<<<dim3((unsigned)ceil_div(keys, 256), (unsigned)heads.kv_heads), 256, 0,
                              c->stream>>>((const float *)bias.data, bias.ld, q0 + q.rows,
                                           (float)sqrt((double)heads.head_dim), of_keys, keys);
        LAUNCHED("bias_kernel", "%lld keys", (long long)keys);
    }
    *p = {.q0 = q0,
          .rows = (int)q.rows,
          .group = G,
          .kv_heads = (int)heads.kv_heads,
          .per_warpgroup = per,
          .scale_log2 = (float)(1.4426950408889634 / sqrt((double)heads.head_dim)),
          .entries = lists.data ? entries : NULL,
          .counts = counts,
          .capacity = capacity,
          .capacity_own = union_capacity(per, listed, nb),
          .bias = keys ? of_keys : NULL,
          .bias_ld = keys,
          .out = (bf16 *)out.data,
          .out_ld = out.ld};
    return SP_OK;
}

static dim3 grid_of(const Params &p, int warpgroups) {
    return dim3((unsigned)ceil_div(p.rows, p.per_warpgroup * warpgroups), (unsigned)p.kv_heads);
}

template <int D, int W, bool BIASED>
static sp_status launch_sm90(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k,
                             sp_tensor v, sp_tensor bias, sp_tensor lists, sp_tensor out) {
    Params p;
    SP_TRY(unite<W>(c, heads, q, q0, bias, lists, out, &p));
    CUtensorMap q_map, k_map, v_map;
    SP_TRY(query_map(c, heads, q, p.per_warpgroup, &q_map));
    // Keys beyond the last row's own read as 0: a probability of 0 times what is there must be 0.
    int64_t keys = q0 + q.rows;
    SP_TRY(sp_cuda_map(c, sp_tensor_rows(k, 0, keys), 64, &k_map));
    SP_TRY(sp_cuda_map(c, sp_tensor_rows(v, 0, keys), 64, &v_map));
    auto kernel = lists.data ? sparse_sm90::attention_kernel<D, W, BIASED, true>
                             : sparse_sm90::attention_kernel<D, W, BIASED, false>;
    size_t smem = Layout<D, W>::smem(p.capacity_own);
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    kernel<<<grid_of(p, W), Layout<D, W>::THREADS, smem, c->stream>>>(q_map, k_map, v_map, p);
    LAUNCHED("attention_kernel", "%d rows, %lld/%d heads of %d", p.rows, (long long)heads.q_heads,
             p.kv_heads, D);
    return SP_OK;
}

template <int D>
static sp_status launch_sm80(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k,
                             sp_tensor v, sp_tensor bias, sp_tensor lists, sp_tensor out) {
    Params p;
    SP_TRY(unite<1>(c, heads, q, q0, bias, lists, out, &p));
    auto kernel = sparse_sm80::attention_kernel<D>;
    size_t smem = sparse_sm80::SMEM<D>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    kernel<<<grid_of(p, 1), sparse_sm80::THREADS, smem, c->stream>>>(
        {(const bf16 *)q.data, (const bf16 *)k.data, (const bf16 *)v.data, q.ld, k.ld, v.ld,
         q0 + q.rows},
        p);
    LAUNCHED("attention_kernel", "%d rows, %lld/%d heads of %d", p.rows, (long long)heads.q_heads,
             p.kv_heads, D);
    return SP_OK;
}

// The lists of W warpgroups must fit beside the tiles (this kernel has no other shared variables),
// a query mask into 32 bits.
template <int D, int W>
static bool fits(const sp_cuda *c, sp_heads heads, int64_t nb, int64_t listed) {
    int64_t per = 64 / (heads.q_heads / heads.kv_heads);
    return per * W <= 32 && nb < 1 << (31 - sparse_sm90::U_BITS) &&
           union_capacity(per * W, listed, nb) <= 1 << sparse_sm90::U_BITS &&
           (int64_t)Layout<D, W>::smem(union_capacity(per, listed, nb)) <= c->shared_most + 1024 &&
           (!listed || nb * 4 <= c->shared_most);
}

// The widest form on Hopper that fits; false: none does.
template <bool BIASED>
static bool launched_sm90(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k,
                          sp_tensor v, sp_tensor bias, sp_tensor lists, sp_tensor out,
                          sp_status *st) {
    int64_t nb = ceil_div(q0 + q.rows, 64), listed = lists.cols / heads.kv_heads;
    if (heads.head_dim == 128 && fits<128, 3>(c, heads, nb, listed))
        *st = launch_sm90<128, 3, BIASED>(c, heads, q, q0, k, v, bias, lists, out);
    else if (heads.head_dim == 128 && fits<128, 2>(c, heads, nb, listed))
        *st = launch_sm90<128, 2, BIASED>(c, heads, q, q0, k, v, bias, lists, out);
    else if (heads.head_dim == 64 && fits<64, 2>(c, heads, nb, listed))
        *st = launch_sm90<64, 2, BIASED>(c, heads, q, q0, k, v, bias, lists, out);
    else
        return false;
    return true;
}

// Lists absent: all blocks, for sp_cuda_dense_attention.
static sp_status attend(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                        sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(q);
    sp_status st = SP_OK;
    int64_t nb = ceil_div(q0 + q.rows, block), G = heads.q_heads / heads.kv_heads;
    bool fast = block == 64 && G <= 16 && sp_cuda_aligned(q) && sp_cuda_aligned(k) &&
                sp_cuda_aligned(v) && sp_cuda_aligned(out);
    if (fast && c->hopper &&
        (bias.data ? launched_sm90<true> : launched_sm90<false>)(c, heads, q, q0, k, v, bias, lists,
                                                                 out, &st))
        return st;
    if (fast && G >= 2 && (!lists.data || nb * 4 <= c->shared_most)) { // 64/G queries in 32 bits
        if (heads.head_dim == 128) return launch_sm80<128>(c, heads, q, q0, k, v, bias, lists, out);
        if (heads.head_dim == 64) return launch_sm80<64>(c, heads, q, q0, k, v, bias, lists, out);
    }
    return attention::run(c, heads, q, q0, k, v, bias, lists.data ? &lists : NULL, block, out);
}

OP sp_cuda_sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                            sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out) {
    return attend(heads, q, q0, k, v, bias, lists, block, out);
}

sp_status sp_cuda_attend_all(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                             sp_tensor bias, sp_tensor out) {
    return attend(heads, q, q0, k, v, bias, SP_NO_TENSOR, 64, out);
}
