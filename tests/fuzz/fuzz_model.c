// Any text as the config.json of a base model: never a crash; what no problem is found with has
// dimensions that may be multiplied, whole head groups and rotary factors for every frequency.
// seed: data/tiny-base/config.json
// seed: data/tiny-nosa/config.json
// seed: tests/fuzz/seeds/longrope.json
#include "common/json.h"
#include "common/util.h"
#include "model/private.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool ok) {
    if (!ok) abort();
}

static void check_factors(const double *f, int64_t n) {
    for (int64_t i = 0; f && i < n; i++) require(isfinite(f[i]) && f[i] > 0);
}

static void check_description(const sp_model_desc *d) {
    int64_t n;
    require(d->layers >= 1 && d->hidden >= 1 && d->ffn >= 1 && d->max_positions >= 1);
    require(d->vocab >= 1 && d->vocab <= INT32_MAX);
    require(d->heads.kv_heads >= 1 && d->heads.q_heads % d->heads.kv_heads == 0);
    require(d->heads.head_dim >= 2 && d->heads.head_dim % 2 == 0);
    require(sp_mul(d->heads.q_heads, d->heads.head_dim, &n) && sp_mul(n, d->hidden, &n));
    require(sp_mul(d->vocab, d->hidden, &n) && sp_mul(d->ffn, d->hidden, &n));
    require(isfinite(d->embed_scale) && isfinite(d->residual_scale) && d->logit_divisor != 0);
    require(d->rope_theta > 0 && !d->rope_short == !d->rope_long);
    check_factors(d->rope_short, d->heads.head_dim / 2);
    check_factors(d->rope_long, d->heads.head_dim / 2);
    require(d->sparse.block_size >= 1 && d->sparse.kernel_stride >= 1 && d->sparse.topk >= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const int64_t some[] = {32, 16, 1, 64, 2048, 64, 8192};
    const sp_recipe recipe = {some,     some + 1, some + 2, some + 3, some + 4,
                              some + 5, some + 6, NULL,     false};
    sp_model_desc *d = NULL;
    sp_problems p = {0};
    sp_config_verdict verdict = {0};
    char *text = NULL;
    require(sp_alloc(&d, 1, sizeof *d, "a description") == SP_OK);
    d->dir = sp_strdup("fuzz");
    d->name = sp_strdup("fuzz");
    if (sp_json_parse((const char *)data, (int64_t)bytes, "fuzz", &d->config) == SP_OK) {
        sp_status st = sp_model_read_config(d, &recipe, &p, &verdict);
        if (st == SP_OK && p.count == 0) {
            require(verdict.shapes_known);
            check_description(d);
            require(sp_model_describe_text(d, &text) == SP_OK);
            (void)sp_check_grids(d, (sp_grid){2, 1});
        }
    }
    free(text);
    free(p.text);
    sp_model_desc_free(d);
    sp_error_clear();
    return 0;
}
