// The public operations: every contract of kernels.h is checked here, once, then the call goes to
// the tensors' backend. A violation is a fault of the program, not of its user: SP_ENVIRONMENT
// "broken contract", with the condition and all arguments. Calls without work end here too.
#include "kernels/backend.h"

#include "common/util.h"

// One argument of a call, for messages.
typedef struct argument {
    const char *name;
    bool is_tensor;
    sp_tensor t;
    int64_t value;
} argument;

#define TENSOR(x)                                                                                  \
    { #x, true, x, 0 }
#define NUMBER(x)                                                                                  \
    { #x, false, {0 }, (int64_t)(x) }
#define ARGUMENTS(...)                                                                             \
    const argument args_[] = {__VA_ARGS__};                                                        \
    const int n_args_ = (int)(sizeof args_ / sizeof args_[0]);                                     \
    SP_TRY(check_tensors(__func__, args_, n_args_))
#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond)) return broken(__func__, #cond, args_, n_args_);                               \
    } while (0)

static sp_status broken(const char *call, const char *condition, const argument *args, int n) {
    sp_text text = {0};
    for (int i = 0; i < n; i++) {
        const argument *a = &args[i];
        if (a->is_tensor)
            sp_text_add(&text, "%s%s %s [%lld, %lld] ld %lld", i ? ", " : "", a->name,
                        sp_dtype_name(a->t.dtype), (long long)a->t.rows, (long long)a->t.cols,
                        (long long)a->t.ld);
        else
            sp_text_add(&text, "%s%s = %lld", i ? ", " : "", a->name, (long long)a->value);
    }
    sp_status st = sp_error(SP_ENVIRONMENT, "broken contract in %s: needs %s; given %s", call,
                            condition, text.data ? text.data : "(out of memory)");
    sp_text_free(&text);
    return st;
}

static sp_status check_tensors(const char *call, const argument *args, int n) {
    for (int i = 0; i < n; i++) {
        if (!args[i].is_tensor) continue;
        sp_tensor t = args[i].t;
        if (!t.backend || !t.data) return broken(call, args[i].name, args, n);
        if (t.backend != args[0].t.backend) return broken(call, "one backend", args, n);
        if (t.rows < 0 || t.cols < 0 || t.ld < t.cols)
            return broken(call, "sizes >= 0 and ld >= cols", args, n);
    }
    return SP_OK;
}

static bool is_stored(sp_tensor t) {
    return t.dtype == t.backend->storage;
}
static bool heads_valid(sp_heads h) {
    return h.kv_heads > 0 && h.q_heads > 0 && h.q_heads % h.kv_heads == 0 && h.head_dim > 0;
}
static bool grid_valid(sp_grid g) {
    return g.stride > 0 && g.kernel > 0;
}
static bool selection_valid(const sp_selection *s, sp_grid deployed) {
    return grid_valid(deployed) && s->block > 0 && s->block % deployed.stride == 0 &&
           s->init_blocks >= 0 && s->local_blocks >= 0 && s->topk > 0;
}

// ---- frozen layers ------------------------------------------------------------------------------

sp_status sp_embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out) {
    ARGUMENTS(TENSOR(tokens), TENSOR(table), TENSOR(out));
    REQUIRE(tokens.dtype == SP_I32 && is_stored(table) && is_stored(out));
    REQUIRE(tokens.cols == 1 && tokens.rows == out.rows && table.cols == out.cols);
    return out.rows ? out.backend->ops->embed(tokens, table, scale, out) : SP_OK;
}

sp_status sp_rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out) {
    ARGUMENTS(TENSOR(x), TENSOR(w), TENSOR(out));
    REQUIRE(is_stored(x) && is_stored(w) && is_stored(out));
    REQUIRE(x.rows == out.rows && x.cols == out.cols);
    REQUIRE(w.rows == 1 && w.cols == x.cols && x.cols > 0);
    return x.rows ? x.backend->ops->rmsnorm(x, w, eps, out) : SP_OK;
}

