// Student probabilities, the top-k-plus-remainder KL of a row and its gradient (training.md 7).
//
// A unit is a tile of query rows of one KV head. Rows whose support S is empty have loss 0 and
// gradient 0 (7.2); a tile of only such rows is skipped. Remainders are summed directly over the
// cells outside S: the difference of two sums near 1 would lose them when the student is peaked.
//
// Legend: L lanes (query rows of a tile), d head size, e floor, S support (cells of valid blocks),
// x student and t teacher entries, R remainders, P student probabilities.
#include "kernels/cpu/columns.h"

#include <math.h>

static const double floor_e = 1e-8;

// A cell of S of one lane.
typedef struct cell {
    int64_t j;
    float p, a; // student probability, aligned teacher value
    float dz;
} cell;

typedef struct row_result {
    double loss;
    float outside; // dz_j = outside * P_j for cells not in S
} row_result;

static double floored(double x) {
    return x > floor_e ? x : floor_e;
}

// One row with non-empty S and teacher mass; p_out and a_out are the sums over the cells outside
// S; `entries` counts all entries of 7.2, remainder included. Fills cell[].dz.
static row_result row_kl(cell *cells, int64_t n, int64_t entries, double p_out, double a_out,
                         sp_kl_gradient gradient, double weight) {
    double p_sum = p_out, a_sum = a_out;
    for (int64_t m = 0; m < n; m++) {
        p_sum += (double)cells[m].p;
        a_sum += (double)cells[m].a;
    }
    const double to_x = 1 / (p_sum + floor_e), to_t = 1 / (a_sum + floor_e);
    const double x_rest = p_out * to_x, t_rest = a_out * to_t;
    const double padding = (double)(entries - 1 - n); // slots without a valid block: e each

    double C = floored(x_rest) + padding * floor_e, C_t = floored(t_rest) + padding * floor_e;
    for (int64_t m = 0; m < n; m++) {
        C += floored((double)cells[m].p * to_x);
        C_t += floored((double)cells[m].a * to_t);
    }
    // With the floored, not yet normalised entries t and x and their ratio q = t/x:
    // t~ ln(t~/p~) = (t ln q + t ln(C/C_t)) / C_t, and the second terms sum to ln(C/C_t).
    const double q_rest = floored(t_rest) / floored(x_rest), to_b = 1 / C_t;
    double sum = floored(t_rest) * log(q_rest);
    const double b_rest = x_rest >= floor_e ? 1 / C - q_rest * to_b : 0;
    double mean = b_rest * p_out; // "abar" of 7.4
    for (int64_t m = 0; m < n; m++) {
        double x = (double)cells[m].p * to_x, t = floored((double)cells[m].a * to_t);
        double q = t / floored(x);
        sum += t * log(q);
        double b = x >= floor_e ? 1 / C - q * to_b : 0;
        mean += (double)cells[m].p * b;
        cells[m].dz = (float)b;
    }
    double loss = sum * to_b + log(C / C_t);
    row_result result = {.loss = loss};
    if (gradient == SP_KL_EXACT) {
        for (int64_t m = 0; m < n; m++)
            cells[m].dz =
                (float)((double)cells[m].p * ((double)cells[m].dz - mean) * to_x * weight);
        result.outside = (float)((b_rest - mean) * to_x * weight);
    } else { // 7.3
        for (int64_t m = 0; m < n; m++)
            cells[m].dz = (float)(((double)cells[m].p - (double)cells[m].a * to_t) * weight);
        // A remainder this small has no cells that fp32 could share the gradient among.
        result.outside = p_out > 0x1p-100 ? (float)((1 - t_rest / p_out) * weight) : 0;
    }
    return result;
}

// Cells of the valid blocks of a list: not initial, not local, not of the future.
static int64_t gather_cells(const sp_kl_args *p, const int32_t *list, int64_t i, int64_t visible,
                            cell *cells) {
    const sp_selection *s = &p->selection;
    int64_t per_block = s->block / p->deployed.stride, qb = i / s->block, n = 0;
    for (int64_t slot = 0; slot < s->topk; slot++) {
        int64_t b = list[slot];
        if (b < s->init_blocks || b >= qb - s->local_blocks) continue;
        for (int64_t j = per_block * b; j < per_block * (b + 1) && j < visible; j++)
            cells[n++] = (cell){.j = j};
    }
    return n;
}

static void zero_rows(sp_tensor t, int64_t row0, int64_t rows, int64_t col0, int64_t n) {
    for (int64_t r = row0; r < row0 + rows; r++)
        for (int64_t x = 0; x < n; x++) sp_row_f32(t, r)[col0 + x] = 0;
}

