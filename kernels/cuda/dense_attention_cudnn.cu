// Dense causal attention through cuDNN's graph interface (the C functions cudnnBackend*), loaded
// when the program runs: without the library, or where it has no fused kernel for a shape, the
// caller takes our own.
//
// cuDNN is given a graph of elementary operations on tensors that never exist in memory (virtual
// ones), and runs it as one kernel if it recognises attention in it:
//   S = Q K^T / sqrt(d), where column <= row + keys - rows, else -inf
//   top = max S;  E = exp(S - top);  sum = sum E;  statistics = top + log(sum)
//   P = E / sum;  O = P V
// Nobody reads the statistics, but without them cuDNN 9.19 takes the graph for another kind, which
// no engine runs. The rows are the last ones of the keys. K and V are given with the heads they
// have; several heads of Q share one.
//
// What is trusted: an engine that did not recognise attention may read outside its tensors. So
// only the first choice of cuDNN's heuristics is taken, if its own description names it fused
// attention and it needs next to no workspace; the first result of every plan is compared with our
// kernel's; and after one failure or wrong result cuDNN is not used again.
//
// A plan belongs to a shape and costs 2 ms. Compiling its kernel takes cuDNN 0.6 s; plans of one
// geometry of heads share it (dynamic shapes and a kernel cache, for attention from 9.18.1 on). The
// cache tells graphs apart by their operations alone: a geometry needs its own.
#include "kernels/cuda/dense_attention_cudnn.cuh"

#if SPARDA_HAVE_CUDNN
#include "kernels/cuda/cudnn.cuh"

#include <algorithm>
#include <cmath>
#include <string>

using cudnn::Descriptor;
using cudnn::drop_all;
using cudnn::library;
using cudnn::Maker;
using cudnn::say;

namespace {

// ---- the graph ----------------------------------------------------------------------------------

enum { Q = 1, K, V, OUT, SCALE, LOWEST, KEYS, ROWS, FIRST_VIRTUAL };

const cudnnDataType_t F32 = CUDNN_DATA_FLOAT, BF16 = CUDNN_DATA_BFLOAT16, I32 = CUDNN_DATA_INT32,
                      BOOL = CUDNN_DATA_BOOLEAN;

struct Heads {
    int64_t q, kv, d;
    bool operator==(const Heads &) const = default;
};

struct Shape {
    Heads heads;
    int64_t rows, keys, q_ld, k_ld, v_ld, out_ld;
    bool operator==(const Shape &) const = default;
};

struct Graph : Maker {
    Shape s;
    std::vector<Descriptor> operations;
    int64_t next = FIRST_VIRTUAL;