sp_status sp_linear(sp_tensor x, sp_tensor w, sp_tensor out) {
    ARGUMENTS(TENSOR(x), TENSOR(w), TENSOR(out));
    REQUIRE(is_stored(x) && is_stored(w) && (is_stored(out) || out.dtype == SP_F32));
    REQUIRE(x.rows == out.rows && x.cols == w.cols && w.rows == out.cols && x.cols > 0);
    return x.rows && w.rows ? x.backend->ops->linear(x, w, out) : SP_OK;
}

sp_status sp_rope(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                  bool transpose) {
    ARGUMENTS(TENSOR(x), TENSOR(cos), TENSOR(sin), NUMBER(pos0), NUMBER(head_dim));
    REQUIRE((is_stored(x) || x.dtype == SP_F32) && cos.dtype == SP_F32 && sin.dtype == SP_F32);
    REQUIRE(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0);
    REQUIRE(cos.cols == head_dim / 2 && sin.cols == head_dim / 2 && cos.rows == sin.rows);
    REQUIRE(pos0 >= 0 && pos0 <= cos.rows && x.rows <= cos.rows - pos0);
    return x.rows ? x.backend->ops->rope(x, cos, sin, pos0, head_dim, transpose) : SP_OK;
}

sp_status sp_residual_add(sp_tensor h, sp_tensor branch, float factor) {
    ARGUMENTS(TENSOR(h), TENSOR(branch));
    REQUIRE(is_stored(h) && is_stored(branch));
    REQUIRE(h.rows == branch.rows && h.cols == branch.cols);
    return h.rows ? h.backend->ops->residual_add(h, branch, factor) : SP_OK;
}

sp_status sp_swiglu(sp_tensor gate_up, sp_tensor out) {
    ARGUMENTS(TENSOR(gate_up), TENSOR(out));
    REQUIRE(is_stored(gate_up) && is_stored(out));
    REQUIRE(gate_up.rows == out.rows && gate_up.cols == 2 * out.cols);
    return out.rows ? out.backend->ops->swiglu(gate_up, out) : SP_OK;
}

sp_status sp_cis(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out) {
    ARGUMENTS(TENSOR(v), TENSOR(delta), TENSOR(scale), TENSOR(out), NUMBER(heads.kv_heads),
              NUMBER(heads.head_dim));
    REQUIRE(heads_valid(heads) && is_stored(v) && is_stored(delta));
    REQUIRE(scale.dtype == SP_F32 && out.dtype == SP_F32);
    REQUIRE(v.cols == heads.kv_heads * heads.head_dim && delta.cols == v.cols);
    REQUIRE(delta.rows == heads.kv_heads && scale.rows == 1 && scale.cols == heads.kv_heads);
    REQUIRE(out.rows == heads.kv_heads && out.cols == v.rows);
    return v.rows ? v.backend->ops->cis(heads, v, delta, scale, out) : SP_OK;
}

// An optional bias of attention over keys 0..n-1.
static bool bias_valid(sp_tensor bias, sp_tensor q, sp_heads heads, int64_t n) {
    return !bias.data || (bias.backend == q.backend && bias.dtype == SP_F32 &&
                          bias.rows == heads.kv_heads && bias.cols >= n && bias.ld >= bias.cols);
}

sp_status sp_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                             sp_tensor bias, sp_tensor out) {
    ARGUMENTS(TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(out), NUMBER(q0), NUMBER(heads.q_heads),
              NUMBER(heads.kv_heads), NUMBER(heads.head_dim));
    REQUIRE(heads_valid(heads));
    REQUIRE(is_stored(q) && is_stored(k) && is_stored(v) && is_stored(out));
    REQUIRE(q.cols == heads.q_heads * heads.head_dim && out.cols == q.cols && out.rows == q.rows);
    REQUIRE(k.cols == heads.kv_heads * heads.head_dim && v.cols == k.cols);
    REQUIRE(q0 >= 0 && k.rows >= q0 + q.rows && v.rows >= q0 + q.rows);
    REQUIRE(bias_valid(bias, q, heads, q0 + q.rows));
    return q.rows ? q.backend->ops->dense_attention(heads, q, q0, k, v, bias, out) : SP_OK;
}