sp_status sp_cpu_kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
                    sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
                    const sp_tensor *dz) {
    sp_cpu *cpu = sp_cpu_of(f);
    const sp_vector *vec = cpu->vec;
    const int64_t d = p->heads.head_dim, Hkv = p->heads.kv_heads, L = vec->lanes;
    const int64_t n_d = c.rows, tiles = sp_ceil_div(f.rows, L), k = p->selection.topk;
    const int64_t most = k * (p->selection.block / p->deployed.stride); // cells of S
    const float scale = (float)(1 / sqrt((double)d));
    const int64_t cell_floats = (int64_t)(sizeof(cell) / sizeof(float));
    SP_TRY(sp_cpu_scratch(cpu, L * most * cell_floats + L * (d + n_d + 2) + n_d));
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t unit = 0; unit < tiles * Hkv; unit++) {
        int64_t h = unit % Hkv, r0 = (tiles - 1 - unit / Hkv) * L, rows = sp_min(L, f.rows - r0);
        int64_t visible[SP_MAX_LANES], n_cells[SP_MAX_LANES], supported = 0;
        sp_visible_columns(p->deployed, SP_SEES_START, i0 + r0, rows, L, n_d, visible);
        int64_t n = visible[L - 1];
        cell *cells = (cell *)sp_cpu_private(cpu);              // [L][most]
        float *ft = (float *)(cells + L * most);                // [d][L], later its gradient
        float *inverse = ft + d * L, *outside = inverse + L;    // [L]
        float *probs = outside + L, *teacher = probs + n_d * L; // [n_d][L], [n_d]

        for (int64_t l = 0; l < rows; l++) {
            *(sp_row_f32(row_loss, r0 + l) + h) = 0;
            n_cells[l] = gather_cells(p, sp_row_i32(lists, r0 + l) + h * k, i0 + r0 + l, visible[l],
                                      cells + l * most);
            supported += n_cells[l];
        }
        if (!supported && !student_p) {
            zero_rows(df, r0, rows, h * d, d);
            if (dz) zero_rows(*dz, r0, rows, h * n_d, n_d);
            continue;
        }
        sp_load_columns(f, r0, rows, h * d, d, L, scale, ft);
        vec->gemm(n, L, d, sp_row_f32(c, 0) + h * d, c.ld, 1, ft, L, probs, L, false);
        vec->softmax_columns(probs, n, visible, inverse);
        vec->scale_columns(probs, n, inverse);
        if (student_p) sp_store_columns(probs, n, n_d, L, *student_p, r0, rows, h * n_d);

        // Cells of S leave the columns, so that sums over the columns are remainders.
        for (int64_t l = 0; l < rows; l++)
            for (int64_t m = 0; m < n_cells[l]; m++) {
                cell *s = &cells[l * most + m];
                s->p = probs[s->j * L + l];
                s->a = sp_row_f32(a, r0 + l)[h * n_d + s->j];
                probs[s->j * L + l] = 0;
            }
        vec->sum_columns(probs, n, outside);
        for (int64_t l = 0; l < L; l++) {
            double p_out = (double)outside[l];
            outside[l] = 0;
            if (l >= rows || !n_cells[l]) continue;
            cell *s = cells + l * most;
            const float *aligned = sp_row_f32(a, r0 + l) + h * n_d;
            for (int64_t j = 0; j < n_d; j++) teacher[j] = aligned[j];
            double mass = 0;
            for (int64_t m = 0; m < n_cells[l]; m++) {
                teacher[s[m].j] = 0;
                mass += (double)s[m].a;
            }
            double a_out = (double)vec->sum(teacher, n_d);
            if (mass + a_out == 0) { // 7.5
                n_cells[l] = 0;
                continue;
            }
            row_result result =
                row_kl(s, n_cells[l], most + 1, p_out, a_out, p->gradient, p->weight);
            *(sp_row_f32(row_loss, r0 + l) + h) = (float)result.loss;
            outside[l] = result.outside;
        }
        vec->scale_columns(probs, n, outside);
        for (int64_t l = 0; l < rows; l++)
            for (int64_t m = 0; m < n_cells[l]; m++)
                probs[cells[l * most + m].j * L + l] = cells[l * most + m].dz;
        if (dz) sp_store_columns(probs, n, n_d, L, *dz, r0, rows, h * n_d);
        vec->gemm(d, L, n, sp_row_f32(c, 0) + h * d, 1, c.ld, probs, L, ft, L, false);
        for (int64_t x = 0; x < d * L; x++) ft[x] *= scale;
        sp_store_columns(ft, d, d, L, df, r0, rows, h * d);
    }
    return SP_OK;
}
