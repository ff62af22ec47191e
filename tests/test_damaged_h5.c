// HDF5 files with damaged bytes, which the HDF5 library has to parse: token shards in its older and
// newer format, and a checkpoint. Every input is read by a process of its own, since the library
// can crash on such files; what is accepted is right or at least obeys its contract, and a crash is
// never in our code. How often the library crashes is printed, not judged: docs/faults.md.
//
//   tests/test_damaged_h5 100000     in place of 250 inputs of each kind
#include "checkpoints/checkpoints.h"
#include "common/h5.h"
#include "common/util.h"
#include "data/shard.h"
#include "tests/shards.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCEPTED, REFUSED, WRONG, IN_LIBRARY, IN_OURS, ENDLESS, OTHER, OUTCOMES };
static const char *const outcome[] = {"accepted",
                                      "refused",
                                      "accepted, but wrong",
                                      "crashes inside the library",
                                      "crashes in our code",
                                      "endless",
                                      "ended otherwise"};
enum { CODE = 70, MAX_BYTES = 1 << 16, SECONDS = 3 };

// ---- crashes: whose? ---------------------------------------------------------------------------

// The innermost frame that is neither of the C library nor of a sanitizer.
static int culprit(void) {
    void *frame[64];
    int n = backtrace(frame, 64);
    for (int i = 0; i < n; i++) {
        Dl_info at;
        if (!dladdr(frame[i], &at) || !at.dli_fname) continue;
        const char *name = strrchr(at.dli_fname, '/');
        name = name ? name + 1 : at.dli_fname;
        if (strncmp(name, "libhdf5", 7) == 0 || strncmp(name, "libz.", 5) == 0) return IN_LIBRARY;
        if (strncmp(name, "lib", 3) != 0 && at.dli_sname && strcmp(at.dli_sname, "culprit") != 0 &&
            strcmp(at.dli_sname, "on_signal") != 0 && strcmp(at.dli_sname, "on_death") != 0)
            return IN_OURS;
    }
    return IN_OURS;
}

static void on_signal(int sig) {
    _exit(CODE + (sig == SIGALRM ? ENDLESS : culprit()));
}

#ifdef SPARDA_SANITIZE
void __sanitizer_set_death_callback(void (*callback)(void));
static void on_death(void) {
    _exit(CODE + culprit());
}
#endif

static void watch_crashes(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGALRM};
    static char stack[1 << 16]; // endless recursion leaves no room on the other one
    void *warm_up[1];
    backtrace(warm_up, 1); // loads what it needs
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_ONSTACK},
                  NULL);
#ifdef SPARDA_SANITIZE
    __sanitizer_set_death_callback(on_death);
#else
    const rlim_t most = (rlim_t)4 << 30; // of memory: more is a fault, too
    setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
#endif
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(SECONDS);
}

// ---- damage ------------------------------------------------------------------------------------

static void damage(uint8_t *b, size_t n, uint64_t *seed) {
    static const uint64_t numbers[] = {0,          1,          0x7f,       0xff,      0xffff,
                                       0x7fffffff, 0xffffffff, 1ull << 32, INT64_MAX, UINT64_MAX};
    for (uint64_t times = 1 + test_random(seed) % 3; times > 0; times--) {
        size_t at = test_random(seed) % n, length = 1 + test_random(seed) % 16;
        if (length > n - at) length = n - at;
        switch (test_random(seed) % 6) {
        case 0:
            b[at] ^= (uint8_t)(1u << test_random(seed) % 8);
            break;
        case 1:
            b[at] = (uint8_t)test_random(seed);
            break;
        case 2: {
            uint64_t v = numbers[test_random(seed) % (sizeof numbers / sizeof numbers[0])];
            if (length > 8) length = 8;
            memcpy(b + at, &v, length);
            break;
        }
        case 3:
            memset(b + at, 0, length);
            break;
        case 4:
            memmove(b + at, b + test_random(seed) % (n - length + 1), length);
            break;
        case 5: // one more or less
            b[at] = (uint8_t)(b[at] + (test_random(seed) % 2 ? 1 : 255));
            break;
        }
    }
}

// ---- the rounds --------------------------------------------------------------------------------

static int64_t rounds = 250;

static void survive(const char *what, const uint8_t *bytes, size_t n,
                    int (*try)(const char *path)) {
    static uint8_t copy[MAX_BYTES];
    int64_t seen[OUTCOMES] = {0};
    uint64_t seed = 1;
    char *path = sp_path_join(test_tmpdir(), "damaged.h5");
    assert_true(n <= sizeof copy);
    for (int64_t i = 0, end = rounds; i <= end; i++) {
        memcpy(copy, bytes, n);
        if (i > 0) damage(copy, n, &seed); // first the right one
        assert_ok(sp_write_file(path, (char *)copy, (int64_t)n));
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            watch_crashes();
            _exit(CODE + try(path));
        }
        int status, is = OTHER;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status) && WEXITSTATUS(status) >= CODE && WEXITSTATUS(status) < CODE + OTHER)
            is = WEXITSTATUS(status) - CODE;
        seen[is]++;
        if (is == WRONG || is == IN_OURS || is == OTHER)
            (void)sp_write_file("damaged.h5.input", (char *)copy, (int64_t)n);
        assert_true(i > 0 || is == ACCEPTED);
    }
    printf("%s, %zu bytes:", what, n);
    for (int i = 0; i < OUTCOMES; i++)
        if (seen[i]) printf(" %lld %s;", (long long)seen[i], outcome[i]);
    printf("\n");
    free(path);
    assert_int_equal(seen[WRONG] + seen[IN_OURS] + seen[OTHER], 0);
}

