#include "common/contents.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static bool starts(const uint8_t *data, int64_t bytes, const char *magic, int64_t n) {
    return bytes >= n && memcmp(data, magic, (size_t)n) == 0;
}

static bool starts_text(const uint8_t *data, int64_t bytes, const char *text) {
    int64_t n = (int64_t)strlen(text);
    return bytes >= n && strncasecmp((const char *)data, text, (size_t)n) == 0;
}

static bool is_html(const uint8_t *data, int64_t bytes) {
    int64_t i = starts(data, bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
    while (i < bytes && isspace(data[i])) i++;
    return starts_text(data + i, bytes - i, "<!doctype html") ||
           starts_text(data + i, bytes - i, "<html") || starts_text(data + i, bytes - i, "<head") ||
           starts_text(data + i, bytes - i, "<?xml");
}

static bool all_zero(const uint8_t *data, int64_t bytes) {
    for (int64_t i = 0; i < bytes && i < 4096; i++)
        if (data[i]) return false;
    return true;
}

const char *sp_contents_of(const uint8_t *data, int64_t bytes) {
    static const struct {
        const char *magic;
        int bytes;
        const char *what;
    } kinds[] = {
        {"PK\x03\x04", 4,
         "a zip archive, as PyTorch's .pt and .bin files are; convert it to safetensors"},
        {"PK\x05\x06", 4, "an empty zip archive"},
        {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14,
         "a PyTorch file from before version 1.6; load and save it again with a recent PyTorch"},
        {"\x80\x02", 2, "a Python pickle"},
        {"\x80\x03", 2, "a Python pickle"},
        {"\x80\x04", 2, "a Python pickle"},
        {"\x80\x05", 2, "a Python pickle"},
        {"\x1f\x8b", 2, "a gzip file; unpack it first"},
        {"\x28\xb5\x2f\xfd", 4, "a zstd file; unpack it first"},
        {"\xfd"
         "7zXZ",
         5, "an xz file; unpack it first"},
        {"BZh", 3, "a bzip2 file; unpack it first"},
        {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
        {"GGUF", 4, "a GGUF file; use the original safetensors folder"},
        {"\x93NUMPY", 6, "a NumPy file"},
    };
    if (bytes == 0) return "an empty file; the download or copy did not finish, get it again";
    if (starts_text(data, bytes, "version https://git-lfs"))
        return "a Git LFS pointer, not the file itself; run 'git lfs pull' in that folder";
    if (is_html(data, bytes))
        return "an HTML or XML page, probably an error page saved by a download; get it again";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (starts(data, bytes, kinds[i].magic, kinds[i].bytes)) return kinds[i].what;
    if (bytes > 262 && memcmp(data + 257, "ustar", 5) == 0) return "a tar archive; unpack it first";
    if (all_zero(data, bytes))
        return "a file of zeros; the download or copy did not finish, get it again";
    return NULL;
}
