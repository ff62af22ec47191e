// Dense causal attention through cuDNN's graph interface (the C functions cudnnBackend*), loaded at run
// time: a machine without the library, or with one that has no engine for a shape, uses our kernels.
//
// The graph is attention written out in operations, which cuDNN recognises and runs as one kernel:
//   S = Q K^T;  S *= 1/sqrt(d);  S = row + keys - rows >= column ? S : -inf;
//   P = exp(S - max S) / sum exp(S - max S);  O = P V
// A plan belongs to its numbers of rows and keys and is kept. Before its first use its result is
// compared with the portable kernel's on the last rows.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/dense_attention_cudnn.cuh"

#if SPARDA_HAVE_CUDNN
#include <cudnn.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <vector>

typedef cudnnBackendDescriptor_t Descriptor;

namespace {

// ---- the library --------------------------------------------------------------------------------

struct Library {
    void *file;
    cudnnHandle_t handle;
    decltype(&cudnnCreate) create;
    decltype(&cudnnDestroy) destroy;
    decltype(&cudnnSetStream) set_stream;
    decltype(&cudnnGetVersion) version;
    decltype(&cudnnBackendCreateDescriptor) make;
    decltype(&cudnnBackendDestroyDescriptor) drop;
    decltype(&cudnnBackendSetAttribute) set;
    decltype(&cudnnBackendGetAttribute) get;
    decltype(&cudnnBackendFinalize) finalize;
    decltype(&cudnnBackendExecute) execute;
    decltype(&cudnnGetLastErrorString) last_error;
};

bool load(Library *l, cudaStream_t stream) {
    l->file = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!l->file) return false;
    bool found = true;
#define LOAD(member, name)                                                                         \
    l->member = (decltype(l->member))dlsym(l->file, name);                                         \
    found = found && l->member
    LOAD(create, "cudnnCreate");
    LOAD(destroy, "cudnnDestroy");
    LOAD(set_stream, "cudnnSetStream");
    LOAD(version, "cudnnGetVersion");
    LOAD(make, "cudnnBackendCreateDescriptor");
    LOAD(drop, "cudnnBackendDestroyDescriptor");
    LOAD(set, "cudnnBackendSetAttribute");
    LOAD(get, "cudnnBackendGetAttribute");
    LOAD(finalize, "cudnnBackendFinalize");
    LOAD(execute, "cudnnBackendExecute");
    LOAD(last_error, "cudnnGetLastErrorString");
#undef LOAD
    return found && l->create(&l->handle) == CUDNN_STATUS_SUCCESS &&
           l->set_stream(l->handle, stream) == CUDNN_STATUS_SUCCESS;
}

// ---- one graph ----------------------------------------------------------------------------------

enum { Q = 1, K, V, O, SCALE, LOWEST, KEYS, ROWS, FIRST_INNER };

struct Shape {
    int64_t rows, keys, q_heads, kv_heads, d, q_ld, k_ld, v_ld, out_ld;
    bool operator==(const Shape &) const = default;
};

struct Plan {
    Shape shape;
    std::vector<Descriptor> all; // to be dropped, last first
    Descriptor plan;             // NULL: cuDNN has none for this shape, or it was wrong
    int64_t workspace;
    char why[160]; // there is none
};

void note(const Library &l, Plan *p, const char *where) {
    char text[120] = "";
    l.last_error(text, sizeof text);
    text[sizeof text - 1] = 0;
    snprintf(p->why, sizeof p->why, "%s: %s", where, text);
}

// Builds descriptors; after a failure every further call is void.
struct Builder {
    const Library &l;
    std::vector<Descriptor> &all;
    std::vector<Descriptor> operations;
    bool ok = true;
    int64_t inner = FIRST_INNER;
    int64_t scores[4], scores_step[4];

    Descriptor make(cudnnBackendDescriptorType_t type) {
        Descriptor d = NULL;
        ok = ok && l.make(type, &d) == CUDNN_STATUS_SUCCESS;
        if (ok) all.push_back(d);
        return d;
    }
    template <class T>
    void set(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
             const T *value, int64_t n = 1) {
        ok = ok && l.set(d, name, type, n, value) == CUDNN_STATUS_SUCCESS;
    }
    void finish(Descriptor d) { ok = ok && l.finalize(d) == CUDNN_STATUS_SUCCESS; }