    // Dimensions and strides in elements: batch, head, row, column.
    Descriptor tensor(int64_t id, cudnnDataType_t type, std::initializer_list<int64_t> dims,
                      std::initializer_list<int64_t> strides) {
        const int64_t alignment = 16;
        const bool is_virtual = id >= FIRST_VIRTUAL, by_value = id >= SCALE && !is_virtual;
        return make(CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                    {{CUDNN_ATTR_TENSOR_DATA_TYPE, &type},
                     {CUDNN_ATTR_TENSOR_DIMENSIONS, dims.begin(), 4},
                     {CUDNN_ATTR_TENSOR_STRIDES, strides.begin(), 4},
                     {CUDNN_ATTR_TENSOR_UNIQUE_ID, &id},
                     {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &alignment},
                     {CUDNN_ATTR_TENSOR_IS_VIRTUAL, &is_virtual},
                     {CUDNN_ATTR_TENSOR_IS_BY_VALUE, &by_value}});
    }
    Descriptor scalar(int64_t id, cudnnDataType_t type) {
        return tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1});
    }
    Descriptor pairs(cudnnDataType_t type) { // a value for every row and key
        const int64_t h = s.heads.q, R = s.rows, N = s.keys;
        return tensor(next++, type, {1, h, R, N}, {h * R * N, R * N, N, 1});
    }
    Descriptor per_row() {
        const int64_t h = s.heads.q, R = s.rows;
        return tensor(next++, F32, {1, h, R, 1}, {h * R, R, 1, 1});
    }

    void matmul(Descriptor a, Descriptor b, Descriptor c) {
        Descriptor how =
            make(CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, &F32}});
        operations.push_back(make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                                  {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a},
                                   {CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b},
                                   {CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c},
                                   {CUDNN_ATTR_OPERATION_MATMUL_DESC, &how}}));
    }
    // Returns y = mode(x, b, chosen by t); b and t may be absent. axis: of an index.
    Descriptor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t precision, Descriptor y,
                         Descriptor x, Descriptor b = NULL, Descriptor t = NULL,
                         const int64_t *axis = NULL) {
        Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                              {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode},
                               {CUDNN_ATTR_POINTWISE_MATH_PREC, &precision},
                               {CUDNN_ATTR_POINTWISE_AXIS, axis}});
        operations.push_back(make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                  {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &how},
                                   {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x},
                                   {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y},
                                   {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b ? &b : NULL},
                                   {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t ? &t : NULL}}));
        return y;
    }
    Descriptor index(int64_t axis, Descriptor of) {
        return pointwise(CUDNN_POINTWISE_GEN_INDEX, F32, pairs(I32), of, NULL, NULL, &axis);
    }
    Descriptor reduce(cudnnReduceTensorOp_t what, Descriptor x) {
        Descriptor y = per_row();
        Descriptor how =
            make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                 {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &what},
                  {CUDNN_ATTR_REDUCTION_COMP_TYPE, &F32}});
        operations.push_back(make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                                  {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, &how},
                                   {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x},
                                   {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y}}));
        return y;
    }

    // `handle` goes with the finished graph.
    Descriptor attention(const cudnnHandle_t &handle) {
        const auto [h, g, d] = s.heads;
        const int64_t R = s.rows, N = s.keys;
        Descriptor q = tensor(Q, BF16, {1, h, R, d}, {R * s.q_ld, d, s.q_ld, 1});
        Descriptor k = tensor(K, BF16, {1, g, d, N}, {N * s.k_ld, d, 1, s.k_ld}); // transposed
        Descriptor v = tensor(V, BF16, {1, g, N, d}, {N * s.v_ld, d, s.v_ld, 1});
        Descriptor out = tensor(OUT, BF16, {1, h, R, d}, {R * s.out_ld, d, s.out_ld, 1});

        Descriptor z = pairs(F32);
        matmul(q, k, z);
        z = pointwise(CUDNN_POINTWISE_MUL, F32, pairs(F32), z, scalar(SCALE, F32));

        Descriptor row = index(2, z), keys = scalar(KEYS, I32), rows = scalar(ROWS, I32);
        row = pointwise(CUDNN_POINTWISE_ADD, I32, pairs(I32), row, keys);
        row = pointwise(CUDNN_POINTWISE_SUB, I32, pairs(I32), row, rows);
        Descriptor column = index(3, z);
        Descriptor seen = pointwise(CUDNN_POINTWISE_CMP_GE, BOOL, pairs(BOOL), row, column);
        z = pointwise(CUDNN_POINTWISE_BINARY_SELECT, F32, pairs(F32), z, scalar(LOWEST, F32), seen);

        Descriptor top = reduce(CUDNN_REDUCE_TENSOR_MAX, z);
        Descriptor e = pointwise(CUDNN_POINTWISE_SUB, F32, pairs(F32), z, top);
        e = pointwise(CUDNN_POINTWISE_EXP, F32, pairs(F32), e);
        Descriptor sum = reduce(CUDNN_REDUCE_TENSOR_ADD, e);
        Descriptor log = pointwise(CUDNN_POINTWISE_LOG, F32, per_row(), sum);
        pointwise(CUDNN_POINTWISE_ADD, F32, per_row(), top, log); // the statistics
        matmul(pointwise(CUDNN_POINTWISE_DIV, F32, pairs(BF16), e, sum), v, out);

        const bool dynamic = true;
        return make(
            CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
            {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle},
             {CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, &dynamic},
             {CUDNN_ATTR_OPERATIONGRAPH_OPS, operations.data(), (int64_t)operations.size()}});
    }
};

// ---- plans --------------------------------------------------------------------------------------

const size_t MOST_PLANS = 64;           // the oldest goes first
const int64_t MOST_WORKSPACE = 1 << 20; // 256 bytes, in fact; a matrix of scores would be gigabytes

struct Plan {
    Shape shape;
    std::vector<Descriptor> all;
    Descriptor plan; // NULL: none, because
    char why[192];
    int64_t workspace;
    bool checked;
};

struct Kernels { // of all plans of one geometry
    Heads heads;
    Descriptor cache;
};

} // namespace

struct sp_cudnn {
    cudnnHandle_t handle;
    std::vector<Plan> plans;
    std::vector<Kernels> kernels;
    std::vector<Descriptor> caches; // those of `kernels`, to be dropped
    char failed[256];               // not empty: cuDNN is not used again, because
};

