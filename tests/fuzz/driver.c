// Stands in for libFuzzer where there is only gcc: calls LLVMFuzzerTestOneInput with every seed
// file as it is, then RUNS times with a seed that was mutated by a fixed random sequence. If the
// program dies, the input that did it is left in NAME.input.
//
//   fuzz_NAME RUNS SEED_FILE...
#include "common/util.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MAX_BYTES = 1 << 16 };

static uint8_t input[MAX_BYTES];
static size_t input_bytes;
static char crash_name[256];

static uint64_t random_state = 1;
static uint64_t random_below(uint64_t n) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

static void keep_input(void) {
    int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) return;
    if (write(fd, input, input_bytes) < 0) {
    }
    close(fd);
}

static void on_signal(int sig) {
    keep_input();
    signal(sig, SIG_DFL);
    raise(sig);
}

#ifdef SPARDA_SANITIZE
void __sanitizer_set_death_callback(void (*callback)(void));
#endif

static void insert(size_t at, const uint8_t *what, size_t n) {
    if (input_bytes + n > MAX_BYTES) return;
    memmove(input + at + n, input + at, input_bytes - at);
    memcpy(input + at, what, n);
    input_bytes += n;
}

// Numbers that lie at borders, as little-endian integers and as text.
static void write_number(size_t at) {
    static const uint64_t numbers[] = {0,          1,         127,        255,
                                       0x7fff,     0xffff,    0x7fffffff, 0xffffffff,
                                       1ull << 32, INT64_MAX, UINT64_MAX, 1ull << 63};
    uint64_t v = numbers[random_below(sizeof numbers / sizeof numbers[0])] + random_below(3) - 1;
    if (random_below(2)) {
        size_t n = (size_t)1 << random_below(4);
        if (at + n <= input_bytes) memcpy(input + at, &v, n);
    } else {
        char text[32];
        int n = snprintf(text, sizeof text, "%" PRIu64, v);
        insert(at, (uint8_t *)text, (size_t)n);
    }
}

static void mutate(void) {
    for (uint64_t i = 0, n = 1 + random_below(4); i < n; i++) {
        size_t at = input_bytes ? random_below(input_bytes) : 0;
        uint8_t byte = (uint8_t)random_below(256);
        static const uint8_t signs[] = "{}[]:,\"'\\#&*!|>%@-+.eE0123456789 \n\t";
        switch (random_below(8)) {
        case 0: // flip a bit
            if (input_bytes) input[at] ^= (uint8_t)(1u << random_below(8));
            break;
        case 1: // replace a byte
            if (input_bytes) input[at] = byte;
            break;
        case 2:
            insert(at, &byte, 1);
            break;
        case 3:
            insert(at, &signs[random_below(sizeof signs - 1)], 1);
            break;
        case 4: { // remove a piece
            size_t gone = 1 + random_below(16);
            if (at + gone > input_bytes) break;
            memmove(input + at, input + at + gone, input_bytes - at - gone);
            input_bytes -= gone;
            break;
        }
        case 5: { // repeat a piece
            uint8_t piece[64];
            size_t much = 1 + random_below(sizeof piece);
            if (at + much > input_bytes) break;
            memcpy(piece, input + at, much);
            insert(random_below(input_bytes + 1), piece, much);
            break;
        }
        case 6:
            write_number(at);
            break;
        case 7: // cut, now and then
            if (random_below(4) == 0) input_bytes = at;
            break;
        }
    }
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    if (runs <= 0 || argc < 3) {
        fprintf(stderr, "usage: %s RUNS SEED_FILE...\n", argv[0]);
        return 2;
    }
    snprintf(crash_name, sizeof crash_name, "%s.input", sp_path_base(argv[0]));
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGABRT, on_signal);
    signal(SIGFPE, on_signal);
#ifdef SPARDA_SANITIZE
    __sanitizer_set_death_callback(keep_input);
#endif
    int n_seeds = argc - 2;
    char **seed = calloc((size_t)n_seeds, sizeof *seed);
    int64_t *seed_bytes = calloc((size_t)n_seeds, sizeof *seed_bytes);
    for (int i = 0; i < n_seeds; i++)
        if (!seed || !seed_bytes ||
            sp_read_file(argv[i + 2], MAX_BYTES / 2, &seed[i], &seed_bytes[i]) != SP_OK) {
            fprintf(stderr, "%s\n", sp_error_text());
            return 2;
        }
    for (long run = -n_seeds; run < runs; run++) {
        int i = run < 0 ? (int)(run + n_seeds) : (int)random_below((uint64_t)n_seeds);
        input_bytes = (size_t)seed_bytes[i];
        memcpy(input, seed[i], input_bytes);
        if (run >= 0) mutate();
        // A copy of exactly this size: reading beyond its end is an error that a sanitizer sees.
        uint8_t *copy = malloc(input_bytes ? input_bytes : 1);
        if (!copy) return 3;
        memcpy(copy, input, input_bytes);
        LLVMFuzzerTestOneInput(copy, input_bytes);
        free(copy);
    }
    for (int i = 0; i < n_seeds; i++) free(seed[i]);
    free(seed);
    free(seed_bytes);
    printf("%ld inputs, %d seeds\n", runs, n_seeds);
    return 0;
}
