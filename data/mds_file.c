// MDS shards as whole files: unpacking, and the hashes of the index.
#include "common/util.h"
#include "data/mds.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
    PIECE = 1 << 24,    // by which memory grows when the input's claim is not believed
    BELIEVED = 1 << 28, // bytes that are allocated at once
};

void sp_buffer_free(sp_buffer *b) {
    free(b->data);
    *b = (sp_buffer){0};
}

static sp_status reserve(sp_buffer *b, int64_t cap) {
    if (cap <= b->cap) return SP_OK;
    uint8_t *grown = realloc(b->data, (size_t)cap);
    if (!grown)
        return sp_error(SP_ENVIRONMENT, "out of memory for %lld bytes of an unpacked shard",
                        (long long)cap);
    b->data = grown;
    b->cap = cap;
    return SP_OK;
}

static sp_status too_many(int64_t want) {
    return sp_error(SP_BAD_INPUT,
                    "unpacks to more than the %lld bytes of raw_data in index.json; it belongs to "
                    "another data set, or was made to exhaust the memory",
                    (long long)want);
}

// Piece by piece, for sizes that the input only claims. The memory in use is at most twice what has
// really been unpacked.
static sp_status unpack_stream(ZSTD_DCtx *z, const uint8_t *packed, int64_t n, int64_t want,
                               sp_buffer *out) {
    ZSTD_inBuffer in = {packed, (size_t)n, 0};
    ZSTD_DCtx_reset(z, ZSTD_reset_session_only);
    for (size_t left = 1; left != 0 || in.pos < in.size;) {
        if (out->bytes == out->cap) {
            int64_t cap = out->cap + (out->cap > PIECE ? out->cap : PIECE);
            SP_TRY(reserve(out, cap <= want ? cap : want + 1)); // 1 more shows that it is too much
        }
        int64_t room = out->cap <= want ? out->cap : want + 1;
        ZSTD_outBuffer to = {out->data, (size_t)room, (size_t)out->bytes};
        size_t before = in.pos;
        left = ZSTD_decompressStream(z, &to, &in);
        if (ZSTD_isError(left))
            return sp_error(SP_BAD_INPUT, "zstd cannot unpack it at byte %zu of %lld: %s", in.pos,
                            (long long)n, ZSTD_getErrorName(left));
        bool stuck = in.pos == before && (int64_t)to.pos == out->bytes;
        out->bytes = (int64_t)to.pos;
        if (out->bytes > want) return too_many(want);
        if (stuck && left != 0)
            return sp_error(SP_BAD_INPUT, "ends in the middle of its zstd data, at byte %zu",
                            in.pos);
    }
    return SP_OK;
}

sp_status sp_mds_unpack(const uint8_t *packed, int64_t n, int64_t want, sp_buffer *out) {
    out->bytes = 0;
    unsigned long long claimed = ZSTD_getFrameContentSize(packed, (size_t)n);
    if (claimed == ZSTD_CONTENTSIZE_ERROR)
        return sp_error(SP_BAD_INPUT,
                        "is not zstd data (its first bytes are not those of a frame)");
    ZSTD_DCtx *z = ZSTD_createDCtx();
    if (!z) return sp_error(SP_ENVIRONMENT, "out of memory for unpacking");
    sp_status st;
    if (claimed == (unsigned long long)want && (want <= BELIEVED || want <= out->cap)) {
        st = reserve(out, want ? want : 1);
        if (st == SP_OK) {
            size_t got = ZSTD_decompressDCtx(z, out->data, (size_t)want, packed, (size_t)n);
            if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_dstSize_tooSmall)
                st = too_many(want);
            else if (ZSTD_isError(got))
                st = sp_error(SP_BAD_INPUT, "zstd cannot unpack it: %s", ZSTD_getErrorName(got));
            else
                out->bytes = (int64_t)got;
        }
    } else {
        st = unpack_stream(z, packed, n, want, out);
    }
    ZSTD_freeDCtx(z);
    if (st == SP_OK && out->bytes != want)
        st = sp_error(SP_BAD_INPUT, "unpacks to %lld bytes, but raw_data in index.json has %lld",
                      (long long)out->bytes, (long long)want);
    return st;
}