namespace {

Descriptor kernels_of(sp_cudnn *n, Heads heads, Descriptor graph) {
    for (const Kernels &x : n->kernels)
        if (x.heads == heads) return x.cache;
    Maker m{library(), n->caches};
    Descriptor cache = m.make(CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR,
                              {{CUDNN_ATTR_KERNEL_CACHE_OPERATION_GRAPH, &graph}});
    if (m.ok) n->kernels.push_back({heads, cache});
    return m.ok ? cache : NULL;
}

// Engines that sum in another order every time say so.
bool repeatable(Maker &m, Descriptor config) {
    Descriptor engine = m.blank(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    m.get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &engine, 1, &n);
    m.get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes,
          CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n);
    return m.ok && std::find(notes, notes + n, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes + n;
}

// cuDNN's own description of a plan names the kind that its graph was recognised as.
bool fused_attention(Maker &m, Descriptor plan) {
    int64_t n = 0;
    m.get(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (char *)NULL, 0,
          &n);
    std::string text((size_t)n, 0);
    m.get(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, text.data(), n, &n);
    return m.ok && text.find("\"finalizeMode\":\"SDPA_FWD\"") != std::string::npos;
}

// What is wrong with it, or NULL.
const char *build_plan(sp_cudnn *n, Plan *p) {
    Graph g{{library(), p->all}, p->shape};
    Descriptor graph = g.attention(n->handle);
    Descriptor kernels = g.ok ? kernels_of(n, p->shape.heads, graph) : NULL;
    if (!kernels) return "graph refused";
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Descriptor choice = g.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                               {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &graph},
                                {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode}});
    Descriptor config = g.blank(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t found = 0;
    g.get(choice, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &config, 1, &found);
    if (!g.ok || !found) return "no engine";
    if (!repeatable(g, config)) return "no engine that repeats its results";
    Descriptor plan = g.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                             {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &n->handle},
                              {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config},
                              {CUDNN_ATTR_EXECUTION_PLAN_KERNEL_CACHE, &kernels}});
    g.get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &p->workspace, 1,
          &found);
    if (!g.ok) return "kernel not compiled";
    if (!fused_attention(g, plan)) return "not recognised as attention";
    if (p->workspace > MOST_WORKSPACE) return "too much workspace";
    p->plan = plan;
    return NULL;
}

Plan *plan_of(sp_cudnn *n, const Shape &s) {
    for (Plan &x : n->plans)
        if (x.shape == s) return &x;
    if (n->plans.size() == MOST_PLANS) {
        drop_all(library(), n->plans.front().all);
        n->plans.erase(n->plans.begin());
    }
    n->plans.push_back({.shape = s});
    Plan *p = &n->plans.back();
    if (const char *wrong = build_plan(n, p)) {
        say(p->why, sizeof p->why, wrong);
        drop_all(library(), p->all);
    }
    return p;
}

// ---- the first result of a plan against our kernel's --------------------------------------------

// Of a row of two matrices: |a - b|^2 and |b|^2.
__global__ void compare_kernel(const bf16 *a, int64_t a_ld, const bf16 *b, int64_t b_ld,
                               int64_t cols, float2 *sums) {
    __shared__ float shared[32];
    float difference = 0, size = 0;
    for (int64_t x = threadIdx.x; x < cols; x += blockDim.x) {
        float u = __bfloat162float(a[blockIdx.x * a_ld + x]);
        float w = __bfloat162float(b[blockIdx.x * b_ld + x]);
        difference += (u - w) * (u - w);
        size += w * w;
    }
    difference = block_sum(difference, shared);
    size = block_sum(size, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = make_float2(difference, size);
}

// *right: every row to `of_row` and all together to `of_all`, relative L2. Both results are rounded
// to bf16, and so are the probabilities: 2.5e-3.
sp_status check(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                sp_tensor out, sp_tensor mine, bool *right) {
    const double of_row = 3e-2, of_all = 6e-3;
    if (cudaError_t e = cudaStreamSynchronize(c->stream))
        return sp_error(SP_ENVIRONMENT,
                        "CUDA: after dense attention by %s: %s; `cuda_kernels: portable` does "
                        "without it",
                        library().name, cudaGetErrorString(e));
    std::vector<float2> sums((size_t)q.rows);
    for (int64_t r = 0; r < q.rows; r += mine.rows) {
        int64_t n = std::min(mine.rows, q.rows - r);
        SP_TRY(sp_cuda_attend_all(heads, sp_tensor_rows(q, r, n), q0 + r, k, v, SP_NO_TENSOR,
                                  sp_tensor_rows(mine, 0, n)));
        void *on_device;
        SP_TRY(sp_cuda_scratch(c, n * (int64_t)sizeof(float2), "sums of rows", &on_device));
        compare_kernel<<<(unsigned)n, 256, 0, c->stream>>>((const bf16 *)out.data + r * out.ld,
                                                           out.ld, (const bf16 *)mine.data, mine.ld,
                                                           q.cols, (float2 *)on_device);
        CUDA_TRY(cudaMemcpyAsync(&sums[(size_t)r], on_device, (size_t)n * sizeof(float2),
                                 cudaMemcpyDeviceToHost, c->stream));
    }
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    double difference = 0, size = 0;
    *right = true;
    for (const float2 &x : sums) {
        *right = *right && x.x <= of_row * of_row * x.y; // false of NaN
        difference += x.x;
        size += x.y;
    }
    *right = *right && difference <= of_all * of_all * size;
    return SP_OK;
}

// ---- use ----------------------------------------------------------------------------------------

sp_status execute(sp_cuda *c, sp_cudnn *n, const Plan &p, sp_tensor q, sp_tensor k, sp_tensor v,
                  sp_tensor out) {
    void *workspace = NULL;
    if (p.workspace) SP_TRY(sp_cuda_scratch(c, p.workspace, "workspace of cuDNN", &workspace));
    float scale = (float)(1 / sqrt((double)p.shape.heads.d)), lowest = -INFINITY;
    int32_t keys = (int32_t)p.shape.keys, rows = (int32_t)p.shape.rows;
    const int64_t ids[] = {Q, K, V, OUT, SCALE, LOWEST, KEYS, ROWS};
    void *data[] = {q.data, k.data, v.data, out.data, &scale, &lowest, &keys, &rows};
    const int64_t operands = sizeof ids / sizeof *ids;
    std::vector<Descriptor> made;
    Maker m{library(), made};
    Descriptor pack =
        m.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
               {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids, operands},
                {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data, operands},
                {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace}});
    if (!m.ok || m.l.execute(n->handle, p.plan, pack) != CUDNN_STATUS_SUCCESS)
        say(n->failed, sizeof n->failed, "run failed");
    drop_all(m.l, made);
    return SP_OK;
}