sp_status sp_sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                              sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out) {
    ARGUMENTS(TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(lists), TENSOR(out), NUMBER(q0),
              NUMBER(block), NUMBER(heads.q_heads), NUMBER(heads.kv_heads), NUMBER(heads.head_dim));
    REQUIRE(heads_valid(heads) && block > 0);
    REQUIRE(is_stored(q) && is_stored(k) && is_stored(v) && is_stored(out));
    REQUIRE(q.cols == heads.q_heads * heads.head_dim && out.cols == q.cols && out.rows == q.rows);
    REQUIRE(k.cols == heads.kv_heads * heads.head_dim && v.cols == k.cols);
    REQUIRE(q0 >= 0 && k.rows >= q0 + q.rows && v.rows >= q0 + q.rows);
    REQUIRE(lists.dtype == SP_I32 && lists.rows == q.rows && lists.cols % heads.kv_heads == 0);
    REQUIRE(bias_valid(bias, q, heads, q0 + q.rows));
    return q.rows ? q.backend->ops->sparse_attention(heads, q, q0, k, v, bias, lists, block, out)
                  : SP_OK;
}

// ---- selection ----------------------------------------------------------------------------------

sp_status sp_compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out) {
    ARGUMENTS(TENSOR(k), TENSOR(out), NUMBER(g.kernel), NUMBER(g.stride), NUMBER(j0));
    REQUIRE(grid_valid(g) && j0 >= 0);
    REQUIRE(is_stored(k) && is_stored(out) && k.cols == out.cols);
    REQUIRE(j0 + out.rows <= sp_windows(g, k.rows) || out.rows == 0);
    return out.rows ? k.backend->ops->compress_keys(k, g, j0, out) : SP_OK;
}

sp_status sp_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c,
                        sp_tensor out) {
    ARGUMENTS(TENSOR(q), TENSOR(c), TENSOR(out), NUMBER(i0), NUMBER(a->heads.q_heads),
              NUMBER(a->heads.kv_heads), NUMBER(a->heads.head_dim), NUMBER(a->fine.kernel),
              NUMBER(a->fine.stride), NUMBER(a->deployed.kernel), NUMBER(a->deployed.stride),
              NUMBER(a->n_d));
    sp_heads heads = a->heads;
    REQUIRE(heads_valid(heads) && grid_valid(a->fine) && grid_valid(a->deployed));
    REQUIRE(is_stored(q) && is_stored(c) && out.dtype == SP_F32);
    REQUIRE(q.cols == heads.q_heads * heads.head_dim);
    REQUIRE(c.cols == heads.kv_heads * heads.head_dim);
    REQUIRE(a->n_d >= 0 && out.rows == q.rows && out.cols == heads.kv_heads * a->n_d);
    REQUIRE(i0 >= 0 && a->deployed.stride % a->fine.stride == 0);
    return out.rows && out.cols ? q.backend->ops->importance(a, q, i0, c, out) : SP_OK;
}

sp_status sp_forecast_scores(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f, int64_t i0,
                             sp_tensor c, sp_tensor out) {
    ARGUMENTS(TENSOR(f), TENSOR(c), TENSOR(out), NUMBER(i0), NUMBER(heads.kv_heads),
              NUMBER(heads.head_dim), NUMBER(g.kernel), NUMBER(g.stride));
    REQUIRE(heads_valid(heads) && grid_valid(g) && i0 >= 0);
    REQUIRE(is_stored(f) && is_stored(c) && out.dtype == SP_F32);
    REQUIRE(f.cols == heads.kv_heads * heads.head_dim && c.cols == f.cols);
    REQUIRE(out.rows == f.rows && out.cols == heads.kv_heads * c.rows);
    return out.rows && out.cols ? f.backend->ops->forecast_scores(heads, g, v, f, i0, c, out)
                                : SP_OK;
}

sp_status sp_block_scores(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                          int64_t i0, int64_t nb, sp_tensor out) {
    ARGUMENTS(TENSOR(a), TENSOR(out), NUMBER(kv_heads), NUMBER(i0), NUMBER(nb), NUMBER(s->block),
              NUMBER(s->init_blocks), NUMBER(s->local_blocks), NUMBER(s->topk),
              NUMBER(deployed.kernel), NUMBER(deployed.stride));
    REQUIRE(selection_valid(s, deployed) && kv_heads > 0);
    REQUIRE(a.dtype == SP_F32 && out.dtype == SP_F32);
    REQUIRE(a.cols % kv_heads == 0 && a.rows == out.rows && out.cols == kv_heads * nb);
    REQUIRE(i0 >= 0 && i0 + a.rows <= nb * s->block);
    return out.rows ? out.backend->ops->block_scores(s, deployed, kv_heads, a, i0, nb, out) : SP_OK;
}