    Descriptor tensor(int64_t id, cudnnDataType_t type, const int64_t (&dims)[4],
                      const int64_t (&steps)[4], bool by_value = false) {
        Descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
        int64_t alignment = 16;
        bool is_virtual = id >= FIRST_INNER;
        set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
        set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims, 4);
        set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, steps, 4);
        set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
        set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
        set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
        set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
        finish(d);
        return d;
    }
    Descriptor scalar(int64_t id, cudnnDataType_t type) {
        return tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, true);
    }
    Descriptor inner_scores(cudnnDataType_t type) {
        return tensor(inner++, type, scores, scores_step);
    }
    Descriptor inner_rows() {
        const int64_t h = scores[1], r = scores[2];
        return tensor(inner++, CUDNN_DATA_FLOAT, {1, h, r, 1}, {h * r, r, 1, 1});
    }
    Descriptor operation(cudnnBackendDescriptorType_t type) {
        Descriptor d = make(type);
        operations.push_back(d);
        return d;
    }
    void matmul(Descriptor a, Descriptor b, Descriptor c) {
        Descriptor m = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
        cudnnDataType_t precision = CUDNN_DATA_FLOAT;
        set(m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
        finish(m);
        Descriptor o = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
        set(o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &a);
        set(o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &b);
        set(o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &c);
        set(o, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &m);
        finish(o);
    }
    // y = mode(x, b, t); absent operands NULL. axis >= 0: of an index.
    void pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t precision, Descriptor x, Descriptor b,
                   Descriptor t, Descriptor y, int64_t axis = -1) {
        Descriptor p = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
        set(p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
        set(p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
        if (axis >= 0) set(p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
        finish(p);
        Descriptor o = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
        set(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, &p);
        set(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &x);
        if (b) set(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &b);
        if (t) set(o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &t);
        set(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &y);
        finish(o);
    }
    void reduce(cudnnReduceTensorOp_t what, Descriptor x, Descriptor y) {
        Descriptor r = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
        cudnnDataType_t precision = CUDNN_DATA_FLOAT;
        set(r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &what);
        set(r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
        finish(r);
        Descriptor o = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
        set(o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &x);
        set(o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &y);
        set(o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &r);
        finish(o);
    }
};

void build_attention(Builder &b, const Shape &s) {
    const int64_t R = s.rows, N = s.keys, h = s.q_heads, g = s.kv_heads, d = s.d;
    const int64_t dims[4] = {1, h, R, N}, steps[4] = {h * R * N, R * N, N, 1};
    std::copy_n(dims, 4, b.scores);
    std::copy_n(steps, 4, b.scores_step);
    const cudnnDataType_t f = CUDNN_DATA_FLOAT, half = CUDNN_DATA_BFLOAT16, i = CUDNN_DATA_INT32;
    Descriptor q = b.tensor(Q, half, {1, h, R, d}, {R * s.q_ld, d, s.q_ld, 1});
    Descriptor k = b.tensor(K, half, {1, g, d, N}, {N * s.k_ld, d, 1, s.k_ld});
    Descriptor v = b.tensor(V, half, {1, g, N, d}, {N * s.v_ld, d, s.v_ld, 1});
    Descriptor out = b.tensor(O, half, {1, h, R, d}, {R * s.out_ld, d, s.out_ld, 1});

    Descriptor raw = b.inner_scores(f), scaled = b.inner_scores(f);
    b.matmul(q, k, raw);
    b.pointwise(CUDNN_POINTWISE_MUL, f, raw, b.scalar(SCALE, f), NULL, scaled);

    Descriptor row = b.inner_scores(i), column = b.inner_scores(i);
    b.pointwise(CUDNN_POINTWISE_GEN_INDEX, i, scaled, NULL, NULL, row, 2);
    if (R != N) { // rows are the last ones
        Descriptor later = b.inner_scores(i), position = b.inner_scores(i);
        b.pointwise(CUDNN_POINTWISE_ADD, i, row, b.scalar(KEYS, i), NULL, later);
        b.pointwise(CUDNN_POINTWISE_SUB, i, later, b.scalar(ROWS, i), NULL, position);
        row = position;
    }
    b.pointwise(CUDNN_POINTWISE_GEN_INDEX, i, scaled, NULL, NULL, column, 3);
    Descriptor seen = b.inner_scores(CUDNN_DATA_BOOLEAN), masked = b.inner_scores(f);
    b.pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, NULL, seen);
    b.pointwise(CUDNN_POINTWISE_BINARY_SELECT, f, scaled, b.scalar(LOWEST, f), seen, masked);

    Descriptor top = b.inner_rows(), less = b.inner_scores(f), power = b.inner_scores(f);
    Descriptor sum = b.inner_rows(), p = b.inner_scores(half);
    b.reduce(CUDNN_REDUCE_TENSOR_MAX, masked, top);
    b.pointwise(CUDNN_POINTWISE_SUB, f, masked, top, NULL, less);
    b.pointwise(CUDNN_POINTWISE_EXP, f, less, NULL, NULL, power);
    b.reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
    b.pointwise(CUDNN_POINTWISE_DIV, f, power, sum, NULL, p);
    b.matmul(p, v, out);
}

// The first engine that can run the graph, by cuDNN's own order of preference.
void choose_engine(Builder &b, Descriptor graph, Plan *out) {
    enum { MOST = 8 };
    const Library &l = b.l;
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        Descriptor heuristic = b.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), config[MOST];
        b.set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &graph);
        b.set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
        if (!b.ok) return;
        if (l.finalize(heuristic) != CUDNN_STATUS_SUCCESS) continue;
        for (Descriptor &c : config) c = b.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        int64_t n = 0;
        if (!b.ok || l.get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                           MOST, &n, config) != CUDNN_STATUS_SUCCESS)
            continue;
        for (int64_t i = 0; i < std::min<int64_t>(n, MOST); i++) {
            Descriptor plan = b.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
            b.set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &l.handle);
            b.set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  &config[i]);
            if (!b.ok) return;
            if (l.finalize(plan) != CUDNN_STATUS_SUCCESS) continue;
            if (l.get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, NULL,
                      &out->workspace) != CUDNN_STATUS_SUCCESS)
                continue;
            out->plan = plan;
            return;
        }
    }
}

