// Status, checked sizes, float conversion, atomic files.
#include "tests/support.h"

#include "common/hash.h"
#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static sp_status inner(void) {
    return sp_error(SP_BAD_INPUT, "file %s: wrong", "a.yaml");
}
static sp_status outer(void) {
    SP_TRY(inner());
    return SP_OK;
}

static void errors_travel_with_a_trace(void **state) {
    (void)state;
    assert_fails(outer(), SP_BAD_INPUT, "file a.yaml: wrong");
    assert_non_null(strstr(sp_error_trace(), "inner()"));
    sp_error_prefix("model %d", 7);
    assert_string_equal(sp_error_text(), "model 7: file a.yaml: wrong");
}

static void problems_are_listed_together(void **state) {
    (void)state;
    sp_problems p = {0};
    assert_ok(sp_problems_end(&p, SP_BAD_INPUT, "nothing"));
    sp_problems_add(&p, "first %d", 1);
    sp_problems_add(&p, "second");
    assert_fails(sp_problems_end(&p, SP_BAD_INPUT, "2 problems in %s", "x"), SP_BAD_INPUT,
                 "2 problems in x:\n  - first 1\n  - second");
}

static void sizes_are_checked(void **state) {
    (void)state;
    int64_t r;
    assert_true(sp_mul(1 << 20, 1 << 20, &r));
    assert_false(sp_mul(INT64_MAX, 2, &r));
    assert_false(sp_mul(-1, 2, &r));
    assert_false(sp_add(INT64_MAX, 1, &r));
    void *p;
    assert_fails(sp_alloc(&p, INT64_MAX, 8, "the list"), SP_ENVIRONMENT, "the list");
}

static void floats_convert_exactly(void **state) {
    (void)state;
    assert_int_equal(sp_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(sp_f32_to_bf16(1.00390625f), 0x3f80);   // tie: to even
    assert_int_equal(sp_f32_to_bf16(1.01171875f), 0x3f82);   // tie: to even
    assert_int_equal(sp_f32_to_bf16(3.4028234e38f), 0x7f80); // beyond the largest: infinity
    assert_true(isnan(sp_bf16_to_f32(sp_f32_to_bf16(NAN))));
    for (uint32_t u = 0; u < 65536; u++) { // round trip of every finite pattern
        float f = sp_bf16_to_f32((uint16_t)u);
        if (!isnan(f)) assert_int_equal(sp_f32_to_bf16(f), u);
    }
    assert_true(sp_f16_to_f32(0x3c00) == 1.0f && sp_f16_to_f32(0x0001) == 0x1p-24f);
    assert_true(sp_f16_to_f32(0xfbff) == -65504.0f && isinf(sp_f16_to_f32(0x7c00)));
    assert_true(signbit(sp_f16_to_f32(0x8000)) && isnan(sp_f16_to_f32(0x7e00)));
}

static void names_that_leave_the_folder_are_unsafe(void **state) {
    (void)state;
    assert_true(sp_path_is_safe("a/b.mds") && sp_path_is_safe("..a/b..") && sp_path_is_safe("a"));
    assert_false(sp_path_is_safe("") || sp_path_is_safe("/a") || sp_path_is_safe(".."));
    assert_false(sp_path_is_safe("a/../b") || sp_path_is_safe("a/..") || sp_path_is_safe("../a"));
}

static void files_are_complete_or_absent(void **state) {
    (void)state;
    char *path = sp_path_join(test_tmpdir(), "x.bin"), *back;
    int64_t n;
    assert_ok(sp_write_file(path, "old", 3));
    sp_atomic a;
    assert_ok(sp_atomic_open(&a, path));
    assert_ok(sp_atomic_write(&a, "half", 4));
    sp_atomic_abandon(&a);
    assert_ok(sp_read_file(path, 100, &back, &n));
    assert_int_equal(n, 3);
    assert_string_equal(back, "old");
    free(back);
    assert_fails(sp_read_file(path, 2, &back, &n), SP_BAD_INPUT, "at most 2");
    char **names;
    assert_ok(sp_list_dir(test_tmpdir(), "", &names, &n));
    assert_int_equal(n, 1); // no temporary left
    sp_free_names(names, n);
    free(path);
}

static void a_pipe_is_refused_without_waiting(void **state) {
    (void)state;
    char *pipe = sp_path_join(test_tmpdir(), "pipe"), *text;
    int64_t n;
    sp_map m;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(sp_read_file(pipe, 100, &text, &n), SP_BAD_INPUT, "not a regular file");
    assert_fails(sp_map_open(pipe, &m), SP_BAD_INPUT, "not a regular file");
    free(pipe);
}

static void a_destination_is_judged_without_touching_it(void **state) {
    (void)state;
    char *file = sp_path_join(test_tmpdir(), "file"), *under = sp_path_join(file, "a/b"),
         *fresh = sp_path_join(test_tmpdir(), "new/a/b"), *top = sp_path_join(test_tmpdir(), "new");
    assert_ok(sp_write_file(file, "x", 1));
    assert_ok(sp_check_destination(fresh));
    assert_ok(sp_check_destination("relative/not/there"));
    assert_int_not_equal(access(top, F_OK), 0);
    assert_fails(sp_check_destination(file), SP_BAD_INPUT, "not a folder");
    assert_fails(sp_check_destination(under), SP_BAD_INPUT, "not a folder");
    free(file), free(under), free(fresh), free(top);
}

static void hashes_match_published_values(void **state) {
    (void)state;
    char hex[SP_SHA256_HEX];
    assert_ok(sp_sha256_of("abc", 3, hex));
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_true(sp_crc32(0, "123456789", 9) == 0xcbf43926u);
}

// Without a free file handle it is the machine's fault, not that of the path.
static void no_file_handles_is_the_machines_fault(void **state) {
    (void)state;
    struct rlimit old, none;
    char **names, *text;
    int64_t n;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int lowest = dup(0); // the number that the next one opened would get
    assert_true(lowest >= 0);
    close(lowest);
    none = (struct rlimit){(rlim_t)lowest, old.rlim_max};
    const char *dir = test_tmpdir();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    sp_status list = sp_list_dir(dir, "", &names, &n);
    sp_status read = sp_read_file("/proc/self/status", 1 << 20, &text, &n);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(list, SP_ENVIRONMENT);
    assert_int_equal(read, SP_ENVIRONMENT);
    assert_fails(sp_list_dir("/no/such/folder", "", &names, &n), SP_BAD_INPUT, "No such file");
    char *file = sp_path_join(dir, "file"), *below = sp_path_join(dir, "file/below");
    assert_ok(sp_write_file(file, "", 0));
    assert_fails(sp_mkdirs(below), SP_BAD_INPUT, "choose another path");
    unlink(file);
    free(file);
    free(below);
}

static void memory_of_the_host(void **state) {
    (void)state;
    int64_t whole = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    assert_in_range(sp_host_available(), 1, whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_the_host),
        cmocka_unit_test(no_file_handles_is_the_machines_fault),
        cmocka_unit_test(errors_travel_with_a_trace),
        cmocka_unit_test(problems_are_listed_together),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(floats_convert_exactly),
        cmocka_unit_test(names_that_leave_the_folder_are_unsafe),
        cmocka_unit_test(files_are_complete_or_absent),
        cmocka_unit_test(hashes_match_published_values),
        cmocka_unit_test(a_pipe_is_refused_without_waiting),
        cmocka_unit_test(a_destination_is_judged_without_touching_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