enum { ROWS = 3, TOKENS = 6 };
static const int32_t tokens[TOKENS] = {5, 1, 2, 3, 8, 9};
static const uint64_t offsets[ROWS + 1] = {0, 1, 4, TOKENS};

static void put(hid_t at, const char *name, hid_t type, hsize_t n, const void *values) {
    hid_t space = n ? H5Screate_simple(1, &n, NULL) : H5Screate(H5S_SCALAR); // 0: an attribute
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(plist, false); // the same bytes every time
    hid_t o = n ? H5Dcreate2(at, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT)
                : H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true((n ? H5Dwrite(o, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values)
                   : H5Awrite(o, type, values)) >= 0);
    n ? H5Dclose(o) : H5Aclose(o);
    H5Pclose(plist);
    H5Sclose(space);
}

static void write_small_shard(const char *path, bool newer, bool variable) {
    const int64_t version = SP_SHARD_VERSION, vocab = 10;
    const int32_t domain[ROWS] = {0, 1, 0};
    const char *names[] = {"alpha", "beta"}, *format = SP_SHARD_FORMAT, *tokenizer = "t";
    const char fixed[2][16] = {"alpha", "beta"};
    sp_h5_begin();
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), text = H5Tcopy(H5T_C_S1);
    if (newer) H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Tset_size(text, variable ? H5T_VARIABLE : 16);
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    put(f, "format", text, 0, variable ? (const void *)&format : SP_SHARD_FORMAT "\0\0");
    put(f, "tokenizer", text, 0, variable ? (const void *)&tokenizer : fixed[0]);
    put(f, "version", H5T_NATIVE_INT64, 0, &version);
    put(f, "vocab", H5T_NATIVE_INT64, 0, &vocab);
    put(f, "tokens", H5T_NATIVE_INT32, TOKENS, tokens);
    put(f, "offsets", H5T_NATIVE_UINT64, ROWS + 1, offsets);
    put(f, "domain", H5T_NATIVE_INT32, ROWS, domain);
    put(f, "domain_names", text, 2, variable ? (const void *)names : fixed);
    H5Tclose(text);
    H5Pclose(access);
    assert_true(H5Fclose(f) >= 0);
    sp_h5_end();
}

// It has no checksums, so other tokens than were written may be accepted.
static int try_shard(const char *path) {
    sp_dataset *d;
    int64_t checked, n;
    sp_status st = open_path(path, &d);
    if (st != SP_OK) return st == SP_BAD_INPUT ? REFUSED : WRONG;
    for (int64_t r = 0, rows = sp_dataset_rows(d, 0); r < rows; r++) {
        int32_t t[4];
        st = sp_dataset_read(d, 0, r, 4, t, &n);
        if (st == SP_OK && (n < 1 || n > 4)) return WRONG;
        for (int64_t i = 0; i < n && st == SP_OK; i++)
            if (t[i] < 0) return WRONG;
    }
    sp_dataset_close(d);
    st = sp_shard_verify(path, &checked);
    return st == SP_OK || st == SP_BAD_INPUT ? ACCEPTED : WRONG;
}

static void damaged_shards(void **state) {
    (void)state;
    static const char *const what[] = {
        "a shard in the oldest format, texts of fixed length",
        "a shard in the oldest format, texts of variable length",
        "a shard in the format of HDF5 1.8, texts of fixed length",
        "a shard in the format of HDF5 1.8, texts of variable length",
    };
    for (int i = 0; i < 4; i++) {
        char *path = sp_path_join(test_tmpdir(), "shard.h5"), *bytes;
        int64_t n;
        write_small_shard(path, i >= 2, i % 2);
        assert_ok(sp_read_file(path, MAX_BYTES, &bytes, &n));
        survive(what[i], (uint8_t *)bytes, (size_t)n, try_shard);
        free(bytes);
        free(path);
    }
}

static int try_state(const char *path) {
    sp_train_state s;
    sp_status st = sp_state_load(path, &s);
    if (st != SP_OK) return st == SP_BAD_INPUT ? REFUSED : WRONG;
    return s.step == 7 && s.weights.layers == 1 && s.weights.w[3] == 4 ? ACCEPTED : WRONG;
}

static void damaged_states(void **state) {
    (void)state;
    static float w[] = {1, 2, 3, 4}, zero[2];
    sp_train_state s = {.weights = {.layers = 1, .rows = 1, .cols = 2, .w = w},
                        .exp_avg = zero,
                        .exp_avg_sq = zero,
                        .step = 7,
                        .config = "steps: 7\n",
                        .heads = {1, 1, 1},
                        .hidden = 2};
    char *path = sp_path_join(test_tmpdir(), "state.h5"), *bytes;
    int64_t n;
    assert_ok(sp_state_save(path, &s));
    assert_ok(sp_read_file(path, MAX_BYTES, &bytes, &n));
    survive("a checkpoint", (uint8_t *)bytes, (size_t)n, try_state);
    free(bytes);
    free(path);
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = strtoll(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_shards),
        cmocka_unit_test(damaged_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