void build_plan(const Library &l, const Shape &s, Plan *out) {
    Builder b{l, out->all};
    build_attention(b, s);
    Descriptor graph = b.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    b.set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &l.handle);
    b.set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.operations.data(),
          (int64_t)b.operations.size());
    b.finish(graph);
    if (!b.ok) return note(l, out, "graph");
    choose_engine(b, graph, out);
    if (!out->plan) note(l, out, "no engine");
}

void drop_all(const Library &l, Plan *p) {
    for (size_t i = p->all.size(); i-- > 0;) l.drop(p->all[i]);
    p->all.clear();
    p->plan = NULL;
}

// sums[0] += |a - b|^2, sums[1] += |b|^2 over rows of two matrices.
__global__ void compare_kernel(const bf16 *a, int64_t a_ld, const bf16 *b, int64_t b_ld, int64_t cols,
                               double *sums) {
    __shared__ double shared[32];
    double difference = 0, size = 0;
    for (int64_t x = threadIdx.x; x < cols; x += blockDim.x) {
        double u = __bfloat162float(a[blockIdx.x * a_ld + x]), w = __bfloat162float(b[blockIdx.x * b_ld + x]);
        difference += (u - w) * (u - w);
        size += w * w;
    }
    difference = block_sum(difference, shared);
    size = block_sum(size, shared);
    if (threadIdx.x == 0) {
        atomicAdd(sums, difference);
        atomicAdd(sums + 1, size);
    }
}

} // namespace

// ---- use ----------------------------------------------------------------------------------------

static const size_t MOST_PLANS = 64; // the oldest goes first

struct sp_cudnn {
    Library library;
    bool usable;
    char name[48], other[224];
    std::vector<Plan> plans;
};

static sp_status execute(sp_cuda *c, sp_cudnn *n, const Plan &p, sp_heads heads, sp_tensor q, sp_tensor k,
                         sp_tensor v, sp_tensor out, bool *done) {
    const Library &l = n->library;
    void *workspace = NULL;
    if (p.workspace) SP_TRY(sp_cuda_scratch(c, p.workspace, "workspace of cuDNN", &workspace));
    float scale = (float)(1 / sqrt((double)heads.head_dim)), lowest = -INFINITY;
    int32_t keys = (int32_t)p.shape.keys, rows = (int32_t)p.shape.rows;
    int64_t ids[] = {Q, K, V, O, SCALE, LOWEST, KEYS, ROWS};
    void *data[] = {q.data, k.data, v.data, out.data, &scale, &lowest, &keys, &rows};
    int64_t operands = p.shape.rows == p.shape.keys ? 6 : 8;
    std::vector<Descriptor> made;
    Builder b{l, made};
    Descriptor pack = b.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    b.set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids, operands);
    b.set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data, operands);
    b.set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace);
    b.finish(pack);
    *done = b.ok && l.execute(l.handle, p.plan, pack) == CUDNN_STATUS_SUCCESS;
    for (Descriptor d : made) l.drop(d);
    return SP_OK;
}

