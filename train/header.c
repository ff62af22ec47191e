// The run introduces itself: everything one needs to know to repeat it or to trust its numbers.
#include "train/trainer.h"

#include "common/build.h"
#include "common/log.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

static void info_lines(char *text, const char *indent) { // frees `text`
    if (!text) return;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        sp_info("%s%s", indent, line);
    free(text);
}

static void options(const sp_trainer *t) {
    char *text = NULL;
    sp_info("options (value, where it comes from)");
    if (sp_config_print(t->config, true, &text) == SP_OK) info_lines(text, "  ");
}

static void model(const sp_trainer *t) {
    char *text = NULL;
    const sp_model_desc *d = t->desc;
    if (sp_model_describe_text(d, &text) == SP_OK) info_lines(text, "");
    int64_t matrix = d->heads.kv_heads * d->heads.head_dim * d->hidden;
    int64_t base = sp_base_parameters(d);
    sp_info("parameters  %lld in the base model, frozen; %lld trained (%.2f%%): %lld matrices of "
            "%lld x %lld",
            (long long)base, (long long)(d->layers * matrix),
            100.0 * (double)(d->layers * matrix) / (double)(base + (d->layers + 1) * matrix),
            (long long)d->layers, (long long)(d->heads.kv_heads * d->heads.head_dim),
            (long long)d->hidden);
}

// seq_len may be long enough and no row as long.
static void warn_of_short_rows(const sp_trainer *t) {
    sp_dataset_info info;
    if (sp_dataset_describe(t->data, &info) != SP_OK) return;
    int64_t longest = info.max_length, forced = sp_forced_tokens(t->desc);
    sp_dataset_info_free(&info);
    if (longest <= forced && t->config->seq_len.value > forced)
        sp_warn("no row of the data has more than %lld tokens, which leaves no query a choice of "
                "blocks, so nothing can be learned; more than %lld tokens are needed",
                (long long)longest, (long long)forced);
}

static void data(const sp_trainer *t) {
    const sp_config *c = t->config;
    sp_info("data        %s order, seed %lld",
            c->data_order == SP_ORDER_SHUFFLED ? "shuffled" : "sequential", (long long)c->seed);
    for (int64_t i = 0; i < sp_dataset_entries(t->data); i++)
        sp_info("  %6.2f%%  %10lld rows  %s", 100 * sp_dataset_proportion(t->data, i),
                (long long)sp_dataset_rows(t->data, i), sp_dataset_entry_path(t->data, i));
    sp_sampler_counts n;
    if (sp_dataset_packed(t->data) && c->short_rows == SP_SHORT_KEEP) {
        sp_info("  row lengths are not counted: that would unpack every compressed shard");
    } else if (t->ranks->rank == 0 && sp_sampler_count(t->sampler, &n) == SP_OK) {
        sp_info("  %lld rows give %lld samples a pass: %lld cut to %lld tokens, %lld shorter and "
                "used, %lld shorter and dropped, %lld packs",
                (long long)n.rows, (long long)n.samples, (long long)n.cut,
                (long long)c->seq_len.value, (long long)n.short_kept, (long long)n.short_dropped,
                (long long)n.packs);
        if (c->short_rows == SP_SHORT_KEEP) warn_of_short_rows(t);
    }
    if (t->eval_data) {
        int64_t rows = 0;
        for (int64_t i = 0; i < sp_dataset_entries(t->eval_data); i++)
            rows += sp_dataset_rows(t->eval_data, i);
        sp_info("held out    %lld of %lld rows, every %lld steps",
                (long long)(c->eval_rows < rows ? c->eval_rows : rows), (long long)rows,
                (long long)c->eval_every_steps);
    }
}

static void schedule(const sp_trainer *t) {
    const sp_config *c = t->config;
    sp_info("steps       %lld of %lld sequences: %lld rank%s x %lld at once x %lld accumulated; "
            "warm-up %lld steps",
            (long long)c->steps, (long long)t->batch.global, (long long)t->batch.ranks,
            t->batch.ranks == 1 ? "" : "s", (long long)t->batch.micro,
            (long long)t->batch.accumulation, (long long)sp_warmup(c->warmup_steps, c->steps));
    for (int64_t i = 0; i < t->stages.n && t->stages.n > 1; i++)
        sp_info("  teacher stage %lld: window %lld, stride %lld", (long long)i,
                (long long)t->stages.grid[i].kernel, (long long)t->stages.grid[i].stride);
}

void sp_trainer_header(const sp_trainer *t) {
    const sp_ranks *r = t->ranks;
    sp_info("sparda %s (%s, %s, %s)", SPARDA_VERSION, SPARDA_GIT, SPARDA_COMPILER,
            SPARDA_BUILD_TYPE);
    options(t);
    sp_info("ranks       %d on %lld host%s; this one is %d, on %s number %d of %d", r->size,
            (long long)t->hosts, t->hosts == 1 ? "" : "s", r->rank, r->host, r->local_rank,
            r->local_size);
    if (r->note) sp_info("  %s", r->note);
    sp_info("backend     %s", sp_backend_description(t->backend));
    model(t);
    data(t);
    schedule(t);
    sp_info("memory      about %.2f GiB per rank, predicted",
            (double)sp_trainer_predicted_bytes(t) / 1073741824);
    if (!t->resumed) return;
    sp_info("resuming    after step %lld from %s", (long long)t->at.step,
            r->rank == 0 ? t->folder.checkpoint : "rank 0's checkpoint");
    if (t->changes.len) sp_info("  with other options than until then:");
    for (const char *line = t->changes.data; line && *line;) {
        int n = (int)strcspn(line, "\n");
        sp_info("  %.*s", n, line);
        line += n + 1;
    }
}
