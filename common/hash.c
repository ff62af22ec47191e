#include "common/hash.h"
#include "common/util.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <xxhash.h>
#include <zlib.h>

struct sp_sha256 {
    EVP_MD_CTX *ctx;
};

sp_status sp_sha256_new(sp_sha256 **out) {
    sp_sha256 *s;
    *out = NULL;
    SP_TRY(sp_alloc(&s, 1, sizeof *s, "a hash"));
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(s->ctx);
        free(s);
        return sp_error(SP_ENVIRONMENT, "libcrypto offers no SHA-256");
    }
    *out = s;
    return SP_OK;
}

void sp_sha256_add(sp_sha256 *s, const void *data, size_t bytes) {
    EVP_DigestUpdate(s->ctx, data, bytes);
}

void sp_sha256_end(sp_sha256 *s, char hex[SP_SHA256_HEX]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char d[EVP_MAX_MD_SIZE] = {0};
    EVP_DigestFinal_ex(s->ctx, d, NULL);
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = digits[d[i] >> 4];
        hex[2 * i + 1] = digits[d[i] & 15];
    }
    hex[64] = 0;
    EVP_MD_CTX_free(s->ctx);
    free(s);
}

sp_status sp_sha256_of(const void *data, size_t bytes, char hex[SP_SHA256_HEX]) {
    sp_sha256 *s;
    SP_TRY(sp_sha256_new(&s));
    sp_sha256_add(s, data, bytes);
    sp_sha256_end(s, hex);
    return SP_OK;
}

sp_status sp_sha256_file(const char *path, char hex[SP_SHA256_HEX]) {
    sp_map m;
    SP_TRY(sp_map_open(path, &m));
    sp_status st = sp_sha256_of(m.data, (size_t)m.bytes, hex);
    sp_map_close(&m);
    return st;
}

uint64_t sp_xxh3(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

uint32_t sp_crc32(uint32_t crc, const void *data, size_t bytes) {
    return (uint32_t)crc32_z(crc, data, bytes);
}

uint64_t sp_mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sp_fnv1a_tokens(const int32_t *tokens, int64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++) {
        h = (h ^ ((uint32_t)tokens[i] & 0xff)) * 0x00000100000001b3u;
        h = (h ^ (((uint32_t)tokens[i] >> 8) & 0xff)) * 0x00000100000001b3u;
    }
    return h;
}