sp_status sp_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                           int64_t i0, int64_t nb, sp_tensor lists) {
    ARGUMENTS(TENSOR(a), TENSOR(lists), NUMBER(kv_heads), NUMBER(i0), NUMBER(nb), NUMBER(s->block),
              NUMBER(s->init_blocks), NUMBER(s->local_blocks), NUMBER(s->topk),
              NUMBER(deployed.kernel), NUMBER(deployed.stride));
    REQUIRE(selection_valid(s, deployed) && kv_heads > 0);
    REQUIRE(a.dtype == SP_F32 && lists.dtype == SP_I32);
    REQUIRE(a.cols % kv_heads == 0 && a.rows == lists.rows && lists.cols == kv_heads * s->topk);
    REQUIRE(i0 >= 0 && i0 + a.rows <= nb * s->block);
    return lists.rows ? lists.backend->ops->select_blocks(s, deployed, kv_heads, a, i0, nb, lists)
                      : SP_OK;
}

sp_status sp_cis_blocks(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                        sp_tensor order) {
    ARGUMENTS(TENSOR(cis), TENSOR(scores), TENSOR(order), NUMBER(block), NUMBER(deployed.kernel),
              NUMBER(deployed.stride));
    REQUIRE(grid_valid(deployed) && block > 0 && block % deployed.stride == 0);
    REQUIRE(cis.dtype == SP_F32 && scores.dtype == SP_F32 && order.dtype == SP_I32);
    REQUIRE(scores.rows == cis.rows && order.rows == cis.rows && order.cols == scores.cols);
    REQUIRE(scores.cols == (cis.cols + block - 1) / block);
    return cis.rows && cis.cols ? cis.backend->ops->cis_blocks(cis, deployed, block, scores, order)
                                : SP_OK;
}

sp_status sp_extend_lists(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                          sp_tensor order, sp_tensor lists) {
    ARGUMENTS(TENSOR(shortlist), TENSOR(order), TENSOR(lists), NUMBER(block), NUMBER(kv_heads),
              NUMBER(i0));
    REQUIRE(block > 0 && kv_heads > 0 && i0 >= 0);
    REQUIRE(shortlist.dtype == SP_I32 && order.dtype == SP_I32 && lists.dtype == SP_I32);
    REQUIRE(shortlist.rows == lists.rows && order.rows == kv_heads);
    REQUIRE(shortlist.cols % kv_heads == 0 && lists.cols % kv_heads == 0);
    REQUIRE(shortlist.cols <= lists.cols && i0 + lists.rows <= order.cols * block);
    return lists.rows
               ? lists.backend->ops->extend_lists(block, kv_heads, shortlist, i0, order, lists)
               : SP_OK;
}

sp_status sp_forecast_lists(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                            sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists) {
    ARGUMENTS(TENSOR(f), TENSOR(c), TENSOR(lists), NUMBER(i0), NUMBER(nb), NUMBER(heads.kv_heads),
              NUMBER(heads.head_dim), NUMBER(g.kernel), NUMBER(g.stride), NUMBER(s->block),
              NUMBER(s->init_blocks), NUMBER(s->local_blocks), NUMBER(s->topk));
    REQUIRE(heads_valid(heads) && selection_valid(s, g));
    REQUIRE(is_stored(f) && is_stored(c) && lists.dtype == SP_I32);
    REQUIRE(f.cols == heads.kv_heads * heads.head_dim && c.cols == f.cols);
    REQUIRE(lists.rows == f.rows && lists.cols == heads.kv_heads * s->topk);
    REQUIRE(i0 >= 0 && i0 + f.rows <= nb * s->block);
    return f.rows ? f.backend->ops->forecast_lists(heads, g, v, s, f, i0, c, nb, lists) : SP_OK;
}

// ---- loss ---------------------------------------------------------------------------------------

