// Hashes. Hex texts are lower-case and terminated; sizes are those of the arrays to pass.
#ifndef SPARDA_HASH_H
#define SPARDA_HASH_H

#include "common/status.h"

#include <stdint.h>

enum { SP_SHA256_HEX = 65, SP_XXH64_HEX = 17 };

typedef struct sp_sha256 sp_sha256; // streaming SHA-256
sp_status sp_sha256_new(sp_sha256 **out);
void sp_sha256_add(sp_sha256 *s, const void *data, size_t bytes);
void sp_sha256_end(sp_sha256 *s, char hex[SP_SHA256_HEX]); // frees s

sp_status sp_sha256_of(const void *data, size_t bytes, char hex[SP_SHA256_HEX]);
sp_status sp_sha256_file(const char *path, char hex[SP_SHA256_HEX]);
uint64_t sp_xxh3(const void *data, size_t bytes);                // XXH3-64, seed 0
uint32_t sp_crc32(uint32_t crc, const void *data, size_t bytes); // zlib's; start with 0

// The finaliser of splitmix64, a bijection on 64 bits: the base of every keyed choice.
uint64_t sp_mix64(uint64_t z);

// FNV-1a over tokens as 16-bit little-endian numbers (data/corpus.md 7).
uint64_t sp_fnv1a_tokens(const int32_t *tokens, int64_t n);

#endif