// The plan's result against the portable kernel's on the last rows.
static sp_status check(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                       sp_tensor out, bool *right) {
    static const double bound = 2e-2; // two bf16 results of the same sums: 4e-3
    int64_t n = std::min<int64_t>(q.rows, 16);
    sp_tensor mine;
    double sums[2];
    SP_TRY(sp_tensor_alloc(q.backend, SP_BF16, n, q.cols, "attention to compare with", &mine));
    sp_status st = attention::run(c, heads, sp_tensor_rows(q, q.rows - n, n), q0 + q.rows - n, k, v,
                                  SP_NO_TENSOR, NULL, 1, mine);
    if (st == SP_OK) {
        sp_tensor theirs = sp_tensor_rows(out, q.rows - n, n);
        cudaMemsetAsync(c->sums, 0, sizeof sums, c->stream);
        compare_kernel<<<(unsigned)n, 256, 0, c->stream>>>((const bf16 *)theirs.data, theirs.ld,
                                                           (const bf16 *)mine.data, mine.ld, q.cols,
                                                           c->sums);
        cudaMemcpyAsync(sums, c->sums, sizeof sums, cudaMemcpyDeviceToHost, c->stream);
        if (cudaStreamSynchronize(c->stream) != cudaSuccess)
            st = sp_error(SP_ENVIRONMENT, "CUDA: dense attention by cuDNN failed: %s",
                          cudaGetErrorString(cudaGetLastError()));
        *right = sums[0] <= bound * bound * sums[1];
    }
    sp_tensor_free(&mine);
    return st;
}

sp_status sp_cudnn_attention(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                             sp_tensor out, bool *done) {
    *done = false;
    if (!c->cudnn) {
        c->cudnn = new sp_cudnn{};
        c->cudnn->usable = load(&c->cudnn->library, c->stream);
        if (c->cudnn->usable)
            snprintf(c->cudnn->name, sizeof c->cudnn->name, "cuDNN %d.%d.%d",
                     (int)(c->cudnn->library.version() / 10000),
                     (int)(c->cudnn->library.version() / 100 % 100),
                     (int)(c->cudnn->library.version() % 100));
    }
    sp_cudnn *n = c->cudnn;
    if (!n->usable) return SP_OK;
    const Shape s = {q.rows, q0 + q.rows, heads.q_heads, heads.kv_heads, heads.head_dim,
                     q.ld,   k.ld,        v.ld,          out.ld};
    Plan *p = NULL;
    for (Plan &x : n->plans)
        if (x.shape == s) p = &x;
    bool fresh = !p;
    if (fresh) {
        if (n->plans.size() == MOST_PLANS) {
            drop_all(n->library, &n->plans.front());
            n->plans.erase(n->plans.begin());
        }
        n->plans.push_back({.shape = s});
        p = &n->plans.back();
        build_plan(n->library, s, p);
        if (!p->plan) drop_all(n->library, p);
    }
    if (p->plan) {
        SP_TRY(execute(c, n, *p, heads, q, k, v, out, done));
        if (!*done) note(n->library, p, "run");
        if (*done && fresh) {
            SP_TRY(check(c, heads, q, q0, k, v, out, done));
            if (!*done) snprintf(p->why, sizeof p->why, "wrong result");
        }
        if (!*done) drop_all(n->library, p);
    }
    snprintf(n->other, sizeof n->other, "own kernel (%s: %s)", n->name, p->why);
    c->base.dense_attention = *done ? n->name : n->other;
    return SP_OK;
}

void sp_cudnn_close(sp_cuda *c) {
    sp_cudnn *n = c->cudnn;
    if (!n) return;
    for (Plan &p : n->plans) drop_all(n->library, &p);
    if (n->library.handle) n->library.destroy(n->library.handle);
    if (n->library.file) dlclose(n->library.file);
    delete n;
    c->cudnn = NULL;
}

#else

sp_status sp_cudnn_attention(sp_cuda *, sp_heads, sp_tensor, int64_t, sp_tensor, sp_tensor, sp_tensor,
                             bool *done) {
    *done = false;
    return SP_OK;
}
void sp_cudnn_close(sp_cuda *) {}

#endif