sp_status sp_kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
                sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
                const sp_tensor *dz) {
    ARGUMENTS(TENSOR(f), TENSOR(c), TENSOR(a), TENSOR(lists), TENSOR(row_loss), TENSOR(df),
              NUMBER(i0), NUMBER(p->heads.kv_heads), NUMBER(p->heads.head_dim),
              NUMBER(p->deployed.kernel), NUMBER(p->deployed.stride), NUMBER(p->selection.block),
              NUMBER(p->selection.init_blocks), NUMBER(p->selection.local_blocks),
              NUMBER(p->selection.topk));
    sp_heads heads = p->heads;
    const sp_selection *s = &p->selection;
    REQUIRE(heads_valid(heads) && selection_valid(s, p->deployed) && i0 >= 0);
    // Keeps every cell of the support complete, so that none is clamped (7.2).
    REQUIRE(s->local_blocks * s->block >= p->deployed.kernel - p->deployed.stride);
    REQUIRE(is_stored(f) && is_stored(c) && a.dtype == SP_F32 && lists.dtype == SP_I32);
    REQUIRE(row_loss.dtype == SP_F32 && (df.dtype == SP_F32 || is_stored(df)));
    REQUIRE(f.cols == heads.kv_heads * heads.head_dim && c.cols == f.cols);
    REQUIRE(df.rows == f.rows && df.cols == f.cols && a.rows == f.rows && lists.rows == f.rows);
    REQUIRE(a.cols == heads.kv_heads * c.rows && lists.cols == heads.kv_heads * s->topk);
    REQUIRE(row_loss.rows == f.rows && row_loss.cols == heads.kv_heads);
    const sp_tensor *wanted[] = {student_p, dz};
    for (int i = 0; i < 2; i++) {
        const sp_tensor *t = wanted[i];
        REQUIRE(!t || (t->data && t->backend == f.backend && t->dtype == SP_F32 &&
                       t->rows == a.rows && t->cols == a.cols && t->ld >= t->cols));
    }
    return f.rows ? f.backend->ops->kl(p, f, i0, c, a, lists, row_loss, df, student_p, dz) : SP_OK;
}

// ---- gradient and optimiser ---------------------------------------------------------------------

sp_status sp_grad_weight(sp_tensor dy, sp_tensor x, sp_tensor g) {
    ARGUMENTS(TENSOR(dy), TENSOR(x), TENSOR(g));
    REQUIRE((is_stored(dy) || dy.dtype == SP_F32) && is_stored(x) && g.dtype == SP_F32);
    REQUIRE(dy.rows == x.rows && g.rows == dy.cols && g.cols == x.cols);
    return dy.rows && g.rows && g.cols ? g.backend->ops->grad_weight(dy, x, g) : SP_OK;
}

sp_status sp_scale(sp_tensor x, float factor) {
    ARGUMENTS(TENSOR(x));
    REQUIRE(x.dtype == SP_F32);
    return x.rows ? x.backend->ops->scale(x, factor) : SP_OK;
}

sp_status sp_sum(sp_tensor x, double *out) {
    ARGUMENTS(TENSOR(x));
    REQUIRE(x.dtype == SP_F32);
    *out = 0;
    return x.rows ? x.backend->ops->sum(x, out) : SP_OK;
}

sp_status sp_sum_squares(sp_tensor x, double *out) {
    ARGUMENTS(TENSOR(x));
    REQUIRE(x.dtype == SP_F32);
    *out = 0;
    return x.rows ? x.backend->ops->sum_squares(x, out) : SP_OK;
}

sp_status sp_adamw(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g) {
    ARGUMENTS(TENSOR(w), TENSOR(m), TENSOR(v), TENSOR(g), NUMBER(p->step));
    REQUIRE(w.dtype == SP_F32 && m.dtype == SP_F32 && v.dtype == SP_F32 && g.dtype == SP_F32);
    REQUIRE(w.rows == m.rows && w.rows == v.rows && w.rows == g.rows);
    REQUIRE(w.cols == m.cols && w.cols == v.cols && w.cols == g.cols);
    REQUIRE(p->step >= 1);
    return w.rows ? w.backend->ops->adamw(p, w, m, v, g) : SP_OK;
}