sp_cudnn *open(sp_cuda *c) {
    sp_cudnn *n = new sp_cudnn{};
    const cudnn::Library &l = library();
    if (!l.usable)
        snprintf(n->failed, sizeof n->failed, "%s", l.name);
    else if (l.create(&n->handle) != CUDNN_STATUS_SUCCESS ||
             l.set_stream(n->handle, c->stream) != CUDNN_STATUS_SUCCESS)
        say(n->failed, sizeof n->failed, "cannot be started");
    return n;
}

bool aligned(sp_tensor t) {
    return (uintptr_t)t.data % 16 == 0 && t.ld % 8 == 0;
}

} // namespace

const char *sp_cudnn_name(void) {
    return library().name;
}

sp_status sp_cudnn_attention(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k,
                             sp_tensor v, sp_tensor out, const char **by, const char **why_not) {
    *by = NULL;
    if (!c->cudnn) c->cudnn = open(c);
    sp_cudnn *n = c->cudnn;
    *why_not = n->failed;
    if (*n->failed) return SP_OK;
    *why_not = "cuDNN: head sizes 64 and 128, rows on 16 bytes";
    if ((heads.head_dim != 64 && heads.head_dim != 128) || !aligned(q) || !aligned(k) ||
        !aligned(v) || !aligned(out))
        return SP_OK;
    Plan *p = plan_of(n, {{heads.q_heads, heads.kv_heads, heads.head_dim},
                          q.rows,
                          q0 + q.rows,
                          q.ld,
                          k.ld,
                          v.ld,
                          out.ld});
    *why_not = p->why;
    if (!p->plan) return SP_OK;
    sp_tensor mine = {};
    if (!p->checked && sp_tensor_alloc(q.backend, SP_BF16, std::min<int64_t>(q.rows, 2048), q.cols,
                                       "attention to compare with", &mine) != SP_OK) {
        *why_not = "cuDNN: no memory to check its first result";
        return SP_OK;
    }
    sp_status st = execute(c, n, *p, q, k, v, out);
    bool right = p->checked || *n->failed;
    if (st == SP_OK && !right) st = check(c, heads, q, q0, k, v, out, mine, &right);
    sp_tensor_free(&mine);
    SP_TRY(st);
    if (!right) snprintf(n->failed, sizeof n->failed, "%s: wrong result", library().name);
    *why_not = n->failed;
    if (*n->failed) return SP_OK;
    p->checked = true;
    *by = library().name;
    return SP_OK;
}

void sp_cudnn_close(sp_cuda *c) {
    sp_cudnn *n = c->cudnn;
    if (!n) return;
    for (Plan &p : n->plans) drop_all(library(), p.all);
    drop_all(library(), n->caches);
    if (n->handle) library().destroy(n->handle);
    delete n;
    c->cudnn = NULL;
}

#else

const char *sp_cudnn_name(void) {
    return "built without cuDNN";
}
sp_status sp_cudnn_attention(sp_cuda *, sp_heads, sp_tensor, int64_t, sp_tensor, sp_tensor,
                             sp_tensor, const char **by, const char **why_not) {
    *by = NULL;
    *why_not = sp_cudnn_name();
    return SP_OK;
}
void sp_cudnn_close(sp_cuda *) {}

#endif
