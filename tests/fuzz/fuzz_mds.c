// Any bytes as an MDS index (if they begin with '{'), as a zstd file (if they begin like one) or as
// an MDS shard: never a crash, and what is accepted lies inside the bytes.
// seed: tests/mds/raw/ledger/index.json
// seed: tests/mds/zstd/prose-code/index.json
// seed: tests/mds/raw/ledger/shard.00003.mds
// seed: tests/mds/raw/prose-code/shard.00002.mds
// seed: tests/mds/raw/prose-code/shard.00005.mds
// seed: tests/mds/zstd/prose-code/shard.00002.mds.zstd
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

// The index that has one shard with the description of the bytes themselves.
static char *own_index(const uint8_t *data, size_t bytes) {
    if (bytes < 8) return NULL;
    int64_t samples = sp_mds_u32(data), table = sp_mds_table_bytes(samples);
    int64_t first = sp_mds_u32(data + 4);
    if (first <= table || first > (int64_t)bytes) return NULL;
    json_t *shard = json_loadb((const char *)data + table, (size_t)(first - table), 0, NULL);
    if (!json_is_object(shard)) {
        json_decref(shard);
        return NULL;
    }
    json_object_set_new(shard, "samples", json_integer(samples));
    json_object_set_new(shard, "raw_data",
                        json_pack("{s:s,s:I}", "basename", "a", "bytes", (json_int_t)bytes));
    json_object_del(shard, "zip_data");
    json_t *index = json_pack("{s:[o],s:i}", "shards", shard, "version", 2);
    char *text = json_dumps(index, 0);
    json_decref(index);
    return text;
}

static void try_rows(const uint8_t *data, size_t bytes, const sp_mds_shard *s) {
    const sp_mds_columns *c = &s->columns;
    int32_t *tokens = malloc(bytes * 4 + 4);
    require(tokens != NULL);
    for (int64_t i = 0; i < s->samples; i++) {
        int64_t at = sp_mds_u32(data + 4 + 4 * i), end = sp_mds_u32(data + 8 + 4 * i);
        int64_t begin, size, value;
        sp_mds_array a;
        require(at <= end && end <= (int64_t)bytes);
        if (sp_mds_find_column(data + at, end - at, end - at, c, &begin, &size)) continue;
        require(begin >= 0 && size >= 0 && begin + size <= end - at);
        if (sp_mds_parse_array(data + at + begin, size, size, c, &a)) continue;
        require(a.count >= 1 && a.values + a.type->size * a.count == size);
        int64_t fit = sp_mds_convert(data + at + begin + a.values, a.count, a.type, tokens, &value);
        require(fit >= 0 && fit <= a.count);
    }
    free(tokens);
}

static void try_shard(const uint8_t *data, size_t bytes) {
    char *text = own_index(data, bytes);
    sp_problems problems = {0};
    sp_mds_index x;
    if (text && sp_mds_parse_index(text, (int64_t)strlen(text), "fuzz", &problems, &x) == SP_OK) {
        if (x.n == 1 &&
            sp_mds_parse_header(data, (int64_t)bytes, (int64_t)bytes, &x.shard[0]) == SP_OK)
            try_rows(data, bytes, &x.shard[0]);
        sp_mds_index_free(&x);
    }
    sp_error_clear();
    free(problems.text);
    free(text);
}

static void try_zstd(const uint8_t *data, size_t bytes) {
    sp_buffer b = {0};
    const int64_t wants[] = {0, 724, 1 << 16, sp_mds_unpacked_size(data, (int64_t)bytes)};
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
        if (wants[i] < 0 || wants[i] > 1 << 20) continue;
        sp_status st = sp_mds_unpack(data, (int64_t)bytes, wants[i], &b);
        require(st == SP_BAD_INPUT || (st == SP_OK && b.bytes == wants[i]));
        require(b.bytes <= b.cap);
    }
    sp_buffer_free(&b);
    sp_error_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes && data[0] == '{')
        try_index(data, bytes);
    else if (bytes >= 4 && sp_mds_u32(data) == 0xfd2fb528)
        try_zstd(data, bytes);
    else
        try_shard(data, bytes);
    return 0;
}