int64_t sp_mds_unpacked_size(const uint8_t *packed, int64_t n) {
    unsigned long long claimed = ZSTD_getFrameContentSize(packed, (size_t)n);
    return claimed == ZSTD_CONTENTSIZE_ERROR || claimed == ZSTD_CONTENTSIZE_UNKNOWN
               ? 0
               : (int64_t)claimed;
}

// ---- hashes -------------------------------------------------------------------------------------

static void to_hex(const uint8_t *d, size_t n, char *hex) {
    for (size_t i = 0; i < n; i++) sprintf(hex + 2 * i, "%02x", d[i]);
}

static bool is_quick(const char *name) {
    return strncmp(name, "xxh", 3) == 0;
}

_Static_assert(SP_MDS_HASH_HEX == 2 * EVP_MAX_MD_SIZE + 1, "room for every hash");

bool sp_mds_hash_of(const char *name, const uint8_t *data, size_t n, char hex[SP_MDS_HASH_HEX]) {
    if (strcmp(name, "xxh32") == 0) {
        XXH32_canonical_t c;
        XXH32_canonicalFromHash(&c, XXH32(data, n, 0));
        to_hex(c.digest, sizeof c.digest, hex);
    } else if (strcmp(name, "xxh64") == 0 || strcmp(name, "xxh3_64") == 0) {
        XXH64_canonical_t c;
        XXH64_canonicalFromHash(&c, name[3] == '6' ? XXH64(data, n, 0) : XXH3_64bits(data, n));
        to_hex(c.digest, sizeof c.digest, hex);
    } else if (strcmp(name, "xxh128") == 0 || strcmp(name, "xxh3_128") == 0) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits(data, n));
        to_hex(c.digest, sizeof c.digest, hex);
    } else { // hashlib's names, where OpenSSL's differ
        char other[32];
        if (strlen(name) >= sizeof other) return false;
        strcpy(other, name);
        for (char *c = other; *c; c++)
            if (*c == '_') *c = '-';
        const char *ssl = strcmp(name, "blake2b") == 0   ? "blake2b512"
                          : strcmp(name, "blake2s") == 0 ? "blake2s256"
                                                         : other;
        const EVP_MD *md = EVP_get_digestbyname(ssl);
        uint8_t digest[EVP_MAX_MD_SIZE];
        unsigned len;
        if (!md || EVP_Digest(data, n, digest, &len, md, NULL) != 1) return false;
        to_hex(digest, len, hex);
    }
    return true;
}

sp_status sp_mds_check_hashes(const json_t *hashes, bool all, const uint8_t *data, int64_t n,
                              int64_t *compared, const char **unknown) {
    const char *name;
    json_t *v;
    bool any_quick = false, one = false;
    json_object_foreach((json_t *)hashes, name, v) any_quick |= is_quick(name);
    json_object_foreach((json_t *)hashes, name, v) {
        const char *want = json_string_value(v);
        char hex[SP_MDS_HASH_HEX] = "";
        if (!want) return sp_error(SP_BAD_INPUT, "the hash '%s' in index.json is no text", name);
        if (!all && (any_quick ? !is_quick(name) : one)) continue;
        if (!sp_mds_hash_of(name, data, (size_t)n, hex)) {
            *unknown = name;
            continue;
        }
        one = true;
        ++*compared;
        if (strcasecmp(hex, want) != 0)
            return sp_error(SP_BAD_INPUT,
                            "its %s is %s, but index.json states %s; the file is damaged or was "
                            "changed: fetch it again",
                            name, hex, want);
    }
    return SP_OK;
}
