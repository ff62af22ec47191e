// Any bytes as an MDS index (if they begin with '{') or as an MDS shard: never a crash, and what is
// accepted lies inside the bytes.
// seed: tests/mds/raw/ledger/index.json
// seed: tests/mds/zstd/prose-code/index.json
// seed: tests/mds/raw/ledger/shard.00003.mds
// seed: tests/mds/raw/prose-code/shard.00002.mds
// seed: tests/mds/raw/prose-code/shard.00005.mds
#include "data/mds.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool ok) {
    if (!ok) abort();
}

static void try_index(const uint8_t *data, size_t bytes) {
    sp_problems problems = {0};
    sp_mds_index x;
    if (sp_mds_parse_index((const char *)data, (int64_t)bytes, "fuzz", &problems, &x) == SP_OK) {
        require(problems.count == 0 || x.n == 0);
        for (int64_t i = 0; i < x.n; i++) {
            const sp_mds_columns *c = &x.shard[i].columns;
            require(x.shard[i].basename && c->token >= 0 && c->token < c->n);
            require((c->size[c->token] == 0) == (c->form != SP_MDS_FIXED));
            require(c->form == SP_MDS_PLAIN || c->type);
        }
        sp_mds_index_free(&x);
    }
    sp_error_clear();
    free(problems.text);
}

// The index that the shard's own description and size would have.
static sp_mds_shard own_entry(const uint8_t *data, size_t bytes, json_t **json) {
    static int64_t sizes[2] = {0, 8};
    static const sp_mds_type int32 = {"int32", 33, 4, true};
    sp_mds_shard s = {.bytes = (int64_t)bytes};
    s.columns = (sp_mds_columns){
        .n = 2, .n_variable = 1, .size = sizes, .fixed = 8, .token = 0, .form = SP_MDS_TYPED, .type = &int32};
    if (bytes >= 4) s.samples = sp_mds_u32(data);
    int64_t table = sp_mds_table_bytes(s.samples);
    int64_t first = bytes >= 8 ? (int64_t)sp_mds_u32(data + 4) : 0;
    if (first > table && first <= (int64_t)bytes)
        *json = json_loadb((const char *)data + table, (size_t)(first - table), 0, NULL);
    s.json = *json;
    return s;
}

static void try_shard(const uint8_t *data, size_t bytes) {
    json_t *json = NULL;
    sp_mds_shard s = own_entry(data, bytes, &json);
    if (sp_mds_parse_header(data, (int64_t)bytes, (int64_t)bytes, &s) == SP_OK) {
        for (int64_t i = 0; i < s.samples; i++) {
            int64_t at = sp_mds_u32(data + 4 + 4 * i), end = sp_mds_u32(data + 8 + 4 * i);
            int64_t begin, size;
            sp_mds_array a;
            require(at <= end && end <= (int64_t)bytes);
            if (sp_mds_find_column(data + at, end - at, end - at, &s.columns, &begin, &size))
                continue;
            require(begin >= 4 && size >= 0 && begin + size + 8 == end - at);
            if (sp_mds_parse_array(data + at + begin, size, size, &s.columns, &a)) continue;
            require(a.count >= 1 && a.values + 4 * a.count == size);
        }
    }
    json_decref(json);
    sp_error_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes && data[0] == '{')
        try_index(data, bytes);
    else
        try_shard(data, bytes);
    return 0;
}
